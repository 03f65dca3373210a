//! What a subscription is about.

use std::cmp::Ordering;

use ib_wire::mad::Method;
use ib_wire::notice::{InformInfo, NoticeReport};
use ib_wire::sa::{ComponentMask, SaMad};
use ib_wire::{Lid, Qpn};
use zerocopy::IntoBytes;

/// A subscription without its subscriber: all that does not tell which notices it means is zero, and
/// what means the same is written in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject(InformInfo);

impl Subject {
    /// RespTimeValue of the port's subscriptions: 1.07 s. OpenSM compares it when unsubscribing.
    const RESP_TIME: u8 = 18;

    pub(super) fn of(info: &InformInfo) -> Self {
        let (begin, end) = (info.lid_range_begin, info.lid_range_end);
        let (lid_range_begin, lid_range_end) = if !info.gid.is_none() {
            (Lid::NONE, Lid::NONE)
        } else if begin == Lid::PERMISSIVE {
            (begin, Lid::NONE)
        } else if end == Lid::NONE {
            (begin, begin)
        } else {
            (begin, end)
        };
        Self(InformInfo {
            gid: info.gid,
            lid_range_begin,
            lid_range_end,
            is_generic: u8::from(info.is_generic != 0),
            notice_type: info.notice_type,
            trap_number: info.trap_number,
            producer: info.producer,
            ..InformInfo::default()
        })
    }

    /// The subscription as the port makes or ends it.
    pub(super) fn inform_info(&self, subscribe: bool) -> InformInfo {
        InformInfo {
            subscribe: u8::from(subscribe),
            qpn: Qpn::GSI,
            resp_time: Self::RESP_TIME,
            ..self.0
        }
    }

    /// The port's request.
    pub(super) fn request(&self, subscribe: bool) -> SaMad {
        let info = self.inform_info(subscribe);
        SaMad::new(Method::SET, ComponentMask::NONE, &info)
    }

    pub(super) fn covers(&self, report: &NoticeReport) -> bool {
        self.0.covers(report)
    }
}

impl Ord for Subject {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.as_bytes().cmp(other.0.as_bytes())
    }
}

impl PartialOrd for Subject {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::Gid;
    use ib_wire::notice::TrapNumber;

    use super::*;

    fn lids(begin: u16, end: u16) -> InformInfo {
        InformInfo {
            lid_range_begin: Lid::new(begin),
            lid_range_end: Lid::new(end),
            is_generic: 1,
            ..InformInfo::default()
        }
    }

    fn same(a: InformInfo, b: InformInfo) -> bool {
        Subject::of(&a) == Subject::of(&b)
    }

    #[test]
    fn what_means_the_same_is_one_subject() {
        assert!(same(lids(0xffff, 7), lids(0xffff, 0)));
        assert!(same(lids(5, 0), lids(5, 5)));
        let by_gid = |info| InformInfo {
            gid: Gid([1; 16]),
            ..info
        };
        assert!(same(by_gid(lids(1, 2)), by_gid(lids(3, 4))));
        let own = InformInfo {
            subscribe: 1,
            qpn: Qpn::from_low_bits(77),
            resp_time: 9,
            is_generic: 2,
            ..lids(1, 2)
        };
        assert!(same(own, lids(1, 2)));
    }

    #[test]
    fn each_field_that_narrows_tells_subjects_apart() {
        let info = lids(1, 2);
        let gid = Gid([1; 16]);
        let trap_number = TrapNumber::ALL;
        for other in [
            lids(1, 3),
            lids(0xffff, 0),
            InformInfo { gid, ..info },
            InformInfo {
                is_generic: 0,
                ..info
            },
            InformInfo {
                notice_type: 3.into(),
                ..info
            },
            InformInfo {
                trap_number,
                ..info
            },
            InformInfo {
                producer: [0, 0, 1],
                ..info
            },
        ] {
            assert!(!same(info, other));
            assert_ne!(
                Subject::of(&info).cmp(&Subject::of(&other)),
                Ordering::Equal
            );
        }
    }
}
