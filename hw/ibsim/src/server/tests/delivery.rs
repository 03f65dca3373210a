//! What comes to the ports, and which client gets it.

use ib_wire::rmpp::{RmppFlags, RmppMad};

use super::*;

const VENDOR: MgmtClass = MgmtClass::new(0x32);

fn sm_info(tid: u64) -> Mad {
    let mut mad = smp(Method::GET, tid, &[1, 4]);
    mad.view_mut::<DirectedRouteSmp>().set_hop_pointer(3);
    mad
}

#[test]
fn smps_are_given_only_to_a_client_that_announced_a_manager_and_has_sent_smps() {
    let mut bench = Bench::default();
    let silent = bench.connect("n2");
    bench.set_is_sm(silent, true);
    let looker = bench.connect("n1");
    bench.send(looker, Lid::PERMISSIVE, &smp(Method::GET, 1, &[]));
    bench.arrive(2, MadAddress::directed(), Message::single(sm_info(1)));
    assert_eq!(bench.net.declined, []);
    bench.server.lose(&mut bench.net, silent);
    bench.arrive(1, MadAddress::directed(), Message::single(sm_info(1)));
    assert_eq!(bench.net.declined, [sm_info(1)]);
    let silent = bench.connect("n2");
    bench.set_is_sm(silent, true);

    let manager = bench.connect_manager("n1");
    bench.arrive(1, MadAddress::directed(), Message::single(sm_info(2)));
    let given = bench.taken(manager).unwrap();
    assert_eq!(
        (given.slid.lid, given.dlid.lid),
        (Lid::PERMISSIVE, Lid::PERMISSIVE)
    );
    assert_eq!((given.sqp.get(), given.dqp.get()), (0, 0));
    assert_eq!(given.mad().view::<DirectedRouteSmp>().hop_pointer(), 0);
    assert_eq!(given.mad().header.tid, Tid::new(2));
    assert_eq!((bench.taken(silent), bench.taken(looker)), (None, None));
}

#[test]
fn a_manager_that_starts_is_asked_when_it_has_sent_its_first_smp() {
    let mut bench = Bench::default();
    let manager = bench.connect("n1");
    bench.set_is_sm(manager, true);
    bench.arrive(1, MadAddress::directed(), Message::single(sm_info(2)));
    assert_eq!(bench.taken(manager), None);
    bench.send(manager, Lid::new(12), &gmp(SA, Method::GET, 1));
    assert_eq!(bench.taken(manager), None);
    bench.send(manager, Lid::PERMISSIVE, &smp(Method::GET, 1, &[]));
    let given = bench.taken(manager).unwrap();
    assert_eq!(given.mad().header.tid, Tid::new(2));
    assert!(bench.net.declined.is_empty());
}

#[test]
fn the_trap_repress_of_a_clients_own_trap_is_its_answer() {
    let mut bench = Bench::default();
    let manager = bench.connect_manager("n1");
    let trap = gmp(MgmtClass::SUBN_LID_ROUTED, Method::TRAP, 7);
    bench.send(manager, Lid::new(12), &trap);
    let (to, sent) = bench.sent();
    bench.arrive(1, to, Message::single(answer(&sent)));
    let repress = bench.taken(manager).unwrap().mad();
    assert_eq!(repress.header.method, Method::TRAP_REPRESS);
    assert_eq!(repress.header.tid, Tid::new(7));
    let late = Instant::ZERO + ServerConfig::default().smp_timeout;
    bench.server.poll(late, &mut bench.net);
    // The SMP of the manager that nobody answered, not the trap.
    assert_eq!(bench.counters().overdue, 1);
}

#[test]
fn the_answer_to_a_directed_request_gets_the_hop_pointer_of_the_end_of_its_route() {
    let mut bench = Bench::default();
    let manager = bench.connect_manager("n1");
    bench.arrive(1, MadAddress::directed(), Message::single(sm_info(2)));
    let mut reply = bench.taken(manager).unwrap().mad();
    reply.header.method = Method::GET_RESP;
    reply.view_mut::<DirectedRouteSmp>().set_returning(true);
    bench.send(manager, Lid::PERMISSIVE, &reply);
    let (to, sent) = bench.sent();
    assert_eq!(to, MadAddress::directed());
    let view: &DirectedRouteSmp = sent.view();
    assert_eq!((view.hop_pointer(), view.hop_count()), (3, 2));
    assert_eq!(sent.header.tid, Tid::new(2));
}

#[test]
fn requests_to_the_sa_go_to_the_manager_and_other_classes_never() {
    let mut bench = Bench::default();
    let manager = bench.connect_manager("n1");
    let from = MadAddress::gsi(Lid::new(13));
    let get = gmp(SA, Method::GET, 3);
    bench.arrive(1, from, Message::single(get));
    let given = bench.taken(manager).unwrap();
    assert_eq!((given.slid.lid, given.dlid.lid), (from.lid, Lid::new(11)));
    assert_eq!((given.sqp.get(), given.dqp.get()), (1, 1));
    let ping = gmp(VENDOR, Method::GET, 4);
    bench.arrive(1, from, Message::single(ping));
    assert_eq!(bench.net.declined, [ping]);
    assert_eq!(bench.taken(manager), None);
}

#[test]
fn requests_of_other_classes_go_to_who_takes_requests_and_announced_no_manager() {
    let mut bench = Bench::default();
    bench.connect("n1");
    let taker = bench.try_connect("n1", true).unwrap();
    bench.connect_manager("n1");
    let from = MadAddress::gsi(Lid::new(13));
    for (tid, mad) in [
        (1, gmp(VENDOR, Method::GET, 1)),
        (2, gmp(MgmtClass::COM_MGT, Method::SEND, 2)),
    ] {
        bench.arrive(1, from, Message::single(mad));
        assert_eq!(bench.taken(taker).unwrap().mad().header.tid, Tid::new(tid));
    }
}

#[test]
fn a_server_of_a_vendor_class_that_announced_itself_is_spared_smps_and_the_sa() {
    let mut bench = Bench::default();
    let pinger = bench.try_connect("n1", true).unwrap();
    bench.set_is_sm(pinger, true);
    let from = MadAddress::gsi(Lid::new(13));
    bench.arrive(1, from, Message::single(gmp(SA, Method::GET, 1)));
    for tid in 0..20 {
        bench.arrive(1, MadAddress::directed(), Message::single(sm_info(tid)));
    }
    assert_eq!(bench.taken(pinger), None);
    // Some wait for it to send an SMP itself.
    assert_eq!(bench.net.declined.len(), 1 + 20 - 16);
    bench.arrive(1, from, Message::single(gmp(VENDOR, Method::GET, 3)));
    assert!(bench.taken(pinger).is_some());
}

#[test]
fn an_answer_goes_back_by_the_way_its_request_came() {
    let mut bench = Bench::default();
    let manager = bench.connect_manager("n1");
    let from = MadAddress {
        sl: ib_wire::Sl::from_low_bits(3),
        path_bits: 1,
        ..MadAddress::gsi(Lid::new(13))
    };
    bench.arrive(1, from, Message::single(gmp(SA, Method::GET, 3)));
    let reply = answer(&bench.taken(manager).unwrap().mad());
    bench.send(manager, from.lid, &reply);
    assert_eq!(bench.sent(), (from, reply));
    // A second one is sent where the datagram says.
    bench.send(manager, from.lid, &reply);
    assert_eq!(bench.sent(), (MadAddress::gsi(from.lid), reply));
}

#[test]
fn a_table_is_cut_to_one_mad_and_says_how_long_it_is() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    for (len, expected) in [(500, 256), (128, 184), (0, 56)] {
        bench.send(slot, Lid::new(12), &gmp(SA, Method::GET_TABLE, 1));
        let (to, sent) = bench.sent();
        let table = Message::rmpp(answer(&sent), vec![7; len]).unwrap();
        bench.arrive(1, to, table);
        let got = bench.taken(slot).unwrap();
        assert_eq!(got.length.get(), expected);
        let mad = got.mad();
        let rmpp = mad.view::<RmppMad>().rmpp;
        assert!(rmpp.is_unsegmented() && rmpp.data2.get() == 0);
        let filled = mad.as_bytes()[56..].iter().filter(|byte| **byte == 7);
        assert_eq!(filled.count(), len.min(200));
    }
}

#[test]
fn a_table_of_another_client_keeps_its_length_on_the_way() {
    let mut bench = Bench::default();
    let asker = bench.connect("n2");
    let manager = bench.connect_manager("n1");
    bench.send(asker, Lid::new(11), &gmp(SA, Method::GET_TABLE, 1));
    let (_, sent) = bench.sent();
    bench.arrive(1, MadAddress::gsi(Lid::new(12)), Message::single(sent));
    let mut reply = bench.taken(manager).unwrap();
    let mut table = answer(&reply.mad());
    (table.view_mut::<RmppMad>().rmpp).set_flags(RmppFlags::ACTIVE);
    reply = MadDatagram::new(Lid::NONE, Lid::new(12), 1, 1, &table);
    reply.length = 184.into();
    (bench.server).handle_mad(Instant::ZERO, &mut bench.net, manager, reply.as_bytes());
    let (_, sent) = bench.sent();
    bench.arrive(2, MadAddress::gsi(Lid::new(11)), Message::single(sent));
    let got = bench.taken(asker).unwrap();
    assert_eq!(got.length.get(), 184);
    assert_eq!(got.mad().as_bytes()[24..], table.as_bytes()[24..]);
}

#[test]
fn a_client_that_does_not_read_loses_what_is_beyond_its_queue_and_harms_nobody() {
    let config = ServerConfig {
        max_queued: 3,
        ..ServerConfig::default()
    };
    let mut bench = Bench::new(config);
    let manager = bench.connect_manager("n1");
    let other = bench.connect("n2");
    for tid in 0..10 {
        let get = gmp(SA, Method::GET, tid);
        bench.arrive(1, MadAddress::gsi(Lid::new(13)), Message::single(get));
    }
    assert_eq!(bench.counters().overrun, 7);
    assert_eq!(bench.server.waiting().collect::<Vec<_>>(), [manager]);
    bench.send(other, Lid::new(12), &gmp(SA, Method::GET, 1));
    let (to, sent) = bench.sent();
    bench.arrive(2, to, Message::single(answer(&sent)));
    assert!(bench.taken(other).is_some());
    let tids = std::iter::from_fn(|| bench.taken(manager)).map(|d| d.mad().header.tid.get());
    assert_eq!(tids.collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(bench.server.waiting().count(), 0);
}

#[test]
fn an_answer_on_another_port_or_of_another_class_is_stray() {
    let mut bench = Bench::default();
    let slot = bench.connect("n1");
    bench.connect("n2");
    bench.send(slot, Lid::new(12), &gmp(SA, Method::GET, 1));
    let (to, sent) = bench.sent();
    bench.arrive(2, to, Message::single(answer(&sent)));
    let mut other_class = answer(&sent);
    other_class.header.mgmt_class = MgmtClass::PERF;
    bench.arrive(1, to, Message::single(other_class));
    assert_eq!(bench.counters().stray_answers, 2);
    assert_eq!(bench.taken(slot), None);
    bench.arrive(1, to, Message::single(answer(&sent)));
    assert!(bench.taken(slot).is_some());
}
