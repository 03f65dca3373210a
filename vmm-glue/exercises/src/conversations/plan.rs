//! What the users of a conversation intend.

use std::time::Duration;

use ib_wire::cm::{CmPath, CmReq, RejReason};
use ib_wire::{PKey, Psn, Qpn, ServiceId};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::NodeAddress;

/// The services that every node listens to: this one, in its upper half.
pub(super) const SERVED: u64 = 0x0100_0000_0000_0000;
/// The mask of the listeners.
pub(super) const SERVED_MASK: u64 = 0xffff_ffff_0000_0000;
/// Services that nobody listens to.
const UNSERVED: u64 = 0x0200_0000_0000_0000;
/// Services of peer-to-peer connections.
const PEERS: u64 = 0x0300_0000_0000_0000;

/// What a user says to a REQ, a REP, a LAP or a SIDR_REQ, and when.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Whether it agrees.
    pub accept: bool,
    /// An MRA first: after what time, and with what timeout code.
    pub mra: Option<(Duration, u8)>,
    /// The time until the answer, from the MRA if there is one.
    pub delay: Duration,
}

/// Who ends an established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goodbye {
    /// The side that sent the REQ, by a DREQ.
    Active,
    /// The other one.
    Passive,
    /// Both at once.
    Both,
    /// The side that sent the REQ destroys the connection and hears no more of it.
    Destroy,
}

/// The form of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A REQ to a listener.
    ClientServer,
    /// REQs that may cross.
    PeerToPeer,
    /// A REQ to a service that nobody serves.
    NoListener,
    /// A SIDR_REQ.
    Sidr,
}

/// What the two users of a conversation do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its form.
    pub kind: Kind,
    /// The nodes: the one that starts, and the other one.
    pub nodes: [usize; 2],
    /// When either side starts; the second counts for peer-to-peer only.
    pub start: [Duration; 2],
    /// The other side's reply to the REQ or SIDR_REQ.
    pub to_request: Reply,
    /// The starting side's reply to the REP.
    pub to_rep: Reply,
    /// When the starting side loses patience and destroys the connection unless it is
    /// established.
    pub patience: Option<Duration>,
    /// Whether the passive side's QP reports the first packet instead of waiting for the RTU.
    pub early_packet: bool,
    /// Alternate paths that the active side asks for, and the replies.
    pub laps: Vec<(Duration, Reply)>,
    /// Who ends the connection.
    pub goodbye: Goodbye,
    /// How long after it was established.
    pub lifetime: Duration,
    /// The time until a DREQ is answered.
    pub drep_delay: Duration,
    /// Timeout codes: remote and local CM response timeout.
    pub response_timeouts: [u8; 2],
    /// Max CM retries.
    pub retries: u8,
}

/// The path's local ACK timeout code: 4.096 µs × 2^11 is 8.4 ms, and covers the way there and back
/// of a channel with delays up to 4 ms.
pub(super) const ACK_TIMEOUT: u8 = 11;

fn millis(dice: &mut ChaCha8Rng, max: u64) -> Duration {
    Duration::from_micros(dice.random_range(0..=max * 1000))
}

impl Reply {
    fn roll(dice: &mut ChaCha8Rng, acceptance: f64) -> Self {
        let mra = dice
            .random_bool(0.25)
            .then(|| (millis(dice, 10), dice.random_range(11..=15)));
        Self {
            accept: dice.random_bool(acceptance),
            mra,
            delay: millis(dice, if mra.is_some() { 80 } else { 30 }),
        }
    }
}

impl Plan {
    /// A random plan between two of `nodes` nodes, starting within `span`.
    #[must_use]
    pub fn roll(dice: &mut ChaCha8Rng, nodes: usize, span: Duration) -> Self {
        let kind = match dice.random_range(0..20) {
            0..=11 => Kind::ClientServer,
            12..=15 => Kind::PeerToPeer,
            16 => Kind::NoListener,
            _ => Kind::Sidr,
        };
        let first = dice.random_range(0..nodes);
        let step = dice.random_range(1..nodes);
        let start = Duration::from_nanos(
            dice.random_range(0..=u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        );
        let laps = (0..dice.random_range(0..3))
            .map(|_| (millis(dice, 60), Reply::roll(dice, 0.7)))
            .collect();
        Self {
            kind,
            nodes: [first, (first + step) % nodes],
            start: [start, start + millis(dice, 6)],
            to_request: Reply::roll(dice, 0.8),
            to_rep: Reply::roll(dice, 0.9),
            patience: dice.random_bool(0.15).then(|| millis(dice, 60)),
            early_packet: dice.random_bool(0.2),
            laps,
            goodbye: match dice.random_range(0..8) {
                0..=2 => Goodbye::Active,
                3..=5 => Goodbye::Passive,
                6 => Goodbye::Both,
                _ => Goodbye::Destroy,
            },
            lifetime: millis(dice, 150),
            drep_delay: millis(dice, 20),
            response_timeouts: [dice.random_range(10..=13), dice.random_range(10..=13)],
            retries: dice.random_range(0..=15),
        }
    }

    /// The same plan of users who never give up: sixteen tries that each outlast a round trip and
    /// the other user's thinking by far.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.patience = None;
        self.response_timeouts = [15, 15];
        self.retries = 15;
        if self.kind == Kind::Sidr {
            // An answer that comes after the next try is lost on its own, not once per try.
            self.to_request.delay = self.to_request.delay.min(Duration::from_millis(4));
        }
        self
    }

    pub(super) fn service_id(&self, number: usize) -> ServiceId {
        let number = u64::try_from(number).unwrap_or(0) & !SERVED_MASK;
        ServiceId::new(match self.kind {
            Kind::ClientServer | Kind::Sidr => SERVED | number,
            Kind::PeerToPeer => PEERS | number,
            Kind::NoListener => UNSERVED | number,
        })
    }

    /// The REQ of one side (0 starts). The conversation's number stands in its private data.
    pub(super) fn req(&self, number: usize, side: usize, nodes: &[NodeAddress]) -> CmReq {
        let own = &nodes[self.nodes[side]];
        let other = &nodes[self.nodes[1 - side]];
        let mut primary = CmPath {
            local_lid: own.lid,
            remote_lid: other.lid,
            local_gid: own.gid,
            remote_gid: other.gid,
            ..CmPath::default()
        };
        primary.set_subnet_local(true);
        primary.set_local_ack_timeout(ACK_TIMEOUT);
        let mut req = CmReq {
            service_id: self.service_id(number),
            local_qpn: qpn(number, side),
            starting_psn: Psn::from_low_bits(7),
            pkey: PKey::DEFAULT_FULL,
            primary,
            ..CmReq::default()
        };
        req.set_remote_cm_response_timeout(self.response_timeouts[0]);
        req.set_local_cm_response_timeout(self.response_timeouts[1]);
        req.set_max_cm_retries(self.retries);
        write_number(&mut req.private_data, number);
        req
    }
}

/// The QP of one side: no two connections share one.
pub(super) fn qpn(number: usize, side: usize) -> Qpn {
    Qpn::from_low_bits(u32::try_from(number * 2 + side + 2).unwrap_or(0))
}

/// The reason that users give when they refuse.
pub(super) const REFUSAL: RejReason = RejReason::CONSUMER;

pub(super) fn write_number(private_data: &mut [u8], number: usize) {
    let number = u64::try_from(number).unwrap_or(u64::MAX).to_be_bytes();
    private_data[..8].copy_from_slice(&number);
}

/// The conversation's number, from private data.
pub(super) fn read_number(private_data: &[u8]) -> Option<usize> {
    let number = private_data.first_chunk::<8>()?;
    usize::try_from(u64::from_be_bytes(*number)).ok()
}
