//! Captures as an independent decoder sees them: tshark.

mod checksums;
mod fields;

use std::fs;
use std::io::Write;
use std::process::Command;

use fields::Value;
use ib_capture::{FrameRecord, Interface, Reader, Writer};
use ib_vtime::Instant;
use ib_wire::packet::{Grh, UdFrame};
use ib_wire::{Gid, Lid, PKey, Psn, QKey, Qpn, Sl, Vl};
use tempfile::NamedTempFile;
use vhca_exercises::demo::{self, Clock};

/// A capture file on disk, for tshark to read.
struct Capture {
    file: NamedTempFile,
    frames: Vec<FrameRecord>,
}

impl Capture {
    fn new(bytes: &[u8]) -> Self {
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(bytes).expect("the file takes the capture");
        let frames = Reader::new(bytes)
            .and_then(Iterator::collect)
            .expect("a capture of ours");
        Self { file, frames }
    }

    /// What tshark prints of the capture with these arguments.
    fn tshark(&self, arguments: &[&str]) -> String {
        let output = Command::new("tshark")
            .arg("-r")
            .arg(self.file.path())
            .args(arguments)
            .output()
            .unwrap_or_else(|error| {
                panic!("cannot run tshark: {error}; install it: apt-get install tshark")
            });
        assert!(
            output.status.success(),
            "tshark: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("tshark prints UTF-8")
    }

    /// What tshark complains of. Of a frame whose length contradicts its LRH it complains in the text
    /// of the line only, where a display filter cannot see it.
    fn flaws(&self) -> String {
        let mut flaws = self.tshark(&["-Y", "_ws.malformed || _ws.expert.severity == error"]);
        for line in self.tshark(&[]).lines() {
            if line.contains("Malformed") {
                flaws.push_str(line);
            }
        }
        flaws
    }

    /// The values of [`fields::NAMES`] of each frame, by tshark.
    fn fields(&self) -> Vec<Vec<Option<Value>>> {
        let mut arguments = vec!["-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"];
        arguments.extend(fields::NAMES.iter().flat_map(|name| ["-e", name]));
        self.tshark(&arguments)
            .lines()
            .map(|line| line.split('\t').map(Value::parse).collect())
            .collect()
    }

    fn assert_agrees_with_tshark(&self) {
        assert_eq!(self.flaws(), "");
        let by_tshark = self.fields();
        assert_eq!(by_tshark.len(), self.frames.len());
        for (i, (frame, theirs)) in self.frames.iter().zip(by_tshark).enumerate() {
            let ours = fields::decode(&frame.bytes);
            for ((name, ours), theirs) in fields::NAMES.iter().zip(ours).zip(theirs) {
                assert_eq!(ours, theirs, "{name} of frame {}", i + 1);
            }
        }
    }

    fn assert_checksums_are_right(&self) {
        for (i, frame) in self.frames.iter().enumerate() {
            assert!(checksums::are_right(&frame.bytes), "frame {}", i + 1);
        }
    }
}

/// The capture of a whole demo.
fn demo(seed: u64) -> Vec<u8> {
    let file = NamedTempFile::new().expect("a temporary file");
    let options = demo::Options {
        seed,
        clock: Clock::Virtual,
        capture: Some(Box::new(file.reopen().expect("the file opens again"))),
    };
    let summary = demo::run(options, &mut |step| {
        assert!(step.ok, "{step}");
        Ok(())
    });
    assert!(summary.expect("the demo runs").ok);
    fs::read(file.path()).expect("the capture is a file")
}

/// A capture of a MAD without and one with a GRH, all header fields distinct.
fn two_mads() -> Capture {
    let mut writer = Writer::new(Vec::new()).expect("a vector takes everything");
    let gid = |last| {
        let mut gid = Gid([0; 16]);
        gid.0[0] = 0xfe;
        gid.0[1] = 0x80;
        gid.0[15] = last;
        gid
    };
    let mut mad = [0x11; 256];
    mad[..4].copy_from_slice(&[1, 0x03, 2, 0x12]);
    for (time, grh) in [None, Some(Grh::new(gid(1), gid(2), 63))]
        .into_iter()
        .enumerate()
    {
        let frame = UdFrame {
            vl: Vl::from_low_bits(3),
            sl: Sl::from_low_bits(5),
            slid: Lid::new(0x0102),
            dlid: Lid::new(0x0304),
            grh,
            pkey: PKey::new(0x8123),
            dest_qp: Qpn::GSI,
            src_qp: Qpn::from_low_bits(0x0a_0b0c),
            qkey: QKey::GSI,
            psn: Psn::from_low_bits(0x0d_0e0f),
            solicited: true,
            immediate: None,
            payload: &mad,
        };
        let mut buffer = [0; 512];
        let length = frame.write(&mut buffer).expect("the frame fits");
        let time = Instant::from_nanos(time as u64);
        writer
            .write(time, Interface::default(), &buffer[..length])
            .expect("a vector takes everything");
    }
    Capture::new(&writer.finish().expect("a vector takes everything"))
}

#[test]
fn tshark_decodes_our_mads_as_we_do() {
    let capture = two_mads();
    capture.assert_agrees_with_tshark();
    capture.assert_checksums_are_right();
}

#[test]
fn tshark_finds_the_flaw_of_a_frame_that_was_cut() {
    let whole = two_mads();
    let mut writer = Writer::new(Vec::new()).expect("a vector takes everything");
    let frame = &whole.frames[0];
    writer
        .write(frame.time, frame.interface, &frame.bytes[..200])
        .expect("a vector takes everything");
    let cut = Capture::new(&writer.finish().expect("a vector takes everything"));
    assert!(!cut.flaws().is_empty());
}

#[test]
fn tshark_decodes_the_demo_as_we_do_and_finds_no_flaw() {
    let capture = Capture::new(&demo(1));
    assert!(capture.frames.len() > 1000);
    capture.assert_agrees_with_tshark();
}

#[test]
fn every_checksum_of_the_demo_is_right() {
    Capture::new(&demo(2)).assert_checksums_are_right();
}

#[test]
fn the_same_seed_gives_the_same_capture_and_another_seed_another() {
    let first = demo(3);
    assert!(first == demo(3), "two captures of one seed differ");
    assert!(first != demo(4), "two seeds give the same capture");
}
