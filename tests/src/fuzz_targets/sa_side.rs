//! What the targets of the machines that talk to the SA share: requests of members, and an SA that
//! answers as the input says.

use ib_wire::mad::{AttributeId, MadStatus, Method};
use ib_wire::notice::{InformInfo, ProducerType, TrapNumber};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, PKeyIndex, Qpn, SubnetPrefix, Tid};
use mcast_agg::{MemberId, Requester, Token};
use vf_tunnel::{VfId, VirtualPKeyIndex};
use zerocopy::IntoBytes;

use super::hostile::{Input, remember};

/// VFs that are members.
pub(super) const MEMBERS: u16 = 4;

pub(super) fn vf(number: u16) -> VfId {
    VfId::new(number).expect("a small number is a VF's")
}

pub(super) fn members() -> impl Iterator<Item = MemberId> {
    (1..=MEMBERS).map(|number| vf(number).into())
}

/// One of the VFs.
pub(super) fn some_vf(input: &mut Input<'_>) -> VfId {
    vf(1 + u16::from(input.byte()) % MEMBERS)
}

pub(super) fn guid_of(vf: VfId) -> Guid {
    Guid::new(0x0002_c903_0000_0100 + u64::from(vf.get()))
}

pub(super) fn gid_of(vf: VfId) -> Gid {
    Gid::from_parts(SubnetPrefix::DEFAULT, guid_of(vf))
}

pub(super) fn requester(vf: VfId) -> Requester<'static> {
    Requester {
        id: vf.into(),
        guid: guid_of(vf),
        pkeys: &[PKey::DEFAULT_FULL],
        pkey_index: VirtualPKeyIndex(PKeyIndex(0)),
    }
}

/// A join or leave of one of a few groups; group 0 is to be created. One in eight is damaged.
pub(super) fn membership(vf: VfId, input: &mut Input<'_>) -> SaMad {
    let method = [Method::SET, Method::DELETE][input.index(2)];
    let mut record = McMemberRecord {
        port_gid: gid_of(vf),
        ..McMemberRecord::default()
    };
    let group = input.byte() % 8;
    if group != 0 {
        (record.mgid.0[0], record.mgid.0[1]) = (0xff, 0x12);
        record.mgid.0[15] = group;
    }
    record.set_join_state(JoinState::from_low_bits(input.byte()));
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    numbered(SaMad::new(method, mask, &record), input)
}

/// A subscription to one of a few traps, or its end. One in eight is damaged.
pub(super) fn inform(input: &mut Input<'_>) -> SaMad {
    let info = InformInfo {
        lid_range_begin: Lid::PERMISSIVE,
        is_generic: 1,
        subscribe: u8::from(input.flag()),
        notice_type: InformInfo::ALL_TYPES.into(),
        trap_number: TrapNumber::new(64 + u16::from(input.byte() % 6)),
        qpn: Qpn::GSI,
        producer: ProducerType::ALL.0,
        ..InformInfo::default()
    };
    numbered(SaMad::new(Method::SET, ComponentMask::NONE, &info), input)
}

fn numbered(mut request: SaMad, input: &mut Input<'_>) -> SaMad {
    let number = input.byte();
    request.header.tid = Tid::new(u64::from(number % 8));
    if number >= 0xe0 {
        input.damage(request.as_mut_bytes());
    }
    request
}

/// What the SA says to a request: mostly that it is done.
pub(super) fn answer(request: &SaMad, input: &mut Input<'_>) -> SaMad {
    let mut answer = *request;
    answer.header.method = request.header.method.response();
    if request.header.attribute_id == AttributeId::MC_MEMBER_RECORD {
        let mut record: McMemberRecord = answer.record();
        if record.mgid.is_none() {
            (record.mgid.0[0], record.mgid.0[15]) = (0xff, input.byte());
        }
        record.pkey = PKey::DEFAULT_FULL;
        record.mlid = Lid::new(0xc000 + u16::from(record.mgid.0[15]));
        answer.set_record(&record);
    }
    match input.byte() % 16 {
        0 => answer.header.status = MadStatus::SA_REQ_INVALID,
        1 => answer.header.status = MadStatus::SA_NO_RESOURCES,
        2 => answer.header.status = MadStatus::BUSY,
        3 => input.damage(answer.as_mut_bytes()),
        _ => {}
    }
    answer
}

/// Requests that the SA has got and not answered, each under its token.
#[derive(Default)]
pub(super) struct Sa {
    asked: Vec<(Token, SaMad)>,
}

impl Sa {
    /// Gets a request.
    pub(super) fn ask(&mut self, token: Token, request: SaMad) {
        remember(&mut self.asked, (token, request));
    }

    /// An answer to one of the requests, which one in eight times may be answered again.
    pub(super) fn answer(&mut self, input: &mut Input<'_>) -> Option<(Token, SaMad)> {
        let (token, request) = if input.byte().is_multiple_of(8) {
            input.pick(&self.asked)?
        } else {
            input.take(&mut self.asked)?
        };
        Some((token, answer(&request, input)))
    }

    /// Loses one of the requests.
    pub(super) fn lose(&mut self, input: &mut Input<'_>) {
        let _lost = input.take(&mut self.asked);
    }
}
