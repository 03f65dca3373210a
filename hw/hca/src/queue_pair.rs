//! Queue pairs and shared receive queues: what they are made from and what they can become.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use ib_wire::{Lid, Mtu, PKeyIndex, PortNum, Psn, QKey, Qpn};

use crate::{
    AccessFlags, AddressSpace, AddressVector, CqHandle, FunctionId, PdHandle, Sge, SrqHandle,
};

/// Which of a port's two special QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpecialQp {
    /// QP0, the subnet management interface.
    Smi,
    /// QP1, the general service interface.
    Gsi,
}

impl SpecialQp {
    /// The number that stands for it on the wire.
    #[must_use]
    pub const fn wire_qpn(self) -> Qpn {
        match self {
            Self::Smi => Qpn::SMI,
            Self::Gsi => Qpn::GSI,
        }
    }
}

/// The service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// A port's QP0 or QP1 itself (IBA 11.2.4.1, Get Special QP). Needs
    /// [`crate::Privileges::SPECIAL_QP`].
    Special {
        /// Which.
        special: SpecialQp,
        /// Of which port.
        port: PortNum,
    },
    /// The VF's end of a tunnel: stands for a special QP in a function that has none. What it sends
    /// goes to its tunnel QP and nowhere else, and it receives from that QP only. A send needs no
    /// destination, and one that is given is not looked at; the same holds for tunnel QPs.
    Proxy {
        /// Which special QP it stands for.
        special: SpecialQp,
        /// Of which port.
        port: PortNum,
    },
    /// The PF's end of a tunnel. Needs [`crate::Privileges::MANAGE_FUNCTIONS`].
    Tunnel {
        /// Whose proxy QP is at the other end.
        function: FunctionId,
        /// Which special QP the tunnel stands for.
        special: SpecialQp,
        /// Of which port.
        port: PortNum,
    },
}

impl QpKind {
    /// Whether each send names its destination.
    #[must_use]
    pub const fn is_datagram(self) -> bool {
        !matches!(self, Self::Rc | Self::Uc)
    }
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Outstanding send requests.
    pub max_send_wr: u32,
    /// Outstanding receive requests.
    pub max_recv_wr: u32,
    /// Gather entries per send.
    pub max_send_sge: u32,
    /// Scatter entries per receive.
    pub max_recv_sge: u32,
    /// Inline bytes per send.
    pub max_inline: u32,
}

/// A source of receive requests that the provider reads when a packet needs one.
///
/// Implemented by whoever keeps receive requests in memory that a guest writes. The provider calls it
/// at most once per message, and lends it the function's memory.
///
/// A guest can have posted very many receives. So a queue pair that is moved to the error state completes
/// [`MAX_FLUSHED`] of a source as flushed, and as many more each time that it is moved there again.
pub trait PulledReceives: fmt::Debug + Send {
    /// Takes the next request: appends its scatter list to `scatter` (which comes empty) and gives
    /// its name. `None` when the guest has posted nothing.
    fn pull(&mut self, memory: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64>;

    /// Requests that wait to be taken, as far as the source can tell without taking them.
    fn pending(&self, memory: &dyn AddressSpace) -> usize;
}

/// Receives of a [`PulledReceives`] that are completed as flushed at a time.
pub const MAX_FLUSHED: usize = 256;

/// Where a receive queue's requests come from.
#[derive(Debug, Default)]
pub enum ReceiveMode {
    /// From [`crate::Hca::post_recv`] or [`crate::Hca::post_srq_recv`].
    #[default]
    Posted,
    /// Read on demand.
    Pulled(Box<dyn PulledReceives>),
}

/// What a queue pair is made from (IBA 11.2.4.1, Create Queue Pair).
#[derive(Debug)]
pub struct QpSpec {
    /// The service.
    pub kind: QpKind,
    /// Protection domain.
    pub pd: PdHandle,
    /// Completion queue of the send queue.
    pub send_cq: CqHandle,
    /// Completion queue of the receive queue.
    pub recv_cq: CqHandle,
    /// Shared receive queue instead of one of its own.
    pub srq: Option<SrqHandle>,
    /// Sizes.
    pub caps: QpCaps,
    /// Whether every send completes, flagged or not.
    pub signal_all: bool,
    /// Where receives come from; ignored with an SRQ.
    pub receives: ReceiveMode,
    /// A number from [`crate::Hca::reserve_qpns`], or `None` for one of the provider's choice.
    pub qpn: Option<Qpn>,
    /// Do not deliver to this QP the multicast packets that it sent itself.
    pub block_multicast_loopback: bool,
}

/// The two numbers of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpNumbers {
    /// The number that the consumer uses and sees in completions: of a special or proxy QP, that of
    /// the special QP.
    pub external: Qpn,
    /// The number by which the provider, and the peer, tell the QP. Differs for proxy QPs, and with
    /// providers that have their special QPs elsewhere.
    pub real: Qpn,
}

/// States of a queue pair (IBA 10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QpState {
    /// Just made.
    #[default]
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// The send queue drains.
    SendQueueDrain,
    /// The send queue is in error, the receive queue works.
    SendQueueError,
    /// Everything posted completes as flushed.
    Error,
}

/// State of automatic path migration (IBA 17.2.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigrationState {
    /// Migrated: the alternate path is in use, no other is loaded.
    #[default]
    Migrated,
    /// An alternate path is loaded on this side and waits for the peer.
    Rearm,
    /// Both sides are ready to migrate.
    Armed,
}

/// An alternate path of a connected QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// The way.
    pub address: AddressVector,
    /// P_Key on it.
    pub pkey_index: PKeyIndex,
    /// Local ACK timeout code: 4.096 us x 2^code.
    pub timeout: u8,
}

/// A change to a queue pair (IBA 11.2.4.2, Modify Queue Pair). Fields that are `None` stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpModify {
    /// The next state.
    pub state: Option<QpState>,
    /// The state the caller believes the QP to be in; the call fails if it is not.
    pub current_state: Option<QpState>,
    /// The port.
    pub port: Option<PortNum>,
    /// The partition.
    pub pkey_index: Option<PKeyIndex>,
    /// The queue key. A controlled key needs [`crate::Privileges::CONTROLLED_QKEY`].
    pub qkey: Option<QKey>,
    /// Remote rights of a connected QP.
    pub access: Option<AccessFlags>,
    /// Path MTU of a connected QP.
    pub path_mtu: Option<Mtu>,
    /// The peer of a connected QP.
    pub dest_qpn: Option<Qpn>,
    /// First PSN to expect.
    pub rq_psn: Option<Psn>,
    /// First PSN to send.
    pub sq_psn: Option<Psn>,
    /// Primary path of a connected QP.
    pub primary: Option<AddressVector>,
    /// Alternate path of a connected QP.
    pub alternate: Option<AlternatePath>,
    /// Migration state.
    pub migration: Option<MigrationState>,
    /// Local ACK timeout code: 4.096 us x 2^code; 0 means never.
    pub timeout: Option<u8>,
    /// Transport retries, 0 to 7.
    pub retry_count: Option<u8>,
    /// RNR retries, 0 to 7; 7 means for ever.
    pub rnr_retry: Option<u8>,
    /// RNR NAK timer code (IBA 9.7.5.2.8).
    pub min_rnr_timer: Option<u8>,
    /// Reads and atomics outstanding as initiator.
    pub max_rd_atomic: Option<u8>,
    /// Reads and atomics outstanding as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// Ask for [`crate::AsyncEvent::SendQueueDrained`].
    pub drain_event: bool,
    /// As [`QpSpec::block_multicast_loopback`]. Can be given in every state.
    pub block_multicast_loopback: Option<bool>,
}

/// A queue pair as it stands (IBA 11.2.4.3, Query Queue Pair).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// The service.
    pub kind: QpKind,
    /// The numbers.
    pub numbers: QpNumbers,
    /// The state.
    pub state: QpState,
    /// Sizes, at least those asked for.
    pub caps: QpCaps,
    /// The port, once set.
    pub port: Option<PortNum>,
    /// The partition.
    pub pkey_index: PKeyIndex,
    /// The queue key; the reserved key of a proxy or tunnel QP is not shown.
    pub qkey: QKey,
    /// Next PSN to send.
    pub sq_psn: Psn,
    /// Next PSN to expect.
    pub rq_psn: Psn,
    /// Peer of a connected QP.
    pub dest_qpn: Qpn,
    /// LID of the peer on the primary path of a connected QP.
    pub dest_lid: Lid,
    /// Primary path of a connected QP, once set.
    pub primary: Option<AddressVector>,
    /// Path MTU of a connected QP.
    pub path_mtu: Mtu,
    /// Remote rights.
    pub access: AccessFlags,
    /// Local ACK timeout code of an RC QP: 4.096 us x 2^code; 0 means never.
    pub timeout: u8,
    /// Transport retries of an RC QP.
    pub retry_count: u8,
    /// RNR retries of an RC QP; 7 means for ever.
    pub rnr_retry: u8,
    /// RNR NAK timer code of an RC QP (IBA 9.7.5.2.8).
    pub min_rnr_timer: u8,
    /// Reads and atomics outstanding as initiator, of an RC QP.
    pub max_rd_atomic: u8,
    /// Reads and atomics outstanding as responder, of an RC QP.
    pub max_dest_rd_atomic: u8,
    /// The send queue of a connected QP drains: requests that were begun are not complete.
    pub draining: bool,
    /// Migration state.
    pub migration: MigrationState,
}

/// What a shared receive queue is made from (IBA 11.2.3.1, Create Shared Receive Queue).
#[derive(Debug)]
pub struct SrqSpec {
    /// Protection domain.
    pub pd: PdHandle,
    /// Outstanding requests.
    pub max_wr: u32,
    /// Scatter entries per request.
    pub max_sge: u32,
    /// Raise [`crate::AsyncEvent::SrqLimitReached`] when fewer requests are left; 0 means never.
    pub limit: u32,
    /// Where receives come from.
    pub receives: ReceiveMode,
}

/// A shared receive queue as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Outstanding requests that fit.
    pub max_wr: u32,
    /// Scatter entries per request.
    pub max_sge: u32,
    /// The armed limit; 0 after the event was raised.
    pub limit: u32,
}
