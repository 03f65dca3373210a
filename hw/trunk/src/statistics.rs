//! Counters of a session.

use ib_vtime::Duration;

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets that left, also in runs.
    pub sent_packets: u64,
    /// Bytes of them, from LRH to ICRC.
    pub sent_bytes: u64,
    /// Packets that came, also in runs.
    pub received_packets: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Packets on VL15 that were discarded, either way.
    pub discarded: u64,
    /// Time from the latest ping to its pong.
    pub round_trip: Option<Duration>,
}
