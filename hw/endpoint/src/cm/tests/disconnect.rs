//! DREQ, DREP and TimeWait.

use ib_wire::CommId;
use ib_wire::cm::{CmDrep, CmDreq};

use super::*;
use crate::cm::{CmDrop, message};

#[test]
fn a_dreq_is_answered_and_both_sides_wait_before_they_forget() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.cms[A].send_dreq(pair.now, a, b"bye").expect("up");
    let mad = pair.sent_one(A, AttributeId::CM_DREQ);
    let dreq: &CmDreq = view(&mad);
    assert_eq!(dreq.remote_qpn, qpn(B));
    assert_eq!(dreq.private_data[..4], *b"bye\0");
    assert_eq!(pair.give(B, &mad), CmVerdict::Accepted);
    assert!(matches!(pair.event(B).kind, CmEventKind::DreqReceived(_)));
    pair.assert_state(B, b, State::DreqRcvd);

    pair.cms[B].send_drep(pair.now, b, b"ok").expect("DREQ");
    let mad = pair.sent_one(B, AttributeId::CM_DREP);
    let drep: &CmDrep = view(&mad);
    assert_eq!(drep.header.tid, dreq.header.tid);
    assert_eq!(drep.private_data[..2], *b"ok");
    assert_eq!(pair.give(A, &mad), CmVerdict::Accepted);
    assert!(matches!(pair.event(A).kind, CmEventKind::DrepReceived(_)));
    pair.assert_state(A, a, State::TimeWait);
    pair.assert_state(B, b, State::TimeWait);

    pair.pass(active_time_wait() - Duration::from_nanos(1));
    assert!(pair.events(A).is_empty());
    pair.pass(Duration::from_nanos(1));
    assert_eq!(pair.event(A).kind, CmEventKind::TimeWaitExit);
    assert_eq!(pair.state(A, a), None);
    pair.assert_drained();
}

#[test]
fn crossing_dreqs_are_both_answered_at_once() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.cms[A].send_dreq(pair.now, a, &[]).expect("up");
    pair.cms[B].send_dreq(pair.now, b, &[]).expect("up");
    let from_a = pair.sent_one(A, AttributeId::CM_DREQ);
    let from_b = pair.sent_one(B, AttributeId::CM_DREQ);
    assert_eq!(pair.give(A, &from_b), CmVerdict::Accepted);
    assert_eq!(pair.give(B, &from_a), CmVerdict::Accepted);
    for (node, conn) in [(A, a), (B, b)] {
        pair.assert_state(node, conn, State::TimeWait);
        assert!(matches!(
            pair.event(node).kind,
            CmEventKind::DreqReceived(_)
        ));
        let drep = pair.sent_one(node, AttributeId::CM_DREP);
        assert_eq!(pair.give(1 - node, &drep), CmVerdict::Duplicate);
    }
    pair.assert_drained();
}

#[test]
fn a_dreq_reaches_a_side_that_the_rtu_never_reached() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.replied();
    pair.cms[A].send_rtu(pair.now, a, &[]).expect("ready");
    pair.sent(A); // lost
    pair.cms[A].send_dreq(pair.now, a, &[]).expect("up");
    pair.carry();
    pair.assert_state(B, b, State::DreqRcvd);
    assert_eq!(pair.cms[B].poll_timeout(), None, "the REP waits no more");
    pair.cms[B].send_drep(pair.now, b, &[]).expect("DREQ");
    pair.carry();
    pair.assert_drained();
}

#[test]
fn a_repeated_dreq_in_time_wait_gets_the_same_drep() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.cms[A].send_dreq(pair.now, a, &[]).expect("up");
    let dreq = pair.sent_one(A, AttributeId::CM_DREQ);
    pair.give(B, &dreq);
    // Before the user has answered there is nothing to repeat.
    assert_eq!(pair.give(B, &dreq), CmVerdict::Duplicate);
    assert!(pair.sent(B).is_empty());
    pair.cms[B].send_drep(pair.now, b, b"ok").expect("DREQ");
    let drep = pair.sent_one(B, AttributeId::CM_DREP); // lost
    assert_eq!(pair.give(B, &dreq), CmVerdict::Duplicate);
    assert_eq!(pair.sent_one(B, AttributeId::CM_DREP), drep);
}

#[test]
fn a_dreq_for_a_forgotten_connection_is_answered() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let now = pair.now;
    pair.cms[B].destroy(now, b).expect("live");
    let dreq = pair.sent_one(B, AttributeId::CM_DREQ);
    pair.give(A, &dreq);
    pair.cms[A].send_drep(now, a, &[]).expect("DREQ");
    pair.carry();
    pair.pass(active_time_wait());
    assert_eq!(pair.give(A, &dreq), CmVerdict::Refused);
    let drep = pair.sent_one(A, AttributeId::CM_DREP);
    assert_eq!(
        view::<CmDrep>(&drep).remote_comm_id,
        view::<CmDreq>(&dreq).local_comm_id
    );
    pair.assert_drained();
}

#[test]
fn a_dreq_with_another_qpn_or_other_ids_does_no_harm() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.cms[A].send_dreq(pair.now, a, &[]).expect("up");
    let dreq = pair.sent_one(A, AttributeId::CM_DREQ);
    let mut forged = dreq;
    forged.view_mut::<CmDreq>().remote_qpn = qpn(A);
    assert_eq!(pair.give(B, &forged), CmVerdict::Dropped(CmDrop::WrongQpn));
    let mut forged = dreq;
    let stranger = view::<CmDreq>(&dreq).local_comm_id.get() ^ 1;
    forged.view_mut::<CmDreq>().local_comm_id = CommId::new(stranger);
    assert_eq!(pair.give(B, &forged), CmVerdict::Refused);
    pair.assert_state(B, b, State::Established);
}

#[test]
fn a_destroyed_connection_repeats_its_dreq_and_says_nothing_to_its_user() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let now = pair.now;
    pair.cms[A].destroy(now, a).expect("live");
    assert_eq!(
        pair.cms[A].destroy(now, a),
        Err(crate::cm::CmError::UnknownConnection)
    );
    pair.sent_one(A, AttributeId::CM_DREQ); // lost
    pair.pass(active_wait());
    let dreq = pair.sent_one(A, AttributeId::CM_DREQ);
    pair.give(B, &dreq);
    pair.cms[B].send_drep(pair.now, b, &[]).expect("DREQ");
    pair.carry();
    assert_eq!(pair.cms[A].table_sizes().connections, 1, "TimeWait");
    pair.pass(active_time_wait());
    assert!(pair.events(A).is_empty());
    assert_eq!(pair.cms[A].table_sizes(), CmSizes::default());
    pair.assert_drained();
}

#[test]
fn an_unknown_drep_or_rtu_is_dropped() {
    let (mut pair, _) = Pair::listening();
    let drep = message::drep(&CmDreq::default(), &[0; 224]);
    let unknown = CmVerdict::Dropped(CmDrop::UnknownConnection);
    assert_eq!(pair.give(A, &drep), unknown);
    let mut rtu = drep;
    rtu.header.attribute_id = AttributeId::CM_RTU;
    assert_eq!(pair.give(A, &rtu), unknown);
    assert!(pair.sent(A).is_empty());
}
