//! Why packets are dropped at a node, counted.

use std::collections::BTreeMap;

use hca_api::FunctionId;
use ib_vtime::Instant;
use ib_wire::PortNum;

/// Declares the reasons with their words.
macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a packet ended at a node without reaching a consumer. The sender of a datagram never
        /// learns of it: its request completes with success, as on hardware.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DropReason {
            $($(#[$doc])* $name,)*
        }

        impl DropReason {
            /// The reason in a stable word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// Sent or received: the port, or the function's virtual port, is not active.
    PortNotActive = "port_not_active",
    /// Sent: the P_Key index holds no valid key.
    NoPKey = "no_pkey",
    /// Sent: the source GID index holds no GID.
    NoSourceGid = "no_source_gid",
    /// Sent: the destination LID is reserved, or permissive outside subnet management.
    BadDestinationLid = "bad_destination_lid",
    /// Sent or forwarded: the service level maps to no data lane.
    NoDataLane = "no_data_lane",
    /// Sent through a tunnel: there is no queue pair at its other end, or it is disabled.
    NoTunnelPeer = "no_tunnel_peer",
    /// Sent: the message was too long or not in accessible memory. The request's completion tells so.
    SendFailed = "send_failed",
    /// Sent by the device's agents: the port's egress is full.
    EgressFull = "egress_full",
    /// Received: the VCRC is wrong.
    BadVcrc = "bad_vcrc",
    /// Received: not an IBA transport packet, or malformed.
    Malformed = "malformed",
    /// Received or sent: longer than the port's MTU allows.
    TooLong = "too_long",
    /// Received: the ICRC is wrong.
    BadIcrc = "bad_icrc",
    /// Received: a packet for QP0 or QP1 that does not carry exactly a MAD of 256 bytes.
    NotAMad = "not_a_mad",
    /// Received: the destination LID is not the port's.
    ForeignLid = "foreign_lid",
    /// Received: the lane does not fit the destination queue pair (IBA 3.5.5: VL15 is for QP0 and
    /// QP0 for VL15).
    WrongLane = "wrong_lane",
    /// Received: a transport or an operation that the device does not serve.
    UnsupportedOpcode = "unsupported_opcode",
    /// Received: no queue pair has the number, or none that takes packets from there.
    NoQp = "no_qp",
    /// Received: the queue pair is not ready to receive.
    QpNotReady = "qp_not_ready",
    /// Received: the global route names a GID that is not the receiver's.
    ForeignGid = "foreign_gid",
    /// Received: not by the path from the peer of the connected queue pair.
    ForeignPath = "foreign_path",
    /// Received: from a queue pair that is not the peer of the connected one.
    ForeignPeer = "foreign_peer",
    /// Forwarded: from a host that is not trusted, and the sender's LID is not behind that port.
    ForeignSlid = "foreign_slid",
    /// An SMP of a manager, from a host that is not trusted.
    ForeignSmp = "foreign_smp",
    /// Received, or at a port with partition enforcement: the P_Key does not match.
    BadPKey = "bad_pkey",
    /// Received: the Q_Key does not match.
    BadQKey = "bad_qkey",
    /// Received: no receive was posted.
    NoReceive = "no_receive",
    /// Received: the receive was too short or not in accessible memory. Its completion tells so.
    ReceiveFailed = "receive_failed",
    /// Received: the function is held, and its queue is full.
    Held = "held",
    /// Received: the completion queue had no room, and has failed.
    NoCompletion = "no_completion",
    /// Received: a multicast packet without a global route.
    MulticastWithoutGrh = "multicast_without_grh",
    /// Received: no queue pair is attached to the group.
    NotAttached = "not_attached",
    /// An SMP whose directed route leads nowhere.
    BadRoute = "bad_route",
    /// An SMP with a wrong M_Key.
    BadMKey = "bad_mkey",
    /// Forwarded: the tables have no entry for the LID, or one that leads back.
    NoRoute = "no_route",
    /// Forwarded: the group has no port but the one by which the packet came.
    NoMembers = "no_members",
    /// Forwarded: a raw packet at a port that filters those.
    RawFiltered = "raw_filtered",
    /// Forwarded: the packet has passed more switches than any path has.
    Looping = "looping",
    /// Sent: nothing is plugged into the port.
    NoLink = "no_link",
    /// Forwarded: the packet was at the head of its queue for HOQLife, or came to a lane stalled by such packets.
    HeadOfQueue = "head_of_queue",
    /// Sent: the link takes no more.
    LinkFull = "link_full",
    /// The link went down while the packet was on it.
    LinkDown = "link_down",
    /// A fault that the link was given took the packet.
    LinkFault = "link_fault",
}

/// How often something was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Packets.
    pub packets: u64,
    /// When the last of them was dropped.
    pub last: Instant,
}

/// Packets dropped at a node, by port, function and reason. There are at most as many counters as
/// these have combinations, whatever the fabric or a guest sends.
///
/// A packet counts for the function that sent it, or, if a check of the receiver drops it, for the
/// function that it was for. What can be assigned to neither counts for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounters(BTreeMap<(PortNum, Option<FunctionId>, DropReason), Dropped>);

impl DropCounters {
    /// Packets dropped for a reason at any port.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        let of_reason = self.0.iter().filter(|((_, _, of), _)| *of == reason);
        of_reason.map(|(_, dropped)| dropped.packets).sum()
    }

    /// What was dropped of or for a function at a port for a reason, if anything was.
    #[must_use]
    pub fn of(&self, port: PortNum, function: FunctionId, reason: DropReason) -> Option<Dropped> {
        self.0.get(&(port, Some(function), reason)).copied()
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().map(|dropped| dropped.packets).sum()
    }

    /// All counters that are not zero, in order.
    pub fn iter(
        &self,
    ) -> impl Iterator<Item = (PortNum, Option<FunctionId>, DropReason, Dropped)> + '_ {
        let rows = self.0.iter();
        rows.map(|(&(port, function, reason), &dropped)| (port, function, reason, dropped))
    }

    pub(crate) fn count(
        &mut self,
        now: Instant,
        port: PortNum,
        function: Option<FunctionId>,
        reason: DropReason,
    ) {
        let none = Dropped {
            packets: 0,
            last: now,
        };
        let dropped = self.0.entry((port, function, reason)).or_insert(none);
        dropped.packets += 1;
        dropped.last = now;
    }
}
