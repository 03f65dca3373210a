//! The console of a guest: a socket and a log as QEMU has them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn console(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vhca"));
    command.arg("console").arg(socket);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A console with its first line of output.
fn attached(socket: &Path) -> (Child, BufReader<impl Read>, String) {
    let mut child = console(socket).spawn().unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    shown.read_line(&mut first).unwrap();
    (child, shown, first)
}

#[test]
fn keys_wait_for_the_guest_recent_lines_are_shown_and_a_second_terminal_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("guest.console");
    let listener = UnixListener::bind(&socket).unwrap();
    let path = folder.path().join("guest.console.log");
    let lines: String = (1..=30).map(|line| format!("line {line}\n")).collect();
    fs::write(&path, lines).unwrap();
    let mut log = File::options().append(true).open(&path).unwrap();

    let (mut child, shown, first) = attached(&socket);
    assert_eq!(first, "line 11\n");
    let mut keys = child.stdin.take().unwrap();
    keys.write_all(b"early ").unwrap();
    let second = console(&socket).output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains("is in use by another vhca console"), "{said}");

    // QEMU writes to the socket first.
    let (mut guest, _) = listener.accept().unwrap();
    guest.write_all(b"vhca-guest: up\n").unwrap();
    log.write_all(b"vhca-guest: up after 3 s\n").unwrap();
    keys.write_all(b"late").unwrap();
    let mut typed = [0; 10];
    guest.read_exact(&mut typed).unwrap();
    assert_eq!(&typed, b"early late");

    // What is behind ^] is not for the guest.
    keys.write_all(b"!\x1dno").unwrap();
    assert!(child.wait().unwrap().success());
    let mut rest = String::new();
    guest.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "!");
    let shown: Vec<_> = shown.lines().map(Result::unwrap).collect();
    assert_eq!(shown.len(), 20, "{shown:?}");
    assert_eq!(shown.last().unwrap(), "vhca-guest: up after 3 s");
}

#[test]
fn a_guest_that_ends_ends_its_console_with_all_that_it_printed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("guest.console");
    let listener = UnixListener::bind(&socket).unwrap();
    let path = folder.path().join("guest.console.log");
    fs::write(&path, "vhca-guest: up after 3 s\n").unwrap();
    let (child, mut shown, _) = attached(&socket);
    let (guest, _) = listener.accept().unwrap();
    let mut log = File::options().append(true).open(&path).unwrap();
    log.write_all(b"reboot: Power down\n").unwrap();
    drop(guest);
    let mut last = String::new();
    shown.read_to_string(&mut last).unwrap();
    assert_eq!(last, "reboot: Power down\n");
    assert!(child.wait_with_output().unwrap().status.success());
}
