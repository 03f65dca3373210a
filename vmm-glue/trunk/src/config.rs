//! One end of a trunk, as its owner configures it.

use core::fmt;

use ib_trunk::SiteName;
use ib_vtime::Duration;

use crate::address::TrunkAddress;
use crate::stream::Security;

/// One end of a trunk.
#[derive(Clone, Debug)]
pub struct TrunkConfig {
    /// The name of this site, which the other end shows.
    pub site: SiteName,
    /// The way to the other end.
    pub way: TrunkWay,
    /// The trunk is down when nothing comes for so long.
    pub timeout: Duration,
    /// The protection of its bytes.
    pub security: Security,
    /// The trust in the other end.
    pub peer: TrunkPeer,
}

/// The way to the other end of a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrunkWay {
    /// The other end connects to this address.
    Listen(TrunkAddress),
    /// The other end listens at this address.
    Connect(TrunkAddress),
}

/// The trust in the other end of a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrunkPeer {
    /// A host that is not trusted: it speaks for its own LIDs in its partitions, and manages no subnet.
    Host,
    /// A part of the fabric, trusted as a switch is.
    Fabric,
}

impl TrunkWay {
    /// Returns the address of the end that listens.
    #[must_use]
    pub const fn address(&self) -> &TrunkAddress {
        match self {
            Self::Listen(address) | Self::Connect(address) => address,
        }
    }
}

impl fmt::Display for TrunkWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address) => write!(f, "listen:{address}"),
            Self::Connect(address) => address.fmt(f),
        }
    }
}
