//! Where a datagram goes and where a received one came from.

use ib_wire::{Gid, GidIndex, Lid, PKeyIndex, PortNum, Qpn, Rate, Sl};

/// The part of an address vector that fills a Global Route Header (IBA 11.2.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GlobalRoute {
    /// Destination GID, or the source GID when the route describes a received packet.
    pub remote_gid: Gid,
    /// Index of the local GID in the port's GID table. A VF's function forces this to the VF's own
    /// entry, whatever the consumer writes.
    pub sgid_index: GidIndex,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// An address vector (IBA 11.2.2.1): how a UD packet, or the packets of a connected QP, travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressVector {
    /// The local port that sends.
    pub port: PortNum,
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Source path bits: the low LMC bits of the source LID.
    pub path_bits: u8,
    /// Limit on the injection rate; `None` means the port's own rate.
    pub static_rate: Option<Rate>,
    /// Set to send a Global Route Header.
    pub grh: Option<GlobalRoute>,
}

/// What a receive completion tells about the packet's sender (IBA 11.4.2.1, Poll for Completion).
///
/// When `grh` is set, the 40 bytes of the header also stand at the start of the receive buffer of a
/// UD QP; without it those 40 bytes are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAddress {
    /// The local port on which the packet arrived.
    pub port: PortNum,
    /// Source LID.
    pub slid: Lid,
    /// Source QP.
    pub src_qpn: Qpn,
    /// Service level.
    pub sl: Sl,
    /// The path bits of the LID by which the packet was addressed to us.
    pub dlid_path_bits: u8,
    /// Index, in this function's P_Key table, of the key that matched.
    pub pkey_index: PKeyIndex,
    /// The packet's global route seen from here: `remote_gid` is its source GID and `sgid_index`
    /// the local entry it was sent to (0 for multicast).
    pub grh: Option<GlobalRoute>,
}

impl SourceAddress {
    /// Where an SMP comes from: QP0 (IBA 14.2.1). What came to a port with several LIDs has its path bits set by the caller.
    #[must_use]
    pub const fn of_smp(port: PortNum, slid: Lid, sl: Sl) -> Self {
        Self {
            port,
            slid,
            src_qpn: Qpn::SMI,
            sl,
            dlid_path_bits: 0,
            pkey_index: PKeyIndex(0),
            grh: None,
        }
    }

    /// Where an SMP comes from that software on this port gave to its own adapter, and that was on no link: QP0, and the
    /// permissive LID, since both ends of its route are directed (IBA 14.2.2).
    #[must_use]
    pub fn local(port: PortNum) -> Self {
        Self::of_smp(port, Lid::PERMISSIVE, Sl::default())
    }
}
