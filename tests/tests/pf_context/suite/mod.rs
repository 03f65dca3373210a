//! A PF context and its VFs on an adapter without a fabric: tunnels, siblings, resets, and
//! what is undone when something fails.

mod asked;
mod own;
mod rings;
mod undo;

use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AsyncEvent, Consumer, FunctionId, FunctionManager, GlobalRoute, Hca, HcaError, HcaEvent,
    HostMemory, MadView, PortChange, PortState, ResourceCounts, SpecialQp,
};
use ib_endpoint::cm::CmEventKind;
use ib_endpoint::{EndPort, EndPortConfig, EndPortEvent, MadAddress, MadTransport};
use ib_vtime::{Duration, Instant};
use ib_wire::cm::{CmReq, CmSidrRep, CmSidrReq};
use ib_wire::mad::{AttributeId, AttributeModifier, Mad, MadHeader, Method, MgmtClass};
use ib_wire::perf::{PerfAttribute, PerfMad, PortCounters};
use ib_wire::smp::{GuidInfo, LidRoutedSmp, SmpAttribute};
use ib_wire::{CommId, Gid, GidIndex, Guid, Lid, PortNum, ServiceId, SubnetPrefix, Tid};
use pf_context::context::{GuidSource, PfConfig, PfError, VfPortSpec, VfSpec};
use pf_context::{PfContext, PfHost};
use vf_proxy::native::ProxyQp;
use vf_tunnel::VfId;
use vhca_tests::vf_subnet::QUOTA;

use super::{Device, Function};

const PORT: PortNum = PortNum(1);
const LID: Lid = Lid::new(3);
const NOW: Instant = Instant::ZERO;

fn vf(n: u16) -> VfId {
    VfId::new(n).expect("a number of a VF")
}

fn alias(n: u16) -> Guid {
    Guid::new(0x0014_0500_0000_0000 + u64::from(n))
}

fn spec(n: u16) -> VfSpec {
    VfSpec {
        node_guid: Guid::new(0x2000 + u64::from(n)),
        memory: Box::new(HostMemory::new()),
        quota: QUOTA,
        ports: vec![VfPortSpec {
            guid: GuidSource::Hardware,
            ..VfPortSpec::default()
        }],
    }
}

struct Rig {
    device: Device,
    host: PfHost,
}

/// A guest's software, as the consumer of its VF.
#[derive(Debug)]
struct Guest(EndPort<ProxyQp>);

impl Consumer for Guest {
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        let taken = self.0.handle_hca_event(now, hca, event);
        taken.expect("the port can be read");
    }

    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        self.0.poll(now, hca)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }
}

/// The software of the guest with an index.
fn guest(host: &mut PfHost, index: usize) -> &mut EndPort<ProxyQp> {
    let vf = vf(u16::try_from(index + 1).expect("a VF number"));
    let guest = host.consumer_mut(vf).expect("a guest").downcast_mut();
    let Guest(port) = guest.expect("a guest's software");
    port
}

impl Rig {
    /// Creates an active port with the GUIDs of `vfs` VFs in hardware, and those VFs.
    fn new(vfs: u16) -> Self {
        Self::with(vfs, &PfConfig::new(7))
    }

    fn with(vfs: u16, config_of_pf: &PfConfig) -> Self {
        Self::on_ports(1, vfs, config_of_pf)
    }

    fn on_ports(ports: u8, vfs: u16, config_of_pf: &PfConfig) -> Self {
        let mut config = HcaConfig::new(Guid::new(0x1000), "host");
        config.max_functions = 64;
        config.ports = ports;
        let mut device = Device::new(&config, 1);
        let port = device.node_mut().port_mut(PORT).expect("the port");
        port.state = PortState::Active;
        port.lid = LID;
        port.sm_lid = Lid::new(9);
        for n in 1..=vfs {
            set_guid(&mut device, n, alias(n));
        }
        let mut host = PfHost::open(NOW, &mut device, config_of_pf).expect("a context");
        for n in 1..=vfs {
            let added = host.add_vf(NOW, &mut device, vf(n), spec(n));
            added.expect("a VF");
        }
        let mut this = Self { device, host };
        this.settle();
        for n in 1..=vfs {
            let guest = this.open_guest(n);
            this.place(n, guest);
        }
        this.settle();
        this
    }

    /// Starts a guest's software on a VF, in place of what ran there.
    fn place(&mut self, n: u16, guest: EndPort<ProxyQp>) {
        self.host.take(vf(n));
        let placed = self.host.place(vf(n), Box::new(Guest(guest)));
        placed.expect("a VF");
    }

    fn open_guest(&mut self, n: u16) -> EndPort<ProxyQp> {
        let mut hca = self.device.function(FunctionId(n)).expect("a VF");
        let proxy = ProxyQp::open(&mut hca, SpecialQp::Gsi, PORT, 64).expect("a proxy QP");
        let config = EndPortConfig::host(PORT, u64::from(n));
        EndPort::open_on(NOW, &mut hca, config, proxy, None).expect("a port")
    }

    /// Polls the context and all guests until they are idle.
    fn settle(&mut self) {
        let polled = self.host.poll(NOW, &mut self.device, &mut || false);
        assert_eq!(polled, Ok(false));
    }

    /// Polls the context at `now` until it is idle. Returns its next deadline.
    fn settle_at(&mut self, now: Instant) -> Instant {
        let (pf, mut hca) = self.pf();
        while let Some(event) = hca.poll_event() {
            pf.handle_hca_event(now, &mut hca, &event);
        }
        while pf.poll(now, &mut hca) {}
        pf.poll_timeout().map_or(now, |due| due.max(now))
    }

    fn pf(&mut self) -> (&mut PfContext, Function<'_>) {
        let hca = self.device.function(FunctionId::PF).expect("the PF");
        (self.host.context_mut(), hca)
    }
}

fn set_guid(device: &mut Device, n: u16, guid: Guid) {
    let mut hca = device.function(FunctionId::PF).expect("the PF");
    let mut header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, GuidInfo::ID);
    header.attribute_modifier = AttributeModifier::new(u32::from(n / 8));
    let table = hca.process_local_mad(PORT, MadView::Host, &Mad::new(header));
    let hca_api::LocalMad::Reply(mut mad) = table.expect("an answer") else {
        panic!("the SMA answers");
    };
    mad.header.method = Method::SET;
    let smp: &mut LidRoutedSmp = mad.view_mut();
    smp.attribute_mut::<GuidInfo>().guids[usize::from(n % 8)] = guid;
    let set = hca.process_local_mad(PORT, MadView::Host, &mad);
    assert!(matches!(set, Ok(hca_api::LocalMad::Reply(_))));
}

fn to_sibling(n: u16) -> MadAddress {
    MadAddress {
        grh: Some(GlobalRoute {
            remote_gid: Gid::from_parts(SubnetPrefix::DEFAULT, alias(n)),
            sgid_index: GidIndex(0),
            flow_label: 0,
            hop_limit: 1,
            traffic_class: 0,
        }),
        ..MadAddress::gsi(LID)
    }
}

fn sidr_between_siblings(rig: &mut Rig) {
    let request = CmSidrReq {
        pkey: ib_wire::PKey::DEFAULT_FULL,
        service_id: ServiceId::new(7),
        ..CmSidrReq::default()
    };
    let listening = guest(&mut rig.host, 1)
        .cm()
        .listen(ServiceId::new(7), u64::MAX);
    listening.expect("a free service id");
    let asked = guest(&mut rig.host, 0).cm().send_sidr_req(
        NOW,
        &to_sibling(2),
        &request,
        Duration::from_secs(1),
        3,
    );
    asked.expect("a request");
    rig.settle();
    let heard = cm_event(guest(&mut rig.host, 1));
    assert!(matches!(heard.kind, CmEventKind::SidrReqReceived { .. }));
    let answer = CmSidrRep::default();
    let answered = guest(&mut rig.host, 1)
        .cm()
        .send_sidr_rep(NOW, heard.conn, &answer);
    answered.expect("an answer");
    rig.settle();
    let heard = cm_event(guest(&mut rig.host, 0));
    assert!(matches!(heard.kind, CmEventKind::SidrRepReceived { .. }));
}

fn cm_event(port: &mut EndPort<ProxyQp>) -> ib_endpoint::cm::CmEvent {
    std::iter::from_fn(|| port.poll_event())
        .find_map(|event| match event {
            EndPortEvent::Cm(event) => Some(event),
            _ => None,
        })
        .expect("a CM event")
}

#[test]
fn siblings_speak_through_their_tunnels_and_the_port() {
    let mut rig = Rig::new(2);
    sidr_between_siblings(&mut rig);
    let (resources, quota) = {
        let (pf, hca) = rig.pf();
        pf.resources(&hca, vf(1)).expect("a VF")
    };
    assert_eq!(resources.qps, 1, "the proxy QP");
    assert_eq!(quota.qps, 16);
}

#[test]
fn a_vf_sees_an_active_port_once_its_guid_is_in_hardware() {
    let mut rig = Rig::new(1);
    let state = |rig: &mut Rig| {
        let hca = rig.device.function(FunctionId(1)).expect("a VF");
        hca.query_port(PORT).expect("a port").state
    };
    assert_eq!(state(&mut rig), PortState::Active);
    set_guid(&mut rig.device, 1, Guid::NONE);
    rig.device.ports_changed(NOW);
    rig.settle();
    assert_eq!(state(&mut rig), PortState::Down);
    let told = std::iter::from_fn(|| guest(&mut rig.host, 0).poll_event()).any(|event| {
        matches!(event, EndPortEvent::Port(change)
            if change.contains(PortChange::DOWN | PortChange::GID_TABLE))
    });
    assert!(told);
}

#[test]
fn a_reset_destroys_what_the_vf_had_and_it_begins_anew() {
    let mut rig = Rig::new(2);
    sidr_between_siblings(&mut rig);
    let (pf, mut hca) = rig.pf();
    pf.reset_vf(NOW, &mut hca, vf(1)).expect("a VF");
    let owned = pf.resources(&hca, vf(1)).expect("a VF").0;
    assert_eq!(owned, ResourceCounts::default());
    assert_eq!(pf.ports()[0].mux().sizes().tids, 0);
    rig.settle();
    let dead = std::iter::from_fn(|| guest(&mut rig.host, 0).poll_event())
        .any(|e| e == EndPortEvent::Dead);
    assert!(dead, "the guest is told");
    let booted = rig.open_guest(1);
    rig.place(1, booted);
    let again = guest(&mut rig.host, 1).cm();
    assert!(again.listen(ServiceId::new(7), u64::MAX).is_err());
}

#[test]
fn c170_ten_thousand_events_merge_and_none_is_lost() {
    let mut rig = Rig::new(32);
    for round in 0..320 {
        rig.device
            .node_mut()
            .port_mut(PORT)
            .expect("the port")
            .sm_lid = Lid::new(10 + round % 7);
        let event = HcaEvent::Async(AsyncEvent::Port {
            port: PORT,
            change: PortChange::SM | PortChange::CLIENT_REREGISTER,
        });
        let (pf, mut hca) = rig.pf();
        pf.handle_hca_event(NOW, &mut hca, &event);
    }
    let (pf, mut hca) = rig.pf();
    while pf.poll(NOW, &mut hca) {}
    for n in 1..=32 {
        let mut hca = rig.device.function(FunctionId(n)).expect("a VF");
        let told: Vec<HcaEvent> = std::iter::from_fn(|| hca.poll_event()).collect();
        let change = PortChange::SM | PortChange::CLIENT_REREGISTER;
        assert_eq!(
            told,
            [HcaEvent::Async(AsyncEvent::Port { port: PORT, change })]
        );
    }
}

#[test]
fn c232_a_context_that_cannot_be_made_leaves_nothing_behind() {
    let mut rig = Rig::new(1);
    let before = {
        let (_, hca) = rig.pf();
        hca.resources(FunctionId::PF).expect("the PF")
    };
    let (pf, mut hca) = rig.pf();
    // QP1 is taken.
    let second = PfContext::open(NOW, &mut hca, &PfConfig::new(8));
    assert_eq!(second.err(), Some(PfError::Hca(HcaError::SpecialQpTaken)));
    assert_eq!(hca.resources(FunctionId::PF), Ok(before));
    // A VF of which the tunnel cannot be made.
    let mut wrong = spec(2);
    wrong.ports = vec![VfPortSpec {
        pkeys: vec![None; 4096],
        ..Default::default()
    }];
    let refused = pf.add_vf(NOW, &mut hca, vf(2), wrong);
    assert_eq!(refused, Err(PfError::Hca(HcaError::InvalidIndex)));
    assert_eq!(hca.resources(FunctionId::PF), Ok(before));
    pf.add_vf(NOW, &mut hca, vf(2), spec(2))
        .expect("free again");
    pf.remove_vf(NOW, &mut hca, vf(2)).expect("a VF");
    assert_eq!(hca.resources(FunctionId::PF), Ok(before));
}

#[test]
fn c023_a_full_send_ring_of_qp1_loses_nothing_of_what_vfs_send() {
    let mut config = PfConfig::new(7);
    config.depths.special = 8;
    let mut rig = Rig::with(2, &config);
    while rig.device.poll_transmit(NOW, PORT).is_some() {}
    let query = Mad::new(MadHeader::new(
        MgmtClass::SUBN_ADM,
        Method::GET,
        AttributeId::NODE_RECORD,
    ));
    const EACH: u64 = 60;
    for n in 1..=2 {
        let guest = guest(&mut rig.host, usize::from(n - 1));
        let mut hca = rig.device.function(FunctionId(n)).expect("a VF");
        for tid in 1..=EACH {
            let mut mad = query;
            mad.header.tid = Tid::new(tid);
            let to = MadAddress::gsi(Lid::new(9));
            let sent = guest.gsi_transport().send(&mut hca, &to, &mad);
            sent.expect("a proxy QP with room");
        }
    }
    let mut sent = 0;
    for _ in 0..100 {
        rig.settle();
        sent += std::iter::from_fn(|| rig.device.poll_transmit(NOW, PORT)).count();
    }
    assert_eq!(sent, 120);
    let port = &rig.host.context().ports()[0];
    assert_eq!(port.mux().sizes().queued, 0);
    assert!(port.is_at_rest());
}

#[test]
fn what_a_reset_says_to_peers_beyond_what_may_wait_for_qp1_is_dropped_and_counted() {
    let mut config = PfConfig::new(7);
    config.depths.special = 2;
    let mut rig = Rig::with(1, &config);
    while rig.device.poll_transmit(NOW, PORT).is_some() {}
    let mut asked = 0;
    for id in 1..=100 {
        let mut mad = Mad::new(ib_wire::cm::header(AttributeId::CM_REQ));
        let req: &mut CmReq = mad.view_mut();
        req.local_comm_id = CommId::new(id);
        req.local_ca_guid = Guid::new(0x2001);
        req.pkey = ib_wire::PKey::DEFAULT_FULL;
        req.primary.local_gid = Gid::from_parts(SubnetPrefix::DEFAULT, alias(1));
        req.primary.remote_gid = Gid([7; 16]);
        let mut hca = rig.device.function(FunctionId(1)).expect("a VF");
        let to = MadAddress::gsi(Lid::new(20));
        let sent = guest(&mut rig.host, 0)
            .gsi_transport()
            .send(&mut hca, &to, &mad);
        sent.expect("a proxy QP with room");
        if id % 20 == 0 {
            rig.settle();
            asked += std::iter::from_fn(|| rig.device.poll_transmit(NOW, PORT)).count();
        }
    }
    assert_eq!(asked, 100);
    let (pf, mut hca) = rig.pf();
    while pf.poll_event().is_some() {}
    pf.reset_vf(NOW, &mut hca, vf(1)).expect("a VF");
    let mut said = 0;
    for _ in 0..10 {
        let (pf, mut hca) = rig.pf();
        while let Some(event) = hca.poll_event() {
            pf.handle_hca_event(NOW, &mut hca, &event);
        }
        while pf.poll(NOW, &mut hca) {}
        said += std::iter::from_fn(|| rig.device.poll_transmit(NOW, PORT)).count();
    }
    let statistics = rig.host.context().ports()[0]
        .mux()
        .vf_statistics(vf(1))
        .expect("a VF");
    let dropped = statistics.drops(vf_tunnel::DropReason::Backpressure);
    // Two sends are under way, and 64 wait.
    assert_eq!((said, dropped), (66, 34));
}

#[test]
fn the_pfs_own_software_reads_the_counters_of_its_port_by_the_ports_own_lid() {
    let mut rig = Rig::new(1);
    let (pf, _) = rig.pf();
    let gsi = pf.port_mut(PORT).expect("the port").own_mut().gsi();
    let none = ib_endpoint::MethodSet::of(&[]);
    let registration = ib_endpoint::Registration::new(MgmtClass::PERF, none);
    let agent = gsi.register(registration).expect("the first of its class");
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::PERF,
        Method::GET,
        <PortCounters as PerfAttribute>::ID,
    ));
    mad.view_mut::<PerfMad>()
        .attribute_mut::<PortCounters>()
        .port_select = PORT;
    let message = ib_endpoint::Message::single(mad);
    let retry = ib_endpoint::RetryPolicy::new(Duration::from_secs(1), 0);
    gsi.send_request(NOW, agent, MadAddress::gsi(LID), message, retry)
        .expect("a free transaction");
    rig.settle();
    let own = rig.host.context().ports()[0].mux().vf_statistics(VfId::PF);
    let perf = own.expect("the PF").total();
    // The adapter, not the PF's own QP1, is asked, and its answer comes back.
    assert_eq!((perf.to_wire, perf.loopback, perf.delivered), (1, 0, 1));
}
