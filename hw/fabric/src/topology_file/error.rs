//! What can be wrong with a topology file, and where.

use core::fmt;

use ib_wire::Guid;
use thiserror::Error;

/// Text of the file that an error repeats at most.
const MAX_QUOTED: usize = 60;

/// Why a topology file cannot be used, with the place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct TopologyError {
    /// The name of the file.
    pub file: String,
    /// The line, counted from 1; 0 if the file as a whole is meant.
    pub line: usize,
    /// Where files were included that lead to this one, the nearest first.
    pub included_from: Vec<(String, usize)>,
    /// What is wrong there.
    pub problem: TopologyProblem,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if self.line != 0 {
            write!(f, "{}:", self.line)?;
        }
        write!(f, " {}", self.problem)?;
        for (file, line) in &self.included_from {
            write!(f, " (included from {file}:{line})")?;
        }
        Ok(())
    }
}

/// What is wrong with a line of a topology file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyProblem {
    /// It begins with nothing that the format knows.
    #[error("\"{0}\" is no statement")]
    UnknownStatement(String),
    /// The format has it, and it is not supported here.
    #[error("{0} cannot be emulated")]
    Unsupported(&'static str),
    /// A node's number of ports is missing or out of range.
    #[error("a number of ports from 1 to {most} is wanted, not \"{found}\"")]
    PortCount {
        /// The most that such a node can have.
        most: u8,
        /// What stands there.
        found: String,
    },
    /// A port number is missing or out of the range of the node's ports.
    #[error("a port from 1 to {most} is wanted, not \"{found}\"")]
    Port {
        /// The node's last port.
        most: u8,
        /// What stands there.
        found: String,
    },
    /// A text in double quotes is missing, or has no end.
    #[error("a name in double quotes is wanted")]
    Name,
    /// A value is no number, or not one of those that are possible.
    #[error("{name} must be {wanted}, not \"{found}\"")]
    Value {
        /// What it is for.
        name: &'static str,
        /// What is possible.
        wanted: &'static str,
        /// What stands there.
        found: String,
    },
    /// A port line stands before any node.
    #[error("a port without a node")]
    PortWithoutNode,
    /// The name of the node is that of another.
    #[error("node \"{0}\" is there already")]
    NodeTwice(String),
    /// The port has a line already.
    #[error("port {0} is there already")]
    PortTwice(u8),
    /// A node or port has the GUID of another.
    #[error("GUID {guid:#018x} of \"{node}\" is also that of \"{other}\"", guid = guid.get())]
    GuidTwice {
        /// The GUID.
        guid: Guid,
        /// The node of this line.
        node: String,
        /// The node that had it first.
        other: String,
    },
    /// The line leads to a node that no file has.
    #[error("there is no node \"{0}\"")]
    NoSuchNode(String),
    /// The line leads to a port that the node does not have.
    #[error("node \"{node}\" has no port {port}")]
    NoSuchPort {
        /// The node.
        node: String,
        /// The port.
        port: u8,
    },
    /// The other end of the link does not lead back.
    #[error("port {port} of \"{node}\" does not lead back here")]
    OneSided {
        /// The other node.
        node: String,
        /// Its port.
        port: u8,
    },
    /// The two ends have no width or no speed in common.
    #[error("port {port} of \"{node}\" has no {what} in common with this one")]
    NothingInCommon {
        /// The other node.
        node: String,
        /// Its port.
        port: u8,
        /// Width or speed.
        what: &'static str,
    },
    /// There are more nodes than a subnet has LIDs, or more ports than are emulated.
    #[error("more than {0}")]
    TooMany(&'static str),
    /// The file includes itself.
    #[error("\"{0}\" includes itself")]
    IncludeCycle(String),
    /// The file that is to be included cannot be read.
    #[error("cannot include \"{file}\": {reason}")]
    Include {
        /// Its name as it stands in the line.
        file: String,
        /// What the reader of files said.
        reason: String,
    },
    /// There is no node at all.
    #[error("no nodes")]
    Empty,
}

/// The front of what stands in the file, fit for an error message.
pub(super) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(MAX_QUOTED).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    format!("{}{more}", short.escape_debug())
}
