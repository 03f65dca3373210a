//! The address of a MAD: where it goes, or where it came from.

use hca_api::GlobalRoute;
use ib_wire::{Lid, PKeyIndex, QKey, Qpn, Sl};

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
}
