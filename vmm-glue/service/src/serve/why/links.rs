//! Faults of links that are up: links that go down again and again, and links below what both their ends support.

use std::collections::{BTreeMap, VecDeque};

use emulated_hca::LinkConfig;
use ib_vtime::{Duration, Instant};

use super::Fault;
use super::hampered::RECENT;
use crate::serve::Lab;
use crate::shell::quoted;
use crate::show::{Shortfall, shortfall};
use vhca::world::HostPortId;

/// Times that a link goes down within a minute at least to be flapping: more than an administrator takes it down by hand.
const FLAPPING: u64 = 10;

/// Span of time whose losses of a link are kept as one number, so that a minute takes few entries.
const GRAIN: Duration = Duration::from_secs(1);

/// Losses of the links of PFs' ports within the last minute.
#[derive(Debug, Default)]
pub(super) struct Flaps(BTreeMap<HostPortId, Losses>);

/// Losses of a link.
#[derive(Debug, Default)]
struct Losses {
    /// LinkDownedCounter when it was last looked at.
    counted: u64,
    /// Losses by the time of the first of each [`GRAIN`], the oldest first: at most one entry a second.
    recent: VecDeque<(Instant, u64)>,
}

impl Flaps {
    /// Takes a port's LinkDownedCounter, which programs may have reset.
    pub(super) fn note(&mut self, at: HostPortId, now: Instant, counted: u64) {
        let losses = self.0.entry(at).or_default();
        let before = core::mem::replace(&mut losses.counted, counted);
        let grown = counted.checked_sub(before).unwrap_or(counted);
        if grown == 0 {
            return;
        }
        while let Some((when, _)) = losses.recent.front()
            && !is_recent(*when, now)
        {
            losses.recent.pop_front();
        }
        match losses.recent.back_mut() {
            Some((when, lost)) if now.saturating_duration_since(*when) < GRAIN => *lost += grown,
            _ => losses.recent.push_back((now, grown)),
        }
    }

    /// Returns how often the link of a port went down within the last minute.
    fn recent(&self, at: HostPortId, now: Instant) -> u64 {
        let recent = self.0.get(&at).map(|losses| losses.recent.iter());
        let recent = recent.into_iter().flatten();
        let lately = recent.filter(|(when, _)| is_recent(*when, now));
        lately.map(|(_, lost)| lost).sum()
    }
}

fn is_recent(when: Instant, now: Instant) -> bool {
    now.saturating_duration_since(when) < RECENT
}

impl Lab {
    /// Returns the fault of a port whose link goes down again and again, whether it is up at the moment or not.
    pub(super) fn why_flapping(&self, of: HostPortId) -> Option<Fault> {
        const SUMMARY: &str = "the physical link goes down again and again";
        let times = self.history.flaps.recent(of, self.world().now());
        if times < FLAPPING {
            return None;
        }
        let at = self.endpoint(of);
        let fault = match self.link_fault(at) {
            Some(down) => down.called("link_flapping", SUMMARY),
            None => Fault::new("link_flapping", SUMMARY).next(
                "stop what takes the link down and up (vhca set link, ibportstate), then wait a minute",
            ),
        };
        Some(fault.seen(format!(
            "the link of {} went down {times} times in the last minute",
            self.port_name(at)
        )))
    }

    /// Returns the fault of a port whose link is narrower or slower than both its ends support.
    pub(super) fn why_below_support(&self, of: HostPortId) -> Option<Fault> {
        let at = self.endpoint(of);
        let Shortfall { lanes, kbps } = shortfall(self.fabric(), at)?;
        let (code, than) = match (lanes, kbps) {
            (Some(_), Some(_)) => ("link_narrow", "narrower and slower"),
            (Some(_), None) => ("link_narrow", "narrower"),
            (None, Some(_)) => ("link_slow", "slower"),
            (None, None) => return None,
        };
        let name = self.port_name(at);
        let mut fault = Fault::new(
            code,
            format!("the link is {than} than both its ends support"),
        );
        if let Some([has, could]) = lanes {
            fault = fault.seen(format!(
                "the link of {name} has {has}X, both ends support {could}X"
            ));
        }
        if let Some([has, could]) = kbps {
            let [has, could] = [has, could].map(|kbps| f64::from(kbps) / 1e6);
            fault = fault.seen(format!(
                "the link of {name} has {has:?} Gbps a lane, both ends support {could:?} Gbps"
            ));
        }
        let fabric = self.fabric();
        let link = fabric.link_at(at)?;
        let cable = fabric.link_config(link)?;
        let is_worse = self.sound_cables.get(&link).is_some_and(|sound| {
            let rates = |of: &LinkConfig| (of.widths, of.speeds, of.extended_speeds);
            rates(sound) != rates(&cable)
        });
        Some(if is_worse {
            fault.next(format!("vhca clear link {}", quoted(&name)))
        } else {
            let query = self.port_command(at, "query");
            fault.next(query).remark(
                "says which widths and speeds are enabled; ibportstate changes them, and the topology has the cable",
            )
        })
    }
}
