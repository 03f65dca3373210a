//! The command that writes a capture of a running service.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use vhca_control::protocol::Request;
use vhca_control::{CaptureSpec, StreamEnd};

use crate::cli::{CaptureArgs, say};

/// Bytes of the header of a pcap file, and of that of a record.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// Place of the number of captured bytes in the header of a record, little endian.
const CAPTURED: core::ops::Range<usize> = 8..12;

/// Time by which the service may end a capture before its clock and ours agree that it is over.
const SLACK: Duration = Duration::from_millis(100);

/// Writes a capture file until it has all that was asked for, or a signal ends it, and says how many frames it has.
pub(crate) fn capture(args: &CaptureArgs) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut remote = args.server.connect()?;
    remote.ask(&Request::Capture(CaptureSpec {
        tap: args.tap.clone(),
        count: args.count,
        seconds: args.seconds,
    }))?;
    let is_file = args.file != Path::new("-");
    let out: Box<dyn Write> = if is_file {
        let file = File::create(&args.file);
        Box::new(file.with_context(|| format!("cannot create {}", args.file.display()))?)
    } else {
        Box::new(io::stdout().lock())
    };
    let mut out = Counter::new(out);
    let written = remote.stream_until_signal(&mut out);
    let end = written.with_context(|| format!("capture file {}", args.file.display()))?;
    let frames = match out.frames {
        1 => "1 frame".to_owned(),
        frames => format!("{frames} frames"),
    };
    let told = match is_file {
        true => format!("{frames} written to {}", args.file.display()),
        false => format!("{frames} written"),
    };
    let has_all = args.count.is_some_and(|count| out.frames >= count)
        || args
            .seconds
            .is_some_and(|seconds| begun.elapsed() + SLACK >= Duration::from_secs(seconds.into()));
    if end == StreamEnd::Server && !has_all {
        anyhow::bail!("the service ended during the capture: {told}");
    }
    say(&told);
    Ok(())
}

/// Counts the records of a pcap file on its way.
struct Counter<W> {
    out: W,
    /// Records of which the first byte is written.
    frames: u64,
    /// Bytes until the next header of a record.
    rest: usize,
    /// Bytes of that header so far.
    header: Vec<u8>,
}

impl<W> Counter<W> {
    const fn new(out: W) -> Self {
        Self {
            out,
            frames: 0,
            rest: FILE_HEADER,
            header: Vec::new(),
        }
    }

    fn count(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            bytes = &bytes[skipped..];
            let wanted = (RECORD_HEADER - self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..wanted]);
            bytes = &bytes[wanted..];
            if self.header.len() == RECORD_HEADER {
                let mut captured = [0; 4];
                captured.copy_from_slice(&self.header[CAPTURED]);
                self.rest = usize::try_from(u32::from_le_bytes(captured)).unwrap_or(usize::MAX);
                self.header.clear();
                self.frames += 1;
            }
        }
    }
}

impl<W: Write> Write for Counter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.out.write(bytes)?;
        self.count(&bytes[..length]);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_wherever_the_stream_is_cut() {
        let record = |length: u8| {
            let mut record = vec![7; RECORD_HEADER + usize::from(length)];
            record[CAPTURED].copy_from_slice(&u32::from(length).to_le_bytes());
            record
        };
        let file = [vec![9; FILE_HEADER], record(5), record(0), record(200)].concat();
        for piece in [1, 3, 16, 24, file.len()] {
            let mut counter = Counter::new(Vec::new());
            for piece in file.chunks(piece) {
                counter.write_all(piece).expect("a vector takes all");
            }
            assert_eq!((counter.frames, &counter.out), (3, &file), "{piece}");
        }
    }
}
