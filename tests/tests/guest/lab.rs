//! `vhca lab` from its start to its end.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use vhca_tests::live::{PATIENCE, Process, binary, wait_for};

/// A `vhca` command with its files and sockets in this folder.
fn vhca(dir: &Path) -> Command {
    let mut command = Command::new(binary());
    command
        .env("TMPDIR", dir)
        .env("VHCA_CONTROL", dir.join("control.sock"));
    command
}

/// Types keys at a terminal of 33 lines and 101 columns on a guest's console, and leaves it once the console shows
/// `text`. Returns what the terminal showed.
fn typed(dir: &Path, guest: &str, keys: &str, text: &str) -> String {
    let console = format!(
        "stty rows 33 cols 101; {} console {guest}",
        binary().display()
    );
    let mut terminal = Command::new("script")
        .args(["-q", "-f", "-c", &console, "/dev/null"])
        .env("VHCA_CONTROL", dir.join("control.sock"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (
        terminal.stdin.take().unwrap(),
        terminal.stdout.take().unwrap(),
    );
    input.write_all(keys.as_bytes()).unwrap();
    let mut shown = String::new();
    let mut bytes = [0; 4096];
    while !shown.contains(text) {
        let length = output.read(&mut bytes).unwrap();
        assert!(length > 0, "no {text:?} in\n{shown}");
        shown.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    // ^]
    input.write_all(&[0x1d]).unwrap();
    assert!(terminal.wait().unwrap().success());
    shown
}

/// The folder of the lab.
fn folder(dir: &Path) -> PathBuf {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_its = |path: &PathBuf| path.to_string_lossy().contains("/vhca-lab-");
    let mut folders = entries.filter(is_its);
    folders.next().unwrap()
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

/// A lab of two guests that boot.
fn start(dir: &Path) -> (Process, PathBuf) {
    let mut lab = Process::start(dir, "lab", vhca(dir).arg("lab"));
    lab.wait_for_line("the guests boot", PATIENCE);
    (lab, folder(dir))
}

#[test]
fn a_lab_gives_two_guests_to_type_in_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut lab, folder) = start(dir.path());
    // Its shell is not there yet.
    let shown = typed(
        dir.path(),
        "H1-1/1",
        "stty size; echo $((6 * 7)).\r",
        "\n42.",
    );
    assert!(shown.contains("\n33 101\r"), "{shown}");
    lab.wait_for_line("all guests are ready", PATIENCE * 3);
    let ping = "until ping -c 3 10.9.0.2; do :; done\r";
    let shown = typed(dir.path(), "H1-1/1", ping, " 3 received");
    assert!(
        shown.contains("\n42.") && shown.contains("PING 10.9.0.2"),
        "{shown}"
    );
    lab.signal("INT");
    assert!(lab.wait(PATIENCE).success());
    assert_eq!(processes(&folder), 0);
    assert!(!folder.exists());
}

#[test]
fn a_lab_that_is_killed_takes_its_guests_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut lab, folder) = start(dir.path());
    assert_eq!(processes(&folder), 3);
    lab.signal("KILL");
    lab.wait(PATIENCE);
    let gone = wait_for(PATIENCE, || (processes(&folder) == 0).then_some(()));
    assert!(gone.is_some(), "{} go on", processes(&folder));
}
