//! What happened to the VFs' ports that their state no longer shows.

use std::collections::{BTreeMap, VecDeque};

use ib_vtime::{Duration, Instant};
use pf_context::context::PfEvent;
use pf_context::guids::WishRefusal;

use vhca::world::{HostId, HostPortId};
use vhca_diagnosis::RECENT;

/// When each port came to be as it is, what was refused, and losses of links.
#[derive(Debug, Default)]
pub(in crate::serve) struct History {
    since: BTreeMap<HostPortId, Instant>,
    refusals: BTreeMap<HostPortId, WishRefusal>,
    flaps: Flaps,
}

impl History {
    /// Takes note of what a PF told.
    pub(in crate::serve) fn note(&mut self, host: HostId, when: Instant, event: &PfEvent) {
        match event {
            PfEvent::VfPort { port, vf, .. } => {
                self.since.insert(host.vf(*vf).port(port.0), when);
            }
            PfEvent::WishRefused { port, vf, refusal } => {
                self.refusals.insert(host.vf(*vf).port(port.0), *refusal);
            }
            PfEvent::Own { .. } | PfEvent::Dropped { .. } | PfEvent::Unreadable { .. } => {}
        }
    }

    /// Takes the LinkDownedCounter of a PF's port.
    pub(in crate::serve) fn note_losses(&mut self, at: HostPortId, now: Instant, counted: u64) {
        self.flaps.note(at, now, counted);
    }

    /// Returns how often the link of a PF's port went down within the last minute.
    pub(in crate::serve) fn losses(&self, at: HostPortId, now: Instant) -> u64 {
        self.flaps.recent(at, now)
    }

    /// How long a port has been as it is.
    pub(in crate::serve) fn since(&self, at: HostPortId, now: Instant) -> Option<Duration> {
        let since = self.since.get(&at)?;
        Some(now.saturating_duration_since(*since))
    }

    /// Why the GUID that was wanted last can never be the VF's.
    pub(in crate::serve) fn refusal(&self, at: HostPortId) -> Option<WishRefusal> {
        self.refusals.get(&at).copied()
    }

    pub(in crate::serve) fn forget_refusal(&mut self, at: HostPortId) {
        self.refusals.remove(&at);
    }
}

/// Span of time whose losses of a link are kept as one number, so that a minute takes few entries.
const GRAIN: Duration = Duration::from_secs(1);

/// Losses of the links of PFs' ports within the last minute.
#[derive(Debug, Default)]
struct Flaps(BTreeMap<HostPortId, Losses>);

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
    fn note(&mut self, at: HostPortId, now: Instant, counted: u64) {
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
