//! `vhca replay` as a program meets that drives it over a pipe.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// How long the output of a line may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

fn start() -> Child {
    Command::new(env!("CARGO_BIN_EXE_vhca"))
        .arg("replay")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

/// Runs a whole script.
fn replay(script: &str) -> Output {
    let mut child = start();
    let mut stdin = child.stdin.take().expect("a pipe");
    // A run that ends early closes the pipe.
    let _ = stdin.write_all(script.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("the run ends")
}

/// The lines that a run prints, as they come.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn send(stdin: &mut ChildStdin, line: &str) {
    writeln!(stdin, "{line}").expect("the run reads on");
}

#[test]
fn the_output_of_a_line_comes_before_the_next_line_is_sent() {
    let mut child = start();
    let mut stdin = child.stdin.take().expect("a pipe");
    let lines = lines_of(&mut child);
    let next = || lines.recv_timeout(PATIENCE).expect("a line");
    send(&mut stdin, r#"{"config":{"vfs":1}}"#);
    send(&mut stdin, r#"{"at":1,"from":"vf:1","dlid":1,"mad":"00"}"#);
    assert_eq!(next(), r#"{"at":1,"cause":2,"drop":"bad_length","vf":1}"#);
    send(&mut stdin, r#"{"at":2,"event":"client_reregister"}"#);
    assert_eq!(
        next(),
        r#"{"at":2,"cause":3,"to":"vf:1","event":"client_reregister"}"#
    );
    send(&mut stdin, r#"{"at":3,"stats":true}"#);
    assert!(next().starts_with(r#"{"at":3,"cause":4,"stats":{"tids":0,"#));
    drop(stdin);
    assert_eq!(child.wait().expect("the run ends").code(), Some(0));
}

#[test]
fn a_mistake_ends_the_run_with_2_and_its_line_on_stderr() {
    let output = replay("{\"at\":1,\"stats\":true}\n{\"at\":0}\n{\"at\":2,\"stats\":true}\n");
    assert_eq!(output.status.code(), Some(2));
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        stderr,
        "vhca: line 2: `at` is 0, but an earlier line was at 1: time never decreases\n"
    );
}

#[test]
fn no_script_at_all_is_a_run_that_ends_well() {
    let output = replay("");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
}
