//! The machine with a clock and two hands: a member's and the SA's.

use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::notice::{
    GidDetails, InformInfo, Notice, NoticeReport, NoticeType, ProducerType, TrapNumber,
};
use ib_wire::sa::{ComponentMask, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, PKeyIndex, Qpn, Tid};
use mcast_agg::notices::{Config, NoticeAgg, Output};
use mcast_agg::{MemberId, Outcome, Requester, Token};
use vf_tunnel::{VfId, VirtualPKeyIndex};
use zerocopy::IntoBytes;

pub const PKEY_INDEX: VirtualPKeyIndex = VirtualPKeyIndex(PKeyIndex(3));
/// The LID of the port that the notices of these tests come from.
pub const ISSUER: Lid = Lid::new(5);
pub const ISSUER_GID: Gid = Gid([7; 16]);

pub fn vf(n: u16) -> MemberId {
    MemberId::from(VfId::new(n).unwrap())
}

/// The machine with a clock.
pub struct Port {
    pub agg: NoticeAgg,
    pub now: Instant,
    tid: u64,
}

impl Port {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        Self {
            agg: NoticeAgg::new(config),
            now: Instant::ZERO,
            tid: 0,
        }
    }

    pub fn ask(&mut self, member: MemberId, mad: &mut SaMad) -> Outcome {
        let from = Requester {
            id: member,
            guid: Guid::new(1),
            pkeys: &[PKey::DEFAULT_FULL],
            pkey_index: PKEY_INDEX,
        };
        self.agg.request(self.now, &from, mad)
    }

    /// Asks, under a TID that was not used before.
    pub fn inform(&mut self, member: MemberId, info: &InformInfo) -> (Outcome, SaMad) {
        self.tid += 1;
        let mut mad = set(info);
        mad.header.tid = Tid::new(self.tid);
        (self.ask(member, &mut mad), mad)
    }

    /// Asks for what must be answered at once, and gives the status.
    pub fn status(&mut self, member: MemberId, info: &InformInfo) -> MadStatus {
        let (outcome, answer) = self.inform(member, info);
        assert_eq!(outcome, Outcome::Answered);
        answer.header.status
    }

    /// Subscribes the ordinary way, with one SA transaction.
    pub fn first(&mut self, member: MemberId, info: &InformInfo) {
        assert_eq!(self.inform(member, info).0, Outcome::Absorbed);
        let (token, request) = self.sa_request();
        self.sa_answers(token, &request, MadStatus::OK);
        assert_eq!(self.answers(), [(member, MadStatus::OK)]);
    }

    pub fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.agg.poll_output()).collect()
    }

    /// The one request to the SA that is waiting to go out.
    pub fn sa_request(&mut self) -> (Token, SaMad) {
        match &self.outputs()[..] {
            [Output::SaRequest { token, request }] => (*token, *request),
            other => panic!("expected one SA request, got {other:?}"),
        }
    }

    /// Who gets an answer now, and its status.
    pub fn answers(&mut self) -> Vec<(MemberId, MadStatus)> {
        let answer = |output| match output {
            Output::Answer { member, answer, .. } => {
                let status = answer.header.status;
                let subscribed = answer.record::<InformInfo>().subscribe;
                assert!(status == MadStatus::OK || subscribed == 0, "refused");
                (member, status)
            }
            other => panic!("expected answers only, got {other:?}"),
        };
        self.outputs().into_iter().map(answer).collect()
    }

    pub fn nothing_more(&mut self) {
        let outputs = self.outputs();
        assert!(outputs.is_empty(), "{outputs:?}");
    }

    /// Gives whether a transaction took the answer.
    pub fn sa_answers(&mut self, token: Token, request: &SaMad, status: MadStatus) -> bool {
        let answer = response(request, status);
        self.agg.handle_response(self.now, token, &answer)
    }

    pub fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.agg.poll_timeout().filter(|&at| at <= end) {
            self.now = at;
            self.agg.handle_timeout(at);
        }
        self.now = end;
    }

    /// Takes a report that everybody may hear of: who gets a copy.
    pub fn heard_by(&mut self, report: &SaMad) -> Vec<MemberId> {
        assert!(self.agg.report(self.now, report, |_| true).is_some());
        self.copies()
            .into_iter()
            .map(|(member, _)| member)
            .collect()
    }

    /// The copies of reports that are waiting for members.
    pub fn copies(&mut self) -> Vec<(MemberId, SaMad)> {
        let copy = |output| match output {
            Output::Deliver { member, report } => (member, report),
            other => panic!("expected copies only, got {other:?}"),
        };
        self.outputs().into_iter().map(copy).collect()
    }
}

/// A subscription to a generic trap from anywhere, as ib_sa's users make it.
pub fn to_trap(trap_number: TrapNumber) -> InformInfo {
    InformInfo {
        lid_range_begin: Lid::PERMISSIVE,
        is_generic: 1,
        subscribe: 1,
        notice_type: InformInfo::ALL_TYPES.into(),
        trap_number,
        qpn: Qpn::GSI,
        resp_time: 0x13,
        producer: ProducerType::ALL.0,
        ..InformInfo::default()
    }
}

pub fn in_service() -> InformInfo {
    to_trap(TrapNumber::GID_IN_SERVICE)
}

/// The end of a subscription.
pub fn end(info: InformInfo) -> InformInfo {
    InformInfo {
        subscribe: 0,
        ..info
    }
}

pub fn set(info: &InformInfo) -> SaMad {
    SaMad::new(Method::SET, ComponentMask::NONE, info)
}

pub fn response(request: &SaMad, status: MadStatus) -> SaMad {
    let mut answer = *request;
    answer.header.method = request.header.method.response();
    answer.header.status = status;
    answer
}

pub fn subscribes(request: &SaMad) -> bool {
    request.record::<InformInfo>().subscribe == 1
}

/// The SA's report that a GID came into, or went out of, service.
pub fn report(tid: u64, trap: TrapNumber, gid: Gid) -> SaMad {
    let details = GidDetails {
        gid,
        ..GidDetails::default()
    };
    let notice = Notice::generic(
        NoticeType::SUBNET_MANAGEMENT,
        ProducerType::CLASS_MANAGER,
        trap,
        ISSUER,
        &details,
    );
    let report = NoticeReport {
        notice,
        issuer_gid: ISSUER_GID,
    };
    let mut mad = SaMad {
        header: MadHeader::new(MgmtClass::SUBN_ADM, Method::REPORT, AttributeId::NOTICE),
        ..SaMad::default()
    };
    mad.header.tid = Tid::new(tid);
    mad.data[..size_of::<NoticeReport>()].copy_from_slice(report.as_bytes());
    mad
}

pub fn in_service_report(tid: u64) -> SaMad {
    report(tid, TrapNumber::GID_IN_SERVICE, Gid([9; 16]))
}
