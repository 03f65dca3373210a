//! LAP and APR.

use ib_wire::cm::{ApStatus, CmApr, CmLap, CmMessage, CmMra};

use super::*;
use crate::cm::{CmDrop, CmError};

const LAP_RESPONSE: u8 = 13;

fn lap_wait() -> Duration {
    time(LAP_RESPONSE) + time(PATH)
}

fn lap(number: u8) -> CmLap {
    let mut lap = CmLap::default();
    lap.set_remote_cm_response_timeout(LAP_RESPONSE);
    lap.alternate_local_lid = Lid::new(0x11);
    lap.private_data[0] = number;
    lap
}

fn apr(status: ApStatus) -> CmApr {
    CmApr {
        ap_status: status,
        ..CmApr::default()
    }
}

/// An established pair whose passive side has a LAP to answer; the LAP is given.
fn lap_received(pair: &mut Pair) -> (ConnId, ConnId, Mad) {
    let (a, b) = pair.established();
    pair.cms[A].send_lap(pair.now, a, &lap(1)).expect("up");
    let mad = pair.sent_one(A, AttributeId::CM_LAP);
    assert_eq!(pair.give(B, &mad), CmVerdict::Accepted);
    assert!(matches!(
        pair.event(B).kind,
        CmEventKind::LapReceived { .. }
    ));
    pair.assert_state(A, a, State::LapSent);
    pair.assert_state(B, b, State::LapRcvd);
    (a, b, mad)
}

#[test]
fn a_lap_is_answered_with_the_status_that_the_user_gives() {
    for status in [ApStatus::OK, ApStatus::REJECTED, ApStatus::PATH_IS_CURRENT] {
        let (mut pair, _) = Pair::listening();
        let (a, b, mad) = lap_received(&mut pair);
        let sent: &CmLap = view(&mad);
        assert_eq!(sent.remote_qpn, qpn(B));
        assert_eq!(sent.alternate_local_lid, Lid::new(0x11));
        pair.cms[B]
            .send_apr(pair.now, b, &apr(status))
            .expect("LAP");
        pair.carry();
        let CmEventKind::AprReceived(answer) = pair.event(A).kind else {
            panic!("no APR");
        };
        assert_eq!(answer.ap_status, status);
        assert_eq!(answer.header.tid, sent.header.tid);
        pair.assert_state(A, a, State::Established);
        pair.assert_state(B, b, State::Established);
        assert_eq!(pair.cms[A].poll_timeout(), None);
    }
}

#[test]
fn a_repeated_lap_gets_the_mra_or_the_apr_again_and_a_new_one_is_new() {
    let (mut pair, _) = Pair::listening();
    let (a, b, mad) = lap_received(&mut pair);
    assert_eq!(pair.give(B, &mad), CmVerdict::Duplicate);
    assert!(pair.sent(B).is_empty());
    pair.cms[B].send_mra(pair.now, b, 17, &[]).expect("LAP");
    let mra = pair.sent_one(B, AttributeId::CM_MRA);
    assert_eq!(view::<CmMra>(&mra).message_mraed(), CmMessage::LAP);
    assert_eq!(pair.give(B, &mad), CmVerdict::Duplicate);
    assert_eq!(pair.sent_one(B, AttributeId::CM_MRA), mra);
    pair.give(A, &mra);
    pair.assert_state(A, a, State::MraLapRcvd);
    let granted = time(17) + time(PATH);
    assert_eq!(pair.cms[A].poll_timeout(), Some(pair.now + granted));

    pair.cms[B]
        .send_apr(pair.now, b, &apr(ApStatus::OK))
        .expect("LAP");
    let answer = pair.sent_one(B, AttributeId::CM_APR);
    assert_eq!(pair.give(B, &mad), CmVerdict::Duplicate);
    assert_eq!(pair.sent_one(B, AttributeId::CM_APR), answer);
    assert!(pair.events(B).is_empty());

    pair.give(A, &answer);
    pair.assert_state(A, a, State::Established);
    pair.cms[A].send_lap(pair.now, a, &lap(2)).expect("up");
    pair.carry();
    pair.assert_state(B, b, State::LapRcvd);
}

#[test]
fn an_apr_or_mra_of_an_earlier_lap_does_not_answer_the_next() {
    let (mut pair, _) = Pair::listening();
    let (a, b, _) = lap_received(&mut pair);
    pair.cms[B].send_mra(pair.now, b, 17, &[]).expect("LAP");
    let old_mra = pair.sent_one(B, AttributeId::CM_MRA);
    pair.cms[B]
        .send_apr(pair.now, b, &apr(ApStatus::OK))
        .expect("LAP");
    let old_apr = pair.sent_one(B, AttributeId::CM_APR);
    pair.pass(lap_wait() * 4);
    assert_eq!(pair.event(A).kind, CmEventKind::LapError);
    pair.assert_state(A, a, State::Established);
    pair.sent(A);
    pair.cms[A].send_lap(pair.now, a, &lap(2)).expect("up");
    let old = CmVerdict::Dropped(CmDrop::OldAnswer);
    assert_eq!(pair.give(A, &old_apr), old);
    assert_eq!(pair.give(A, &old_mra), old);
    pair.assert_state(A, a, State::LapSent);
}

#[test]
fn an_unanswered_lap_is_repeated_then_given_up_and_the_connection_stays() {
    let (mut pair, _) = Pair::listening();
    let (a, _) = pair.established();
    pair.cms[A].send_lap(pair.now, a, &lap(1)).expect("up");
    pair.sent_one(A, AttributeId::CM_LAP);
    for _ in 0..RETRIES {
        pair.pass(lap_wait());
        pair.sent_one(A, AttributeId::CM_LAP);
    }
    pair.pass(lap_wait());
    assert_eq!(pair.event(A).kind, CmEventKind::LapError);
    assert!(pair.sent(A).is_empty(), "no REJ");
    pair.assert_state(A, a, State::Established);
}

#[test]
fn only_the_active_side_may_send_a_lap() {
    let (mut pair, _) = Pair::listening();
    let (_, b) = pair.established();
    assert_eq!(
        pair.cms[B].send_lap(pair.now, b, &lap(1)),
        Err(CmError::NotActive)
    );
}

#[test]
fn a_lap_of_an_unknown_connection_is_refused_by_an_apr() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let now = pair.now;
    pair.cms[B].destroy(now, b).expect("live");
    pair.sent(B);
    pair.pass(Duration::from_secs(60)); // B has forgotten
    pair.sent(B);
    pair.cms[A].send_lap(pair.now, a, &lap(1)).expect("up");
    let mad = pair.sent_one(A, AttributeId::CM_LAP);
    assert_eq!(pair.give(B, &mad), CmVerdict::Refused);
    let answer = pair.sent_one(B, AttributeId::CM_APR);
    assert_eq!(pair.give(A, &answer), CmVerdict::Accepted);
    let CmEventKind::AprReceived(apr) = pair.event(A).kind else {
        panic!("no APR");
    };
    assert_eq!(apr.ap_status, ApStatus::INVALID_COMM_ID);
}

#[test]
fn a_lap_with_another_qpn_is_dropped() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    pair.cms[A].send_lap(pair.now, a, &lap(1)).expect("up");
    let mut mad = pair.sent_one(A, AttributeId::CM_LAP);
    mad.view_mut::<CmLap>().remote_qpn = qpn(A);
    assert_eq!(pair.give(B, &mad), CmVerdict::Dropped(CmDrop::WrongQpn));
    pair.assert_state(B, b, State::Established);
}

#[test]
fn a_dreq_ends_a_connection_in_the_middle_of_a_lap() {
    let (mut pair, _) = Pair::listening();
    let (a, b, _) = lap_received(&mut pair);
    pair.cms[B].send_dreq(pair.now, b, &[]).expect("up");
    pair.carry();
    pair.assert_state(A, a, State::DreqRcvd);
    assert_eq!(
        pair.cms[B].send_apr(pair.now, b, &apr(ApStatus::OK)),
        Err(CmError::WrongState(State::DreqSent))
    );
    pair.cms[A].send_drep(pair.now, a, &[]).expect("DREQ");
    pair.carry();
    pair.assert_drained();
}

#[test]
fn a_migrated_connection_sends_to_its_new_address() {
    let (mut pair, _) = Pair::listening();
    let (a, _) = pair.established();
    let elsewhere = MadAddress::gsi(Lid::new(0x77));
    pair.cms[A].set_address(a, &elsewhere).expect("live");
    pair.cms[A].send_dreq(pair.now, a, &[]).expect("up");
    let transmit = pair.cms[A].poll_transmit().expect("a DREQ");
    assert_eq!(transmit.to, elsewhere);
}
