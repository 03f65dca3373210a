//! What clients send.

use super::*;

const NOWHERE: Lid = Lid::new(99);
const SOMEWHERE: Lid = Lid::new(12);

fn assert_bounced(bench: &mut Bench, slot: u32, mad: &Mad) {
    let back = bench.taken(slot).expect("it comes back");
    assert_eq!(back.status.get(), MadDatagram::TIMED_OUT);
    assert_eq!(back.mad(), *mad);
    assert!(bench.net.sent.is_empty());
}

#[test]
fn a_request_is_marked_with_the_slot_and_its_answer_comes_back_with_the_slot_alone() {
    let mut bench = Bench::default();
    bench.connect("n1");
    let slot = bench.connect("n1");
    for (dlid, mad) in [
        (
            Lid::PERMISSIVE,
            smp(Method::GET, 0xffff_0001_0000_0007, &[1, 2]),
        ),
        (SOMEWHERE, gmp(SA, Method::GET, 0xffff_0001_0000_0007)),
    ] {
        bench.send(slot, dlid, &mad);
        let (to, sent) = bench.sent();
        assert_eq!(to.lid, dlid);
        assert_eq!(sent.header.tid.get(), 0x8001_0001_0000_0007);
        bench.arrive(1, to, Message::single(answer(&sent)));
        let got = bench.taken(slot).unwrap();
        assert_eq!(got.status.get(), 0);
        assert_eq!(got.mad().header.tid.get(), 0x0001_0001_0000_0007);
        assert_eq!(got.slid.lid, dlid);
        assert_eq!(bench.server.poll_timeout(), None);
    }
    assert_eq!(bench.counters().answers, 2);
}

#[test]
fn a_request_that_reaches_nobody_comes_back_at_once_as_it_was() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    for (dlid, mad) in [
        (Lid::PERMISSIVE, smp(Method::GET, 1, &[99])),
        (NOWHERE, gmp(SA, Method::GET, 2)),
        (NOWHERE, gmp(SA, Method::REPORT, 3)),
        (NOWHERE, gmp(MgmtClass::SUBN_LID_ROUTED, Method::TRAP, 4)),
    ] {
        bench.send(slot, dlid, &mad);
        assert_bounced(&mut bench, slot, &mad);
    }
    bench.net.is_full = true;
    let mad = gmp(SA, Method::GET, 5);
    bench.send(slot, SOMEWHERE, &mad);
    assert_bounced(&mut bench, slot, &mad);
    assert_eq!(bench.counters().bounced, 5);
    assert_eq!(bench.server.poll_timeout(), None);
}

#[test]
fn a_request_without_an_answer_comes_back_when_it_is_overdue_and_once() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    let config = ServerConfig::default();
    for (dlid, mad, timeout) in [
        (
            Lid::PERMISSIVE,
            smp(Method::GET, 1, &[1]),
            config.smp_timeout,
        ),
        (SOMEWHERE, gmp(SA, Method::GET, 2), config.gmp_timeout),
    ] {
        bench.send(slot, dlid, &mad);
        let (to, sent) = bench.sent();
        let due = Instant::ZERO + timeout;
        assert_eq!(bench.server.poll_timeout(), Some(due));
        let early = Instant::ZERO + (timeout - Duration::from_nanos(1));
        bench.server.poll(early, &mut bench.net);
        assert_eq!(bench.taken(slot), None);
        bench.server.poll(due, &mut bench.net);
        assert_bounced(&mut bench, slot, &mad);
        bench.arrive(1, to, Message::single(answer(&sent)));
        assert_eq!(bench.taken(slot), None);
    }
    let counters = bench.counters();
    assert_eq!((counters.overdue, counters.stray_answers), (2, 2));
}

#[test]
fn one_way_messages_are_not_waited_for() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    let message = gmp(MgmtClass::COM_MGT, Method::SEND, 1);
    bench.send(slot, SOMEWHERE, &message);
    bench.sent();
    assert_eq!(bench.server.poll_timeout(), None);
}

#[test]
fn a_trap_repress_keeps_the_transaction_id_of_the_trap_and_never_comes_back() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    let repress = gmp(MgmtClass::SUBN_LID_ROUTED, Method::TRAP_REPRESS, 5);
    bench.send(slot, SOMEWHERE, &repress);
    assert_eq!(bench.sent().1, repress);
    bench.send(slot, NOWHERE, &repress);
    assert_eq!(bench.taken(slot), None);
    assert_eq!(bench.server.poll_timeout(), None);
}

#[test]
fn directed_routes_with_a_hop_made_or_in_the_wrong_direction_come_back() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    let with = |change: fn(&mut DirectedRouteSmp)| {
        let mut mad = smp(Method::GET, 1, &[1, 2]);
        change(mad.view_mut());
        mad
    };
    for mad in [
        with(|smp| smp.set_hop_pointer(1)),
        with(|smp| smp.set_returning(true)),
        with(|smp| smp.set_hop_count(64)),
        with(|smp| smp.header.base_version = 2),
        with(|smp| smp.header.class_version = 3),
    ] {
        bench.send(slot, Lid::PERMISSIVE, &mad);
        assert_bounced(&mut bench, slot, &mad);
    }
}

#[test]
fn what_comes_back_is_no_longer_than_a_mad() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    let mad = gmp(SA, Method::GET_MULTI, 1);
    for (dlid, wait) in [(NOWHERE, false), (SOMEWHERE, true)] {
        let mut datagram = MadDatagram::new(Lid::NONE, dlid, 1, 1, &mad);
        for (said, told) in [(u64::MAX, 256), (1000, 256), (255, 255)] {
            datagram.length = said.into();
            (bench.server).handle_mad(Instant::ZERO, &mut bench.net, slot, datagram.as_bytes());
            if wait {
                let overdue = bench.server.poll_timeout().expect("it waits");
                bench.server.poll(overdue, &mut bench.net);
            }
            let back = bench.taken(slot).expect("it comes back");
            assert_eq!(back.status.get(), MadDatagram::TIMED_OUT);
            assert_eq!(back.length.get(), told);
        }
    }
}

#[test]
fn datagrams_that_hold_no_request_to_bounce_are_counted() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    let mad = gmp(SA, Method::GET, 1);
    let datagram = MadDatagram::new(Lid::NONE, SOMEWHERE, 1, 1, &mad);
    let bytes = datagram.as_bytes();
    let now = Instant::ZERO;
    let long = [bytes, &[0]].concat();
    (bench.server).handle_mad(now, &mut bench.net, slot, &bytes[..287]);
    (bench.server).handle_mad(now, &mut bench.net, slot, &long);
    (bench.server).handle_mad(now, &mut bench.net, slot + 1, bytes);
    let mut failed = datagram;
    failed.status = MadDatagram::TIMED_OUT.into();
    (bench.server).handle_mad(now, &mut bench.net, slot, failed.as_bytes());
    let mut answer = smp(Method::GET_RESP, 1, &[1]);
    answer.view_mut::<DirectedRouteSmp>().set_returning(false);
    bench.send(slot, Lid::PERMISSIVE, &answer);
    assert_eq!(bench.counters().bad_mads, 5);
    assert!(bench.net.sent.is_empty() && bench.taken(slot).is_none());
}

#[test]
fn more_requests_than_may_be_under_way_come_back_and_a_repeated_one_counts_once() {
    let config = ServerConfig {
        max_outstanding: 2,
        ..ServerConfig::default()
    };
    let mut bench = Bench::new(config);
    let slot = bench.connect("n1");
    for tid in [1, 2, 2, 1] {
        bench.send(slot, SOMEWHERE, &gmp(SA, Method::GET, tid));
        bench.sent();
    }
    let third = gmp(SA, Method::GET, 3);
    bench.send(slot, SOMEWHERE, &third);
    assert_bounced(&mut bench, slot, &third);
    bench
        .server
        .poll(Instant::from_millis(60_000), &mut bench.net);
    assert_eq!(bench.counters().overdue, 2);
}

#[test]
fn on_a_port_whose_qp0_is_taken_the_own_agent_answers_and_other_smps_come_back() {
    let mut bench = Bench::default();
    let slot = bench.connect("n3");
    let mut own = smp(Method::GET, 7, &[]);
    own.header.attribute_id = NodeInfo::ID;
    bench.send(slot, Lid::PERMISSIVE, &own);
    let got = bench.taken(slot).unwrap();
    assert_eq!(got.mad().header.method, Method::GET_RESP);
    assert_eq!(got.status.get(), 0);
    let other = smp(Method::GET, 8, &[1]);
    bench.send(slot, Lid::PERMISSIVE, &other);
    assert_bounced(&mut bench, slot, &other);
    bench.send(slot, SOMEWHERE, &gmp(SA, Method::GET, 9));
    bench.sent();
}

#[test]
fn what_a_client_had_under_way_ends_with_it() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    bench.connect("n1");
    bench.send(slot, SOMEWHERE, &gmp(SA, Method::GET, 1));
    let (to, sent) = bench.sent();
    bench.server.lose(&mut bench.net, slot);
    assert_eq!(bench.server.poll_timeout(), None);
    assert_eq!(bench.connect("n1"), slot);
    bench.arrive(1, to, Message::single(answer(&sent)));
    assert_eq!(bench.taken(slot), None);
    assert_eq!(bench.counters().stray_answers, 1);
}
