//! Virtual functions over the physical function of an emulated adapter.

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AccessFlags, Adapter, AddressVector, ArmKind, AsyncEvent, Cause, Completion, FunctionId,
    FunctionManager, FunctionSpec, GlobalRoute, Hca, HcaError, HcaEvent, HostMemory, LKey,
    LocalMad, MadView, MrKind, MrSpec, Payload, PortChange, PortState, QpCaps, QpKind, QpModify,
    QpSpec, QpState, ReceiveMode, RecvRequest, ResourceCounts, SendFlags, SendOp, SendRequest, Sge,
    SpecialQp, UdAddress, UdDestination, VirtualPort,
};
use ib_endpoint::{Datagram, DatagramQp, DatagramQpSpec, MadAddress, MadQp};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{GuidInfo, LidRoutedSmp, NodeInfo, PKeyTable, PortInfo, SmpAttribute};
use ib_wire::{Gid, GidIndex, Guid, Lid, PKey, PKeyIndex, PortNum, Psn, QKey, Qpn, Sl};

use crate::{DividedAdapter, Function, Functions};

mod connections;
mod pulled;
mod resets;

const PORT: PortNum = PortNum(1);
const PF: FunctionId = FunctionId::PF;
const VF1: FunctionId = FunctionId(1);
const VF2: FunctionId = FunctionId(2);
const NODE_GUID: Guid = Guid::new(0x2001);
const ALIAS: Guid = Guid::new(0x0014_0500_0000_0001);
const QUOTA: ResourceCounts = ResourceCounts {
    pds: 4,
    avs: 4,
    cqs: 4,
    srqs: 2,
    qps: 4,
    mrs: 4,
    mws: 2,
    attachments: 4,
};

struct Rig {
    device: Device,
    functions: Functions,
}

impl Rig {
    /// Creates an adapter with an active port, and two virtual functions with the second P_Key.
    fn new() -> Self {
        let functions = Functions::new(8, 7);
        let config = HcaConfig::new(Guid::new(0x1000), "host");
        let mut device = Device::with_memory(&config, 1, functions.memory());
        let port = device.node_mut().port_mut(PORT).unwrap();
        port.state = PortState::Active;
        port.lid = Lid::new(3);
        port.set_pkey(PKeyIndex(1), PKey::new(0x8001));
        port.set_alias_guid(GidIndex(1), ALIAS);
        let mut this = Self { device, functions };
        for id in [VF1, VF2] {
            let spec = spec(id);
            this.pf(|pf| pf.create_function(spec)).unwrap();
            this.show(id, false);
        }
        this
    }

    fn show(&mut self, id: FunctionId, smi_enabled: bool) {
        let view = VirtualPort {
            state: PortState::Active,
            pkeys: vec![Some(PKeyIndex(1)), None],
            smi_enabled,
        };
        self.pf(|pf| pf.set_virtual_port(id, PORT, view)).unwrap();
    }

    fn adapter<T>(&mut self, call: impl FnOnce(&mut DividedAdapter<'_>) -> T) -> T {
        let mut hca = self.device.function(PF).unwrap();
        call(&mut self.functions.on(&mut hca))
    }

    fn on<T>(
        &mut self,
        id: FunctionId,
        call: impl FnOnce(&mut Function<'_, &mut dyn Hca>) -> T,
    ) -> T {
        self.adapter(|adapter| call(&mut adapter.function(id).unwrap()))
    }

    fn pf<T>(&mut self, call: impl FnOnce(&mut Function<'_, &mut dyn Hca>) -> T) -> T {
        self.on(PF, call)
    }

    fn open(&mut self, id: FunctionId, kind: QpKind) -> Result<DatagramQp, HcaError> {
        let spec = DatagramQpSpec {
            kind,
            port: PORT,
            pkey_index: PKeyIndex(0),
            qkey: QKey::GSI,
            max_message: 312,
            sends: 4,
            receives: 4,
            block_multicast_loopback: false,
        };
        self.on(id, |hca| DatagramQp::open(hca, spec))
    }

    /// Opens both ends of a tunnel of VF 1.
    fn tunnel(&mut self, special: SpecialQp) -> [DatagramQp; 2] {
        [(VF1, proxy(special)), (PF, tunnel(VF1, special))]
            .map(|(id, kind)| self.open(id, kind).unwrap())
    }

    fn ask<A: SmpAttribute + Copy>(&mut self, id: FunctionId) -> A {
        let mad = get::<A>();
        let answer = self.on(id, |hca| hca.process_local_mad(PORT, MadView::Host, &mad));
        let Ok(LocalMad::Reply(reply)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(reply.header.status, MadStatus::OK);
        *reply.view::<LidRoutedSmp>().attribute()
    }
}

fn spec(id: FunctionId) -> FunctionSpec {
    FunctionSpec {
        id,
        node_guid: Guid::new(0x2000 + u64::from(id.0)),
        memory: Box::new(HostMemory::new()),
        quota: QUOTA,
    }
}

const fn proxy(special: SpecialQp) -> QpKind {
    QpKind::Proxy {
        special,
        port: PORT,
    }
}

const fn tunnel(function: FunctionId, special: SpecialQp) -> QpKind {
    QpKind::Tunnel {
        function,
        special,
        port: PORT,
    }
}

fn get<A: SmpAttribute>() -> Mad {
    Mad::new(MadHeader::new(
        MgmtClass::SUBN_LID_ROUTED,
        Method::GET,
        A::ID,
    ))
}

/// The number that a message comes from is the other end's.
#[test]
fn a_tunnel_carries_messages_both_ways_while_the_port_is_down() {
    let mut rig = Rig::new();
    rig.device.node_mut().port_mut(PORT).unwrap().state = PortState::Down;
    let mut ends = rig.tunnel(SpecialQp::Gsi);
    let numbers = ends.each_ref().map(|end| end.numbers().real);
    for round in 0..20_u8 {
        for (from, to) in [(0, 1), (1, 0)] {
            let ids = [VF1, PF];
            let message = [round; 312];
            rig.on(ids[from], |hca| ends[from].send(hca, None, &message))
                .unwrap();
            let received = rig.on(ids[to], |hca| ends[to].poll(hca)).unwrap();
            assert_eq!(received.bytes, message);
            assert_eq!(received.source.src_qpn, numbers[from]);
            rig.on(ids[from], |hca| assert!(ends[from].poll(hca).is_none()));
        }
    }
    for (id, end) in [VF1, PF].into_iter().zip(&mut ends) {
        rig.on(id, |hca| assert!(end.poll(hca).is_none()));
        assert!(end.is_at_rest());
    }
    assert!(rig.device.poll_transmit(Instant::ZERO, PORT).is_none());
}

#[test]
fn a_tunnel_is_announced_once_for_each_time_that_its_queue_is_armed() {
    let mut rig = Rig::new();
    let [mut vf, mut pf] = rig.tunnel(SpecialQp::Gsi);
    rig.pf(|hca| assert!(!pf.arm(hca)));
    assert_eq!(rig.adapter(|adapter| adapter.poll_ready()), None);
    for _ in 0..2 {
        rig.on(VF1, |hca| vf.send(hca, None, &[1; 312])).unwrap();
    }
    assert_eq!(rig.adapter(|adapter| adapter.poll_ready()), Some(PF));
    let announced = HcaEvent::Completion(pf.cq());
    assert_eq!(rig.pf(|hca| hca.poll_event()), Some(announced));
    assert_eq!(rig.pf(|hca| hca.poll_event()), None);
    rig.pf(|hca| assert!(pf.arm(hca), "two wait"));
    for _ in 0..2 {
        assert!(rig.pf(|hca| pf.poll(hca)).is_some());
    }
    rig.on(VF1, |hca| while vf.poll(hca).is_some() {});
}

/// A message that is too long costs a receive, and the tunnel goes on.
#[test]
fn c006_a_guest_cannot_stop_its_tunnel_with_a_message_that_is_too_long() {
    let mut rig = Rig::new();
    let [_, mut pf] = rig.tunnel(SpecialQp::Gsi);
    rig.pf(|hca| hca.reset_function(VF1)).unwrap();
    let long = DatagramQpSpec {
        max_message: 4096,
        ..DatagramQpSpec {
            kind: proxy(SpecialQp::Gsi),
            ..*pf.spec()
        }
    };
    let mut vf = rig.on(VF1, |hca| DatagramQp::open(hca, long)).unwrap();
    rig.on(VF1, |hca| vf.send(hca, None, &[7; 4096])).unwrap();
    rig.on(VF1, |hca| vf.send(hca, None, &[8; 312])).unwrap();
    let received = rig.pf(|hca| pf.poll(hca)).unwrap();
    assert_eq!(received.bytes, [8; 312]);
    assert_eq!(pf.failures(), (0, 1));
}

/// QP0 of a VF does nothing until the PF enables it.
#[test]
fn a_proxy_qp0_is_dead_until_it_is_enabled() {
    let mut rig = Rig::new();
    let [mut vf, mut pf] = rig.tunnel(SpecialQp::Smi);
    for enabled in [false, true] {
        rig.show(VF1, enabled);
        rig.on(VF1, |hca| vf.send(hca, None, &[1; 312])).unwrap();
        assert_eq!(rig.pf(|hca| pf.poll(hca)).is_some(), enabled);
    }
}

#[test]
fn a_reset_leaves_its_own_event_and_the_pfs_end_of_the_tunnel() {
    let mut rig = Rig::new();
    let [_, mut pf] = rig.tunnel(SpecialQp::Gsi);
    let port = AsyncEvent::Port {
        port: PORT,
        change: PortChange::LID,
    };
    rig.pf(|hca| hca.notify(VF1, port)).unwrap();
    rig.pf(|hca| hca.reset_function(VF1)).unwrap();
    assert_eq!(rig.adapter(|adapter| adapter.poll_ready()), Some(VF1));
    let reset = HcaEvent::Async(AsyncEvent::FunctionReset);
    assert_eq!(rig.on(VF1, |hca| hca.poll_event()), Some(reset));
    assert_eq!(rig.on(VF1, |hca| hca.poll_event()), None);
    let owned = rig.pf(|hca| hca.resources(VF1));
    assert_eq!(owned, Ok(ResourceCounts::default()));
    rig.pf(|hca| pf.send(hca, None, &[1; 312])).unwrap();
    let mut vf = rig.open(VF1, proxy(SpecialQp::Gsi)).unwrap();
    rig.on(VF1, |hca| vf.send(hca, None, &[2; 312])).unwrap();
    assert_eq!(rig.pf(|hca| pf.poll(hca)).unwrap().bytes, [2; 312]);
    assert!(rig.on(VF1, |hca| vf.poll(hca)).is_none(), "sent before");
}

#[test]
fn a_vf_has_a_longer_table_of_pkeys_than_a_port_with_one() {
    let config = HcaConfig {
        pkey_table_len: 1,
        ..HcaConfig::new(Guid::new(0x1000), "host")
    };
    let mut functions = Functions::new(1, 7);
    let mut device = Device::with_memory(&config, 1, functions.memory());
    let mut hca = device.function(PF).unwrap();
    let mut adapter = functions.on(&mut hca);
    let mut pf = adapter.function(PF).unwrap();
    pf.create_function(spec(VF1)).unwrap();
    let mut show = |first| {
        let mut pkeys = vec![None; 16];
        pkeys[0] = Some(PKeyIndex(first));
        let view = VirtualPort {
            state: PortState::Active,
            pkeys,
            smi_enabled: false,
        };
        pf.set_virtual_port(VF1, PORT, view)
    };
    assert_eq!(show(1), Err(HcaError::InvalidIndex));
    assert_eq!(show(0), Ok(()));
    let vf = adapter.function(VF1).unwrap();
    assert_eq!(vf.query_port(PORT).unwrap().pkey_table_len, 16);
    assert_eq!(vf.query_pkey(PORT, PKeyIndex(15)), Ok(PKey::INVALID));
}

#[test]
fn a_port_shows_a_vf_what_the_pf_lets_it_see() {
    let mut rig = Rig::new();
    assert_eq!(rig.ask::<NodeInfo>(VF1).node_guid, NODE_GUID);
    assert_eq!(rig.ask::<NodeInfo>(PF).node_guid, Guid::new(0x1000));
    let info: PortInfo = rig.ask(VF1);
    assert_eq!(info.lid, Lid::new(3));
    let guids = rig.ask::<GuidInfo>(VF1).guids;
    assert_eq!((guids[0], guids[1]), (ALIAS, Guid::NONE));
    let pkeys = rig.ask::<PKeyTable>(VF1).pkeys;
    assert_eq!(pkeys[..2], [PKey::new(0x8001), PKey::INVALID]);
    rig.on(VF1, |hca| {
        let port = hca.query_port(PORT).unwrap();
        assert_eq!((port.gid_table_len, port.pkey_table_len), (1, 2));
        let gid = hca.query_gid(PORT, GidIndex(0)).unwrap();
        assert_eq!(gid.interface_id(), ALIAS);
        assert_eq!(
            hca.query_gid(PORT, GidIndex(1)),
            Err(HcaError::InvalidIndex)
        );
        assert_eq!(
            hca.query_pkey(PORT, PKeyIndex(2)),
            Err(HcaError::InvalidIndex)
        );
    });
    let mut set = get::<PortInfo>();
    set.header.method = Method::SET;
    let answer = rig.on(VF1, |hca| hca.process_local_mad(PORT, MadView::Host, &set));
    let Ok(LocalMad::Reply(refused)) = answer else {
        panic!("{answer:?}");
    };
    let unsupported = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
    assert_eq!(refused.header.status, unsupported);
}

#[test]
fn the_physical_function_is_the_adapters_own() {
    let mut rig = Rig::new();
    let before = rig.pf(|hca| hca.resources(PF));
    let mut qp1 = rig
        .pf(|hca| MadQp::open(hca, SpecialQp::Gsi, PORT, 4))
        .unwrap();
    let mad = get::<NodeInfo>();
    let to = MadAddress::gsi(Lid::new(9));
    rig.pf(|hca| qp1.send(hca, &to, &mad)).unwrap();
    let packet = rig.device.poll_transmit(Instant::ZERO, PORT);
    assert!(packet.is_some());
    let owned = rig.pf(|hca| hca.resources(PF)).unwrap();
    assert_eq!((owned.pds, owned.cqs, owned.qps, owned.mrs), (1, 1, 1, 1));
    rig.pf(|hca| qp1.close(hca));
    assert_eq!(rig.pf(|hca| hca.resources(PF)), before);
}

#[test]
fn a_vf_manages_nothing_and_has_what_its_quota_allows() {
    let mut rig = Rig::new();
    let refused = [
        (VF1, proxy(SpecialQp::Gsi), Ok(())),
        (VF1, proxy(SpecialQp::Gsi), Err(HcaError::SpecialQpTaken)),
        (
            VF1,
            tunnel(VF2, SpecialQp::Gsi),
            Err(HcaError::PermissionDenied),
        ),
        (
            VF1,
            QpKind::Special {
                special: SpecialQp::Gsi,
                port: PORT,
            },
            Err(HcaError::PermissionDenied),
        ),
        (PF, proxy(SpecialQp::Gsi), Err(HcaError::InvalidParameter)),
        (
            PF,
            tunnel(FunctionId(3), SpecialQp::Gsi),
            Err(HcaError::InvalidParameter),
        ),
    ];
    for (id, kind, expected) in refused {
        assert_eq!(rig.open(id, kind).map(|_| ()), expected, "{id} {kind:?}");
    }
    let denied = rig.on(VF1, |hca| hca.reset_function(VF2));
    assert_eq!(denied, Err(HcaError::PermissionDenied));
    let again = rig.pf(|hca| hca.create_function(spec(VF1)));
    assert_eq!(again, Err(HcaError::InvalidParameter));
    rig.on(VF2, |hca| {
        for _ in 0..QUOTA.pds {
            hca.alloc_pd().unwrap();
        }
        assert_eq!(hca.alloc_pd(), Err(HcaError::InsufficientResources));
    });
    let memory = rig.pf(|hca| hca.destroy_function(VF2));
    assert!(memory.is_ok());
    assert!(rig.adapter(|adapter| adapter.function(VF2).is_none()));
}

#[test]
fn a_proxy_gathers_from_regions_of_its_protection_domain_alone() {
    let mut rig = Rig::new();
    let mut pf = rig.open(PF, tunnel(VF1, SpecialQp::Gsi)).unwrap();
    let made: Result<_, HcaError> = rig.on(VF1, |hca| {
        let addr = hca.allocate_dma(64)?.addr;
        let mut register = || {
            let pd = hca.alloc_pd()?;
            let spec = MrSpec {
                pd,
                kind: MrKind::Virtual { addr, len: 64 },
                access: AccessFlags::LOCAL_WRITE,
                key: None,
            };
            Ok::<_, HcaError>((pd, hca.register_mr(&spec)?.lkey))
        };
        let (own, other) = (register()?, register()?);
        let cq = hca.create_cq(16)?;
        let (qp, _) = hca.create_qp(QpSpec {
            kind: proxy(SpecialQp::Gsi),
            pd: own.0,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: 4,
                max_recv_wr: 0,
                max_send_sge: 2,
                max_recv_sge: 0,
                max_inline: 56,
            },
            signal_all: true,
            receives: ReceiveMode::Posted,
            qpn: None,
            block_multicast_loopback: false,
        })?;
        for (state, sq_psn) in [
            (QpState::Init, None),
            (QpState::ReadyToReceive, None),
            (QpState::ReadyToSend, Some(Psn::default())),
        ] {
            hca.modify_qp(qp, &to_state(state, sq_psn))?;
        }
        hca.dma_write(addr, &[9; 64])?;
        Ok((addr, own.1, other.1, cq, qp))
    });
    let (addr, own, other, cq, qp) = made.unwrap();
    let cases = [
        (addr, own, Cause::None),
        (addr, other, Cause::OtherPd),
        (addr + 60, own, Cause::OutOfBounds),
        (addr, LKey(own.0 ^ 1), Cause::NoSuchKey),
        (addr + 1, own, Cause::None),
    ];
    for (addr, lkey, cause) in cases {
        let gather = [Sge { addr, len: 8, lkey }; 2];
        let request = SendRequest {
            wr_id: 1,
            op: SendOp::Send,
            payload: Payload::Headed(&[1; 8], &gather),
            flags: SendFlags::empty(),
            destination: None,
        };
        let mut done = [Completion::BLANK; 2];
        let count = rig.on(VF1, |hca| {
            hca.post_send(qp, &request)?;
            hca.poll_cq(cq, &mut done)
        });
        assert_eq!((count, done[0].cause), (Ok(1), cause));
        let received = rig.pf(|hca| pf.poll(hca)).map(|datagram| datagram.bytes);
        let expected = [[1; 8], [9; 8], [9; 8]].concat();
        assert_eq!(received, (cause == Cause::None).then_some(expected));
        let again = to_state(QpState::ReadyToSend, None);
        rig.on(VF1, |hca| hca.modify_qp(qp, &again)).unwrap();
    }
}

fn to_state(state: QpState, sq_psn: Option<Psn>) -> QpModify {
    QpModify {
        state: Some(state),
        sq_psn,
        ..QpModify::default()
    }
}

const QKEY: QKey = QKey::new(0x1234);
const MGID: Gid = Gid([
    0xff, 0x12, 0xa0, 0x1b, 0x80, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
]);

impl Rig {
    /// Opens a datagram queue pair.
    fn open_ud(&mut self, id: FunctionId) -> DatagramQp {
        let spec = DatagramQpSpec {
            kind: QpKind::Ud,
            port: PORT,
            pkey_index: PKeyIndex(0),
            qkey: QKEY,
            max_message: 256,
            sends: 8,
            receives: 8,
            block_multicast_loopback: false,
        };
        self.on(id, |hca| DatagramQp::open(hca, spec)).unwrap()
    }

    /// Sends a datagram from VF 1 to a queue pair, and returns the one that arrives there at VF 2.
    fn pass(&mut self, [from, to]: [&mut DatagramQp; 2], byte: u8) -> Option<Datagram> {
        let destination = at_port(to.numbers().real);
        let message = [byte; 256];
        self.on(VF1, |hca| from.send(hca, Some(&destination), &message))
            .unwrap();
        self.on(VF1, |hca| while from.poll(hca).is_some() {});
        self.on(VF2, |hca| to.poll(hca))
    }

    fn set_view(&mut self, id: FunctionId, state: PortState, pkey: Option<u16>) {
        let view = VirtualPort {
            state,
            pkeys: vec![pkey.map(PKeyIndex)],
            smi_enabled: false,
        };
        self.pf(|pf| pf.set_virtual_port(id, PORT, view)).unwrap();
    }
}

fn at_port(qpn: Qpn) -> UdDestination {
    UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: PORT,
            dlid: Lid::new(3),
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        }),
        qpn,
        qkey: QKEY,
        pkey_index: None,
    }
}

#[test]
fn datagrams_pass_between_vfs_while_both_ports_are_active_and_of_one_partition() {
    use PortState::{Active, Down};

    let mut rig = Rig::new();
    rig.device
        .node_mut()
        .port_mut(PORT)
        .unwrap()
        .set_pkey(PKeyIndex(2), PKey::new(0x8002));
    let (mut from, mut to) = (rig.open_ud(VF1), rig.open_ud(VF2));
    let views = [
        ((Active, Some(1)), (Active, Some(1)), true),
        ((Down, Some(1)), (Active, Some(1)), false),
        ((Active, Some(1)), (Down, Some(1)), false),
        ((Active, None), (Active, Some(1)), false),
        ((Active, Some(2)), (Active, Some(1)), false),
        ((Active, Some(2)), (Active, Some(2)), true),
        ((Active, Some(2)), (Active, None), false),
        ((Active, Some(1)), (Active, Some(1)), true),
    ];
    for (round, (sender, receiver, passes)) in (0..).zip(views) {
        rig.set_view(VF1, sender.0, sender.1);
        rig.set_view(VF2, receiver.0, receiver.1);
        let datagram = rig.pass([&mut from, &mut to], round);
        assert_eq!(datagram.is_some(), passes, "{sender:?} {receiver:?}");
        if let Some(Datagram { source, bytes, .. }) = datagram {
            assert_eq!(bytes, [round; 256]);
            assert_eq!(source.src_qpn, from.numbers().real);
            assert_eq!(source.pkey_index, PKeyIndex(0));
        }
    }
    assert_eq!((from.failures(), to.failures()), ((0, 0), (0, 0)));
}

#[test]
fn a_group_reaches_the_vfs_that_are_attached() {
    let mut rig = Rig::new();
    let (mut from, mut to) = (rig.open_ud(VF1), rig.open_ud(VF2));
    let destination = UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: PORT,
            dlid: Lid::new(0xc001),
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: Some(GlobalRoute {
                remote_gid: MGID,
                // Another function's GID, which a VF does not get.
                sgid_index: GidIndex(5),
                flow_label: 0,
                hop_limit: 1,
                traffic_class: 0,
            }),
        }),
        qpn: Qpn::MULTICAST,
        ..at_port(Qpn::MULTICAST)
    };
    for attached in [false, true, false] {
        let qp = to.handle();
        rig.on(VF2, |hca| {
            if attached {
                hca.attach_multicast(qp, MGID, Lid::new(0xc001))
            } else {
                let left = hca.detach_multicast(qp, MGID, Lid::new(0xc001));
                left.or_else(|error| match error {
                    HcaError::InvalidParameter => Ok(()),
                    other => Err(other),
                })
            }
        })
        .unwrap();
        rig.on(VF1, |hca| from.send(hca, Some(&destination), &[1; 256]))
            .unwrap();
        let received = rig.on(VF2, |hca| to.poll(hca));
        assert_eq!(received.is_some(), attached);
        let route = received.and_then(|datagram| datagram.source.grh);
        if let Some(route) = route {
            assert_eq!(route.remote_gid.interface_id(), ALIAS);
        }
    }
    let handle = from.handle();
    let stranger = rig.on(VF2, |hca| {
        hca.attach_multicast(handle, MGID, Lid::new(0xc001))
    });
    assert_eq!(stranger, Err(HcaError::InvalidHandle));
}

#[test]
fn a_vf_names_nothing_that_is_anothers() {
    let mut rig = Rig::new();
    let (other, own) = (rig.open_ud(VF1), rig.open_ud(VF2));
    rig.on(VF2, |hca| {
        const NONE: Option<HcaError> = Some(HcaError::InvalidHandle);

        assert_eq!(hca.query_qp(other.handle()).err(), NONE);
        assert_eq!(hca.destroy_qp(other.handle()).err(), NONE);
        assert_eq!(hca.arm_cq(other.cq(), ArmKind::Next).err(), NONE);
        assert_eq!(hca.destroy_cq(other.cq()).err(), NONE);
        let error = to_state(QpState::Error, None);
        assert_eq!(hca.modify_qp(other.handle(), &error).err(), NONE);
        let receive = RecvRequest {
            wr_id: 1,
            scatter: &[],
        };
        assert_eq!(hca.post_recv(other.handle(), &receive).err(), NONE);
        let privileged = QpModify {
            qkey: Some(QKey::new(0x8000_0001)),
            ..QpModify::default()
        };
        let denied = hca.modify_qp(own.handle(), &privileged);
        assert_eq!(denied, Err(HcaError::PermissionDenied));
    });
}

#[test]
fn a_reset_leaves_nothing_of_a_vf_in_the_adapter() {
    let mut rig = Rig::new();
    let owned = |rig: &mut Rig| rig.device.function(PF).unwrap().resources(PF);
    let before = owned(&mut rig);
    for _ in 0..3 {
        let to = rig.open_ud(VF2);
        let (qp, cq) = (to.handle(), to.cq());
        rig.on(VF2, |hca| {
            hca.attach_multicast(qp, MGID, Lid::NONE)?;
            let pd = hca.alloc_pd()?;
            let UdAddress::Vector(vector) = at_port(Qpn::GSI).address else {
                return Err(HcaError::InvalidParameter);
            };
            hca.create_av(pd, &vector)?;
            hca.arm_cq(cq, ArmKind::Next)
        })
        .unwrap();
        assert_ne!(owned(&mut rig), before);
        rig.pf(|pf| pf.reset_function(VF2)).unwrap();
        assert_eq!(owned(&mut rig), before);
        let counts = rig.pf(|pf| pf.resources(VF2));
        assert_eq!(counts, Ok(ResourceCounts::default()));
    }
}

#[test]
fn a_vf_that_may_not_reach_its_memory_neither_sends_nor_receives() {
    let mut rig = Rig::new();
    let (mut from, mut to) = (rig.open_ud(VF1), rig.open_ud(VF2));
    assert!(rig.pass([&mut from, &mut to], 1).is_some());
    rig.on(VF2, |hca| hca.set_bus_master(false));
    let destination = at_port(to.numbers().real);
    rig.on(VF1, |hca| from.send(hca, Some(&destination), &[2; 256]))
        .unwrap();
    let mut done = [Completion::BLANK];
    rig.on(VF2, |hca| hca.poll_cq(to.cq(), &mut done)).unwrap();
    assert_eq!(done[0].cause, Cause::NoMemory);
    let memory = rig.pf(|pf| pf.destroy_function(VF2)).unwrap();
    assert!(
        memory.read(0, &mut [0]).is_err(),
        "it is the VF's own again"
    );
}
