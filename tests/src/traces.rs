//! The recorded conversations of OpenSM and its tools in `tests/golden/opensm-traces/`.
//!
//! Four kinds of lines, each with what the recorder understood behind `#` or in front of the bytes:
//! the simulator's control datagrams, its MAD datagrams, MADs that crossed a umad file, and tables
//! cut into RMPP segments. The parser refuses a line that it does not understand, so that no line
//! is passed over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// A line is not of a known form.
    #[error("{file}:{line}: {reason}")]
    Line {
        /// The file's name.
        file: String,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// One recorded conversation.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The file's name.
    pub name: String,
    /// Its lines, in order.
    pub lines: Vec<Line>,
}

/// Which way a datagram went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From a client to the simulator.
    ToSimulator,
    /// From the simulator to a client.
    ToClient,
}

/// What the recorder understood of the bytes: words, and `key=value` pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// The words, in order.
    pub words: Vec<String>,
    /// The pairs.
    pub values: BTreeMap<String, String>,
}

/// One line of a trace.
#[derive(Clone, Debug)]
pub enum Line {
    /// A control datagram of the simulator.
    Control {
        /// Which way it went.
        direction: Direction,
        /// The datagram.
        bytes: Vec<u8>,
        /// The decode column.
        decoded: Decoded,
    },
    /// A MAD datagram of the simulator.
    Mad {
        /// Which way it went.
        direction: Direction,
        /// The recorded addresses: `cl`, `slid`, `dlid`, `sqp`, `dqp`, `st`, `len`.
        envelope: BTreeMap<String, String>,
        /// The MAD: 256 bytes, of which `len` mean something.
        bytes: Vec<u8>,
        /// The decode column.
        decoded: Decoded,
    },
    /// What a program read from or wrote to a umad file: a 64-byte header and a MAD, longer than
    /// 256 bytes if it is a table.
    Umad {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The umad header of a table.
    TableHeader {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A table as OpenSM wrote it: an SA MAD that is longer than 256 bytes.
    Table {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A segment of the last table.
    Segment {
        /// The recorded flags and lengths.
        decoded: Decoded,
        /// The MAD.
        bytes: Vec<u8>,
    },
    /// An acknowledgement of the last table's segments.
    Ack {
        /// The recorded numbers.
        decoded: Decoded,
        /// The MAD.
        bytes: Vec<u8>,
    },
    /// The command whose conversation follows.
    Heading(String),
    /// A remark about the table that follows.
    Remark(Decoded),
}

/// The folder of the recorded conversations.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/opensm-traces")
}

/// Reads all recorded conversations, by name.
///
/// # Errors
/// A file cannot be read, or a line is not of a known form.
pub fn all() -> Result<Vec<Trace>, TraceError> {
    let folder = folder();
    let unreadable = |error| TraceError::Read(folder.clone(), error);
    let mut paths = fs::read_dir(&folder)
        .and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.path()))
                .collect::<io::Result<Vec<_>>>()
        })
        .map_err(unreadable)?;
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<Trace, TraceError> {
    let text =
        fs::read_to_string(path).map_err(|error| TraceError::Read(path.to_owned(), error))?;
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    parse(&name, &text)
}

/// Parses the text of a trace.
///
/// # Errors
/// A line is not of a known form.
pub fn parse(name: &str, text: &str) -> Result<Trace, TraceError> {
    let lines = text.lines().enumerate().map(|(index, line)| {
        parse_line(line).map_err(|reason| TraceError::Line {
            file: name.to_owned(),
            line: index + 1,
            reason,
        })
    });
    Ok(Trace {
        name: name.to_owned(),
        lines: lines.collect::<Result<_, _>>()?,
    })
}

fn parse_line(line: &str) -> Result<Line, String> {
    if let Some(command) = line.strip_prefix("## ") {
        return Ok(Line::Heading(command.to_owned()));
    }
    if let Some(remark) = line.strip_prefix("# ") {
        return Ok(Line::Remark(Decoded::parse(remark)));
    }
    let (front, decoded) = match line.split_once("  # ") {
        Some((front, decoded)) => (front, Some(Decoded::parse(decoded))),
        None => (line, None),
    };
    let words: Vec<&str> = front.split_ascii_whitespace().collect();
    let (&last, before) = words.split_last().ok_or("an empty line")?;
    let bytes = unhex(last)?;
    match (before, decoded) {
        ([time, "CTL", direction], Some(decoded)) => {
            check_time(time)?;
            Ok(Line::Control {
                direction: Direction::parse(direction)?,
                bytes,
                decoded,
            })
        }
        ([time, direction, pairs @ ..], Some(decoded)) => {
            check_time(time)?;
            Ok(Line::Mad {
                direction: Direction::parse(direction)?,
                envelope: pairs
                    .iter()
                    .map(|pair| split_pair(pair))
                    .collect::<Result<_, _>>()?,
                bytes,
                decoded,
            })
        }
        ([time, "R" | "W", length], None) => {
            check_time(time)?;
            if length.parse() != Ok(bytes.len()) {
                return Err(format!("{} bytes, not {length}", bytes.len()));
            }
            Ok(Line::Umad { bytes })
        }
        (["UMADHDR"], None) => Ok(Line::TableHeader { bytes }),
        (["UMADMAD"], None) => Ok(Line::Table { bytes }),
        (["SEG", pairs @ ..], None) => Ok(Line::Segment {
            decoded: Decoded::parse(&pairs.join(" ")),
            bytes,
        }),
        (["ACK", pairs @ ..], None) => Ok(Line::Ack {
            decoded: Decoded::parse(&pairs.join(" ")),
            bytes,
        }),
        _ => Err("unknown kind of line".to_owned()),
    }
}

impl Direction {
    fn parse(word: &str) -> Result<Self, String> {
        match word {
            "C2S" => Ok(Self::ToSimulator),
            "S2C" => Ok(Self::ToClient),
            _ => Err(format!("{word} is no direction")),
        }
    }
}

impl Decoded {
    /// Splits a column into words and pairs. The pairs inside `group[...]` get the group's name in
    /// front: `rmpp[ver=1` becomes `rmpp.ver`. Quotes around values are dropped.
    #[must_use]
    pub fn parse(column: &str) -> Self {
        let mut decoded = Self::default();
        let mut group = String::new();
        for token in column.split_ascii_whitespace() {
            let token = match token.split_once('[') {
                Some((name, rest)) => {
                    group = format!("{name}.");
                    rest
                }
                None => token,
            };
            match token.trim_end_matches([']', ',']).split_once('=') {
                Some((key, value)) => {
                    let value = value.trim_matches('\'').to_owned();
                    decoded.values.insert(format!("{group}{key}"), value);
                }
                None => decoded.words.push(token.to_owned()),
            }
            if token.ends_with(']') {
                group.clear();
            }
        }
        decoded
    }
}

fn check_time(word: &str) -> Result<(), String> {
    word.parse::<f64>()
        .map(|_| ())
        .map_err(|_| format!("{word} is no time"))
}

fn split_pair(pair: &str) -> Result<(String, String), String> {
    pair.split_once('=')
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("{pair} is no pair"))
}

/// Decodes hexadecimal digits.
///
/// # Errors
/// Something else is in the text, or the digits are odd in number.
pub fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            std::str::from_utf8(pair)
                .ok()
                .filter(|pair| pair.len() == 2 && pair.bytes().all(|c| c.is_ascii_hexdigit()))
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .ok_or_else(|| format!("no hexadecimal digits: {}", text.escape_debug()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_split_into_words_and_grouped_pairs() {
        let decoded = Decoded::parse("SA Get X tid=0a rmpp[ver=1 seg/d1=2] cmask=3 node='H 1'");
        assert_eq!(decoded.words, ["SA", "Get", "X", "1'"]);
        assert_eq!(decoded.values["tid"], "0a");
        assert_eq!(decoded.values["rmpp.ver"], "1");
        assert_eq!(decoded.values["rmpp.seg/d1"], "2");
        assert_eq!(decoded.values["cmask"], "3");
    }

    #[test]
    fn lines_that_nobody_understands_are_refused_with_their_number() {
        for line in [
            "",
            "hello",
            "0.1 CTL C2X 00  # x",
            "0.1 R 3 0000",
            "SEG 0g",
            "ACK 000",
        ] {
            let error = parse("t", &format!("# remark\n{line}\n")).unwrap_err();
            assert!(error.to_string().starts_with("t:2: "), "{line}: {error}");
        }
    }
}
