//! Queue pairs in error, where what is posted completes as flushed.

use hca_api::{Hca, MAX_FLUSHED};
use ib_vtime::{Duration, Instant};
use ib_wire::Qpn;
use vf_queues::{FlushPace, Found, fail};

use super::Queues;

/// Drivers that drain a queue pair arm a completion queue, which makes the pauses short again.
pub(super) const PACE: FlushPace = FlushPace {
    at_a_time: 64,
    seldom: Duration::from_millis(256),
};

impl Queues {
    /// Flushes what has been posted to the next queue pair in error. Whether there was anything.
    pub(super) fn flush_next(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        let Some(qpn) = self.backlog.flush.take() else {
            return false;
        };
        self.flush_at_provider(hca, qpn);
        let found = self.completions(hca, qpn);
        self.collect_of(hca, qpn);
        self.backlog.flush.done(now, qpn, found);
        found != Found::Nothing
    }

    /// Has the provider complete what is posted to a queue pair, of very many receives some.
    pub(super) fn flush_at_provider(&self, hca: &mut dyn Hca, qpn: Qpn) {
        if let Some(qp) = self.qps.get(&qpn) {
            let moved = fail(hca, qp.handle);
            debug_assert_eq!(moved, Ok(()), "from every state there is a way to error");
        }
    }

    /// What the provider flushed of a queue pair's receives, as far as that can be told.
    fn completions(&self, hca: &dyn Hca, qpn: Qpn) -> Found {
        let cqn = self.qps.get(&qpn).map(|qp| qp.cqn(true));
        let cq = cqn.and_then(|cqn| self.cqs.get(&cqn));
        match cq.map(|cq| hca.peek_cq(cq.handle, MAX_FLUSHED)) {
            None | Some(Ok(0) | Err(_)) => Found::Nothing,
            Some(Ok(MAX_FLUSHED..)) => Found::More,
            Some(Ok(_)) => Found::Some,
        }
    }
}
