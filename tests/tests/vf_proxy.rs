//! A VF's end port on its proxy QP1, through the tunnel of an emulated adapter.

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AsyncEvent, FunctionId, FunctionManager, FunctionSpec, HcaEvent, HostMemory, PortChange,
    PortState, QpKind, ResourceCounts, SpecialQp, VirtualPort,
};
use ib_endpoint::{
    DatagramQp, DatagramQpSpec, EndPort, EndPortConfig, EndPortEvent, MadAddress, MadTransport,
    SaEvent, SaRequest, group_destination,
};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, PathRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, PKeyIndex, PortNum, QKey, Qpn, Sl};
use vf_proxy::native::{
    GroupSpec, Partition, ProxyQp, UdQpId, UdQpSpec, VirtualHca, VirtualHcaConfig,
};
use vf_tunnel::{ToPf, ToVf, VirtualPKeyIndex};
use vhca_tests::vf_subnet::set_guid;
use zerocopy::IntoBytes;

const PORT: PortNum = PortNum(1);
const PF: FunctionId = FunctionId::PF;
const VF: FunctionId = FunctionId(1);
const SM_LID: Lid = Lid::new(9);

/// An adapter with an active port and one VF.
fn adapter() -> Device {
    let mut device = Device::new(&HcaConfig::new(Guid::new(0x1000), "sriov"), 1);
    let port = device.node_mut().port_mut(PORT).expect("the port");
    port.state = PortState::Active;
    port.lid = Lid::new(3);
    port.sm_lid = SM_LID;
    let mut pf = device.function(PF).expect("the PF");
    let quota = ResourceCounts {
        pds: 8,
        cqs: 8,
        qps: 8,
        mrs: 8,
        attachments: 8,
        ..ResourceCounts::default()
    };
    pf.create_function(FunctionSpec {
        id: VF,
        node_guid: Guid::new(0x2000),
        memory: Box::new(HostMemory::new()),
        quota,
    })
    .expect("a VF");
    let view = VirtualPort {
        state: PortState::Active,
        pkeys: vec![Some(PKeyIndex(0))],
        smi_enabled: false,
    };
    pf.set_virtual_port(VF, PORT, view).expect("a port for it");
    device
}

/// The PF's end of the tunnel.
fn tunnel(device: &mut Device) -> DatagramQp {
    let kind = QpKind::Tunnel {
        function: VF,
        special: SpecialQp::Gsi,
        port: PORT,
    };
    let spec = DatagramQpSpec {
        kind,
        port: PORT,
        pkey_index: PKeyIndex(0),
        qkey: QKey::default(),
        receives: 8,
        sends: 8,
        max_message: 312,
        block_multicast_loopback: false,
    };
    DatagramQp::open(&mut device.function(PF).expect("the PF"), spec).expect("a tunnel QP")
}

fn send(device: &mut Device, tunnel: &mut DatagramQp, bytes: &[u8]) {
    let mut pf = device.function(PF).expect("the PF");
    tunnel.send(&mut pf, None, bytes).expect("a frame is sent");
}

/// The SA's answer to a path query that came through the tunnel.
fn path_answer(request: &Mad) -> Mad {
    let record = PathRecord {
        dlid: Lid::new(7),
        ..request.view::<SaMad>().record()
    };
    let mut answer = SaMad::new(Method::GET_RESP, ComponentMask::NONE, &record);
    answer.header.tid = request.header.tid;
    Mad::from_layout(&answer)
}

#[test]
fn a_vfs_path_query_goes_through_the_tunnel_and_its_answer_comes_back() {
    let mut device = adapter();
    let mut pf_end = tunnel(&mut device);
    let mut vf = device.function(VF).expect("the VF");
    let proxy = ProxyQp::open(&mut vf, SpecialQp::Gsi, PORT, 8).expect("a proxy QP");
    let config = EndPortConfig::host(PORT, 1);
    let mut end_port =
        EndPort::open_on(Instant::ZERO, &mut vf, config, Box::new(proxy), None).expect("a port");
    let wanted = PathRecord::default();
    let query = end_port.query(Instant::ZERO, SaRequest::get(&wanted, PathRecord::DGID));
    end_port.poll(Instant::ZERO, &mut vf);

    let datagram = pf_end
        .poll(&mut device.function(PF).expect("the PF"))
        .expect("a frame");
    let frame = ToPf::from_bytes(&datagram.bytes).expect("a tunnel frame");
    assert_eq!(frame.header.av.dlid, SM_LID);
    assert_eq!(frame.header.remote_qkey, QKey::GSI);
    assert_eq!(frame.mad.header.mgmt_class, MgmtClass::SUBN_ADM);

    let index = VirtualPKeyIndex(PKeyIndex(0));
    let mad = path_answer(&frame.mad);
    let answer = ToVf::new(Qpn::GSI, SM_LID, Sl::default(), index, None, mad);
    send(&mut device, &mut pf_end, answer.as_bytes());
    let mut vf = device.function(VF).expect("the VF");
    end_port.poll(Instant::ZERO, &mut vf);
    let answered = std::iter::from_fn(|| end_port.poll_event()).find_map(|event| match event {
        EndPortEvent::Sa(SaEvent::Answered {
            query: of,
            result: Ok(answer),
        }) if of == query => answer.record::<PathRecord>(),
        _ => None,
    });
    assert_eq!(answered.map(|path| path.dlid), Some(Lid::new(7)));
    end_port.close(&mut vf);
}

#[test]
fn what_is_no_tunnel_frame_is_dropped_and_the_next_one_taken() {
    let mut device = adapter();
    let mut pf_end = tunnel(&mut device);
    let mut vf = device.function(VF).expect("the VF");
    let mut proxy = ProxyQp::open(&mut vf, SpecialQp::Gsi, PORT, 8).expect("a proxy QP");
    send(&mut device, &mut pf_end, &[0; 100]);
    let index = VirtualPKeyIndex(PKeyIndex(4));
    let sl = Sl::from_low_bits(2);
    let frame = ToVf::new(Qpn::GSI, Lid::new(6), sl, index, None, Mad::default());
    send(&mut device, &mut pf_end, frame.as_bytes());
    let mut vf = device.function(VF).expect("the VF");
    let expected = MadAddress {
        sl,
        pkey_index: PKeyIndex(4),
        ..MadAddress::gsi(Lid::new(6))
    };
    assert_eq!(proxy.poll(&mut vf), Some((expected, Mad::default())));
    assert_eq!(proxy.malformed(), 1);
}

#[test]
fn a_message_is_copied_into_buffers_of_other_lengths_as_far_as_both_go() {
    let mut device = adapter();
    let mut pf_end = tunnel(&mut device);
    let mut vf = device.function(VF).expect("the VF");
    let mut proxy = ProxyQp::open(&mut vf, SpecialQp::Gsi, PORT, 8).expect("a proxy QP");
    let mad = Mad::from_bytes(&[0x5a; 256]).expect("a MAD");
    let to = MadAddress::gsi(SM_LID);
    for _ in 0..2 {
        proxy.send(&mut vf, &to, &mad).expect("a frame is sent");
    }
    let mut pf = device.function(PF).expect("the PF");
    let (mut short, mut long) = ([0; 8], [0xee; 400]);
    let lengths = [&mut short[..], &mut long[..]]
        .map(|buffer| pf_end.poll_into(&mut pf, buffer).map(|got| got.len));
    assert_eq!(lengths, [Some(312), Some(312)]);
    assert_eq!(short, long[..8]);
    assert_eq!(long[56..312], [0x5a; 256]);
    assert_eq!(long[312..], [0xee; 88]);
    assert_eq!(pf_end.poll_into(&mut pf, &mut short), None);
}

/// Takes the VF's join off the tunnel and grants it with an MLID.
fn grant(device: &mut Device, pf_end: &mut DatagramQp, hca: &mut VirtualHca, mlid: Lid) {
    let mut vf = device.function(VF).expect("the VF");
    while hca.poll(Instant::ZERO, &mut vf) {}
    let datagram = pf_end.poll(&mut device.function(PF).expect("the PF"));
    let frame = ToPf::from_bytes(&datagram.expect("a frame").bytes).expect("a tunnel frame");
    assert_eq!(frame.mad.header.method, Method::SET);
    let record = McMemberRecord {
        mlid,
        ..frame.mad.view::<SaMad>().record()
    };
    let mut answer = SaMad::new(Method::GET_RESP, ComponentMask::NONE, &record);
    answer.header.tid = frame.mad.header.tid;
    let index = VirtualPKeyIndex(PKeyIndex(0));
    let mad = Mad::from_layout(&answer);
    let answer = ToVf::new(Qpn::GSI, SM_LID, Sl::default(), index, None, mad);
    send(device, pf_end, answer.as_bytes());
    let mut vf = device.function(VF).expect("the VF");
    while hca.poll(Instant::ZERO, &mut vf) {}
}

/// The MLIDs at which a VF's queue pair hears its group.
fn heard_at(
    device: &mut Device,
    hca: &mut VirtualHca,
    qp: UdQpId,
    record: &McMemberRecord,
) -> Vec<Lid> {
    let mut vf = device.function(VF).expect("the VF");
    let port = hca.port_mut(PORT).expect("the port");
    [Lid::new(0xc001), Lid::new(0xc002)]
        .into_iter()
        .filter(|&mlid| {
            let record = McMemberRecord { mlid, ..*record };
            let to = group_destination(PORT, &record);
            port.send(&mut vf, qp, &to, b"x").expect("it is sent");
            port.receive(&mut vf, qp).is_some()
        })
        .collect()
}

#[test]
fn a_queue_pair_follows_its_group_to_another_mlid() {
    let mut device = adapter();
    set_guid(&mut device, VF.0, Guid::new(0x77));
    let mut pf_end = tunnel(&mut device);
    let mut vf = device.function(VF).expect("the VF");
    let mut hca = VirtualHca::open(Instant::ZERO, &mut vf, VirtualHcaConfig::new(1)).expect("a VF");
    let port = hca.port_mut(PORT).expect("the port");
    let qkey = QKey::new(5);
    let spec = UdQpSpec::new(Partition::Index(PKeyIndex(0)), qkey);
    let qp = port.open_qp(&mut vf, &spec).expect("a queue pair");
    let mgid = Gid([0xff; 16]);
    let full = GroupSpec::create(mgid, JoinState::FULL_MEMBER, PKey::DEFAULT_FULL, qkey);
    let group = port.join(Instant::ZERO, full).expect("a wish");
    port.attach(&mut vf, group, qp).expect("it listens");
    grant(&mut device, &mut pf_end, &mut hca, Lid::new(0xc001));
    let heard = heard_at(&mut device, &mut hca, qp, &full.record);
    assert_eq!(heard, [Lid::new(0xc001)]);

    let mut vf = device.function(VF).expect("the VF");
    let again = AsyncEvent::Port {
        port: PORT,
        change: PortChange::CLIENT_REREGISTER,
    };
    hca.handle_hca_event(Instant::ZERO, &mut vf, &HcaEvent::Async(again))
        .expect("the port can be read");
    grant(&mut device, &mut pf_end, &mut hca, Lid::new(0xc002));
    let heard = heard_at(&mut device, &mut hca, qp, &full.record);
    assert_eq!(heard, [Lid::new(0xc002)]);
    let owned = device.function(PF).expect("the PF").resources(VF);
    assert_eq!(owned.map(|owned| owned.attachments), Ok(1));
    let mut vf = device.function(VF).expect("the VF");
    hca.close(Instant::ZERO, &mut vf);
    let owned = device.function(PF).expect("the PF").resources(VF);
    assert_eq!(owned, Ok(ResourceCounts::default()));
}
