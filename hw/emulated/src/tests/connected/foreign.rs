//! Packets of queue pairs that are not the connection's peer.

use hca_api::{AsyncEvent, GlobalRoute};
use ib_transport::{Ending, Run, RunOperation, Transfer};
use ib_wire::{GidIndex, Lmc};

use super::hostile::packet;
use super::*;
use crate::hca::Way;
use crate::{NodeKind, PacketSource};

const VF1: FunctionId = FunctionId(1);
const VF2: FunctionId = FunctionId(2);
const SUCCESS: CompletionStatus = CompletionStatus::Success;

/// Makes a queue pair beside a peer that is set to the peer's victim as the peer is: number, path and PSNs.
fn double(rig: &mut Rig, function: FunctionId, kind: QpKind, [victim, peer]: [&End; 2]) -> End {
    let reliable = kind == QpKind::Rc;
    let double = rig.end_of(peer.host, function, kind);
    rig.modify(&double, &to_rtr(victim, reliable)).unwrap();
    let as_peer = QpModify {
        sq_psn: Some(first_psn(peer.qpn)),
        ..to_rts(&double, reliable)
    };
    rig.modify(&double, &as_peer).unwrap();
    double
}

/// Sends a message to the peer, and writes it.
fn assert_reaches(rig: &mut Rig, from: &End, to: &End, seed: u8) {
    let message = pattern(5000, seed);
    rig.write(from, 0, &message);
    rig.receive(to, 50, to.sge(10_000, 5000));
    rig.post(from, 1, SendOp::Send, from.sge(0, 5000)).unwrap();
    let write = SendOp::RdmaWrite(to.remote(20_000));
    rig.post(from, 2, write, from.sge(0, 5000)).unwrap();
    rig.run(100);
    assert_eq!(rig.outcomes(from), [(1, SUCCESS), (2, SUCCESS)]);
    assert_eq!(rig.outcomes(to), [(50, SUCCESS)]);
    for at in [10_000, 20_000] {
        assert_eq!(rig.read(to, at, 5000), message);
    }
}

fn assert_reach_each_other(rig: &mut Rig, [a, b]: &[End; 2]) {
    assert_reaches(rig, a, b, 1);
    assert_reaches(rig, b, a, 2);
}

#[test]
fn t025a_a_sibling_with_the_peers_lid_and_psn_changes_nothing_and_is_named() {
    for host in [0, 1] {
        let mut rig = Rig::new();
        rig.add_vf(host, VF1);
        rig.add_vf(host, VF2);
        let ends = [rig.end(0, QpKind::Rc), rig.end_of(host, VF1, QpKind::Rc)];
        rig.join(&ends, QpKind::Rc);
        let [a, b] = ends;
        let spy = double(&mut rig, VF2, QpKind::Rc, [&a, &b]);
        let before = rig.owner(&a).query_qp(a.qp).unwrap();
        let sent = rig.device(0).node().port(PORT).unwrap().counters;
        rig.write(&a, 0, &[7; 8]);
        rig.post(&spy, 1, SendOp::RdmaWrite(a.remote(0)), spy.sge(0, 8))
            .unwrap();
        rig.run(1000);
        assert_eq!(
            rig.outcomes(&spy),
            [(1, CompletionStatus::RetryExceeded)],
            "nobody answers"
        );
        assert_eq!(rig.owner(&a).query_qp(a.qp).unwrap(), before);
        assert_eq!(rig.read(&a, 0, 8), [7; 8]);
        let device = rig.device(0);
        let after = device.node().port(PORT).unwrap().counters;
        assert_eq!(after.xmit_packets, sent.xmit_packets);
        let refused = foreign(device, PF);
        assert!(refused >= 8, "the packet and its retries: {refused}");
        let named: Vec<_> = device.foreign_peers().collect();
        assert_eq!(named.len(), 1);
        assert_eq!((named[0].to, named[0].function), (PF, VF2));
        assert_eq!(named[0].slid, Lid::new(if host == 0 { 1 } else { 2 }));
        assert_eq!(named[0].packets, refused);
        assert_reach_each_other(&mut rig, &ends);
    }
}

#[test]
fn t025a_a_queue_pair_that_is_its_own_peer_hears_itself() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut rig = Rig::new();
        let own = rig.end(0, kind);
        rig.open(&own, &own, kind == QpKind::Rc);
        rig.write(&own, 0, &pattern(5000, 1));
        rig.receive(&own, 1, own.sge(10_000, 5000));
        rig.post(&own, 2, SendOp::Send, own.sge(0, 5000)).unwrap();
        rig.run(10);
        let mut done = rig.outcomes(&own);
        done.sort_by_key(|done| done.0);
        assert_eq!(done, [(1, SUCCESS), (2, SUCCESS)]);
        assert_eq!(rig.read(&own, 10_000, 5000), pattern(5000, 1));
        assert_eq!(foreign(rig.device(0), PF), 0);
    }
}

#[test]
fn t025a_a_peer_in_rtr_takes_the_first_packet_and_none_of_a_sibling() {
    let mut rig = Rig::new();
    rig.add_vf(0, VF1);
    let [a, b] = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
    rig.modify(&b, &to_rtr(&a, true)).unwrap();
    rig.receive(&b, 5, b.sge(0, 64));
    let spy = double(&mut rig, VF1, QpKind::Rc, [&b, &a]);
    rig.post(&spy, 1, SendOp::Send, spy.sge(0, 8)).unwrap();
    rig.run(1);
    assert_eq!(rig.outcomes(&b), []);
    assert_eq!(rig.events(&b), [], "the connection is not established");
    rig.open(&a, &b, true);
    rig.post(&a, 2, SendOp::Send, a.sge(0, 8)).unwrap();
    rig.run(1);
    assert_eq!(rig.outcomes(&a), [(2, SUCCESS)]);
    assert_eq!(rig.outcomes(&b), [(5, SUCCESS)]);
    let established = HcaEvent::Async(AsyncEvent::CommunicationEstablished(b.qp));
    assert_eq!(rig.events(&b), [established]);
    rig.modify(&b, &to_rts(&b, true)).unwrap();
    assert_reach_each_other(&mut rig, &[a, b]);
}

#[test]
fn t025a_of_several_uc_senders_the_peer_is_heard() {
    let mut rig = Rig::new();
    let ends = rig.pair(QpKind::Uc);
    let [a, b] = ends;
    rig.add_vf(0, VF1);
    let other = double(&mut rig, VF1, QpKind::Uc, [&b, &a]);
    rig.receive(&b, 5, b.sge(0, 64));
    for wr_id in [1, 2] {
        rig.post(&other, wr_id, SendOp::Send, other.sge(0, 8))
            .unwrap();
    }
    rig.run(1);
    assert_eq!(rig.outcomes(&other), [(1, SUCCESS), (2, SUCCESS)]);
    assert_eq!(rig.outcomes(&b), []);
    assert_eq!(foreign(rig.device(1), PF), 2);
    rig.post(&a, 3, SendOp::Send, a.sge(0, 8)).unwrap();
    rig.run(1);
    assert_eq!(rig.outcomes(&b), [(5, SUCCESS)]);
    rig.outcomes(&a);
    assert_reach_each_other(&mut rig, &ends);
}

#[test]
fn t025a_a_peer_that_sends_from_another_lid_of_its_port_is_heard() {
    let mut rig = Rig::new();
    rig.add_vf(1, VF1);
    let ends = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
    let [a, b] = ends;
    let lids = |path_bits, dlid| AddressVector {
        port: PORT,
        dlid: Lid::new(dlid),
        sl: Sl::default(),
        path_bits,
        static_rate: None,
        grh: None,
    };
    let node = rig.device(1).node_mut();
    node.port_mut(PORT).unwrap().lmc = Lmc::from_low_bits(1);
    let nodes = rig.fabric.nodes();
    let switches: Vec<_> = nodes
        .filter(|(_, kind)| *kind == NodeKind::Switch)
        .collect();
    for (switch, _) in switches {
        route(&mut rig.fabric, switch, 3, |ports| ports[3] = ports[2]);
    }
    for (end, peer, path) in [(&a, &b, lids(0, 3)), (&b, &a, lids(1, 1))] {
        let mut change = to_rtr(peer, true);
        change.primary = Some(path);
        rig.modify(end, &change).unwrap();
        rig.modify(end, &to_rts(end, true)).unwrap();
    }
    let spy = double(&mut rig, VF1, QpKind::Rc, [&a, &b]);
    rig.post(&spy, 1, SendOp::RdmaWrite(a.remote(0)), spy.sge(0, 8))
        .unwrap();
    assert_reach_each_other(&mut rig, &ends);
    assert!(foreign(rig.device(0), PF) > 0);
}

#[test]
fn t025a_with_a_global_route_the_peer_is_heard_and_another_queue_pair_of_its_gid_is_not() {
    let mut rig = Rig::new();
    let ends = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
    let [a, b] = ends;
    let spy = rig.end(1, QpKind::Rc);
    let gids = [0, 1].map(|host| rig.hca(host).query_gid(PORT, GidIndex(0)).unwrap());
    let routed = |peer: &End| {
        let mut change = to_rtr(peer, true);
        change.primary.as_mut().unwrap().grh = Some(GlobalRoute {
            remote_gid: gids[peer.host],
            sgid_index: GidIndex(0),
            flow_label: 0,
            hop_limit: 1,
            traffic_class: 0,
        });
        change
    };
    for (end, peer, source) in [(&a, &b, &a), (&b, &a, &b), (&spy, &a, &b)] {
        rig.modify(end, &routed(peer)).unwrap();
        let change = QpModify {
            sq_psn: Some(first_psn(source.qpn)),
            ..to_rts(end, true)
        };
        rig.modify(end, &change).unwrap();
    }
    rig.post(&spy, 1, SendOp::RdmaWrite(a.remote(0)), spy.sge(0, 8))
        .unwrap();
    assert_reach_each_other(&mut rig, &ends);
    let device = rig.device(0);
    assert!(foreign(device, PF) > 0);
    assert_eq!(device.drops().get(DropReason::ForeignPath), 0);
}

#[test]
fn t025a_functions_of_one_adapter_and_of_two_reach_each_other() {
    for (host, function) in [(0, VF2), (1, VF1)] {
        for kind in [QpKind::Rc, QpKind::Uc] {
            let mut rig = Rig::new();
            rig.add_vf(0, VF1);
            rig.add_vf(host, function);
            let ends = [rig.end_of(0, VF1, kind), rig.end_of(host, function, kind)];
            rig.join(&ends, kind);
            assert_reach_each_other(&mut rig, &ends);
            for host in [0, 1] {
                assert_eq!(rig.device(host).drops().get(DropReason::ForeignPeer), 0);
            }
        }
    }
}

#[test]
fn t025a_what_a_held_function_has_kept_is_of_its_peer() {
    let mut rig = Rig::new();
    rig.add_vf(0, VF1);
    let [a, b] = rig.pair(QpKind::Rc);
    let spy = double(&mut rig, VF1, QpKind::Rc, [&b, &a]);
    rig.write(&b, 0, &[7; 16]);
    rig.write(&a, 0, &[1; 8]);
    rig.device(1).hold(PF, true);
    rig.post(&spy, 1, SendOp::RdmaWrite(b.remote(8)), spy.sge(0, 8))
        .unwrap();
    rig.post(&a, 2, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
        .unwrap();
    rig.run(1);
    assert_eq!(rig.read(&b, 0, 16), [7; 16]);
    rig.device(1).hold(PF, false);
    rig.run(1);
    assert_eq!(rig.outcomes(&a), [(2, SUCCESS)]);
    assert_eq!(rig.read(&b, 0, 16), [[1; 8], [7; 8]].concat());
    assert!(foreign(rig.device(1), PF) > 0);
}

/// Takes `own` from its peer to another one, which begins at the PSN that the old one has next.
fn reconnect(rig: &mut Rig, own: &End, [old, new]: [&End; 2]) {
    rig.modify(own, &to_state(QpState::Reset)).unwrap();
    rig.modify(own, &init()).unwrap();
    let change = QpModify {
        rq_psn: Some(first_psn(old.qpn)),
        ..to_rtr(new, true)
    };
    rig.modify(own, &change).unwrap();
    rig.modify(own, &to_rts(own, true)).unwrap();
}

#[test]
fn t025a_packets_of_the_old_peer_that_come_after_a_reset_are_refused() {
    for is_held in [false, true] {
        let mut rig = Rig::new();
        rig.add_vf(0, VF1);
        let [a, b] = rig.pair(QpKind::Rc);
        let new = double(&mut rig, VF1, QpKind::Rc, [&b, &a]);
        rig.write(&b, 0, &[7; 8]);
        if is_held {
            rig.device(1).hold(PF, true);
        } else {
            let late = Fault::Delay(Duration::from_millis(5));
            rig.faults(When::Nth(1), late);
        }
        rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8))
            .unwrap();
        rig.run(0);
        reconnect(&mut rig, &b, [&a, &new]);
        let before = rig.owner(&b).query_qp(b.qp).unwrap();
        rig.device(1).hold(PF, false);
        let refused = foreign(rig.device(1), PF);
        assert_eq!(refused, u64::from(is_held));
        rig.run(1000);
        assert!(foreign(rig.device(1), PF) > refused);
        assert_eq!(rig.read(&b, 0, 8), [7; 8]);
        assert_eq!(rig.owner(&b).query_qp(b.qp).unwrap(), before);
        assert_eq!(rig.outcomes(&a), [(1, CompletionStatus::RetryExceeded)]);
        assert_reach_each_other(&mut rig, &[new, b]);
    }
}

/// Sends a host's run as three frames, then as a whole run.
fn cut_half_way(rig: &mut Rig, host: usize, source: PacketSource) {
    let now = rig.now;
    let head = rig.device(host).poll_run(now, PORT).unwrap();
    assert_eq!(head.packets, 8);
    for _ in 0..3 {
        let frame = rig.device(host).poll_transmit(now, PORT).unwrap();
        assert_eq!(frame.source(), Some(source));
        rig.device(1 - host).receive(now, PORT, frame);
    }
    rig.run(1);
}

#[test]
fn t025a_a_run_that_is_cut_half_way_is_of_its_sender_in_both_parts() {
    const LEN: u32 = 8 * 1024;

    let mut rig = Rig::new();
    rig.add_vf(0, VF1);
    let ends = rig.pair(QpKind::Rc);
    let [a, b] = ends;
    assert_reaches(&mut rig, &a, &b, 3);
    let message = pattern(LEN as usize, 4);
    rig.write(&a, 0, &message);
    rig.post(&a, 1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, LEN))
        .unwrap();
    let source = |function, end: &End| PacketSource {
        function,
        qpn: end.qpn,
    };
    cut_half_way(&mut rig, 0, source(PF, &a));
    let own = rig.device(0).queue_pairs().next().unwrap();
    assert_eq!(own.way, Some(Way::Whole), "the rest went whole");
    assert_eq!(rig.outcomes(&a), [(1, SUCCESS)]);
    assert_eq!(rig.read(&b, 0, message.len()), message);
    assert_eq!(foreign(rig.device(1), PF), 0);
    // The same by a sibling, at the PSN that is next.
    let spy = double(&mut rig, VF1, QpKind::Rc, [&b, &a]);
    let before = rig.owner(&b).query_qp(b.qp).unwrap();
    let forged = Run {
        psn: before.rq_psn,
        packets: 8,
        operation: RunOperation::Send(Ending::Plain),
        first: true,
        last: true,
        len: LEN,
        ack_request: true,
        solicited: false,
    };
    let device = rig.device(0);
    device.forge((VF1, spy.qp), Transfer::Request(forged), vec![9; 8 * 1024]);
    cut_half_way(&mut rig, 0, source(VF1, &spy));
    assert_eq!(foreign(rig.device(1), PF), 8);
    assert_eq!(rig.owner(&b).query_qp(b.qp).unwrap(), before);
    assert_reach_each_other(&mut rig, &ends);
}

#[test]
fn t025a_faults_of_links_make_no_stranger_of_the_peer_and_no_peer_of_a_stranger() {
    let soon = Duration::from_micros(50);
    for fault in [
        Fault::Drop,
        Fault::Duplicate,
        Fault::Delay(soon),
        Fault::Reorder {
            behind: 2,
            at_latest: soon,
        },
        Fault::CorruptOnWire { bits: 3 },
        Fault::CorruptInside { bits: 3 },
    ] {
        let mut rig = Rig::new();
        rig.add_vf(0, VF1);
        let ends = rig.pair(QpKind::Rc);
        rig.faults(When::Every(5), fault);
        for _ in 0..10 {
            assert_reach_each_other(&mut rig, &ends);
        }
        let refused = [0, 1].map(|host| foreign(rig.device(host), PF));
        assert_eq!(refused, [0, 0], "{fault:?}");
        let [a, b] = ends;
        let spy = double(&mut rig, VF1, QpKind::Rc, [&b, &a]);
        let before = rig.owner(&b).query_qp(b.qp).unwrap();
        let write = SendOp::RdmaWrite(b.remote(0));
        rig.post(&spy, 1, write, spy.sge(0, 5000)).unwrap();
        rig.run(1000);
        assert!(foreign(rig.device(1), PF) > 0, "{fault:?}");
        assert_eq!(rig.owner(&b).query_qp(b.qp).unwrap(), before);
        assert_reach_each_other(&mut rig, &ends);
    }
}

#[test]
fn t025a_packets_without_a_known_sender_are_judged_by_their_path() {
    let mut rig = Rig::new();
    let [a, b] = rig.pair(QpKind::Rc);
    rig.receive(&a, 5, a.sge(0, 64));
    let sent = packet(&a, 0x04, first_psn(b.qpn), true, &[], b"from outside");
    assert_eq!(sent.source(), None);
    let now = rig.now;
    rig.device(0).receive(now, PORT, sent);
    assert_eq!(rig.outcomes(&a), [(5, SUCCESS)]);
    assert_eq!(rig.read(&a, 0, 12), b"from outside");
}
