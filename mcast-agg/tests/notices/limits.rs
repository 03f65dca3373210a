//! Silence of the SA, retransmissions and quotas.

use std::time::Duration;

use ib_wire::mad::{AttributeId, MadStatus, Method};
use ib_wire::notice::TrapNumber;
use mcast_agg::notices::{Config, Output, Sizes};
use mcast_agg::{Outcome, Token};
use vf_tunnel::DropReason;

use crate::port::*;

#[test]
fn a_silent_sa_is_asked_three_times_then_told_to_forget_and_all_who_wait_told() {
    let mut port = Port::new();
    port.inform(vf(1), &in_service());
    port.inform(vf(2), &in_service());
    port.wait(Duration::from_millis(2_900));
    assert_eq!(port.outputs().len(), 3);
    port.wait(Duration::from_millis(100));
    let outputs = port.outputs();
    let busy = |output: &Output| {
        matches!(output, Output::Answer { answer, .. }
        if answer.header.status == MadStatus::BUSY)
    };
    assert!(busy(&outputs[0]) && busy(&outputs[1]), "{outputs:?}");
    assert!(matches!(&outputs[2..], [Output::SaRequest { request, .. }] if !subscribes(request)));
}

#[test]
fn by_configuration_a_silent_sa_means_silence() {
    let mut port = Port::with(Config {
        give_up_status: None,
        ..Config::default()
    });
    port.inform(vf(1), &in_service());
    port.wait(Duration::from_secs(3));
    let outputs = port.outputs();
    assert_eq!(outputs.len(), 4);
    assert!(
        outputs
            .iter()
            .all(|output| matches!(output, Output::SaRequest { .. }))
    );
    assert_eq!(port.agg.sizes().waiting, 0);
}

#[test]
fn a_success_after_giving_up_is_taken_back() {
    let mut port = Port::new();
    port.inform(vf(1), &in_service());
    let (token, request) = port.sa_request();
    port.wait(Duration::from_secs(3));
    let outputs = port.outputs();
    let Some(Output::SaRequest {
        token: ending,
        request: end,
    }) = outputs.last()
    else {
        panic!("{outputs:?}");
    };
    port.sa_answers(*ending, end, MadStatus::SA_REQ_INVALID);
    assert!(port.sa_answers(token, &request, MadStatus::OK));
    let (token, request) = port.sa_request();
    assert!(!subscribes(&request));
    assert!(port.sa_answers(token, &request, MadStatus::OK));
    port.wait(Duration::from_secs(60));
    assert_eq!(port.agg.sizes(), Sizes::default());
}

#[test]
fn a_refusal_after_silence_does_not_tell_what_the_sa_holds() {
    let mut port = Port::new();
    port.inform(vf(1), &in_service());
    port.wait(Duration::from_millis(500));
    let outputs = port.outputs();
    let [.., Output::SaRequest { token, request }] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    port.sa_answers(*token, request, MadStatus::SA_NO_RESOURCES);
    let outputs = port.outputs();
    assert!(
        matches!(&outputs[..], [Output::Answer { .. }, Output::SaRequest { request, .. }]
        if !subscribes(request))
    );
}

#[test]
fn an_end_that_the_sa_does_not_answer_delays_the_next_subscriber_by_a_second_at_most() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.status(vf(1), &end(in_service()));
    assert!(!subscribes(&port.sa_request().1));
    assert_eq!(port.inform(vf(2), &in_service()).0, Outcome::Absorbed);
    port.nothing_more();
    port.wait(Duration::from_secs(1));
    let (token, request) = port.sa_request();
    assert!(subscribes(&request));
    port.sa_answers(token, &request, MadStatus::OK);
    assert_eq!(port.answers(), [(vf(2), MadStatus::OK)]);
}

#[test]
fn an_end_that_the_sa_refuses_is_repeated() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    port.status(vf(1), &end(in_service()));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &request, MadStatus::BUSY);
    port.nothing_more();
    port.wait(Duration::from_secs(2));
    assert_eq!(port.sa_request().0, token);
    port.sa_answers(token, &request, MadStatus::OK);
    assert_eq!(port.agg.sizes(), Sizes::default());
}

#[test]
fn a_retransmitted_request_is_absorbed_and_answered_once() {
    let mut port = Port::new();
    for _ in 0..5 {
        let mut mad = set(&in_service());
        assert_eq!(port.ask(vf(1), &mut mad), Outcome::Absorbed);
    }
    let (token, request) = port.sa_request();
    port.sa_answers(token, &request, MadStatus::OK);
    assert_eq!(port.answers(), [(vf(1), MadStatus::OK)]);
}

#[test]
fn an_answer_to_nothing_or_about_another_subscription_changes_nothing() {
    let mut port = Port::new();
    port.inform(vf(1), &in_service());
    let (token, request) = port.sa_request();
    let deadline = port.agg.poll_timeout();
    let another = set(&to_trap(TrapNumber::ALL));
    assert!(!port.sa_answers(Token(token.0 + 1), &request, MadStatus::OK));
    assert!(!port.sa_answers(token, &another, MadStatus::OK));
    port.nothing_more();
    assert_eq!(port.agg.poll_timeout(), deadline);
}

#[test]
fn beyond_its_quota_a_member_is_refused_and_others_are_not() {
    let mut port = Port::with(Config {
        subscriptions_per_member: 1,
        ..Config::default()
    });
    port.first(vf(1), &in_service());
    let another = to_trap(TrapNumber::ALL);
    assert_eq!(port.status(vf(1), &another), MadStatus::SA_NO_RESOURCES);
    port.first(vf(2), &another);
    assert_eq!(port.status(vf(1), &another), MadStatus::SA_NO_RESOURCES);
    // What it holds it may ask for again.
    assert_eq!(port.status(vf(1), &in_service()), MadStatus::OK);
}

#[test]
fn what_waits_is_bounded_per_member() {
    let mut port = Port::with(Config {
        waiting_per_member: 2,
        ..Config::default()
    });
    let traps = [
        TrapNumber::GID_IN_SERVICE,
        TrapNumber::GID_OUT_OF_SERVICE,
        TrapNumber::GROUP_CREATED,
    ];
    let outcomes = traps.map(|trap| port.inform(vf(1), &to_trap(trap)).0);
    let dropped = Outcome::Dropped(DropReason::GroupBusy);
    assert_eq!(outcomes, [Outcome::Absorbed, Outcome::Absorbed, dropped]);
    assert_eq!(port.inform(vf(2), &to_trap(traps[2])).0, Outcome::Absorbed);
}

#[test]
fn the_sa_gets_no_more_requests_at_a_time_than_configured() {
    let mut port = Port::with(Config {
        max_in_flight: 1,
        ..Config::default()
    });
    port.inform(vf(1), &in_service());
    port.inform(vf(2), &to_trap(TrapNumber::ALL));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &request, MadStatus::OK);
    let outputs = port.outputs();
    assert!(matches!(
        &outputs[..],
        [Output::Answer { .. }, Output::SaRequest { .. }]
    ));
}

#[test]
fn what_is_not_a_set_of_inform_info_passes() {
    let mut port = Port::new();
    let mut get = set(&in_service());
    get.header.method = Method::GET;
    assert_eq!(port.ask(vf(1), &mut get), Outcome::Pass);
    let mut records = set(&in_service());
    records.header.attribute_id = AttributeId::INFORM_INFO_RECORD;
    assert_eq!(port.ask(vf(1), &mut records), Outcome::Pass);
}

#[test]
fn what_there_is_can_be_counted() {
    let mut port = Port::with(Config {
        max_in_flight: 5,
        ..Config::default()
    });
    assert_eq!(port.agg.config().max_in_flight, 5);
    port.inform(vf(1), &in_service());
    port.inform(vf(2), &in_service());
    let sizes = port.agg.sizes();
    let under_way = (sizes.waiting, sizes.transactions, sizes.timers);
    assert_eq!(under_way, (2, 1, 1));
    let (token, request) = port.sa_request();
    port.sa_answers(token, &request, MadStatus::OK);
    let sizes = port.agg.sizes();
    assert_eq!((sizes.waiting, sizes.held, sizes.transactions), (0, 2, 0));
}

#[test]
fn as_many_reports_may_be_unanswered_as_the_sa_sends_in_a_storm() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    for tid in 0..20_000 {
        port.heard_by(&in_service_report(tid));
    }
    assert_eq!(port.agg.sizes().deliveries, 16 * 1024);
}

#[test]
fn what_is_under_way_for_a_subscription_is_shown() {
    let mut port = Port::new();
    let shown = |port: &Port| {
        let mut subscriptions = port.agg.subscriptions();
        let view = subscriptions.next().unwrap();
        assert!(subscriptions.next().is_none());
        assert_eq!(view.inform_info().trap_number, in_service().trap_number);
        (
            view.is_at_sa(),
            view.waiting(),
            view.under_way().map(|u| u.what),
        )
    };
    port.inform(vf(1), &in_service());
    port.inform(vf(2), &in_service());
    let (token, request) = port.sa_request();
    assert_eq!(shown(&port), (false, 2, Some("subscribe")));
    port.sa_answers(token, &request, MadStatus::OK);
    assert_eq!(shown(&port), (true, 0, None));
    port.outputs();
    port.agg.client_reregister(port.now);
    let (token, request) = port.sa_request();
    assert_eq!(shown(&port), (true, 0, Some("renew")));
    port.sa_answers(token, &request, MadStatus::OK);
    port.status(vf(1), &end(in_service()));
    port.status(vf(2), &end(in_service()));
    let (token, request) = port.sa_request();
    assert_eq!(shown(&port), (false, 0, Some("unsubscribe")));
    port.sa_answers(token, &request, MadStatus::OK);
    assert_eq!(port.agg.sizes(), Sizes::default());
}

#[test]
fn a_member_that_is_reset_owes_no_answer_to_a_report() {
    let mut port = Port::new();
    port.first(vf(1), &in_service());
    for other in [vf(2), vf(3)] {
        assert_eq!(port.status(other, &in_service()), MadStatus::OK);
    }
    port.heard_by(&in_service_report(1));
    assert_eq!(port.agg.sizes().deliveries, 3);
    port.agg.reset(port.now, vf(1));
    assert_eq!(port.agg.sizes().deliveries, 2);
    port.agg.reset(port.now, vf(2));
    assert_eq!(port.agg.sizes().deliveries, 1);
}
