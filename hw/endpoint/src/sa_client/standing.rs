//! What a port wants of the SA for as long as it wants it: memberships, subscriptions, services.

use ib_vtime::{Duration, TimerKey};
use ib_wire::Qpn;
use ib_wire::notice::InformInfo;
use ib_wire::sa::{ComponentMask, McMemberRecord, ServiceRecord};

use super::{QueryId, SaRequest};

/// Names a standing wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StandingId(pub(super) u64);

/// A standing wish: the client asks for it, asks again when the SA may have forgotten it, and takes
/// it back in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To be a member of a multicast group, as [`SaRequest::join`] has it.
    Membership {
        /// Group, port and kind of membership, and what `mask` names besides.
        record: McMemberRecord,
        /// The components that must hold, besides those that name the membership.
        mask: ComponentMask,
    },
    /// To be told of notices; the fields `subscribe` and `qpn` are the client's to fill.
    Subscription(InformInfo),
    /// To offer a service.
    Service(ServiceRecord),
}

impl Wish {
    /// What asks for it.
    pub(super) fn request(&self) -> SaRequest {
        match self {
            Self::Membership { record, mask } => SaRequest::join(record, *mask),
            Self::Subscription(inform) => SaRequest::inform(&InformInfo {
                subscribe: 1,
                ..*inform
            }),
            Self::Service(record) => SaRequest::register_service(record),
        }
    }

    /// What takes it back.
    pub(super) fn withdrawal(&self) -> SaRequest {
        match self {
            Self::Membership { record, .. } => SaRequest::leave(record),
            Self::Subscription(inform) => SaRequest::inform(&InformInfo {
                subscribe: 0,
                qpn: Qpn::GSI,
                ..*inform
            }),
            Self::Service(record) => SaRequest::delete_service(record),
        }
    }
}

/// A wish and how far it is.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) wish: Wish,
    pub(super) state: State,
    /// Whether the SA granted it at any time.
    pub(super) was_granted: bool,
    /// How long to wait after the next failure.
    pub(super) back_off: Duration,
}

/// Where a wish is.
#[derive(Debug)]
pub(super) enum State {
    /// There is no SA to ask.
    NoSa,
    /// Asked.
    Asking(QueryId),
    /// Granted.
    Granted,
    /// Refused or unanswered; to be asked again.
    BackingOff(TimerKey),
}

impl Standing {
    pub(super) const fn new(wish: Wish) -> Self {
        Self {
            wish,
            state: State::NoSa,
            was_granted: false,
            back_off: FIRST_BACK_OFF,
        }
    }

    /// The time until the next try; doubles with each failure.
    pub(super) fn next_back_off(&mut self) -> Duration {
        let wait = self.back_off;
        self.back_off = (wait * 2).min(LONGEST_BACK_OFF);
        wait
    }

    /// The wish is granted.
    pub(super) const fn grant(&mut self) {
        self.state = State::Granted;
        self.was_granted = true;
        self.back_off = FIRST_BACK_OFF;
    }
}

/// Wait after the first failure, as Linux has for alias GUIDs (mlx4 `alias_GUID.c`).
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
/// The longest wait, likewise.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use ib_wire::mad::Method;

    use super::*;

    #[test]
    fn waits_double_up_to_a_minute() {
        let mut standing = Standing::new(Wish::Subscription(InformInfo::default()));
        let waits: Vec<u64> = (0..8).map(|_| standing.next_back_off().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        standing.grant();
        assert_eq!(standing.next_back_off().as_secs(), 1);
    }

    #[test]
    fn a_membership_is_set_and_deleted_by_the_same_components() {
        let wish = Wish::Membership {
            record: McMemberRecord::default(),
            mask: McMemberRecord::PKEY,
        };
        let (set, delete) = (wish.request(), wish.withdrawal());
        assert_eq!(set.message.header().method, Method::SET);
        assert_eq!(delete.message.header().method, Method::DELETE);
        let mask = |request: &SaRequest| {
            request
                .message
                .mad()
                .view::<ib_wire::sa::SaMad>()
                .component_mask
                .get()
        };
        assert_eq!(mask(&set), 0x1_0003 | 1 << 7);
        assert_eq!(mask(&delete), 0x1_0003);
    }
}
