//! Packets of a peer that keeps to no rule, and functions that go.

use hca_api::GlobalRoute;
use ib_wire::packet::{Bth, BthOpcode, Lrh, TransportFrame};
use ib_wire::{Gid, GidIndex, PKey};
use proptest::prelude::*;

use super::*;
use crate::{EndNode, Frame};

/// A packet from the peer's path to a queue pair, right in everything that is checked before the transport.
pub(super) fn packet(
    to: &End,
    opcode: u8,
    psn: Psn,
    ack: bool,
    extended: &[u8],
    payload: &[u8],
) -> Frame {
    let opcode = BthOpcode::new(opcode);
    let lids = [Lid::new(1), Lid::new(2)];
    let mut bth = Bth {
        opcode,
        pkey: PKey::DEFAULT_FULL,
        dest_qp: to.qpn,
        psn,
        ..Bth::default()
    };
    bth.set_ack_request(ack);
    let frame = TransportFrame {
        lrh: Lrh {
            slid: lids[1 - to.host],
            dlid: lids[to.host],
            ..Lrh::default()
        },
        grh: None,
        bth,
        extended,
        payload,
    };
    let mut buffer = vec![0; 8192];
    let len = frame.write(&mut buffer).unwrap();
    Frame::sealed(&buffer[..len])
}

/// Bytes of the headers of an opcode, of which a key, an address and a length are right now and then.
fn headers(opcode: u8, target: &End, random: &[u8; 32], honest: bool) -> Vec<u8> {
    let Some(set) = BthOpcode::new(opcode).extended_headers() else {
        return Vec::new();
    };
    let mut bytes = Vec::new();
    if set.feth {
        // A placement and a selectivity that exist, now and then.
        let bits = if honest {
            random[28] & 0x13
        } else {
            random[28]
        };
        bytes.extend([random[29], random[30], random[31], bits]);
    }
    if set.reth || set.atomic_eth {
        let remote = target.remote(usize::from(random[0]) * 8);
        let mut reth = random[..16].to_vec();
        if honest {
            reth[..8].copy_from_slice(&remote.addr.to_be_bytes());
            reth[8..12].copy_from_slice(&remote.rkey.0.to_be_bytes());
            reth[12..14].fill(0);
        }
        bytes.extend(reth);
    }
    if set.atomic_eth {
        bytes.extend(&random[16..28]);
    }
    if set.aeth {
        bytes.extend(&random[..4]);
    }
    if set.atomic_ack_eth {
        bytes.extend(&random[8..16]);
    }
    if set.immediate || set.ieth {
        bytes.extend(&random[4..8]);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever comes, requests complete once and in order, and what the adapter keeps is bounded.
    #[test]
    fn any_packets_end_in_a_bounded_number_of_answers_and_completions(
        reliable: bool,
        packets in prop::collection::vec(
            (0_u8..0x1e, -3_i32..6, any::<(bool, bool, [u8; 32])>(), 0_usize..1100), 1..60,
        ),
    ) {
        let mut rig = Rig::new();
        let kind = if reliable { QpKind::Rc } else { QpKind::Uc };
        let [a, b] = rig.pair(kind);
        rig.faults(When::Always, Fault::Partition);
        for wr_id in 0..4 {
            rig.receive(&a, wr_id, a.sge(0, 2000));
            rig.post(&a, 100 + wr_id, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 3000)).unwrap();
            if reliable {
                let op = SendOp::RdmaRead(b.remote(0));
                rig.post(&a, 200 + wr_id, op, a.sge(0, 3000)).unwrap();
            }
        }
        rig.fabric.poll(rig.now);
        for (operation, ahead, (honest, ack, random), len) in packets {
            let opcode = if reliable { operation } else { 0x20 | operation };
            if BthOpcode::new(opcode).extended_headers().is_none() {
                continue;
            }
            let base = first_psn(if BthOpcode::new(opcode).is_response() { a.qpn } else { b.qpn });
            let psn = base.wrapping_add(ahead.cast_unsigned());
            let extended = headers(opcode, &a, &random, honest);
            let frame = packet(&a, opcode, psn, ack, &extended, &vec![1; len]);
            let now = rig.now;
            let device = rig.fabric.device_mut(rig.hosts[0]).unwrap();
            device.receive(now, PORT, frame);
            rig.fabric.poll(rig.now);
        }
        rig.run(2000);
        rig.modify(&a, &to_state(QpState::Error)).unwrap();
        let done = rig.outcomes(&a);
        let receives: Vec<_> = done.iter().filter(|done| done.0 < 100).map(|done| done.0).collect();
        prop_assert_eq!(receives, [0, 1, 2, 3]);
        let sends = done.iter().filter(|done| done.0 >= 100).count();
        prop_assert_eq!(sends, if reliable { 8 } else { 4 });
        rig.hca(0).destroy_qp(a.qp).unwrap();
        rig.hca(1).destroy_qp(b.qp).unwrap();
        rig.run(1);
        prop_assert_eq!(rig.fabric.poll_timeout(), None);
    }
}

#[test]
fn a_path_with_a_global_route_takes_packets_with_that_route_only() {
    let mut rig = Rig::new();
    let [a, b] = [rig.end(0, QpKind::Rc), rig.end(1, QpKind::Rc)];
    let gids = [0, 1].map(|host| rig.hca(host).query_gid(PORT, GidIndex(0)).unwrap());
    let route = |remote_gid: Gid| GlobalRoute {
        remote_gid,
        sgid_index: GidIndex(0),
        flow_label: 0,
        hop_limit: 1,
        traffic_class: 0,
    };
    for (end, peer, gid) in [(&a, &b, gids[1]), (&b, &a, gids[0])] {
        let mut change = to_rtr(peer, true);
        change.primary.as_mut().unwrap().grh = Some(route(gid));
        rig.modify(end, &change).unwrap();
        rig.modify(end, &to_rts(end, true)).unwrap();
    }
    rig.post(&a, 1, SendOp::RdmaRead(b.remote(0)), a.sge(0, 5000))
        .unwrap();
    rig.run(10);
    assert_eq!(rig.outcomes(&a), [(1, CompletionStatus::Success)]);
    let extended = headers(0x0a, &a, &[0; 32], true);
    let now = rig.now;
    let bare = packet(&a, 0x0a, first_psn(b.qpn), true, &extended, &[]);
    let device = rig.fabric.device_mut(rig.hosts[0]).unwrap();
    device.receive(now, PORT, bare);
    assert_eq!(device.drops().get(DropReason::ForeignPath), 1);
}

#[test]
fn a_function_that_is_reset_leaves_no_timer_and_nothing_to_send() {
    const VF: FunctionId = FunctionId(1);

    let mut rig = Rig::new();
    let host = rig.hosts[0];
    rig.add_vf(0, VF);
    let peer = rig.end(1, QpKind::Rc);
    let mut vf = rig.fabric.hca(host, VF).unwrap();
    let pd = vf.alloc_pd().unwrap();
    let cq = vf.create_cq(16).unwrap();
    let (qp, numbers) = vf.create_qp(spec(QpKind::Rc, pd, cq)).unwrap();
    vf.modify_qp(qp, &init()).unwrap();
    vf.modify_qp(qp, &to_rtr(&peer, true)).unwrap();
    let rts = QpModify {
        sq_psn: Some(first_psn(numbers.real)),
        ..to_rts(&peer, true)
    };
    vf.modify_qp(qp, &rts).unwrap();
    vf.post_send(
        qp,
        &SendRequest {
            wr_id: 1,
            op: SendOp::Send,
            payload: Payload::Inline(b"to nobody"),
            flags: SendFlags::SIGNALED,
            destination: None,
        },
    )
    .unwrap();
    while rig.fabric.poll(rig.now) {}
    assert!(
        rig.fabric.poll_timeout().is_some(),
        "it waits for an answer"
    );
    let mut pf = rig.fabric.hca(host, PF).unwrap();
    pf.reset_function(VF).unwrap();
    while rig.fabric.poll(rig.now) {}
    assert_eq!(rig.fabric.poll_timeout(), None);
}

/// Time goes on by the caller's clock, as in a service, and each poll does as much as it may.
#[test]
fn reads_within_an_adapter_that_never_end_keep_no_packet_of_others_waiting() {
    for latency in [0, 100] {
        let mut rig = Rig::with_latency(Duration::from_nanos(latency));
        let [a, b] = rig.pair(QpKind::Rc);
        let own = [rig.end(0, QpKind::Rc), rig.end(0, QpKind::Rc)];
        rig.open(&own[0], &own[1], true);
        rig.open(&own[1], &own[0], true);
        let all = u32::try_from(REGION).unwrap();
        let mut free = 64;
        let mut is_written = false;
        for round in 0..200 {
            for _ in 0..free {
                let read = SendOp::RdmaRead(own[1].remote(0));
                rig.post(&own[0], 0, read, own[0].sge(0, all)).unwrap();
            }
            if round == 10 {
                let write = SendOp::RdmaWrite(a.remote(0));
                rig.post(&b, 1, write, b.sge(0, 8)).unwrap();
            }
            rig.now += Duration::from_micros(10);
            assert!(rig.fabric.poll(rig.now), "the reads end");
            free = rig.done(&own[0]).len();
            is_written |= rig.outcomes(&b) == [(1, CompletionStatus::Success)];
        }
        assert!(is_written, "a write of another adapter, {latency} ns");
    }
}
