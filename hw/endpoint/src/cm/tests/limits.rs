//! Bounds, hostile input and listeners.

use alloc::vec::Vec;

use ib_vtime::Secret;
use ib_wire::CommId;
use ib_wire::cm::{CmRej, CmReq, CmRtu, RejReason};
use ib_wire::mad::{MadHeader, Method, MgmtClass};
use proptest::prelude::*;

use super::*;
use crate::cm::{CmDrop, CmError};

/// A REQ of some stranger, each with its own ids and QP.
fn strangers_req(number: u32) -> Mad {
    let mut req = req_from(A);
    req.local_comm_id = CommId::new(number + 1);
    req.local_qpn = Qpn::from_low_bits(number + 0x1000);
    let mut mad = Mad::from_layout(&req);
    mad.header = ib_wire::cm::header(AttributeId::CM_REQ);
    mad
}

#[test]
fn a_full_backlog_drops_requests_until_the_user_answers() {
    let mut pair = Pair::with(|config| CmConfig {
        max_pending: 2,
        ..config
    });
    pair.cms[B].listen(SERVICE, u64::MAX).expect("free");
    assert_eq!(pair.give(B, &strangers_req(0)), CmVerdict::Accepted);
    assert_eq!(pair.give(B, &strangers_req(1)), CmVerdict::Accepted);
    let third = strangers_req(2);
    assert_eq!(pair.give(B, &third), CmVerdict::Dropped(CmDrop::Backlog));
    assert!(pair.sent(B).is_empty());
    let first = pair.events(B)[0].conn;
    pair.send_rep(B, first);
    assert_eq!(pair.give(B, &third), CmVerdict::Accepted);
    assert_eq!(pair.cms[B].counters().overload, 1);
}

#[test]
fn a_full_table_refuses_requests_and_calls() {
    let mut pair = Pair::with(|config| CmConfig {
        max_connections: 1,
        ..config
    });
    pair.cms[B].listen(SERVICE, u64::MAX).expect("free");
    pair.give(B, &strangers_req(0));
    pair.events(B);
    assert_eq!(pair.give(B, &strangers_req(1)), CmVerdict::Refused);
    let rej = pair.sent_one(B, AttributeId::CM_REJ);
    assert_eq!(view::<CmRej>(&rej).reason, RejReason::NO_RESOURCES);
    let to = MadAddress::gsi(lid(A));
    assert_eq!(
        pair.cms[B].send_req(pair.now, &to, &req_from(B), Rendezvous::ClientServer),
        Err(CmError::TooManyConnections)
    );
}

#[test]
fn mads_that_nobody_pulls_are_bounded_and_counted() {
    let mut pair = Pair::with(|config| CmConfig {
        max_transmits: 3,
        ..config
    });
    for number in 0..5 {
        pair.give(B, &strangers_req(number));
    }
    assert_eq!(pair.sent(B).len(), 3);
    assert_eq!(pair.cms[B].counters().transmits_dropped, 2);
}

#[test]
fn requests_are_dropped_while_too_many_events_wait_to_be_pulled() {
    let mut pair = Pair::with(|config| CmConfig {
        max_events: 1,
        ..config
    });
    pair.cms[B].listen(SERVICE, u64::MAX).expect("free");
    assert_eq!(pair.give(B, &strangers_req(0)), CmVerdict::Accepted);
    let second = strangers_req(1);
    assert_eq!(pair.give(B, &second), CmVerdict::Dropped(CmDrop::Full));
    pair.event(B);
    assert_eq!(pair.give(B, &second), CmVerdict::Accepted);
}

#[test]
fn a_service_id_has_one_listener_and_is_free_once_that_is_gone() {
    let (mut pair, listener) = Pair::listening();
    assert_eq!(
        pair.cms[B].listen(SERVICE, u64::MAX),
        Err(CmError::ServiceIdInUse)
    );
    let now = pair.now;
    pair.cms[B].destroy(now, listener).expect("listens");
    assert_eq!(
        pair.cms[B].destroy(now, listener),
        Err(CmError::UnknownConnection)
    );
    pair.cms[B].listen(SERVICE, u64::MAX).expect("free again");
}

#[test]
fn a_request_outlives_its_listener() {
    let (mut pair, listener) = Pair::listening();
    let (a, b) = pair.requested();
    let now = pair.now;
    pair.cms[B].destroy(now, listener).expect("listens");
    pair.send_rep(B, b);
    pair.carry();
    pair.assert_state(A, a, State::RepRcvd);
}

#[test]
fn a_req_of_another_class_version_is_refused_with_the_supported_one() {
    let (mut pair, _) = Pair::listening();
    let mut req = strangers_req(0);
    req.header.class_version = 1;
    assert_eq!(pair.give(B, &req), CmVerdict::Refused);
    let rej = pair.sent_one(B, AttributeId::CM_REJ);
    let rej: &CmRej = view(&rej);
    assert_eq!(rej.reason, RejReason::INVALID_CLASS_VERSION);
    assert_eq!(rej.ari_bytes(), [2]);
}

#[test]
fn what_is_not_a_cm_message_is_dropped() {
    let (mut pair, _) = Pair::listening();
    let good = strangers_req(0).header;
    let not_cm = CmVerdict::Dropped(CmDrop::NotCm);
    for header in [
        MadHeader {
            base_version: 2,
            ..good
        },
        MadHeader {
            mgmt_class: MgmtClass::SUBN_ADM,
            ..good
        },
        MadHeader {
            method: Method::GET,
            ..good
        },
        MadHeader {
            attribute_id: AttributeId::new(0x1b),
            ..good
        },
        MadHeader {
            attribute_id: AttributeId::CLASS_PORT_INFO,
            ..good
        },
    ] {
        let mut mad = strangers_req(0);
        mad.header = header;
        assert_eq!(pair.give(B, &mad), not_cm);
    }
    assert!(pair.events(B).is_empty() && pair.sent(B).is_empty());
}

/// The first id of an mlx4 physical function is 0; only in a REJ does that mean that there is none.
#[test]
fn a_peer_may_call_its_connection_0() {
    let (mut pair, _) = Pair::listening();
    let mut req = strangers_req(0);
    req.view_mut::<CmReq>().local_comm_id = CommId::new(0);
    assert_eq!(pair.give(B, &req), CmVerdict::Accepted);
    let b = pair.event(B).conn;
    pair.send_rep(B, b);
    let rep = pair.sent_one(B, AttributeId::CM_REP);
    let rep: &CmRep = rep.view();
    assert_eq!(rep.remote_comm_id, CommId::new(0));
    let mut rtu = Mad::new(ib_wire::cm::header(AttributeId::CM_RTU));
    let named: &mut CmRtu = rtu.view_mut();
    (named.local_comm_id, named.remote_comm_id) = (CommId::new(0), rep.local_comm_id);
    assert_eq!(pair.give(B, &rtu), CmVerdict::Accepted);
    assert_eq!(pair.event(B).conn, b);
}

#[test]
fn sizes_count_what_is_held() {
    let (mut pair, _) = Pair::listening();
    pair.requested();
    let sizes = pair.cms[B].table_sizes();
    assert_eq!((sizes.connections, sizes.listeners), (1, 1));
    assert_eq!((sizes.local_ids, sizes.remote_ids), (1, 1));
    assert_eq!((sizes.remote_qpns, sizes.timers), (1, 0));
    let sizes = pair.cms[A].table_sizes();
    assert_eq!((sizes.timers, sizes.buffers), (1, 1));
}

#[test]
fn the_same_seed_and_inputs_give_the_same_bytes() {
    let run = |seed: u64| {
        let mut pair = Pair::with(|config| CmConfig {
            secret: Secret::from(seed),
            ..config
        });
        pair.cms[B].listen(SERVICE, u64::MAX).expect("free");
        pair.send_req();
        let req = pair.sent_one(A, AttributeId::CM_REQ);
        pair.give(B, &req);
        let b = pair.event(B).conn;
        pair.send_rep(B, b);
        [req, pair.sent_one(B, AttributeId::CM_REP)]
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

proptest! {
    /// Whatever arrives, in whatever state: no panic, at most one answer more than a
    /// disconnection, and nothing held that does not drain.
    #[test]
    fn arbitrary_messages_do_no_harm(
        seeds in prop::collection::vec((0_u16..0x20, any::<[u8; 8]>(), any::<u8>(), 0_usize..24), 1..40),
        stage in 0_u8..4,
    ) {
        let (mut pair, _) = Pair::listening();
        let (a, b) = match stage {
            0 => pair.requested(),
            1 => pair.replied(),
            _ => pair.established(),
        };
        let [ours, theirs] = [(A, a), (B, b)]
            .map(|(node, conn)| pair.cms[node].info(conn).expect("live").local_id);
        for (attribute, noise, node, place) in seeds {
            let mut mad = Mad::new(ib_wire::cm::header(AttributeId::new(attribute)));
            let node = usize::from(node % 2);
            // Ids that exist, in either place, so that the messages meet a connection.
            let ids = if node == A { [theirs, ours] } else { [ours, theirs] };
            mad.data[..4].copy_from_slice(&ids[0].get().to_be_bytes());
            mad.data[4..8].copy_from_slice(&ids[1].get().to_be_bytes());
            mad.data[place..place + 8].copy_from_slice(&noise);
            pair.give(node, &mad);
            prop_assert!(pair.sent(node).len() <= 2);
        }
        for (node, conn) in [(A, a), (B, b)] {
            let events = pair.events(node);
            let now = pair.now;
            let others: Vec<ConnId> = events.into_iter().map(|event| event.conn).collect();
            for conn in others.into_iter().chain([conn]) {
                // It may be over already.
                let _ = pair.cms[node].destroy(now, conn);
            }
            let listeners: Vec<ConnId> = pair.cms[node].registry.listeners.iter().map(|l| l.id).collect();
            for listener in listeners {
                pair.cms[node].destroy(now, listener).expect("listens");
            }
        }
        pair.assert_drained();
    }
}
