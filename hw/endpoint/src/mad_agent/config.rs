//! The limits and times of a MAD agent.

use ib_vtime::Duration;
use ib_wire::Qpn;
use ib_wire::rmpp::RmppHeader;

/// The limits and times of a [`crate::MadAgent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadAgentConfig {
    /// QP0 or QP1: decides which classes may pass.
    pub qpn: Qpn,
    /// Seeds the first transaction ids. Peers can compute it from them, so nothing secret may follow from it.
    pub seed: u64,
    /// Requests and responses under RMPP that may be under way at once.
    pub max_outstanding: usize,
    /// Received requests that wait to be pulled; more are dropped and counted.
    pub max_pending_requests: usize,
    /// Acknowledgements and refusals that wait to be sent; more are dropped and counted.
    pub max_pending_control: usize,
    /// The multi-packet protocol.
    pub rmpp: RmppConfig,
}

impl MadAgentConfig {
    /// An agent on QP1.
    #[must_use]
    pub fn gsi(seed: u64) -> Self {
        Self {
            qpn: Qpn::GSI,
            seed,
            max_outstanding: 4096,
            max_pending_requests: 4096,
            max_pending_control: 1024,
            rmpp: RmppConfig::default(),
        }
    }

    /// An agent on QP0.
    #[must_use]
    pub fn smi(seed: u64) -> Self {
        Self {
            qpn: Qpn::SMI,
            ..Self::gsi(seed)
        }
    }
}

/// The limits and times of RMPP transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmppConfig {
    /// Segments that a sender may send ahead of our acknowledgement, after the first.
    pub window: u32,
    /// How long to wait for an ACK before going back. A peer that states a longer response time in
    /// its RRespTime gets that long, within the receive timeout.
    pub ack_timeout: Duration,
    /// How often a response's sender goes back without progress.
    pub resends: u8,
    /// How long a receiver waits for the next segment in order.
    pub receive_timeout: Duration,
    /// How long a finished transfer is remembered, so that a lost last ACK can be repeated.
    pub retention: Duration,
    /// Bytes of data that one message may have.
    pub max_message: usize,
    /// Bytes of unfinished messages held in all.
    pub max_buffered: usize,
    /// Unfinished messages that peers began of their own accord.
    pub max_unsolicited: usize,
    /// Finished transfers remembered; the oldest give way.
    pub max_retained: usize,
    /// RRespTime in outgoing headers; [`RmppHeader::NO_RESP_TIME`] for "none given".
    pub resp_time: u8,
}

impl Default for RmppConfig {
    /// The times and the window of the Linux kernel (`mad_rmpp.c`): 2 s, 40 s, 10 s and 64 segments.
    fn default() -> Self {
        Self {
            window: 64,
            ack_timeout: Duration::from_secs(2),
            resends: 5,
            receive_timeout: Duration::from_secs(40),
            retention: Duration::from_secs(10),
            max_message: 4 << 20,
            max_buffered: 16 << 20,
            max_unsolicited: 64,
            max_retained: 1024,
            resp_time: RmppHeader::NO_RESP_TIME,
        }
    }
}

/// How long to wait for an answer, and how often to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The time from a transmission to the next one, or to giving up.
    pub timeout: Duration,
    /// Transmissions after the first.
    pub retries: u8,
}

impl RetryPolicy {
    /// One transmission and so many retries, `timeout` apart.
    #[must_use]
    pub const fn new(timeout: Duration, retries: u8) -> Self {
        Self { timeout, retries }
    }
}
