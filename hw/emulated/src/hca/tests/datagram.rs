//! Unreliable datagrams: what is sent, what is accepted, what a receiver learns.

use super::*;

/// IBA 9.8, 11.4.2.1: a datagram to the own LID arrives with its address information, behind 40
/// zero bytes when it has no GRH.
#[test]
fn a_datagram_to_the_own_lid_arrives_without_the_wire() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let b = open(&mut device, PF, QpKind::Ud);
    b.post_recv(&mut device, 3);
    a.send(
        &mut device,
        Some(to(vector(5), b.numbers.real, QKEY)),
        b"hello",
    )
    .unwrap();
    assert!(device.poll_transmit(Instant::ZERO, PORT).is_none());
    assert_eq!(a.poll_one(&mut device).wr_id, 77);

    let done = b.poll_one(&mut device);
    assert_eq!((done.wr_id, done.status), (3, CompletionStatus::Success));
    assert_eq!((done.op, done.byte_len), (CompletionOp::Recv, 45));
    assert_eq!(done.flags, CompletionFlags::empty());
    let source = done.source.unwrap();
    assert_eq!((source.slid, source.src_qpn), (Lid::new(5), a.numbers.real));
    assert_eq!(
        (source.port, source.pkey_index, source.grh),
        (PORT, PKeyIndex(0), None)
    );
    let bytes = b.received(&mut device, 3, 45);
    assert_eq!(
        (&bytes[..GRH], &bytes[GRH..]),
        (&[0; GRH][..], &b"hello"[..])
    );
}

/// IBA 9.8: two adapters on one link; immediate data, solicited event, padding and GRH come over.
#[test]
fn a_datagram_crosses_the_wire_with_grh_immediate_and_padding() {
    let (mut left, mut right) = (device(5), device(6));
    let a = open(&mut left, PF, QpKind::Ud);
    let b = open(&mut right, PF, QpKind::Ud);
    b.post_recv(&mut right, 1);
    let gid = |device: &mut Device| {
        let hca = device.function(PF).unwrap();
        hca.query_gid(PORT, GidIndex(0)).unwrap()
    };
    let (left_gid, right_gid) = (gid(&mut left), gid(&mut right));
    let address = AddressVector {
        sl: Sl::from_low_bits(3),
        ..global(6, right_gid)
    };
    left.function(PF)
        .unwrap()
        .post_send(
            a.qp,
            &SendRequest {
                op: SendOp::SendImmediate(0xdead_beef),
                payload: Payload::Inline(b"odd"),
                flags: SendFlags::SOLICITED,
                ..request(&[], Some(to(address, b.numbers.real, QKEY)))
            },
        )
        .unwrap();
    assert_eq!(pipe(&mut left, &mut right), 1);

    let done = b.poll_one(&mut right);
    assert_eq!((done.byte_len, done.immediate), (43, 0xdead_beef));
    assert_eq!(
        done.flags,
        CompletionFlags::GRH | CompletionFlags::IMMEDIATE | CompletionFlags::SOLICITED
    );
    let source = done.source.unwrap();
    assert_eq!((source.slid, source.sl.get()), (Lid::new(5), 3));
    assert_eq!(
        source.grh,
        Some(GlobalRoute {
            remote_gid: left_gid,
            sgid_index: GidIndex(0),
            flow_label: 0x12345,
            hop_limit: 3,
            traffic_class: 9,
        })
    );
    let bytes = b.received(&mut right, 1, 43);
    assert_eq!(bytes[8..24], left_gid.0);
    assert_eq!(bytes[24..40], right_gid.0);
    assert_eq!(&bytes[40..], b"odd");
}

/// IBA 9.6.1.1.3, 10.2.5: the keys must match, and a privileged key stands for the sender's own.
#[test]
fn a_wrong_qkey_is_dropped_and_counted() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let b = open(&mut device, PF, QpKind::Ud);
    b.post_recv(&mut device, 1);
    let wrong = to(vector(5), b.numbers.real, QKey::new(1));
    a.send(&mut device, Some(wrong), b"x").unwrap();
    assert_eq!(a.poll_one(&mut device).status, CompletionStatus::Success);
    assert_eq!(b.poll(&mut device), []);
    assert_eq!(device.drops().get(DropReason::BadQKey), 1);
    let port = device.function(PF).unwrap().query_port(PORT).unwrap();
    assert_eq!(port.bad_qkey_counter, 1);

    let own = to(vector(5), b.numbers.real, QKey::new(0x8000_0000));
    a.send(&mut device, Some(own), b"x").unwrap();
    assert_eq!(b.poll_one(&mut device).status, CompletionStatus::Success);
}

/// IBA 10.9.3: limited members do not talk to each other.
#[test]
fn a_packet_of_a_foreign_partition_is_dropped_and_counted() {
    let (mut left, mut right) = (device(5), device(6));
    for device in [&mut left, &mut right] {
        set_pkeys(device, [0x7fff]);
    }
    let a = open(&mut left, PF, QpKind::Ud);
    let b = open(&mut right, PF, QpKind::Ud);
    b.post_recv(&mut right, 1);
    a.send(&mut left, Some(to(vector(6), b.numbers.real, QKEY)), b"x")
        .unwrap();
    pipe(&mut left, &mut right);
    assert_eq!(b.poll(&mut right), []);
    assert_eq!(right.drops().get(DropReason::BadPKey), 1);
    let port = right.function(PF).unwrap().query_port(PORT).unwrap();
    assert_eq!(port.bad_pkey_counter, 1);
}

/// IBA 9.8.3.1.1: without a receive the packet is dropped silently.
#[test]
fn a_datagram_without_a_posted_receive_is_dropped_and_the_queue_pair_goes_on() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let b = open(&mut device, PF, QpKind::Ud);
    let destination = Some(to(vector(5), b.numbers.real, QKEY));
    a.send(&mut device, destination, b"x").unwrap();
    assert_eq!(device.drops().get(DropReason::NoReceive), 1);
    b.post_recv(&mut device, 1);
    a.send(&mut device, destination, b"y").unwrap();
    assert_eq!(b.poll_one(&mut device).status, CompletionStatus::Success);
}

/// IBA 11.6.2, 10.3.1: a receive buffer that is too small fails its request and the queue pair, and
/// what else was posted is flushed.
#[test]
fn a_receive_buffer_too_small_for_grh_space_and_message_is_a_length_error() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let b = open(&mut device, PF, QpKind::Ud);
    let scatter = [Sge {
        len: 44,
        ..b.recv_slot(0)
    }];
    let mut hca = device.function(PF).unwrap();
    for wr_id in [1, 2] {
        let request = RecvRequest {
            wr_id,
            scatter: &scatter,
        };
        hca.post_recv(b.qp, &request).unwrap();
    }
    a.send(
        &mut device,
        Some(to(vector(5), b.numbers.real, QKEY)),
        b"hello",
    )
    .unwrap();
    let done = b.outcomes(&mut device);
    assert_eq!(
        done,
        [
            (1, CompletionStatus::LocalLength),
            (2, CompletionStatus::Flushed)
        ]
    );
    assert_eq!(b.state(&mut device), QpState::Error);
}

/// IBA 9.8.1, 10.3.1.6: a message longer than the MTU fails; the send queue stops with an error and
/// can be started again, while the receive queue works.
#[test]
fn a_message_longer_than_the_mtu_stops_the_send_queue_until_it_is_restarted() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let destination = Some(to(vector(5), a.numbers.real, QKEY));
    let long = [0; 2049];
    a.send(&mut device, destination, &long).unwrap();
    assert_eq!(
        a.poll_one(&mut device).status,
        CompletionStatus::LocalLength
    );
    assert_eq!(a.state(&mut device), QpState::SendQueueError);
    a.send(&mut device, destination, b"x").unwrap();
    assert_eq!(a.poll_one(&mut device).status, CompletionStatus::Flushed);

    let mut hca = device.function(PF).unwrap();
    hca.modify_qp(a.qp, &to_state(QpState::ReadyToSend))
        .unwrap();
    a.post_recv(&mut device, 1);
    a.send(&mut device, destination, &long[1..]).unwrap();
    let done = a.poll(&mut device);
    assert_eq!((done[0].wr_id, done[0].byte_len), (1, 2048 + 40));
    assert_eq!(done[1].status, CompletionStatus::Success);
}

/// IBA 10.6.3: memory that the request may not use is a local protection error.
#[test]
fn a_send_from_memory_outside_its_region_is_a_protection_error() {
    let mut device = device(5);
    let bad = |peer: &Peer, sge: Sge, device: &mut Device| {
        let destination = Some(to(vector(5), peer.numbers.real, QKEY));
        let mut hca = device.function(PF).unwrap();
        hca.post_send(peer.qp, &request(&[sge], destination))
            .unwrap();
        let status = peer.poll_one(device).status;
        let mut hca = device.function(PF).unwrap();
        hca.modify_qp(peer.qp, &to_state(QpState::ReadyToSend))
            .unwrap();
        status
    };
    let a = open(&mut device, PF, QpKind::Ud);
    let stranger = open(&mut device, PF, QpKind::Ud);
    let good = a.send_slot(MESSAGE);
    let end = a.memory.addr + a.memory.len as u64;
    for sge in [
        Sge {
            addr: end - 255,
            ..good
        },
        Sge { addr: 0, ..good },
        Sge {
            addr: u64::MAX,
            ..good
        },
        Sge {
            lkey: LKey(0),
            ..good
        },
        Sge {
            lkey: stranger.lkey,
            addr: stranger.memory.addr,
            ..good
        },
    ] {
        assert_eq!(
            bad(&a, sge, &mut device),
            CompletionStatus::LocalProtection,
            "{sge:?}"
        );
    }
}

/// IBA 7.2.7: data does not pass a port that is not active; as on hardware the request completes.
#[test]
fn a_datagram_through_an_inactive_port_completes_and_is_discarded() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    device.node_mut().port_mut(PORT).unwrap().state = PortState::Armed;
    a.send(&mut device, Some(to(vector(6), Qpn::GSI, QKEY)), b"x")
        .unwrap();
    assert_eq!(a.poll_one(&mut device).status, CompletionStatus::Success);
    assert!(device.poll_transmit(Instant::ZERO, PORT).is_none());
    assert_eq!(device.drops().get(DropReason::PortNotActive), 1);
}

/// IBA 4.1.3, 11.4.2.1: with an LMC the path bits choose the source LID, and the receiver learns by
/// which of its LIDs it was addressed.
#[test]
fn path_bits_choose_the_source_lid_and_are_told_to_the_receiver() {
    let mut device = device(8);
    device.node_mut().port_mut(PORT).unwrap().lmc = ib_wire::Lmc::from_low_bits(2);
    let a = open(&mut device, PF, QpKind::Ud);
    let b = open(&mut device, PF, QpKind::Ud);
    b.post_recv(&mut device, 1);
    let address = AddressVector {
        path_bits: 0xf1,
        ..vector(8 + 3)
    };
    a.send(&mut device, Some(to(address, b.numbers.real, QKEY)), b"")
        .unwrap();
    let done = b.poll_one(&mut device);
    let source = done.source.unwrap();
    assert_eq!((source.slid, source.dlid_path_bits), (Lid::new(9), 3));
    assert_eq!(done.byte_len, 40, "an empty message is a message");
}

/// IBA 4.1.3, 7.6.6: what no link can carry completes and is dropped with its reason.
#[test]
fn packets_that_cannot_leave_are_dropped_with_a_reason() {
    let mut device = device(5);
    let mut lanes = [ib_wire::Vl::default(); 16];
    lanes[4] = ib_wire::Vl::MANAGEMENT;
    device.node_mut().port_mut(PORT).unwrap().set_sl2vl(lanes);
    let a = open(&mut device, PF, QpKind::Ud);
    let no_gid = AddressVector {
        grh: Some(GlobalRoute {
            sgid_index: GidIndex(9),
            ..global(6, Gid::NONE).grh.unwrap()
        }),
        ..vector(6)
    };
    let dark_lane = AddressVector {
        sl: Sl::from_low_bits(4),
        ..vector(6)
    };
    for (address, reason) in [
        (vector(0), DropReason::BadDestinationLid),
        (vector(0xffff), DropReason::BadDestinationLid),
        (vector(0xc001), DropReason::BadDestinationLid),
        (dark_lane, DropReason::NoDataLane),
        (no_gid, DropReason::NoSourceGid),
    ] {
        let before = device.drops().get(reason);
        a.send(&mut device, Some(to(address, a.numbers.real, QKEY)), b"x")
            .unwrap();
        assert_eq!(device.drops().get(reason), before + 1, "{address:?}");
        assert_eq!(a.poll_one(&mut device).status, CompletionStatus::Success);
    }
    assert!(device.poll_transmit(Instant::ZERO, PORT).is_none());
}

/// A full egress holds sends back in their queues, in order, and each is sent once.
#[test]
fn sends_wait_for_room_in_the_egress_and_leave_in_order() {
    let (mut left, mut right) = (device(5), device(6));
    let a = open(&mut left, PF, QpKind::Ud);
    let b = open(&mut right, PF, QpKind::Ud);
    let destination = Some(to(vector(6), b.numbers.real, QKEY));
    let count = 100_u8;
    for n in 0..count {
        let payload = [n];
        let mut hca = left.function(PF).unwrap();
        let send = SendRequest {
            payload: Payload::Inline(&payload),
            ..request(&[], destination)
        };
        hca.post_send(a.qp, &send).unwrap();
    }
    assert_eq!(a.poll(&mut left).len(), super::super::EGRESS_DEPTH);
    for n in 0..count {
        b.post_recv(&mut right, 1);
        let frame = left.poll_transmit(Instant::ZERO, PORT).unwrap();
        right.receive(Instant::ZERO, PORT, frame);
        assert_eq!(b.poll_one(&mut right).status, CompletionStatus::Success);
        assert_eq!(b.received(&mut right, 1, 41)[40], n);
    }
    assert!(left.poll_transmit(Instant::ZERO, PORT).is_none());
    let rest = usize::from(count) - super::super::EGRESS_DEPTH;
    assert_eq!(a.poll(&mut left).len(), rest);
}

/// IBA 10.3.1.6: the sends behind one that fails are flushed, also those that waited.
#[test]
fn a_send_that_fails_after_waiting_flushes_those_behind_it() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    let destination = Some(to(vector(6), Qpn::MAX, QKEY));
    for _ in 0..super::super::EGRESS_DEPTH {
        a.send(&mut device, destination, b"x").unwrap();
    }
    a.poll(&mut device);
    let bad = Sge {
        lkey: LKey(0),
        ..a.send_slot(1)
    };
    for (wr_id, sge) in [(1, bad), (2, a.send_slot(1)), (3, a.send_slot(1))] {
        let gather = [sge];
        let send = SendRequest {
            wr_id,
            ..request(&gather, destination)
        };
        let mut hca = device.function(PF).unwrap();
        hca.post_send(a.qp, &send).unwrap();
    }
    assert_eq!(a.poll(&mut device), []);
    assert!(device.poll_transmit(Instant::ZERO, PORT).is_some());
    let done = a.outcomes(&mut device);
    assert_eq!(
        done,
        [
            (1, CompletionStatus::LocalProtection),
            (2, CompletionStatus::Flushed),
            (3, CompletionStatus::Flushed)
        ]
    );
}

/// IBA 11.2.4.4: what was posted completes as flushed before the queue pair is gone.
#[test]
fn destroying_a_queue_pair_gives_all_its_buffers_back() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    a.post_recv(&mut device, 1);
    a.post_recv(&mut device, 2);
    device.function(PF).unwrap().destroy_qp(a.qp).unwrap();
    assert_eq!(
        a.outcomes(&mut device),
        [
            (1, CompletionStatus::Flushed),
            (2, CompletionStatus::Flushed)
        ]
    );
}

/// IBA 10.3.1: a queue pair that is reset forgets what was posted.
#[test]
fn resetting_a_queue_pair_drops_what_was_posted() {
    let mut device = device(5);
    let a = open(&mut device, PF, QpKind::Ud);
    a.post_recv(&mut device, 1);
    let mut hca = device.function(PF).unwrap();
    hca.modify_qp(a.qp, &to_state(QpState::Reset)).unwrap();
    hca.destroy_qp(a.qp).unwrap();
    assert_eq!(a.poll(&mut device), []);
}
