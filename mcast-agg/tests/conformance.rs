//! Conformance of the multicast aggregation: statements 116 to 152, by number.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, PKeyIndex, QKey, SmKey, SubnetPrefix, Tid};
use mcast_agg::{Config, McastAgg, MemberId, Outcome, Output, Requester, Token};
use vf_tunnel::{DropReason, VfId, VirtualPKeyIndex};

type R = McMemberRecord;

const PREFIX: SubnetPrefix = SubnetPrefix::new(0xfec0_0000_0000_0001);
const PORT_GUID: Guid = Guid::new(0x0002_c903_0000_0001);
const FULL: JoinState = JoinState::FULL_MEMBER;
const NON: JoinState = JoinState::NON_MEMBER;
const SEND_ONLY: JoinState = JoinState::SEND_ONLY_NON_MEMBER;
const SEND_ONLY_FULL: JoinState = JoinState::SEND_ONLY_FULL_MEMBER;

fn vf(n: u16) -> MemberId {
    MemberId::from(VfId::new(n).unwrap())
}

fn mgid(n: u8) -> Gid {
    let mut gid = [0; 16];
    gid[0] = 0xff;
    gid[1] = 0x12;
    gid[15] = n;
    Gid(gid)
}

fn guid_of(member: MemberId) -> Guid {
    match member.vf() {
        Some(vf) => Guid::new(0x0014_0500_0000_0000 + u64::from(vf.get())),
        None => PORT_GUID,
    }
}

/// The machine with a clock, and whatever it put out.
struct Port {
    agg: McastAgg,
    now: Instant,
    keys: Vec<PKey>,
}

impl Port {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        Self {
            agg: McastAgg::new(config, PREFIX, PORT_GUID),
            now: Instant::ZERO,
            keys: vec![PKey::DEFAULT_FULL],
        }
    }

    fn ask(&mut self, member: MemberId, mad: &mut SaMad) -> Outcome {
        let from = Requester {
            id: member,
            guid: guid_of(member),
            pkeys: &self.keys,
            pkey_index: VirtualPKeyIndex(PKeyIndex(3)),
        };
        self.agg.request(self.now, &from, mad)
    }

    /// A join whose answer must come at once.
    fn answered(&mut self, member: MemberId, mut mad: SaMad) -> SaMad {
        assert_eq!(self.ask(member, &mut mad), Outcome::Answered);
        mad
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.agg.poll_output()).collect()
    }

    /// The one request to the SA that is waiting to go out.
    fn sa_request(&mut self) -> (Token, SaMad) {
        let outputs = self.outputs();
        match &outputs[..] {
            [Output::SaRequest { token, request }] => (*token, *request),
            other => panic!("expected one SA request, got {other:?}"),
        }
    }

    fn nothing_more(&mut self) {
        let outputs = self.outputs();
        assert!(outputs.is_empty(), "{outputs:?}");
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.agg.poll_timeout().filter(|&at| at <= end) {
            self.now = at;
            self.agg.handle_timeout(at);
        }
        self.now = end;
    }

    fn sa_answers(&mut self, token: Token, answer: &SaMad) {
        self.agg.handle_response(self.now, token, answer);
    }

    /// Makes a VF a member the ordinary way, with one SA transaction.
    fn first_join(&mut self, member: MemberId, group: Gid, state: JoinState) {
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
    fn answer_status(&mut self) -> MadStatus {
        self.only_answer().1.header.status
    }

    fn only_answer(&mut self) -> (MemberId, SaMad) {
        let outputs = self.outputs();
        match &outputs[..] {
            [Output::Answer { member, answer, .. }] => (*member, *answer),
            other => panic!("expected one answer, got {other:?}"),
        }
    }
}

fn request(method: Method, member: MemberId, group: Gid, state: JoinState) -> SaMad {
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

fn join(member: MemberId, group: Gid, state: JoinState) -> SaMad {
    request(Method::SET, member, group, state)
}

fn leave(member: MemberId, group: Gid, state: JoinState) -> SaMad {
    request(Method::DELETE, member, group, state)
}

fn with(mut mad: SaMad, mask: ComponentMask, change: impl FnOnce(&mut R)) -> SaMad {
    let mut record = mad.record::<R>();
    change(&mut record);
    mad.set_record(&record);
    mad.component_mask = mad.component_mask | mask;
    mad
}

/// The SA's answer that grants a request: what OpenSM gives for a group in the default partition.
fn granted(request: &SaMad, state: JoinState) -> SaMad {
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

fn refused(request: &SaMad, status: MadStatus) -> SaMad {
    let mut answer = *request;
    answer.header.method = request.header.method.response();
    answer.header.status = status;
    answer
}

fn state_of(mad: &SaMad) -> JoinState {
    mad.record::<R>().join_state()
}

#[test]
fn c116_first_join_sends_one_set() {
    let mut port = Port::new();
    assert_eq!(
        port.ask(vf(1), &mut join(vf(1), mgid(1), FULL)),
        Outcome::Absorbed
    );
    let (_, request) = port.sa_request();
    assert_eq!(request.header.method, Method::SET);
    assert_eq!(
        request.record::<R>().port_gid,
        Gid::from_parts(PREFIX, PORT_GUID)
    );
    assert_eq!(state_of(&request), FULL);
}

#[test]
fn c117_second_join_is_answered_here_with_the_groups_values() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    let answer = port.answered(vf(2), join(vf(2), mgid(1), FULL));
    port.nothing_more();
    assert_eq!(answer.header.status, MadStatus::OK);
    assert_eq!(answer.header.method, Method::GET_RESP);
    assert_eq!(answer.header.tid, join(vf(2), mgid(1), FULL).header.tid);
    let record = answer.record::<R>();
    assert_eq!(record.port_gid, Gid::from_parts(PREFIX, guid_of(vf(2))));
    assert_eq!(record.join_state(), FULL);
    assert_eq!(
        (record.mlid, record.qkey),
        (Lid::new(0xc001), QKey::new(0xb1b))
    );
    assert_eq!(
        (record.mtu, record.rate, record.packet_life_time),
        (0x84, 0x83, 0x80)
    );
}

#[test]
fn c118_second_join_that_does_not_fit_gets_req_invalid() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    let wrong = with(join(vf(2), mgid(1), FULL), R::QKEY, |r| {
        r.qkey = QKey::new(1)
    });
    assert_eq!(
        port.answered(vf(2), wrong).header.status,
        MadStatus::SA_REQ_INVALID
    );
}

#[test]
fn c121_a_group_of_a_foreign_partition_is_refused_and_not_disclosed() {
    let mut port = Port::new();
    port.keys = vec![PKey::new(0x8123)];
    let own = with(join(vf(1), mgid(1), FULL), R::PKEY, |r| {
        r.pkey = PKey::new(0x8123)
    });
    assert_eq!(port.ask(vf(1), &mut own.clone()), Outcome::Absorbed);
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.answer_status(), MadStatus::OK);

    port.keys = vec![PKey::DEFAULT_FULL];
    let asked = join(vf(2), mgid(1), FULL);
    let answer = port.answered(vf(2), asked);
    assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
    assert_eq!(answer.record::<R>(), asked.record::<R>());
}

#[test]
fn c121_a_first_joiner_outside_the_groups_partition_is_refused_and_the_port_leaves() {
    let mut port = Port::new();
    assert_eq!(
        port.ask(vf(1), &mut join(vf(1), mgid(1), FULL)),
        Outcome::Absorbed
    );
    let (token, request) = port.sa_request();
    let mut answer = granted(&request, FULL);
    let record = R {
        pkey: PKey::new(0x8123),
        ..answer.record()
    };
    answer.set_record(&record);
    port.sa_answers(token, &answer);
    let outputs = port.outputs();
    assert!(matches!(&outputs[0], Output::Answer { answer, .. }
        if answer.header.status == MadStatus::SA_REQ_INVALID
            && answer.record::<R>().qkey == QKey::new(0)));
    assert!(matches!(&outputs[1], Output::SaRequest { request, .. }
        if request.header.method == Method::DELETE));
}

#[test]
fn c122_join_state_zero_is_refused() {
    let answer = Port::new().answered(vf(1), join(vf(1), mgid(1), JoinState::NONE));
    assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
}

#[test]
fn c123_missing_components_are_refused() {
    for missing in [R::MGID, R::PORT_GID, R::JOIN_STATE] {
        let mut mad = join(vf(1), mgid(1), FULL);
        mad.component_mask = ComponentMask::new(mad.component_mask.get() & !missing.get());
        let answer = Port::new().answered(vf(1), mad);
        assert_eq!(answer.header.status, MadStatus::SA_INSUFFICIENT_COMPONENTS);
    }
}

#[test]
fn c124_the_sas_refusal_is_relayed() {
    let mut port = Port::new();
    assert_eq!(
        port.ask(vf(1), &mut join(vf(1), mgid(1), NON)),
        Outcome::Absorbed
    );
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    assert_eq!(port.answer_status(), MadStatus::SA_REQ_INVALID);
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c125_a_new_kind_of_membership_is_asked_for() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    assert_eq!(
        port.ask(vf(2), &mut join(vf(2), mgid(1), SEND_ONLY)),
        Outcome::Absorbed
    );
    let (token, request) = port.sa_request();
    assert_eq!(state_of(&request), SEND_ONLY);
    port.sa_answers(token, &granted(&request, FULL | SEND_ONLY));
    let (member, answer) = port.only_answer();
    assert_eq!((member, state_of(&answer)), (vf(2), SEND_ONLY));
    assert_eq!(port.agg.groups().next().unwrap().at_sa(), FULL | SEND_ONLY);
}

#[test]
fn c126_send_only_full_member_is_counted_and_deleted_with_its_last_holder() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), SEND_ONLY_FULL);
    port.answered(vf(2), join(vf(2), mgid(1), SEND_ONLY_FULL));
    port.answered(vf(1), leave(vf(1), mgid(1), SEND_ONLY_FULL));
    port.nothing_more();
    port.answered(vf(2), leave(vf(2), mgid(1), SEND_ONLY_FULL));
    let (_, request) = port.sa_request();
    assert_eq!(
        (request.header.method, state_of(&request)),
        (Method::DELETE, SEND_ONLY_FULL)
    );
}

#[test]
fn c127_the_last_holder_of_a_bit_causes_one_delete_of_exactly_that_bit() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL | NON);
    port.answered(vf(2), join(vf(2), mgid(1), FULL));
    port.answered(vf(1), leave(vf(1), mgid(1), FULL | NON));
    let (token, request) = port.sa_request();
    assert_eq!(
        (request.header.method, state_of(&request)),
        (Method::DELETE, NON)
    );
    port.sa_answers(token, &granted(&request, FULL));
    port.answered(vf(2), leave(vf(2), mgid(1), FULL));
    let (token, request) = port.sa_request();
    assert_eq!(state_of(&request), FULL);
    port.sa_answers(token, &granted(&request, JoinState::NONE));
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c128_leaving_what_one_does_not_hold_is_refused() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    for (member, state) in [(vf(1), NON), (vf(1), FULL | NON), (vf(2), FULL)] {
        let answer = port.answered(member, leave(member, mgid(1), state));
        assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
    }
    let none = port.answered(vf(1), leave(vf(1), mgid(1), JoinState::NONE));
    assert_eq!(none.header.status, MadStatus::SA_REQ_INVALID);
    port.nothing_more();
}

#[test]
fn c129_leaving_an_unknown_group_is_refused_at_once() {
    let answer = Port::new().answered(vf(1), leave(vf(1), mgid(1), FULL));
    assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
    assert_eq!(answer.header.method, Method::DELETE_RESP);
}

#[test]
fn c130_delete_is_answered_by_delete_resp_with_what_is_left() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL | NON);
    let answer = port.answered(vf(1), leave(vf(1), mgid(1), NON));
    assert_eq!(answer.header.method, Method::DELETE_RESP);
    assert_eq!(
        (answer.header.status, state_of(&answer)),
        (MadStatus::OK, FULL)
    );
}

#[test]
fn c131_get_is_answered_from_what_is_known_or_passed_on() {
    let mut port = Port::new();
    let get = || request(Method::GET, vf(2), mgid(1), FULL);
    assert_eq!(port.ask(vf(2), &mut get()), Outcome::Pass);
    port.first_join(vf(1), mgid(1), FULL);
    let answer = port.answered(vf(2), get());
    assert_eq!(answer.record::<R>().mlid, Lid::new(0xc001));
    assert_eq!(state_of(&answer), JoinState::NONE);
    port.keys = vec![PKey::new(0x8123)];
    assert_eq!(port.ask(vf(2), &mut get()), Outcome::Pass);
}

#[test]
fn c132_get_table_passes() {
    let mut port = Port::new();
    let mut mad = request(Method::GET_TABLE, vf(1), mgid(1), FULL);
    assert_eq!(port.ask(vf(1), &mut mad), Outcome::Pass);
}

#[test]
fn c133_a_created_group_is_found_by_the_mgid_that_the_sa_chose() {
    let mut port = Port::new();
    assert_eq!(
        port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL)),
        Outcome::Absorbed
    );
    let (token, request) = port.sa_request();
    assert_eq!(request.record::<R>().mgid, Gid::NONE);
    let chosen = with(granted(&request, FULL), ComponentMask::NONE, |r| {
        r.mgid = mgid(9)
    });
    port.sa_answers(token, &chosen);
    let (_, answer) = port.only_answer();
    assert_eq!(answer.record::<R>().mgid, mgid(9));
    port.answered(vf(2), join(vf(2), mgid(9), FULL));
    port.nothing_more();
}

#[test]
fn c134_a_failed_creation_is_relayed() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_NO_RESOURCES));
    assert_eq!(port.answer_status(), MadStatus::SA_NO_RESOURCES);
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c135_a_creation_that_succeeds_too_late_is_taken_back() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), Gid::NONE, FULL));
    let (token, request) = port.sa_request();
    port.wait(Duration::from_secs(5));
    port.outputs();
    let late = with(granted(&request, FULL), ComponentMask::NONE, |r| {
        r.mgid = mgid(9)
    });
    port.sa_answers(token, &late);
    let (token, delete) = port.sa_request();
    assert_eq!(delete.header.method, Method::DELETE);
    assert_eq!(
        (delete.record::<R>().mgid, state_of(&delete)),
        (mgid(9), FULL)
    );
    port.sa_answers(token, &granted(&delete, JoinState::NONE));
    port.wait(Duration::from_secs(60));
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c136_two_creations_are_two_transactions_and_two_groups() {
    let mut port = Port::new();
    for n in [1, 2] {
        port.ask(vf(n), &mut join(vf(n), Gid::NONE, FULL));
    }
    let outputs = port.outputs();
    assert_eq!(outputs.len(), 2);
    for (n, output) in (7..).zip(outputs) {
        let Output::SaRequest { token, request } = output else {
            panic!("{output:?}")
        };
        let answer = with(granted(&request, FULL), ComponentMask::NONE, |r| {
            r.mgid = mgid(n)
        });
        port.sa_answers(token, &answer);
    }
    assert_eq!(port.agg.groups().count(), 2);
}

#[test]
fn c137_a_silent_sa_is_asked_three_times_and_the_vf_told_within_three_seconds() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    port.wait(Duration::from_millis(2_900));
    assert_eq!(port.outputs().len(), 3);
    port.wait(Duration::from_millis(100));
    let outputs = port.outputs();
    assert!(matches!(&outputs[0], Output::Answer { answer, .. }
        if answer.header.status == MadStatus::BUSY));
    // The SA may have heard the join after all, so it is told to forget it.
    assert!(matches!(&outputs[1], Output::SaRequest { request, .. }
        if request.header.method == Method::DELETE));
}

#[test]
fn c137_a_group_whose_join_was_given_up_can_be_joined_within_a_second() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    port.wait(Duration::from_secs(3));
    port.outputs();
    assert_eq!(
        port.ask(vf(2), &mut join(vf(2), mgid(1), FULL)),
        Outcome::Absorbed
    );
    port.wait(Duration::from_secs(1));
    let (token, request) = port.sa_request();
    assert_eq!(request.header.method, Method::SET);
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.answer_status(), MadStatus::OK);
}

#[test]
fn c138_a_retransmitted_join_is_absorbed_and_answered_once() {
    let mut port = Port::new();
    for _ in 0..5 {
        assert_eq!(
            port.ask(vf(1), &mut join(vf(1), mgid(1), FULL)),
            Outcome::Absorbed
        );
    }
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, FULL));
    port.only_answer();
}

#[test]
fn c140_an_answer_to_nothing_leaves_the_timer_running() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    let (Token(token), request) = port.sa_request();
    let deadline = port.agg.poll_timeout();
    port.sa_answers(Token(token + 1), &granted(&request, FULL));
    port.sa_answers(
        Token(token),
        &with(granted(&request, FULL), ComponentMask::NONE, |r| {
            r.mgid = mgid(2)
        }),
    );
    port.nothing_more();
    assert_eq!(port.agg.poll_timeout(), deadline);
}

#[test]
fn c141_the_second_of_two_answers_is_ignored() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, FULL));
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    assert_eq!(port.answer_status(), MadStatus::OK);
}

#[test]
fn c142_a_failed_delete_is_retried_and_joins_do_not_wait_for_it() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.answered(vf(1), leave(vf(1), mgid(1), FULL));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::BUSY));
    port.wait(Duration::from_secs(2));
    let (_, again) = port.sa_request();
    assert_eq!(again.header.method, Method::DELETE);
    assert_eq!(
        port.ask(vf(2), &mut join(vf(2), mgid(1), FULL)),
        Outcome::Absorbed
    );
    let (_, join) = port.sa_request();
    assert_eq!(join.header.method, Method::SET);
}

#[test]
fn c142_a_delete_that_is_never_granted_ends_after_eight_tries() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.answered(vf(1), leave(vf(1), mgid(1), FULL));
    port.wait(Duration::from_secs(600));
    assert_eq!(port.outputs().len(), 8);
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c143_a_reset_gives_up_only_what_nobody_else_holds() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL | NON);
    port.answered(vf(2), join(vf(2), mgid(1), FULL));
    port.ask(vf(1), &mut join(vf(1), mgid(2), FULL));
    let (pending, request) = port.sa_request();
    port.agg.reset(port.now, vf(1));
    let (_, delete) = port.sa_request();
    assert_eq!(
        (delete.record::<R>().mgid, state_of(&delete)),
        (mgid(1), NON)
    );
    port.sa_answers(pending, &granted(&request, FULL));
    let (_, delete) = port.sa_request();
    assert_eq!(
        (delete.record::<R>().mgid, state_of(&delete)),
        (mgid(2), FULL)
    );
}

#[test]
fn c144_after_reregister_the_port_rejoins_and_vfs_are_answered_meanwhile() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.answered(vf(2), join(vf(2), mgid(1), FULL));
    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    assert_eq!(
        (request.header.method, state_of(&request)),
        (Method::SET, FULL)
    );
    assert!(
        request
            .component_mask
            .contains(R::QKEY | R::PKEY | R::SL | R::FLOW_LABEL)
    );
    for n in [1, 2] {
        let answer = port.answered(vf(n), join(vf(n), mgid(1), FULL));
        assert_eq!(answer.header.status, MadStatus::OK);
    }
    port.sa_answers(token, &granted(&request, FULL));
    port.nothing_more();
    assert_eq!(port.agg.sizes().members, 2);
}

#[test]
fn c145_a_group_that_comes_back_with_another_mlid_is_announced() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    let moved = with(granted(&request, FULL), ComponentMask::NONE, |r| {
        r.mlid = Lid::new(0xc0ff)
    });
    port.sa_answers(token, &moved);
    let outputs = port.outputs();
    assert!(matches!(&outputs[..], [Output::Changed { members, .. }] if members == &[vf(1)]));
}

#[test]
fn c145_a_group_that_the_sa_refuses_twice_is_lost_and_announced() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    let (token, request) = port.sa_request();
    assert!(!request.component_mask.intersects(R::QKEY));
    port.sa_answers(token, &refused(&request, MadStatus::SA_REQ_INVALID));
    let outputs = port.outputs();
    assert!(matches!(&outputs[..], [Output::Lost { members, .. }] if members == &[vf(1)]));
    assert_eq!(port.agg.sizes(), mcast_agg::Sizes::default());
}

#[test]
fn c146_1024_vfs_can_be_members_of_one_group() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    for n in 2..=1024 {
        let answer = port.answered(vf(n), join(vf(n), mgid(1), FULL));
        assert_eq!(answer.header.status, MadStatus::OK);
    }
    assert_eq!(port.agg.sizes().members, 1024);
    port.nothing_more();
}

#[test]
fn c147_beyond_its_group_quota_a_vf_gets_no_resources() {
    let mut port = Port::with(Config {
        groups_per_member: 2,
        ..Config::default()
    });
    port.first_join(vf(1), mgid(1), FULL);
    port.first_join(vf(1), mgid(2), FULL);
    let answer = port.answered(vf(1), join(vf(1), mgid(3), FULL));
    assert_eq!(answer.header.status, MadStatus::SA_NO_RESOURCES);
    port.first_join(vf(2), mgid(3), FULL);
    let answer = port.answered(vf(1), join(vf(1), mgid(3), FULL));
    assert_eq!(answer.header.status, MadStatus::SA_NO_RESOURCES);
    port.answered(vf(1), leave(vf(1), mgid(1), FULL));
    assert_eq!(
        port.answered(vf(1), join(vf(1), mgid(3), FULL))
            .header
            .status,
        MadStatus::OK
    );
}

#[test]
fn c148_sm_key_and_proxy_join_do_not_reach_the_sa() {
    let mut port = Port::new();
    let mut mad = with(join(vf(1), mgid(1), FULL), R::PROXY_JOIN, |r| {
        r.set_proxy_join(true)
    });
    mad.sm_key = SmKey::new(0x1234);
    port.ask(vf(1), &mut mad);
    let (token, request) = port.sa_request();
    assert_eq!(request.sm_key, SmKey::new(0));
    assert!(!request.record::<R>().proxy_join());
    assert!(!request.component_mask.intersects(R::PROXY_JOIN));
    port.sa_answers(token, &granted(&request, FULL));
    assert_eq!(port.only_answer().1.sm_key, SmKey::new(0));
}

#[test]
fn c149_the_answer_goes_back_in_the_partition_of_the_request() {
    let mut port = Port::new();
    port.ask(vf(1), &mut join(vf(1), mgid(1), FULL));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &granted(&request, FULL));
    let outputs = port.outputs();
    assert!(matches!(outputs[0], Output::Answer { pkey_index, .. }
        if pkey_index == VirtualPKeyIndex(PKeyIndex(3))));
}

#[test]
fn c150_the_requesters_prefix_is_echoed_and_a_foreign_one_refused() {
    let mut port = Port::new();
    port.first_join(vf(1), mgid(1), FULL);
    let under = |prefix| {
        with(join(vf(2), mgid(1), FULL), ComponentMask::NONE, |r| {
            r.port_gid = Gid::from_parts(prefix, guid_of(vf(2)));
        })
    };
    let answer = port.answered(vf(2), under(SubnetPrefix::DEFAULT));
    assert_eq!(
        answer.record::<R>().port_gid.prefix(),
        SubnetPrefix::DEFAULT
    );
    let answer = port.answered(vf(2), under(SubnetPrefix::new(1)));
    assert_eq!(answer.header.status, MadStatus::SA_INVALID_GID);
}

#[test]
fn c152_the_pf_and_its_vfs_do_not_disturb_each_other() {
    let mut port = Port::new();
    port.first_join(MemberId::PF, mgid(1), FULL);
    port.answered(vf(1), join(vf(1), mgid(1), FULL));
    port.answered(MemberId::PF, leave(MemberId::PF, mgid(1), FULL));
    port.nothing_more();
    port.answered(MemberId::PF, join(MemberId::PF, mgid(1), FULL));
    port.answered(vf(1), leave(vf(1), mgid(1), FULL));
    port.nothing_more();
    assert_eq!(port.agg.groups().next().unwrap().at_sa(), FULL);
}

#[test]
fn c201_a_vf_cannot_queue_joins_without_end() {
    let mut port = Port::new();
    let mut dropped = 0;
    for n in 0..200 {
        match port.ask(vf(1), &mut join(vf(1), mgid(n), FULL)) {
            Outcome::Dropped(reason) => {
                assert_eq!(reason, DropReason::GroupBusy);
                dropped += 1;
            }
            outcome => assert_eq!(outcome, Outcome::Absorbed),
        }
    }
    assert_eq!(dropped, 200 - 32);
    assert_eq!(port.agg.sizes().groups, 32);
}

#[test]
fn a_foreign_port_gid_is_refused() {
    let mut port = Port::new();
    let answer = port.answered(vf(1), join(vf(2), mgid(1), FULL));
    assert_eq!(answer.header.status, MadStatus::SA_REQ_INVALID);
}
