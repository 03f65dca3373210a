//! Why the device drops packets, counted.

/// Why a packet ended at this device without reaching a consumer. The sender of a datagram never
/// learns of it: its request completes with success, as on hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// Sent or received: the port, or the function's virtual port, is not active.
    PortNotActive,
    /// Sent: the P_Key index holds no valid key.
    NoPKey,
    /// Sent: the source GID index holds no GID.
    NoSourceGid,
    /// Sent: the destination LID is reserved, or permissive outside subnet management.
    BadDestinationLid,
    /// Sent: the service level maps to no data lane.
    NoDataLane,
    /// Sent through a tunnel: there is no queue pair at its other end, or it is disabled.
    NoTunnelPeer,
    /// Sent by the device's agents: the port's egress is full.
    EgressFull,
    /// Received: not an IBA transport packet, or malformed.
    Malformed,
    /// Received: the ICRC is wrong.
    BadIcrc,
    /// Received: a packet for QP0 or QP1 that does not carry exactly a MAD of 256 bytes.
    NotAMad,
    /// Received: the destination LID is not the port's.
    ForeignLid,
    /// Received: the lane does not fit the destination queue pair (IBA 3.5.5: VL15 is for QP0 and
    /// QP0 for VL15).
    WrongLane,
    /// Received: a transport or an operation that the device does not serve.
    UnsupportedOpcode,
    /// Received: no queue pair has the number, or none that takes packets from there.
    NoQp,
    /// Received: the queue pair is not ready to receive.
    QpNotReady,
    /// Received: the global route names a GID that is not the receiver's.
    ForeignGid,
    /// Received: the P_Key does not match.
    BadPKey,
    /// Received: the Q_Key does not match.
    BadQKey,
    /// Received: no receive was posted.
    NoReceive,
    /// Received: a multicast packet without a global route.
    MulticastWithoutGrh,
    /// Received: no queue pair is attached to the group.
    NotAttached,
}

impl DropReason {
    const COUNT: usize = Self::NotAttached as usize + 1;
}

/// How many packets were dropped for each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounters([u64; DropReason::COUNT]);

impl DropCounters {
    /// Packets dropped for a reason.
    #[must_use]
    pub const fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) const fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }
}
