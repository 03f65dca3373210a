//! What happened to the VFs' ports that their state no longer shows.

use std::collections::{BTreeMap, VecDeque};

use ib_vtime::{Duration, Instant};
use pf_context::context::PfEvent;
use pf_context::guids::WishRefusal;

use vhca::world::{HostId, HostPortId};
use vhca_diagnosis::{ERRORS_COUNT, RECENT};

/// When each port came to be as it is, what was refused, and losses of links.
#[derive(Debug, Default)]
pub(in crate::serve) struct History {
    since: BTreeMap<HostPortId, Instant>,
    refusals: BTreeMap<HostPortId, WishRefusal>,
    flaps: Counted,
    errors: Counted,
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
        self.flaps.note(at, now, counted, RECENT);
    }

    /// Returns how often the link of a PF's port went down within the last minute.
    pub(in crate::serve) fn losses(&self, at: HostPortId, now: Instant) -> u64 {
        self.flaps.within(at, now, RECENT)
    }

    /// Takes the errors that the ends of a PF's port's link have counted.
    pub(in crate::serve) fn note_errors(&mut self, at: HostPortId, now: Instant, counted: u64) {
        self.errors.note(at, now, counted, ERRORS_COUNT);
    }

    /// Returns how many errors the ends of the link of a PF's port counted within the last ten minutes.
    pub(in crate::serve) fn errors(&self, at: HostPortId, now: Instant) -> u64 {
        self.errors.within(at, now, ERRORS_COUNT)
    }

    /// Forgets the errors of the link of a PF's port, which was mended.
    pub(in crate::serve) fn forget_errors(&mut self, at: HostPortId) {
        if let Some(errors) = self.errors.0.get_mut(&at) {
            errors.recent.clear();
        }
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

/// Span of time whose growth of a counter is kept as one number, so that a minute takes few entries.
const GRAIN: Duration = Duration::from_secs(1);

/// Growth of a counter of PFs' ports within a window.
#[derive(Debug, Default)]
struct Counted(BTreeMap<HostPortId, Growth>);

/// Growth of a counter.
#[derive(Debug, Default)]
struct Growth {
    /// The counter when it was last looked at.
    counted: u64,
    /// Growth by the time of the first of each [`GRAIN`], the oldest first: at most one entry a second.
    recent: VecDeque<(Instant, u64)>,
}

impl Counted {
    /// Takes a counter of a port, which programs may have reset.
    fn note(&mut self, at: HostPortId, now: Instant, counted: u64, window: Duration) {
        let growth = self.0.entry(at).or_default();
        let before = core::mem::replace(&mut growth.counted, counted);
        let grown = counted.checked_sub(before).unwrap_or(counted);
        if grown == 0 {
            return;
        }
        while let Some((when, _)) = growth.recent.front()
            && !is_within(*when, now, window)
        {
            growth.recent.pop_front();
        }
        match growth.recent.back_mut() {
            Some((when, counted)) if now.saturating_duration_since(*when) < GRAIN => {
                *counted += grown
            }
            _ => growth.recent.push_back((now, grown)),
        }
    }

    /// Returns the growth of a port's counter within a window.
    fn within(&self, at: HostPortId, now: Instant, window: Duration) -> u64 {
        let recent = self.0.get(&at).map(|growth| growth.recent.iter());
        let recent = recent.into_iter().flatten();
        let lately = recent.filter(|(when, _)| is_within(*when, now, window));
        lately.map(|(_, grown)| grown).sum()
    }
}

fn is_within(when: Instant, now: Instant, window: Duration) -> bool {
    now.saturating_duration_since(when) < window
}
