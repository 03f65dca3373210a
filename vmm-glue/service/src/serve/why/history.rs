//! What happened to the VFs' ports that their state no longer shows.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant};
use pf_context::context::PfEvent;
use pf_context::guids::WishRefusal;

use super::links::Flaps;
use vhca::world::{HostId, HostPortId};

/// When each port came to be as it is, what was refused, and losses of links.
#[derive(Debug, Default)]
pub(in crate::serve) struct History {
    since: BTreeMap<HostPortId, Instant>,
    refusals: BTreeMap<HostPortId, WishRefusal>,
    pub(super) flaps: Flaps,
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

    /// How long a port has been as it is.
    pub(super) fn since(&self, at: HostPortId, now: Instant) -> Option<Duration> {
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
