//! Topology files: the net files of `ibsim`, and what `ibnetdiscover` prints of a real fabric.
//!
//! The two are one format. A file has a paragraph per node: values for it, a line that names it, and a
//! line per port with a link. Every link stands in it twice, once at each end.
//!
//! ```text
//! # a comment
//! vendid=0x2c9
//! devid=0x1003
//! sysimgguid=0x2c90300000203
//! caguid=0x2c90300000200
//! Ca  1 "H-0002c90300000200"  # "host-a"
//! [1](2c90300000201)  "S-0002c90300000100"[3]  # lid 4 lmc 0 "left" lid 2 4xFDR
//!
//! Switch 8 "S-0002c90300000100"  # "left" base port 0 lid 2 lmc 0
//! [3] "H-0002c90300000200"[1] w=3 s=7 e=1
//! ```
//!
//! | line | meaning |
//! | --- | --- |
//! | `Switch N "name" # "description"` | a switch with `N` ports (1 to 254); `enhanced port 0` behind it is obeyed |
//! | `Hca N "name" # "description"`, `Ca ...` | an adapter with `N` ports (1 or 2) |
//! | `[p] "name"[q]` | port `p` of the node above leads to port `q` of the node `name`; 1 if `[q]` is missing |
//! | `[p](guid) ...` | the GUID of an adapter's port, hexadecimal |
//! | `... w=W s=S e=E` | the widths, speeds and extended speeds of the port, as bits of PortInfo |
//! | `... # ... lid L 4xFDR` | the same from the link's rate; it counts more than `w=`, `s=`, `e=` |
//! | `switchguid=G`, `caguid=G` | the GUID of the next switch or adapter; those that follow count on from it |
//! | `switchguid+n`, `caguid+n` | count on from `n` behind the last `=` |
//! | `vendid=`, `devid=`, `sysimgguid=` | NodeInfo of the next node |
//! | `width=`, `speed=`, `extspeed=` | what the ports of all nodes that follow support, as `w=`, `s=`, `e=` |
//! | `include "file"` | that file's lines come here |
//! | `# ...`, empty lines, `Chassis ...` and other headings | nothing |
//!
//! Numbers are decimal, or hexadecimal behind `0x`. A node's description is its name if it has none.
//! Without `switchguid=` and `caguid=`, switches count from 0x200000 and adapters from 0x100000; a
//! switch takes one GUID, an adapter one more than it has ports. A port's GUID is that of its node plus
//! its number, unless its line gives another.
//!
//! Not taken over: LIDs (the subnet manager gives them), FDR10 (taken for QDR) and XDR (for NDR).
//! Refused with file, line and reason: routers, `module`, `do` and port aliases; what `ibsim` passes
//! over in silence, such as a misspelt word; links that do not stand at both ends; ends without a
//! common width and speed; GUIDs that two nodes share.

mod error;
mod links;
mod reader;
mod statement;
mod write;

use crate::{PlannedNode, Topology};

pub use error::{TopologyError, TopologyProblem};

/// Nodes of a topology file at most: as many as a subnet has unicast LIDs.
pub const MAX_TOPOLOGY_NODES: usize = 0xbfff;

/// Ports of all nodes of a topology file at most.
pub const MAX_TOPOLOGY_PORTS: usize = 1 << 18;

/// The text of a file, with the name that errors call it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceText {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// What a topology file describes.
#[derive(Clone, Debug)]
pub struct TopologyFile {
    /// The plan.
    pub topology: Topology,
    /// The nodes in the file's order, with the names that its links call them by. The first one is where
    /// programs attach that name none.
    pub nodes: Vec<(String, PlannedNode)>,
}

impl TopologyFile {
    /// Reads a topology file that includes no other.
    ///
    /// ```
    /// let file = ib_fabric::TopologyFile::parse(
    ///     "net",
    ///     "Switch 8 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\n\nHca 1 \"a\"\n[1] \"s\"[1]\n\nHca 1 \"b\"\n[1] \"s\"[2]\n",
    /// )?;
    /// assert_eq!((file.topology.hcas.len(), file.topology.links.len()), (2, 2));
    /// # Ok::<(), ib_fabric::TopologyError>(())
    /// ```
    ///
    /// # Errors
    /// [`TopologyError`]: the first line that is wrong, and why.
    pub fn parse(name: &str, text: &str) -> Result<Self, TopologyError> {
        let source = SourceText {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        Self::parse_with(
            source,
            |_, _| Err("there is no place to find it".to_owned()),
        )
    }

    /// Reads a topology file. `include` is given the name of a file that a line includes, and the name of
    /// the file with that line; it gives the file, or says why not.
    ///
    /// # Errors
    /// [`TopologyError`]: the first line that is wrong, and why.
    pub fn parse_with(
        source: SourceText,
        include: impl FnMut(&str, &str) -> Result<SourceText, String>,
    ) -> Result<Self, TopologyError> {
        links::connect(reader::read(source, include)?)
    }
}

#[cfg(test)]
mod tests;
