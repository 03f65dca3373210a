//! Subscribing and unsubscribing: statements 202, 205, 206, 210 to 212.

use std::time::Duration;

use ib_wire::mad::{MadStatus, Method};
use ib_wire::notice::{InformInfo, TrapNumber};
use ib_wire::{Qpn, SmKey};
use mcast_agg::Outcome;
use mcast_agg::notices::{Output, Sizes};

use crate::port::*;

#[test]
fn c202_subscribing_in_a_loop_beside_another_member_shows_the_sa_nothing() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    for _ in 0..1000 {
        assert_eq!(port.status(vf(2), &in_service()), MadStatus::OK);
        assert_eq!(port.status(vf(2), &end(in_service())), MadStatus::OK);
    }
    port.nothing_more();
}

#[test]
fn c202_a_loop_that_the_sa_does_not_keep_up_with_makes_no_more_than_one_request() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    assert_eq!(port.status(vf(1), &end(in_service())), MadStatus::OK);
    let mut waiting = 0;
    for _ in 0..1000 {
        waiting += u32::from(port.inform(vf(1), &in_service()).0 == Outcome::Absorbed);
        port.inform(vf(1), &end(in_service()));
    }
    assert_eq!(waiting, 16, "as many as may wait");
    assert!(!subscribes(&port.sa_request().1));
}

#[test]
fn c205_two_subscribers_get_positive_answers_and_the_sa_sees_one() {
    let mut port = Port::new();
    assert_eq!(port.inform(vf(1), &in_service()).0, Outcome::Absorbed);
    assert_eq!(port.inform(vf(2), &in_service()).0, Outcome::Absorbed);
    let (token, request) = port.sa_request();
    assert_eq!(request.header.method, Method::SET);
    let info = request.record::<InformInfo>();
    assert_eq!((info.subscribe, info.qpn), (1, Qpn::GSI));
    port.sa_answers(token, &request, MadStatus::OK);
    let ok = MadStatus::OK;
    assert_eq!(port.answers(), [(vf(1), ok), (vf(2), ok)]);

    let (outcome, answer) = port.inform(vf(3), &in_service());
    assert_eq!((outcome, answer.header.status), (Outcome::Answered, ok));
    port.nothing_more();
    let views: Vec<_> = port.agg.subscriptions().collect();
    assert_eq!(views.len(), 1);
    assert!(views[0].is_at_sa() && views[0].under_way().is_none());
    assert!(views[0].members().eq([vf(1), vf(2), vf(3)]));
}

#[test]
fn c205_qpn_and_response_time_make_no_other_subscription_and_are_answered_as_given() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    let own = InformInfo {
        qpn: Qpn::from_low_bits(0x4711),
        resp_time: 5,
        ..in_service()
    };
    let (outcome, answer) = port.inform(vf(2), &own);
    assert_eq!(outcome, Outcome::Answered);
    assert_eq!(answer.record::<InformInfo>(), own);
    let another_trap = to_trap(TrapNumber::GID_OUT_OF_SERVICE);
    assert_eq!(port.inform(vf(2), &another_trap).0, Outcome::Absorbed);
}

#[test]
fn c206_the_sa_is_told_with_the_last_subscriber_only() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.status(vf(2), &in_service());
    assert_eq!(port.status(vf(1), &end(in_service())), MadStatus::OK);
    port.nothing_more();
    assert_eq!(port.status(vf(2), &end(in_service())), MadStatus::OK);
    let (token, request) = port.sa_request();
    // OpenSM finds what to end by the very fields of the subscription.
    let info = request.record::<InformInfo>();
    assert_eq!((info.subscribe, info.qpn), (0, Qpn::GSI));
    port.sa_answers(token, &request, MadStatus::OK);
    port.nothing_more();
    assert_eq!(port.agg.sizes(), Sizes::default());
}

#[test]
fn c206_ending_what_one_does_not_hold_is_invalid_and_harms_nobody() {
    let mut port = Port::new();
    let invalid = MadStatus::SA_REQ_INVALID;
    assert_eq!(port.status(vf(2), &end(in_service())), invalid);
    port.first(vf(1), &in_service());
    assert_eq!(port.status(vf(2), &end(in_service())), invalid);
    let neither = InformInfo {
        subscribe: 2,
        ..in_service()
    };
    assert_eq!(port.status(vf(1), &neither), invalid);
    port.nothing_more();
    assert_eq!(port.heard_by(&in_service_report(1)), [vf(1)]);
}

#[test]
fn c210_the_sas_refusal_of_security_traps_is_relayed_to_all_who_wait() {
    let mut port = Port::new();
    let security = to_trap(TrapNumber::BAD_MKEY);
    let mut mad = set(&security);
    mad.sm_key = SmKey::new(1);
    port.ask(vf(1), &mut mad);
    port.inform(vf(2), &security);
    let (token, request) = port.sa_request();
    assert_eq!(request.sm_key, SmKey::new(0), "not in the port's name");
    let refused = MadStatus::SA_REQ_INVALID;
    port.sa_answers(token, &request, refused);
    assert_eq!(port.answers(), [(vf(1), refused), (vf(2), refused)]);
    assert_eq!(port.agg.sizes(), Sizes::default());
}

#[test]
fn c211_reregister_subscribes_again_until_the_sa_answers() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.agg.client_reregister(port.now);
    assert!(subscribes(&port.sa_request().1));
    // The SM ignores what comes before its first sweep is done.
    port.wait(Duration::from_secs(7));
    assert_eq!(port.outputs().len(), 3);
    assert_eq!(port.status(vf(2), &in_service()), MadStatus::OK);
    port.wait(Duration::from_secs(8));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &request, MadStatus::OK);
    port.nothing_more();
    assert_eq!(port.agg.poll_timeout(), None);
    assert_eq!(port.heard_by(&in_service_report(1)), [vf(1), vf(2)]);
}

#[test]
fn c211_an_sa_without_room_is_asked_again_and_one_that_refuses_ends_it() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    port.sa_answers(token, &request, MadStatus::SA_NO_RESOURCES);
    port.nothing_more();
    port.wait(Duration::from_secs(2));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &request, MadStatus::SA_REQ_INVALID);
    match &port.outputs()[..] {
        // An SA that has not forgotten the old subscription shall do so.
        [
            Output::Lost { members, .. },
            Output::SaRequest { token, request },
        ] => {
            assert_eq!(members[..], [vf(1)]);
            assert!(!subscribes(request));
            port.sa_answers(*token, request, MadStatus::SA_REQ_INVALID);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(port.agg.sizes(), Sizes::default());
}

#[test]
fn c211_a_renewal_that_nobody_needs_any_more_ends_in_an_unsubscription() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.agg.client_reregister(port.now);
    let (late, renewal) = port.sa_request();
    port.agg.reset(port.now, vf(1));
    assert!(!subscribes(&port.sa_request().1));
    assert!(!port.sa_answers(late, &renewal, MadStatus::OK));
    port.wait(Duration::from_secs(300));
    assert_eq!(port.agg.sizes(), Sizes::default());
}

#[test]
fn c211_reregister_while_a_subscription_is_under_way_asks_anew() {
    let mut port = Port::new();
    port.inform(vf(1), &in_service());
    let (token, _) = port.sa_request();
    port.agg.client_reregister(port.now);
    let (again, request) = port.sa_request();
    assert_eq!(token, again);
    port.sa_answers(token, &request, MadStatus::OK);
    assert_eq!(port.answers(), [(vf(1), MadStatus::OK)]);
}

#[test]
fn c211_a_new_sm_address_repeats_only_what_was_under_way() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.agg.sm_changed(port.now);
    port.nothing_more();
    port.inform(vf(1), &to_trap(TrapNumber::ALL));
    let (token, _) = port.sa_request();
    port.agg.sm_changed(port.now);
    assert_eq!(port.sa_request().0, token);
}

#[test]
fn c212_reset_drops_subscriptions_and_tells_the_sa_with_the_last() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.status(vf(2), &in_service());
    port.agg.reset(port.now, vf(1));
    port.nothing_more();
    assert_eq!(port.heard_by(&in_service_report(1)), [vf(2)]);
    port.agg.reset(port.now, vf(2));
    let (token, request) = port.sa_request();
    assert!(!subscribes(&request));
    port.sa_answers(token, &request, MadStatus::OK);
    port.wait(Duration::from_secs(10));
    assert_eq!(port.agg.sizes(), Sizes::default());
}

#[test]
fn c212_reset_while_the_sa_is_asked_takes_the_subscription_back() {
    let mut port = Port::new();
    port.inform(vf(1), &in_service());
    let (token, request) = port.sa_request();
    port.agg.reset(port.now, vf(1));
    port.nothing_more();
    port.sa_answers(token, &request, MadStatus::OK);
    assert!(!subscribes(&port.sa_request().1));
}
