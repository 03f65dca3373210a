//! `vhca lab` from its start to its end.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use vhca_tests::live::{PATIENCE, Process, binary, wait_for};

/// The consoles that a lab tells of.
fn consoles(told: &str) -> Vec<PathBuf> {
    let sockets = told
        .lines()
        .filter_map(|line| line.split("vhca console ").nth(1));
    sockets.map(PathBuf::from).collect()
}

/// All that a guest has printed on its console.
fn printed(console: &Path) -> String {
    let log = console.with_extension("console.log");
    fs::read_to_string(log).unwrap_or_default()
}

fn wait_until_printed(console: &Path, text: &str) {
    let seen = wait_for(PATIENCE * 3, || {
        printed(console).contains(text).then_some(())
    });
    assert!(seen.is_some(), "no {text:?} in\n{}", printed(console));
}

/// Types a command on a guest's console, and gives what the terminal shows once `text` is printed.
fn typed(console: &Path, command: &str, text: &str) -> String {
    let mut terminal = Command::new(binary())
        .arg("console")
        .arg(console)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    keys.write_all(format!("{command}\n").as_bytes()).unwrap();
    wait_until_printed(console, text);
    // ^]
    keys.write_all(&[0x1d]).unwrap();
    let output = terminal.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How many processes have something of a lab's folder among their arguments.
fn processes(folder: &Path) -> usize {
    let folder = folder.to_str().unwrap().as_bytes();
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let commands = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let of_lab =
        commands.filter(|command| command.windows(folder.len()).any(|part| part == folder));
    of_lab.count()
}

/// A lab of two guests, started.
fn start(dir: &Path) -> (Process, Vec<PathBuf>) {
    let mut lab = Process::start(dir, "lab", Command::new(binary()).arg("lab"));
    lab.wait_for_line("^C ends it", PATIENCE);
    let consoles = consoles(&lab.output());
    assert_eq!(consoles.len(), 2, "{}", lab.output());
    (lab, consoles)
}

#[test]
fn a_lab_gives_two_guests_to_type_in_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut lab, consoles) = start(dir.path());
    for console in &consoles {
        wait_until_printed(console, "vhca-guest: up");
    }
    let told = typed(
        &consoles[0],
        "until ping -c 3 10.9.0.2; do :; done",
        " 3 received",
    );
    assert!(told.contains("PING 10.9.0.2"), "{told}");
    let folder = consoles[0].parent().unwrap();
    lab.signal("INT");
    assert!(lab.wait(PATIENCE).success());
    assert_eq!(processes(folder), 0);
    assert!(!folder.exists());
}

#[test]
fn a_lab_that_is_killed_takes_its_guests_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut lab, consoles) = start(dir.path());
    let folder = consoles[0].parent().unwrap();
    assert_eq!(processes(folder), 3);
    lab.signal("KILL");
    lab.wait(PATIENCE);
    let gone = wait_for(PATIENCE, || (processes(folder) == 0).then_some(()));
    assert!(gone.is_some(), "{} go on", processes(folder));
    fs::remove_dir_all(folder).unwrap();
}
