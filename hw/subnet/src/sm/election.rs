//! Who is master: how managers compare, and what SMInfo says (IBA 14.4.1).

use core::cmp::Reverse;

use ib_wire::Guid;
use ib_wire::mad::AttributeModifier;
use ib_wire::smp::{SmInfo, SmState};

use super::discovery::OtherManager;

/// How managers compare: the higher priority wins, the lower GUID on a tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    priority: u8,
    guid: Reverse<Guid>,
}

impl Rank {
    pub(super) fn new(priority: u8, guid: Guid) -> Self {
        Self {
            priority,
            guid: Reverse(guid),
        }
    }

    pub(super) fn of(info: &SmInfo) -> Self {
        Self::new(info.priority(), info.guid)
    }
}

/// What a manager that finished its discovery does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Be master, or stay it.
    Master,
    /// Stand by behind this manager.
    Standby(OtherManager),
    /// Being master, hand over to this one.
    HandOver(OtherManager),
}

/// Decides by what was discovered. A master gives way to a better manager that is ready; a manager
/// that is not master gives way to any master, and to any better one.
pub(super) fn decide(own: Rank, is_master: bool, others: &[OtherManager]) -> Decision {
    let active = || {
        others
            .iter()
            .copied()
            .filter(|other| other.info.state() != SmState::NOT_ACTIVE)
    };
    let rank = |other: &OtherManager| Rank::of(&other.info);
    let better = active().filter(|other| rank(other) > own).max_by_key(rank);
    if is_master {
        let ready = |other: &OtherManager| other.info.state() != SmState::DISCOVERING;
        return better
            .filter(ready)
            .map_or(Decision::Master, Decision::HandOver);
    }
    let master = active()
        .filter(|other| other.info.state() == SmState::MASTER)
        .max_by_key(rank);
    master
        .or(better)
        .map_or(Decision::Master, Decision::Standby)
}

/// The control packets that managers send each other: the modifier of Set(SMInfo)
/// (IBA 14.4.1, table of SMInfo attribute modifiers).
pub(super) mod control {
    use super::AttributeModifier;

    /// Take over.
    pub(in super::super) const HANDOVER: AttributeModifier = AttributeModifier::new(1);
    /// I took over.
    pub(in super::super) const ACKNOWLEDGE: AttributeModifier = AttributeModifier::new(2);
    /// Stop taking part.
    pub(in super::super) const DISABLE: AttributeModifier = AttributeModifier::new(3);
    /// Stand by.
    pub(in super::super) const STANDBY: AttributeModifier = AttributeModifier::new(4);
    /// Discover the subnet.
    pub(in super::super) const DISCOVER: AttributeModifier = AttributeModifier::new(5);
}

/// Returns `true` if a manager in this state sends such a control packet: a master all but the
/// acknowledgement that it has become one, which it sends while it stands by.
pub(super) fn may_send(sender: SmState, modifier: AttributeModifier) -> bool {
    match modifier {
        control::ACKNOWLEDGE => sender == SmState::STANDBY,
        control::HANDOVER | control::DISABLE | control::STANDBY | control::DISCOVER => {
            sender == SmState::MASTER
        }
        _ => false,
    }
}

/// Returns `true` if such a control packet is for a manager in this state.
pub(super) fn may_receive(own: SmState, modifier: AttributeModifier) -> bool {
    match own {
        SmState::DISCOVERING | SmState::MASTER => modifier == control::HANDOVER,
        SmState::STANDBY => [
            control::HANDOVER,
            control::ACKNOWLEDGE,
            control::DISABLE,
            control::DISCOVER,
        ]
        .contains(&modifier),
        SmState::NOT_ACTIVE => modifier == control::STANDBY,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::DrPath;

    fn other(guid: u64, priority: u8, state: SmState) -> OtherManager {
        let mut info = SmInfo {
            guid: Guid::new(guid),
            ..SmInfo::default()
        };
        info.set_priority(priority);
        info.set_state(state);
        OtherManager {
            guid: Guid::new(guid),
            path: DrPath::LOCAL,
            info,
        }
    }

    fn own() -> Rank {
        Rank::new(5, Guid::new(50))
    }

    #[test]
    fn alone_or_with_lesser_managers_it_is_master() {
        assert_eq!(decide(own(), false, &[]), Decision::Master);
        let lesser = [
            other(1, 4, SmState::STANDBY),
            other(60, 5, SmState::DISCOVERING),
        ];
        assert_eq!(decide(own(), false, &lesser), Decision::Master);
        assert_eq!(decide(own(), true, &lesser), Decision::Master);
    }

    #[test]
    fn it_stands_by_behind_any_master_and_any_better_manager() {
        let master = other(60, 1, SmState::MASTER);
        assert_eq!(decide(own(), false, &[master]), Decision::Standby(master));
        let better = other(40, 5, SmState::DISCOVERING);
        assert_eq!(decide(own(), false, &[better]), Decision::Standby(better));
        assert_eq!(
            decide(own(), false, &[better, master]),
            Decision::Standby(master)
        );
    }

    #[test]
    fn a_master_hands_over_to_the_best_that_is_ready() {
        let ready = other(60, 9, SmState::STANDBY);
        let lesser = other(60, 8, SmState::STANDBY);
        assert_eq!(
            decide(own(), true, &[lesser, ready]),
            Decision::HandOver(ready)
        );
        assert_eq!(
            decide(own(), true, &[other(60, 9, SmState::DISCOVERING)]),
            Decision::Master
        );
        assert_eq!(
            decide(own(), true, &[other(60, 9, SmState::NOT_ACTIVE)]),
            Decision::Master
        );
    }
}
