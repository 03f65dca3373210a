//! What goes into the mux besides frames, and what comes out.

use ib_wire::mad::Mad;
use ib_wire::{Gid, Lid, PKey, QKey, Qpn, Sl, SubnetPrefix};
use vf_tunnel::{DropReason, SpecialQp, VfId, VirtualPKeyIndex};

/// Names the input that an output follows from. The caller chooses; the mux only hands it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cause(pub u64);

impl Cause {
    /// What timers do.
    pub const TIMER: Self = Self(u64::MAX);
}

/// The parts of a GRH that are not the same for all MADs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Route {
    /// The way back.
    pub(crate) const fn reversed(self) -> Self {
        Self {
            sgid: self.dgid,
            dgid: self.sgid,
            ..self
        }
    }
}

/// Where a packet from the wire came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireSource {
    /// Source LID.
    pub slid: Lid,
    /// Source QP.
    pub sqpn: Qpn,
    /// Service level.
    pub sl: Sl,
    /// The P_Key in its BTH.
    pub pkey: PKey,
    /// Its GRH, if it has one.
    pub grh: Option<Route>,
    /// What its destination LID adds to the port's base LID.
    pub path_bits: u8,
}

/// What happens to the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The SM asks for re-registration.
    ClientReregister,
    /// The port has another base LID.
    LidChange(Lid),
    /// The SM is elsewhere, or reached on another SL.
    SmChange {
        /// Its LID.
        lid: Lid,
        /// The SL that leads to it.
        sl: Sl,
    },
    /// The port is no longer active.
    PortDown,
    /// The port is active.
    PortUp,
    /// The SM wrote the P_Key table: all of it as it is now.
    PKeyTable(Vec<PKey>),
    /// The subnet has another prefix.
    GidPrefix(SubnetPrefix),
}

/// What a VF is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VfEvent {
    /// Its port is active.
    PortUp,
    /// Its port is no longer active.
    PortDown,
    /// Its port has another LID.
    LidChange,
    /// The SM has another address.
    SmChange,
    /// It must register again what it had registered with the SA.
    ClientReregister,
    /// Its P_Key table changed.
    PKeyChange,
    /// Its GID table changed.
    GidChange,
}

impl VfEvent {
    /// The stable text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PortUp => "port_up",
            Self::PortDown => "port_down",
            Self::LidChange => "lid_change",
            Self::SmChange => "sm_change",
            Self::ClientReregister => "client_reregister",
            Self::PKeyChange => "pkey_change",
            Self::GidChange => "gid_change",
        }
    }
}

/// What the mux wants done, or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send the MAD by the port's special QP.
    ToWire(WireSend, Mad),
    /// Deliver the MAD through a VF's tunnel.
    ToVf(VfDelivery, Mad),
    /// Tell a VF.
    VfEvent {
        /// Whom.
        vf: VfId,
        /// What.
        event: VfEvent,
    },
    /// A frame went nowhere.
    Dropped {
        /// Its sender, or whom it was for, as far as that is known.
        vf: Option<VfId>,
        /// Why.
        reason: DropReason,
    },
}

/// How a MAD goes to the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireSend {
    /// The VF in whose name it is sent, if there is one.
    pub vf: Option<VfId>,
    /// The special QP that sends it.
    pub qp: SpecialQp,
    /// Destination LID.
    pub dlid: Lid,
    /// Destination QP.
    pub dqpn: Qpn,
    /// The Q_Key to send.
    pub qkey: QKey,
    /// Service level.
    pub sl: Sl,
    /// The P_Key to send, by value.
    pub pkey: PKey,
    /// What is added to the port's base LID.
    pub path_bits: u8,
    /// The GRH, if there is to be one.
    pub grh: Option<Route>,
}

/// How a MAD goes to a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VfDelivery {
    /// To whom; [`VfId::PF`] is the PF's own software.
    pub vf: VfId,
    /// Which proxy QP.
    pub qp: SpecialQp,
    /// Source LID.
    pub slid: Lid,
    /// Source QP.
    pub sqpn: Qpn,
    /// Service level.
    pub sl: Sl,
    /// The index in the VF's own table of the partition that it came in.
    pub pkey_index: VirtualPKeyIndex,
    /// The packet's GRH, if it had one.
    pub grh: Option<Route>,
}

/// What goes on of a MAD that was judged where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Passed {
    /// The MAD as it is now is to be sent by the port's special QP.
    ToWire(WireSend),
    /// The MAD as it is now is to be delivered through a VF's tunnel.
    ToVf(VfDelivery),
    /// The MAD ended or waits. What comes of it is among the outputs.
    Nothing,
}

impl Passed {
    /// The output that carries the MAD.
    pub(crate) const fn with(self, mad: Mad) -> Option<Output> {
        match self {
            Self::ToWire(send) => Some(Output::ToWire(send, mad)),
            Self::ToVf(to) => Some(Output::ToVf(to, mad)),
            Self::Nothing => None,
        }
    }
}

/// Live objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Transactions.
    pub tids: usize,
    /// Communication ids, and requests of peers without one, whose exchanges use this port.
    pub cm_ids: usize,
    /// Multicast groups.
    pub mcast_groups: usize,
    /// Multicast memberships.
    pub mcast_members: usize,
    /// Notice subscriptions of VFs: one that two hold counts twice.
    pub subscriptions: usize,
    /// Paths that are cached or being asked for.
    pub path_cache: usize,
    /// Frames of VFs beyond their rate that wait for their turn.
    pub queued: usize,
}

/// Bytes that the tables of live objects take, room for growth and resting ids included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Transactions.
    pub tids: usize,
    /// Communication ids of all ports of the adapter, told by the first of them.
    pub cm_ids: usize,
    /// Multicast groups with their members.
    pub mcast: usize,
}
