use emulated_hca::{HcaConfig, LinkConfig, SwitchConfig, Topology};
use hca_api::HostMemory;
use ib_endpoint::{MadAddress, Message, MethodSet, RAW_TID, Registration, RetryPolicy};
use ib_vtime::Duration;
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{DirectedRouteSmp, NodeInfo, SmpAttribute};
use ib_wire::{Guid, Lid, Tid};
use pf_context::context::PfConfig;
use subnet_lite::{OpenError, SubnetConfig};

use super::*;
use crate::world::Outcome;

const LIMIT: Duration = Duration::from_secs(10);
const POLICY: RetryPolicy = RetryPolicy::new(Duration::from_millis(100), 0);

/// Two switches with two hosts each; the first host manages the subnet.
struct Subnet {
    world: World,
    hosts: Vec<Endpoint>,
    switches: Vec<Endpoint>,
}

impl Subnet {
    fn up() -> Self {
        let (fabric, built) = Topology::two_switches(2).build(1);
        let mut world = World::new(fabric, 1);
        let ids: Vec<_> = (built.hcas.iter())
            .map(|hca| world.add_host(*hca).unwrap())
            .collect();
        world
            .start_manager(ids[0].port(1), SubnetConfig::default())
            .unwrap();
        let up = world.run_until(LIMIT, |world| {
            world.manager(ids[0]).is_some_and(|m| m.sm().is_serving())
        });
        assert_eq!(up, Outcome::Reached);
        Self {
            world,
            hosts: built.hcas.iter().map(|hca| hca.port(1)).collect(),
            switches: built.switches.iter().map(|node| node.port(0)).collect(),
        }
    }

    fn lid(&self, at: Endpoint) -> Lid {
        self.world.fabric().port(at).unwrap().lid
    }

    fn gsi(&mut self, at: Endpoint) -> &mut MadAgent {
        self.world.port_agents_mut(at).unwrap().gsi
    }

    fn event(&mut self, at: Endpoint, special: SpecialQp, agent: AgentId) -> Option<AgentEvent> {
        let mut event = None;
        self.world.run_until(LIMIT, |world| {
            event = world.poll_agent_event(at, special, agent);
            event.is_some()
        });
        event
    }
}

/// A program on QP0 that asks for NodeInfo at the end of a directed route.
fn node_info(world: &mut World, at: Endpoint, path: &[u8]) -> NodeInfo {
    world.open_qp0(at).unwrap();
    let now = world.now();
    let smi = world.port_agents_mut(at).unwrap().smi.unwrap();
    let class = MgmtClass::SUBN_DIRECTED_ROUTE;
    let agent = smi
        .register(Registration::new(class, MethodSet::NONE).apart())
        .unwrap();
    let mut mad = Mad::new(MadHeader::new(class, Method::GET, NodeInfo::ID));
    assert!(mad.view_mut::<DirectedRouteSmp>().set_path(path));
    smi.send_request(
        now,
        agent,
        MadAddress::directed(),
        Message::single(mad),
        POLICY,
    )
    .unwrap();
    let mut answer = None;
    world.run_until(LIMIT, |world| {
        answer = world.poll_agent_event(at, SpecialQp::Smi, agent);
        answer.is_some()
    });
    let Some(AgentEvent::Response { message, .. }) = answer else {
        panic!("no answer: {answer:?}");
    };
    *message.mad().view::<DirectedRouteSmp>().attribute()
}

#[test]
fn programs_on_qp0_reach_their_own_node_and_the_neighbour() {
    let mut subnet = Subnet::up();
    let (host, switch) = (subnet.hosts[1], subnet.switches[0]);
    let guid = |world: &World, at: Endpoint| world.fabric().node(at.node).unwrap().node_guid;
    let managed = subnet.hosts[0];
    let world = &mut subnet.world;
    for (at, path, asked) in [
        (managed, &[][..], managed),
        (managed, &[1], switch),
        (host, &[], host),
        (host, &[1], switch),
        (switch, &[], switch),
        (switch, &[2], host),
    ] {
        let info = node_info(world, at, path);
        assert_eq!(info.node_guid, guid(world, asked), "{at:?} {path:?}");
    }
}

#[test]
fn a_program_on_a_pf_reads_its_own_node() {
    let (mut fabric, _) = Topology::default().build(1);
    let node = fabric.add_hca(&HcaConfig::new(Guid::new(0x1000), "pf"));
    let switch = fabric.add_switch(&SwitchConfig::new(Guid::new(0x2000), "switch", 2));
    fabric
        .connect(node.port(1), switch.port(1), LinkConfig::default())
        .unwrap();
    let mut world = World::new(fabric, 1);
    world.add_pf_host(node, &PfConfig::new(1)).unwrap();
    assert_eq!(
        node_info(&mut world, node.port(1), &[]).node_guid,
        Guid::new(0x1000)
    );
    assert_eq!(
        node_info(&mut world, node.port(1), &[1]).node_guid,
        Guid::new(0x2000)
    );
}

/// Who sends connection requests registers the CM's class for the method Send, and who subscribes to notices the SA's reports.
fn unsolicited() -> [Registration; 2] {
    let of = |class, method| Registration::new(class, MethodSet::of(&[method])).apart();
    [
        of(MgmtClass::COM_MGT, Method::SEND),
        of(MgmtClass::SUBN_ADM, Method::REPORT),
    ]
}

#[test]
fn programs_on_a_bare_node_register_the_cm_and_reports_and_reach_each_other() {
    let (fabric, built) = Topology::two_switches(2).build(1);
    let mut world = World::new(fabric, 1);
    let manager = world.add_host(built.hcas[0]).unwrap();
    let bare = [built.hcas[1], built.hcas[3]];
    for node in bare {
        let host = world
            .add_bare_host(node, Box::new(HostMemory::new()))
            .unwrap();
        assert!(world.host(host).is_bare() && !world.host(manager).is_bare());
    }
    world
        .start_manager(manager.port(1), SubnetConfig::default())
        .unwrap();
    let ends = bare.map(|node| node.port(1));
    let up = world.run_until(LIMIT, |world| {
        let states = ends.map(|at| world.fabric().port(at).unwrap().state);
        states == [hca_api::PortState::Active; 2]
    });
    assert_eq!(up, Outcome::Reached);
    let mut subnet = Subnet {
        world,
        hosts: ends.to_vec(),
        switches: Vec::new(),
    };
    let plain = built.hcas[0].port(1);
    for registration in unsolicited() {
        assert!(subnet.gsi(plain).register(registration).is_err());
    }
    let [from, to] = ends;
    let [cm, reports] = unsolicited();
    let receiver = subnet.gsi(to).register(cm).unwrap();
    subnet.gsi(to).register(reports).unwrap();
    assert!(subnet.gsi(to).register(cm).is_err(), "taken");
    let sender = subnet.gsi(from).register(cm).unwrap();
    let mad = Mad::new(MadHeader::new(
        MgmtClass::COM_MGT,
        Method::SEND,
        AttributeId::new(0x10),
    ));
    let lid = MadAddress::gsi(subnet.lid(to));
    subnet.gsi(from).send(sender, lid, mad).unwrap();
    let event = subnet.event(to, SpecialQp::Gsi, receiver);
    assert!(
        matches!(event, Some(AgentEvent::Request { .. })),
        "{event:?}"
    );
    let guid = subnet.world.fabric().node(from.node).unwrap().node_guid;
    let info = node_info(&mut subnet.world, from, &[]);
    assert_eq!(info.node_guid, guid);
    assert_eq!(
        subnet.world.open_qp0(from.node.port(2)),
        Err(HcaError::InvalidPort)
    );
}

#[test]
fn the_second_owner_of_qp0_is_refused() {
    let mut subnet = Subnet::up();
    let free = subnet.hosts[1];
    let taken = HcaError::SpecialQpTaken;
    subnet.world.open_qp0(free).unwrap();
    subnet.world.open_qp0(free).unwrap();
    let host = subnet.world.host_at(free.node).unwrap();
    let refused = subnet
        .world
        .start_manager(host.port(1), SubnetConfig::default());
    assert_eq!(refused, Err(OpenError::Hca(taken)));
    let nowhere = free.node.port(9);
    assert_eq!(subnet.world.open_qp0(nowhere), Err(HcaError::InvalidPort));
    assert!(subnet.world.port_agents_mut(nowhere).is_none());
}

/// A vendor's request that nobody registered for.
fn request(tid: Tid) -> Mad {
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_ADM,
        Method::SET,
        AttributeId::NODE_RECORD,
    ));
    mad.header.tid = tid;
    mad
}

#[test]
fn a_raw_client_is_asked_what_nobody_registered_for_and_its_answer_reaches_the_asker() {
    let mut subnet = Subnet::up();
    for (asker, server) in [(0, subnet.switches[1]), (2, subnet.hosts[3])] {
        let asker = subnet.hosts[asker];
        let raw = subnet.gsi(server).register_raw().unwrap();
        let to = MadAddress::gsi(subnet.lid(server));
        let now = subnet.world.now();
        let gsi = subnet.gsi(asker);
        let registration = Registration::new(MgmtClass::SUBN_ADM, MethodSet::NONE).apart();
        let agent = gsi.register(registration).unwrap();
        let message = Message::single(request(Tid::default()));
        let asked = gsi.send_request(now, agent, to, message, POLICY).unwrap();

        let Some(AgentEvent::Request { from, message, .. }) =
            subnet.event(server, SpecialQp::Gsi, raw)
        else {
            panic!("the raw client was not asked");
        };
        let mut answer = *message.mad();
        answer.header.method = Method::GET_RESP;
        subnet.gsi(server).send_raw(raw, from, answer).unwrap();
        let Some(AgentEvent::Response { request, .. }) = subnet.event(asker, SpecialQp::Gsi, agent)
        else {
            panic!("the answer is lost");
        };
        assert_eq!(request, asked);
    }
}

#[test]
fn what_a_raw_client_declines_is_refused_as_if_it_were_not_there() {
    let mut subnet = Subnet::up();
    let (asker, server) = (subnet.switches[0], subnet.hosts[2]);
    let raw = subnet.gsi(server).register_raw().unwrap();
    let to = MadAddress::gsi(subnet.lid(server));
    let own = subnet.gsi(asker).register_raw().unwrap();
    let tid = Tid::new(RAW_TID | 7);
    subnet.gsi(asker).send_raw(own, to, request(tid)).unwrap();
    let Some(AgentEvent::Request { from, message, .. }) = subnet.event(server, SpecialQp::Gsi, raw)
    else {
        panic!("the raw client was not asked");
    };
    subnet.gsi(server).decline_raw(&from, message.mad());
    let Some(AgentEvent::Request { message, .. }) = subnet.event(asker, SpecialQp::Gsi, own) else {
        panic!("not refused");
    };
    assert_eq!(message.header().tid, tid);
    assert_eq!(message.header().method, Method::GET_RESP);
    assert_ne!(message.status(), MadStatus::OK);
}

#[test]
fn is_sm_of_a_host_and_of_a_switch_is_set_and_cleared() {
    let mut subnet = Subnet::up();
    for at in [subnet.hosts[1], subnet.switches[1]] {
        for is_sm in [true, false] {
            subnet.world.set_is_sm(at, is_sm).unwrap();
            let port = subnet.world.fabric().port(at).unwrap();
            assert_eq!(port.capabilities.contains(CapabilityMask::IS_SM), is_sm);
        }
    }
    let external = subnet.switches[0].node.port(1);
    assert_eq!(
        subnet.world.set_is_sm(external, true),
        Err(HcaError::InvalidPort)
    );
}

#[test]
fn an_idle_program_keeps_nobody_busy() {
    let mut subnet = Subnet::up();
    let at = subnet.switches[0];
    subnet.gsi(at).register_raw().unwrap();
    subnet.world.run_for(Duration::from_millis(1));
    assert!(subnet.world.woken_switches.is_empty());
    assert_eq!(subnet.world.switch_alarms.next_deadline(), None);
}
