//! The service as a user meets it: the real binary, started, asked, changed, killed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A running service, which dies with the test.
struct Serve {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    control: PathBuf,
    _directory: Option<tempfile::TempDir>,
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serve {
    fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let control = directory.path().join("control.sock");
        let mut serve = Self::start_at(&control, arguments);
        serve._directory = Some(directory);
        serve
    }

    /// Starts a service and waits until it is ready.
    fn start_at(control: &Path, arguments: &[&str]) -> Self {
        let mut child = command()
            .arg("serve")
            .arg("--json")
            .arg("--control")
            .arg(control)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["event"], "ready");
        Self {
            child,
            stdout: Some(stdout),
            control: control.to_owned(),
            _directory: None,
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command();
        command.args(arguments).env("VHCA_CONTROL", &self.control);
        command
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What a command prints, which must succeed.
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", error(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(arguments)).unwrap()
    }

    /// Asks until the answer is as it should be. The service's own clock moves meanwhile.
    fn wait_until(&self, arguments: &[&str], is_so: impl Fn(&Value) -> bool) {
        const LIMIT: Duration = Duration::from_secs(60);
        let begun = Instant::now();
        loop {
            let output = self.ask(arguments);
            if is_so(&serde_json::from_slice(&output.stdout).unwrap_or_default()) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{arguments:?}: {output:?}");
        }
    }

    fn wait_until_up(&self) {
        self.wait_until(&["show", "vfs", "--json"], |vfs| {
            let vfs = vfs["vfs"].as_array();
            vfs.is_some_and(|vfs| vfs.iter().all(|vf| vf["up"] == true))
        });
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The rest of its output, and how it ended.
    fn end(mut self) -> (String, ExitStatus) {
        let mut rest = String::new();
        let mut stdout = self.stdout.take().unwrap();
        stdout.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait().unwrap())
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vhca"));
    command
        .env_remove("VHCA_CONTROL")
        .env_remove("NOTIFY_SOCKET");
    command
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a command that must fail says.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    error(output)
}

#[test]
fn sigterm_gives_everything_back_and_ends_with_status_0() {
    let serve = Serve::start(&["--vfs", "4", "--guests"]);
    serve.wait_until_up();
    serve.text(&["guest", "all", "join", "ff12::1"]);
    serve.signal(Signal::TERM);
    let control = serve.control.clone();
    let (rest, status) = serve.end();
    assert_eq!(rest, "{\"event\":\"stopped\",\"released\":true}\n");
    assert_eq!(status.code(), Some(0));
    assert!(!control.exists());
}

#[test]
fn stop_returns_once_the_service_has_ended() {
    let mut serve = Serve::start(&["--vfs", "4", "--guests"]);
    serve.wait_until_up();
    serve.text(&["stop"]);
    let status = serve.child.try_wait().unwrap();
    assert_eq!(status.and_then(|status| status.code()), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let serve = Serve::start(&["--vfs", "1"]);
    serve.wait_until_up();
    // Without its subnet manager's link the first signal would have it wait for the SA.
    serve.text(&["set", "link", "mgmt-1/1", "down"]);
    serve.signal(Signal::TERM);
    serve.signal(Signal::INT);
    let (_, status) = serve.end();
    assert!(matches!(status.code(), Some(0 | 143)), "{status:?}");
}

#[test]
fn tables_name_hosts_and_json_has_the_same_rows() {
    let serve = Serve::start(&["--vfs", "2"]);
    serve.wait_until_up();
    for subject in [
        "vfs", "ports", "tids", "cm", "mcast", "guids", "pkeys", "counters", "fabric",
    ] {
        let text = serve.text(&["show", subject]);
        let head = if ["ports", "fabric"].contains(&subject) {
            "NODE"
        } else {
            "HOST"
        };
        assert!(text.starts_with(head), "{text}");
        assert!(serve.json(&["show", subject, "--json"]).is_object());
    }
    let table = serve.text(&["show", "vfs", "--host", "H2-1"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.lines().skip(1).all(|line| line.starts_with("H2-1")));
    let ports = serve.json(&["show", "ports", "--json"]);
    let ports = ports["ports"].as_array().unwrap();
    let active = ports
        .iter()
        .filter(|port| port["state"] == "Active")
        .count();
    assert_eq!(
        active,
        2 + 2 * (6 + 2),
        "port 0s, hosts' and switches' links"
    );
    let metrics = serve.text(&["metrics", "--by", "vf"]);
    assert!(metrics.contains("vhca_port_state{pf=\"H1-1\",port=\"1\",vf=\"1\"} 1\n"));
}

#[test]
fn vfs_are_waited_for_and_those_that_stay_down_are_named() {
    let serve = Serve::start(&["--topology", "single", "--vfs", "2"]);
    let text = serve.text(&["show", "vfs", "--wait-up"]);
    assert_eq!(text.matches(" yes ").count(), 8, "{text}");
    serve.text(&["set", "vf", "host-2/2", "state", "disable"]);
    let output = serve.ask(&["show", "vfs", "--wait-up", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let line = "vhca: 1 of 8 VFs are not up after 1 s: host-2/2 (admin_down); vhca why all names the faults\n";
    assert_eq!(error(&output), line);
    assert!(output.stdout.starts_with(b"HOST "));
    serve.text(&["show", "vfs", "--vf", "host-2/1", "--wait-up", "60"]);
}

#[test]
fn shells_are_offered_the_hosts_vfs_and_nodes_of_the_service() {
    let serve = Serve::start(&["--topology", "single", "--vfs", "2"]);
    for (line, wanted) in [
        (
            &["vhca", "why", "host-1/"][..],
            "host-1/1\nhost-1/2\nhost-1/all\n",
        ),
        (&["vhca", "show", "vfs", "--host", "host-4"], "host-4\n"),
        (&["vhca", "set", "link", "host-2/"], "host-2/1\n"),
    ] {
        let mut command = serve.command(&[&["--"], line].concat());
        let output = command.env("VHCA_COMPLETE", "fish").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted, "{line:?}");
    }
}

#[test]
fn why_names_the_fault_and_set_makes_and_ends_it() {
    let serve = Serve::start(&["--vfs", "2"]);
    serve.wait_until_up();
    assert!(serve.text(&["why", "H1-1/1"]).contains("up, ok"));
    serve.text(&["set", "vf", "H1-1/1", "state", "disable"]);
    let found = serve.ask(&["why", "H1-1/1", "--json"]);
    assert_eq!(found.status.code(), Some(1), "there is a fault");
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(
        (&found["code"], &found["vf"]),
        (&"admin_down".into(), &1.into())
    );
    serve.text(&["set", "vf", "1", "--host", "H1-1", "state", "auto"]);
    serve.text(&["set", "link", "H1-1/1", "down"]);
    let why = ["why", "1", "--host", "H1-1", "--json"];
    serve.wait_until(&why, |found| found["code"] == "link_down");
    serve.text(&["set", "link", "H1-1", "S1", "up"]);
    serve.wait_until(&why, |found| found["code"] == "ok");

    serve.text(&["set", "vf", "H1-2/2", "port_guid", "0x0011223344556677"]);
    serve.wait_until(&["show", "guids", "--json", "--host", "H1-2"], |guids| {
        guids["guids"][2]["guid"] == "0x0011223344556677"
    });
    serve.text(&["set", "vf", "all", "limits", "rate=1000", "burst=10"]);
    serve.text(&["set", "vf", "H1-1/2", "pkeys", "0x7fff", "-", "index:0"]);
    let pkeys = serve.json(&["show", "pkeys", "--json", "--host", "H1-1"]);
    let rows = pkeys["pkeys"].as_array().unwrap();
    let of_vf = |index| {
        let row = rows
            .iter()
            .find(|row| row["vf"] == 2 && row["index"] == index);
        row.map(|row| row["pkey"].clone())
    };
    assert_eq!(of_vf(1), None, "an empty place has no row");
    assert_eq!(of_vf(2), Some("0xffff".into()));
}

#[test]
fn values_that_cannot_be_set_are_refused_with_the_reason() {
    let serve = Serve::start(&["--vfs", "2"]);
    for (arguments, reason) in [
        (
            &["set", "vf", "H1-1/9", "state", "auto"][..],
            "has no VF 9, it has",
        ),
        (&["set", "vf", "1", "state", "auto"], "several hosts"),
        (&["set", "vf", "H9/1", "state", "auto"], "H1-1, H1-2"),
        (&["set", "vf", "H1-1/1", "port_guid", "7"], "no GUID"),
        (
            &["set", "vf", "H1-1/1", "port_guid", "0xffffffffffffffff"],
            "reserved",
        ),
        (&["set", "vf", "H1-1/1", "pkeys", "0x18001"], "no P_Key"),
        (&["set", "vf", "H1-1/1", "limits", "weight=0"], "at least 1"),
        (
            &["set", "vf", "H1-1/1", "--port", "2", "state", "auto"],
            "no port 2",
        ),
        (&["set", "vf", "all", "port_guid", "0x7"], "one VF"),
        (&["set", "link", "H1-1", "up"], "NODE/PORT"),
        (
            &["set", "link", "H1-1/1", "S2", "up"],
            "no cable is between H1-1/1 and S2",
        ),
        (&["set", "link", "H7/1", "up"], "no node"),
        (&["why", "H1-1/x"], "no VF"),
        (&["guest", "all", "join", "fe80::1"], "multicast"),
        (&["capture", "--tap", "nowhere", "-"], "no node"),
        (&["capture", "--tap", "H1-1/vf9", "-"], "H1-1 has no VF 9"),
        (&["qemu-args", "H1-1/9"], "H1-1 has no VF 9"),
        (&["qemu-args", "H1-1/1"], "is not offered to VMMs"),
    ] {
        let message = refused(&serve.ask(arguments));
        assert!(message.contains(reason), "{arguments:?}: {message}");
    }
}

#[test]
fn guests_talk_through_a_group_and_captures_see_it() {
    let serve = Serve::start(&["--vfs", "3", "--guests"]);
    serve.wait_until_up();
    let (capture, file) = start_capture(&serve);
    let joined = serve.json(&["guest", "all", "--json", "join", "ff12::1"]);
    assert_eq!(joined["guests"].as_array().unwrap().len(), 12);
    // The switches learn of the members a moment after these do.
    serve.wait_until(&["guest", "all", "status", "--json"], |status| {
        let sent = serve.ask(&["guest", "H1-1/1", "send", "ff12::1", "hello"]);
        assert!(sent.status.success(), "{}", error(&sent));
        let guests = status["guests"].as_array();
        guests.is_some_and(|all| all.iter().all(|guest| guest["received"].as_u64() > Some(0)))
    });
    kill_process(Pid::from_child(&capture), Signal::INT).unwrap();
    let captured = capture.wait_with_output().unwrap();
    assert!(captured.status.success());
    let frames = frames(&std::fs::read(&file).unwrap());
    let told = format!(
        "vhca: {} frames written to {}\n",
        frames.len(),
        file.display()
    );
    assert_eq!(error(&captured), told);
    assert!(
        frames
            .iter()
            .any(|frame| frame.windows(5).any(|five| five == b"hello"))
    );

    let mut tunnels = Command::new(env!("CARGO_BIN_EXE_vhca"))
        .args([
            "capture",
            "--tap",
            "H2-1/vf2",
            "--count",
            "2",
            "-",
            "--control",
        ])
        .arg(&serve.control)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(tunnels.stdout.take().unwrap());
    let mut head = [0; 24];
    out.read_exact(&mut head).unwrap();
    serve.text(&["guest", "H2-1/all", "leave", "ff12::1"]);
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    assert!(tunnels.wait().unwrap().success());
    assert_eq!(self::frames(&[&head[..], &rest].concat()).len(), 2);
}

/// Begins to capture what passes the links of a host.
fn start_capture(serve: &Serve) -> (Child, PathBuf) {
    let file = serve.control.with_file_name("fabric.pcap");
    let capture = serve
        .command(&["capture", "--tap", "H1-1", file.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The header tells that the capture has begun.
    let begun = Instant::now();
    while std::fs::metadata(&file).map_or(0, |file| file.len()) == 0 {
        assert!(begun.elapsed().as_secs() < 60);
        std::thread::yield_now();
    }
    (capture, file)
}

#[test]
fn a_capture_fails_when_the_service_ends_under_it() {
    let mut serve = Serve::start(&["--vfs", "1"]);
    let (capture, file) = start_capture(&serve);
    serve.child.kill().unwrap();
    let told = refused(&capture.wait_with_output().unwrap());
    let begin = "vhca: the service ended during the capture: ";
    let end = format!(" written to {}\n", file.display());
    assert!(told.starts_with(begin) && told.ends_with(&end), "{told}");
}

#[test]
fn contradictions_are_refused_with_what_to_do_and_end_with_2() {
    let serve = Serve::start(&["--vfs", "2"]);
    for (arguments, reason) in [
        (
            "show vfs --host H1-1 --vf H2-1/1",
            "H2-1/1 is no VF of H1-1: leave out --host",
        ),
        (
            "why H2-1/all --host H1-1",
            "H2-1/all is no VF of H1-1: leave out --host",
        ),
        (
            "set vf H2-1/1 --host H1-1 state auto",
            "H2-1/1 is no VF of H1-1: leave out --host",
        ),
        (
            "metrics --by total --vf H1-1/1",
            "--by total sums over all VFs: leave it out",
        ),
        ("show tids --problems", "--problems is for vfs"),
        ("show fabric --vf H1-1/1", "have no rows of VFs"),
        ("show sm --host H1-1", "leave --host out"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = serve.ask(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(error(&output).contains(reason), "{}", error(&output));
        assert!(output.stdout.is_empty());
    }
    serve.text(&["show", "vfs", "--host", "H1-1", "--vf", "H1-1/1"]);
    serve.wait_until_up();
    assert_eq!(serve.text(&["show", "vfs", "--problems"]), "no problems\n");
    let metrics = serve.text(&["metrics", "--host", "S1"]);
    assert!(metrics.contains("vhca_link_state_id{node=\"S1\",port=\"1\"} 4\n"));
    assert!(!metrics.contains("node=\"S2\""));
}

#[test]
fn a_topology_with_one_adapter_says_why_it_has_no_vfs() {
    let folder = tempfile::tempdir().unwrap();
    let net = folder.path().join("net");
    std::fs::write(
        &net,
        "Switch 8 \"s\"\n[1] \"a b\"[1]\n\nHca 1 \"a b\"\n[1] \"s\"[1]\n",
    )
    .unwrap();
    let serve = Serve::start(&["--topology", net.to_str().unwrap(), "--vfs", "2"]);
    assert_eq!(
        refused(&serve.ask(&["why", "1"])),
        "vhca: no host has VFs: a b is the only adapter, and the subnet manager's: add another to the topology, or start \
         vhca serve with --pf 'a b' --vfs N\n"
    );
    let said = refused(&serve.ask(&["why", "s/1"]));
    assert!(
        said.starts_with("vhca: no host has VFs: a b is the only adapter"),
        "{said}"
    );
    for (end, why) in [("s/3", "s/3 has no cable"), ("s/9", "there is no port s/9")] {
        let said = refused(&serve.ask(&["set", "link", end, "up"]));
        let rest = "vhca show fabric lists the links of all ports";
        assert_eq!(said, format!("vhca: {why}: {rest}\n"));
    }
    assert_eq!(serve.text(&["show", "drops"]), "no packet was dropped\n");
}

/// The frames of a capture file, which must be whole.
fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    let frames = ib_capture::Reader::new(file).unwrap();
    frames.map(|frame| frame.unwrap().bytes).collect()
}

#[test]
fn a_dead_servers_socket_is_replaced_and_a_living_ones_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control.sock");
    let mut first = Serve::start_at(&control, &["--vfs", "1"]);
    let second = command()
        .args(["serve", "--control"])
        .arg(&control)
        .output()
        .unwrap();
    assert!(refused(&second).contains("already running"));
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(control.exists(), "kill -9 leaves the socket");
    let again = Serve::start_at(&control, &["--vfs", "1"]);
    assert!(again.json(&["show", "ports", "--json"]).is_object());
}

#[test]
fn a_server_that_is_not_there_or_goes_away_is_told_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control.sock");
    let ask = |wait| {
        let mut command = command();
        command.args(["show", "fabric", "--wait", wait, "--control"]);
        command.arg(&control).stderr(Stdio::piped());
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let absent = refused(&ask("0").wait_with_output().unwrap());
    assert_eq!(
        absent,
        format!(
            "vhca: no service answers at {}; start `vhca serve`, or name its control socket with --control: No such \
             file or directory (os error 2)\n",
            control.display()
        )
    );
    // It says that it waits, and no more once the service is there.
    let mut waiting = ask("60");
    let mut said = String::new();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    assert_eq!(
        said,
        format!("vhca: waiting for a service at {}\n", control.display())
    );
    let serve = Serve::start_at(&control, &["--vfs", "1"]);
    said.clear();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!((&said[..], waiting.wait().unwrap().code()), ("", Some(0)));
    let mut stream = UnixStream::connect(&serve.control).unwrap();
    drop(serve);
    let _ = stream.write_all(b"{}\n");
    let mut rest = Vec::new();
    // The end of the file, or a reset, and no hang.
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(
        refused(&ask("0").wait_with_output().unwrap()),
        absent.replace(
            "No such file or directory (os error 2)",
            "Connection refused (os error 111)"
        )
    );
}

#[test]
fn a_service_that_is_stopped_is_named_with_the_command_that_continues_it() {
    let serve = Serve::start(&["--topology", "single", "--vfs", "1"]);
    let pid = serve.child.id();
    kill_process(Pid::from_child(&serve.child), Signal::STOP).unwrap();
    let commands = [
        &["show", "vfs"][..],
        &["why", "all"],
        &["metrics"],
        &["set", "vf", "host-1/1", "state", "auto"],
        &["guest", "all", "join", "ff12::15:1"],
    ];
    let begun = Instant::now();
    let asked = commands.map(|arguments| {
        let mut command = serve.command(arguments);
        command.stderr(Stdio::piped()).spawn().unwrap()
    });
    for child in asked {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(4));
        let named = format!(
            "vhca: the service (process {pid}) has not answered for 4 s; it is stopped (T): kill -CONT {pid}\n"
        );
        assert_eq!(error(&output), named);
    }
    assert!(begun.elapsed() >= Duration::from_secs(4));
    kill_process(Pid::from_child(&serve.child), Signal::CONT).unwrap();
    serve.wait_until_up();
}

#[test]
fn garbage_on_the_control_socket_harms_nobody() {
    let serve = Serve::start(&["--vfs", "1"]);
    let mut stream = UnixStream::connect(&serve.control).unwrap();
    let garbage: Vec<u8> = (0..200_000_u32)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes())
        .collect();
    // Nobody reads the refusals, so the server stops to read before all is written.
    stream.set_nonblocking(true).unwrap();
    let mut rest = &garbage[..];
    while let Ok(length) = stream.write(rest) {
        rest = &rest[length..];
    }
    assert!(serve.json(&["show", "ports", "--json"]).is_object());
}

#[test]
fn options_come_from_a_file_and_mistakes_in_it_are_told_with_their_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vhca.toml");
    std::fs::write(&path, "topology = \"single\"\nvfs = 3\npf = [\"host-2\"]\n").unwrap();
    let file = path.to_str().unwrap();
    let serve = Serve::start(&["--config", file, "--vfs", "2"]);
    let vfs = serve.json(&["show", "vfs", "--json"]);
    assert_eq!(vfs["vfs"].as_array().unwrap().len(), 2);
    assert_eq!(vfs["vfs"][0]["host"], "host-2");
    std::fs::write(&path, "topology = \"single\"\nbeer = 3\n").unwrap();
    let output = command()
        .args(["serve", "--config", file])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let message = error(&output);
    assert!(
        message.starts_with(&format!("vhca: {file}: line 2: unknown field `beer`")),
        "{message}"
    );
    let output = command()
        .args(["serve", "--topology", "/nonexistent/net", "--control"])
        .arg(directory.path().join("control.sock"))
        .output()
        .unwrap();
    assert!(refused(&output).contains("/nonexistent/net"));
}

#[test]
fn a_service_goes_on_when_the_reader_of_its_output_is_gone() {
    let mut serve = Serve::start(&["--vfs", "1"]);
    serve.stdout = None;
    serve.text(&["show", "vfs"]);
    serve.text(&["stop"]);
    assert_eq!(serve.child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_service_manager_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let notify = directory.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    let mut child = command()
        .args(["serve", "--vfs", "1", "--control"])
        .arg(directory.path().join("control.sock"))
        .env("NOTIFY_SOCKET", &notify)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"STOPPING=1");
    assert!(child.wait().unwrap().success());
}
