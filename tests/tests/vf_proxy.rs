//! A VF's end port on its proxy QP1, through the tunnel of an emulated adapter.

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AddressVector, FunctionId, FunctionManager, FunctionSpec, HostMemory, PortState, QpKind,
    ResourceCounts, SpecialQp, UdAddress, UdDestination, VirtualPort,
};
use ib_endpoint::{
    DatagramQp, DatagramQpSpec, EndPort, EndPortConfig, EndPortEvent, MadAddress, MadTransport,
    SaEvent, SaRequest,
};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::sa::{ComponentMask, PathRecord, SaMad};
use ib_wire::{Guid, Lid, PKeyIndex, PortNum, QKey, Qpn, Sl};
use vf_proxy::native::ProxyQp;
use vf_tunnel::{ToPf, ToVf, VirtualPKeyIndex};
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
    let vector = AddressVector {
        port: PORT,
        dlid: Lid::NONE,
        sl: Sl::default(),
        path_bits: 0,
        static_rate: None,
        grh: None,
    };
    let destination = UdDestination {
        address: UdAddress::Vector(vector),
        qpn: Qpn::GSI,
        qkey: QKey::default(),
        pkey_index: None,
    };
    let mut pf = device.function(PF).expect("the PF");
    tunnel
        .send(&mut pf, &destination, bytes)
        .expect("a frame is sent");
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
