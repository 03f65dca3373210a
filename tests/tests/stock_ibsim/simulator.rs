//! A stock `ibsim`, or our own server of its protocol, under a stock OpenSM, in a folder of their own.

use std::ffi::OsStr;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use tempfile::TempDir;
use vhca::{Runner, StopHandle};
use vhca_service::serve::{IbsimAddress, IbsimWay, Lab, Options, Service, SmChoice, Users};
use vhca_tests::live::{PATIENCE, Process, wait_for};

/// Two switches, a node for the subnet manager, two for hosts, and one for whoever asks.
const NET: &str = "\
Switch 8 \"S-1\"
[1] \"H-SM\"[1]
[2] \"H-A\"[1]
[3] \"S-2\"[3]

Switch 8 \"S-2\"
[1] \"H-B\"[1]
[2] \"H-ASK\"[1]
[3] \"S-1\"[3]

Hca 1 \"H-SM\"
[1] \"S-1\"[1]

Hca 1 \"H-A\"
[1] \"S-1\"[2]

Hca 1 \"H-B\"
[1] \"S-2\"[1]

Hca 1 \"H-ASK\"
[1] \"S-2\"[2]
";

/// How clients reach the simulator.
#[derive(Clone, Debug)]
enum Door {
    /// By the base of the names of abstract sockets.
    Unix(String),
    /// By UDP.
    Udp(u16),
}

/// A simulator and its subnet manager.
#[derive(Debug)]
pub(crate) struct Simulator {
    folder: TempDir,
    door: Door,
    ibsim: Option<Process>,
    ours: Option<OurServer>,
    opensm: Option<Process>,
    /// The node of the subnet manager.
    manager: &'static str,
    questions: u32,
}

/// A fabric of ours behind a server of the protocol, on a thread of its own.
#[derive(Debug)]
struct OurServer {
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

impl OurServer {
    fn start(name: &str) -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        let address = IbsimAddress::Unix(name.to_owned());
        let thread = std::thread::spawn(move || {
            let options = Options {
                sm: SmChoice::None,
                ..Options::default()
            };
            let mut service = Service::new(Lab::build(&options, 2).unwrap());
            service.add_way_in(IbsimWay::bind(address, Users::default()).unwrap());
            let mut runner = Runner::new(service).unwrap();
            tell.send(runner.stop_handle().unwrap()).unwrap();
            runner.run().unwrap();
        });
        Self {
            stop: told.recv().unwrap(),
            thread: Some(thread),
        }
    }
}

impl Drop for OurServer {
    fn drop(&mut self) {
        let stopped = self.stop.stop();
        if let Some(thread) = self.thread.take()
            && stopped.is_ok()
        {
            // What went wrong there was printed there.
            let _ = thread.join();
        }
    }
}

impl Simulator {
    /// Starts both, by abstract sockets.
    pub(crate) fn start() -> Self {
        let mut simulator = Self::at(Door::Unix(socket_name()), "H-SM");
        simulator.start_ibsim();
        simulator.start_opensm();
        simulator
    }

    /// Starts our own server, with the adapters `H1-1`, `H1-2`, `H2-1` and `H2-2`, and a stock OpenSM.
    pub(crate) fn start_ours() -> Self {
        let name = socket_name();
        let mut simulator = Self::at(Door::Unix(name.clone()), "mgmt");
        simulator.ours = Some(OurServer::start(&name));
        simulator.start_opensm();
        simulator
    }

    /// Starts both, by UDP.
    pub(crate) fn start_udp() -> Self {
        let mut simulator = Self::at(Door::Udp(free_ports()), "H-SM");
        simulator.start_ibsim();
        simulator.start_opensm();
        simulator
    }

    fn at(door: Door, manager: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("net"), NET).unwrap();
        let options = "force_log_flush TRUE\n";
        fs::write(folder.path().join("opensm.conf"), options).unwrap();
        Self {
            folder,
            door,
            ibsim: None,
            ours: None,
            opensm: None,
            manager,
            questions: 0,
        }
    }

    /// Where `vhca serve --attach` finds nodes of it.
    pub(crate) fn attach(&self, nodes: &str) -> String {
        match &self.door {
            Door::Unix(name) => format!("ibsim:{name}/{nodes}"),
            Door::Udp(port) => format!("ibsim:udp:{port}/{nodes}"),
        }
    }

    /// Starts the simulator, and waits until clients can come.
    pub(crate) fn start_ibsim(&mut self) {
        let mut arguments = vec!["-n".to_owned(), "-s".to_owned()];
        if let Door::Udp(port) = &self.door {
            arguments.extend(["-r".to_owned(), "-l".to_owned(), port.to_string()]);
        }
        arguments.push("net".to_owned());
        let folder = self.folder.path().to_owned();
        self.ibsim = Some(self.spawn(&folder, "ibsim", None, "ibsim", &arguments));
        let (table, entry) = match &self.door {
            Door::Unix(name) => ("/proc/net/unix", format!("@{name}:ctl")),
            Door::Udp(port) => ("/proc/net/udp", format!(":{port:04X} ")),
        };
        let is_open = || {
            let open = fs::read_to_string(table).unwrap();
            open.contains(&entry).then_some(())
        };
        wait_for(PATIENCE, is_open).expect("ibsim opens its socket");
    }

    /// Starts OpenSM, without waiting for the subnet.
    pub(crate) fn start_opensm(&mut self) {
        let arguments = ["-f", "opensm.log", "-F", "../opensm.conf"];
        self.opensm = Some(self.client(self.manager, "opensm", "opensm", &arguments));
    }

    /// Has OpenSM end in order.
    pub(crate) fn stop_opensm(&mut self) {
        let mut opensm = self.opensm.take().unwrap();
        opensm.signal("TERM");
        opensm.wait(PATIENCE);
    }

    /// Kills both, the simulator first.
    pub(crate) fn kill(&mut self) {
        self.ibsim = None;
        self.opensm = None;
    }

    /// Starts a program of infiniband-diags on the node that asks. Its answer is read with
    /// [`Simulator::answer`].
    pub(crate) fn ask(&mut self, program: &str, arguments: &[&str]) -> Question {
        self.questions += 1;
        let name = format!("answer-{}", self.questions);
        Question(self.client("H-ASK", &name, program, arguments))
    }

    /// Starts a program that uses the fabric from a node.
    fn client(&self, node: &str, name: &str, program: &str, arguments: &[&str]) -> Process {
        let folder = self.folder.path().join(node);
        fs::create_dir_all(&folder).unwrap();
        self.spawn(&folder, name, Some(node), program, arguments)
    }

    fn spawn(
        &self,
        folder: &Path,
        name: &str,
        node: Option<&str>,
        program: &str,
        arguments: &[impl AsRef<OsStr>],
    ) -> Process {
        // The variables are for the program, not for those that start it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "env"]);
        // Debian has OpenSM in a folder that only root looks into.
        let path = std::env::var("PATH").unwrap_or_default();
        command.arg(format!("PATH={path}:/usr/sbin"));
        match &self.door {
            Door::Unix(name) => command.arg(format!("IBSIM_SOCKNAME={name}")),
            Door::Udp(port) => command
                .arg("IBSIM_SERVER_NAME=127.0.0.1")
                .arg(format!("IBSIM_SERVER_PORT={port}")),
        };
        if let Some(node) = node {
            command
                .arg(format!("SIM_HOST={node}"))
                .arg(format!("LD_PRELOAD={}", umad2sim().display()))
                .args(["OSM_CACHE_DIR=.", "OSM_TMP_DIR=."]);
        }
        command.arg(program).args(arguments);
        Process::start(folder, name, &mut command)
    }

    /// The end of what OpenSM has logged.
    pub(crate) fn log(&self) -> String {
        let log = self.folder.path().join(self.manager).join("opensm.log");
        let log = fs::read_to_string(log).unwrap_or_default();
        let from = log.len().saturating_sub(2000);
        log.get(from..).unwrap_or_default().to_owned()
    }
}

/// A program that asks the fabric something.
#[derive(Debug)]
pub(crate) struct Question(Process);

impl Question {
    /// What it printed, once it has ended.
    pub(crate) fn answer(&mut self) -> Option<String> {
        self.0.ended().map(|_| self.0.output())
    }
}

/// A name for sockets that nobody else has.
fn socket_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("vhca{}-{count}", std::process::id())
}

/// The library that has programs use a simulator.
fn umad2sim() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").unwrap();
    let libraries = folders.map(|entry| entry.unwrap().path().join("umad2sim/libumad2sim.so"));
    let mut found = libraries.filter(|library| library.exists());
    found.next().expect("libumad2sim0 is installed")
}

/// A UDP port that is free with the ten behind it: a simulator takes one for each of its clients.
fn free_ports() -> u16 {
    let is_free = |port: u16| UdpSocket::bind(("127.0.0.1", port)).is_ok();
    // Different in each process, and below the ports that the kernel gives out.
    let from = 10_000 + u16::try_from(std::process::id() % 1_800).unwrap() * 12;
    let mut firsts = (from..32_000).step_by(12);
    firsts
        .find(|first| (0..=10).all(|slot| is_free(first + slot)))
        .expect("eleven ports in a row are free")
}
