//! Reports: which are news, and what is awaited of those who got them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::Tid;
use ib_wire::mad::{AttributeId, Method};
use ib_wire::notice::NoticeReport;
use ib_wire::sa::SaMad;
use zerocopy::FromBytes;

use crate::MemberId;

/// The notice in a Report; `None` if the MAD is something else.
pub(super) fn notice_of(mad: &SaMad) -> Option<NoticeReport> {
    let header = &mad.header;
    if header.method != Method::REPORT || header.attribute_id != AttributeId::NOTICE {
        return None;
    }
    let (report, _) = NoticeReport::read_from_prefix(&mad.data).ok()?;
    Some(report)
}

#[derive(Clone, Debug)]
struct Seen {
    since: Instant,
    tid: Tid,
    notice: NoticeReport,
    /// Reports of the same event that the SA owes the port for other subscriptions.
    copies_to_come: usize,
}

/// The reports seen lately.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentReports {
    seen: VecDeque<Seen>,
}

impl RecentReports {
    /// Reports remembered.
    const KEPT: usize = 64;
    /// How long: OpenSM repeats a report three times at 200 ms. To remember for longer would risk
    /// to take a second event for a copy that got lost.
    const LIFETIME: Duration = Duration::from_secs(3);

    /// Notes a report that the SA sends `copies` times, for as many subscriptions of the port.
    /// Whether it is of an event that was not seen yet.
    pub(super) fn note(
        &mut self,
        now: Instant,
        tid: Tid,
        notice: &NoticeReport,
        copies: usize,
    ) -> bool {
        self.expire(now);
        let alike = |seen: &&mut Seen| seen.notice == *notice;
        if self
            .seen
            .iter_mut()
            .filter(alike)
            .any(|seen| seen.tid == tid)
        {
            return false;
        }
        let mut alike = self.seen.iter_mut().filter(alike);
        let owed = alike.find(|seen| seen.copies_to_come > 0);
        let is_new = owed.is_none();
        if let Some(owed) = owed {
            owed.copies_to_come -= 1;
        }
        if self.seen.len() == Self::KEPT {
            self.seen.pop_front();
        }
        self.seen.push_back(Seen {
            since: now,
            tid,
            notice: *notice,
            copies_to_come: if is_new { copies.saturating_sub(1) } else { 0 },
        });
        is_new
    }

    pub(super) fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|at| at <= now) {
            self.seen.pop_front();
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.seen.front().map(|seen| seen.since + Self::LIFETIME)
    }

    /// Forgets all: another SA may use the same TIDs.
    pub(super) fn clear(&mut self) {
        self.seen.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }
}

/// The copies of reports that members have yet to answer, by TID, the oldest first.
#[derive(Clone, Debug)]
pub(super) struct Deliveries {
    max: usize,
    last_tid: u64,
    awaited: BTreeMap<u64, (MemberId, Instant)>,
}

impl Deliveries {
    /// How long an answer is awaited.
    const LIFETIME: Duration = Duration::from_secs(10);

    pub(super) const fn new(max: usize) -> Self {
        Self {
            max,
            last_tid: 0,
            awaited: BTreeMap::new(),
        }
    }

    /// A fresh TID for a copy to a member.
    pub(super) fn begin(&mut self, now: Instant, member: MemberId) -> Tid {
        self.last_tid += 1;
        self.awaited
            .insert(self.last_tid, (member, now + Self::LIFETIME));
        if self.awaited.len() > self.max {
            self.awaited.pop_first();
        }
        Tid::new(self.last_tid)
    }

    /// Takes a member's answer. Whether it was awaited.
    pub(super) fn end(&mut self, member: MemberId, tid: Tid) -> bool {
        let awaited = self.awaited.get(&tid.get());
        let fits = awaited.is_some_and(|&(to, _)| to == member);
        if fits {
            self.awaited.remove(&tid.get());
        }
        fits
    }

    pub(super) fn forget_member(&mut self, member: MemberId) {
        self.awaited.retain(|_, (to, _)| *to != member);
    }

    pub(super) fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|at| at <= now) {
            self.awaited.pop_first();
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.awaited.first_key_value().map(|(_, &(_, at))| at)
    }

    pub(super) fn len(&self) -> usize {
        self.awaited.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(n: u8) -> NoticeReport {
        let mut report = NoticeReport::default();
        report.notice.data_details[0] = n;
        report
    }

    #[test]
    fn as_many_reports_as_subscriptions_match_are_one_event() {
        let mut recent = RecentReports::default();
        let mut note = |tid, n| recent.note(Instant::ZERO, Tid::new(tid), &event(n), 2);
        assert!(note(1, 0));
        assert!(!note(1, 0), "repeated");
        assert!(!note(2, 0), "for the other subscription");
        assert!(!note(2, 0), "repeated");
        assert!(note(3, 0), "happened again");
        assert!(note(3, 1), "another event under a TID that was used");
    }

    #[test]
    fn what_was_seen_is_forgotten_in_time_and_when_too_much_follows() {
        let mut recent = RecentReports::default();
        let later = Instant::ZERO + RecentReports::LIFETIME;
        assert!(recent.note(Instant::ZERO, Tid::new(1), &event(0), 1));
        assert!(recent.note(later, Tid::new(1), &event(0), 1));
        for n in 1..=64 {
            recent.note(later, Tid::new(1), &event(n), 1);
        }
        assert_eq!(recent.len(), RecentReports::KEPT);
        assert!(recent.note(later, Tid::new(1), &event(0), 1));
    }

    #[test]
    fn an_answer_is_awaited_from_the_member_once_and_not_for_ever() {
        let mut deliveries = Deliveries::new(2);
        let other = MemberId::from(vf_tunnel::VfId::new(1).expect("a VF"));
        let tid = deliveries.begin(Instant::ZERO, MemberId::PF);
        assert!(!deliveries.end(other, tid));
        assert!(deliveries.end(MemberId::PF, tid));
        assert!(!deliveries.end(MemberId::PF, tid));
        for _ in 0..3 {
            deliveries.begin(Instant::ZERO, other);
        }
        assert_eq!(deliveries.len(), 2);
        deliveries.expire(Instant::ZERO + Deliveries::LIFETIME);
        assert_eq!(deliveries.len(), 0);
    }
}
