//! Snapshots for diagnoses, of the emulated fabric, the PFs and the clients of their VFs.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use emulated_hca::{
    DropReason, Endpoint, Fabric, LinkConfig, LinkId, Node as FabricNode, NodeId,
    NodeKind as FabricKind, PhysicalPort, Travelling,
};
use hca_api::FunctionId;
use ib_vtime::Instant;
use ib_wire::smp::CapabilityMask;
use ib_wire::{GidIndex, MKey, PKey, PKeyIndex, PortNum};
use mad_mux::tid::TransactionState;
use pf_context::PfContext;
use pf_context::inspect::Inspect;
use vf_tunnel::VfId;
use vhca_diagnosis::{
    Dropped, Extent, ForeignPeer, Node, NodeKind, PKeyTable, Pf, PfPort, Port, PortAt, Program,
    Snapshot, Stall, Subnet, Vf, VfPort, Way,
};

use super::inventory::LabHost;
use super::lab::Lab;
use crate::show::{ProgramRow, rates};
use vhca::world::OutsideHca;

/// A subnet, and the fabric and its nodes behind the indices of the subnet.
pub(super) struct Survey<'l> {
    fabric: &'l Fabric,
    ids: Vec<NodeId>,
    subnet: Subnet,
}

impl Lab {
    /// Returns the facts of the VFs of hosts, and as much of the subnet as their diagnoses need.
    pub(super) fn snapshot<'l>(&'l self, hosts: impl Iterator<Item = &'l LabHost>) -> Snapshot {
        let hosts: Vec<&LabHost> = hosts.collect();
        let fabric = self.world().fabric();
        let near = self.near(fabric, &hosts);
        let snapshot = self.facts(&hosts, self.survey(fabric, &hosts, near.as_ref()));
        if near.is_some() && snapshot.looks_far() {
            return self.facts(&hosts, self.survey(fabric, &hosts, None));
        }
        snapshot
    }

    /// Returns the whole subnet, without facts that only diagnoses of hosts need.
    pub(super) fn subnet(&self) -> Subnet {
        self.whole().subnet
    }

    /// Returns `true` if SMPs of a port reach a subnet manager.
    pub(super) fn reaches_manager(&self, at: Endpoint) -> bool {
        let Survey { ids, subnet, .. } = self.whole();
        place(&ids, at).is_some_and(|at| subnet.manager_near(at).is_some())
    }

    fn whole(&self) -> Survey<'_> {
        self.survey(self.world().fabric(), &[], None)
    }

    pub(super) fn facts(&self, hosts: &[&LabHost], survey: Survey<'_>) -> Snapshot {
        Snapshot {
            taken: self.world().now(),
            pfs: hosts.iter().map(|host| self.pf(&survey, host)).collect(),
            subnet: survey.subnet,
        }
    }

    fn node_of(&self, host: &LabHost) -> NodeId {
        self.world().host(host.id).node()
    }

    /// Returns the nodes that matter to diagnoses of hosts as long as these do not look far ([`Extent::Near`]); `None` if faults
    /// of links are planned, which may strike on any way, or M_Keys are in use, which are compared in the whole subnet.
    fn near(&self, fabric: &Fabric, hosts: &[&LabHost]) -> Option<BTreeSet<NodeId>> {
        if self.cables.has_planned() {
            return None;
        }
        let (mut lids, mut guids) = (BTreeSet::new(), BTreeSet::new());
        // Wherever the trunks are, other sites are beyond them.
        let mut near: BTreeSet<NodeId> = self.trunk_rows().map(|trunk| trunk.near.node).collect();
        for node in hosts.iter().map(|host| self.node_of(host)) {
            near.insert(node);
            for port in fabric.node(node).map_or(&[][..], FabricNode::ports) {
                let peer = fabric.peer(node.port(port.number.0));
                near.extend(peer.map(|peer| peer.node));
                lids.extend([port.lid, port.sm_lid]);
                guids.insert(port.guid);
            }
            let device = fabric.device(node).into_iter();
            let peers = device.flat_map(|device| device.foreign_peers());
            lids.extend(peers.map(|peer| peer.slid));
        }
        for (id, node) in fabric
            .nodes()
            .filter_map(|(id, _)| Some((id, fabric.node(id)?)))
        {
            let mut ports = end_ports(node).iter();
            if ports.any(|port| port.m_key != MKey::default()) {
                return None;
            }
            let mut ports = end_ports(node).iter();
            let has = |port: &PhysicalPort| {
                guids.contains(&port.guid) || lids.iter().any(|lid| port.owns_lid(*lid))
            };
            if ports.any(has) {
                near.insert(id);
            }
        }
        Some(near)
    }

    /// Reads the fabric: all of it, or some nodes. Partitions and routes are those of the hosts.
    pub(super) fn survey<'l>(
        &self,
        fabric: &'l Fabric,
        hosts: &[&LabHost],
        near: Option<&BTreeSet<NodeId>>,
    ) -> Survey<'l> {
        let ids = fabric.nodes().map(|(id, _)| id);
        let ids: Vec<NodeId> = ids
            .filter(|id| near.is_none_or(|near| near.contains(id)))
            .collect();
        let outside = |id: NodeId| {
            Some(outside(
                node_name(fabric.node(id)?),
                self.world().outside_hca(id)?,
            ))
        };
        let is_outside = ids.iter().any(|id| self.world().outside_hca(*id).is_some());
        let nodes = (ids.iter()).filter_map(|id| outside(*id).or_else(|| node(fabric, *id)));
        let mut subnet = Subnet {
            extent: match near {
                _ if is_outside => Extent::Adapters,
                Some(_) => Extent::Near,
                None => Extent::Whole,
            },
            nodes: nodes.collect(),
            ..Subnet::default()
        };
        let links: Vec<LinkId> = match near {
            Some(_) => {
                let ports = hosts.iter().flat_map(|host| self.ports(fabric, host));
                let links = ports.filter_map(|at| fabric.link_at(at));
                links.collect::<BTreeSet<_>>().into_iter().collect()
            }
            None => fabric.links().collect(),
        };
        for (link, ends) in links
            .into_iter()
            .filter_map(|link| Some((link, fabric.link_ends(link)?)))
        {
            if let [Some(a), Some(b)] = ends.map(|end| place(&ids, end)) {
                if let Some(faults) = self.cables.planned(link) {
                    subnet
                        .planned
                        .insert(subnet.links.len(), faults.to_string());
                }
                subnet.connect([a, b]);
            }
        }
        let manager = self.inventory.manager().map(|host| self.node_of(host));
        subnet.management = manager.and_then(|node| ids.binary_search(&node).ok());
        let managers = self.managers.iter().filter_map(|(at, pid)| {
            Some((place(&ids, *at)?, pid.as_raw_nonzero().get().unsigned_abs()))
        });
        subnet.managers = managers.collect();
        let states = self.manager_states();
        let states = states.filter_map(|(at, state)| Some((place(&ids, at)?, state)));
        subnet.sm_answers = states.collect();
        subnet.embedded = self.manager_port().and_then(|at| place(&ids, at));
        let trunks = self.trunk_rows().filter_map(|trunk| {
            let at = trunk.near;
            let drops = fabric.node(at.node)?.drops().iter();
            let refused = drops.filter(|(port, _, reason, _)| {
                (*port, *reason) == (at.port, DropReason::ForeignSmp)
            });
            let refused_smps = refused.map(|(.., dropped)| dropped.packets).sum();
            let trunk = vhca_diagnosis::Trunk {
                way: trunk.way,
                peer: trunk.peer.map(|peer| peer.site.to_string()),
                is_guarded: trunk.is_guarded,
                round_trip: trunk.statistics.round_trip,
                refused_smps,
            };
            Some((place(&ids, at)?, trunk))
        });
        subnet.trunks = trunks.collect();
        let mut survey = Survey {
            fabric,
            ids,
            subnet,
        };
        for host in hosts {
            for at in self.ports(fabric, host) {
                let is_silent = self.sa_answers(host.id.port(at.port.0)) == Some(false);
                survey.add_port_of_pf(at, is_silent || self.cables.has_planned());
            }
        }
        survey
    }

    /// Returns the ports of a PF.
    fn ports(&self, fabric: &Fabric, host: &LabHost) -> impl Iterator<Item = Endpoint> + use<> {
        let node = self.node_of(host);
        let ports = fabric.node(node).map_or(0, FabricNode::port_count);
        (1..=ports).map(move |port| node.port(port))
    }

    fn pf(&self, survey: &Survey<'_>, host: &LabHost) -> Pf {
        let (fabric, id) = (survey.fabric, self.node_of(host));
        let context = self.world().context(host.id);
        let now = self.world().now();
        let ports = (1..).zip(context.ports()).map(|(number, _)| PfPort {
            sa_answers: self.sa_answers(host.id.port(number)),
            sm_port_answers: self.reaches_sm_port(host.id.port(number)),
            losses: self.history.losses(host.id.port(number), now),
            errors: self.history.errors(host.id.port(number), now),
            is_impaired: self.is_impaired(fabric, id.port(number)),
        });
        let device = fabric.device(id).into_iter();
        let peers = device.flat_map(|device| device.foreign_peers());
        Pf {
            host: host.name.clone(),
            node: survey.ids.binary_search(&id).unwrap_or(usize::MAX),
            ports: ports.collect(),
            vfs: self.vf_facts(fabric, host, context),
            foreign_peers: peers
                .map(|peer| ForeignPeer {
                    to: peer.to.0,
                    slid: peer.slid,
                    function: peer.function.0,
                    refused: Dropped {
                        packets: peer.packets,
                        last: peer.last,
                    },
                })
                .collect(),
        }
    }

    fn vf_facts(&self, fabric: &Fabric, host: &LabHost, context: &PfContext) -> BTreeMap<u16, Vf> {
        let programs = self.program_rows(&host.name).into_iter();
        let programs = programs.filter_map(|row| Some((row.vf, program(&row)?)));
        let programs: BTreeMap<u16, Program> = programs.collect();
        let vf = |number: VfId| Vf {
            offer: self.offer_of(host.id.vf(number)),
            program: programs.get(&number.get()).copied(),
            stall: self.stall_of(host, number),
            ..Vf::default()
        };
        let vfs = context.vfs().map(|number| (number.get(), vf(number)));
        let mut vfs: BTreeMap<u16, Vf> = vfs.collect();
        let now = self.world().now();
        let open = LazyCell::new(|| open_transactions(context, self.world().now()));
        let keys = LazyCell::new(|| keys(context));
        let node = self.node_of(host);
        let drops = fabric.node(node).map(FabricNode::drops);
        let lost = |function: FunctionId, port: PortNum, reason: DropReason| {
            let dropped = drops?.of(port, function, reason)?;
            Some(Dropped {
                packets: dropped.packets,
                last: dropped.last,
            })
        };
        for row in Inspect::vfs(context, now) {
            let (number, port) = (row.vf, row.port);
            let of_port = port.index().checked_sub(1);
            let of_port = of_port.and_then(|index| context.ports().get(index));
            let reason = of_port.and_then(|of_port| Some((of_port, of_port.reason(number)?)));
            let Some((vf, (of_port, reason))) = vfs.get_mut(&number.get()).zip(reason) else {
                continue;
            };
            let at = host.id.vf(number).port(port.0);
            let function = FunctionId(number.get());
            let settings = self.settings.get(&at);
            let first = fabric.port(node.port(port.0));
            let first = first.and_then(|port| port.pkey(PKeyIndex(0)));
            let is_as_at_start = settings.is_none() && first.is_some_and(PKey::is_valid);
            let tids = row.usage.tids;
            let facts = VfPort {
                since: self.history.since(at, now),
                refusal: self.history.refusal(at),
                usage: row.usage,
                open_transactions: match tids.live < tids.limit {
                    true => tids.live,
                    false => open.get(&(number, port)).copied().unwrap_or(0),
                },
                oldest_transaction: row.ages.transaction,
                rate_drops: row.statistics.drops(vf_tunnel::DropReason::RateLimited),
                pkeys: (!is_as_at_start).then(|| PKeyTable {
                    wanted: settings.cloned().unwrap_or_default().pkeys,
                    keys: keys.get(&(number, port)).cloned().unwrap_or_default(),
                }),
                no_receives: lost(function, port, DropReason::NoReceive),
                foreign: lost(function, port, DropReason::ForeignPeer),
                ..VfPort::new(reason, of_port.guid_view(number))
            };
            vf.ports.insert(port, facts);
        }
        vfs
    }

    fn stall_of(&self, host: &LabHost, vf: VfId) -> Option<Stall> {
        let (stall, ended) = self.stalled.get(&host.id.vf(vf))?;
        Some(Stall {
            work: stall.to_string(),
            ended: *ended,
        })
    }

    /// Returns `true` if the link of a port was made worse than its cable by order.
    fn is_impaired(&self, fabric: &Fabric, at: Endpoint) -> bool {
        let link = fabric.link_at(at);
        let cable = link.and_then(|link| fabric.link_config(link));
        let sound = link.and_then(|link| self.cables.sound(link));
        let rates = |of: &LinkConfig| (of.widths, of.speeds, of.extended_speeds);
        sound
            .zip(cable)
            .is_some_and(|(sound, cable)| rates(sound) != rates(&cable))
    }
}

impl Survey<'_> {
    /// Adds the partitions of a PF's port and of its SM's, and, if they matter, the ways of packets between them.
    fn add_port_of_pf(&mut self, at: Endpoint, ways_matter: bool) {
        let Some(own) = place(&self.ids, at) else {
            return;
        };
        let sm_lid = self.subnet.port(own).map(|port| port.sm_lid);
        let sm = sm_lid.and_then(|lid| self.subnet.owner(lid));
        let sm = sm.map(|sm| (sm, self.endpoint(sm)));
        for at in [Some(at), sm.map(|(_, at)| at)].into_iter().flatten() {
            self.add_partitions(at);
        }
        if let Some((sm, _)) = sm.filter(|_| ways_matter) {
            self.add_ways(own, sm);
        }
    }

    /// Adds the partitions of a port.
    pub(super) fn add_partitions(&mut self, at: Endpoint) {
        if let Some(place) = self.place(at) {
            let port = self.fabric.port(at);
            let table = self.subnet.partitions.entry(place);
            table.or_insert_with(|| port.map(pkeys).unwrap_or_default());
        }
    }

    /// Returns the place of a port in the subnet.
    pub(super) fn place(&self, at: Endpoint) -> Option<PortAt> {
        place(&self.ids, at)
    }

    fn endpoint(&self, at: PortAt) -> Endpoint {
        self.ids[at.node].port(at.port.0)
    }

    /// Adds the ways of packets between two ports.
    pub(super) fn add_ways(&mut self, a: PortAt, b: PortAt) {
        for ends in [[a, b], [b, a]] {
            let [from, to] = ends.map(|end| self.endpoint(end));
            let lid = self
                .fabric
                .port(to)
                .map(|port| port.lid)
                .unwrap_or_default();
            let mut hops = Vec::new();
            let mut cross = |hop: [Endpoint; 2]| {
                if let [Some(out), Some(come)] = hop.map(|at| place(&self.ids, at)) {
                    hops.push([out, come]);
                }
            };
            let way = self
                .fabric
                .follow_lid(from, lid, Travelling::Data, &mut cross);
            let (Ok(end) | Err(end)) = way;
            if let Some(end) = place(&self.ids, end) {
                self.subnet.ways.insert(ends, Way { hops, end });
            }
        }
    }
}

fn place(ids: &[NodeId], at: Endpoint) -> Option<PortAt> {
    Some(PortAt {
        node: ids.binary_search(&at.node).ok()?,
        port: at.port,
    })
}

fn node_name(node: &FabricNode) -> &str {
    node.name().unwrap_or("?")
}

/// Returns the end ports of a node: of a switch, port 0.
pub(super) fn end_ports(node: &FabricNode) -> &[PhysicalPort] {
    match node.kind() {
        FabricKind::Switch => node.ports().get(..1).unwrap_or_default(),
        FabricKind::ChannelAdapter => node.ports(),
    }
}

fn node(fabric: &Fabric, id: NodeId) -> Option<Node> {
    let node = fabric.node(id)?;
    Some(Node {
        name: node_name(node).to_owned(),
        kind: match node.kind() {
            FabricKind::ChannelAdapter if fabric.is_gateway(id) => NodeKind::Gateway,
            FabricKind::ChannelAdapter => NodeKind::Adapter,
            FabricKind::Switch => NodeKind::Switch,
        },
        ports: node.ports().iter().map(|of| port(node, of)).collect(),
    })
}

/// Returns the node of an adapter outside of the fabric.
fn outside(name: &str, hca: &dyn OutsideHca) -> Node {
    let ports = (1..=hca.attributes().num_ports).map(PortNum);
    let ports = ports.filter_map(|number| {
        let port = hca.query_port(number).ok()?;
        let gid = hca.query_gid(number, GidIndex(0)).unwrap_or_default();
        Some(Port {
            number,
            guid: gid.interface_id(),
            state: port.state,
            physical_state: port.physical_state,
            lid: port.lid,
            lmc: port.lmc,
            sm_lid: port.sm_lid,
            ..Port::default()
        })
    });
    Node {
        name: name.to_owned(),
        kind: NodeKind::Adapter,
        ports: ports.collect(),
    }
}

fn port(node: &FabricNode, port: &PhysicalPort) -> Port {
    let refused = || {
        let mut drops = node.drops().iter();
        let is_refusal = |at, reason| at == port.number && reason == DropReason::BadMKey;
        let (.., dropped) = drops.find(|(at, _, reason, _)| is_refusal(*at, *reason))?;
        Some(Dropped {
            packets: dropped.packets,
            last: dropped.last,
        })
    };
    let has_m_key = port.m_key != MKey::default();
    Port {
        number: port.number,
        guid: port.guid,
        state: port.state,
        physical_state: port.physical_state,
        lid: port.lid,
        lmc: port.lmc,
        sm_lid: port.sm_lid,
        is_sm: port.capabilities.contains(CapabilityMask::IS_SM),
        m_key: port.m_key,
        m_key_violations: port.m_key_violations,
        refused_smps: has_m_key.then(refused).flatten(),
        rates: rates(port),
        link: None,
    }
}

/// Returns the P_Key table of a port, up to its last key.
fn pkeys(port: &PhysicalPort) -> Vec<PKey> {
    let keys = (0..port.pkey_cap).filter_map(|index| port.pkey(PKeyIndex(index)));
    let mut keys: Vec<PKey> = keys.collect();
    let last = keys.iter().rposition(|key| key.is_valid());
    keys.truncate(last.map_or(0, |last| last + 1));
    keys
}

/// Returns the P_Keys of a PF's VFs, by index.
fn keys(context: &PfContext) -> BTreeMap<(VfId, PortNum), Vec<(u16, PKey)>> {
    let mut keys: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for row in context.pkeys() {
        let key = (row.index.0.0, row.pkey);
        keys.entry((row.vf, row.port)).or_default().push(key);
    }
    keys
}

/// Counts the transactions of a PF's VFs that are not answered.
fn open_transactions(context: &PfContext, now: Instant) -> BTreeMap<(VfId, PortNum), usize> {
    let mut open = BTreeMap::new();
    let rows = Inspect::tids(context, now);
    for row in rows.filter(|row| row.transaction.state != TransactionState::Answered) {
        *open.entry((row.vf, row.port)).or_default() += 1;
    }
    open
}

/// Returns the facts of the program that has a VF.
fn program(row: &ProgramRow) -> Option<Program> {
    Some(Program {
        pid: row.pid,
        since: row.since?,
        queue_pairs: row.usage.queue_pairs,
        outstanding: row.usage.outstanding,
        waiting: row.usage.waiting,
        dropped_events: row.usage.dropped_events,
        memory: row.usage.memory,
        memory_most: row.usage.memory_most,
        slow_memory: row.slow_memory,
    })
}

#[cfg(test)]
mod tests {
    use ib_vtime::Duration;
    use vhca_control::{FaultyWidth, LinkFaults};
    use vhca_diagnosis::why;

    use super::*;
    use crate::serve::tests::pass;
    use crate::serve::{Options, Service, TopologySpec};

    /// Returns the parts of the subnet in the snapshots of all hosts. The whole subnet has to give the same diagnoses.
    fn extents(service: &Service) -> Vec<Extent> {
        let lab = service.lab();
        let of_host = |host: &LabHost| {
            let snapshot = lab.snapshot([host].into_iter());
            let whole = lab.facts(&[host], lab.survey(lab.world().fabric(), &[host], None));
            for vf in 0..5 {
                let [found, expected] =
                    [&snapshot, &whole].map(|facts| why(facts, &host.name, vf, PortNum(1)));
                assert_eq!(found, expected);
            }
            snapshot.subnet.extent
        };
        lab.inventory.pf_hosts().map(of_host).collect()
    }

    #[test]
    fn diagnoses_of_ports_that_are_up_need_no_more_than_the_near_part_of_the_subnet() {
        let options = Options {
            topology: TopologySpec::ThreeSwitch,
            vfs: 3,
            ..Options::default()
        };
        let mut service = Service::in_virtual_time(Lab::build(&options, 1).unwrap());
        assert_eq!(extents(&service), [Extent::Whole, Extent::Whole]);
        pass(&mut service, Duration::from_secs(5));
        assert_eq!(extents(&service), [Extent::Near, Extent::Near]);
        let narrow = LinkFaults {
            width: Some(FaultyWidth::X1),
            ..LinkFaults::default()
        };
        let lab = service.lab_mut();
        lab.set_link_faults("host-a/1", None, narrow).unwrap();
        pass(&mut service, Duration::from_secs(5));
        assert_eq!(extents(&service), [Extent::Near, Extent::Near]);
        service.lab_mut().set_link("host-b/1", None, false).unwrap();
        pass(&mut service, Duration::from_millis(10));
        assert_eq!(extents(&service), [Extent::Near, Extent::Whole]);
    }
}
