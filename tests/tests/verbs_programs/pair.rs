//! Two programs that find each other by TCP of the host, as most tests of verbs do.

use std::fs;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use vhca_tests::live::{Lab, PATIENCE, Process, Shim, wait_for};

/// Time for the traffic of a pair.
const LIMIT: Duration = Duration::from_secs(120);

/// A server on H1-1, and its client on H2-1, behind another switch.
pub(crate) struct Pair {
    pub(crate) server: Process,
    pub(crate) client: Process,
    program: String,
}

/// Returns a TCP port that no other pair of this process has.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests of one process are at most some hundred pairs; other processes begin elsewhere.
    let base = 20_000 + u16::try_from(std::process::id() % 100).unwrap() * 100;
    base + NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the states of the host's TCP sockets at a port.
fn tcp_states(port: u16) -> Vec<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let text: String = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .collect();
    let suffix = format!(":{port:04X}");
    let fields = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = fields.filter(|fields| fields.get(1).is_some_and(|local| local.ends_with(&suffix)));
    found
        .filter_map(|fields| Some((*fields.get(3)?).to_owned()))
        .collect()
}

/// TCP port at which the server of `fi_pingpong` waits for its client before it uses RDMA.
const FI_PINGPONG: u16 = 47592;

/// Returns `true` if the program of the server's VF has ids of the RDMA CM or queue pairs, or waits for a client by TCP.
fn is_ready(lab: &Lab) -> bool {
    if tcp_states(FI_PINGPONG).iter().any(|state| state == "0A") {
        return true;
    }
    let shown = lab.json(&["show", "programs"]);
    let mut rows = shown["programs"].as_array().into_iter().flatten();
    let row = rows.find(|row| row["host"] == "H1-1" && row["vf"] == 1);
    row.is_some_and(|row| row["cm_ids"].as_u64() > Some(0) || row["qps"].as_u64() > Some(0))
}

impl Pair {
    /// Starts both programs on VFs.
    pub(crate) fn of(lab: &Lab, program: &[&str]) -> Self {
        Self::between(lab, ["H1-1/1", "H2-1/1"], program)
    }

    /// Starts a server on one node, and its client on another.
    pub(crate) fn between(lab: &Lab, [server, client]: [&str; 2], program: &[&str]) -> Self {
        let port = port();
        let number = port.to_string();
        // Lines are written as they are printed, and not when there are many.
        let arguments = [&["stdbuf", "-oL"], program, &["-p", &number]].concat();
        let server = &mut lab.on(Shim::Vhca, server, &arguments);
        let mut server = Process::start(lab.dir(), &format!("server-{port}"), server);
        let listens = wait_for(PATIENCE, || {
            let is_listening = tcp_states(port).iter().any(|state| state == "0A");
            (is_listening || server.ended().is_some()).then_some(())
        });
        assert!(
            listens.is_some(),
            "{program:?} does not listen: {}",
            server.output()
        );
        // Of the server's VF, which by TCP is the host itself.
        let arguments = [&arguments[..], &["127.77.1.1"]].concat();
        let client = &mut lab.on(Shim::Vhca, client, &arguments);
        Self {
            client: Process::start(lab.dir(), &format!("client-{port}"), client),
            server,
            program: program.join(" "),
        }
    }

    /// Starts a server and, once it is ready, its client, which find each other by the RDMA CM.
    ///
    /// The server listens a moment later. A client that was too early fails, and some servers fail with their first one: both
    /// are started again then.
    pub(crate) fn by_rdma_cm(lab: &Lab, server: &[&str], client: &[&str]) -> Self {
        let number = port();
        let program = client.join(" ");
        let mut last = String::new();
        let pair = wait_for(PATIENCE, || {
            let command = &mut lab.on(Shim::Vhca, "H1-1/1", server);
            let mut server = Process::start(lab.dir(), &format!("server-{number}"), command);
            wait_for(LIMIT, || {
                (is_ready(lab) || server.ended().is_some()).then_some(())
            });
            let command = &mut lab.on(Shim::Vhca, "H2-1/1", client);
            let mut client = Process::start(lab.dir(), &format!("client-{number}"), command);
            if client.wait(LIMIT).success() {
                return Some((server, client));
            }
            last = format!("{}\n{}", server.output(), client.output());
            None
        });
        let (server, client) = pair.unwrap_or_else(|| panic!("{program}: {last}"));
        Self {
            client,
            server,
            program,
        }
    }

    /// Starts a receiver and, once it has joined its group, the sender, which waits for nobody.
    pub(crate) fn by_group(lab: &Lab, receiver: &[&str], sender: &[&str]) -> Self {
        let number = port();
        let command = &mut lab.on(Shim::Vhca, "H1-1/1", receiver);
        let mut server = Process::start(lab.dir(), &format!("server-{number}"), command);
        server.wait_for_line("joined dgid", PATIENCE);
        let command = &mut lab.on(Shim::Vhca, "H2-1/1", sender);
        Self {
            client: Process::start(lab.dir(), &format!("client-{number}"), command),
            server,
            program: sender.join(" "),
        }
    }

    /// Waits for the end of both programs, which must be a good one.
    pub(crate) fn succeeds(&mut self) {
        for (name, process) in [("client", &mut self.client), ("server", &mut self.server)] {
            let ended = process.wait(LIMIT);
            assert!(
                ended.success(),
                "{}: {name} ends with {ended}:\n{}",
                self.program,
                process.output()
            );
        }
    }

    /// Waits until the programs have exchanged their addresses.
    pub(crate) fn wait_until_connected(&mut self) {
        self.server.wait_for_line("remote address", PATIENCE);
    }
}
