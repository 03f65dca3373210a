//! Faults of a link, planned and seeded.

use core::time::Duration;

use ib_vtime::SplitMix64;
use ib_wire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ib_wire::packet::{Body, Packet};
use ib_wire::{Lid, Qpn, Vl};
use zerocopy::FromBytes;

use crate::Frame;

/// What goes wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is lost.
    Drop,
    /// It takes that much longer; packets sent after it may overtake it.
    Delay(Duration),
    /// It arrives twice.
    Duplicate,
    /// The next `behind` packets overtake it. If they do not come within `at_latest`, it goes on.
    Reorder {
        /// Packets that overtake it.
        behind: u32,
        /// Longest time it is held.
        at_latest: Duration,
    },
    /// That many random bits flip on the wire: the receiver's VCRC check fails, and it counts a
    /// receive error.
    CorruptOnWire {
        /// Flipped bits, at least 1.
        bits: u32,
    },
    /// That many random bits behind the LRH flip, and the VCRC is made right again, as inside a
    /// faulty switch: the destination's ICRC check fails.
    CorruptInside {
        /// Flipped bits, at least 1.
        bits: u32,
    },
    /// Nothing gets through: the two sides are cut off from each other though the link is up.
    Partition,
}

/// When a rule strikes, counted in packets that match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Every time.
    Always,
    /// With a probability in parts per million.
    PerMillion(u32),
    /// Only the packet with this number, counted from 1.
    Nth(u64),
    /// The first so many packets.
    First(u64),
    /// Every so-manyth packet; 0 is never.
    Every(u64),
}

/// Which packets a rule is about: those that have every value given here. A rule that names a
/// MAD's field matches MADs only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// Virtual lane.
    pub vl: Option<Vl>,
    /// Destination LID.
    pub dlid: Option<Lid>,
    /// Destination QP.
    pub dest_qpn: Option<Qpn>,
    /// Management class.
    pub class: Option<MgmtClass>,
    /// Method.
    pub method: Option<Method>,
    /// Attribute.
    pub attribute: Option<AttributeId>,
}

impl PacketFilter {
    /// Whether a frame has all that is asked for. Bytes that are no packet match only a filter that
    /// asks for nothing.
    #[must_use]
    pub fn matches(&self, frame: &Frame) -> bool {
        if *self == Self::default() {
            return true;
        }
        let Some(lrh) = frame.lrh() else {
            return false;
        };
        let wants = |wanted: Option<_>, value| wanted.is_none_or(|w| w == value);
        wants(self.vl.map(Vl::get), lrh.vl().get())
            && self.dlid.is_none_or(|dlid| dlid == lrh.dlid)
            && self.matches_transport(frame)
    }

    fn matches_transport(&self, frame: &Frame) -> bool {
        let asks_mad = self.class.is_some() || self.method.is_some() || self.attribute.is_some();
        if !asks_mad && self.dest_qpn.is_none() {
            return true;
        }
        let Ok(packet) = Packet::parse(frame.bytes()) else {
            return false;
        };
        let Body::Transport(transport) = packet.body else {
            return false;
        };
        if self.dest_qpn.is_some_and(|q| q != transport.bth.dest_qp) {
            return false;
        }
        if !asks_mad {
            return true;
        }
        if !matches!(transport.bth.dest_qp, Qpn::SMI | Qpn::GSI) {
            return false;
        }
        MadHeader::ref_from_prefix(transport.payload).is_ok_and(|(mad, _)| {
            self.class.is_none_or(|class| class == mad.mgmt_class)
                && self.method.is_none_or(|method| method == mad.method)
                && self.attribute.is_none_or(|id| id == mad.attribute_id)
        })
    }
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// With which packets.
    pub filter: PacketFilter,
    /// How often.
    pub when: When,
    /// What.
    pub fault: Fault,
}

/// What goes wrong in one direction of a link.
///
/// Rules are asked in order and the first that strikes decides; a rule counts every packet that
/// matches it and was not taken by an earlier one. The same seed and the same packets give the same faults.
///
/// ```
/// use ib_fabric::{Fault, FaultPlan, PacketFilter, When};
/// use ib_wire::mad::MgmtClass;
///
/// let sa = PacketFilter { class: Some(MgmtClass::SUBN_ADM), ..PacketFilter::default() };
/// let plan = FaultPlan::new(7)
///     .rule(sa, When::Nth(3), Fault::Drop)
///     .rule(PacketFilter::default(), When::PerMillion(20_000), Fault::Duplicate)
///     .rule(PacketFilter::default(), When::Every(100), Fault::CorruptOnWire { bits: 1 });
/// assert_eq!(plan.rules().len(), 3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    seed: u64,
    rules: Vec<FaultRule>,
}

impl FaultPlan {
    /// A plan in which nothing goes wrong yet.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            rules: Vec::new(),
        }
    }

    /// A plan that lets nothing through.
    #[must_use]
    pub fn partition() -> Self {
        Self::new(0).rule(PacketFilter::default(), When::Always, Fault::Partition)
    }

    /// Adds a rule behind those that are there.
    #[must_use]
    pub fn rule(mut self, filter: PacketFilter, when: When, fault: Fault) -> Self {
        self.rules.push(FaultRule {
            filter,
            when,
            fault,
        });
        self
    }

    /// The rules, in the order in which they are asked.
    #[must_use]
    pub fn rules(&self) -> &[FaultRule] {
        &self.rules
    }
}

/// Packets that a plan's faults have struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Lost.
    pub dropped: u64,
    /// Delayed.
    pub delayed: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// Damaged, of either kind.
    pub corrupted: u64,
    /// Cut off.
    pub partitioned: u64,
}

/// What becomes of a packet after a plan was asked.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It goes on.
    Pass,
    /// It goes on later.
    Late(Duration),
    /// It goes on twice.
    Twice,
    /// It waits for others.
    Hold { behind: u32, at_latest: Duration },
    /// It is lost.
    Lost,
}

/// A plan at work.
#[derive(Debug)]
pub(crate) struct FaultInjector {
    rules: Vec<(FaultRule, u64)>,
    rng: SplitMix64,
    counters: FaultCounters,
}

impl FaultInjector {
    pub(crate) fn new(plan: &FaultPlan) -> Self {
        Self {
            rules: plan.rules.iter().map(|rule| (*rule, 0)).collect(),
            rng: SplitMix64::new(plan.seed),
            counters: FaultCounters::default(),
        }
    }

    pub(crate) const fn counters(&self) -> FaultCounters {
        self.counters
    }

    /// Decides about a packet, and damages it if that is the decision.
    pub(crate) fn judge(&mut self, frame: &mut Frame) -> Verdict {
        let Some(fault) = self.striking_fault(frame) else {
            return Verdict::Pass;
        };
        let counters = &mut self.counters;
        match fault {
            Fault::Drop => {
                counters.dropped += 1;
                Verdict::Lost
            }
            Fault::Partition => {
                counters.partitioned += 1;
                Verdict::Lost
            }
            Fault::Delay(delay) => {
                counters.delayed += 1;
                Verdict::Late(delay)
            }
            Fault::Duplicate => {
                counters.duplicated += 1;
                Verdict::Twice
            }
            Fault::Reorder { behind, at_latest } => {
                counters.reordered += 1;
                Verdict::Hold { behind, at_latest }
            }
            Fault::CorruptOnWire { bits } => {
                counters.corrupted += 1;
                frame.damage(|bytes| flip_bits(bytes, bits, &mut self.rng));
                Verdict::Pass
            }
            Fault::CorruptInside { bits } => {
                counters.corrupted += 1;
                frame.damage_inside(|bytes| {
                    flip_bits(invariant_part(bytes), bits, &mut self.rng);
                });
                Verdict::Pass
            }
        }
    }

    fn striking_fault(&mut self, frame: &Frame) -> Option<Fault> {
        for (rule, seen) in &mut self.rules {
            if !rule.filter.matches(frame) {
                continue;
            }
            *seen += 1;
            let strikes = match rule.when {
                When::Always => true,
                When::PerMillion(parts) => self.rng.below(1_000_000) < u64::from(parts),
                When::Nth(n) => *seen == n,
                When::First(n) => *seen <= n,
                When::Every(n) => n != 0 && seen.is_multiple_of(n),
            };
            if strikes {
                return Some(rule.fault);
            }
        }
        None
    }
}

/// What the ICRC covers and no switch looks at: the transport headers and the payload, without
/// those fields of the BTH that may change on the way.
fn invariant_part(bytes: &mut [u8]) -> &mut [u8] {
    const UNTOUCHED: usize = 8 + 40 + 12;
    let end = bytes.len().saturating_sub(2);
    let start = UNTOUCHED.min(end.saturating_sub(1));
    &mut bytes[start..end]
}

/// Flips different bits, so that no flip undoes another.
fn flip_bits(bytes: &mut [u8], bits: u32, rng: &mut SplitMix64) {
    let all = bytes.len() * 8;
    let mut flipped: Vec<usize> = Vec::new();
    while flipped.len() < all.min(usize::try_from(bits.max(1)).unwrap_or(usize::MAX)) {
        let bit = usize::try_from(rng.below(all as u64)).unwrap_or(0);
        if !flipped.contains(&bit) {
            flipped.push(bit);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
