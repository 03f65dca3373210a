//! Counters of connections.

/// Payload that connections carried, and how often they sent it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Bytes of payload sent, those sent again included.
    pub sent_bytes: u64,
    /// Bytes of payload received, duplicates included.
    pub received_bytes: u64,
    /// Times that the requester went back and sent packets again, by cause of a timeout, a NAK or a lost response.
    pub retransmissions: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
}

impl ConnectionCounters {
    /// Adds others.
    pub const fn add(&mut self, other: &Self) {
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.retransmissions += other.retransmissions;
        self.rnr_naks += other.rnr_naks;
    }
}
