//! SIDR_REQ and SIDR_REP.

use ib_wire::cm::{CmSidrRep, CmSidrReq, SidrStatus};
use ib_wire::{CommId, QKey};

use super::*;

const WAIT: Duration = Duration::from_millis(50);

fn ask(pair: &mut Pair) -> ConnId {
    let req = CmSidrReq {
        service_id: SERVICE,
        ..CmSidrReq::default()
    };
    let to = MadAddress::gsi(lid(B));
    pair.cms[A]
        .send_sidr_req(pair.now, &to, &req, WAIT, RETRIES)
        .expect("room")
}

fn answer(pair: &mut Pair, b: ConnId) {
    let rep = CmSidrRep {
        status: SidrStatus::OK,
        qpn: qpn(B),
        qkey: QKey::new(0x1b),
        ..CmSidrRep::default()
    };
    pair.cms[B].send_sidr_rep(pair.now, b, &rep).expect("asked");
}

fn rep_of(event: CmEvent) -> CmSidrRep {
    match event.kind {
        CmEventKind::SidrRepReceived { rep, from } => {
            assert_eq!(from.lid, lid(B));
            *rep
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_resolved_service_id_leaves_nothing_behind() {
    let (mut pair, _) = Pair::listening();
    let a = ask(&mut pair);
    pair.assert_state(A, a, State::SidrReqSent);
    pair.carry();
    let event = pair.event(B);
    assert!(matches!(event.kind, CmEventKind::SidrReqReceived { .. }));
    pair.assert_state(B, event.conn, State::SidrReqRcvd);
    answer(&mut pair, event.conn);
    assert_eq!(pair.state(B, event.conn), None);
    pair.carry();
    let rep = rep_of(pair.event(A));
    assert_eq!((rep.status, rep.qpn), (SidrStatus::OK, qpn(B)));
    assert_eq!(rep.service_id, SERVICE);
    assert_eq!(pair.state(A, a), None);
    pair.assert_drained();
}

#[test]
fn a_repeated_request_is_one_exchange_until_it_is_answered() {
    let (mut pair, _) = Pair::listening();
    ask(&mut pair);
    let req = pair.sent_one(A, AttributeId::CM_SIDR_REQ);
    pair.give(B, &req);
    let b = pair.event(B).conn;
    assert_eq!(pair.give(B, &req), CmVerdict::Duplicate);
    assert!(pair.events(B).is_empty());
    answer(&mut pair, b);
    pair.sent(B); // lost
    assert_eq!(pair.give(B, &req), CmVerdict::Accepted);
    assert_ne!(pair.event(B).conn, b);
}

#[test]
fn a_request_for_an_unserved_service_or_of_another_version_is_refused() {
    let mut pair = Pair::new();
    ask(&mut pair);
    let req = pair.sent_one(A, AttributeId::CM_SIDR_REQ);
    assert_eq!(pair.give(B, &req), CmVerdict::Refused);
    let rep = pair.sent_one(B, AttributeId::CM_SIDR_REP);
    let mut other = req;
    other.header.class_version = 1;
    assert_eq!(pair.give(B, &other), CmVerdict::Refused);
    let other = pair.sent_one(B, AttributeId::CM_SIDR_REP);
    assert_eq!(
        view::<CmSidrRep>(&other).status,
        SidrStatus::UNSUPPORTED_VERSION
    );
    pair.give(A, &rep);
    assert_eq!(
        rep_of(pair.event(A)).status,
        SidrStatus::UNSUPPORTED_SERVICE_ID
    );
    pair.assert_drained();
}

#[test]
fn an_unanswered_request_is_repeated_then_given_up() {
    let (mut pair, _) = Pair::listening();
    let a = ask(&mut pair);
    let first = pair.sent_one(A, AttributeId::CM_SIDR_REQ);
    for _ in 0..RETRIES {
        pair.pass(WAIT);
        assert_eq!(pair.sent_one(A, AttributeId::CM_SIDR_REQ), first);
    }
    pair.pass(WAIT);
    assert_eq!(pair.event(A).kind, CmEventKind::SidrReqError);
    assert_eq!(pair.state(A, a), None);
    assert!(pair.sent(A).is_empty());
    pair.assert_drained();
}

#[test]
fn a_destroyed_exchange_is_gone_at_once_and_the_asker_told() {
    let (mut pair, _) = Pair::listening();
    let a = ask(&mut pair);
    pair.carry();
    let b = pair.event(B).conn;
    let now = pair.now;
    pair.cms[B].destroy(now, b).expect("live");
    let rep = pair.sent_one(B, AttributeId::CM_SIDR_REP);
    assert_eq!(view::<CmSidrRep>(&rep).status, SidrStatus::REJECTED);
    pair.cms[A].destroy(now, a).expect("live");
    assert!(matches!(pair.give(A, &rep), CmVerdict::Dropped(_)));
    pair.assert_drained();
}

#[test]
fn an_answer_with_the_id_of_a_connection_is_dropped() {
    let (mut pair, _) = Pair::listening();
    let (a, _) = pair.established();
    let id = pair.cms[A].info(a).expect("live").local_id;
    let service = SERVICE;
    for (id, verdict) in [
        (id, crate::cm::CmDrop::WrongState),
        (
            CommId::new(id.get() ^ 1),
            crate::cm::CmDrop::UnknownConnection,
        ),
    ] {
        let tid = ib_wire::Tid::new(1);
        let rep = crate::cm::message::refuse_sidr(tid, id, service, SidrStatus::OK);
        assert_eq!(pair.give(A, &rep), CmVerdict::Dropped(verdict));
    }
    pair.assert_state(A, a, State::Established);
}
