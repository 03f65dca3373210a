//! Notices that the SA forwards to its subscribers (IBA 13.4.11).

use std::collections::VecDeque;

use ib_wire::mad::{AttributeId, Mad, Method};
use ib_wire::notice::{InformInfo, NoticeReport, TrapNumber};
use ib_wire::sa::SaMad;
use ib_wire::{Gid, Lid, Tid};
use zerocopy::FromBytes;

use crate::Peer;

/// In InformInfo: every LID.
const ALL_LIDS: Lid = Lid::PERMISSIVE;

/// Whether a subscription is meant by a notice (IBA 13.4.8.3).
#[must_use]
pub fn covers(inform: &InformInfo, report: &NoticeReport) -> bool {
    let notice = &report.notice;
    if (inform.is_generic != 0) != notice.is_generic() {
        return false;
    }
    let all_types = inform.notice_type.get() == InformInfo::ALL_TYPES;
    if !all_types && inform.notice_type.get() != u16::from(notice.notice_type().get()) {
        return false;
    }
    if inform.trap_number != TrapNumber::ALL && inform.trap_number != notice.trap_number {
        return false;
    }
    if inform.producer != [0xff; 3] && inform.producer != notice.producer {
        return false;
    }
    if inform.gid != Gid::NONE {
        return inform.gid == report.issuer_gid;
    }
    inform.lid_range_begin == ALL_LIDS
        || (inform.lid_range_begin..=inform.lid_range_end).contains(&notice.issuer_lid)
}

/// The notice in a Report; `None` if the MAD is something else.
pub(super) fn notice_of(mad: &Mad) -> Option<NoticeReport> {
    let header = &mad.header;
    if header.method != Method::REPORT || header.attribute_id != AttributeId::NOTICE {
        return None;
    }
    let (report, _) = NoticeReport::read_from_prefix(&mad.view::<SaMad>().data).ok()?;
    Some(report)
}

/// Reports seen lately. The SA repeats one until its answer arrives, and a lost answer must not
/// make it news twice.
#[derive(Debug, Default)]
pub(super) struct RecentReports {
    seen: VecDeque<(Peer, Tid)>,
}

impl RecentReports {
    /// Reports remembered.
    const KEPT: usize = 64;

    /// Notes a report. Whether it is new.
    pub(super) fn note(&mut self, from: Peer, tid: Tid) -> bool {
        if self.seen.contains(&(from, tid)) {
            return false;
        }
        if self.seen.len() == Self::KEPT {
            self.seen.pop_front();
        }
        self.seen.push_back((from, tid));
        true
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::Qpn;
    use ib_wire::notice::{GidDetails, Notice, NoticeType, ProducerType};

    use super::*;

    fn report(trap: TrapNumber, lid: u16) -> NoticeReport {
        NoticeReport {
            notice: Notice::generic(
                NoticeType::SUBNET_MANAGEMENT,
                ProducerType::CLASS_MANAGER,
                trap,
                Lid::new(lid),
                &GidDetails::default(),
            ),
            issuer_gid: Gid([7; 16]),
        }
    }

    fn all() -> InformInfo {
        InformInfo {
            lid_range_begin: ALL_LIDS,
            is_generic: 1,
            subscribe: 1,
            notice_type: InformInfo::ALL_TYPES.into(),
            trap_number: TrapNumber::ALL,
            producer: [0xff; 3],
            ..InformInfo::default()
        }
    }

    #[test]
    fn each_field_of_a_subscription_narrows_it() {
        let in_service = report(TrapNumber::GID_IN_SERVICE, 5);
        assert!(covers(&all(), &in_service));
        let with = |change: &dyn Fn(&mut InformInfo)| {
            let mut inform = all();
            change(&mut inform);
            covers(&inform, &in_service)
        };
        assert!(with(&|i| i.trap_number = TrapNumber::GID_IN_SERVICE));
        assert!(!with(&|i| i.trap_number = TrapNumber::GID_OUT_OF_SERVICE));
        assert!(with(&|i| i.notice_type = 3.into()));
        assert!(!with(&|i| i.notice_type = 4.into()));
        assert!(!with(&|i| i.is_generic = 0));
        assert!(with(&|i| i.producer = [0, 0, 4]));
        assert!(!with(&|i| i.producer = [0, 0, 1]));
        assert!(with(&|i| i.gid = Gid([7; 16])));
        assert!(!with(&|i| i.gid = Gid([8; 16])));
        let lids = |begin: u16, end: u16| {
            with(&|i| {
                i.lid_range_begin = Lid::new(begin);
                i.lid_range_end = Lid::new(end);
            })
        };
        assert!(lids(5, 5) && lids(1, 9));
        assert!(!lids(6, 9) && !lids(1, 4));
    }

    #[test]
    fn a_repeated_report_is_not_new_until_many_others_came() {
        let mut recent = RecentReports::default();
        let sa = Peer::Local(Lid::new(1), Qpn::GSI);
        assert!(recent.note(sa, Tid::new(1)));
        assert!(!recent.note(sa, Tid::new(1)));
        assert!(recent.note(Peer::Local(Lid::new(2), Qpn::GSI), Tid::new(1)));
        for tid in 100..164 {
            recent.note(sa, Tid::new(tid));
        }
        assert!(recent.note(sa, Tid::new(1)));
    }
}
