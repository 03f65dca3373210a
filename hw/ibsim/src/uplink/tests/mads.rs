//! MADs that pass, and what does not.

use ib_wire::Gid;
use ib_wire::mad::MadStatus;
use ib_wire::packet::Grh;

use super::*;

const PEER: Lid = Lid::new(9);
const VENDOR: MgmtClass = MgmtClass::new(0x32);
const TALL: u64 = 0xabcd_0000_1234_5678;

#[test]
fn a_request_of_the_adapter_and_its_answer_pass_with_the_transaction_id_as_it_was() {
    for tid in [0x1234_5678, TALL] {
        let mut bench = Bench::up(GuidPolicy::Fabric);
        bench.send(PEER, &mad(VENDOR, Method::GET, 1, tid));
        let sent = bench.sim.inbox.pop_front().unwrap();
        assert_eq!((sent.slid, sent.dlid), (LID, PEER));
        assert_eq!((sent.sqp.get(), sent.dqp), (1, 1));
        let mut answer = sent.mad;
        answer.header.method = Method::GET_RESP;
        bench.deliver(PEER, &answer);
        let [(arrived, source, pkey)] = to_adapter(&bench.outputs())[..] else {
            panic!("one packet");
        };
        assert_eq!(arrived.header.tid, Tid::new(tid));
        assert_eq!((source, pkey), (Qpn::GSI, PKey::DEFAULT_FULL));
    }
}

#[test]
fn a_request_of_a_peer_keeps_the_bits_that_bring_its_answer_back() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    let tid = 7 << 48 | 0x42;
    bench.deliver(PEER, &mad(VENDOR, Method::GET, 1, tid));
    let [(arrived, ..)] = to_adapter(&bench.outputs())[..] else {
        panic!("one packet");
    };
    assert_eq!(arrived.header.tid, Tid::new(tid));
}

#[test]
fn a_reply_of_the_cm_has_the_transaction_id_of_the_request_and_a_request_its_own() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    let req = mad(MgmtClass::COM_MGT, Method::SEND, 0x10, TALL);
    bench.send(PEER, &req);
    let sent = bench.sim.inbox.pop_front().unwrap();
    let mut rep = sent.mad;
    rep.header.attribute_id = AttributeId::CM_REP;
    rep.header.tid = Tid::new(7 << 48 | TALL & 0xffff_ffff_ffff);
    bench.deliver(PEER, &rep);
    let foreign = mad(MgmtClass::COM_MGT, Method::SEND, 0x10, 7 << 48 | 1);
    bench.deliver(PEER, &foreign);
    let arrived = to_adapter(&bench.outputs());
    let tids: Vec<u64> = arrived
        .iter()
        .map(|(mad, ..)| mad.header.tid.get())
        .collect();
    assert_eq!(tids, [TALL, 7 << 48 | 1]);
}

#[test]
fn a_request_that_nobody_answers_is_refused_after_some_seconds_and_an_answered_one_is_not() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    let request = |tid: u64| mad(VENDOR, Method::GET, 1, 7 << 48 | tid);
    bench.deliver(PEER, &request(1));
    bench.deliver(PEER, &request(2));
    let mut answer = request(2);
    answer.header.method = Method::GET_RESP;
    bench.send(PEER, &answer);
    assert_eq!(bench.sim.inbox.drain(..).count(), 1);
    bench.run_for(Duration::from_secs(10));
    let refusal = bench.sim.inbox.pop_front().unwrap();
    assert!(bench.sim.inbox.is_empty());
    let header = refusal.mad.header;
    assert_eq!(
        (header.method, header.tid),
        (Method::GET_RESP, request(1).header.tid)
    );
    assert_eq!(header.status, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
    assert_eq!(refusal.dlid, PEER);
    assert_eq!(bench.uplink.counters().refused, 1);
}

#[test]
fn an_smp_that_the_simulator_forwards_is_refused_at_once() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    let smp = mad(MgmtClass::SUBN_LID_ROUTED, Method::GET, 0x20, 7 << 48 | 1);
    bench.deliver(SM_LID, &smp);
    bench.poll();
    let refusal = bench.sim.inbox.pop_front().unwrap();
    assert_eq!((refusal.dlid, refusal.dqp), (SM_LID, 0));
    assert_eq!(
        refusal.mad.header.status,
        MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE
    );
}

fn lost(bench: &Bench) -> Vec<Loss> {
    let counters = bench.uplink.counters();
    let all = Loss::ALL.into_iter();
    all.filter(|loss| counters.lost(*loss) > 0).collect()
}

#[test]
fn what_the_protocol_cannot_carry_is_dropped_with_a_reason() {
    let rmpp_ack = {
        let request = mad(MgmtClass::SUBN_ADM, Method::GET_TABLE, 0x35, 1);
        let mut sa: ib_wire::sa::SaMad = *request.view();
        sa.rmpp = ib_wire::rmpp::RmppHeader::ack(1, 1);
        Mad::from_layout(&sa)
    };
    let smp = mad(MgmtClass::SUBN_LID_ROUTED, Method::GET, 0x11, 1);
    let multicast = Lid::new(0xc001);
    for (frame, loss) in [
        (
            packet(PEER, Qpn::from_low_bits(0x48), &[1; 64]),
            Loss::UserData,
        ),
        (packet(multicast, Qpn::GSI, &[1; 256]), Loss::Multicast),
        (packet(PEER, Qpn::GSI, &[1; 64]), Loss::Damaged),
        (packet(PEER, Qpn::GSI, rmpp_ack.as_bytes()), Loss::Rmpp),
        (near::frame(&smp).unwrap(), Loss::Smp),
        (Frame::new(&[0; 40]), Loss::Damaged),
    ] {
        let mut bench = Bench::up(GuidPolicy::Fabric);
        bench.uplink.handle_frame(bench.now, frame);
        assert_eq!(lost(&bench), [loss]);
        bench.poll();
        assert!(bench.sim.inbox.is_empty());
    }
}

#[test]
fn a_grh_is_left_behind_and_counted() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    let gsi = mad(VENDOR, Method::GET, 1, 1);
    let mut buffer = [0; 512];
    let len = UdFrame {
        vl: Vl::default(),
        sl: Sl::default(),
        slid: LID,
        dlid: PEER,
        grh: Some(Grh::new(Gid::NONE, Gid::NONE, 1)),
        pkey: PKey::DEFAULT_FULL,
        dest_qp: Qpn::GSI,
        src_qp: Qpn::GSI,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: gsi.as_bytes(),
    }
    .write(&mut buffer)
    .unwrap();
    let frame = Frame::sealed(&buffer[..len]);
    bench.uplink.handle_frame(bench.now, frame);
    bench.poll();
    assert_eq!(bench.sim.inbox.len(), 1);
    let counters = bench.uplink.counters();
    assert_eq!((counters.sent, counters.without_grh), (1, 1));
}

#[test]
fn datagrams_that_make_no_sense_are_dropped_with_a_reason() {
    let gsi = mad(VENDOR, Method::GET, 1, 1);
    let good = translate::to_port(PEER, LID, &gsi);
    let stray = mad(MgmtClass::SUBN_LID_ROUTED, Method::GET_RESP, 0x11, 5);
    let changed = |change: &dyn Fn(&mut MadDatagram)| {
        let mut datagram = good;
        change(&mut datagram);
        datagram.as_bytes().to_vec()
    };
    for (bytes, loss) in [
        (vec![0; 287], Loss::Malformed),
        (vec![0; 289], Loss::Malformed),
        (changed(&|d| d.length = 257.into()), Loss::Malformed),
        (changed(&|d| d.status = 5.into()), Loss::Malformed),
        (
            changed(&|d| d.status = MadDatagram::TIMED_OUT.into()),
            Loss::Bounced,
        ),
        (changed(&|d| d.dqp = 0x48.into()), Loss::OtherQp),
        (changed(&|d| d.dlid = Lid::new(6).into()), Loss::OtherLid),
        (
            translate::to_agent(None, &stray).as_bytes().to_vec(),
            Loss::Stray,
        ),
    ] {
        let mut bench = Bench::up(GuidPolicy::Fabric);
        bench.deliver_bytes(&bytes);
        assert_eq!(lost(&bench), [loss]);
        assert!(to_adapter(&bench.outputs()).is_empty());
    }
}

#[test]
fn bytes_behind_the_length_are_not_the_adapters_to_see() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    let mut gsi = mad(VENDOR, Method::GET, 1, 1);
    gsi.data = [0xee; 232];
    let mut datagram = translate::to_port(PEER, LID, &gsi);
    datagram.length = 128.into();
    bench.deliver_bytes(datagram.as_bytes());
    let [(arrived, ..)] = to_adapter(&bench.outputs())[..] else {
        panic!("one packet");
    };
    assert_eq!(arrived.data[..104], [0xee; 104]);
    assert_eq!(arrived.data[104..], [0; 128]);
}

#[test]
fn what_nobody_takes_is_bounded() {
    let mut bench = Bench::up(GuidPolicy::Fabric);
    for tid in 0..5000 {
        bench.deliver(PEER, &mad(VENDOR, Method::SEND, 1, tid));
    }
    assert!(bench.outputs().len() <= 1024);
    assert!(bench.uplink.counters().lost(Loss::Overflow) >= 5000 - 1024);
}
