//! Notices that the SA forwards to its subscribers (IBA 13.4.11).

use alloc::collections::VecDeque;

use ib_wire::Tid;
use ib_wire::mad::{AttributeId, Mad, Method};
use ib_wire::notice::NoticeReport;
use ib_wire::sa::SaMad;
use zerocopy::FromBytes;

use crate::Peer;

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
    use ib_wire::{Lid, Qpn};

    use super::*;

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
