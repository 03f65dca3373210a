//! A link: two ports, a direction each way, and what can go wrong between them.

mod fault;
pub(crate) mod layer;

use core::time::Duration;

use ib_vtime::Instant;
use ib_wire::smp::{LinkSpeed, LinkSpeedExt, LinkWidth};
use ib_wire::{PortNum, Vl};

pub use fault::{Fault, FaultCounters, FaultPlan, FaultRule, PacketFilter, When};
pub(crate) use fault::{FaultInjector, Verdict};

use crate::fabric::NodeId;
use crate::{Frame, Lanes, PhysicalPort};

/// Places of VL15, for which no link waits (IBA 7.9).
const VL15_PLACES: u32 = 64;

/// Number of virtual lanes.
pub(crate) const LANES: usize = 16;

/// A port of a node of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The node.
    pub node: NodeId,
    /// Its port.
    pub port: PortNum,
}

/// Names a link of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(crate) u32);

/// Whether the cable of a link is plugged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It is; the link trains and comes up if both ports are enabled.
    Up,
    /// It is not.
    Down,
}

/// What a link is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Widths that the cable carries.
    pub widths: LinkWidth,
    /// Speeds that the cable carries.
    pub speeds: LinkSpeed,
    /// Extended speeds that the cable carries.
    pub extended_speeds: LinkSpeedExt,
    /// Time from the last bit sent to the same bit received.
    pub latency: Duration,
    /// Time from plugging in to link-up.
    pub training: Duration,
    /// Whether packets take the time that their bits need at the link's rate. If not, they take
    /// the latency only.
    pub timed: bool,
    /// Packets that each data lane of one direction holds at most, in the sender's buffer and on the wire. Beyond
    /// that a switch has packets wait, and a channel adapter waits.
    pub capacity: u32,
}

impl Default for LinkConfig {
    /// Any width and speed, no latency, 256 packets.
    fn default() -> Self {
        Self {
            widths: LinkWidth(0x1f),
            speeds: LinkSpeed::ALL_SUPPORTED,
            extended_speeds: LinkSpeedExt::from_low_bits(0xf),
            latency: Duration::ZERO,
            training: Duration::ZERO,
            timed: false,
            capacity: 256,
        }
    }
}

/// One way of a link, named by the side that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectionId {
    pub(crate) link: LinkId,
    pub(crate) side: u8,
}

/// One way of a link.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    /// Packets sent and not yet arrived or lost, by lane.
    in_flight: [u32; LANES],
    /// Lanes that hold as many packets as they have places, or more.
    full: Lanes,
    /// When the sender can put the next bit on the wire.
    pub(crate) free_at: Instant,
    pub(crate) faults: Option<Box<FaultInjector>>,
    /// Packets that wait to be overtaken.
    pub(crate) held: Vec<Held>,
    /// Until when the sender's PortXmitWait has counted.
    pub(crate) waited_until: Instant,
    /// Lanes on which the sender waits for a place.
    pub(crate) awaited: Lanes,
    /// Gateways at which runs of the sender wait for a place of a lane.
    pub(crate) waits: Vec<(NodeId, Vl)>,
}

impl Direction {
    /// Returns `true` if no packet has a place.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight == [0; LANES]
    }

    /// Returns the places that packets have.
    fn places(&self) -> u32 {
        self.in_flight.iter().sum()
    }

    /// Returns the lanes that have places.
    pub(crate) const fn open(&self) -> Lanes {
        self.full.others()
    }
}

/// A packet's place in one way of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) direction: DirectionId,
    pub(crate) lane: Vl,
}

/// A packet that waits for others to overtake it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) frame: Frame,
    pub(crate) lane: Vl,
    pub(crate) behind: u32,
    pub(crate) ticket: u64,
}

/// A link between two ports.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) ends: [Endpoint; 2],
    pub(crate) config: LinkConfig,
    pub(crate) cable: LinkState,
    /// Whether the physical link is up.
    pub(crate) up: bool,
    /// Counts the times the link went up or down; what was in flight before is lost.
    pub(crate) epoch: u32,
    /// Megabits per second at the active width and speed.
    pub(crate) rate: u64,
    pub(crate) directions: [Direction; 2],
}

impl Link {
    /// Returns `true` if a packet sent by a side would be at the other at once, like those before and behind it. Packets that wait
    /// in a gateway there keep `kept` places.
    pub(crate) fn is_at_rest(&self, side: usize, now: Instant, kept: u32) -> bool {
        let direction = &self.directions[side];
        let is_fast = !self.config.timed && self.config.latency.is_zero();
        self.up
            && is_fast
            && direction.faults.is_none()
            && direction.places() == kept
            && direction.free_at <= now
    }

    /// Takes a place for a packet that a side sends.
    pub(crate) fn take_place(&mut self, side: usize, lane: Vl) {
        self.change_places(side, lane, |places| places + 1);
    }

    /// Frees the place of a packet that a side sent. Returns `true` if the sender waits for it.
    pub(crate) fn free_place(&mut self, side: usize, lane: Vl) -> bool {
        self.change_places(side, lane, |places| places.saturating_sub(1));
        let direction = &mut self.directions[side];
        let is_awaited = direction.awaited.contains(lane) && !direction.full.contains(lane);
        if is_awaited {
            direction.awaited.set(lane, false);
        }
        is_awaited
    }

    /// Exchanges what the link is made from.
    pub(crate) fn set_config(&mut self, config: LinkConfig) {
        self.config = config;
        for side in [0, 1] {
            for lane in (0..=Vl::MANAGEMENT.get()).map(Vl::from_low_bits) {
                self.change_places(side, lane, |places| places);
            }
        }
    }

    fn change_places(&mut self, side: usize, lane: Vl, change: impl Fn(u32) -> u32) {
        let most = match lane {
            Vl::MANAGEMENT => VL15_PLACES,
            _ => self.config.capacity,
        };
        let direction = &mut self.directions[side];
        let places = &mut direction.in_flight[usize::from(lane.get())];
        *places = change(*places);
        direction.full.set(lane, *places >= most);
    }

    /// Time that a packet's bits take at the link's rate.
    pub(crate) fn wire_time(&self, bytes: usize) -> Duration {
        if !self.config.timed || self.rate == 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos((bytes as u64 * 8).saturating_mul(1000) / self.rate)
    }
}

/// A width, a speed, and an extended speed, if there is one.
pub(crate) type LinkRate = (LinkWidth, LinkSpeed, LinkSpeedExt);

/// The common width and speed of two ports and their cable: the fastest that all enable.
pub(crate) fn negotiate(
    a: &PhysicalPort,
    b: &PhysicalPort,
    cable: &LinkConfig,
) -> Option<LinkRate> {
    let widths = a.width_enabled.0 & b.width_enabled.0 & cable.widths.0;
    let width = widest(LinkWidth(widths))?;
    let speed = highest_bit(a.speed_enabled.get() & b.speed_enabled.get() & cable.speeds.get())?;
    let extended = highest_bit(
        a.extended_speed_enabled.get()
            & b.extended_speed_enabled.get()
            & cable.extended_speeds.get(),
    )
    .unwrap_or(0);
    Some((
        width,
        LinkSpeed::from_low_bits(speed),
        LinkSpeedExt::from_low_bits(extended),
    ))
}

/// The widest of some widths.
pub(crate) fn widest(widths: LinkWidth) -> Option<LinkWidth> {
    // 2x has the highest bit but is not the widest.
    [
        LinkWidth::X12,
        LinkWidth::X8,
        LinkWidth::X4,
        LinkWidth::X2,
        LinkWidth::X1,
    ]
    .into_iter()
    .find(|width| widths.0 & width.0 != 0)
}

/// The fastest of some speeds; the same if there is none.
pub(crate) const fn fastest(speeds: LinkSpeed) -> LinkSpeed {
    match highest_bit(speeds.get()) {
        Some(bit) => LinkSpeed::from_low_bits(bit),
        None => speeds,
    }
}

/// The fastest of some extended speeds; the same if there is none.
pub(crate) const fn fastest_extended(speeds: LinkSpeedExt) -> LinkSpeedExt {
    match highest_bit(speeds.get()) {
        Some(bit) => LinkSpeedExt::from_low_bits(bit),
        None => speeds,
    }
}

const fn highest_bit(bits: u8) -> Option<u8> {
    match bits.checked_ilog2() {
        Some(bit) => Some(1 << bit),
        None => None,
    }
}

/// Data rate in Mb/s: lanes times speed, less the line code's overhead.
pub(crate) const fn data_rate(width: LinkWidth, speed: LinkSpeed, extended: LinkSpeedExt) -> u64 {
    let lane = match extended {
        LinkSpeedExt::FDR => 13_636,
        LinkSpeedExt::EDR => 25_000,
        LinkSpeedExt::HDR => 50_000,
        LinkSpeedExt::NDR => 100_000,
        _ => match speed {
            LinkSpeed::QDR => 8_000,
            LinkSpeed::DDR => 4_000,
            _ => 2_000,
        },
    };
    match width.lanes() {
        Some(lanes) => lane * lanes as u64,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::Guid;

    use super::*;
    use crate::{HcaConfig, Node};

    fn port(change: impl FnOnce(&mut PhysicalPort)) -> PhysicalPort {
        let mut node = Node::channel_adapter(&HcaConfig::new(Guid::new(1), "host"));
        let port = node.port_mut(PortNum(1)).unwrap();
        change(port);
        port.clone()
    }

    #[test]
    fn a_link_takes_the_widest_and_fastest_that_both_ports_and_the_cable_have() {
        let all = LinkConfig::default();
        let fast = port(|_| {});
        assert_eq!(
            negotiate(&fast, &fast, &all),
            Some((LinkWidth::X4, LinkSpeed::QDR, LinkSpeedExt::FDR))
        );
        let narrow = port(|port| port.width_enabled = LinkWidth::X1);
        let slow = port(|port| {
            port.speed_enabled = LinkSpeed::SDR;
            port.extended_speed_enabled = LinkSpeedExt::NONE;
        });
        assert_eq!(
            negotiate(&narrow, &slow, &all),
            Some((LinkWidth::X1, LinkSpeed::SDR, LinkSpeedExt::NONE))
        );
        let copper = LinkConfig {
            extended_speeds: LinkSpeedExt::NONE,
            speeds: LinkSpeed::DDR,
            ..all
        };
        assert_eq!(
            negotiate(&fast, &fast, &copper),
            Some((LinkWidth::X4, LinkSpeed::DDR, LinkSpeedExt::NONE))
        );
    }

    #[test]
    fn ports_without_a_common_width_have_no_link() {
        let narrow = port(|port| port.width_enabled = LinkWidth::X1);
        let wide = port(|port| port.width_enabled = LinkWidth::X4);
        assert_eq!(negotiate(&narrow, &wide, &LinkConfig::default()), None);
    }

    #[test]
    fn data_rates_are_those_behind_the_line_code() {
        let none = LinkSpeedExt::NONE;
        assert_eq!(data_rate(LinkWidth::X1, LinkSpeed::SDR, none), 2_000);
        assert_eq!(data_rate(LinkWidth::X4, LinkSpeed::QDR, none), 32_000);
        assert_eq!(
            data_rate(LinkWidth::X4, LinkSpeed::QDR, LinkSpeedExt::FDR),
            54_544
        );
        assert_eq!(
            data_rate(LinkWidth::X12, LinkSpeed::QDR, LinkSpeedExt::EDR),
            300_000
        );
    }
}
