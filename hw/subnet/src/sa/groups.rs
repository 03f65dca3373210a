//! The multicast groups and who belongs to them.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::sa::{JoinState, McMemberRecord, Selector};
use ib_wire::{Gid, Guid, Lid, SubnetPrefix};

/// Most groups that exist at the same time; a join that would create another is refused.
pub const MAX_GROUPS: usize = 16 * 1024;

/// Most members of one group, counted by port GID.
pub const MAX_MEMBERS_PER_GROUP: usize = 64 * 1024;

/// A port GID's membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The GID that joined.
    pub port_gid: Gid,
    /// GUID of the port behind it; different from the GID's if that is an alias.
    pub port_guid: Guid,
    /// The kinds of membership it holds.
    pub join_state: JoinState,
    /// Whether another port joined for it.
    pub proxy: bool,
}

/// A multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What all members share; the fields of a member are zero.
    pub record: McMemberRecord,
    /// Members by the GUID in their GID, which may be an alias.
    pub members: BTreeMap<Guid, Member>,
    /// Whether the group stays without members.
    pub permanent: bool,
}

impl Group {
    fn full_members(&self) -> usize {
        self.members
            .values()
            .filter(|m| m.join_state.is_full())
            .count()
    }
}

/// Why no group could be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfGroups;

/// What a join or leave did to the group as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// The group goes on.
    Same,
    /// It got its first full member.
    Created,
    /// It lost its last full member.
    Destroyed,
}

/// The outcome of a leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// What the member still holds.
    pub(super) remaining: JoinState,
    /// What became of the group.
    pub(super) lifecycle: Lifecycle,
}

/// All multicast groups of the subnet.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    by_mgid: BTreeMap<Gid, Group>,
    mlids: BTreeSet<Lid>,
    last_mlid: Lid,
    mgid_counter: u32,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            by_mgid: BTreeMap::new(),
            mlids: BTreeSet::new(),
            last_mlid: Lid::LAST_MULTICAST,
            mgid_counter: 0,
        }
    }

    /// Sets the last multicast LID that all switches can forward.
    pub(super) fn set_last_mlid(&mut self, last: Lid) {
        self.last_mlid = last;
    }

    pub(super) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.by_mgid.get(&mgid)
    }

    /// All groups in the order of their MGIDs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.by_mgid.values()
    }

    /// Returns the first group from an MGID on, in order.
    pub(super) fn first_from(&self, mgid: Gid) -> Option<&Group> {
        self.by_mgid.range(mgid..).next().map(|(_, group)| group)
    }

    /// Whether a GUID, alias or not, is a member of any group.
    pub(super) fn has_member(&self, guid: Guid) -> bool {
        self.iter().any(|group| group.members.contains_key(&guid))
    }

    /// An MGID that no group has, as the SA makes it up when a create asks for MGID 0: transient, of
    /// the given scope, signature 0xA01B, subnet prefix and a counter (IBA 15.2.5.17.2). The
    /// counter stands at bytes 10..14 in little-endian order, where OpenSM puts it.
    pub(super) fn new_mgid(&mut self, scope: u8, prefix: SubnetPrefix) -> Gid {
        loop {
            let mut mgid = [0; 16];
            mgid[..4].copy_from_slice(&[0xff, 0x10 | (scope & 0xf), 0xa0, 0x1b]);
            mgid[4..12].copy_from_slice(&prefix.get().to_be_bytes());
            mgid[10..14].copy_from_slice(&self.mgid_counter.to_le_bytes());
            self.mgid_counter = self.mgid_counter.wrapping_add(1);
            if !self.by_mgid.contains_key(&Gid(mgid)) {
                return Gid(mgid);
            }
        }
    }

    /// Makes an empty group from a record with all group fields; the MLID in it is kept if it is
    /// free, else the lowest free one is taken. An existing group of the MGID is left alone.
    pub(super) fn create(
        &mut self,
        record: &McMemberRecord,
        permanent: bool,
    ) -> Result<&Group, OutOfGroups> {
        if !self.by_mgid.contains_key(&record.mgid) && self.by_mgid.len() >= MAX_GROUPS {
            return Err(OutOfGroups);
        }
        let mlid = self.choose_mlid(record.mlid).ok_or(OutOfGroups)?;
        let mut record = McMemberRecord {
            port_gid: Gid::NONE,
            mlid,
            proxy: 0,
            ..*record
        };
        record.set_join_state(JoinState::NONE);
        exact_selectors(&mut record);
        let mlids = &mut self.mlids;
        Ok(self.by_mgid.entry(record.mgid).or_insert_with(|| {
            mlids.insert(mlid);
            Group {
                record,
                members: BTreeMap::new(),
                permanent,
            }
        }))
    }

    fn choose_mlid(&self, wanted: Lid) -> Option<Lid> {
        let usable = |lid: Lid| lid <= self.last_mlid && !self.mlids.contains(&lid);
        if wanted.is_multicast() && usable(wanted) {
            return Some(wanted);
        }
        let (first, last) = (Lid::FIRST_MULTICAST.get(), self.last_mlid.get());
        (first..=last).map(Lid::new).find(|lid| usable(*lid))
    }

    /// Adds kinds of membership to those a GID holds. `None` if there is no such group or no room.
    pub(super) fn join(&mut self, mgid: Gid, joining: Member) -> Option<(JoinState, Lifecycle)> {
        let group = self.by_mgid.get_mut(&mgid)?;
        let had_full_members = group.full_members() > 0;
        let is_new = !group.members.contains_key(&joining.port_gid.interface_id());
        if is_new && group.members.len() >= MAX_MEMBERS_PER_GROUP {
            return None;
        }
        let nobody = Member {
            join_state: JoinState::NONE,
            ..joining
        };
        let member = group
            .members
            .entry(joining.port_gid.interface_id())
            .or_insert(nobody);
        member.join_state = member.join_state | joining.join_state;
        let state = member.join_state;
        let created = !had_full_members && state.is_full();
        Some((
            state,
            if created {
                Lifecycle::Created
            } else {
                Lifecycle::Same
            },
        ))
    }

    /// Takes kinds of membership from a GID's. The member stays while it holds a full kind, or
    /// anything else in a group with other full members. Without full members the group goes, with
    /// everyone in it. `None` if the GUID is no member.
    ///
    /// OpenSM forgets here that a send-only full member counts as full and leaves an empty group
    /// behind when one held both full kinds and gives up the first; this does not.
    pub(super) fn leave(&mut self, mgid: Gid, guid: Guid, leaving: JoinState) -> Option<Left> {
        let group = self.by_mgid.get_mut(&mgid)?;
        let full_members = group.full_members();
        let member = group.members.get_mut(&guid)?;
        let held = member.join_state;
        let rest = held.difference(leaving);
        let others = full_members > usize::from(held.is_full());
        let stays = rest.is_full() || (!rest.is_empty() && others);
        if stays {
            member.join_state = rest;
        } else {
            group.members.remove(&guid);
        }
        let remaining = if stays { rest } else { JoinState::NONE };
        let lost_full = held.is_full() && !rest.is_full();
        let lifecycle = if lost_full && full_members == 1 {
            self.clear(mgid);
            Lifecycle::Destroyed
        } else {
            Lifecycle::Same
        };
        Some(Left {
            remaining,
            lifecycle,
        })
    }

    /// Removes all memberships of a port, those of its aliases included. Gives the groups that it was
    /// in, with what became of them.
    pub(super) fn remove_port(&mut self, port_guid: Guid) -> Vec<(McMemberRecord, Lifecycle)> {
        self.remove_where(|member| member.port_guid == port_guid)
    }

    fn remove_where(&mut self, gone: impl Fn(&Member) -> bool) -> Vec<(McMemberRecord, Lifecycle)> {
        let mut touched = Vec::new();
        let mgids: Vec<Gid> = self.by_mgid.keys().copied().collect();
        for mgid in mgids {
            let Some(group) = self.by_mgid.get_mut(&mgid) else {
                continue;
            };
            let (members, had_full) = (group.members.len(), group.full_members() > 0);
            group.members.retain(|_, member| !gone(member));
            if group.members.len() == members {
                continue;
            }
            let record = group.record;
            let destroyed = had_full && group.full_members() == 0;
            if destroyed {
                self.clear(mgid);
            }
            touched.push((
                record,
                if destroyed {
                    Lifecycle::Destroyed
                } else {
                    Lifecycle::Same
                },
            ));
        }
        touched
    }

    /// Removes the members that are left and, unless it is permanent, the group.
    fn clear(&mut self, mgid: Gid) {
        let Some(group) = self.by_mgid.get_mut(&mgid) else {
            return;
        };
        group.members.clear();
        if !group.permanent {
            self.mlids.remove(&group.record.mlid);
            self.by_mgid.remove(&mgid);
        }
    }

    /// Undoes [`Self::create`] for a group that nobody joined.
    pub(super) fn remove_unused(&mut self, mgid: Gid) {
        if self.get(mgid).is_some_and(|group| group.members.is_empty()) {
            self.clear(mgid);
        }
    }
}

/// Marks MTU, rate and life time as "exactly", as every answer of the SA does.
pub(super) fn exact_selectors(record: &mut McMemberRecord) {
    record.set_mtu_selector(Selector::EXACTLY);
    record.set_rate_selector(Selector::EXACTLY);
    record.set_packet_life_time_selector(Selector::EXACTLY);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FULL: JoinState = JoinState::FULL_MEMBER;
    const NON: JoinState = JoinState::NON_MEMBER;

    fn mgid(n: u8) -> Gid {
        let mut bytes = [0; 16];
        (bytes[0], bytes[15]) = (0xff, n);
        Gid(bytes)
    }

    fn record(n: u8) -> McMemberRecord {
        McMemberRecord {
            mgid: mgid(n),
            ..McMemberRecord::default()
        }
    }

    fn member(guid: u64, join_state: JoinState) -> Member {
        let guid = Guid::new(guid);
        let port_gid = Gid::from_parts(SubnetPrefix::DEFAULT, guid);
        Member {
            port_gid,
            port_guid: guid,
            join_state,
            proxy: false,
        }
    }

    #[test]
    fn mlids_are_the_lowest_free_ones_and_come_back() {
        let mut groups = Groups::new();
        for n in 1..=3 {
            groups.create(&record(n), false).unwrap();
            groups.join(mgid(n), member(1, FULL)).unwrap();
        }
        assert_eq!(groups.get(mgid(3)).unwrap().record.mlid, Lid::new(0xc002));
        groups.leave(mgid(2), Guid::new(1), FULL).unwrap();
        assert_eq!(
            groups.create(&record(4), false).unwrap().record.mlid,
            Lid::new(0xc001)
        );
        groups.set_last_mlid(Lid::new(0xc002));
        assert_eq!(groups.create(&record(5), false), Err(OutOfGroups));
    }

    #[test]
    fn the_last_full_member_takes_the_group_along() {
        let mut groups = Groups::new();
        groups.create(&record(1), false).unwrap();
        assert_eq!(
            groups.join(mgid(1), member(1, FULL | NON)),
            Some((FULL | NON, Lifecycle::Created))
        );
        assert_eq!(
            groups.join(mgid(1), member(2, NON)),
            Some((NON, Lifecycle::Same))
        );
        let left = groups.leave(mgid(1), Guid::new(1), FULL).unwrap();
        assert_eq!(
            left,
            Left {
                remaining: JoinState::NONE,
                lifecycle: Lifecycle::Destroyed
            }
        );
        assert!(groups.get(mgid(1)).is_none());
    }

    #[test]
    fn a_permanent_group_outlives_its_members() {
        let mut groups = Groups::new();
        groups.create(&record(1), true).unwrap();
        groups.join(mgid(1), member(1, FULL)).unwrap();
        assert_eq!(groups.remove_port(Guid::new(1)).len(), 1);
        assert!(groups.get(mgid(1)).unwrap().members.is_empty());
    }

    #[test]
    fn a_made_up_mgid_is_that_of_opensm() {
        let mut groups = Groups::new();
        let first = groups.new_mgid(2, SubnetPrefix::DEFAULT);
        assert_eq!(
            first.0[..12],
            [0xff, 0x12, 0xa0, 0x1b, 0xfe, 0x80, 0, 0, 0, 0, 0, 0]
        );
        assert_ne!(groups.new_mgid(2, SubnetPrefix::DEFAULT), first);
    }

    proptest! {
        #[test]
        fn join_states_are_those_of_a_model(
            steps in prop::collection::vec((0_u64..4, any::<bool>(), 1_u8..16), 1..60)
        ) {
            let mut groups = Groups::new();
            let mut model: BTreeMap<u64, u8> = BTreeMap::new();
            let is_full = |state: &&u8| **state & 9 != 0;
            for (guid, joins, bits) in steps {
                let state = JoinState::from_low_bits(bits);
                if joins {
                    // The SA creates a group for full members only.
                    if groups.get(mgid(1)).is_none() && !state.is_full() {
                        continue;
                    }
                    groups.create(&record(1), false).unwrap();
                    let (held, _) = groups.join(mgid(1), member(guid, state)).unwrap();
                    let entry = model.entry(guid).or_default();
                    *entry |= bits;
                    prop_assert_eq!(held.get(), *entry);
                } else if let Some(held) = model.get(&guid).copied().filter(|held| held & bits == bits) {
                    let left = groups.leave(mgid(1), Guid::new(guid), state).unwrap();
                    let full = model.values().filter(is_full).count();
                    let rest = held & !bits;
                    let destroyed = held & 9 != 0 && rest & 9 == 0 && full == 1;
                    prop_assert_eq!(left.lifecycle == Lifecycle::Destroyed, destroyed);
                    let stays = rest & 9 != 0 || (rest != 0 && full > usize::from(held & 9 != 0));
                    prop_assert_eq!(left.remaining.get(), if stays { rest } else { 0 });
                    if destroyed {
                        model.clear();
                    } else if stays {
                        model.insert(guid, rest);
                    } else {
                        model.remove(&guid);
                    }
                }
                let held: BTreeMap<u64, u8> = groups
                    .get(mgid(1))
                    .map(|g| g.members.iter().map(|(k, m)| (k.get(), m.join_state.get())).collect())
                    .unwrap_or_default();
                prop_assert_eq!(&held, &model);
                prop_assert_eq!(groups.get(mgid(1)).is_some(), model.values().any(|s| s & 9 != 0));
            }
        }
    }
}
