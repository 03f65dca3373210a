//! The machine with a clock and two hands: a member's and the SA's.

use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, PKeyIndex, QKey, SubnetPrefix, Tid};
use mcast_agg::{Config, McastAgg, MemberId, Outcome, Output, Requester, Token};
use vf_tunnel::{VfId, VirtualPKeyIndex};

pub type R = McMemberRecord;

pub const PREFIX: SubnetPrefix = SubnetPrefix::new(0xfec0_0000_0000_0001);
pub const PORT_GUID: Guid = Guid::new(0x0002_c903_0000_0001);
pub const FULL: JoinState = JoinState::FULL_MEMBER;
pub const NON: JoinState = JoinState::NON_MEMBER;
pub const SEND_ONLY: JoinState = JoinState::SEND_ONLY_NON_MEMBER;
pub const SEND_ONLY_FULL: JoinState = JoinState::SEND_ONLY_FULL_MEMBER;

pub fn vf(n: u16) -> MemberId {
    MemberId::from(VfId::new(n).unwrap())
}

pub fn mgid(n: u8) -> Gid {
    let mut gid = [0; 16];
    gid[0] = 0xff;
    gid[1] = 0x12;
    gid[15] = n;
    Gid(gid)
}

pub fn guid_of(member: MemberId) -> Guid {
    match member.vf() {
        Some(vf) => Guid::new(0x0014_0500_0000_0000 + u64::from(vf.get())),
        None => PORT_GUID,
    }
}

/// The machine with a clock, and whatever it put out.
pub struct Port {
    pub agg: McastAgg,
    pub now: Instant,
    pub keys: Vec<PKey>,
}

impl Port {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        Self {
            agg: McastAgg::new(config, PREFIX, PORT_GUID, 1),
            now: Instant::ZERO,
            keys: vec![PKey::DEFAULT_FULL],
        }
    }

    pub fn ask(&mut self, member: MemberId, mad: &mut SaMad) -> Outcome {
        let from = Requester {
            id: member,
            guid: guid_of(member),
            pkeys: &self.keys,
            pkey_index: VirtualPKeyIndex(PKeyIndex(3)),
        };
        self.agg.request(self.now, &from, mad)
    }

    /// A join whose answer must come at once.
    pub fn answered(&mut self, member: MemberId, mut mad: SaMad) -> SaMad {
        assert_eq!(self.ask(member, &mut mad), Outcome::Answered);
        mad
    }

    /// A leave whose answer must wait for the SA.
    pub fn waits(&mut self, member: MemberId, mut mad: SaMad) {
        assert_eq!(self.ask(member, &mut mad), Outcome::Absorbed);
    }

    /// The answer to a Delete of the SA's client ends in the one answer to a leave.
    pub fn sa_lets_go(&mut self, token: Token, request: &SaMad) -> (MemberId, SaMad) {
        self.sa_answers(token, &granted(request, JoinState::NONE));
        self.only_answer()
    }

    pub fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.agg.poll_output()).collect()
    }

    /// The one request to the SA that is waiting to go out.
    pub fn sa_request(&mut self) -> (Token, SaMad) {
        let outputs = self.outputs();
        match &outputs[..] {
            [Output::SaRequest { token, request }] => (*token, *request),
            other => panic!("expected one SA request, got {other:?}"),
        }
    }

    pub fn nothing_more(&mut self) {
        let outputs = self.outputs();
        assert!(outputs.is_empty(), "{outputs:?}");
    }

    pub fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.agg.poll_timeout().filter(|&at| at <= end) {
            self.now = at;
            self.agg.handle_timeout(at);
        }
        self.now = end;
    }

    pub fn sa_answers(&mut self, token: Token, answer: &SaMad) {
        self.agg.handle_response(self.now, token, answer);
    }

    /// Makes a VF a member the ordinary way, with one SA transaction.
    pub fn first_join(&mut self, member: MemberId, group: Gid, state: JoinState) {
        assert_eq!(
            self.ask(member, &mut join(member, group, state)),
            Outcome::Absorbed
        );
        let (token, request) = self.sa_request();
        self.sa_answers(
            token,
            &granted(&request, request.record::<R>().join_state()),
        );
        assert_eq!(self.answer_status(), MadStatus::OK);
    }

    /// The status of the one answer that waits for a member.
    pub fn answer_status(&mut self) -> MadStatus {
        self.only_answer().1.header.status
    }

    pub fn only_answer(&mut self) -> (MemberId, SaMad) {
        let outputs = self.outputs();
        match &outputs[..] {
            [Output::Answer { member, answer, .. }] => (*member, *answer),
            other => panic!("expected one answer, got {other:?}"),
        }
    }
}

pub fn request(method: Method, member: MemberId, group: Gid, state: JoinState) -> SaMad {
    let mut record = R {
        mgid: group,
        port_gid: Gid::from_parts(PREFIX, guid_of(member)),
        ..R::default()
    };
    record.set_join_state(state);
    let mut mad = SaMad::new(method, R::MGID | R::PORT_GID | R::JOIN_STATE, &record);
    mad.header.tid = Tid::new(0x7700_0000_0000_0000 + u64::from(group.0[15]));
    mad
}

pub fn join(member: MemberId, group: Gid, state: JoinState) -> SaMad {
    request(Method::SET, member, group, state)
}

pub fn leave(member: MemberId, group: Gid, state: JoinState) -> SaMad {
    request(Method::DELETE, member, group, state)
}

pub fn with(mut mad: SaMad, mask: ComponentMask, change: impl FnOnce(&mut R)) -> SaMad {
    let mut record = mad.record::<R>();
    change(&mut record);
    mad.set_record(&record);
    mad.component_mask = mad.component_mask | mask;
    mad
}

/// The SA's answer that grants a request: what OpenSM gives for a group in the default partition.
pub fn granted(request: &SaMad, state: JoinState) -> SaMad {
    let mut record = request.record::<R>();
    record.qkey = QKey::new(0xb1b);
    record.mlid = Lid::new(0xc000 + u16::from(record.mgid.0[15]));
    if record.pkey == PKey::INVALID {
        record.pkey = PKey::DEFAULT_FULL;
    }
    record.mtu = 0x84;
    record.rate = 0x83;
    record.set_join_state(state);
    let mut answer = SaMad::new(
        request.header.method.response(),
        ComponentMask::NONE,
        &record,
    );
    answer.header.tid = request.header.tid;
    answer
}

pub fn refused(request: &SaMad, status: MadStatus) -> SaMad {
    let mut answer = *request;
    answer.header.method = request.header.method.response();
    answer.header.status = status;
    answer
}

pub fn state_of(mad: &SaMad) -> JoinState {
    mad.record::<R>().join_state()
}
