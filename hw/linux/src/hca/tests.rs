use hca_api::{
    AccessFlags, GlobalRoute, Hca, HostMemory, LocalMad, MadView, MrKind, MrSpec, QpCaps, QpKind,
    QpModify, QpSpec, ReceiveMode, RecvRequest, SendFlags, SendOp, SendRequest, Sge, SpecialQp,
};
use ib_endpoint::{EndPort, EndPortConfig, EndPortEvent, MadQp, SaEvent, SaRequest, SmaClient};
use ib_wire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::perf::{PerfAttribute, PerfMad, PortCounters, PortCountersExtended};
use ib_wire::sa::PathRecord;
use ib_wire::smp::{LidRoutedSmp, LinkSpeedExt, NodeDescription, NodeInfo, SmpAttribute};
use ib_wire::{Lid, PKey, PKeyIndex, Sl, Tid};
use umad_link::UmadHeader;

use super::*;
use crate::testing::{FakeFiles, adapter, mad, packet, port};
use crate::umad::UNSOLICITED;

const NOW: Instant = Instant::ZERO;

pub(super) fn hca() -> LinuxHca<FakeFiles> {
    hca_on(FakeFiles::default())
}

fn hca_on(files: FakeFiles) -> LinuxHca<FakeFiles> {
    let config = LinuxHcaConfig {
        adapter: adapter(),
        pci_id: (0x15b3, 0x1003),
        answer_timeout: Duration::from_secs(60),
        secret: Secret::from(1),
        memory: Box::new(HostMemory::new()),
    };
    LinuxHca::new(NOW, files, config).unwrap()
}

/// Adds a packet to a file, for the next read.
fn give(hca: &mut LinuxHca<FakeFiles>, file: usize, packet: Vec<u8>) {
    hca.files.unread[file].push_back(packet);
    hca.set_ready(file);
    while hca.poll(NOW) {}
}

#[test]
fn the_software_of_a_port_runs_on_it() {
    let mut hca = hca();
    let config = EndPortConfig::host(PORT, 1);
    let mut end_port = EndPort::open(NOW, &mut hca, config).unwrap();
    let view = end_port.view().clone();
    let own = view.gid(GidIndex(0)).unwrap();
    let query = end_port.query(NOW, SaRequest::path_by_gids(own, own, None));
    while end_port.poll(NOW, &mut hca) {}
    let (file, header, request) = hca.files.written[0];
    let sent_to = header.address();
    assert_eq!(
        (sent_to.lid, sent_to.sl),
        (Lid::new(9), Sl::from_low_bits(2))
    );
    let mut answer = request;
    answer.header.method = Method::GET_RESP;
    answer.header.tid = Tid::new(77 << 32 | request.header.tid.get() & 0xffff_ffff);
    give(&mut hca, file, packet(&answer));
    assert!(matches!(hca.poll_event(), Some(HcaEvent::Completion(_))));
    while end_port.poll(NOW, &mut hca) {}
    let Some(EndPortEvent::Sa(SaEvent::Answered { query: of, result })) = end_port.poll_event()
    else {
        panic!("no answer");
    };
    assert_eq!(of, query);
    let path = result.unwrap().record::<PathRecord>().unwrap();
    assert_eq!(path.dgid, own);
    end_port.close(&mut hca);
    assert!(hca.gsi.is_none());
}

#[test]
fn what_others_send_arrives_with_its_address() {
    let mut hca = hca();
    let mut qp = MadQp::open(&mut hca, SpecialQp::Gsi, PORT, 4).unwrap();
    let sent = mad(MgmtClass::COM_MGT, Method::SEND, 5);
    let mut from = MadAddress::gsi(Lid::new(9));
    from.grh = Some(GlobalRoute {
        remote_gid: Gid([8; 16]),
        sgid_index: GidIndex(1),
        flow_label: 3,
        hop_limit: 255,
        traffic_class: 4,
    });
    let header = UmadHeader::received(2, &from);
    let packet = [header.as_bytes(), sent.as_bytes()].concat();
    give(&mut hca, UNSOLICITED, packet.clone());
    let (received_from, received) = qp.poll(&mut hca).unwrap();
    assert_eq!(received_from, from);
    assert_eq!(received.as_bytes(), sent.as_bytes());
    assert!(qp.poll(&mut hca).is_none());
    for _ in 0..5 {
        give(&mut hca, UNSOLICITED, packet.clone());
    }
    assert_eq!(hca.counters().overrun, 1, "four receives were posted");
    qp.close(&mut hca);
}

/// A queue pair with room for gather lists, a region of 512 bytes, and the completion queue.
fn ready(hca: &mut LinuxHca<FakeFiles>) -> (QpHandle, Sge, CqHandle) {
    let pd = hca.alloc_pd().unwrap();
    let buffer = hca.allocate_dma(512).unwrap();
    let region = hca.register_mr(&MrSpec {
        pd,
        kind: MrKind::Virtual {
            addr: buffer.addr,
            len: 512,
        },
        access: AccessFlags::LOCAL_WRITE,
        key: None,
    });
    let cq = hca.create_cq(8).unwrap();
    let (qp, _) = hca
        .create_qp(spec(
            pd,
            cq,
            QpKind::Special {
                special: SpecialQp::Gsi,
                port: PORT,
            },
        ))
        .unwrap();
    for state in [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
        hca.modify_qp(qp, &to_state(state)).unwrap();
    }
    let all = Sge {
        addr: buffer.addr,
        len: 512,
        lkey: region.unwrap().lkey,
    };
    (qp, all, cq)
}

pub(super) fn spec(pd: PdHandle, cq: CqHandle, kind: QpKind) -> QpSpec {
    QpSpec {
        kind,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline: 256,
        },
        signal_all: true,
        receives: ReceiveMode::Posted,
        qpn: None,
        block_multicast_loopback: false,
    }
}

pub(super) fn to_state(state: QpState) -> QpModify {
    QpModify {
        state: Some(state),
        ..QpModify::default()
    }
}

fn send<'a>(payload: Payload<'a>, to: &MadAddress) -> SendRequest<'a> {
    SendRequest {
        wr_id: 1,
        op: SendOp::Send,
        payload,
        flags: SendFlags::empty(),
        destination: Some(to.destination(PORT)),
    }
}

fn completed(hca: &mut LinuxHca<FakeFiles>, cq: CqHandle) -> Vec<CompletionStatus> {
    let mut out = [Completion::BLANK; 8];
    let count = hca.poll_cq(cq, &mut out).unwrap();
    out[..count].iter().map(|done| done.status).collect()
}

#[test]
fn requests_name_a_mad_in_memory_that_the_queue_pair_may_reach() {
    use CompletionStatus::{Flushed, LocalLength, LocalProtection, Success};
    type Change = fn(&mut [Sge; 2]);
    let cases: [(Change, CompletionStatus); 6] = [
        (|_| {}, Success),
        (|list| list[1].len = 57, LocalLength),
        (|list| list[0].len = u32::MAX, LocalLength),
        (|list| list[1].lkey.0 += 1, LocalProtection),
        (|list| list[1].addr += 257, LocalProtection),
        (|list| list[1].addr = u64::MAX, LocalProtection),
    ];
    for (case, (change, expected)) in cases.into_iter().enumerate() {
        let mut hca = hca();
        let (qp, all, cq) = ready(&mut hca);
        let sent = mad(MgmtClass::COM_MGT, Method::SEND, 5);
        hca.dma_write(all.addr, sent.as_bytes()).unwrap();
        let mut list = [
            Sge { len: 200, ..all },
            Sge {
                addr: all.addr + 200,
                len: 56,
                ..all
            },
        ];
        change(&mut list);
        let receive = RecvRequest {
            wr_id: 2,
            scatter: &[all],
        };
        hca.post_recv(qp, &receive).unwrap();
        let to = MadAddress::gsi(Lid::new(9));
        hca.post_send(qp, &send(Payload::Gather(&list), &to))
            .unwrap();
        let written: Vec<_> = hca.files.written.iter().map(|written| written.2).collect();
        if expected == Success {
            assert_eq!(written[0].as_bytes(), sent.as_bytes());
            assert_eq!(completed(&mut hca, cq), [Success]);
        } else {
            assert!(written.is_empty(), "case {case}");
            assert_eq!(completed(&mut hca, cq), [expected, Flushed], "case {case}");
            assert_eq!(hca.query_qp(qp).unwrap().state, QpState::Error);
        }
    }
}

#[test]
fn a_receive_that_a_mad_does_not_fit_fails_and_flushes_the_others() {
    use CompletionStatus::{Flushed, LocalLength, LocalProtection, Success};
    type Change = fn(&mut Sge);
    let cases: [(Change, CompletionStatus); 4] = [
        (|sge| sge.len = 296, Success),
        (|sge| sge.len = 295, LocalLength),
        (|sge| sge.lkey.0 = 0, LocalProtection),
        (|sge| sge.addr += 217, LocalProtection),
    ];
    for (change, expected) in cases {
        let mut hca = hca();
        let (qp, all, cq) = ready(&mut hca);
        let mut short = Sge { len: 296, ..all };
        change(&mut short);
        for scatter in [&[short], &[all]] {
            hca.post_recv(qp, &RecvRequest { wr_id: 2, scatter })
                .unwrap();
        }
        give(
            &mut hca,
            UNSOLICITED,
            packet(&mad(MgmtClass::COM_MGT, Method::SEND, 5)),
        );
        let done = completed(&mut hca, cq);
        if expected == Success {
            assert_eq!(done, [Success]);
        } else {
            assert_eq!(done, [expected, Flushed]);
        }
    }
}

#[test]
fn a_destination_that_the_port_cannot_reach_is_refused() {
    let mut hca = hca();
    let (qp, ..) = ready(&mut hca);
    let sent = mad(MgmtClass::COM_MGT, Method::SEND, 5);
    let mut refusal = |change: &dyn Fn(&mut UdDestination)| {
        let mut request = send(
            Payload::Inline(sent.as_bytes()),
            &MadAddress::gsi(Lid::new(9)),
        );
        change(request.destination.as_mut().unwrap());
        hca.post_send(qp, &request).err()
    };
    let vector = |change: &dyn Fn(&mut AddressVector)| {
        let UdAddress::Vector(mut vector) = MadAddress::gsi(Lid::new(9)).destination(PORT).address
        else {
            unreachable!()
        };
        change(&mut vector);
        UdAddress::Vector(vector)
    };
    let by_gid = |index| {
        vector(&|vector| {
            vector.grh = Some(GlobalRoute {
                remote_gid: Gid([8; 16]),
                sgid_index: GidIndex(index),
                flow_label: 0,
                hop_limit: 1,
                traffic_class: 0,
            });
        })
    };
    let other_port = vector(&|vector| vector.port = PortNum(2));
    assert_eq!(refusal(&|_| {}), None);
    assert_eq!(refusal(&|to| to.address = by_gid(8)), None);
    let invalid = Some(HcaError::InvalidIndex);
    assert_eq!(refusal(&|to| to.address = by_gid(9)), invalid);
    assert_eq!(refusal(&|to| to.pkey_index = Some(PKeyIndex(2))), invalid);
    assert_eq!(
        refusal(&|to| to.address = other_port),
        Some(HcaError::InvalidPort)
    );
    let unknown = UdAddress::Handle(hca_api::AvHandle(3));
    assert_eq!(
        refusal(&|to| to.address = unknown),
        Some(HcaError::InvalidHandle)
    );
}

#[test]
fn other_queue_pairs_a_second_one_and_objects_in_use_are_refused() {
    let mut hca = hca();
    let (qp, _, cq) = ready(&mut hca);
    let pd = hca.gsi(qp).unwrap().pd;
    let special = |special, port| QpKind::Special { special, port };
    for (kind, error) in [
        (special(SpecialQp::Gsi, PORT), HcaError::SpecialQpTaken),
        (special(SpecialQp::Gsi, PortNum(2)), HcaError::InvalidPort),
        (special(SpecialQp::Smi, PORT), HcaError::Unsupported),
        (QpKind::Ud, HcaError::Unsupported),
        (QpKind::Rc, HcaError::Unsupported),
    ] {
        assert_eq!(hca.create_qp(spec(pd, cq, kind)).err(), Some(error));
    }
    assert_eq!(hca.dealloc_pd(pd), Err(HcaError::InUse));
    assert_eq!(hca.destroy_cq(cq), Err(HcaError::InUse));
    let skipped = to_state(QpState::Init);
    assert_eq!(hca.modify_qp(qp, &skipped), Err(HcaError::InvalidQpState));
    hca.destroy_qp(qp).unwrap();
    assert_eq!(hca.destroy_qp(qp), Err(HcaError::InvalidHandle));
    hca.destroy_cq(cq).unwrap();
}

#[test]
fn changes_of_the_port_are_told_once_a_second() {
    let mut hca = hca();
    let changed = |change: &dyn Fn(&mut Port)| {
        let mut port = port();
        change(&mut port);
        port
    };
    let mut now = NOW;
    let mut told = |port: Port| {
        hca.files.port = port;
        assert!(!hca.poll(now));
        assert_eq!(hca.poll_event(), None, "not yet");
        now = hca.poll_timeout().unwrap();
        assert!(!hca.poll(now));
        match hca.poll_event() {
            Some(HcaEvent::Async(AsyncEvent::Port { port: PORT, change })) => change,
            None => PortChange::empty(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(told(port()), PortChange::empty());
    let down = changed(&|port| port.state = 1);
    assert_eq!(told(down), PortChange::DOWN);
    let up = changed(&|port| port.lid = Lid::new(8));
    assert_eq!(told(up), PortChange::ACTIVE | PortChange::LID);
    let moved = changed(&|port| {
        port.lid = Lid::new(8);
        port.sm_lid = Lid::new(1);
        port.gids[1] = Gid([9; 16]);
        port.pkeys[1] = PKey::DEFAULT_LIMITED;
    });
    let tables = PortChange::SM | PortChange::GID_TABLE | PortChange::PKEY_TABLE;
    assert_eq!(told(moved), tables);
    assert_eq!(now, NOW + 4 * LOOK);
}

#[test]
fn a_device_that_goes_away_is_fatal_once() {
    let mut hca = hca();
    let (qp, ..) = ready(&mut hca);
    hca.files.is_gone = true;
    assert!(!hca.poll(NOW + LOOK));
    assert_eq!(
        hca.poll_event(),
        Some(HcaEvent::Async(AsyncEvent::DeviceFatal))
    );
    assert!(!hca.poll(NOW + 2 * LOOK));
    assert_eq!((hca.poll_event(), hca.poll_timeout()), (None, None));
    let sent = mad(MgmtClass::COM_MGT, Method::SEND, 5);
    let request = send(
        Payload::Inline(sent.as_bytes()),
        &MadAddress::gsi(Lid::new(9)),
    );
    assert_eq!(hca.post_send(qp, &request), Err(HcaError::DeviceFailed));
}

/// Asks the function's own agents.
fn ask(class: MgmtClass, method: Method, attribute: AttributeId, modifier: u32) -> LocalMad {
    let mut header = MadHeader::new(class, method, attribute);
    header.attribute_modifier = ib_wire::mad::AttributeModifier::new(modifier);
    let mut mad = Mad::new(header);
    if class == MgmtClass::PERF {
        mad.view_mut::<PerfMad>()
            .attribute_mut::<PortCounters>()
            .port_select = PORT;
    }
    hca().process_local_mad(PORT, MadView::Host, &mad).unwrap()
}

#[test]
fn software_reads_its_port_by_mads() {
    const SMP: MgmtClass = MgmtClass::SUBN_LID_ROUTED;
    let mut hca = hca();
    let client = SmaClient::open(&mut hca, PORT).unwrap();
    let view = client.view();
    assert_eq!((view.lid, view.sm_lid), (Lid::new(7), Lid::new(9)));
    let guids: Vec<_> = port().gids.iter().map(|gid| gid.interface_id()).collect();
    assert_eq!((&view.guids, &view.pkeys), (&guids, &port().pkeys));
    let answered = |attribute| match ask(SMP, Method::GET, attribute, 0) {
        LocalMad::Reply(reply) => *reply.view::<LidRoutedSmp>(),
        other => panic!("{other:?}"),
    };
    let info = *answered(NodeInfo::ID).attribute::<NodeInfo>();
    assert_eq!((info.port_guid, info.num_ports), (guids[0], 1));
    assert_eq!(
        (info.vendor_id, info.device_id.get()),
        ([0, 0x15, 0xb3], 0x1003)
    );
    let text = *answered(NodeDescription::ID).attribute::<NodeDescription>();
    assert_eq!(text.as_str(), Some("host HCA-1"));
    let info = *answered(ib_wire::smp::PortInfo::ID).attribute::<ib_wire::smp::PortInfo>();
    assert_eq!(info.link_speed_ext_active(), LinkSpeedExt::FDR);
}

#[test]
fn software_reads_counters_by_mads_and_writes_nothing() {
    const SMP: MgmtClass = MgmtClass::SUBN_LID_ROUTED;
    let counters = |attribute| match ask(MgmtClass::PERF, Method::GET, attribute, 0) {
        LocalMad::Reply(reply) => *reply.view::<PerfMad>(),
        other => panic!("{other:?}"),
    };
    let basic = *counters(<PortCounters as PerfAttribute>::ID).attribute::<PortCounters>();
    assert_eq!(basic.symbol_error_counter.get(), u16::MAX, "it stays there");
    assert_eq!(basic.port_xmit_data.get(), u32::MAX);
    let extended = *counters(PortCountersExtended::ID).attribute::<PortCountersExtended>();
    assert_eq!(extended.port_xmit_data.get(), 1 << 33);
    for (class, method, attribute) in [
        (SMP, Method::SET, ib_wire::smp::PortInfo::ID),
        (SMP, Method::GET, AttributeId::new(0x12)),
        (
            MgmtClass::PERF,
            Method::SET,
            <PortCounters as PerfAttribute>::ID,
        ),
        (MgmtClass::SUBN_ADM, Method::GET, AttributeId::new(0x35)),
    ] {
        assert_eq!(ask(class, method, attribute, 0), LocalMad::NotHandled);
    }
    let beyond = ask(SMP, Method::GET, ib_wire::smp::GuidInfo::ID, 2);
    let LocalMad::Reply(reply) = beyond else {
        panic!("{beyond:?}");
    };
    assert_eq!(reply.header.status, MadStatus::INVALID_FIELD);
}

/// A PF asks for a GUID, a path and answers to a peer, and nothing of that but the answer is written.
#[test]
fn a_roce_port_has_an_sa_of_its_own_and_sends_by_routes_of_the_kernels_table() {
    let mut hca = hca_on(FakeFiles {
        is_ethernet: true,
        ..FakeFiles::default()
    });
    let mut qp = MadQp::open(&mut hca, SpecialQp::Gsi, PORT, 4).unwrap();
    let port = hca.query_port(PORT).unwrap();
    assert_eq!((port.lid, port.sm_lid), (Lid::new(1), Lid::new(3)));
    let own = hca.query_gid(PORT, GidIndex(0)).unwrap();
    assert_eq!(hca.query_gid(PORT, GidIndex(1)), Ok(Gid::NONE));
    let to_sa = MadAddress::gsi(port.sm_lid);
    let any = Some(ib_wire::Guid::NONE);
    let mut guids = [None; 8];
    guids[5] = any;
    let request = SaRequest::set_guids(port.lid, 0, &guids);
    qp.send(&mut hca, &to_sa, request.message().mad()).unwrap();
    while hca.poll(NOW) {}
    let (from, answer) = qp.poll(&mut hca).unwrap();
    assert_eq!(
        (from.lid, answer.header.status),
        (port.sm_lid, MadStatus::OK)
    );
    let given = hca.query_gid(PORT, GidIndex(5)).unwrap();
    assert_eq!(given, hca.files.port.gids[1]);
    let events: Vec<_> = std::iter::from_fn(|| hca.poll_event()).collect();
    let changed = |event: &HcaEvent| matches!(event, HcaEvent::Async(AsyncEvent::Port { change, .. }) if *change == PortChange::GID_TABLE);
    assert!(events.iter().any(changed), "{events:?}");

    // A peer's MAD to that address arrives for its entry, and the answer goes from there.
    let route = |entry| GlobalRoute {
        remote_gid: Gid([8; 16]),
        sgid_index: GidIndex(entry),
        flow_label: 0,
        hop_limit: 255,
        traffic_class: 0,
    };
    let request = mad(MgmtClass::COM_MGT, Method::SEND, 5);
    for (entry, arrives) in [(1, true), (2, false)] {
        let mut from = MadAddress::gsi(Lid::NONE);
        from.grh = Some(route(entry));
        let header = UmadHeader::received(0, &from);
        let packet = [header.as_bytes(), request.as_bytes()].concat();
        give(&mut hca, UNSOLICITED, packet);
        let received = qp.poll(&mut hca).map(|(from, _)| (from.lid, from.grh));
        let expected = (Lid::new(2), Some(route(5)));
        assert_eq!(received, arrives.then_some(expected));
    }
    let mut to = MadAddress::gsi(Lid::new(2));
    for (grh, written) in [(None, 0), (Some(route(6)), 0), (Some(route(5)), 1)] {
        to.grh = grh;
        qp.send(&mut hca, &to, &request).unwrap();
        while hca.poll(NOW) {}
        assert_eq!(hca.files.written.len(), written);
    }
    assert_eq!(hca.files.written[0].1.address().grh, Some(route(1)));
    assert_eq!(hca.counters().refused, 2);

    // An address that the netdev loses is no GID.
    hca.files.port.gids[1] = Gid::NONE;
    hca.poll(NOW + LOOK);
    assert_eq!(hca.query_gid(PORT, GidIndex(5)), Ok(Gid::NONE));
    assert_eq!(hca.query_gid(PORT, GidIndex(0)), Ok(own));
    qp.close(&mut hca);
}
