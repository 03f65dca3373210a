//! Taps: copies of the packets that pass a link or a queue pair.

use ib_capture::{FrameRecord, Interface};
use ib_vtime::Instant;
use ib_wire::Qpn;
use ib_wire::packet::{Body, Packet};

use crate::Frame;
use crate::NodeId;
use crate::link::{Endpoint, LinkId};

/// Names a tap of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TapId(pub(crate) u32);

/// Where a tap listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapPoint {
    /// Both directions of a link.
    Link(LinkId),
    /// What a QP of the node behind an end of a link sends to, or is sent over, that link.
    QueuePair(Endpoint, Qpn),
    /// Every link.
    Everything,
    /// The tunnels of a node's virtual functions, both ways, as packets from queue pair to queue
    /// pair on the port that the tunnel is for. Nothing of them is ever on a link.
    Tunnels(NodeId),
}

/// A packet that a tap saw.
#[derive(Clone, Debug)]
pub struct Tapped {
    /// When it was sent.
    pub at: Instant,
    /// Which tap saw it.
    pub tap: TapId,
    /// The port that sent it.
    pub from: Endpoint,
    /// The port that it was sent to; the same one in a tunnel.
    pub to: Endpoint,
    /// The packet as it was sent, before any fault of the link.
    pub frame: Frame,
}

impl Tapped {
    /// The packet as a record of a capture file, as if seen on `interface`.
    #[must_use]
    pub fn record(&self, interface: Interface) -> FrameRecord {
        FrameRecord {
            time: self.at,
            interface,
            bytes: self.frame.bytes().to_vec(),
        }
    }
}

/// A packet on its way, as taps are asked about it.
pub(crate) struct Passing<'f> {
    pub(crate) link: LinkId,
    pub(crate) from: Endpoint,
    pub(crate) to: Endpoint,
    pub(crate) frame: &'f Frame,
}

impl TapPoint {
    /// Returns `true` if the point may see packets that cross a link between two ports.
    pub(crate) fn watches(&self, link: LinkId, ends: [Endpoint; 2]) -> bool {
        match self {
            Self::Everything => true,
            Self::Tunnels(_) => false,
            Self::Link(own) => *own == link,
            Self::QueuePair(end, _) => ends.contains(end),
        }
    }

    pub(crate) fn sees(&self, passing: &Passing<'_>) -> bool {
        match self {
            Self::Everything => true,
            Self::Tunnels(_) => false,
            Self::Link(link) => *link == passing.link,
            Self::QueuePair(end, qpn) => {
                (*end == passing.from && source(passing.frame) == Some(*qpn))
                    || (*end == passing.to
                        && passing.frame.bth().is_some_and(|bth| bth.dest_qp == *qpn))
            }
        }
    }
}

fn source(frame: &Frame) -> Option<Qpn> {
    match Packet::parse(frame.bytes()).ok()?.body {
        Body::Transport(transport) => transport.extended.deth.map(|deth| deth.src_qp),
        Body::RawEthertype { .. } | Body::RawIpv6 { .. } => None,
    }
}
