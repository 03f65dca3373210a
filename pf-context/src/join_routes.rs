//! How answers come back to joins and subscriptions that wait for the SA.
//!
//! Who asks with a GRH takes only an answer with one (Linux compares them), and an answer comes from
//! the LID that was asked. mcast-agg keeps the request, not how it came.

use std::collections::BTreeMap;

use ib_wire::{Lid, Tid};
use vf_tunnel::VfId;

use crate::output::Route;

/// How an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WayBack {
    /// The LID that was asked.
    pub(crate) from: Lid,
    /// The answer's GRH, if it has one.
    pub(crate) grh: Option<Route>,
}

/// For each VF and TID the way of the answer, if it is not the usual one.
#[derive(Clone, Debug, Default)]
pub(crate) struct JoinRoutes(BTreeMap<(VfId, Tid), WayBack>);

impl JoinRoutes {
    /// Requests of a VF that are remembered; beyond that the one with the lowest TID is forgotten,
    /// and answered the usual way. mcast-agg lets 32 joins and 16 subscriptions wait by default, and
    /// of the PF's own software any number.
    const MOST: usize = 48;

    pub(crate) fn remember(&mut self, vf: VfId, tid: Tid, answer: WayBack) {
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

    /// The way of an answer, once.
    pub(crate) fn take(&mut self, vf: VfId, tid: Tid) -> Option<WayBack> {
        self.0.remove(&(vf, tid))
    }

    pub(crate) fn forget(&mut self, vf: VfId) {
        self.0.retain(|&(owner, _), _| owner != vf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: WayBack = WayBack {
        from: Lid::new(1),
        grh: None,
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
