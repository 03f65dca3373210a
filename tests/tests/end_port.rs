//! A host and a manager on two emulated adapters with a cable between them: the end ports carry
//! directed-route SMPs, SA queries over RMPP, wishes, and CM messages.

use std::collections::VecDeque;

use emulated_hca::hca::Device;
use emulated_hca::{
    EndNode, Fabric, Fault, FaultPlan, HcaConfig, LinkConfig, NodeId, PacketFilter, When,
};
use hca_api::{
    AddressVector, AsyncEvent, FunctionId, FunctionManager, FunctionSpec, Hca, HcaError, HcaEvent,
    HostMemory, PortChange, PortState, QpKind, ResourceCounts, SpecialQp, UdAddress, UdDestination,
    VirtualPort,
};
use ib_endpoint::cm::CmEventKind;
use ib_endpoint::sa_client::Wish;
use ib_endpoint::{
    AgentEvent, AgentId, DatagramQp, DatagramQpSpec, EndPort, EndPortConfig, EndPortError,
    EndPortEvent, MadAddress, MadAgent, MadTransport, Message, MethodSet, Registration,
    RetryPolicy, SaEvent, SaRequest,
};
use ib_vtime::{Duration, Instant};
use ib_wire::cm::{CmSidrRep, CmSidrReq};
use ib_wire::mad::{AttributeModifier, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::sa::{
    ComponentMask, JoinState, LinkRecord, McMemberRecord, PathRecord, SaMad, SaRecord,
};
use ib_wire::smp::{DirectedRouteSmp, NodeInfo, PortInfo, SmpAttribute};
use ib_wire::{Gid, Guid, Lid, MKey, PKeyIndex, PortNum, QKey, ServiceId};
use zerocopy::IntoBytes;

const PORT: PortNum = PortNum(1);
const PF: FunctionId = FunctionId::PF;
const VF: FunctionId = FunctionId(1);
const MANAGER_LID: Lid = Lid::new(1);
const HOST_LID: Lid = Lid::new(2);
/// Enough for a MAD and its answer on an idle link.
const SHORT: Duration = Duration::from_millis(10);
/// LinkRecords in the manager's table: far more than 64 segments.
const LINKS: u16 = 2_000;

/// A node and what runs on its port.
struct Station {
    node: NodeId,
    end_port: EndPort,
    events: VecDeque<EndPortEvent>,
    wake: bool,
}

struct World {
    now: Instant,
    fabric: Fabric<Device>,
    manager: Station,
    host: Station,
    smp_agent: AgentId,
    sa_agent: AgentId,
    /// Requests that the manager's SA got.
    asked: Vec<Mad>,
}

fn station(fabric: &mut Fabric<Device>, node: NodeId, config: EndPortConfig) -> Station {
    let device = fabric.device_mut(node).expect("an adapter");
    let mut hca = device.function(PF).expect("the PF");
    Station {
        node,
        end_port: EndPort::open(Instant::ZERO, &mut hca, config).expect("a port to open"),
        events: VecDeque::new(),
        wake: true,
    }
}

impl World {
    fn new() -> Self {
        let mut fabric = Fabric::new(7);
        let mut add = |guid: u64, name: &str| {
            let config = HcaConfig::new(Guid::new(guid), name);
            fabric.add_end_node(Device::new(&config, guid))
        };
        let first = add(0x0002_c903_0000_1000, "manager");
        let second = add(0x0002_c903_0000_2000, "host");
        fabric
            .connect(first.port(1), second.port(1), LinkConfig::default())
            .expect("free ports");
        let mut manager = station(&mut fabric, first, EndPortConfig::manager(PORT, 1));
        let host = station(&mut fabric, second, EndPortConfig::host(PORT, 2));
        let smp = Registration::new(MgmtClass::SUBN_DIRECTED_ROUTE, MethodSet::NONE);
        let smi = manager.end_port.smi().expect("a manager has QP0");
        let smp_agent = smi.register(smp).expect("first of its class");
        let methods = MethodSet::of(&[Method::GET, Method::SET, Method::DELETE, Method::GET_TABLE]);
        let sa = Registration::new(MgmtClass::SUBN_ADM, methods);
        let sa_agent = manager
            .end_port
            .gsi()
            .register(sa)
            .expect("other methods than the client's");
        let mut world = Self {
            now: Instant::ZERO,
            fabric,
            manager,
            host,
            smp_agent,
            sa_agent,
            asked: Vec::new(),
        };
        world.run(Duration::from_secs(1));
        world
    }

    /// Lets everybody work until nothing is to be done now.
    fn settle(&mut self) {
        loop {
            let before = self.progress();
            let mut busy = self.fabric.poll(self.now);
            for station in [&mut self.manager, &mut self.host] {
                let device = self.fabric.device_mut(station.node).expect("an adapter");
                let mut hca = device.function(PF).expect("the PF");
                while let Some(event) = hca.poll_event() {
                    station.wake |= matches!(event, HcaEvent::Completion(_));
                    station
                        .end_port
                        .handle_hca_event(self.now, &mut hca, &event)
                        .expect("a readable port");
                }
                let due = station.end_port.poll_timeout();
                station.wake |= due.is_some_and(|at| at <= self.now);
                // Only a completion or a timer wakes a station: what else came must have armed one.
                if station.wake {
                    station.wake = station.end_port.poll(self.now, &mut hca);
                    busy = true;
                }
                while let Some(event) = station.end_port.poll_event() {
                    station.events.push_back(event);
                    busy = true;
                }
            }
            self.serve();
            busy |= self.fabric.poll(self.now);
            let idle = self.next().is_none_or(|at| at > self.now);
            if !busy && idle && self.progress() == before {
                return;
            }
        }
    }

    /// MADs that passed between agents and queue pairs so far.
    fn progress(&mut self) -> u64 {
        let passed = |mads: &MadAgent| mads.counters().sent + mads.counters().received;
        let smi = self.manager.end_port.smi().map_or(0, |mads| passed(mads));
        smi + passed(self.manager.end_port.gsi()) + passed(self.host.end_port.gsi())
    }

    /// When somebody has something to do.
    fn next(&self) -> Option<Instant> {
        let next = [
            self.fabric.poll_timeout(),
            self.manager.end_port.poll_timeout(),
            self.host.end_port.poll_timeout(),
        ];
        next.into_iter().flatten().min()
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            match self.next() {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = end;
        self.settle();
    }

    /// The manager's SA: echoes records, and has a long table of links.
    fn serve(&mut self) {
        let mut left = VecDeque::new();
        while let Some(event) = self.manager.events.pop_front() {
            let EndPortEvent::Gsi(AgentEvent::Request { from, message, .. }) = event else {
                left.push_back(event);
                continue;
            };
            self.asked.push(*message.mad());
            let mut head = *message.mad();
            head.header.method = head.header.method.response();
            let answer = if message.header().method == Method::GET_TABLE {
                head.view_mut::<SaMad>().attribute_offset = LinkRecord::ATTRIBUTE_OFFSET.into();
                let records = (0..LINKS).flat_map(|n| {
                    let record = LinkRecord {
                        from_lid: Lid::new(n),
                        ..LinkRecord::default()
                    };
                    record.as_bytes().to_vec()
                });
                Message::rmpp(head, records.collect()).expect("the SA has RMPP")
            } else {
                Message::single(head)
            };
            self.manager
                .end_port
                .gsi()
                .respond(self.now, self.sa_agent, from, answer)
                .expect("there is room");
        }
        self.manager.events = left;
    }

    /// Sends an SMP over a directed route and gives the answer.
    fn smp<A: SmpAttribute + Copy>(
        &mut self,
        method: Method,
        path: &[u8],
        attribute: Option<&A>,
    ) -> A {
        let header = MadHeader {
            attribute_modifier: AttributeModifier::new(u32::from(A::ID == PortInfo::ID)),
            ..MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, method, A::ID)
        };
        let mut mad = Mad::new(header);
        let smp = mad.view_mut::<DirectedRouteSmp>();
        assert!(smp.set_path(path));
        if let Some(attribute) = attribute {
            *smp.attribute_mut() = *attribute;
        }
        let policy = RetryPolicy::new(Duration::from_millis(200), 3);
        let now = self.now;
        let agent = self.smp_agent;
        let smi = self.manager.end_port.smi().expect("a manager has QP0");
        let to = MadAddress::directed();
        smi.send_request(now, agent, to, Message::single(mad), policy)
            .expect("there is room");
        self.run(SHORT);
        let events = &mut self.manager.events;
        let of_qp0 = |event: &EndPortEvent| matches!(event, EndPortEvent::Smi(_));
        match events
            .iter()
            .position(of_qp0)
            .and_then(|n| events.remove(n))
        {
            Some(EndPortEvent::Smi(AgentEvent::Response { message, .. })) => {
                let smp = message.mad().view::<DirectedRouteSmp>();
                assert_eq!(smp.status(), MadStatus::OK);
                *smp.attribute::<A>()
            }
            other => panic!("no answer: {other:?}"),
        }
    }

    /// Gives both ports LIDs and makes them active.
    fn bring_up(&mut self) {
        for state in [
            ib_wire::smp::PortState::NO_CHANGE,
            ib_wire::smp::PortState::ARMED,
            ib_wire::smp::PortState::ACTIVE,
        ] {
            for (path, lid) in [(&[][..], MANAGER_LID), (&[1][..], HOST_LID)] {
                self.set_port(path, lid, |info| info.set_port_state(state));
            }
        }
        self.settle();
    }

    fn set_port(&mut self, path: &[u8], lid: Lid, change: impl FnOnce(&mut PortInfo)) {
        let mut info: PortInfo = self.smp(Method::GET, path, None);
        info.lid = lid;
        info.master_sm_lid = MANAGER_LID;
        info.set_port_state(ib_wire::smp::PortState::NO_CHANGE);
        info.set_phys_state(ib_wire::smp::PortPhysState::NO_CHANGE);
        info.set_neighbor_mtu(info.mtu_cap());
        change(&mut info);
        self.smp(Method::SET, path, Some(&info));
    }

    fn active() -> Self {
        let mut world = Self::new();
        world.bring_up();
        world.host.events.clear();
        world
    }

    /// The host's only SA event so far.
    fn sa_event(&mut self) -> SaEvent {
        match self.host.events.pop_front() {
            Some(EndPortEvent::Sa(event)) => event,
            other => panic!("no SA event: {other:?}"),
        }
    }

    fn close(mut self) {
        for station in [self.manager, self.host] {
            let device = self.fabric.device_mut(station.node).expect("an adapter");
            let mut hca = device.function(PF).expect("the PF");
            station.end_port.close(&mut hca);
            assert_eq!(hca.resources(PF), Ok(ResourceCounts::default()));
        }
    }
}

fn wish() -> Wish {
    let mut record = McMemberRecord {
        mgid: Gid([0xff; 16]),
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    Wish::Membership {
        record,
        mask: ComponentMask::NONE,
    }
}

#[test]
fn directed_routes_reach_the_own_port_and_the_neighbour() {
    let mut world = World::new();
    let own: NodeInfo = world.smp(Method::GET, &[], None);
    let other: NodeInfo = world.smp(Method::GET, &[1], None);
    assert_eq!(own.node_guid, Guid::new(0x0002_c903_0000_1000));
    assert_eq!(other.node_guid, Guid::new(0x0002_c903_0000_2000));
    world.close();
}

/// Linux' `handle_outgoing_dr_smp` hands such SMPs to the agent like those of the subnet, without `IB_MAD_IGNORE_MKEY`.
#[test]
fn an_m_key_guards_a_port_against_its_own_programs() {
    const KEY: u64 = 0x1234;
    let mut world = World::new();
    let device = world.fabric.device_mut(world.manager.node);
    let port = device.and_then(|device| device.node_mut().port_mut(PORT));
    let port = port.expect("the manager's");
    (port.m_key, port.m_key_protect) = (MKey::new(KEY), 2);
    for (key, is_answered) in [(0, false), (1, false), (KEY, true)] {
        let class = MgmtClass::SUBN_DIRECTED_ROUTE;
        let mut mad = Mad::new(MadHeader::new(class, Method::GET, PortInfo::ID));
        let smp = mad.view_mut::<DirectedRouteSmp>();
        assert!(smp.set_path(&[]));
        smp.mkey = MKey::new(key);
        let policy = RetryPolicy::new(SHORT, 1);
        let (now, agent) = (world.now, world.smp_agent);
        let smi = world.manager.end_port.smi().expect("a manager has QP0");
        let to = MadAddress::directed();
        smi.send_request(now, agent, to, Message::single(mad), policy)
            .expect("there is room");
        world.run(SHORT * 3);
        let events: Vec<_> = world.manager.events.drain(..).collect();
        let answered =
            |event: &EndPortEvent| matches!(event, EndPortEvent::Smi(AgentEvent::Response { .. }));
        assert_eq!(events.iter().any(answered), is_answered, "key {key}");
    }
    // The driver's own reading of the port needs none.
    assert!(!world.manager.end_port.view().guids.is_empty());
    world.close();
}

#[test]
fn a_port_that_comes_up_is_told_of_and_has_an_sa() {
    let mut world = World::new();
    assert_eq!(world.host.end_port.sa().sa(), None);
    world.bring_up();
    let view = world.host.end_port.view();
    assert_eq!((view.lid, view.sm_lid), (HOST_LID, MANAGER_LID));
    assert_eq!(
        world.host.end_port.sa().sa().map(|sa| sa.lid),
        Some(MANAGER_LID)
    );
    let mut change = PortChange::empty();
    for event in world.host.events.drain(..) {
        match event {
            EndPortEvent::Port(part) => change |= part,
            other => panic!("{other:?}"),
        }
    }
    assert!(change.contains(PortChange::LID | PortChange::SM | PortChange::ACTIVE));
    world.close();
}

#[test]
fn a_path_and_a_table_of_many_segments_come_from_the_sa() {
    let mut world = World::active();
    let now = world.now;
    let request = SaRequest::path_by_lids(HOST_LID, MANAGER_LID, None);
    world.host.end_port.query(now, request);
    world.run(SHORT);
    let SaEvent::Answered {
        result: Ok(answer), ..
    } = world.sa_event()
    else {
        panic!("no path");
    };
    assert_eq!(answer.record::<PathRecord>().unwrap().slid, HOST_LID);

    let table = SaRequest::get_table(&LinkRecord::default(), ComponentMask::NONE);
    world.host.end_port.query(now, table);
    world.run(Duration::from_secs(1));
    let SaEvent::Answered {
        result: Ok(answer), ..
    } = world.sa_event()
    else {
        panic!("no table");
    };
    let lids: Vec<u16> = answer
        .records::<LinkRecord>()
        .map(|record| record.from_lid.get())
        .collect();
    assert_eq!(lids, (0..LINKS).collect::<Vec<u16>>());
    world.run(Duration::from_secs(20));
    assert!(world.host.end_port.gsi().sizes().is_empty());
    assert!(world.manager.end_port.gsi().sizes().is_empty());
    world.close();
}

#[test]
fn a_table_survives_a_link_that_loses_packets() {
    let mut world = World::active();
    for (end, seed) in [(world.manager.node, 5), (world.host.node, 6)] {
        let filter = PacketFilter::default();
        let plan = FaultPlan::new(seed).rule(filter, When::PerMillion(50_000), Fault::Drop);
        world.fabric.set_faults(end.port(1), Some(&plan));
    }
    let now = world.now;
    let table = SaRequest::get_table(&LinkRecord::default(), ComponentMask::NONE);
    world.host.end_port.query(now, table);
    world.run(Duration::from_secs(120));
    let SaEvent::Answered {
        result: Ok(answer), ..
    } = world.sa_event()
    else {
        panic!("no table");
    };
    assert_eq!(answer.records::<LinkRecord>().count(), usize::from(LINKS));
    assert!(world.manager.end_port.gsi().counters().retransmissions > 0);
    assert!(world.manager.end_port.gsi().sizes().is_empty());
    world.close();
}

#[test]
fn a_wish_is_asked_for_again_when_the_manager_wants_registration() {
    let mut world = World::active();
    let now = world.now;
    world.host.end_port.wish(now, wish());
    world.run(SHORT);
    assert!(matches!(world.sa_event(), SaEvent::Granted { .. }));
    assert_eq!(world.asked.len(), 1);
    world.set_port(&[1], HOST_LID, |info| info.set_client_reregister(true));
    assert_eq!(world.asked.len(), 2);
    let events: Vec<EndPortEvent> = world.host.events.drain(..).collect();
    assert!(events.iter().any(|event| matches!(
        event,
        EndPortEvent::Port(change) if change.contains(PortChange::CLIENT_REREGISTER)
    )));
    assert!(
        events
            .iter()
            .any(|event| matches!(event, EndPortEvent::Sa(SaEvent::Granted { .. })))
    );
    world.close();
}

#[test]
fn cm_messages_travel_between_the_ports() {
    let mut world = World::active();
    let now = world.now;
    let service = ServiceId::new(0x1000);
    world
        .manager
        .end_port
        .cm()
        .listen(service, u64::MAX)
        .unwrap();
    let request = CmSidrReq {
        service_id: service,
        ..CmSidrReq::default()
    };
    let to = MadAddress::gsi(MANAGER_LID);
    world
        .host
        .end_port
        .cm()
        .send_sidr_req(now, &to, &request, Duration::from_secs(1), 3)
        .unwrap();
    world.run(SHORT);
    let Some(EndPortEvent::Cm(heard)) = world.manager.events.pop_back() else {
        panic!("nothing heard");
    };
    assert!(matches!(heard.kind, CmEventKind::SidrReqReceived { .. }));
    let reply = CmSidrRep::default();
    let cm = world.manager.end_port.cm();
    cm.send_sidr_rep(now, heard.conn, &reply).unwrap();
    world.run(SHORT);
    assert!(matches!(
        world.host.events.pop_back(),
        Some(EndPortEvent::Cm(event)) if matches!(event.kind, CmEventKind::SidrRepReceived { .. })
    ));
    world.close();
}

#[test]
fn more_mads_than_send_buffers_all_get_out() {
    let mut world = World::active();
    let now = world.now;
    let queries = 3_000;
    for _ in 0..queries {
        let request = SaRequest::path_by_lids(HOST_LID, MANAGER_LID, None);
        world.host.end_port.query(now, request);
    }
    world.run(Duration::from_secs(10));
    let answered = |event: &EndPortEvent| {
        matches!(
            event,
            EndPortEvent::Sa(SaEvent::Answered { result: Ok(_), .. })
        )
    };
    assert_eq!(
        world.host.events.iter().filter(|e| answered(e)).count(),
        queries
    );
    world.close();
}

/// A VF's way to QP1 as far as these tests go: the proxy QP itself, without what a tunnel adds.
#[derive(Debug)]
struct BareProxy(DatagramQp);

impl BareProxy {
    fn open(hca: &mut dyn Hca) -> Self {
        let spec = DatagramQpSpec {
            kind: QpKind::Proxy {
                special: SpecialQp::Gsi,
                port: PORT,
            },
            port: PORT,
            pkey_index: PKeyIndex(0),
            qkey: QKey::default(),
            receives: 4,
            sends: 4,
            max_message: 256,
            block_multicast_loopback: false,
        };
        Self(DatagramQp::open(hca, spec).expect("a proxy"))
    }
}

impl MadTransport for BareProxy {
    fn port(&self) -> PortNum {
        PORT
    }

    fn can_send(&self) -> bool {
        self.0.can_send()
    }

    fn send(&mut self, hca: &mut dyn Hca, to: &MadAddress, mad: &Mad) -> Result<(), HcaError> {
        let destination = UdDestination {
            address: UdAddress::Vector(AddressVector {
                port: PORT,
                dlid: to.lid,
                sl: to.sl,
                path_bits: 0,
                static_rate: None,
                grh: None,
            }),
            qpn: to.qpn,
            qkey: to.qkey,
            pkey_index: None,
        };
        self.0.send(hca, Some(&destination), mad.as_bytes())
    }

    fn poll(&mut self, hca: &mut dyn Hca) -> Option<(MadAddress, Mad)> {
        let datagram = self.0.poll(hca)?;
        let from = MadAddress::gsi(datagram.source.slid);
        Some((from, Mad::from_bytes(&datagram.bytes)?))
    }

    fn arm(&self, hca: &mut dyn Hca) -> bool {
        self.0.arm(hca)
    }

    fn close(self: Box<Self>, hca: &mut dyn Hca) {
        self.0.close(hca);
    }
}

#[test]
fn a_port_that_cannot_be_opened_leaves_nothing() {
    let mut device = Device::new(&HcaConfig::new(Guid::new(0x1000), "ca"), 1);
    let mut hca = device.function(PF).unwrap();
    let first = EndPort::open(Instant::ZERO, &mut hca, EndPortConfig::manager(PORT, 1)).unwrap();
    let taken = EndPort::open(Instant::ZERO, &mut hca, EndPortConfig::host(PORT, 2));
    assert_eq!(
        taken.err(),
        Some(EndPortError::Hca(HcaError::SpecialQpTaken))
    );
    let no_port = EndPortConfig::host(PortNum(9), 2);
    assert!(EndPort::open(Instant::ZERO, &mut hca, no_port).is_err());
    first.close(&mut hca);
    assert_eq!(hca.resources(PF), Ok(ResourceCounts::default()));
}

#[test]
fn an_end_port_runs_on_a_transport_of_the_callers_and_a_reset_leaves_it_dead() {
    let config = HcaConfig::new(Guid::new(0x1000), "sriov");
    let mut device = Device::new(&config, 1);
    let mut pf = device.function(PF).unwrap();
    pf.create_function(FunctionSpec {
        id: VF,
        node_guid: Guid::new(0x2000),
        memory: Box::new(HostMemory::new()),
        quota: ResourceCounts {
            pds: 4,
            cqs: 4,
            qps: 4,
            mrs: 4,
            ..ResourceCounts::default()
        },
    })
    .unwrap();
    let view = VirtualPort {
        state: PortState::Active,
        pkeys: vec![Some(PKeyIndex(0))],
        smi_enabled: false,
    };
    pf.set_virtual_port(VF, PORT, view).unwrap();
    let open = |device: &mut Device| {
        let mut vf = device.function(VF).unwrap();
        let proxy = Box::new(BareProxy::open(&mut vf));
        let config = EndPortConfig::host(PORT, 1);
        EndPort::open_on(Instant::ZERO, &mut vf, config, proxy, None).unwrap()
    };

    let end_port = open(&mut device);
    end_port.close(&mut device.function(VF).unwrap());
    let resources = device.function(PF).unwrap().resources(VF);
    assert_eq!(resources, Ok(ResourceCounts::default()));

    let mut end_port = open(&mut device);
    device.function(PF).unwrap().reset_function(VF).unwrap();
    let mut vf = device.function(VF).unwrap();
    assert_eq!(
        vf.poll_event(),
        Some(HcaEvent::Async(AsyncEvent::FunctionReset))
    );
    let reset = HcaEvent::Async(AsyncEvent::FunctionReset);
    end_port
        .handle_hca_event(Instant::ZERO, &mut vf, &reset)
        .unwrap();
    assert_eq!(end_port.poll_event(), Some(EndPortEvent::Dead));
    assert!(!end_port.poll(Instant::ZERO, &mut vf));
    assert_eq!(end_port.poll_timeout(), None);
    end_port.close(&mut vf);
    let resources = device.function(PF).unwrap().resources(VF);
    assert_eq!(resources, Ok(ResourceCounts::default()));
}
