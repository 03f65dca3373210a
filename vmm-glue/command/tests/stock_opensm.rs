//! Stock OpenSM and the programs of infiniband-diags on a served fabric, by the preload library of the
//! ibsim package (Debian: opensm, infiniband-diags, libumad2sim0).
#![expect(clippy::unwrap_used, reason = "what cannot be started fails the test")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(60);

/// Where Debian has the library, and where others do.
const PRELOADS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib/aarch64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib64/umad2sim/libumad2sim.so",
    "/usr/lib/umad2sim/libumad2sim.so",
];

/// A process that ends with the test.
struct Running(Child);

impl Running {
    /// Has an OpenSM look at its subnet anew, other managers included.
    fn sweep(&self) {
        kill_process(Pid::from_child(&self.0), Signal::HUP).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A service in a folder of its own.
struct Bench {
    folder: tempfile::TempDir,
    name: String,
    _service: Running,
}

impl Bench {
    fn serve(test: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("vhca-{test}-{}", std::process::id());
        let out = fs::File::create(folder.path().join("serve.out")).unwrap();
        let service = Command::new(env!("CARGO_BIN_EXE_vhca"))
            .args(["serve", "--topology", "two-switch", "--sm", "none"])
            .args(["--ibsim", &name, "--control"])
            .arg(folder.path().join("control.sock"))
            .args(arguments)
            .stdout(out)
            .spawn()
            .unwrap();
        let bench = Self {
            folder,
            name,
            _service: Running(service),
        };
        bench.wait_for("serve.out", "ready");
        bench
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    fn wait_for(&self, file: &str, text: &str) {
        self.wait_for_any(file, [text]);
    }

    /// Waits for the first of some texts, and gives it.
    fn wait_for_any<'t, const N: usize>(&self, file: &str, texts: [&'t str; N]) -> &'t str {
        let begun = Instant::now();
        loop {
            let found = self.read(file);
            if let Some(text) = texts.into_iter().find(|text| found.contains(text)) {
                return text;
            }
            assert!(begun.elapsed() < LIMIT, "no {texts:?} in {file}: {found}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A program on a node.
    fn on(&self, node: &str, program: &str) -> Command {
        let preload = PRELOADS.iter().find(|path| Path::new(path).exists());
        let preload = preload.expect("libumad2sim is installed (Debian: libumad2sim0)");
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", preload)
            .env("IBSIM_SOCKNAME", &self.name)
            .env("SIM_HOST", node)
            .current_dir(self.folder.path());
        command
    }

    /// Starts an OpenSM, which logs to `log`.
    fn opensm(&self, node: &str, log: &str, priority: &str) -> Running {
        let cache = self.path(&format!("{log}.d"));
        fs::create_dir(&cache).unwrap();
        fs::write(self.path("opensm.conf"), "force_log_flush TRUE\n").unwrap();
        let child = self
            .on(node, "opensm")
            .env("OSM_CACHE_DIR", &cache)
            .env("OSM_TMP_DIR", &cache)
            .args(["-F", "opensm.conf", "-p", priority, "-f"])
            .arg(self.path(log))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Running(child.unwrap())
    }

    /// What a program prints; it must succeed.
    fn run(&self, node: &str, program: &str, arguments: &[&str]) -> String {
        let output = self.on(node, program).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {text}{errors}"
        );
        text
    }

    /// What a command of ours prints; it must succeed.
    fn ask(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_vhca"))
            .args(arguments)
            .env("VHCA_CONTROL", self.path("control.sock"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}{errors}");
        text
    }

    /// Asks until what is printed is as it should be.
    fn ask_until(&self, arguments: &[&str], is_so: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        loop {
            let text = self.ask(arguments);
            if is_so(&text) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{arguments:?}: {text}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until so many VFs have a GUID that OpenSM chose, and are up.
    fn wait_for_vfs(&self, vfs: usize) {
        let up = |line: &&str| line.contains("  yes  ") && line.contains("0x00140500");
        self.ask_until(&["show", "vfs"], |text| {
            text.lines().filter(up).count() == vfs
        });
    }

    fn assert_no_errors(&self, log: &str) {
        let text = self.read(log);
        let errors: Vec<&str> = text.lines().filter(|line| line.contains("ERR")).collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}

#[test]
fn opensm_brings_the_subnet_up_without_an_error_and_its_tools_find_everything() {
    let bench = Bench::serve("tools", &["--vfs", "0"]);
    let _opensm = bench.opensm("mgmt", "opensm.log", "1");
    bench.wait_for("opensm.log", "SUBNET UP");

    let nodes = bench.run("H1-1", "ibnetdiscover", &[]);
    let count = |kind: &str| nodes.lines().filter(|l| l.starts_with(kind)).count();
    assert_eq!((count("Ca\t"), count("Switch\t")), (6, 2), "{nodes}");
    let links = bench.run("H2-1", "iblinkinfo", &["-l"]);
    // Of six hosts both ends, and both ends of two links between the switches.
    assert_eq!(links.matches("Active/").count(), 16, "{links}");
    let sm = bench.run("H2-2", "sminfo", &[]);
    assert!(sm.contains("SMINFO_MASTER"), "{sm}");
    // On a switch, too.
    let sm = bench.run("S2", "sminfo", &[]);
    assert!(sm.contains("SMINFO_MASTER"), "{sm}");

    for (program, arguments, expected) in [
        ("smpquery", &["nodeinfo", "1"][..], "Channel Adapter"),
        ("smpquery", &["-D", "nodeinfo", "0,1"], "Switch"),
        (
            "smpquery",
            &["portinfo", "1", "1"],
            "LinkState:.......................Active",
        ),
        ("smpquery", &["nodedesc", "1"], "mgmt"),
        ("smpquery", &["pkeys", "1"], "0xffff"),
        ("perfquery", &["-x", "1", "1"], "PortXmitData"),
        ("saquery", &["-s"], "IsSM ports"),
        ("saquery", &["-p", "--src-to-dst", "1:2"], "PathRecord"),
        ("ibtracert", &["1", "4"], "To ca"),
        ("ibportstate", &["4", "1", "query"], "LinkUp"),
    ] {
        let text = bench.run("H1-2", program, arguments);
        assert!(text.contains(expected), "{program} {arguments:?}: {text}");
    }
    bench.assert_no_errors("opensm.log");
}

#[test]
fn a_better_opensm_takes_over_and_the_other_one_again_when_it_is_killed() {
    let bench = Bench::serve("handover", &["--vfs", "0"]);
    let first = bench.opensm("mgmt", "first.log", "1");
    bench.wait_for("first.log", "SUBNET UP");
    let second = bench.opensm("H2-1", "second.log", "5");
    let entered = bench.wait_for_any("second.log", ["Entering MASTER", "Entering STANDBY"]);
    if entered == "Entering STANDBY" {
        // On a busy machine the first one can have looked at it, and passed it over, while it discovered
        // the subnet; then it looks again in its next sweep only.
        first.sweep();
    }
    bench.wait_for("second.log", "SUBNET UP");
    bench.wait_for("first.log", "Entering STANDBY");
    drop(second);
    // Its IsSM goes with it, so that nobody asks it any more.
    let begun = Instant::now();
    while bench
        .run("H1-1", "smpquery", &["-D", "portinfo", "0,1,7,1"])
        .contains("IsSM")
    {
        assert!(begun.elapsed() < LIMIT, "IsSM of the killed manager stays");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn every_vf_gets_an_alias_guid_of_opensm() {
    let bench = Bench::serve("guids", &["--vfs", "16", "--guests"]);
    let _opensm = bench.opensm("mgmt", "opensm.log", "1");
    bench.wait_for_vfs(64);
    bench.assert_no_errors("opensm.log");
}

#[test]
fn a_group_of_64_vfs_is_one_membership_per_host_and_reaches_exactly_its_members() {
    const GROUP: &str = "ff12:4242::2a";
    let bench = Bench::serve("group", &["--vfs", "16", "--guests"]);
    let _opensm = bench.opensm("mgmt", "opensm.log", "1");
    bench.wait_for_vfs(64);
    bench.ask(&["guest", "all", "join", GROUP]);
    let memberships = || bench.ask(&["show", "mcast"]).matches("  full  ").count();
    assert_eq!(memberships(), 4, "one of each host");
    let status = ["guest", "all", "status", "--json"];
    let received = |text: &str| -> Vec<(bool, u64)> {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        let guests = json["guests"].as_array().unwrap().iter();
        let counts = guests.map(|guest| (guest["host"] == "H2-1", &guest["received"]));
        counts
            .map(|(away, count)| (away, count.as_u64().unwrap()))
            .collect()
    };
    let send = || bench.ask(&["guest", "H1-1/3", "send", GROUP, "hello"]);
    // The switches learn of the members a moment after these do.
    bench.ask_until(&status, |text| {
        send();
        received(text).iter().all(|(_, count)| *count > 0)
    });
    bench.ask(&["guest", "H2-1/all", "leave", GROUP]);
    assert_eq!(memberships(), 3);
    // A copy on its way would still be counted for the host that left; none comes afterwards.
    let before = received(&bench.ask(&status));
    send();
    bench.ask_until(&status, |text| {
        let grew = received(text).into_iter().zip(&before);
        grew.into_iter()
            .all(|((away, now), (_, then))| now == then + u64::from(!away))
    });
    bench.assert_no_errors("opensm.log");
}
