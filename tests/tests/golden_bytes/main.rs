//! Compares the output of runs with fixed seeds in virtual time with `tests/golden/bytes`: one changed byte fails a test.
//!
//! Nothing of the host is in these outputs: scenarios leave out where pids, paths, the time of day and the version stand.
//! `replay_scripts` does the same for scripts of `vhca replay`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod shown;
mod transports;

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use vhca_exercises::demo::{self, Clock};
use vhca_exercises::drain;
use vhca_tests::golden::{Change, Form, assert_unchanged, frames};

/// A file in memory.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns what `vhca demo --json` prints, and its capture.
fn demo() -> (String, Vec<u8>) {
    let file = Memory::default();
    let options = demo::Options {
        seed: 1,
        clock: Clock::Virtual,
        capture: Some(Box::new(file.clone())),
    };
    let mut printed = String::new();
    let summary = demo::run(options, &mut |step| {
        printed += &serde_json::to_string(step).unwrap();
        printed.push('\n');
        Ok(())
    });
    printed += &serde_json::to_string(&summary.unwrap()).unwrap();
    printed.push('\n');
    (printed, file.bytes())
}

#[test]
fn the_demo_prints_and_captures_what_it_did() {
    let (printed, capture) = demo();
    assert_unchanged("demo", Form::Text, &printed);
    let listed = frames(&capture).unwrap();
    assert_unchanged("demo-capture", Form::Digests, &listed);
}

#[test]
fn drain_reports_what_it_did() {
    let options = drain::Options {
        conversations: 2_000,
        vfs: 8,
        seed: 7,
    };
    let report = drain::run(options, &mut |_| {}).unwrap();
    assert!(report.ok && report.resets > 0, "{report}");
    let json = serde_json::to_string_pretty(&report).unwrap();
    assert_unchanged("drain", Form::Text, &format!("{json}\n{report}\n"));
}

#[test]
fn one_byte_of_one_frame_or_of_the_file_is_noticed_and_placed() {
    let (_, capture) = demo();
    let listed = frames(&capture).unwrap();
    let kept = Form::Digests.of(&listed);
    assert_eq!(Form::Digests.compare(&kept, &listed), Ok(()));
    let count = listed.lines().count();
    assert!(count > 1_000, "{count} lines");

    // Each frame stands behind 32 bytes of headers; a frame's last byte stands before the next one's headers.
    let mut at = 24;
    for (number, line) in (1..count).zip(listed.lines()) {
        let length = line.rsplit(' ').next().unwrap().len() / 2;
        at += 32 + length;
        if number % 701 != 0 {
            continue;
        }
        for (byte, bits) in [(at - 1, 0x01), (at - length, 0x80), (at - length / 2, 0xff)] {
            let mut changed = capture.clone();
            changed[byte] ^= bits;
            let changed = frames(&changed).unwrap();
            let line = Some(number);
            let found = Form::Digests.compare(&kept, &changed);
            assert_eq!(found, Err(Change { line }), "byte {byte}");
            let found = Form::Text.compare(&listed, &changed);
            assert_eq!(found, Err(Change { line }), "byte {byte}");
        }
    }
    assert_eq!(at, capture.len());

    // A byte of the file's header, which is in no frame.
    let mut changed = capture;
    changed[8] ^= 1;
    let found = Form::Digests.compare(&kept, &frames(&changed).unwrap());
    assert_eq!(found, Err(Change { line: Some(count) }));
}

#[test]
fn a_line_more_less_or_elsewhere_is_noticed() {
    for form in [Form::Text, Form::Digests] {
        let kept = form.of("one\ntwo\nthree\n");
        for (text, line) in [
            ("one\ntwo\nthree\nfour\n", Some(4)),
            ("one\ntwo\n", Some(3)),
            ("two\none\nthree\n", Some(1)),
            ("one\ntwo\nthree", None),
        ] {
            assert_eq!(form.compare(&kept, text), Err(Change { line }), "{text:?}");
        }
    }
}
