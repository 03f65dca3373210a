//! Fabrics of well-known shapes.

use std::collections::BTreeMap;

use ib_vtime::Secret;
use ib_wire::Guid;
use thiserror::Error;

use crate::{
    ChannelAdapter, EndNode, Endpoint, Fabric, HcaConfig, LinkConfig, LinkId, NodeId, PortConfig,
    SwitchConfig,
};

/// The first node GUID of a topology; each node's is 0x100 after the one before, so that port
/// GUIDs fit between.
const FIRST_GUID: u64 = 0x0002_c903_0000_0000;
const GUID_STEP: u64 = 0x100;

/// A site has not enough GUIDs for the nodes of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the topology has more nodes and ports than a site has GUIDs: 65,535")]
pub struct TooManyNodes;

/// Returns `true` for a GUID that a topology gave: from [`FIRST_GUID`] on, or from 0x100000 on as in files without GUIDs.
const fn is_automatic(guid: Guid) -> bool {
    const BITS: u32 = 24;
    let block = guid.get() >> BITS;
    block == FIRST_GUID >> BITS || block == 0
}

/// A port of a planned node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlannedPort {
    /// An adapter, by its place in [`Topology::hcas`], and a port.
    Hca(usize, u8),
    /// A switch, by its place in [`Topology::switches`], and a port.
    Switch(usize, u8),
}

/// A planned node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlannedNode {
    /// An adapter, by its place in [`Topology::hcas`].
    Hca(usize),
    /// A switch, by its place in [`Topology::switches`].
    Switch(usize),
}

impl PlannedNode {
    /// A port of the node.
    #[must_use]
    pub const fn port(self, port: u8) -> PlannedPort {
        match self {
            Self::Hca(index) => PlannedPort::Hca(index, port),
            Self::Switch(index) => PlannedPort::Switch(index, port),
        }
    }
}

impl PlannedPort {
    /// The node that has the port.
    #[must_use]
    pub const fn node(self) -> PlannedNode {
        match self {
            Self::Hca(index, _) => PlannedNode::Hca(index),
            Self::Switch(index, _) => PlannedNode::Switch(index),
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Hca(_, port) | Self::Switch(_, port) => port,
        }
    }
}

/// A plan of a fabric. Change what you like before [`Topology::build`].
///
/// ```
/// use ib_fabric::Topology;
///
/// let tree = Topology::fat_tree(4, 16);
/// assert_eq!((tree.hcas.len(), tree.switches.len()), (16, 20));
/// assert_eq!(tree.links.len(), 48);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// Adapters.
    pub hcas: Vec<HcaConfig>,
    /// Switches.
    pub switches: Vec<SwitchConfig>,
    /// Links.
    pub links: Vec<(PlannedPort, PlannedPort)>,
    /// What every link is made from.
    pub link: LinkConfig,
    /// What ports support that differ from the rest of their node.
    pub ports: BTreeMap<PlannedPort, PortConfig>,
}

/// The names of a plan's parts in the fabric that was built, in the plan's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Built {
    /// Adapters.
    pub hcas: Vec<NodeId>,
    /// Switches.
    pub switches: Vec<NodeId>,
    /// Links.
    pub links: Vec<LinkId>,
}

impl Topology {
    /// Sets the site of all nodes, which other sites see in their descriptions.
    pub fn name_site(&mut self, site: &str) {
        let switches = self.switches.iter_mut().map(|switch| &mut switch.site);
        let hcas = self.hcas.iter_mut().map(|hca| &mut hca.site);
        switches
            .chain(hcas)
            .for_each(|of| *of = Some(site.to_owned()));
    }

    /// Sets GUIDs of a site for nodes without a GUID of their own, as all of the built-in topologies are: `guid` of numbers from 0 on.
    /// Fabrics of several sites that are joined then have no GUID twice.
    ///
    /// # Errors
    /// [`TooManyNodes`] if the site has not enough GUIDs.
    pub fn move_to_site(&mut self, guid: impl Fn(u16) -> Guid) -> Result<(), TooManyNodes> {
        let mut next = 0_u32;
        let mut take = |count: u32| {
            let first = u16::try_from(next).map_err(|_| TooManyNodes)?;
            next += count;
            match next <= u32::from(u16::MAX) {
                true => Ok(guid(first)),
                false => Err(TooManyNodes),
            }
        };
        for switch in &mut self.switches {
            if is_automatic(switch.node_guid) {
                switch.node_guid = take(1)?;
            }
        }
        for hca in &mut self.hcas {
            if is_automatic(hca.node_guid) {
                hca.node_guid = take(1 + u32::from(hca.ports))?;
                // 255 behind the node GUID is another node's.
                hca.system_image_guid = hca.node_guid;
                hca.port_guids.clear();
            }
        }
        Ok(())
    }

    fn next_guid(&self) -> Guid {
        let nodes = self.hcas.len() + self.switches.len();
        Guid::new(FIRST_GUID + (nodes as u64 + 1) * GUID_STEP)
    }

    /// Plans an adapter and gives its place.
    pub fn add_hca(&mut self, description: &str, ports: u8) -> usize {
        let mut config = HcaConfig::new(self.next_guid(), description);
        config.ports = ports;
        self.hcas.push(config);
        self.hcas.len() - 1
    }

    /// Plans a switch and gives its place.
    pub fn add_switch(&mut self, description: &str, ports: u8) -> usize {
        let config = SwitchConfig::new(self.next_guid(), description, ports);
        self.switches.push(config);
        self.switches.len() - 1
    }

    /// Plans a link.
    pub fn connect(&mut self, a: PlannedPort, b: PlannedPort) {
        self.links.push((a, b));
    }

    /// Two switches with two links between them (ports 7 and 8), and so many hosts behind each (ports
    /// from 1 on, at most 6).
    #[must_use]
    pub fn two_switches(hosts_each: u8) -> Self {
        let mut plan = Self::default();
        let switches = [plan.add_switch("S1", 8), plan.add_switch("S2", 8)];
        for port in [7, 8] {
            plan.connect(
                PlannedPort::Switch(switches[0], port),
                PlannedPort::Switch(switches[1], port),
            );
        }
        for (s, switch) in (1..).zip(switches) {
            for port in 1..=hosts_each.min(6) {
                let host = plan.add_hca(&format!("H{s}-{port}"), 1);
                plan.connect(PlannedPort::Hca(host, 1), PlannedPort::Switch(switch, port));
            }
        }
        plan
    }

    /// Two switches with two links between them, a management host (`mgmt-1`, `mgmt-2`) and two hosts
    /// (`H1-1` to `H2-2`) behind each.
    ///
    /// The adapters are, in order, the four hosts, then the two for management.
    #[must_use]
    pub fn two_switches_with_management() -> Self {
        let mut plan = Self::two_switches(2);
        for switch in 0..2 {
            let host = plan.add_hca(&format!("mgmt-{}", switch + 1), 1);
            plan.connect(PlannedPort::Hca(host, 1), PlannedPort::Switch(switch, 6));
        }
        plan
    }

    /// Two hosts with two-port adapters and a management host behind three switches in a ring. Each
    /// host has its two ports at different switches, and any one link between switches can fail.
    ///
    /// The adapters are, in order, `mgmt`, `host-a`, `host-b`.
    #[must_use]
    pub fn three_switches() -> Self {
        let mut plan = Self::default();
        let [s1, s2, s3] = ["S1", "S2", "S3"].map(|name| plan.add_switch(name, 8));
        let mgmt = plan.add_hca("mgmt", 1);
        let (a, b) = (plan.add_hca("host-a", 2), plan.add_hca("host-b", 2));
        use PlannedPort::{Hca, Switch};
        for (one, other) in [
            (Switch(s1, 7), Switch(s2, 7)),
            (Switch(s2, 8), Switch(s3, 7)),
            (Switch(s3, 8), Switch(s1, 8)),
            (Hca(mgmt, 1), Switch(s1, 1)),
            (Hca(a, 1), Switch(s1, 2)),
            (Hca(a, 2), Switch(s2, 1)),
            (Hca(b, 1), Switch(s3, 1)),
            (Hca(b, 2), Switch(s2, 2)),
        ] {
            plan.connect(one, other);
        }
        plan
    }

    /// A three-level fat tree of switches with `k` ports (an even number, at most 64), with `hosts`
    /// one-port adapters at the first ports of its leaves. The tree has room for k³/4 hosts; more
    /// are not made.
    ///
    /// Switches come in the order leaves, middle, core; the first `k/2` leaves and the first `k/2`
    /// middle switches form the first pod.
    #[must_use]
    pub fn fat_tree(k: u8, hosts: usize) -> Self {
        let half = usize::from(k / 2);
        let pods = half * 2;
        let mut plan = Self::default();
        let port = |index: usize| u8::try_from(index + 1).unwrap_or(u8::MAX);
        for index in 0..pods * half {
            plan.add_switch(&format!("leaf-{index}"), k);
        }
        for index in 0..pods * half {
            plan.add_switch(&format!("middle-{index}"), k);
        }
        for index in 0..half * half {
            plan.add_switch(&format!("core-{index}"), k);
        }
        let (middle, core) = (pods * half, 2 * pods * half);
        for pod in 0..pods {
            for i in 0..half {
                for j in 0..half {
                    plan.connect(
                        PlannedPort::Switch(pod * half + i, port(half + j)),
                        PlannedPort::Switch(middle + pod * half + j, port(i)),
                    );
                    plan.connect(
                        PlannedPort::Switch(middle + pod * half + i, port(half + j)),
                        PlannedPort::Switch(core + i * half + j, port(pod)),
                    );
                }
            }
        }
        for index in 0..hosts.min(pods * half * half) {
            let host = plan.add_hca(&format!("host-{index}"), 1);
            plan.connect(
                PlannedPort::Hca(host, 1),
                PlannedPort::Switch(index / half, port(index % half)),
            );
        }
        plan
    }

    /// Builds the fabric. Links that cannot be made (no such port, or one that is taken) are left
    /// out.
    #[must_use]
    pub fn build<D: ChannelAdapter>(&self, secret: impl Into<Secret>) -> (Fabric<D>, Built) {
        self.build_on(Fabric::new(secret), Fabric::add_hca)
    }

    /// As [`Topology::build`], on a fabric whose end nodes `add` adds.
    pub fn build_on<D: EndNode>(
        &self,
        mut fabric: Fabric<D>,
        mut add: impl FnMut(&mut Fabric<D>, &HcaConfig) -> NodeId,
    ) -> (Fabric<D>, Built) {
        let mut built = Built::default();
        for config in &self.hcas {
            built.hcas.push(add(&mut fabric, config));
        }
        for config in &self.switches {
            built.switches.push(fabric.add_switch(config));
        }
        for (port, config) in &self.ports {
            if let Some(end) = built.endpoint(*port) {
                fabric.set_supported(end, config);
            }
        }
        for (a, b) in &self.links {
            let ends = built.endpoint(*a).zip(built.endpoint(*b));
            if let Some((a, b)) = ends
                && let Ok(link) = fabric.connect(a, b, self.link)
            {
                built.links.push(link);
            }
        }
        (fabric, built)
    }
}

impl Built {
    /// A planned node in the fabric that was built.
    #[must_use]
    pub fn node(&self, node: PlannedNode) -> Option<NodeId> {
        match node {
            PlannedNode::Hca(index) => self.hcas.get(index),
            PlannedNode::Switch(index) => self.switches.get(index),
        }
        .copied()
    }

    /// A planned port in the fabric that was built.
    #[must_use]
    pub fn endpoint(&self, port: PlannedPort) -> Option<Endpoint> {
        self.node(port.node()).map(|node| node.port(port.number()))
    }
}

#[cfg(test)]
mod tests {
    use hca_api::PhysicalState;

    use super::*;
    use crate::fabric::tests::Probe;

    fn ports_up(plan: &Topology) -> usize {
        let (fabric, built) = plan.build::<Probe>(1);
        assert_eq!(built.links.len(), plan.links.len());
        let nodes = built.hcas.iter().chain(&built.switches);
        nodes
            .filter_map(|node| fabric.node(*node))
            .flat_map(crate::Node::ports)
            .filter(|port| port.number.0 != 0 && port.physical_state == PhysicalState::LinkUp)
            .count()
    }

    #[test]
    fn every_planned_link_is_made_and_comes_up() {
        for plan in [
            Topology::two_switches(6),
            Topology::two_switches_with_management(),
            Topology::three_switches(),
            Topology::fat_tree(4, 16),
        ] {
            assert_eq!(ports_up(&plan), 2 * plan.links.len());
        }
    }

    #[test]
    fn a_fat_tree_of_a_thousand_hosts_has_all_of_its_links() {
        let plan = Topology::fat_tree(16, 1000);
        assert_eq!((plan.hcas.len(), plan.switches.len()), (1000, 320));
        assert_eq!(ports_up(&plan), 2 * (1000 + 2 * 16 * 64));
    }

    #[test]
    fn guids_of_a_plan_are_different() {
        let plan = Topology::fat_tree(4, 16);
        let mut guids: Vec<u64> = plan
            .hcas
            .iter()
            .map(|hca| hca.node_guid.get())
            .chain(plan.switches.iter().map(|switch| switch.node_guid.get()))
            .collect();
        guids.sort_unstable();
        guids.dedup();
        assert_eq!(guids.len(), 36);
        assert!(guids.windows(2).all(|pair| pair[1] - pair[0] >= GUID_STEP));
    }
}
