//! States of a transaction, and their place in the quota.

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::rmpp::{RmppFlags, RmppHeader};
use mad_mux::tid::{TidMap, TransactionState};

use super::{SA, ack, answer_to, at, data, get, map, receive, request, secs, send, vf, with_rmpp};

fn state(map: &TidMap) -> TransactionState {
    map.transactions(Instant::ZERO).next().unwrap().state
}

fn last(mad: Mad, segment: u32) -> Mad {
    with_rmpp(mad, RmppHeader::data(segment, 20, RmppFlags::LAST))
}

fn table() -> Mad {
    request(Method::GET_TABLE, 9)
}

#[test]
fn a_transfer_goes_on_until_its_last_segment_came() {
    let mut map = map();
    let sent = send(&mut map, vf(1), table(), &SA);
    receive(&mut map, Instant::ZERO, data(answer_to(&sent), 1), &SA).unwrap();
    send(&mut map, vf(1), ack(table(), 1), &SA);
    assert_eq!(state(&map), TransactionState::Transfer, "acknowledged");
    send(&mut map, vf(1), table(), &SA);
    assert_eq!(state(&map), TransactionState::Transfer, "asked again");
    assert_eq!(map.usage(vf(1)).waiting_for_sa, 0);
    receive(&mut map, Instant::ZERO, last(answer_to(&sent), 2), &SA).unwrap();
    assert_eq!(state(&map), TransactionState::Answered);
    send(&mut map, vf(1), ack(table(), 2), &SA);
    assert_eq!(state(&map), TransactionState::Answered, "acknowledged");
}

#[test]
fn a_request_of_several_segments_is_a_transfer_to_its_last() {
    let mut map = map();
    let multi = || request(Method::GET_MULTI, 9);
    let sent = send(&mut map, vf(1), data(multi(), 1), &SA);
    assert_eq!(map.usage(vf(1)).waiting_for_sa, 0);
    send(&mut map, vf(1), last(multi(), 2), &SA);
    assert_eq!(state(&map), TransactionState::Transfer);
    let mut acked = ack(answer_to(&sent), 2);
    acked.header.method = Method::GET_MULTI.response();
    receive(&mut map, Instant::ZERO, acked, &SA).unwrap();
    assert_eq!(state(&map), TransactionState::Transfer);
}

#[test]
fn only_what_the_sa_is_asked_waits_for_it() {
    let mut map = map();
    let (class, attribute) = (MgmtClass::PERF, AttributeId::CLASS_PORT_INFO);
    let counters = Mad::new(MadHeader::new(class, Method::GET, attribute));
    send(&mut map, vf(1), counters, &at(3));
    assert_eq!(
        (map.usage(vf(1)).live, map.usage(vf(1)).waiting_for_sa),
        (1, 0)
    );
    send(&mut map, vf(1), get(5), &SA);
    assert_eq!(
        (map.usage(vf(1)).live, map.usage(vf(1)).waiting_for_sa),
        (2, 1)
    );
}

#[test]
fn a_request_is_known_while_its_transaction_lasts() {
    let mut map = map();
    assert!(map.is_empty());
    assert!(!map.is_known(vf(1), &get(5).header, &SA));
    send(&mut map, vf(1), get(5), &SA);
    assert!(!map.is_empty());
    assert!(map.is_known(vf(1), &get(5).header, &SA));
    assert!(!map.is_known(vf(2), &get(5).header, &SA));
    map.expire(secs(61));
    assert!(!map.is_known(vf(1), &get(5).header, &SA));
}

#[test]
fn states_have_stable_texts() {
    let texts = [
        (TransactionState::Open, "open"),
        (TransactionState::Transfer, "transfer"),
        (TransactionState::Answered, "answered"),
    ];
    for (state, text) in texts {
        assert_eq!(state.as_str(), text);
    }
}
