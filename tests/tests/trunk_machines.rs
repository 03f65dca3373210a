//! Services on two machines whose fabrics a trunk joins over a wire that fails, or is slow. The machines are network namespaces: without the
//! right to make those nothing is tested here.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vhca_tests::effort::{full, is_full};
use vhca_tests::live::{Lab, Machines, PATIENCE, Shim, wait_for};

/// The port of the listener.
const PORT: u16 = 18_600;

/// The files of the two services' options.
const FILES: [&str; 2] = ["north.toml", "south.toml"];

/// Starts the service of a machine.
fn serve(machines: &Machines, side: usize, folder: &TempDir) -> Lab {
    let file = folder.path().join(FILES[side]);
    let (site, sm) = [("north", "lite"), ("south", "none")][side];
    let arguments = ["--config", file.to_str().unwrap(), "--site", site];
    let arguments = [&arguments[..], &["--sm", sm, "--vfs", "2", "--verbs"]].concat();
    Lab::serve_at(machines, side, &arguments)
}

/// Services of two machines: the first has the subnet manager, and listens.
struct Sites {
    labs: [Lab; 2],
    machines: Machines,
    /// The folder of their options.
    folder: TempDir,
}

impl Sites {
    fn new(timeout: &str) -> Option<Self> {
        let machines = match Machines::new() {
            Ok(machines) => machines,
            Err(reason) => {
                eprintln!("not tested: {reason}");
                return None;
            }
        };
        let folder = TempDir::new().unwrap();
        let address = Machines::address(0);
        let trunks = [
            format!("port = \"S1/5\"\nlisten = \"tcp:[::]:{PORT}\""),
            format!("port = \"S2/5\"\nconnect = \"tcp:{address}:{PORT}\""),
        ];
        for (file, trunk) in FILES.iter().zip(trunks) {
            let options = format!("[[trunk]]\n{trunk}\ntimeout = \"{timeout}\"\n");
            std::fs::write(folder.path().join(file), options).unwrap();
        }
        let labs = [0, 1].map(|side| serve(&machines, side, &folder));
        labs[1].told(&["show", "vfs", "--wait-up"]);
        Some(Self {
            labs,
            machines,
            folder,
        })
    }

    fn restart_south(&mut self) {
        self.labs[1] = serve(&self.machines, 1, &self.folder);
    }

    /// Returns how often each service said a text.
    fn said(&mut self, text: &str) -> [usize; 2] {
        self.labs
            .each_mut()
            .map(|lab| lab.service().output().matches(text).count())
    }
}

#[test]
fn a_wire_that_loses_everything_is_noticed_at_both_ends_and_its_site_comes_back() {
    let Some(mut sites) = Sites::new("1s") else {
        return;
    };
    let vfs = |sites: &Sites| sites.labs[1].told(&["show", "vfs", "--wait-up"]);
    let before = vfs(&sites);
    for round in 1..=full(2, 20) {
        sites.machines.set_wire(round % 2, "down");
        let down =
            |sites: &mut Sites| (sites.said("): down").iter().min()? >= &round).then_some(());
        wait_for(PATIENCE, || down(&mut sites)).unwrap_or_else(|| panic!("round {round}"));
        sites.machines.set_wire(round % 2, "up");
        let up =
            |sites: &mut Sites| (sites.said("): up, port").iter().min()? > &round).then_some(());
        wait_for(PATIENCE, || up(&mut sites)).unwrap_or_else(|| panic!("round {round}"));
        assert_eq!(vfs(&sites), before, "round {round}");
    }
}

#[test]
fn a_site_that_was_killed_comes_back_while_its_old_connection_is_half_open() {
    let Some(mut sites) = Sites::new("10s") else {
        return;
    };
    let before = sites.labs[1].told(&["show", "vfs", "--wait-up"]);
    let in_the_south = |sites: &Sites, script: &str| {
        let mut shell = sites.machines.on(1, "sh");
        let output = shell.args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    in_the_south(&sites, "echo 1 > /proc/sys/net/ipv4/tcp_orphan_retries");
    sites.machines.set_wire(1, "down");
    sites.labs[1].service().signal("KILL");
    sites.labs[1].service().wait(PATIENCE);
    // Once the southern kernel gives up, the north never hears of the end of the connection.
    let is_forgotten = || in_the_south(&sites, "ss -Htan").is_empty().then_some(());
    wait_for(PATIENCE, is_forgotten).expect("the connection is half open");
    sites.machines.set_wire(1, "up");
    sites.restart_south();
    // The south is refused as long as the north has its old connection, which ends at the answer of a kernel that does not know it.
    sites.labs[0].service().wait_for_line("): down", PATIENCE);
    let after = sites.labs[1].told(&["show", "vfs", "--wait-up"]);
    assert_eq!(after, before);
}

/// A pair of `ib_write_bw` on VFs of the same name, at two services or at one.
struct Writers {
    server: Child,
    client: Child,
}

impl Writers {
    /// Starts the pair; the client once the server listens.
    fn start([near, far]: [&Lab; 2], [server, client]: [&str; 2], port: u16) -> Self {
        let port_text = port.to_string();
        let program = [
            "ib_write_bw",
            "-D",
            "6",
            "-u",
            "19",
            "-s",
            "65536",
            "-p",
            &port_text,
        ];
        let mut listener = near.on(Shim::Vhca, server, &program);
        let server = listener.stdout(Stdio::null()).spawn().unwrap();
        wait_for(PATIENCE, || listens(port).then_some(())).expect("the server listens");
        let mut connecting = far.on(Shim::Vhca, client, &[&program[..], &["127.0.0.1"]].concat());
        let client = connecting.stdout(Stdio::piped()).spawn().unwrap();
        Self { server, client }
    }

    /// Waits for the end, and returns the megabytes a second that it wrote.
    fn rate(mut self) -> f64 {
        let output = self.client.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(self.server.wait().unwrap().success(), "{said}");
        let row = said
            .lines()
            .find(|line| line.trim_start().starts_with("65536"));
        let average = row.and_then(|row| row.split_whitespace().nth(3));
        average
            .and_then(|rate| rate.parse().ok())
            .unwrap_or_else(|| panic!("{said}"))
    }
}

/// Returns `true` if a TCP port of this machine is listened at. A connection would be the server's only one.
fn listens(port: u16) -> bool {
    let sockets =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap());
    let (local, listening) = (format!(":{port:04X} "), " 0A ");
    let mut lines = sockets.iter().flat_map(|text| text.lines());
    lines.any(|line| line.contains(&local) && line.contains(listening))
}

#[test]
fn a_slow_wire_holds_writers_up_and_no_management() {
    let Some(sites) = Sites::new("10s") else {
        return;
    };
    sites.machines.throttle(100);
    let [north, south] = &sites.labs;
    let vfs = [
        "H1-1/1", "H1-1/2", "H1-2/1", "H1-2/2", "H2-1/1", "H2-1/2", "H2-2/1", "H2-2/2",
    ];
    let writers = (19_100..)
        .zip(vfs)
        .map(|(port, vf)| Writers::start([north, south], [vf, vf], port));
    let writers: Vec<_> = writers.collect();
    let asked = Instant::now();
    north.tool(Shim::Vhca, "mgmt", &["smpquery", "nodeinfo", "-D", "0,1,5"]);
    let answered = asked.elapsed();
    let rates: Vec<f64> = writers.into_iter().map(Writers::rate).collect();
    println!("{rates:?} MB/s; an SMP and its answer with their process: {answered:?}");
    let (least, all) = (
        rates.iter().copied().fold(f64::MAX, f64::min),
        rates.iter().sum::<f64>(),
    );
    println!("{all} MB/s together, {least} MB/s at least");
    assert!(least > 0.0, "{rates:?}");
    // A process that waits for a processor for longer than HOQLife makes switches discard packets: that is for a machine at rest.
    if !is_full() {
        return;
    }
    assert!(least > all / 8.0 / 2.0, "{rates:?}");
    assert!(answered < Duration::from_millis(100), "{answered:?}");
    for lab in &sites.labs {
        let metrics = lab.told(&["metrics", "--by", "total"]);
        let lost = metrics.lines().filter(|line| {
            line.starts_with("vhca_port_discards_transmitted_total")
                || line.starts_with("vhca_connection_retransmissions_total")
        });
        let lost: Vec<_> = lost.filter(|line| !line.ends_with(" 0")).collect();
        assert_eq!(lost, Vec::<&str>::new());
    }
}
