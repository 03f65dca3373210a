//! The inventory of a lab: the world with its hosts, and the names of hosts, VFs and nodes.

use std::collections::BTreeMap;

use emulated_hca::{Endpoint, Fabric, Node, NodeId, PhysicalPort};
use ib_wire::PortNum;
use vf_tunnel::VfId;
use vhca_control::Refusal;
use vhca_diagnosis::quoted;

use super::why::awaited::Awaited;
use vhca::world::{HostId, World};

/// A host by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabHost {
    /// The description of its adapter.
    pub name: String,
    /// The host.
    pub id: HostId,
    /// `true` if it shares its adapter among VFs.
    pub is_pf: bool,
}

/// A VF with the name of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedVf {
    /// The name of its host.
    pub host_name: String,
    /// Its host.
    pub host: HostId,
    /// The VF.
    pub vf: VfId,
}

/// The hosts and nodes of a lab, by their names.
#[derive(Debug)]
pub struct Inventory {
    world: World,
    hosts: Vec<LabHost>,
    /// Place of the management host.
    manager: usize,
    /// Names of nodes besides their descriptions.
    names: BTreeMap<String, NodeId>,
    /// Nodes of simulators that are not attached yet.
    pub(super) awaited: Awaited,
}

impl Inventory {
    /// Returns the inventory of a world without hosts. The host that is added as `manager`th will be the management host.
    pub(super) fn new(world: World, manager: usize, names: BTreeMap<String, NodeId>) -> Self {
        Self {
            world,
            hosts: Vec::new(),
            manager,
            names,
            awaited: Awaited::default(),
        }
    }

    /// Adds a host of the world.
    pub(super) fn add_host(&mut self, host: LabHost) {
        self.hosts.push(host);
    }

    /// The world.
    #[must_use]
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// Returns the world, to be used. The next poll carries out the changes.
    pub const fn world_mut(&mut self) -> &mut World {
        &mut self.world
    }

    /// The fabric.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        self.world.fabric()
    }

    /// Returns a node of the fabric.
    #[must_use]
    pub fn fabric_node(&self, id: NodeId) -> Option<&Node> {
        self.fabric().node(id)
    }

    /// Returns a port of a node.
    #[must_use]
    pub fn physical_port(&self, at: Endpoint) -> Option<&PhysicalPort> {
        self.fabric().port(at)
    }

    /// The hosts, in the order of the topology.
    #[must_use]
    pub fn hosts(&self) -> &[LabHost] {
        &self.hosts
    }

    /// The hosts that share their adapters.
    pub fn pf_hosts(&self) -> impl Iterator<Item = &LabHost> {
        self.hosts.iter().filter(|host| host.is_pf)
    }

    /// The management host.
    #[must_use]
    pub fn manager(&self) -> Option<&LabHost> {
        self.hosts.get(self.manager)
    }

    /// A host by its name.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&LabHost> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// A host that shares its adapter, by any name of the adapter's.
    ///
    /// # Errors
    /// A refusal that names the hosts with VFs.
    pub fn pf_host(&self, name: &str) -> Result<&LabHost, Refusal> {
        let node = self.node(name);
        self.pf_hosts()
            .find(|host| node == Some(self.world.host(host.id).node()))
            .ok_or_else(|| {
                if let Some(refusal) = self.awaited.refusal(Some(name)) {
                    return refusal;
                }
                if node.is_some_and(|node| self.is_bare(node)) {
                    let message = format!(
                        "{name} is bare: it has no VFs, and nothing but programs runs on it; leave it out of --bare to have \
                         VFs there"
                    );
                    return Refusal::new("bare_node", message);
                }
                let names: Vec<&str> = self.pf_hosts().map(|host| host.name.as_str()).collect();
                if names.is_empty() {
                    return self.no_vfs();
                }
                let message = format!("no host {name:?} has VFs; there are {}", names.join(", "));
                Refusal::new("no_such_host", message)
            })
    }

    /// A node by its name, as its own site or others have it, by the name that its topology file has for it, or by its node GUID
    /// as `0x` and its digits.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeId> {
        if let Some(node) = self.names.get(name) {
            return Some(*node);
        }
        let digits = name.strip_prefix("0x");
        let guid = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let fabric = self.fabric();
        let mut ids = fabric.nodes().map(|(id, _)| id);
        ids.find(|id| {
            fabric.node(*id).is_some_and(|node| {
                let names = [node.name(), node.description.as_str()];
                names.contains(&Some(name)) || Some(node.node_guid.get()) == guid
            })
        })
    }

    /// Returns `true` if nothing of the service's runs on a node.
    #[must_use]
    pub fn is_bare(&self, node: NodeId) -> bool {
        let host = self.world.host_at(node);
        host.is_some_and(|host| self.world.host(host).is_bare())
    }

    /// Returns the name of a node at this site.
    pub(super) fn node_name(&self, id: NodeId) -> String {
        let node = self.fabric_node(id);
        let name = node.and_then(|node| node.name());
        name.unwrap_or("?").to_owned()
    }

    /// Returns the name of a port: `NODE/PORT`.
    pub(super) fn port_name(&self, at: Endpoint) -> String {
        format!("{}/{}", self.node_name(at.node), at.port)
    }

    /// The end of a link that a text means: `NODE` or `NODE/PORT`.
    pub(super) fn end(&self, text: &str) -> Result<End, Refusal> {
        if let Some(node) = self.node(text) {
            return Ok((node, None));
        }
        let split = text.rsplit_once('/');
        let found = split.and_then(|(node, port)| Some((self.node(node)?, port.parse().ok()?)));
        match found {
            Some((node, port)) => Ok((node, Some(PortNum(port)))),
            None => Err(no_such_node(text)),
        }
    }

    /// The VFs that a text means: `N` (or `vfN`) of the host, `HOST/N`, or all of one or of every host: `HOST/all`,
    /// `all`. The host may also be given beside it. A VF of that number need not exist.
    ///
    /// # Errors
    /// A refusal with the reason.
    pub fn vfs(&self, text: &str, host: Option<&str>) -> Result<Vec<NamedVf>, Refusal> {
        let (host, number) = match text.rsplit_once('/') {
            Some((within, number)) => {
                self.check_same(text, within, host)?;
                (Some(within), number)
            }
            None => (host, text),
        };
        let hosts: Vec<&LabHost> = match host {
            Some(name) => vec![self.pf_host(name)?],
            None => self.pf_hosts().collect(),
        };
        if number == "all" {
            if hosts.is_empty() && !self.awaited.is_empty() {
                return Err(self.no_vfs());
            }
            let vfs = hosts.into_iter().flat_map(|host| {
                let vfs = self.world.context(host.id).vfs();
                vfs.map(|vf| named(host, vf))
            });
            return Ok(vfs.collect());
        }
        let digits = number.strip_prefix("vf").unwrap_or(number);
        let vf = digits.parse().ok().and_then(VfId::new).ok_or_else(|| {
            let message = format!("{number:?} is no VF: say N, HOST/N, HOST/all, or all");
            Refusal::new("bad_vf", message)
        })?;
        match hosts[..] {
            [host] => Ok(vec![named(host, vf)]),
            [] => Err(self.no_vfs()),
            [first, ..] => {
                let message = format!(
                    "several hosts have VFs: say which, as in {}/{number}",
                    first.name
                );
                Err(Refusal::new("ambiguous_host", message))
            }
        }
    }

    /// Checks that a VF's name and the host beside it mean the same host.
    fn check_same(&self, text: &str, within: &str, host: Option<&str>) -> Result<(), Refusal> {
        match host {
            Some(host) if self.pf_host(host)? != self.pf_host(within)? => {
                let message = format!(
                    "{text} is no VF of {host}: leave out --host, or name the VF by its number alone"
                );
                Err(Refusal::new("two_hosts", message))
            }
            _ => Ok(()),
        }
    }

    fn no_vfs(&self) -> Refusal {
        let none = || Refusal::new("no_vfs", format!("no host has VFs: {}", self.why_no_vfs()));
        self.awaited.refusal(None).unwrap_or_else(none)
    }

    /// Returns why no host has VFs, and what to do about it.
    pub(super) fn why_no_vfs(&self) -> String {
        match self.hosts() {
            [only] => format!(
                "{} is the only adapter, and the subnet manager's: add another to the topology, or start vhca serve with \
                 --pf {} --vfs N",
                only.name,
                quoted(&only.name)
            ),
            _ => "start vhca serve with --vfs N, and --pf NODE for adapters called mgmt".to_owned(),
        }
    }

    /// The one VF that a text means; see [`Self::vfs`]. It need not exist.
    ///
    /// # Errors
    /// A refusal with the reason.
    pub fn vf(&self, text: &str, host: Option<&str>) -> Result<NamedVf, Refusal> {
        let mut vfs = self.vfs(text, host)?;
        match (vfs.pop(), vfs.is_empty()) {
            (Some(vf), true) => Ok(vf),
            _ => Err(Refusal::new("one_vf", "one VF is wanted: N, or HOST/N")),
        }
    }

    /// Returns `vf` if its host has such a VF.
    ///
    /// # Errors
    /// `no_such_vf`, with how many VFs the host has.
    pub fn existing<'v>(&self, vf: &'v NamedVf) -> Result<&'v NamedVf, Refusal> {
        let context = self.world.context(vf.host);
        if context.vfs().any(|known| known == vf.vf) {
            return Ok(vf);
        }
        let message = format!(
            "{} has no VF {}, it has {}: name one of these, or start vhca serve with more --vfs",
            vf.host_name,
            vf.vf.get(),
            context.vfs().count()
        );
        Err(Refusal::new("no_such_vf", message))
    }

    /// Checks that there is such a VF and port.
    pub(super) fn check_port(&self, vf: &NamedVf, port: PortNum) -> Result<(), Refusal> {
        let context = self.world.context(self.existing(vf)?.host);
        if port.index() == 0 || port.index() > context.ports().len() {
            let message = format!("{} has no port {port}", vf.host_name);
            return Err(Refusal::new("no_such_port", message));
        }
        Ok(())
    }
}

fn named(host: &LabHost, vf: VfId) -> NamedVf {
    NamedVf {
        host_name: host.name.clone(),
        host: host.id,
        vf,
    }
}

/// Returns the refusal of a node that does not exist.
pub(super) fn no_such_node(name: &str) -> Refusal {
    let message = format!("there is no node {name:?}; vhca show fabric lists them");
    Refusal::new("no_such_node", message)
}

/// A node, or a port of it.
pub(super) type End = (NodeId, Option<PortNum>);
