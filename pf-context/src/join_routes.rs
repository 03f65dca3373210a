//! The GRHs of joins and subscriptions that wait for the SA.
//!
//! Who asks with a GRH takes only an answer with one (Linux compares them). mcast-agg keeps the
//! request, not how it came.

use std::collections::BTreeMap;

use ib_wire::Tid;
use vf_tunnel::VfId;

use crate::output::Route;

/// For each VF and TID the GRH of the answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct JoinRoutes(BTreeMap<(VfId, Tid), Route>);

impl JoinRoutes {
    /// Requests of a VF that are remembered; beyond that the one with the lowest TID is forgotten,
    /// and answered without a GRH. mcast-agg lets 32 joins and 16 subscriptions wait by default, and
    /// of the PF's own software any number.
    const MOST: usize = 48;

    pub(crate) fn remember(&mut self, vf: VfId, tid: Tid, answer: Route) {
        self.0.insert((vf, tid), answer);
        if vf == VfId::PF {
            return;
        }
        let mut own = self
            .0
            .range((vf, Tid::new(0))..=(vf, Tid::new(u64::MAX)))
            .map(|(&key, _)| key);
        let first = own.next();
        if own.count() >= Self::MOST
            && let Some(key) = first
        {
            self.0.remove(&key);
        }
    }

    /// The GRH for an answer, once.
    pub(crate) fn take(&mut self, vf: VfId, tid: Tid) -> Option<Route> {
        self.0.remove(&(vf, tid))
    }

    pub(crate) fn forget(&mut self, vf: VfId) {
        self.0.retain(|&(owner, _), _| owner != vf);
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::Gid;

    use super::*;

    const ROUTE: Route = Route {
        sgid: Gid::NONE,
        dgid: Gid::NONE,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 0,
    };

    #[test]
    fn a_flood_of_tids_is_bounded_per_vf() {
        let (one, two) = (VfId::new(1).unwrap(), VfId::new(2).unwrap());
        let mut routes = JoinRoutes::default();
        routes.remember(two, Tid::new(0), ROUTE);
        for tid in 0..100 {
            routes.remember(one, Tid::new(tid), ROUTE);
        }
        assert_eq!(routes.0.len(), JoinRoutes::MOST + 1);
        assert_eq!(routes.take(one, Tid::new(99)), Some(ROUTE));
        assert_eq!(routes.take(one, Tid::new(99)), None);
        routes.forget(one);
        assert_eq!(routes.take(two, Tid::new(0)), Some(ROUTE));
        assert!(routes.0.is_empty());
    }
}
