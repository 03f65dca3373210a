//! Guests that ask for many paths at once, as the boot of many machines does.

use std::collections::BTreeSet;

use emulated_hca::NodeKind;
use ib_endpoint::sa_client::QueryId;
use ib_endpoint::{RetryPolicy, SaAnswer, SaError, SaRequest};
use ib_vtime::{Duration, Instant};
use ib_wire::sa::PathRecord;
use ib_wire::{Gid, GidIndex};
use vhca_control::Facts;

use super::{Begun, Guests, JobId, PORT};
use vhca::world::{HostFunction, World};

/// Queries of a guest under way at a time. With 254 guests they are fewer than the receives of an SA's QP1,
/// 512: what finds none is lost there, and asked again.
const WINDOW: usize = 2;

/// When a query is repeated: as the users of Linux' `ib_sa` do (`ipoib_main.c`).
const POLICY: RetryPolicy = RetryPolicy::new(Duration::from_secs(1), 10);

/// How long all answers may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// A guest's many questions.
#[derive(Debug)]
pub(super) struct Burst {
    job: JobId,
    from: Gid,
    to: Vec<Gid>,
    began: Instant,
    asked: u32,
    count: u32,
    answered: u32,
    failed: u32,
    under_way: BTreeSet<QueryId>,
}

impl Burst {
    /// Asks until the window is full or everything was asked.
    fn ask(&mut self, world: &mut World, now: Instant, on: HostFunction) {
        while self.asked < self.count && self.under_way.len() < WINDOW {
            let turn = usize::try_from(self.asked).unwrap_or_default();
            let to = self.to[turn % self.to.len()];
            let request = SaRequest::path_by_gids(self.from, to, None);
            let port = world.port_mut(on.port(PORT));
            let query = port.query_with(now, request, POLICY);
            self.under_way.insert(query);
            self.asked += 1;
        }
    }

    fn facts(&self, now: Instant) -> Facts {
        Facts::new()
            .with("asked", self.asked)
            .with("answered", self.answered)
            .with("failed", self.failed)
            .with("destinations", self.to.len())
            .millis("took_ms", now - self.began)
    }
}

/// The first end ports of the fabric's adapters, as many as there are.
fn end_ports(world: &World, most: usize) -> Vec<Gid> {
    let fabric = world.fabric();
    let adapters = fabric
        .nodes()
        .filter(|(_, kind)| *kind == NodeKind::ChannelAdapter);
    let gids = adapters.filter_map(|(node, _)| fabric.port(node.port(1))?.gid(GidIndex(0)));
    gids.take(most).collect()
}

impl Guests {
    /// Has a guest ask for so many paths, to each of so many end ports in turn.
    pub(super) fn ask_for_paths(
        &mut self,
        world: &mut World,
        now: Instant,
        on: HostFunction,
        job: JobId,
        (count, destinations): (u32, usize),
    ) -> Begun {
        let Some(guest) = self.guests.get_mut(&on) else {
            return Begun::failed("the guest is gone");
        };
        if guest.burst.is_some() {
            return Begun::failed("the guest asks for paths already");
        }
        let Some(from) = world.port(on.port(PORT)).view().gid(GidIndex(0)) else {
            return Begun::failed("the VF has no GID");
        };
        let mut to = end_ports(world, destinations);
        if to.is_empty() {
            return Begun::failed("no adapter of the fabric has a GID");
        }
        // Guests that begin at different places ask for everything at once.
        let first = usize::from(on.function.0) % to.len();
        to.rotate_left(first);
        let burst = guest.burst.insert(Burst {
            job,
            from,
            to,
            began: now,
            asked: 0,
            count,
            answered: 0,
            failed: 0,
            under_way: BTreeSet::new(),
        });
        burst.ask(world, now, on);
        Begun::Later
    }

    /// Takes an answer, if it is one of the many.
    pub(super) fn path_answered(
        &mut self,
        world: &mut World,
        on: HostFunction,
        query: QueryId,
        result: &Result<SaAnswer, SaError>,
    ) -> bool {
        let now = world.now();
        let Some(guest) = self.guests.get_mut(&on) else {
            return false;
        };
        let Some(burst) = &mut guest.burst else {
            return false;
        };
        if !burst.under_way.remove(&query) {
            return false;
        }
        let path = result
            .as_ref()
            .ok()
            .and_then(SaAnswer::record::<PathRecord>);
        match path {
            Some(path) if path.sgid == burst.from => burst.answered += 1,
            _ => burst.failed += 1,
        }
        // Of a job that took too long, or whose client is gone, nobody waits for the rest.
        if self.jobs.is_open(burst.job) {
            burst.ask(world, now, on);
        }
        if burst.under_way.is_empty() {
            let (job, facts) = (burst.job, burst.facts(now));
            let outcome = if burst.failed == 0 {
                Ok(facts)
            } else {
                Err(format!("not all were answered: {facts}"))
            };
            guest.burst = None;
            self.jobs.finish(job, on, outcome);
        }
        true
    }
}
