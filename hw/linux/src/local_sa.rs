//! An SA for a RoCE port, which has no subnet manager. Its answers follow from the [addresses](Addresses) of the port.

use std::collections::BTreeMap;

use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::ClassPortInfo;
use ib_wire::sa::{
    GuidInfoRecord, JoinState, McMemberRecord, PathRecord, SaMad, SaRecord, Selector,
};
use ib_wire::{Gid, Lid, Mtu, PKey, QKey, Qpn, Rate};
use zerocopy::IntoBytes;

use crate::addresses::{Addresses, OWN_LID};

/// Hop limit of paths. One above zero asks for a GRH, which RoCE needs always.
const HOP_LIMIT: u8 = 64;

/// Longest life of a packet: 4.096 µs × 2^18, as by default of OpenSM.
const LIFE_TIME: u8 = 18;

/// Groups that there may be.
const MAX_GROUPS: u16 = 1024;

/// CapabilityMask2: additional GUIDs (IBA 15.2.1.1).
const ADDITIONAL_GUIDS: u32 = 1 << 5;

/// GUIDs in a block (IBA 14.2.5.5).
const BLOCK: usize = 8;

/// A multicast group.
#[derive(Debug)]
struct Group {
    record: McMemberRecord,
    /// Memberships by the members' GIDs.
    members: BTreeMap<Gid, JoinState>,
}

/// The SA of a port.
#[derive(Debug, Default)]
pub(crate) struct LocalSa {
    groups: BTreeMap<Gid, Group>,
}

impl LocalSa {
    /// Returns the answer to a MAD, on a port whose packets have up to `mtu` bytes. `None` for a MAD that is no request to an SA.
    pub(crate) fn answer(&mut self, addresses: &mut Addresses, mtu: Mtu, mad: &Mad) -> Option<Mad> {
        let header = &mad.header;
        let is_request = matches!(
            header.method,
            Method::GET | Method::GET_TABLE | Method::SET | Method::DELETE
        );
        if header.mgmt_class != MgmtClass::SUBN_ADM || !is_request {
            return None;
        }
        let mut reply = *mad;
        let sa: &mut SaMad = reply.view_mut();
        let status = self.carry_out(addresses, mtu, sa).err();
        sa.rmpp = Default::default();
        sa.header.method = header.method.response();
        sa.header.status = status.unwrap_or(MadStatus::OK);
        Some(reply)
    }

    /// Carries a request out, and writes its result in its place.
    fn carry_out(
        &mut self,
        addresses: &mut Addresses,
        mtu: Mtu,
        sa: &mut SaMad,
    ) -> Result<(), MadStatus> {
        match (sa.header.attribute_id, sa.header.method) {
            (AttributeId::CLASS_PORT_INFO, Method::GET) => describe(sa),
            (PathRecord::ATTRIBUTE_ID, Method::GET) => return find_path(addresses, mtu, sa),
            (GuidInfoRecord::ATTRIBUTE_ID, Method::GET | Method::SET | Method::DELETE) => {
                return guids(addresses, sa);
            }
            (McMemberRecord::ATTRIBUTE_ID, Method::GET) => return self.look_up(sa),
            (McMemberRecord::ATTRIBUTE_ID, Method::SET) => {
                return self.join(addresses, mtu, sa);
            }
            (McMemberRecord::ATTRIBUTE_ID, Method::DELETE) => return self.leave(sa),
            // There is nothing to report, so the subscription is kept nowhere.
            (AttributeId::INFORM_INFO, Method::SET) => {}
            (_, Method::GET | Method::GET_TABLE) => return Err(MadStatus::SA_NO_RECORDS),
            _ => return Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE),
        }
        Ok(())
    }

    fn look_up(&self, sa: &mut SaMad) -> Result<(), MadStatus> {
        if !sa.component_mask.contains(McMemberRecord::MGID) {
            return Err(MadStatus::SA_NO_RECORDS);
        }
        let asked: McMemberRecord = sa.record();
        let group = self.groups.get(&asked.mgid);
        sa.set_record(&group.ok_or(MadStatus::SA_NO_RECORDS)?.record);
        Ok(())
    }

    fn join(&mut self, addresses: &Addresses, mtu: Mtu, sa: &mut SaMad) -> Result<(), MadStatus> {
        let asked: McMemberRecord = sa.record();
        let has = |mask| sa.component_mask.contains(mask);
        if !has(McMemberRecord::JOIN) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        let other_partition = has(McMemberRecord::PKEY) && !is_default(asked.pkey);
        let is_member = addresses.is_own(asked.port_gid) && !asked.join_state().is_empty();
        if !asked.mgid.is_multicast() || !is_member || other_partition {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        if !self.groups.contains_key(&asked.mgid) {
            let can_make = asked.join_state().is_full() && has(McMemberRecord::QKEY);
            if !can_make {
                return Err(MadStatus::SA_REQ_INVALID);
            }
            let mlid = self.free_mlid().ok_or(MadStatus::SA_NO_RESOURCES)?;
            self.groups.insert(asked.mgid, group(&asked, mlid, mtu));
        }
        let Some(group) = self.groups.get_mut(&asked.mgid) else {
            return Err(MadStatus::SA_NO_RESOURCES);
        };
        let member = group.members.entry(asked.port_gid).or_default();
        *member = *member | asked.join_state();
        let mut granted = McMemberRecord {
            port_gid: asked.port_gid,
            ..group.record
        };
        granted.set_join_state(*member);
        sa.set_record(&granted);
        Ok(())
    }

    fn leave(&mut self, sa: &mut SaMad) -> Result<(), MadStatus> {
        let asked: McMemberRecord = sa.record();
        if !sa.component_mask.contains(McMemberRecord::JOIN) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        let group = self.groups.get_mut(&asked.mgid);
        let group = group.ok_or(MadStatus::SA_REQ_INVALID)?;
        let member = group.members.get_mut(&asked.port_gid);
        let member = member.ok_or(MadStatus::SA_REQ_INVALID)?;
        *member = member.difference(asked.join_state());
        let mut left = McMemberRecord {
            port_gid: asked.port_gid,
            ..group.record
        };
        left.set_join_state(*member);
        group.members.retain(|_, state| !state.is_empty());
        if !group.members.values().any(|state| state.is_full()) {
            self.groups.remove(&asked.mgid);
        }
        sa.set_record(&left);
        Ok(())
    }

    /// Returns the first multicast LID that no group has.
    fn free_mlid(&self) -> Option<Lid> {
        let first = Lid::FIRST_MULTICAST.get();
        let mut mlids = (first..first + MAX_GROUPS).map(Lid::new);
        mlids.find(|mlid| !self.groups.values().any(|group| group.record.mlid == *mlid))
    }
}

/// Makes a group as its first member asks for it.
fn group(asked: &McMemberRecord, mlid: Lid, mtu: Mtu) -> Group {
    let mut record = McMemberRecord {
        port_gid: Gid::NONE,
        mlid,
        pkey: PKey::DEFAULT_FULL,
        proxy: 0,
        ..*asked
    };
    record.set_mtu_selector(Selector::EXACTLY);
    record.set_mtu_value(mtu);
    record.set_rate_selector(Selector::EXACTLY);
    record.set_rate_value(Rate::GBPS_10);
    record.set_packet_life_time_selector(Selector::EXACTLY);
    record.set_packet_life_time_value(LIFE_TIME);
    record.set_hop_limit(HOP_LIMIT);
    record.set_join_state(JoinState::NONE);
    Group {
        record,
        members: BTreeMap::new(),
    }
}

fn is_default(pkey: PKey) -> bool {
    pkey.full() == PKey::DEFAULT_FULL
}

fn describe(sa: &mut SaMad) {
    let mut info = ClassPortInfo {
        base_version: 1,
        class_version: MgmtClass::SUBN_ADM.supported_version(),
        redirect_qp: Qpn::GSI,
        redirect_qkey: QKey::GSI,
        trap_qkey: QKey::GSI,
        ..ClassPortInfo::default()
    };
    info.set_capability_mask2(ADDITIONAL_GUIDS);
    sa.attribute_offset = 0.into();
    sa.data.fill(0);
    let (data, _) = sa.data.split_at_mut(size_of::<ClassPortInfo>());
    data.copy_from_slice(info.as_bytes());
}

/// Finds the path from an address of the port to any other address. The kernel finds out whether a host has that one.
fn find_path(addresses: &Addresses, mtu: Mtu, sa: &mut SaMad) -> Result<(), MadStatus> {
    let asked: PathRecord = sa.record();
    let has = |mask| sa.component_mask.contains(mask);
    if !has(PathRecord::DGID.union(PathRecord::SGID)) {
        return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
    }
    let other_partition = has(PathRecord::PKEY) && !is_default(asked.pkey);
    let is_unicast = !asked.dgid.is_multicast() && !asked.dgid.is_none();
    if !addresses.is_own(asked.sgid) || !is_unicast || other_partition {
        return Err(MadStatus::SA_NO_RECORDS);
    }
    let mut path = PathRecord {
        dgid: asked.dgid,
        sgid: asked.sgid,
        dlid: addresses.lid_of(asked.dgid),
        slid: OWN_LID,
        pkey: PKey::DEFAULT_FULL,
        ..PathRecord::default()
    };
    path.set_hop_limit(HOP_LIMIT);
    path.set_reversible(true);
    path.set_numb_path(1);
    path.set_mtu_selector(Selector::EXACTLY);
    path.set_mtu_value(mtu);
    path.set_rate_selector(Selector::EXACTLY);
    path.set_rate_value(Rate::GBPS_10);
    path.set_packet_life_time_selector(Selector::EXACTLY);
    path.set_packet_life_time_value(LIFE_TIME);
    sa.set_record(&path);
    Ok(())
}

/// Assigns addresses to entries of the function's table, takes them back, or shows them.
fn guids(addresses: &mut Addresses, sa: &mut SaMad) -> Result<(), MadStatus> {
    let mut record: GuidInfoRecord = sa.record();
    let has = |mask| sa.component_mask.contains(mask);
    if !has(GuidInfoRecord::LID.union(GuidInfoRecord::BLOCK)) {
        return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
    }
    if record.lid != OWN_LID {
        return Err(MadStatus::SA_NO_RECORDS);
    }
    let first = usize::from(record.block) * BLOCK;
    for (nth, guid) in record.guids.iter_mut().enumerate() {
        let entry = first + nth;
        let is_meant = has(GuidInfoRecord::guid_component(nth));
        match sa.header.method {
            // An entry without a GUID says that there is none to be had (IBA 15.2.5.18).
            Method::SET if is_meant && entry != 0 => {
                *guid = addresses.give(entry, *guid).unwrap_or_default();
            }
            Method::DELETE if is_meant => {
                addresses.take_back(entry);
                *guid = addresses.guid(entry);
            }
            _ => *guid = addresses.guid(entry),
        }
    }
    sa.set_record(&record);
    Ok(())
}

#[cfg(test)]
mod tests {
    use ib_endpoint::SaRequest;
    use ib_wire::{Guid, SubnetPrefix};

    use super::*;
    use crate::testing;

    /// The addresses of a port: its own and two more.
    fn addresses() -> Addresses {
        let mut port = testing::port();
        port.gids.truncate(3);
        let mut addresses = Addresses::new(&port, &|_| true).unwrap();
        addresses.show(&mut port, &|_| true);
        addresses
    }

    const fn guid(entry: u64) -> Guid {
        Guid::new(0x101 + entry)
    }

    fn gid(entry: u64) -> Gid {
        Gid::from_parts(SubnetPrefix::DEFAULT, guid(entry))
    }

    fn asked(sa: &mut LocalSa, addresses: &mut Addresses, request: &SaRequest) -> SaMad {
        let mad = request.message().mad();
        let answer = sa.answer(addresses, Mtu::MTU_1024, mad).unwrap();
        assert_eq!(answer.header.tid, mad.header.tid);
        *answer.view()
    }

    #[test]
    fn guids_are_addresses_that_no_other_entry_has() {
        let (mut sa, mut addresses) = (LocalSa::default(), addresses());
        let mut set = |guids: [Option<Guid>; 8]| {
            let request = SaRequest::set_guids(OWN_LID, 0, &guids);
            let answer = asked(&mut sa, &mut addresses, &request);
            assert_eq!(answer.header.status, MadStatus::OK);
            answer.record::<GuidInfoRecord>().guids
        };
        let any = Some(Guid::NONE);
        let none = Guid::NONE;
        let given = set([None, any, any, any, None, None, None, None]);
        assert_eq!(given[..4], [guid(0), guid(1), guid(2), none]);
        let taken = set([None, None, Some(guid(1)), None, None, None, None, None]);
        assert_eq!(taken[..3], [guid(0), guid(1), none]);
        let request =
            SaRequest::delete_guids(OWN_LID, 0, &[None, any, None, None, None, None, None, None]);
        let left = asked(&mut sa, &mut addresses, &request);
        assert_eq!(left.record::<GuidInfoRecord>().guids[1], none);
        assert!(!addresses.is_own(gid(1)));
    }

    #[test]
    fn paths_begin_at_addresses_of_the_port_and_want_a_grh() {
        let (mut sa, mut addresses) = (LocalSa::default(), addresses());
        addresses.give(1, guid(1));
        let far = Gid([9; 16]);
        for (from, to, status, dlid) in [
            (gid(1), far, MadStatus::OK, 2),
            (gid(1), gid(0), MadStatus::OK, 1),
            (gid(2), far, MadStatus::SA_NO_RECORDS, 0),
            (gid(1), Gid([0xff; 16]), MadStatus::SA_NO_RECORDS, 0),
        ] {
            let request = SaRequest::path_by_gids(from, to, None);
            let answer = asked(&mut sa, &mut addresses, &request);
            assert_eq!(answer.header.status, status);
            if status == MadStatus::OK {
                let path: PathRecord = answer.record();
                let ends = (path.sgid, path.dgid, path.slid, path.dlid.get());
                assert_eq!(ends, (from, to, OWN_LID, dlid));
                assert_eq!((path.hop_limit(), path.mtu_value()), (64, Mtu::MTU_1024));
            }
        }
    }

    #[test]
    fn groups_are_there_as_long_as_they_have_members() {
        let (mut sa, mut addresses) = (LocalSa::default(), addresses());
        let mut record = McMemberRecord {
            mgid: Gid([0xff; 16]),
            port_gid: gid(0),
            qkey: QKey::new(0x1b),
            pkey: PKey::DEFAULT_FULL,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        let get = SaRequest::get(&record, McMemberRecord::MGID);
        let mask = McMemberRecord::JOIN.union(McMemberRecord::CREATE);
        let join = SaRequest::set(&record, mask);
        let leave = SaRequest::delete(&record, McMemberRecord::JOIN);
        let stranger = McMemberRecord {
            port_gid: gid(1),
            ..record
        };
        let (ok, none) = (MadStatus::OK, MadStatus::SA_NO_RECORDS);
        let invalid = MadStatus::SA_REQ_INVALID;
        for (request, status) in [
            (&get, none),
            (&SaRequest::set(&stranger, mask), invalid),
            (&SaRequest::set(&record, McMemberRecord::JOIN), invalid),
            (&join, ok),
            (&get, ok),
            (&join, ok),
            (&leave, ok),
            (&leave, invalid),
            (&get, none),
        ] {
            let answer = asked(&mut sa, &mut addresses, request);
            assert_eq!(answer.header.status, status, "{request:?}");
            if status == ok {
                let group: McMemberRecord = answer.record();
                assert_eq!(
                    (group.mlid, group.qkey),
                    (Lid::FIRST_MULTICAST, record.qkey)
                );
            }
        }
    }

    #[test]
    fn all_else_is_refused_or_no_request() {
        let (mut sa, mut addresses) = (LocalSa::default(), addresses());
        let info = asked(&mut sa, &mut addresses, &SaRequest::class_port_info());
        assert_eq!(info.header.status, MadStatus::OK);
        for (class, method, status) in [
            (
                MgmtClass::SUBN_ADM,
                Method::GET_TABLE,
                Some(MadStatus::SA_NO_RECORDS),
            ),
            (
                MgmtClass::SUBN_ADM,
                Method::SET,
                Some(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE),
            ),
            (MgmtClass::SUBN_ADM, Method::GET_RESP, None),
            (MgmtClass::SUBN_ADM, Method::REPORT, None),
            (MgmtClass::COM_MGT, Method::GET, None),
        ] {
            let mad = testing::mad(class, method, 5);
            let answer = sa.answer(&mut addresses, Mtu::MTU_1024, &mad);
            assert_eq!(answer.map(|answer| answer.header.status), status);
        }
    }
}
