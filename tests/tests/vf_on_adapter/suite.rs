//! VFs that programs hold on an adapter without a fabric: what they see of a port that changes, who is
//! heard at a tunnel, and what a VF may have.

use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AsyncEvent, FunctionId, FunctionManager, Hca, HcaEvent, HostMemory, LocalMad, MadView,
    PortChange, PortState, SpecialQp,
};
use ib_endpoint::SaRequest;
use ib_vtime::Instant;
use ib_wire::mad::{AttributeModifier, Mad, MadHeader, Method, MgmtClass};
use ib_wire::sa::PathRecord;
use ib_wire::smp::{
    LidRoutedSmp, NodeInfo, PKeyTable, PortInfo, PortState as WirePortState, SmpAttribute,
};
use ib_wire::{Guid, Lid, PKey, PortNum, QKey, Qpn, SubnetPrefix};
use mad_mux::policy::Rights;
use pf_context::PfContext;
use pf_context::context::{GuidSource, PfConfig, PfEvent, VfPortSpec, VfSpec};
use vf_proxy::native::{
    Partition, UdQpId, UdQpSpec, VfPortEvent, VirtualHca, VirtualHcaConfig, VirtualHcaEvent,
};
use vf_tunnel::{DropReason, VfId};
use vhca_tests::faulty_hca::FaultyHca;
use vhca_tests::vf_subnet::{PORT, QUOTA, port_spec, set_attribute, set_guid};

use super::{Device, Function};

const NOW: Instant = Instant::ZERO;
const SECOND_PORT: PortNum = PortNum(2);
const VF1: VfId = VfId::new(1).unwrap();
const VF2: VfId = VfId::new(2).unwrap();

fn alias(vf: VfId) -> Guid {
    Guid::new(0x0014_0500_0000_0000 + u64::from(vf.get()))
}

fn node_guid(vf: VfId) -> Guid {
    Guid::new(0x2000 + u64::from(vf.get()))
}

fn set_second_pkey(device: &mut Device, pkey: PKey) {
    set_attribute(device, 0, |table: &mut PKeyTable| table.pkeys[1] = pkey);
}

/// An adapter of two ports with two VFs.
struct Rig {
    device: Device,
    pf: PfContext,
    guests: [VirtualHca; 2],
    drops: Vec<(Option<VfId>, DropReason)>,
}

impl Rig {
    fn new() -> Self {
        Self::with(&PfConfig::new(7), Rights::default())
    }

    fn with(config: &PfConfig, rights: Rights) -> Self {
        let mut device = Device::new(&HcaConfig::new(Guid::new(0x1000), "host"), 1);
        let port = device.node_mut().port_mut(PORT).expect("the port");
        port.state = PortState::Active;
        port.lid = Lid::new(3);
        port.sm_lid = Lid::new(9);
        set_second_pkey(&mut device, PKey::new(0x8001));
        for vf in [VF1, VF2] {
            set_guid(&mut device, vf.get(), alias(vf));
        }
        let mut hca = device.function(FunctionId::PF).expect("the PF");
        let mut pf = PfContext::open(NOW, &mut hca, config).expect("a context");
        for vf in [VF1, VF2] {
            let port = VfPortSpec {
                guid: GuidSource::Hardware,
                rights,
                ..port_spec()
            };
            let spec = VfSpec {
                node_guid: node_guid(vf),
                memory: Box::new(HostMemory::new()),
                quota: QUOTA,
                ports: vec![port.clone(), port],
            };
            pf.add_vf(NOW, &mut hca, vf, spec).expect("a VF");
        }
        while pf.poll(NOW, &mut hca) {}
        let guests = [VF1, VF2].map(|vf| {
            let mut function = device.function(vf.into()).expect("a VF");
            let config = VirtualHcaConfig::new(u64::from(vf.get()));
            VirtualHca::open(NOW, &mut function, config).expect("a VF")
        });
        let mut this = Self {
            device,
            pf,
            guests,
            drops: Vec::new(),
        };
        this.settle();
        for vf in [VF1, VF2] {
            this.events(vf);
        }
        this.drops.clear();
        this
    }

    fn guest(&mut self, vf: VfId) -> (&mut VirtualHca, Function<'_>) {
        let function = self.device.function(vf.into()).expect("a VF");
        (&mut self.guests[vf.index() - 1], function)
    }

    fn pf(&mut self) -> (&mut PfContext, Function<'_>) {
        let function = self.device.function(FunctionId::PF).expect("the PF");
        (&mut self.pf, function)
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            self.settle_pf(|_| {});
            self.settle_guests();
        }
    }

    fn settle_guests(&mut self) {
        for vf in [VF1, VF2] {
            let (guest, mut hca) = self.guest(vf);
            while let Some(event) = hca.poll_event() {
                guest
                    .handle_hca_event(NOW, &mut hca, &event)
                    .expect("the port can be read");
            }
            while guest.poll(NOW, &mut hca) {}
        }
    }

    /// Lets the PF do what is due, on its adapter with faults.
    fn settle_pf(&mut self, faults: impl FnOnce(&mut FaultyHca<'_>)) {
        let mut hca = self.device.function(FunctionId::PF).expect("the PF");
        let mut hca = FaultyHca::new(&mut hca);
        faults(&mut hca);
        while let Some(event) = hca.poll_event() {
            self.pf.handle_hca_event(NOW, &mut hca, &event);
        }
        while self.pf.poll(NOW, &mut hca) {}
        while let Some(event) = self.pf.poll_event() {
            if let PfEvent::Dropped { vf, reason, .. } = event {
                self.drops.push((vf, reason));
            }
        }
    }

    /// Makes a change of the port, as the SM does, and calls `at_the_event` as soon as a VF's function says so.
    fn change_until_told(
        &mut self,
        edit: impl FnOnce(&mut Device),
        change: PortChange,
        mut at_the_event: impl FnMut(&mut Self, VfId),
    ) {
        edit(&mut self.device);
        let (pf, mut hca) = self.pf();
        let event = HcaEvent::Async(AsyncEvent::Port { port: PORT, change });
        pf.handle_hca_event(NOW, &mut hca, &event);
        let mut told = [false; 2];
        let mut is_busy = true;
        while is_busy {
            let (pf, mut hca) = self.pf();
            is_busy = pf.poll(NOW, &mut hca);
            for vf in [VF1, VF2] {
                while let Some(event) = self.guest(vf).1.poll_event() {
                    if let HcaEvent::Async(AsyncEvent::Port { change: seen, .. }) = event
                        && seen.contains(change)
                    {
                        at_the_event(self, vf);
                        told[vf.index() - 1] = true;
                    }
                }
            }
        }
        assert_eq!(told, [true; 2], "{change:?}");
    }

    /// A change of the port, as the SM makes it.
    fn change(&mut self, edit: impl FnOnce(&mut Device), change: PortChange) {
        edit(&mut self.device);
        let (pf, mut hca) = self.pf();
        let event = HcaEvent::Async(AsyncEvent::Port { port: PORT, change });
        pf.handle_hca_event(NOW, &mut hca, &event);
        self.settle();
    }

    fn events(&mut self, vf: VfId) -> Vec<VfPortEvent> {
        let (guest, _) = self.guest(vf);
        std::iter::from_fn(|| guest.poll_event())
            .filter_map(|event| match event {
                VirtualHcaEvent::Port { port: PORT, event } => Some(event),
                _ => None,
            })
            .collect()
    }

    /// What a VF was told of its port.
    fn changes(&mut self, vf: VfId) -> PortChange {
        let events = self.events(vf).into_iter();
        events.fold(PortChange::empty(), |all, event| match event {
            VfPortEvent::Changed(change) => all | change,
            _ => all,
        })
    }

    /// Lets VF 1 ask the SA something.
    fn ask(&mut self) {
        let (guest, mut hca) = self.guest(VF1);
        let port = guest.port_mut(PORT).expect("the port");
        let request = SaRequest::get(&PathRecord::default(), PathRecord::DGID);
        port.end_port_mut().query(NOW, request);
        guest.poll(NOW, &mut hca);
    }

    fn open_qp(&mut self, vf: VfId, partition: Partition) -> UdQpId {
        let (guest, mut hca) = self.guest(vf);
        let port = guest.port_mut(PORT).expect("the port");
        let spec = UdQpSpec::new(partition, QKey::new(5));
        port.open_qp(&mut hca, &spec).expect("a queue pair")
    }

    fn proxy(&mut self, vf: VfId, port: PortNum) -> Qpn {
        let (_, hca) = self.pf();
        let numbers = hca.proxy_qp(vf.into(), SpecialQp::Gsi, port);
        numbers.expect("a VF").expect("a proxy QP").real
    }

    fn attribute<A: SmpAttribute + Copy>(&mut self, vf: VfId) -> A {
        let (_, mut hca) = self.guest(vf);
        let mut header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, A::ID);
        header.attribute_modifier = AttributeModifier::new(u32::from(PORT.0));
        match hca.process_local_mad(PORT, MadView::Host, &Mad::new(header)) {
            Ok(LocalMad::Reply(reply)) => *reply.view::<LidRoutedSmp>().attribute(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_vf_is_told_of_each_change_and_sees_it() {
    let mut rig = Rig::new();
    fn port(device: &mut Device) -> &mut emulated_hca::PhysicalPort {
        device.node_mut().port_mut(PORT).expect("the port")
    }
    rig.change(|device| port(device).lid = Lid::new(4), PortChange::LID);
    assert!(rig.changes(VF1).contains(PortChange::LID));
    rig.change(|device| port(device).sm_lid = Lid::new(8), PortChange::SM);
    assert!(rig.changes(VF1).contains(PortChange::SM));
    rig.change(|_| {}, PortChange::CLIENT_REREGISTER);
    assert!(rig.changes(VF1).contains(PortChange::CLIENT_REREGISTER));
    let other = Guid::new(0x99);
    rig.change(
        |device| set_guid(device, VF1.get(), other),
        PortChange::GID_TABLE,
    );
    assert!(rig.changes(VF1).contains(PortChange::GID_TABLE));
    let (guest, _) = rig.guest(VF1);
    let own = guest.port(PORT).expect("the port");
    assert_eq!(own.gid().map(|gid| gid.interface_id()), Some(other));
    assert_eq!(
        (own.view().lid, own.view().sm_lid),
        (Lid::new(4), Lid::new(8))
    );
    rig.change(
        |device| port(device).state = PortState::Down,
        PortChange::DOWN,
    );
    assert!(rig.changes(VF1).contains(PortChange::DOWN));
}

#[test]
fn c168_a_vf_that_rereads_at_the_event_sees_the_new_values() {
    fn port(device: &mut Device) -> &mut emulated_hca::PhysicalPort {
        device.node_mut().port_mut(PORT).expect("the port")
    }
    let mut rig = Rig::new();
    let lid = |device: &mut Device| port(device).lid = Lid::new(4);
    rig.change_until_told(lid, PortChange::LID, |rig, vf| {
        assert_eq!(rig.attribute::<PortInfo>(vf).lid, Lid::new(4));
    });
    let sm = |device: &mut Device| port(device).sm_lid = Lid::new(8);
    rig.change_until_told(sm, PortChange::SM, |rig, vf| {
        assert_eq!(rig.attribute::<PortInfo>(vf).master_sm_lid, Lid::new(8));
    });
    let prefix = SubnetPrefix::new(0xfec0_0000_0000_0007);
    let subnet = |device: &mut Device| port(device).subnet_prefix = prefix;
    rig.change_until_told(subnet, PortChange::GID_TABLE, |rig, vf| {
        assert_eq!(rig.attribute::<PortInfo>(vf).gid_prefix, prefix);
    });
    let reregister = PortChange::CLIENT_REREGISTER;
    let sm = |device: &mut Device| port(device).sm_lid = Lid::new(9);
    rig.change_until_told(sm, reregister, |rig, vf| {
        assert_eq!(rig.attribute::<PortInfo>(vf).master_sm_lid, Lid::new(9));
    });
}

#[test]
fn a_queue_pair_whose_partition_was_taken_away_is_told_and_the_others_are_not() {
    let mut rig = Rig::new();
    let second = PKey::new(0x8001);
    let [first, second] = [PKey::DEFAULT_FULL, second].map(|key| {
        let partition = Partition::Key(key);
        rig.open_qp(VF1, partition)
    });
    rig.change(
        |device| set_second_pkey(device, PKey::new(0x8002)),
        PortChange::PKEY_TABLE,
    );
    let events = rig.events(VF1);
    assert!(
        events.contains(&VfPortEvent::PartitionChanged(second)),
        "{events:?}"
    );
    assert!(!events.contains(&VfPortEvent::PartitionChanged(first)));
    let (guest, _) = rig.guest(VF1);
    let port = guest.port(PORT).expect("the port");
    let key = port.qp(second).map(vf_proxy::native::UdQp::pkey);
    assert_eq!(key, Some(PKey::new(0x8002)));
}

#[test]
fn c175_the_port_info_of_a_vf_is_active_exactly_while_its_port_is_up() {
    let mut rig = Rig::new();
    let active =
        |rig: &mut Rig, vf| rig.attribute::<PortInfo>(vf).port_state() == WirePortState::ACTIVE;
    assert!(active(&mut rig, VF1) && active(&mut rig, VF2));
    for up in [false, true] {
        let (pf, _) = rig.pf();
        pf.set_admin_up(VF1, PORT, up).expect("a VF");
        rig.settle();
        assert_eq!(active(&mut rig, VF1), up);
        assert!(active(&mut rig, VF2));
    }
    for (guid, up) in [(Guid::NONE, false), (alias(VF1), true)] {
        rig.change(
            |device| set_guid(device, VF1.get(), guid),
            PortChange::GID_TABLE,
        );
        assert_eq!(active(&mut rig, VF1), up);
    }
}

#[test]
fn c177_node_guids_of_vfs_differ_and_outlast_a_reset() {
    let mut rig = Rig::new();
    for vf in [VF1, VF2, VF1] {
        assert_eq!(rig.attribute::<NodeInfo>(vf).node_guid, node_guid(vf));
        let (pf, mut hca) = rig.pf();
        pf.reset_vf(NOW, &mut hca, vf).expect("a VF");
    }
}

/// Whatever number the provider names as the sender, only the proxy of the tunnel's own VF, port and
/// special QP is heard.
#[test]
fn c001_c002_c003_c004_a_tunnel_hears_its_own_proxy_only() {
    let mut rig = Rig::new();
    let own = rig.proxy(VF1, PORT);
    let ordinary = rig.open_qp(VF1, Partition::Key(PKey::DEFAULT_FULL));
    let ordinary = {
        let (guest, _) = rig.guest(VF1);
        let port = guest.port(PORT).expect("the port");
        port.qp(ordinary).expect("a queue pair").qpn()
    };
    let siblings = rig.proxy(VF2, PORT);
    let other_port = rig.proxy(VF1, SECOND_PORT);
    let reserved_bit = Qpn::from_low_bits(own.get() ^ 4);
    for foreign in [siblings, other_port, reserved_bit, ordinary] {
        assert_ne!(foreign, own);
        rig.ask();
        rig.settle_pf(|hca| hca.source = Some(foreign));
        let drops = core::mem::take(&mut rig.drops);
        assert_eq!(drops, [(Some(VF1), DropReason::ForeignSource)], "{foreign}");
    }
    rig.ask();
    rig.settle_pf(|hca| hca.source = Some(own));
    assert_eq!(rig.drops, []);
}

#[test]
fn c024_a_refused_send_to_the_wire_frees_its_buffer_once() {
    let mut config = PfConfig::new(7);
    config.depths.special = 4;
    let mut rig = Rig::with(&config, Rights::default());
    for _ in 0..20 {
        rig.ask();
    }
    rig.settle_pf(|hca| hca.refuses_sends = true);
    let refused = rig.pf.ports()[0].refused_sends();
    assert_eq!(refused, 20, "five times as many as there are buffers");
    let sent = |rig: &mut Rig| core::iter::from_fn(|| rig.device.poll_transmit(NOW, PORT)).count();
    assert_eq!(sent(&mut rig), 0);
    for _ in 0..20 {
        rig.ask();
    }
    rig.settle();
    assert_eq!(sent(&mut rig), 20, "every buffer is there, and none twice");
    assert_eq!(rig.pf.ports()[0].refused_sends(), refused);
}

fn has_smi(rig: &mut Rig, vf: VfId) -> bool {
    let (guest, hca) = rig.guest(vf);
    let permitted = hca.query_port(PORT).expect("a port").smi_permitted;
    let port = guest.port_mut(PORT).expect("the port");
    assert!(port.end_port_mut().smi().is_none() || permitted);
    port.end_port_mut().smi().is_some()
}

fn reset(rig: &mut Rig, vf: VfId) {
    let (pf, mut hca) = rig.pf();
    pf.reset_vf(NOW, &mut hca, vf).expect("a VF");
    let (guest, mut hca) = rig.guest(vf);
    guest.reopen(NOW, &mut hca).expect("it begins anew");
    rig.settle();
}

#[test]
fn c026_a_vf_has_qp0_from_the_reset_after_it_was_permitted() {
    let mut config = PfConfig::new(7);
    config.smi = true;
    let mut rig = Rig::with(&config, Rights::default());
    let before = {
        let (_, hca) = rig.pf();
        hca.resources(FunctionId::PF).expect("the PF")
    };
    assert!(!has_smi(&mut rig, VF1));
    for permitted in [true, false] {
        let (pf, hca) = rig.pf();
        let rights = Rights {
            smi: permitted,
            ..Rights::default()
        };
        pf.set_rights(VF1, PORT, rights).expect("a VF");
        let latched = hca.resources(FunctionId::PF).expect("the PF") == before;
        assert_eq!(latched, permitted, "not before the reset");
        assert_eq!(has_smi(&mut rig, VF1), !permitted);
        reset(&mut rig, VF1);
        assert_eq!(has_smi(&mut rig, VF1), permitted);
        assert!(!has_smi(&mut rig, VF2));
    }
    let (_, hca) = rig.pf();
    assert_eq!(hca.resources(FunctionId::PF), Ok(before));
}

#[test]
fn an_smp_of_a_vf_that_may_send_them_leaves_by_qp0() {
    let mut config = PfConfig::new(7);
    config.smi = true;
    let rights = Rights {
        smi: true,
        ..Rights::default()
    };
    let mut rig = Rig::with(&config, rights);
    assert!(has_smi(&mut rig, VF1));
    let (guest, mut hca) = rig.guest(VF1);
    let port = guest.port_mut(PORT).expect("the port");
    let smi = port.end_port_mut().smi().expect("QP0");
    let class = MgmtClass::SUBN_LID_ROUTED;
    let agent = smi
        .register(ib_endpoint::Registration::new(
            class,
            ib_endpoint::MethodSet::of(&[]),
        ))
        .expect("an agent");
    let get = Mad::new(MadHeader::new(class, Method::GET, NodeInfo::ID));
    let policy = ib_endpoint::RetryPolicy::new(std::time::Duration::from_secs(1), 0);
    let to = ib_endpoint::MadAddress::smi(Lid::new(9));
    smi.send_request(NOW, agent, to, ib_endpoint::Message::single(get), policy)
        .expect("a request");
    guest.poll(NOW, &mut hca);
    rig.settle();
    assert_eq!(rig.drops, []);
    let frame = rig.device.poll_transmit(NOW, PORT).expect("a packet");
    let bth = frame.bth().expect("a transport header");
    assert_eq!(bth.dest_qp, Qpn::SMI);
}
