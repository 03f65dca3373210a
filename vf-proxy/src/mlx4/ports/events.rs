//! What a guest is told of a port, and in which order.

use hca_api::{PortChange, PortState};
use ib_wire::{Gid, PortNum};
use mlx4_defs::eqe::{ChangedAttributes, Eqe};

/// What a guest has not been told yet of a port.
///
/// Changes are merged, so it is bounded whatever happens before the guest is told. Of the port's state
/// the guest hears in turns: active, down, active. The PF's driver keeps a state between the two for
/// ports whose GUID the subnet manager has not accepted yet (`set_and_calc_slave_port_state`); here the
/// PF says that such a port is down.
#[derive(Debug, Default)]
pub(super) struct PortEvents {
    /// What the guest believes; `None` before it was told of anything.
    told_active: Option<bool>,
    active: bool,
    /// The port was down since the guest was told that it is active.
    went_down: bool,
    guid: bool,
    pkeys: bool,
    attributes: ChangedAttributes,
    gid: Option<Gid>,
}

impl PortEvents {
    /// Takes notice of a change, after which the port has a state and a GID.
    pub(super) fn note(&mut self, state: PortState, gid: Option<Gid>, change: PortChange) {
        self.active = state == PortState::Active;
        // A guest that was told nothing has read the port when it started; what it saw then is what the
        // change starts from.
        let told_active = *self.told_active.get_or_insert_with(|| {
            change.contains(PortChange::DOWN)
                || (self.active && !change.contains(PortChange::ACTIVE))
        });
        if told_active && change.contains(PortChange::DOWN) {
            self.went_down = true;
        }
        if change.contains(PortChange::GID_TABLE) {
            self.note_gid(gid);
        }
        if change.contains(PortChange::PKEY_TABLE) {
            self.pkeys = true;
        }
        if change.contains(PortChange::LID) {
            self.attributes.set_lid(true);
        }
        // A guest that is told of its subnet manager's LID or SL takes a way that is the PF's alone. This
        // has it read both again.
        if change.intersects(PortChange::CLIENT_REREGISTER | PortChange::SM) {
            self.attributes.set_client_reregister(true);
        }
    }

    fn note_gid(&mut self, gid: Option<Gid>) {
        let before = self.gid.zip(gid);
        let same_guid = before.is_some_and(|(old, new)| old.interface_id() == new.interface_id());
        if same_guid {
            self.attributes.set_gid_prefix(true);
        } else {
            self.guid = true;
        }
        self.gid = gid;
    }

    /// The next event. That a port is active comes last, when the guest can read everything else.
    pub(super) fn poll(&mut self, port: PortNum) -> Option<Eqe> {
        if self.told_active == Some(true) && (self.went_down || !self.active) {
            self.told_active = Some(false);
            self.went_down = false;
            return Some(Eqe::port_change(port, false));
        }
        if core::mem::take(&mut self.guid) {
            return Some(Eqe::guid_change(port));
        }
        if core::mem::take(&mut self.pkeys) {
            return Some(Eqe::pkey_change(port));
        }
        let attributes = core::mem::take(&mut self.attributes);
        if attributes != ChangedAttributes::default() {
            return Some(Eqe::port_info_change(port, attributes));
        }
        if self.told_active == Some(false) && self.active {
            self.told_active = Some(true);
            return Some(Eqe::port_change(port, true));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use ib_wire::{Guid, SubnetPrefix};
    use mlx4_defs::eqe::{EventType, PORT_ACTIVE, PORT_DOWN, PortManagementEvent};
    use proptest::prelude::*;

    use super::*;

    const PORT: PortNum = PortNum(1);

    fn gid(prefix: u64, guid: u64) -> Option<Gid> {
        Some(Gid::from_parts(SubnetPrefix::new(prefix), Guid::new(guid)))
    }

    fn drain(events: &mut PortEvents) -> Vec<Eqe> {
        core::iter::from_fn(|| events.poll(PORT)).collect()
    }

    fn reregister() -> Eqe {
        let mut changed = ChangedAttributes::default();
        changed.set_client_reregister(true);
        Eqe::port_info_change(PORT, changed)
    }

    #[test]
    fn a_port_that_comes_up_with_everything_new_is_active_last() {
        let mut events = PortEvents::default();
        let change = PortChange::ACTIVE
            | PortChange::GID_TABLE
            | PortChange::PKEY_TABLE
            | PortChange::LID
            | PortChange::SM;
        events.note(PortState::Active, gid(1, 2), change);
        let mut changed = ChangedAttributes::default();
        changed.set_lid(true);
        changed.set_client_reregister(true);
        let expected = [
            Eqe::guid_change(PORT),
            Eqe::pkey_change(PORT),
            Eqe::port_info_change(PORT, changed),
            Eqe::port_change(PORT, true),
        ];
        assert_eq!(drain(&mut events), expected);
    }

    #[test]
    fn a_port_that_flaps_before_the_guest_is_told_is_down_and_then_active() {
        let mut events = PortEvents::default();
        events.note(PortState::Active, None, PortChange::ACTIVE);
        assert_eq!(drain(&mut events), [Eqe::port_change(PORT, true)]);
        let flap = PortChange::ACTIVE | PortChange::DOWN;
        events.note(PortState::Active, None, flap);
        let expected = [Eqe::port_change(PORT, false), Eqe::port_change(PORT, true)];
        assert_eq!(drain(&mut events), expected);
        events.note(PortState::Down, None, flap);
        assert_eq!(drain(&mut events), [Eqe::port_change(PORT, false)]);
        events.note(PortState::Down, None, flap);
        assert_eq!(drain(&mut events), []);
    }

    #[test]
    fn a_guest_that_started_with_an_active_port_is_not_told_so_with_other_news() {
        let mut events = PortEvents::default();
        events.note(PortState::Active, None, PortChange::CLIENT_REREGISTER);
        assert_eq!(drain(&mut events), [reregister()]);
        events.note(PortState::Down, None, PortChange::DOWN);
        assert_eq!(drain(&mut events), [Eqe::port_change(PORT, false)]);
    }

    #[test]
    fn a_first_change_down_is_told() {
        let mut events = PortEvents::default();
        events.note(PortState::Init, None, PortChange::DOWN);
        assert_eq!(drain(&mut events), [Eqe::port_change(PORT, false)]);
    }

    #[test]
    fn a_new_prefix_is_told_from_a_new_guid() {
        let mut events = PortEvents::default();
        events.note(PortState::Down, gid(1, 2), PortChange::GID_TABLE);
        assert_eq!(drain(&mut events), [Eqe::guid_change(PORT)]);
        events.note(PortState::Down, gid(7, 2), PortChange::GID_TABLE);
        let mut changed = ChangedAttributes::default();
        changed.set_gid_prefix(true);
        assert_eq!(drain(&mut events), [Eqe::port_info_change(PORT, changed)]);
        events.note(PortState::Down, gid(7, 3), PortChange::GID_TABLE);
        assert_eq!(drain(&mut events), [Eqe::guid_change(PORT)]);
    }

    #[test]
    fn the_subnet_manager_s_address_is_never_told() {
        let mut events = PortEvents::default();
        events.note(PortState::Down, None, PortChange::SM | PortChange::QOS);
        assert_eq!(drain(&mut events), [reregister()]);
    }

    fn states() -> impl Strategy<Value = PortState> {
        prop_oneof![
            Just(PortState::Down),
            Just(PortState::Init),
            Just(PortState::Active),
        ]
    }

    proptest! {
        /// The model is the guest: what it believes of the port turns with each event, is right when there
        /// are no more events, and each kind of news reached it.
        #[test]
        fn a_guest_that_listens_believes_what_is_true(
            steps in prop::collection::vec((states(), 0..=PortChange::all().bits(), 0..4_usize), 1..40)
        ) {
            let mut events = PortEvents::default();
            let mut believed: Option<bool> = None;
            let mut unheard = PortChange::empty();
            let last = steps.len() - 1;
            for (step, (state, bits, polls)) in steps.into_iter().enumerate() {
                let active = state == PortState::Active;
                let change = PortChange::from_bits_truncate(bits);
                events.note(state, None, change);
                unheard |= change;
                let polls = if step == last { usize::MAX } else { polls };
                for _ in 0..polls {
                    let Some(eqe) = events.poll(PORT) else {
                        prop_assert!(believed.is_none_or(|believed| believed == active));
                        let news = PortChange::GID_TABLE
                            | PortChange::PKEY_TABLE
                            | PortChange::LID
                            | PortChange::CLIENT_REREGISTER;
                        prop_assert!(!unheard.intersects(news));
                        break;
                    };
                    if eqe.event_type == EventType::PORT_CHANGE {
                        let up = eqe.subtype == PORT_ACTIVE;
                        prop_assert!(up || eqe.subtype == PORT_DOWN);
                        prop_assert_ne!(believed, Some(up));
                        believed = Some(up);
                    } else {
                        let data: &PortManagementEvent = eqe.view();
                        prop_assert!(!data.changed.sm_lid() && !data.changed.sm_sl());
                        unheard -= heard(&eqe, data.changed);
                    }
                }
            }
        }
    }

    fn heard(eqe: &Eqe, changed: ChangedAttributes) -> PortChange {
        match eqe.subtype {
            0x14 => PortChange::GID_TABLE,
            0x16 => PortChange::PKEY_TABLE,
            _ => {
                let mut heard = PortChange::empty();
                heard.set(PortChange::GID_TABLE, changed.gid_prefix());
                heard.set(PortChange::LID, changed.lid());
                let reregister = PortChange::CLIENT_REREGISTER | PortChange::SM;
                heard.set(reregister, changed.client_reregister());
                heard
            }
        }
    }
}
