//! Announcements of a service for its parent process.

use std::path::PathBuf;

use serde::Serialize;
use vhca_control::OfferedVf;

/// An event in the life of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Announcement {
    /// All sockets are open.
    Ready {
        /// The fabric.
        topology: String,
        /// Hosts.
        hosts: usize,
        /// VFs of all hosts.
        vfs: usize,
        /// The control socket.
        control: Option<PathBuf>,
        /// The sockets by which VMMs take VFs.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        vfio_user: Vec<OfferedVf>,
    },
    /// The way to a node of a simulator came, went, or is not to be had.
    Uplink {
        /// The simulator.
        simulator: String,
        /// The node.
        node: String,
        /// `true` if the node is attached.
        attached: bool,
        /// More of it, in words.
        detail: String,
    },
    /// A trunk came up or went down.
    Trunk {
        /// The port at this end.
        port: String,
        /// The way to the other end.
        way: String,
        /// The site of the other end, if the trunk is up.
        peer: Option<String>,
        /// More of it, in words.
        detail: String,
    },
    /// The end.
    Stopped {
        /// `true` if the SA confirmed the release of all GUIDs and memberships of VFs.
        released: bool,
    },
}

impl core::fmt::Display for Announcement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Ready {
                topology,
                hosts,
                vfs,
                control,
                vfio_user,
            } => {
                write!(f, "ready: topology {topology}, {hosts} hosts, {vfs} VFs")?;
                if let Some(path) = control {
                    write!(f, ", control socket {}", path.display())?;
                }
                for offered in vfio_user {
                    write!(f, "\n{}/{}: vfio-user socket ", offered.host, offered.vf)?;
                    write!(f, "{}", offered.socket.display())?;
                }
                Ok(())
            }
            Self::Uplink {
                simulator,
                node,
                detail,
                ..
            } => write!(f, "{simulator}/{node}: {detail}"),
            Self::Trunk {
                port, way, detail, ..
            } => write!(f, "trunk {port} ({way}): {detail}"),
            Self::Stopped { released: true } => f.write_str("stopped"),
            Self::Stopped { released: false } => {
                f.write_str("stopped; the SA did not confirm that GUIDs and groups are given back")
            }
        }
    }
}
