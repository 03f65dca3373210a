//! For tests: a fabric without time, whose agents answer SMPs at once.

use std::collections::BTreeMap;

use ib_endpoint::{MadAddress, smi};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::smp::{
    CapabilityMask, DirectedRouteSmp, GuidInfo, LinearForwardingTable, LinkSpeed, LinkWidth,
    MulticastForwardingTable, MulticastTableModifier, NodeDescription, NodeInfo, NodeType,
    PKeyTable, PKeyTableModifier, PortInfo, PortInfoModifier, PortPhysState, PortState, SmInfo,
    SmpAttribute, SwitchInfo,
};
use ib_wire::{Guid, Lid, Mtu, PKey, PortNum};

use crate::config::SubnetConfig;
use crate::sm::Sm;

/// What becomes of an SMP.
pub(crate) enum Outcome {
    Answer(Mad),
    ToManager(usize, Mad),
    Lost,
}

#[derive(Clone)]
pub(crate) struct TestPort {
    pub(crate) info: PortInfo,
    pub(crate) pkeys: Vec<PKey>,
    pub(crate) guids: BTreeMap<u32, GuidInfo>,
    pub(crate) link: Option<(usize, u8)>,
}

#[derive(Clone)]
pub(crate) struct TestNode {
    pub(crate) info: NodeInfo,
    pub(crate) switch: Option<SwitchInfo>,
    pub(crate) ports: Vec<TestPort>,
    pub(crate) lft: BTreeMap<u32, LinearForwardingTable>,
    pub(crate) mft: BTreeMap<(u8, u16), MulticastForwardingTable>,
    pub(crate) mute: bool,
    pub(crate) sets: usize,
    pub(crate) reregistered: usize,
}

#[derive(Clone, Default)]
pub(crate) struct Fabric {
    pub(crate) nodes: Vec<TestNode>,
    /// Number of requests of an attribute at a node that get lost before the next is answered.
    pub(crate) losses: BTreeMap<(usize, u16), u32>,
    /// Requests that were answered or got lost, by attribute.
    pub(crate) requests: BTreeMap<u16, usize>,
}

fn port(capability: CapabilityMask) -> TestPort {
    let mut info = PortInfo {
        capability_mask: capability,
        ..PortInfo::default()
    };
    info.set_port_state(PortState::DOWN);
    info.set_phys_state(PortPhysState::POLLING);
    info.set_mtu_cap(Mtu::MTU_4096);
    info.set_neighbor_mtu(Mtu::MTU_2048);
    info.set_vl_cap(4);
    info.set_operational_vls(1);
    info.link_width_active = LinkWidth::X4;
    info.set_link_speed_active(LinkSpeed::QDR);
    info.guid_cap = 32;
    TestPort {
        info,
        pkeys: vec![PKey::INVALID; 64],
        guids: BTreeMap::new(),
        link: None,
    }
}

impl Fabric {
    /// A host with one port.
    pub(crate) fn host(&mut self, guid: u64) -> usize {
        let capability =
            CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED | CapabilityMask::IS_TRAP_SUPPORTED;
        let mut port = port(capability);
        port.pkeys[0] = PKey::DEFAULT_FULL;
        let absent = port.clone();
        self.add(NodeType::CA, guid, 1, None, vec![absent, port])
    }

    /// A switch.
    pub(crate) fn switch(&mut self, guid: u64, ports: u8) -> usize {
        let info = SwitchInfo {
            linear_fdb_cap: 0xbfff.into(),
            multicast_fdb_cap: 1024.into(),
            ..SwitchInfo::default()
        };
        let mut all = vec![port(CapabilityMask::IS_TRAP_SUPPORTED)];
        all.extend((0..ports).map(|_| port(CapabilityMask::default())));
        all[0].info.set_port_state(PortState::ACTIVE);
        all[0].info.set_phys_state(PortPhysState::LINK_UP);
        self.add(NodeType::SWITCH, guid, ports, Some(info), all)
    }

    fn add(
        &mut self,
        node_type: NodeType,
        guid: u64,
        num_ports: u8,
        switch: Option<SwitchInfo>,
        ports: Vec<TestPort>,
    ) -> usize {
        let info = NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type,
            num_ports,
            node_guid: Guid::new(guid),
            port_guid: Guid::new(guid + u64::from(switch.is_none())),
            partition_cap: 64.into(),
            ..NodeInfo::default()
        };
        let (lft, mft) = Default::default();
        self.nodes.push(TestNode {
            info,
            switch,
            ports,
            lft,
            mft,
            mute: false,
            sets: 0,
            reregistered: 0,
        });
        self.nodes.len() - 1
    }

    /// Plugs a cable in.
    pub(crate) fn link(&mut self, a: (usize, u8), b: (usize, u8)) {
        for (here, there) in [(a, b), (b, a)] {
            let port = self.port_mut(here);
            port.link = Some(there);
            port.info.set_port_state(PortState::INIT);
            port.info.set_phys_state(PortPhysState::LINK_UP);
            self.changed(here.0);
        }
    }

    /// Pulls a cable out.
    pub(crate) fn unlink(&mut self, end: (usize, u8)) {
        let Some(other) = self.port_mut(end).link else {
            return;
        };
        for here in [end, other] {
            let port = self.port_mut(here);
            port.link = None;
            port.info.set_port_state(PortState::DOWN);
            port.info.set_phys_state(PortPhysState::POLLING);
            self.changed(here.0);
        }
    }

    fn changed(&mut self, node: usize) {
        if let Some(switch) = &mut self.nodes[node].switch {
            switch.set_port_state_change(true);
        }
    }

    pub(crate) fn port(&self, (node, port): (usize, u8)) -> &TestPort {
        &self.nodes[node].ports[usize::from(port)]
    }

    pub(crate) fn port_mut(&mut self, (node, port): (usize, u8)) -> &mut TestPort {
        &mut self.nodes[node].ports[usize::from(port)]
    }

    pub(crate) fn lid(&self, host: usize) -> Lid {
        let port = u8::from(self.nodes[host].switch.is_none());
        self.port((host, port)).info.lid
    }

    /// Carries a directed-route request from a host's port 1 to the end of its path.
    pub(crate) fn carry(&mut self, origin: usize, mad: &Mad) -> Outcome {
        let smp = mad.view::<DirectedRouteSmp>();
        let mut at = (origin, 1);
        for (i, hop) in smp.path().unwrap().iter().enumerate() {
            let node = &self.nodes[at.0];
            if i > 0 && (node.switch.is_none() || node.mute) {
                return Outcome::Lost;
            }
            match node.ports.get(usize::from(*hop)).and_then(|port| port.link) {
                Some(next) => at = next,
                None => return Outcome::Lost,
            }
        }
        let attribute = mad.header.attribute_id.get();
        *self.requests.entry(attribute).or_default() += 1;
        if self.nodes[at.0].mute || self.loses((at.0, attribute)) {
            return Outcome::Lost;
        }
        if mad.header.attribute_id == SmInfo::ID {
            return Outcome::ToManager(at.0, *mad);
        }
        Outcome::Answer(self.answer(at, mad))
    }

    fn loses(&mut self, request: (usize, u16)) -> bool {
        let Some(left) = self.losses.get_mut(&request).filter(|left| **left > 0) else {
            return false;
        };
        *left -= 1;
        true
    }

    fn answer(&mut self, (index, entry): (usize, u8), mad: &Mad) -> Mad {
        let mut answer = smi::answer(mad);
        let smp = answer.view_mut::<DirectedRouteSmp>();
        if mad.header.method == Method::SET {
            self.nodes[index].sets += 1;
            if !self.set((index, entry), smp) {
                smp.set_status(MadStatus::INVALID_FIELD);
            }
        } else {
            self.get((index, entry), smp);
        }
        answer
    }

    fn get(&mut self, (index, entry): (usize, u8), smp: &mut DirectedRouteSmp) {
        let node = &self.nodes[index];
        let modifier = smp.header.attribute_modifier;
        match smp.header.attribute_id {
            NodeInfo::ID => {
                let local_port = PortNum(entry);
                *smp.attribute_mut() = NodeInfo {
                    local_port,
                    ..node.info
                };
            }
            NodeDescription::ID => *smp.attribute_mut() = NodeDescription::new("test"),
            SwitchInfo::ID => *smp.attribute_mut() = node.switch.unwrap(),
            PortInfo::ID => {
                let at = PortInfoModifier::decode(modifier).port.index();
                *smp.attribute_mut() = node.ports[at].info;
            }
            PKeyTable::ID => {
                let at = PKeyTableModifier::decode(modifier);
                let port = if node.switch.is_some() {
                    usize::from(at.port)
                } else {
                    1
                };
                let first = usize::from(at.block) * 32;
                let mut table = PKeyTable::default();
                table
                    .pkeys
                    .copy_from_slice(&node.ports[port].pkeys[first..first + 32]);
                *smp.attribute_mut() = table;
            }
            LinearForwardingTable::ID => {
                let block = node.lft.get(&modifier.get());
                *smp.attribute_mut() = block.copied().unwrap_or_default();
            }
            MulticastForwardingTable::ID => {
                let at = MulticastTableModifier::decode(modifier);
                let block = node.mft.get(&(at.position, at.block));
                *smp.attribute_mut() = block.copied().unwrap_or_default();
            }
            GuidInfo::ID => {
                let block = node.ports[usize::from(node.switch.is_none())]
                    .guids
                    .get(&modifier.get());
                let mut block = block.copied().unwrap_or_default();
                if modifier.get() == 0 {
                    block.guids[0] = node.info.port_guid;
                }
                *smp.attribute_mut() = block;
            }
            other => panic!("the manager does not read {other}"),
        }
    }

    fn set(&mut self, (index, _): (usize, u8), smp: &mut DirectedRouteSmp) -> bool {
        let modifier = smp.header.attribute_modifier;
        match smp.header.attribute_id {
            PortInfo::ID => {
                let port = PortInfoModifier::decode(modifier).port;
                return self.set_port_info((index, port.0), smp.attribute_mut());
            }
            SwitchInfo::ID => {
                let wanted = smp.attribute_mut::<SwitchInfo>();
                let held = self.nodes[index].switch.as_mut().unwrap();
                let mark = held.port_state_change() && !wanted.port_state_change();
                wanted.set_port_state_change(mark);
                *held = *wanted;
            }
            PKeyTable::ID => {
                let at = PKeyTableModifier::decode(modifier);
                let node = &mut self.nodes[index];
                let port = if node.switch.is_some() {
                    usize::from(at.port)
                } else {
                    1
                };
                let first = usize::from(at.block) * 32;
                let table = smp.attribute::<PKeyTable>();
                node.ports[port].pkeys[first..first + 32].copy_from_slice(&table.pkeys);
            }
            LinearForwardingTable::ID => {
                self.nodes[index]
                    .lft
                    .insert(modifier.get(), *smp.attribute());
            }
            MulticastForwardingTable::ID => {
                let at = MulticastTableModifier::decode(modifier);
                self.nodes[index]
                    .mft
                    .insert((at.position, at.block), *smp.attribute());
            }
            GuidInfo::ID => {
                let port = u8::from(self.nodes[index].switch.is_none());
                let port = self.port_mut((index, port));
                if modifier.get() >= u32::from(port.info.guid_cap.div_ceil(8)) {
                    return false;
                }
                port.guids.insert(modifier.get(), *smp.attribute());
            }
            other => panic!("the manager does not write {other}"),
        }
        true
    }

    fn set_port_info(&mut self, at: (usize, u8), wanted: &mut PortInfo) -> bool {
        let held = self.port(at).info;
        let state = match (wanted.port_state(), held.port_state()) {
            (PortState::NO_CHANGE, state) => state,
            (PortState::DOWN, _) => PortState::INIT,
            (PortState::ARMED, PortState::INIT | PortState::ARMED) => PortState::ARMED,
            (PortState::ACTIVE, PortState::ARMED | PortState::ACTIVE) => PortState::ACTIVE,
            _ => return false,
        };
        if wanted.port_state() == PortState::DOWN
            && let Some(peer) = self.port(at).link
        {
            self.port_mut(peer).info.set_port_state(PortState::INIT);
        }
        if wanted.client_reregister() {
            self.nodes[at.0].reregistered += 1;
        }
        wanted.set_port_state(state);
        wanted.set_phys_state(held.phys_state());
        wanted.set_client_reregister(false);
        self.port_mut(at).info = *wanted;
        true
    }

    /// Follows the forwarding tables from a host to a LID: the host or switch that it ends at.
    pub(crate) fn route(&self, from: usize, lid: Lid) -> Option<usize> {
        let mut at = self.port((from, 1)).link?;
        for _ in 0..64 {
            let node = &self.nodes[at.0];
            if node.switch.is_none() {
                return Some(at.0);
            }
            let block = node.lft.get(&u32::from(lid.get() / 64))?;
            let out = block.ports[usize::from(lid.get() % 64)];
            if out == PortNum(0) {
                return Some(at.0);
            }
            let port = node.ports.get(out.index())?;
            assert_eq!(port.info.port_state(), PortState::ACTIVE);
            at = port.link?;
        }
        panic!("{lid} loops");
    }
}

/// Lets a manager on a host bring the fabric up.
pub(crate) fn bring_up(fabric: &mut Fabric, host: usize, config: SubnetConfig) -> Sm {
    let guid = fabric.nodes[host].info.port_guid;
    let mut sm = Sm::new(config, PortNum(1), guid, 1);
    while let Some(sent) = sm.poll_transmit(Instant::ZERO) {
        if let Outcome::Answer(answer) = fabric.carry(host, &sent.mad) {
            sm.handle_smp(Instant::ZERO, &MadAddress::directed(), &answer);
        }
    }
    assert!(sm.is_serving());
    sm
}

/// Hosts 0, 1 on switch 3 and host 2 on switch 4; two links between the switches.
pub(crate) fn small() -> Fabric {
    let mut f = Fabric::default();
    for i in 0..3 {
        f.host(0x100 + 0x10 * i);
    }
    f.switch(0x1000, 8);
    f.switch(0x2000, 8);
    f.link((0, 1), (3, 1));
    f.link((1, 1), (3, 2));
    f.link((2, 1), (4, 1));
    f.link((3, 7), (4, 7));
    f.link((3, 8), (4, 8));
    f
}
