//! Samples: what counters count between two moments (IBA 16.1.3.2 PortSamplesControl, 16.1.3.4 PortSamplesResult).
//!
//! As on Linux' `qib`, five counters at a time, each of which can be any of the five that every port has; a Set while a
//! sample is about to start or runs changes nothing.

use core::time::Duration;

use ib_vtime::Instant;
use ib_wire::PortNum;
use ib_wire::mad::MadStatus;
use ib_wire::perf::{PortSamplesControl, PortSamplesResult};
use ib_wire::smp::LinkSpeed;
use zerocopy::network_endian::U16;

use super::PortCounters;
use crate::{Node, NodeKind, PhysicalPort};

/// Counters of a sample.
const COUNTERS: usize = 5;

/// CounterMask0 to CounterMask4: each of these counters can count each of the five mandatory ones.
const MASK: u8 = 1;

/// PortSamplesControl:CounterWidth: 32 bits.
const WIDTH: u8 = 4;

/// SampleStatus.
const DONE: u8 = 0;
const STARTED: u8 = 1;
const RUNNING: u8 = 2;

/// A tick: 250 million a second, as on `qib` at every speed.
pub(crate) const TICK: Duration = Duration::from_nanos(4);

/// A sample: the last one, or the one under way.
#[derive(Clone, Debug)]
struct Sample {
    /// The end port whose agent it belongs to.
    agent: PortNum,
    /// The port that is sampled.
    port: PortNum,
    start: u32,
    interval: u32,
    tag: U16,
    select: [U16; COUNTERS],
    status: u8,
    /// When the status changes next, while it is not done.
    due: Instant,
    /// The counters when the sample began; of a done one what they counted.
    counted: PortCounters,
}

impl Sample {
    fn new(agent: PortNum) -> Self {
        Self {
            agent,
            port: agent,
            start: 0,
            interval: 0,
            tag: U16::ZERO,
            select: [U16::ZERO; COUNTERS],
            status: DONE,
            due: Instant::ZERO,
            counted: PortCounters::default(),
        }
    }

    /// Moves on to what is due, with the port's counters as they are.
    fn advance(&mut self, now: Instant, counters: &PortCounters) {
        if self.status == STARTED && self.due <= now {
            self.status = RUNNING;
            self.counted = *counters;
            self.due += TICK * self.interval;
        }
        if self.status == RUNNING && self.due <= now {
            self.status = DONE;
            self.counted = counters.since(&self.counted);
        }
    }

    fn result(&self, counters: &PortCounters) -> PortSamplesResult {
        let counted = match self.status {
            DONE => self.counted,
            RUNNING => counters.since(&self.counted),
            _ => PortCounters::default(),
        };
        let mut result = PortSamplesResult {
            tag: self.tag,
            ..PortSamplesResult::default()
        };
        result.set_sample_status(self.status);
        for (shown, select) in result.counters.iter_mut().zip(self.select) {
            let value = match select.get() {
                1 => counted.xmit_data,
                2 => counted.rcv_data,
                3 => counted.xmit_packets,
                4 => counted.rcv_packets,
                5 => counted.xmit_wait,
                _ => 0,
            };
            shown.set(u32::try_from(value).unwrap_or(u32::MAX));
        }
        result
    }
}

/// The samples of a node: one for each port of a channel adapter, one for all ports of a switch. Before the first there is
/// none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    agents: Vec<Sample>,
    /// A sample was begun since the node's timer was last set.
    pub(crate) fresh: bool,
}

impl Samples {
    /// When the next sample begins or ends.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let under_way = self.agents.iter().filter(|sample| sample.status != DONE);
        under_way.map(|sample| sample.due).min()
    }

    fn of(&mut self, agent: PortNum) -> &mut Sample {
        let known = self.agents.iter().position(|sample| sample.agent == agent);
        let at = known.unwrap_or_else(|| {
            self.agents.push(Sample::new(agent));
            self.agents.len() - 1
        });
        &mut self.agents[at]
    }
}

impl Node {
    /// Begins and ends the samples whose time has come.
    pub(crate) fn advance_samples(&mut self) {
        if self.samples.agents.is_empty() {
            return;
        }
        let now = self.now();
        let mut samples = core::mem::take(&mut self.samples);
        for sample in &mut samples.agents {
            if let Some(port) = self.port(sample.port) {
                sample.advance(now, &port.counters);
            }
        }
        self.samples = samples;
    }
}

/// PortSamplesControl, of an agent's own port; of a switch, of any.
pub(super) fn control(
    node: &mut Node,
    agent: PortNum,
    set: bool,
    data: &mut PortSamplesControl,
) -> Result<(), MadStatus> {
    node.advance_samples();
    let now = node.now();
    if node.kind() == NodeKind::ChannelAdapter && data.port_select != agent {
        return Err(MadStatus::INVALID_FIELD);
    }
    let port = node
        .port(data.port_select)
        .ok_or(MadStatus::INVALID_FIELD)?;
    let (counters, tick) = (port.counters, tick(port));
    let samples = &mut node.samples;
    let sample = samples.of(agent);
    if set && sample.status == DONE {
        sample.port = data.port_select;
        sample.start = data.sample_start.get();
        sample.interval = data.sample_interval.get();
        sample.tag = data.tag;
        sample
            .select
            .copy_from_slice(&data.counter_select[..COUNTERS]);
        sample.status = STARTED;
        sample.due = now + TICK * sample.start;
        sample.advance(now, &counters);
        samples.fresh = true;
    }
    let sample = samples.of(agent);
    let mut shown = PortSamplesControl {
        port_select: data.port_select,
        tick,
        sample_start: sample.start.into(),
        sample_interval: sample.interval.into(),
        tag: sample.tag,
        ..PortSamplesControl::default()
    };
    shown.counter_select[..COUNTERS].copy_from_slice(&sample.select);
    shown.set_counter_width(WIDTH);
    shown.set_counter_mask0(MASK);
    shown.set_counter_masks1_to_9((1..COUNTERS).fold(0, |masks, counter| {
        masks | u32::from(MASK) << (3 * (9 - counter))
    }));
    shown.set_sample_status(sample.status);
    *data = shown;
    Ok(())
}

/// PortSamplesResult of the agent's sample: the attribute names no port.
pub(super) fn result(node: &mut Node, agent: PortNum) -> Result<PortSamplesResult, MadStatus> {
    node.advance_samples();
    let sampled = node.samples.of(agent).port;
    let counters = node.port(sampled).ok_or(MadStatus::INVALID_FIELD)?.counters;
    Ok(node.samples.of(agent).result(&counters))
}

/// PortSamplesControl:Tick: how many times the time of ten bits on a lane a tick lasts, less one.
const fn tick(port: &PhysicalPort) -> u8 {
    match port.speed_active {
        LinkSpeed::QDR => 3,
        LinkSpeed::DDR => 1,
        _ => 0,
    }
}
