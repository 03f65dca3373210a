//! QP0 and QP1: lanes, keys, and the device's own agents before software.

use hca_api::SpecialQp::{self, Gsi, Smi};
use ib_wire::Vl;
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::packet::{Grh, Packet, UdFrame};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::Frame;

fn special(special: SpecialQp) -> QpKind {
    QpKind::Special {
        special,
        port: PORT,
    }
}

fn mad(class: MgmtClass, method: Method) -> Mad {
    Mad::new(MadHeader::new(class, method, 0x0001.into()))
}

fn gsi_address(dlid: u16) -> UdDestination {
    to(vector(dlid), Qpn::GSI, QKey::GSI)
}

/// IBA 13.5.1, 16.1: a performance query is answered by the device, also to the own LID, and the
/// response is delivered to software.
#[test]
fn the_device_answers_performance_queries_before_software_sees_them() {
    let (mut left, mut right) = (device(5), device(6));
    let a = open(&mut left, PF, special(Gsi));
    let b = open(&mut right, PF, special(Gsi));
    a.post_recv(&mut left, 1);
    b.post_recv(&mut right, 1);
    let query = mad(MgmtClass::PERF, Method::GET);
    a.send(&mut left, Some(gsi_address(6)), query.as_bytes())
        .unwrap();
    pipe(&mut left, &mut right);
    pipe(&mut right, &mut left);
    assert_eq!(b.poll(&mut right), [], "software was not bothered");
    let done = a.poll(&mut left).pop().unwrap();
    assert_eq!(done.source.unwrap().slid, Lid::new(6));
    let bytes = a.received(&mut left, 1, 296);
    let answer = Mad::read_from_bytes(&bytes[40..]).unwrap();
    assert_eq!(answer.header.method, Method::GET_RESP);

    b.send(&mut right, Some(gsi_address(6)), query.as_bytes())
        .unwrap();
    assert_eq!(b.poll(&mut right).len(), 2, "its send, and the answer");
    assert!(right.poll_transmit(Instant::ZERO, PORT).is_none());
}

/// The agents speak for the port: what is asked of another of its GIDs is software's to answer.
#[test]
fn c032_a_performance_query_to_a_vfs_gid_is_not_answered_by_the_device() {
    let (mut left, mut right) = (device(5), device(6));
    let alias = Guid::new(0xabc);
    set_alias_guid(&mut right, 1, alias);
    let a = open(&mut left, PF, special(Gsi));
    let b = open(&mut right, PF, special(Gsi));
    a.post_recv(&mut left, 1);
    b.post_recv(&mut right, 1);
    let own = right.function(PF).unwrap().query_gid(PORT, GidIndex(0));
    let vfs = Gid::from_parts(ib_wire::SubnetPrefix::DEFAULT, alias);
    let query = mad(MgmtClass::PERF, Method::GET);
    for (gid, by_software) in [(vfs, 1), (own.unwrap(), 0)] {
        let to = to(global(6, gid), Qpn::GSI, QKey::GSI);
        a.send(&mut left, Some(to), query.as_bytes()).unwrap();
        pipe(&mut left, &mut right);
        assert_eq!(b.poll(&mut right).len(), by_software);
        assert_eq!(
            right.poll_transmit(Instant::ZERO, PORT).is_none(),
            by_software == 1
        );
    }
}

/// IBA 13.5.1.1: everything else on QP1 belongs to software, which learns the P_Key and the GID that
/// the packet used.
#[test]
fn software_on_qp1_gets_the_other_classes_with_the_indices_that_matched() {
    let (mut left, mut right) = (device(5), device(6));
    let alias = Guid::new(0xabc);
    for device in [&mut left, &mut right] {
        set_pkeys(device, [0x8001, 0x8002]);
        set_alias_guid(device, 2, alias);
    }
    let a = open(&mut left, PF, special(Gsi));
    let b = open(&mut right, PF, special(Gsi));
    b.post_recv(&mut right, 1);
    let prefix = ib_wire::SubnetPrefix::DEFAULT;
    let destination = UdDestination {
        pkey_index: Some(PKeyIndex(1)),
        ..to(
            global(6, Gid::from_parts(prefix, alias)),
            Qpn::GSI,
            QKey::GSI,
        )
    };
    let request = mad(MgmtClass::COM_MGT, Method::SEND);
    a.send(&mut left, Some(destination), request.as_bytes())
        .unwrap();
    pipe(&mut left, &mut right);
    let source = b.poll_one(&mut right).source.unwrap();
    assert_eq!(source.pkey_index, PKeyIndex(1));
    assert_eq!(source.grh.unwrap().sgid_index, GidIndex(2));
    assert_eq!(source.src_qpn, Qpn::GSI);
}

/// IBA 9.6.1.1: QP1 takes any P_Key of the port and only its well-known Q_Key.
#[test]
fn qp1_refuses_unknown_partitions_other_queue_keys_and_other_lengths() {
    let mut device = device(5);
    set_pkeys(&mut device, [0x8001]);
    let a = open(&mut device, PF, special(Gsi));
    a.post_recv(&mut device, 1);
    let good = UdFrame {
        vl: Vl::default(),
        sl: Sl::default(),
        slid: Lid::new(9),
        dlid: Lid::new(5),
        grh: None,
        pkey: PKey::new(0x8001),
        dest_qp: Qpn::GSI,
        src_qp: Qpn::GSI,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: &[0; 256],
    };
    let stranger = Grh::new(Gid([1; 16]), Gid([2; 16]), 1);
    let cases = [
        (
            UdFrame {
                pkey: PKey::new(0x8002),
                ..good
            },
            DropReason::BadPKey,
        ),
        (UdFrame { qkey: QKEY, ..good }, DropReason::BadQKey),
        (
            UdFrame {
                grh: Some(stranger),
                ..good
            },
            DropReason::ForeignGid,
        ),
        (
            UdFrame {
                payload: &[0; 260],
                ..good
            },
            DropReason::NotAMad,
        ),
        (
            UdFrame {
                payload: &[0; 252],
                ..good
            },
            DropReason::NotAMad,
        ),
        (
            UdFrame {
                dlid: Lid::new(6),
                ..good
            },
            DropReason::ForeignLid,
        ),
        (
            UdFrame {
                dlid: Lid::PERMISSIVE,
                ..good
            },
            DropReason::ForeignLid,
        ),
        (
            UdFrame {
                vl: Vl::MANAGEMENT,
                ..good
            },
            DropReason::WrongLane,
        ),
        (
            UdFrame {
                dest_qp: Qpn::SMI,
                ..good
            },
            DropReason::WrongLane,
        ),
        (
            UdFrame {
                dest_qp: Qpn::from_low_bits(99),
                ..good
            },
            DropReason::NoQp,
        ),
        (
            UdFrame {
                dest_qp: Qpn::MULTICAST,
                ..good
            },
            DropReason::NoQp,
        ),
    ];
    let mut buffer = [0; 512];
    for (n, (frame, reason)) in cases.iter().enumerate() {
        let before = device.drops().get(*reason);
        let len = frame.write(&mut buffer).unwrap();
        device.receive(Instant::ZERO, PORT, Frame::sealed(&buffer[..len]));
        assert_eq!(device.drops().get(*reason), before + 1, "{reason:?}");
        assert_eq!(device.drops().total(), n as u64 + 1);
    }
    let len = good.write(&mut buffer).unwrap();
    buffer[100] ^= 1;
    device.receive(Instant::ZERO, PORT, Frame::new(&buffer[..len]));
    assert_eq!(device.drops().get(DropReason::BadIcrc), 1);
    device.receive(Instant::ZERO, PORT, Frame::sealed(&buffer[..20]));
    assert_eq!(device.drops().get(DropReason::Malformed), 1);
    buffer[100] ^= 1;
    device.receive(Instant::ZERO, PORT, Frame::new(&buffer[..len]));
    assert_eq!(a.poll_one(&mut device).status, CompletionStatus::Success);
}

/// IBA 3.5.5, 14.2.1: QP0 sends on VL15 with the permissive LID in every port state, and to QP0 only.
#[test]
fn qp0_sends_on_the_management_lane_before_the_port_is_active() {
    let mut device = device(5);
    let a = open(&mut device, PF, special(Smi));
    device.node_mut().port_mut(PORT).unwrap().state = PortState::Init;
    let smp = mad(MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET);
    let address = vector(Lid::PERMISSIVE.get());
    a.send(
        &mut device,
        Some(to(address, Qpn::SMI, QKey::SMI)),
        smp.as_bytes(),
    )
    .unwrap();
    let frame = device.poll_transmit(Instant::ZERO, PORT).unwrap();
    let packet = Packet::parse(frame.bytes()).unwrap();
    packet.check_crcs().unwrap();
    assert_eq!(packet.lrh.vl(), Vl::MANAGEMENT);
    assert_eq!(packet.lrh.dlid, Lid::PERMISSIVE);
    let transport = packet.transport().unwrap();
    assert_eq!(transport.bth.dest_qp, Qpn::SMI);
    assert_eq!(transport.extended.deth.unwrap().qkey, QKey::SMI);
    let elsewhere = to(address, Qpn::GSI, QKey::SMI);
    assert_eq!(
        a.send(&mut device, Some(elsewhere), smp.as_bytes()),
        Err(HcaError::InvalidParameter)
    );
}

/// The fabric gives the device the SMPs that its agent leaves to software.
#[test]
fn an_smp_for_software_arrives_on_qp0() {
    let (mut left, mut right) = (device(5), device(6));
    let a = open(&mut left, PF, special(Smi));
    let b = open(&mut right, PF, special(Smi));
    b.post_recv(&mut right, 1);
    let smp = mad(MgmtClass::SUBN_LID_ROUTED, Method::GET_RESP);
    a.send(
        &mut left,
        Some(to(vector(6), Qpn::SMI, QKey::SMI)),
        smp.as_bytes(),
    )
    .unwrap();
    pipe(&mut left, &mut right);
    assert_eq!(b.poll_one(&mut right).source.unwrap().src_qpn, Qpn::SMI);
}

/// IBA 7.6.6: a data packet never uses VL15, so one whose SL the subnet manager mapped there is discarded.
#[test]
fn c018_an_sl_that_leads_to_vl15_takes_no_packet_of_qp1_out() {
    let mut device = device(5);
    let mut lanes = [Vl::default(); 16];
    for sl in [1, 4, 15] {
        lanes[sl] = Vl::MANAGEMENT;
    }
    device.node_mut().port_mut(PORT).unwrap().set_sl2vl(lanes);
    let a = open(&mut device, PF, special(Gsi));
    let query = mad(MgmtClass::SUBN_ADM, Method::GET);
    for sl in 0..16 {
        let sl = Sl::from_low_bits(sl);
        let before = device.drops().get(DropReason::NoDataLane);
        let address = AddressVector { sl, ..vector(6) };
        let destination = to(address, Qpn::GSI, QKey::GSI);
        a.send(&mut device, Some(destination), query.as_bytes())
            .unwrap();
        let is_dark = lanes[usize::from(sl.get())] == Vl::MANAGEMENT;
        let dropped = device.drops().get(DropReason::NoDataLane) - before;
        assert_eq!(dropped, u64::from(is_dark), "{sl:?}");
        match device.poll_transmit(Instant::ZERO, PORT) {
            None => assert!(is_dark, "{sl:?}"),
            Some(frame) => assert_eq!(frame.lrh().map(|lrh| lrh.vl()), Some(Vl::default())),
        }
    }
}

/// What performance management calls QP1Dropped and VL15Dropped, at the port that had no receive.
#[test]
fn mads_without_a_receive_are_counted_where_performance_management_shows_them() {
    let (mut left, mut right) = (device(5), device(6));
    let gsi = [&mut left, &mut right].map(|device| open(device, PF, special(Gsi)));
    let smi = [&mut left, &mut right].map(|device| open(device, PF, special(Smi)));
    let request = mad(MgmtClass::COM_MGT, Method::SEND);
    let smp = mad(MgmtClass::SUBN_LID_ROUTED, Method::GET_RESP);
    let to_smi = to(vector(6), Qpn::SMI, QKey::SMI);
    for _ in 0..2 {
        let bytes = request.as_bytes();
        gsi[0].send(&mut left, Some(gsi_address(6)), bytes).unwrap();
    }
    smi[0]
        .send(&mut left, Some(to_smi), smp.as_bytes())
        .unwrap();
    pipe(&mut left, &mut right);
    let dropped = |device: &Device| {
        let counters = device.node().port(PORT).unwrap().counters;
        (counters.qp1_dropped, counters.vl15_dropped)
    };
    assert_eq!(dropped(&left), (0, 0));
    assert_eq!(dropped(&right), (2, 1));
    let other = open(&mut right, PF, QpKind::Ud);
    let sender = open(&mut left, PF, QpKind::Ud);
    let elsewhere = to(vector(6), other.numbers.real, QKEY);
    sender.send(&mut left, Some(elsewhere), b"x").unwrap();
    pipe(&mut left, &mut right);
    assert_eq!(dropped(&right), (2, 1), "not for QP1");
}

/// The lane of an answer is the answering port's choice, by its own SLtoVLMappingTable.
#[test]
fn the_agents_answer_leaves_on_the_lane_of_its_service_level() {
    let (mut left, mut right) = (device(5), device(6));
    let a = open(&mut left, PF, special(Gsi));
    for (mapped, answered) in [(Vl::from_low_bits(3), true), (Vl::MANAGEMENT, false)] {
        let port = right.node_mut().port_mut(PORT).unwrap();
        port.set_sl2vl([mapped; 16]);
        let query = mad(MgmtClass::PERF, Method::GET);
        a.send(&mut left, Some(gsi_address(6)), query.as_bytes())
            .unwrap();
        pipe(&mut left, &mut right);
        let answer = right.poll_transmit(Instant::ZERO, PORT);
        let lane = answer.as_ref().and_then(Frame::lrh).map(|lrh| lrh.vl());
        assert_eq!(lane, answered.then_some(mapped));
    }
    assert_eq!(right.drops().get(DropReason::NoDataLane), 1);
}
