//! Acceptance: what passes on the links and in the tunnels is well formed, as tshark sees it.

use std::fs;
use std::process::Command;
use vhca_tests::live::{Lab, OpenSm, PATIENCE, Process, Shim, binary, wait_for};

use crate::bring_up::wait_until_all_up;

const MGID: &str = "ff12:4242::3";

/// Starts a capture of a tap into a file of that name.
fn start_capture(lab: &Lab, tap: &str) -> Process {
    let mut command = Command::new(binary());
    command.args(["capture", "--tap", tap, tap]);
    command.arg("--control").arg(lab.dir().join("control"));
    Process::start(lab.dir(), &format!("capture-{tap}"), &mut command)
}

/// What tshark prints of a capture with these arguments.
fn tshark(lab: &Lab, capture: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(lab.dir().join(capture))
        .args(arguments);
    let output = command.output().expect("tshark runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn tshark_finds_nothing_malformed_in_all_of_this() {
    let lab = Lab::serve(&["--vfs", "4", "--guests", "--sm", "none"]);
    let mut captures = ["fabric", "tunnels"].map(|tap| start_capture(&lab, tap));
    for file in ["fabric", "tunnels"] {
        // The head of the file comes when the tap is there.
        let has_begun = || fs::metadata(lab.dir().join(file)).is_ok_and(|file| file.len() > 0);
        let begun = wait_for(PATIENCE, || has_begun().then_some(()));
        assert!(begun.is_some(), "no capture of {file}");
    }
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "qos TRUE\n");
    sm.wait_for("SUBNET UP", 1);
    wait_until_all_up(&lab, 16);
    for program in [
        &["ibnetdiscover"][..],
        &["ibqueryerrors"],
        &["saquery", "PR"],
        &["saquery", "GIR"],
        &["perfquery", "-x"],
        &["sminfo"],
    ] {
        lab.tool(Shim::Vhca, "mgmt-2", program);
    }
    lab.told(&["guest", "all", "join", MGID]);
    lab.told(&["guest", "H1-1/1", "send", MGID, "to all"]);
    lab.told(&[
        "guest",
        "all",
        "paths",
        "--count",
        "10",
        "--destinations",
        "5",
    ]);
    lab.told(&["set", "link", "H1-2/1", "down"]);
    sm.wait_for("SUBNET UP", 2);
    for capture in &mut captures {
        capture.signal("INT");
        capture.wait(PATIENCE);
    }
    for (capture, at_least) in [("fabric", 1000), ("tunnels", 100)] {
        let frames = tshark(&lab, capture, &["-T", "fields", "-e", "frame.number"]);
        let frames = frames.lines().count();
        assert!(frames >= at_least, "{frames} frames in {capture}");
        let errors = "_ws.malformed || _ws.expert.severity == error";
        assert_eq!(tshark(&lab, capture, &["-Y", errors]), "", "{capture}");
        // Of a length that contradicts the LRH tshark tells in its text only.
        let text = tshark(&lab, capture, &[]);
        let flaw = text.lines().find(|line| line.contains("Malformed"));
        assert_eq!(flaw, None, "{capture}");
        println!("{frames} frames of {capture} are well formed");
    }
}
