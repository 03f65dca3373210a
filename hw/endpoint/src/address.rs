//! The address of a MAD: where it goes, or where it came from.

use hca_api::{AddressVector, GlobalRoute, SourceAddress, UdAddress, UdDestination};
use ib_wire::{Gid, Guid, Lid, PKeyIndex, PortNum, QKey, Qpn, Sl};

/// The remote end of a MAD, the same shape for sending and receiving: answering a received MAD means
/// sending to the address it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MadAddress {
    /// The remote port's LID.
    pub lid: Lid,
    /// The remote QP.
    pub qpn: Qpn,
    /// The Q_Key to send with; of a received MAD, the key to answer with.
    pub qkey: QKey,
    /// Service level.
    pub sl: Sl,
    /// Index into the local port's P_Key table.
    pub pkey_index: PKeyIndex,
    /// The low bits of the local LID, within the port's LMC.
    pub path_bits: u8,
    /// The global route, when the MAD carries a GRH.
    pub grh: Option<GlobalRoute>,
}

/// The well-known interface id by which a subnet's SA may be addressed (IBA 15.4.2): answers come
/// from the SA port's own GID instead.
const SA_WELL_KNOWN_GUID: Guid = Guid::new(0x0200_0000_0000_0002);

impl MadAddress {
    /// The QP1 of a port on this subnet, in the partition at P_Key index 0.
    #[must_use]
    pub fn gsi(lid: Lid) -> Self {
        Self {
            lid,
            qpn: Qpn::GSI,
            qkey: QKey::GSI,
            sl: Sl::default(),
            pkey_index: PKeyIndex(0),
            path_bits: 0,
            grh: None,
        }
    }

    /// The QP0 of a port on this subnet.
    #[must_use]
    pub fn smi(lid: Lid) -> Self {
        Self {
            qpn: Qpn::SMI,
            qkey: QKey::SMI,
            ..Self::gsi(lid)
        }
    }

    /// The QP0 at the end of a directed route: the permissive LID, for routes that are directed
    /// from end to end (IBA 14.2.2).
    #[must_use]
    pub fn directed() -> Self {
        Self::smi(Lid::PERMISSIVE)
    }

    /// Who sent a received MAD; `qkey` is that of the QP on which it came.
    #[must_use]
    pub const fn of_sender(source: &SourceAddress, qkey: QKey) -> Self {
        Self {
            lid: source.slid,
            qpn: source.src_qpn,
            qkey,
            sl: source.sl,
            pkey_index: source.pkey_index,
            path_bits: source.dlid_path_bits,
            grh: source.grh,
        }
    }

    /// The address as a datagram's destination from a port.
    #[must_use]
    pub const fn destination(&self, port: PortNum) -> UdDestination {
        UdDestination {
            address: UdAddress::Vector(AddressVector {
                port,
                dlid: self.lid,
                sl: self.sl,
                path_bits: self.path_bits,
                static_rate: None,
                grh: self.grh,
            }),
            qpn: self.qpn,
            qkey: self.qkey,
            pkey_index: Some(self.pkey_index),
        }
    }

    /// Who the remote end is, without how to get there.
    #[must_use]
    pub fn peer(&self) -> Peer {
        match self.grh {
            Some(route) => Peer::Global(route.remote_gid, self.qpn),
            None => Peer::Local(self.lid, self.qpn),
        }
    }

    /// Whether a MAD from `from` can answer one that was sent to this address (IBA 13.5.4).
    ///
    /// With a GRH the GIDs must agree, without one the LIDs; one kind does not answer the other.
    /// What went to the permissive LID, or to the well-known GID of the SA, may be answered by
    /// any port.
    #[must_use]
    pub fn is_answered_by(&self, from: &Self) -> bool {
        if self.qpn != from.qpn {
            return false;
        }
        match (self.grh, from.grh) {
            (None, None) => self.lid == Lid::PERMISSIVE || self.lid == from.lid,
            (Some(to), Some(from)) => {
                to.remote_gid == from.remote_gid
                    || to.remote_gid.interface_id() == SA_WELL_KNOWN_GUID
            }
            _ => false,
        }
    }
}

/// The identity of a remote QP: what tells apart two transfers with the same transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// Addressed with a GRH: by GID.
    Global(Gid, Qpn),
    /// Addressed within the subnet: by LID.
    Local(Lid, Qpn),
}

#[cfg(test)]
mod tests {
    use ib_wire::{GidIndex, SubnetPrefix};

    use super::*;

    fn global(guid: u64) -> MadAddress {
        MadAddress {
            grh: Some(GlobalRoute {
                remote_gid: Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(guid)),
                sgid_index: GidIndex(0),
                flow_label: 0,
                hop_limit: 1,
                traffic_class: 0,
            }),
            ..MadAddress::gsi(Lid::new(5))
        }
    }

    #[test]
    fn an_answer_comes_from_the_lid_and_qp_that_were_asked() {
        let to = MadAddress::gsi(Lid::new(5));
        assert!(to.is_answered_by(&MadAddress::gsi(Lid::new(5))));
        assert!(!to.is_answered_by(&MadAddress::gsi(Lid::new(6))));
        assert!(!to.is_answered_by(&MadAddress::smi(Lid::new(5))));
        assert!(!to.is_answered_by(&global(1)));
    }

    #[test]
    fn with_a_grh_the_gid_decides() {
        assert!(global(1).is_answered_by(&global(1)));
        assert!(!global(1).is_answered_by(&global(2)));
        assert!(!global(1).is_answered_by(&MadAddress::gsi(Lid::new(5))));
        assert!(global(SA_WELL_KNOWN_GUID.get()).is_answered_by(&global(2)));
    }

    #[test]
    fn a_directed_route_is_answered_from_any_lid() {
        assert!(MadAddress::directed().is_answered_by(&MadAddress::smi(Lid::new(9))));
    }
}
