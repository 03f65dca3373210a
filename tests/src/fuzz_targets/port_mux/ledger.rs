//! What came out of the mux, counted from outside, against what the mux says of itself.

use std::collections::BTreeMap;

use ib_vtime::Instant;
use ib_wire::PortNum;
use pf_context::inspect::{Counted, Inspect};
use pf_context::{CountedClass, Output, PortMux, Use};
use vf_tunnel::{DropReason, VfId};

/// Counts by whose the MADs are, the PF for those of no VF.
#[derive(Default)]
pub(super) struct Ledger {
    sent: BTreeMap<(VfId, CountedClass), u64>,
    delivered: BTreeMap<(VfId, CountedClass), u64>,
    dropped: BTreeMap<(VfId, DropReason), u64>,
}

impl Ledger {
    pub(super) fn note(&mut self, output: &Output) {
        match output {
            Output::ToWire(send, mad) => {
                let class = CountedClass::of(mad.header.mgmt_class);
                *self
                    .sent
                    .entry((send.vf.unwrap_or(VfId::PF), class))
                    .or_default() += 1;
            }
            Output::ToVf(to, mad) => {
                let class = CountedClass::of(mad.header.mgmt_class);
                *self.delivered.entry((to.vf, class)).or_default() += 1;
            }
            Output::Dropped { vf, reason } => {
                let whose = (vf.unwrap_or(VfId::PF), *reason);
                *self.dropped.entry(whose).or_default() += 1;
            }
            Output::VfEvent { .. } => {}
        }
    }

    /// The mux counts the same.
    pub(super) fn check(&self, mux: &PortMux, now: Instant) {
        let mut shown = Self::default();
        for row in mux.inspect(PortNum(1)).counters(now) {
            match row.counted {
                Counted::Mads(class, "to_wire") => {
                    shown.sent.insert((row.vf, class), row.value);
                }
                Counted::Mads(class, "delivered") => {
                    shown.delivered.insert((row.vf, class), row.value);
                }
                Counted::Mads(..) => {}
                Counted::Dropped(reason) => {
                    shown.dropped.insert((row.vf, reason), row.value);
                }
            }
        }
        assert_eq!(shown.sent, self.sent);
        assert_eq!(shown.delivered, self.delivered);
        assert_eq!(shown.dropped, self.dropped);
    }
}

/// The rows are as many as the sizes and the usage of the VFs say.
pub(super) fn check_rows(mux: &PortMux, now: Instant) {
    let view = mux.inspect(PortNum(1));
    let sizes = mux.sizes();
    assert_eq!(view.port().sizes, sizes);
    let tids: Vec<_> = view.tids(now).collect();
    let cm: Vec<_> = view.cm(now).collect();
    let groups: Vec<_> = view.groups().collect();
    let subscriptions: Vec<_> = view.subscriptions().collect();
    let memberships = groups.iter().map(|group| group.members.len());
    let holdings = subscriptions.iter().map(|row| row.holders.len());
    assert_eq!(tids.len(), sizes.tids);
    assert_eq!(cm.len(), sizes.cm_ids);
    assert_eq!(groups.len(), sizes.mcast_groups);
    assert_eq!(memberships.sum::<usize>(), sizes.mcast_members);
    assert_eq!(holdings.sum::<usize>(), sizes.subscriptions);

    let mut queued = 0;
    for row in view.vfs(now) {
        let usage = row.usage;
        queued += usage.queued.live;
        let within = |used: Use, live: usize| {
            assert_eq!(used.live, live);
            assert!(used.live <= used.limit);
        };
        let is_in = |members: &[(VfId, _)]| members.iter().any(|(vf, _)| *vf == row.vf);
        let own_cm = || cm.iter().filter(|cm| cm.connection.vf == row.vf);
        let own_tids = || tids.iter().filter(|tid| tid.vf == row.vf);
        within(usage.tids, own_tids().count());
        within(
            usage.cm_ids,
            own_cm().filter(|cm| cm.connection.vf_id.is_some()).count(),
        );
        within(
            usage.cm_pending,
            own_cm().filter(|cm| cm.connection.vf_id.is_none()).count(),
        );
        within(
            usage.groups,
            groups.iter().filter(|group| is_in(&group.members)).count(),
        );
        within(
            usage.subscriptions,
            subscriptions
                .iter()
                .filter(|subscription| subscription.holders.contains(&row.vf))
                .count(),
        );
        assert_eq!(row.ages, mux.vf_ages(now, row.vf));
        assert_eq!(
            row.ages.transaction,
            own_tids().map(|tid| tid.transaction.idle).max()
        );
        assert_eq!(row.ages.frame.is_some(), usage.queued.live > 0);
        for used in [
            usage.sa_requests,
            usage.joins,
            usage.subscribing,
            usage.queued,
        ] {
            assert!(used.live <= used.limit, "{usage:?}");
        }
    }
    assert_eq!(queued, sizes.queued);
}
