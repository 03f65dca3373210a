//! What is asked of the SA, and what it answers.

use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::notice::{ClassPortInfo, InformInfo};
use ib_wire::sa::{
    ComponentMask, GuidInfoRecord, McMemberRecord, MultiPathRecord, PathRecord, SaMad, SaRecord,
    ServiceRecord, records,
};
use ib_wire::{Gid, Guid, Lid, PKey};
use zerocopy::{FromBytes, IntoBytes};

use crate::Message;

/// A request to the SA (IBA 15.4). Which fields of the record count is what its component mask
/// says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaRequest {
    pub(super) message: Message,
}

impl SaRequest {
    /// SubnAdmGet: the one record that matches.
    #[must_use]
    pub fn get<R: SaRecord>(record: &R, mask: ComponentMask) -> Self {
        Self::with_record(Method::GET, record, mask)
    }

    /// SubnAdmGetTable: all records that match, over RMPP.
    #[must_use]
    pub fn get_table<R: SaRecord>(record: &R, mask: ComponentMask) -> Self {
        Self::with_record(Method::GET_TABLE, record, mask)
    }

    /// SubnAdmSet.
    #[must_use]
    pub fn set<R: SaRecord>(record: &R, mask: ComponentMask) -> Self {
        Self::with_record(Method::SET, record, mask)
    }

    /// SubnAdmDelete.
    #[must_use]
    pub fn delete<R: SaRecord>(record: &R, mask: ComponentMask) -> Self {
        Self::with_record(Method::DELETE, record, mask)
    }

    /// The SA's ClassPortInfo.
    #[must_use]
    pub fn class_port_info() -> Self {
        let header = MadHeader::new(
            MgmtClass::SUBN_ADM,
            Method::GET,
            AttributeId::CLASS_PORT_INFO,
        );
        Self {
            message: Message::single(Mad::new(header)),
        }
    }

    /// The best reversible path between two ports, by GID.
    #[must_use]
    pub fn path_by_gids(sgid: Gid, dgid: Gid, pkey: Option<PKey>) -> Self {
        let record = PathRecord {
            sgid,
            dgid,
            ..PathRecord::default()
        };
        Self::path(record, PathRecord::SGID | PathRecord::DGID, pkey)
    }

    /// The best reversible path between two ports, by LID.
    #[must_use]
    pub fn path_by_lids(slid: Lid, dlid: Lid, pkey: Option<PKey>) -> Self {
        let record = PathRecord {
            slid,
            dlid,
            ..PathRecord::default()
        };
        Self::path(record, PathRecord::SLID | PathRecord::DLID, pkey)
    }

    fn path(mut record: PathRecord, mut mask: ComponentMask, pkey: Option<PKey>) -> Self {
        record.set_reversible(true);
        record.set_numb_path(1);
        mask = mask | PathRecord::REVERSIBLE | PathRecord::NUMB_PATH;
        if let Some(pkey) = pkey {
            record.pkey = pkey;
            mask = mask | PathRecord::PKEY;
        }
        Self::get(&record, mask)
    }

    /// SubnAdmGetMulti: paths between sets of ports, asked under RMPP and answered with
    /// PathRecords. `None` if there are more than eleven GIDs in all.
    #[must_use]
    pub fn multi_path(
        record: &MultiPathRecord,
        mask: ComponentMask,
        sgids: &[Gid],
        dgids: &[Gid],
    ) -> Option<Self> {
        let mut record = *record;
        record.sgid_count = u8::try_from(sgids.len()).ok()?;
        record.dgid_count = u8::try_from(dgids.len()).ok()?;
        let count = sgids.len() + dgids.len();
        let slots = record.gids.get_mut(..count)?;
        slots[..sgids.len()].copy_from_slice(sgids);
        slots[sgids.len()..].copy_from_slice(dgids);
        let fixed = size_of::<MultiPathRecord>() - size_of_val(&record.gids);
        let used = fixed + count * size_of::<Gid>();
        let head = SaMad::new(Method::GET_MULTI, mask, &record);
        let data = record.as_bytes()[..used].to_vec();
        Message::rmpp(Mad::from_layout(&head), data).map(|message| Self { message })
    }

    /// Joins a port to a multicast group: `record` names the MGID, the port's GID and the kind of
    /// membership, and `mask` says which other fields must hold (or, to make a group, make it).
    #[must_use]
    pub fn join(record: &McMemberRecord, mask: ComponentMask) -> Self {
        Self::set(record, mask | MEMBERSHIP)
    }

    /// Ends the kinds of membership in `record` of a port in a group.
    #[must_use]
    pub fn leave(record: &McMemberRecord) -> Self {
        Self::delete(record, MEMBERSHIP)
    }

    /// Registers a service.
    #[must_use]
    pub fn register_service(record: &ServiceRecord) -> Self {
        let all = SERVICE
            | ServiceRecord::SERVICE_LEASE
            | ServiceRecord::SERVICE_NAME
            | ServiceRecord::SERVICE_DATA;
        Self::set(record, all)
    }

    /// Deletes a service's record, named by service, GID, P_Key and key.
    #[must_use]
    pub fn delete_service(record: &ServiceRecord) -> Self {
        Self::delete(record, SERVICE)
    }

    /// Asks for alias GUIDs of a port: entries of `guids` that are `Some` are set, and a GUID of 0
    /// lets the SA choose.
    #[must_use]
    pub fn set_guids(lid: Lid, block: u8, guids: &[Option<Guid>; 8]) -> Self {
        let (record, mask) = guid_block(lid, block, guids);
        Self::set(&record, mask)
    }

    /// Gives alias GUIDs of a port back.
    #[must_use]
    pub fn delete_guids(lid: Lid, block: u8, guids: &[Option<Guid>; 8]) -> Self {
        let (record, mask) = guid_block(lid, block, guids);
        Self::delete(&record, mask)
    }

    /// A block of a port's GUIDs as the SA knows it.
    #[must_use]
    pub fn get_guids(lid: Lid, block: u8) -> Self {
        let (record, mask) = guid_block(lid, block, &[None; 8]);
        Self::get(&record, mask)
    }

    /// Subscribes to notices, or ends a subscription, as `inform` says.
    #[must_use]
    pub fn inform(inform: &InformInfo) -> Self {
        Self::set(inform, ComponentMask::NONE)
    }

    /// The request, for those who send it by another way than [`SaClient`](super::SaClient).
    #[must_use]
    pub const fn message(&self) -> &Message {
        &self.message
    }

    fn with_record<R: SaRecord>(method: Method, record: &R, mask: ComponentMask) -> Self {
        let mad = SaMad::new(method, mask, record);
        Self {
            message: Message::single(Mad::from_layout(&mad)),
        }
    }
}

/// The components that name a membership.
const MEMBERSHIP: ComponentMask = McMemberRecord::MGID
    .union(McMemberRecord::PORT_GID)
    .union(McMemberRecord::JOIN_STATE);

/// The components that name a service's record.
const SERVICE: ComponentMask = ServiceRecord::SERVICE_ID
    .union(ServiceRecord::SERVICE_GID)
    .union(ServiceRecord::SERVICE_PKEY)
    .union(ServiceRecord::SERVICE_KEY);

fn guid_block(lid: Lid, block: u8, guids: &[Option<Guid>; 8]) -> (GuidInfoRecord, ComponentMask) {
    let mut record = GuidInfoRecord {
        lid,
        block,
        ..GuidInfoRecord::default()
    };
    let mut mask = GuidInfoRecord::LID | GuidInfoRecord::BLOCK;
    for (index, guid) in guids.iter().enumerate() {
        if let Some(guid) = guid {
            record.guids[index] = *guid;
            mask = mask | GuidInfoRecord::guid_component(index);
        }
    }
    (record, mask)
}

/// A successful answer of the SA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaAnswer {
    message: Message,
}

impl SaAnswer {
    /// Takes a response with status 0. For those who get the SA's answers by another way than
    /// [`SaClient`](super::SaClient).
    ///
    /// # Errors
    /// The status, if it is another one.
    pub fn from_response(message: Message) -> Result<Self, MadStatus> {
        match message.status() {
            MadStatus::OK => Ok(Self { message }),
            status => Err(status),
        }
    }

    /// The attribute of the records in it.
    #[must_use]
    pub fn attribute_id(&self) -> AttributeId {
        self.message.header().attribute_id
    }

    /// The one record of an answer to Get, Set or Delete, or the first one of a table. `None` if
    /// the answer carries another attribute or nothing.
    #[must_use]
    pub fn record<R: SaRecord>(&self) -> Option<R> {
        self.carries::<R>().then(|| {
            let (record, _) = R::read_from_prefix(self.message.data()).ok()?;
            Some(record)
        })?
    }

    /// All records of an answer to GetTable or GetMulti; none if it carries another attribute.
    ///
    /// An answer that came as one MAD without RMPP does not say how long it is: what is zero at its
    /// end is no record.
    pub fn records<R: SaRecord>(&self) -> impl Iterator<Item = R> {
        let stride = self.message.mad().view::<SaMad>().attribute_offset.get();
        let data: &[u8] = match self.message.data() {
            _ if !self.carries::<R>() => &[],
            data if self.message.is_rmpp() => data,
            data => without_empty_records(data, usize::from(stride) * 8),
        };
        records(data, stride)
    }

    /// The ClassPortInfo of an answer to a request for it.
    #[must_use]
    pub fn class_port_info(&self) -> Option<ClassPortInfo> {
        let carried = self.attribute_id() == AttributeId::CLASS_PORT_INFO;
        carried.then(|| {
            let (info, _) = ClassPortInfo::read_from_prefix(self.message.data()).ok()?;
            Some(info)
        })?
    }

    /// The whole message.
    #[must_use]
    pub const fn message(&self) -> &Message {
        &self.message
    }

    fn carries<R: SaRecord>(&self) -> bool {
        self.attribute_id() == R::ATTRIBUTE_ID
    }
}

/// Data without the records of this length at its end that are zero.
fn without_empty_records(data: &[u8], len: usize) -> &[u8] {
    let used = data
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    let end = used.next_multiple_of(len.max(1)).min(data.len());
    &data[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_request_by_gids_names_gids_reversible_and_one_path() {
        let request = SaRequest::path_by_gids(Gid([1; 16]), Gid([2; 16]), None);
        let mad = request.message.mad().view::<SaMad>();
        assert_eq!(
            mad.component_mask.get(),
            1 << 2 | 1 << 3 | 1 << 11 | 1 << 12
        );
        let record: PathRecord = mad.record();
        assert_eq!(record.reversible_numb_path, 0x81);
        assert_eq!(record.dgid, Gid([2; 16]));
    }

    #[test]
    fn a_multi_path_request_is_as_long_as_its_gids() {
        let gids = [Gid([1; 16]); 6];
        let request = |sources: &[Gid], destinations: &[Gid]| {
            SaRequest::multi_path(
                &MultiPathRecord::default(),
                ComponentMask::NONE,
                sources,
                destinations,
            )
        };
        let message = request(&gids[..1], &gids[..2]).unwrap().message;
        assert_eq!(message.data().len(), 24 + 48);
        assert!(message.is_rmpp());
        assert!(request(&gids[..6], &gids[..6]).is_none());
    }

    #[test]
    fn guid_requests_mark_just_the_given_entries() {
        let mut guids = [None; 8];
        guids[3] = Some(Guid::NONE);
        let request = SaRequest::set_guids(Lid::new(5), 1, &guids);
        let mad = request.message.mad().view::<SaMad>();
        assert_eq!(mad.component_mask.get(), 1 | 2 | 1 << 7);
        assert_eq!(mad.header.method, Method::SET);
    }

    #[test]
    fn an_answer_is_read_only_as_the_record_that_it_carries() {
        let record = PathRecord {
            dlid: Lid::new(9),
            ..PathRecord::default()
        };
        let mad = SaMad::new(Method::GET_RESP, ComponentMask::NONE, &record);
        let answer = SaAnswer::from_response(Message::single(Mad::from_layout(&mad))).unwrap();
        assert_eq!(answer.record::<PathRecord>(), Some(record));
        assert_eq!(answer.record::<ServiceRecord>(), None);
        assert_eq!(answer.records::<ServiceRecord>().count(), 0);
        assert_eq!(answer.class_port_info(), None);
    }

    #[test]
    fn a_table_without_rmpp_ends_with_its_last_record_that_is_not_zero() {
        let record = PathRecord {
            dlid: Lid::new(9),
            ..PathRecord::default()
        };
        let mut mad = SaMad::new(Method::GET_TABLE_RESP, ComponentMask::NONE, &record);
        mad.attribute_offset = 8.into();
        let records = |mad: &SaMad| {
            let message = Message::single(Mad::from_layout(mad));
            let answer = SaAnswer::from_response(message).unwrap();
            answer.records::<PathRecord>().count()
        };
        assert_eq!(records(&mad), 1);
        mad.data[2 * 64 + 1] = 7;
        assert_eq!(records(&mad), 3);
        mad.data.fill(0);
        assert_eq!(records(&mad), 0);
    }

    #[test]
    fn a_status_is_no_answer() {
        let mut mad = SaMad::new(
            Method::GET_RESP,
            ComponentMask::NONE,
            &PathRecord::default(),
        );
        mad.header.status = MadStatus::SA_NO_RECORDS;
        assert_eq!(
            SaAnswer::from_response(Message::single(Mad::from_layout(&mad))),
            Err(MadStatus::SA_NO_RECORDS)
        );
    }
}
