//! Outputs that must not change unnoticed, and the forms in which `tests/golden/bytes` keeps them.
//!
//! `VHCA_GOLDEN=write` keeps the outputs as they are now. With another value, or none, an output that differs from the
//! kept fails its test.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crc::{CRC_16_XMODEM, CRC_64_XZ, Crc};
use ib_capture::{FrameRecord, ReadError, Reader};

/// Environment variable by which outputs are kept.
const VARIABLE: &str = "VHCA_GOLDEN";

/// Digests in a row of a file.
const DIGESTS_IN_A_ROW: usize = 24;

/// Differs for any two lines of one length that differ in up to 16 bits in a row, such as two digits.
const OF_A_LINE: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

const OF_ALL: Crc<u64> = Crc::<u64>::new(&CRC_64_XZ);

/// Form in which an output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The text itself: `NAME.txt`.
    Text,
    /// The CRC-64 of the text, and a CRC-16 of each of its lines: `NAME.crc`.
    Digests,
}

impl Form {
    /// Returns an output in this form.
    #[must_use]
    pub fn of(self, text: &str) -> String {
        match self {
            Self::Text => text.to_owned(),
            Self::Digests => digests(text),
        }
    }

    /// Compares an output with one that is kept in this form.
    ///
    /// # Errors
    /// The [`Change`].
    pub fn compare(self, kept: &str, text: &str) -> Result<(), Change> {
        let new = self.of(text);
        if kept == new {
            return Ok(());
        }
        let line = match self {
            Self::Text => first_difference(kept.lines(), text.lines()),
            Self::Digests => first_difference(in_words(kept), in_words(&new)),
        };
        Err(Change { line })
    }

    /// Returns the file in which an output is kept.
    fn path(self, name: &str) -> PathBuf {
        let ending = match self {
            Self::Text => "txt",
            Self::Digests => "crc",
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/bytes");
        folder.join(format!("{name}.{ending}"))
    }
}

/// An output that differs from the kept one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The first line that differs, counted from 1; `None` if all have the digests that are kept, or only ends of lines
    /// differ.
    pub line: Option<usize>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line} is the first that differs"),
            None => f.write_str("no line is known to differ, but the whole does"),
        }
    }
}

/// Returns the length and digest of bytes that an output does not show whole.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    format!(
        "{} bytes, CRC-64 {:016x}",
        bytes.len(),
        OF_ALL.checksum(bytes)
    )
}

fn digests(text: &str) -> String {
    let all = digest(text.as_bytes());
    let mut digests = format!("{all}, in {} lines", text.lines().count());
    for (place, line) in text.lines().enumerate() {
        let gap = match place % DIGESTS_IN_A_ROW {
            0 => '\n',
            _ => ' ',
        };
        let digest = OF_A_LINE.checksum(line.as_bytes());
        write!(digests, "{gap}{digest:04x}").expect("a string takes everything");
    }
    digests.push('\n');
    digests
}

/// Returns the digests of lines in a file of digests.
fn in_words(digests: &str) -> impl Iterator<Item = &str> {
    digests.lines().skip(1).flat_map(str::split_whitespace)
}

fn first_difference<'t>(
    mut kept: impl Iterator<Item = &'t str>,
    mut new: impl Iterator<Item = &'t str>,
) -> Option<usize> {
    for line in 1.. {
        match (kept.next(), new.next()) {
            (None, None) => break,
            (one, other) if one != other => return Some(line),
            _ => {}
        }
    }
    None
}

/// Returns a capture file as text: a line for each frame, with its time, interface and bytes, and one for the file.
///
/// # Errors
/// If the file is no capture.
pub fn frames(capture: &[u8]) -> Result<String, ReadError> {
    let mut text = String::new();
    for frame in Reader::new(capture)? {
        let FrameRecord {
            time,
            interface,
            bytes,
        } = frame?;
        write!(text, "{} {interface} ", time.as_nanos()).expect("a string takes everything");
        for byte in bytes {
            write!(text, "{byte:02x}").expect("a string takes everything");
        }
        text.push('\n');
    }
    writeln!(text, "file: {}", digest(capture)).expect("a string takes everything");
    Ok(text)
}

/// Returns the folder for whole outputs.
fn outputs() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    target
        .unwrap_or_else(|| workspace.join("target"))
        .join("golden")
}

/// Writes a whole output, to be compared by people. Returns its path.
fn write_output(file: &str, text: &str) -> io::Result<PathBuf> {
    let path = outputs().join(file);
    fs::create_dir_all(outputs())?;
    fs::write(&path, text)?;
    Ok(path.canonicalize().unwrap_or(path))
}

/// Compares an output with the kept one. Where they differ, writes the new one to `target/golden/NAME.new`.
///
/// # Panics
/// If they differ, with the first line that does; or if files cannot be read or written.
pub fn assert_unchanged(name: &str, form: Form, text: &str) {
    let path = form.path(name);
    if env::var_os(VARIABLE).is_some_and(|value| value == "write") {
        fs::write(&path, form.of(text)).expect("a file of golden bytes");
        write_output(&format!("{name}.old"), text).expect("a file of an output");
        return;
    }
    let kept = fs::read_to_string(&path);
    let kept = kept.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let Err(change) = form.compare(&kept, text) else {
        return;
    };
    let new = write_output(&format!("{name}.new"), text).expect("a file of an output");
    let old = match form {
        Form::Text => path.display().to_string(),
        Form::Digests => format!(
            "{} (written by this test with {VARIABLE}=write at the commit before)",
            new.with_extension("old").display()
        ),
    };
    panic!(
        "{name} has changed: {change}\nold: {old}\nnew: {}\nif that is meant, run this test with {VARIABLE}=write and commit \
         what it changes, with the reason",
        new.display()
    );
}
