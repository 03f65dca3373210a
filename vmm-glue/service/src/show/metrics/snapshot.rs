//! Values of all metrics, collected at the grain at which they are written.

use std::collections::BTreeMap;

use emulated_hca::hca::ConnectionCounters;
use emulated_hca::{DropReason, Endpoint, Fabric, NodeId, PortCounters};
use hca_api::FunctionId;
use ib_vtime::Duration;
use ib_wire::PortNum;
use pf_context::inspect::{GroupRow, PortRow, VfRow};
use pf_context::{MadStatistics, VfAges, VfUsage};
use vf_tunnel::VfId;
use vhca_control::By;

use super::add_label;
use super::service::ServiceFacts;
use crate::show::fabric;
use crate::show::link::Link;
use crate::show::table::Filter;
use crate::show::{FaultCodes, NamedPf, Scene, VmmRow};

/// VFs together: one, those of a port, or all.
#[derive(Debug, Default)]
pub(super) struct VfSample {
    pub(super) labels: String,
    pub(super) statistics: MadStatistics,
    pub(super) usage: VfUsage,
    pub(super) ages: VfAges,
    pub(super) delivering: usize,
    /// State and reason of a single VF's port.
    pub(super) state: Option<(bool, &'static str)>,
}

/// Ports that VFs share together: one, or all.
#[derive(Debug, Default)]
pub(super) struct PfPortSample {
    pub(super) labels: String,
    /// Ports that are up.
    pub(super) up: u64,
    /// SA requests of the ports' own software, and, unless the grain is VFs, of theirs; the statistics likewise.
    pub(super) sa_requests: usize,
    pub(super) path_cache: usize,
    pub(super) groups: usize,
    pub(super) members: usize,
    pub(super) statistics: MadStatistics,
    /// VFs by why their ports are as they are, and by the fault that `vhca why` has.
    pub(super) reasons: BTreeMap<(&'static str, &'static str), u64>,
    /// Age of the last answer of an SA: the highest of all ports.
    pub(super) sa_answer_age: Option<Duration>,
    /// VFs that have all that they may have of something.
    pub(super) at_quota: BTreeMap<&'static str, u64>,
}

/// A multicast group at a port.
#[derive(Debug)]
pub(super) struct GroupSample {
    pub(super) labels: String,
    pub(super) members: usize,
    pub(super) sa_joins: u64,
}

/// What a host has, or all of them together.
#[derive(Debug, Default)]
pub(super) struct HostSample {
    pub(super) vfs: Vec<VfSample>,
    pub(super) ports: Vec<PfPortSample>,
    pub(super) groups: Vec<GroupSample>,
    pub(super) vmms: Vec<(String, VmmSample)>,
}

/// VFs that are offered to VMMs together.
#[derive(Clone, Debug, Default)]
pub(super) struct VmmSample {
    pub(super) attached: u64,
    pub(super) row: VmmRow,
}

/// A port of a node, or all of them together.
#[derive(Debug)]
pub(super) struct PortSample {
    pub(super) labels: String,
    /// Of a single port.
    pub(super) link: Option<Link>,
    pub(super) counters: PortCounters,
}

/// What nodes have dropped, by labels.
pub(super) type Drops = BTreeMap<String, u64>;

/// Values of all metrics.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) by: By,
    filter: Filter,
    /// The host and the node that are collected next.
    host: usize,
    node: usize,
    is_complete: bool,
    pub(super) service: Option<ServiceFacts>,
    pub(super) hosts: Vec<HostSample>,
    /// The ports with a cable of each node, or of all.
    pub(super) nodes: Vec<Vec<PortSample>>,
    /// Ports with a cable by their logical state.
    pub(super) states: BTreeMap<String, u64>,
    pub(super) drops: Drops,
    /// Counters of connections, by labels.
    pub(super) connections: BTreeMap<String, ConnectionCounters>,
}

impl Snapshot {
    pub(super) const fn new(by: By, filter: Filter) -> Self {
        Self {
            by,
            filter,
            host: 0,
            node: 0,
            is_complete: false,
            service: None,
            hosts: Vec::new(),
            nodes: Vec::new(),
            states: BTreeMap::new(),
            drops: BTreeMap::new(),
            connections: BTreeMap::new(),
        }
    }

    /// Collects another host or node. Returns `false` if none was left.
    pub(super) fn collect(&mut self, scene: &Scene<'_>) -> bool {
        if self.is_complete {
            return false;
        }
        if let Some(pf) = scene.pfs.get(self.host) {
            self.host += 1;
            if self.filter.takes_node(pf.node) {
                self.collect_host(scene, pf);
            }
        } else if let Some((node, _)) = scene.fabric.nodes().nth(self.node) {
            self.node += 1;
            if self.filter.takes_node(node) && !scene.fabric.is_gateway(node) {
                self.collect_node(scene.fabric, node);
            }
        } else {
            if self.filter == Filter::default() {
                self.service = Some(scene.service.clone());
            }
            self.is_complete = true;
        }
        true
    }

    fn collect_host(&mut self, scene: &Scene<'_>, pf: &NamedPf<'_>) {
        let by = self.by;
        let mut host = match by {
            By::Total => self.hosts.pop().unwrap_or_default(),
            By::Host | By::Vf => HostSample::default(),
        };
        let label = |port: Option<PortNum>| {
            let mut labels = String::new();
            if by != By::Total {
                add_label(&mut labels, "pf", pf.name);
                if let Some(port) = port {
                    add_label(&mut labels, "port", port);
                }
            }
            labels
        };
        let only = self.filter.vf;
        for row in pf.rows.ports().filter(|_| only.is_none()) {
            let labels = label(Some(row.port));
            let sum = sample(&mut host.ports, labels);
            sum.add_port(&row);
            let age = scene.vmms.sa_answer_age(pf.name, row.port);
            sum.sa_answer_age = sum.sa_answer_age.max(age);
        }
        let faults = match only {
            None => scene.vmms.faults_of(pf.name),
            Some(_) => FaultCodes::default(),
        };
        let vfs = pf.rows.vfs(scene.now);
        for row in vfs.filter(|row| only.is_none_or(|only| only == row.vf)) {
            let mut labels = label(Some(row.port));
            if only.is_none() {
                let fault = faults.get(&(row.vf.get(), row.port.0)).copied();
                let sum = sample(&mut host.ports, labels.clone());
                sum.add_vf(by, &row, fault.unwrap_or("ok"));
            }
            if by == By::Vf {
                add_label(&mut labels, "vf", row.vf.get());
            }
            let vf = sample(&mut host.vfs, labels);
            vf.add(&row);
            vf.state = (by == By::Vf).then_some((row.up, row.reason));
        }
        if by == By::Vf && only.is_none() {
            let groups = pf.rows.groups();
            host.groups
                .extend(groups.map(|row| group(label(Some(row.port)), &row)));
        }
        for row in scene.vmms.of_host(pf.name) {
            if only.is_none_or(|only| only.get() == row.vf) {
                let mut labels = label(None);
                if by == By::Vf {
                    add_label(&mut labels, "vf", row.vf);
                }
                host.add_vmm(labels, &row);
            }
        }
        self.hosts.push(host);
    }

    fn collect_node(&mut self, fabric: &Fabric, id: NodeId) {
        let name = fabric::name(fabric, id);
        let mut ports = match self.by {
            By::Total => self.nodes.pop().unwrap_or_default(),
            By::Host | By::Vf => Vec::new(),
        };
        let ends = fabric.node(id).map_or(&[][..], |node| node.ports()).iter();
        let ends = ends.map(|port| id.port(port.number.0));
        let is_wanted = self.filter.vf.is_none();
        for at in ends.filter(|at| is_wanted && fabric.peer(*at).is_some()) {
            self.collect_port(fabric, &name, at, &mut ports);
        }
        self.nodes.push(ports);
        let drops = fabric
            .node(id)
            .into_iter()
            .flat_map(|node| node.drops().iter());
        for (port, function, reason, dropped) in drops {
            if !self.is_wanted(function) {
                continue;
            }
            let labels = self.drop_labels(&name, port, function, reason);
            *self.drops.entry(labels).or_default() += dropped.packets;
        }
        self.collect_connections(fabric, &name, id);
    }

    fn collect_connections(&mut self, fabric: &Fabric, name: &str, id: NodeId) {
        let functions = fabric.device(id).into_iter();
        for (function, counters) in functions.flat_map(|device| device.connection_counters()) {
            if counters == ConnectionCounters::default() || !self.is_wanted(Some(function)) {
                continue;
            }
            let mut labels = String::new();
            if self.by != By::Total {
                add_label(&mut labels, "node", name);
            }
            self.add_function(&mut labels, Some(function));
            self.connections.entry(labels).or_default().add(&counters);
        }
    }

    /// Adds the label of a function, if the grain is VFs.
    fn add_function(&self, labels: &mut String, function: Option<FunctionId>) {
        match function {
            Some(FunctionId::PF) if self.by == By::Vf => add_label(labels, "vf", "pf"),
            Some(vf) if self.by == By::Vf => add_label(labels, "vf", vf.0),
            _ => {}
        }
    }

    fn collect_port(
        &mut self,
        fabric: &Fabric,
        name: &str,
        at: Endpoint,
        ports: &mut Vec<PortSample>,
    ) {
        let (Some(link), Some(port)) = (Link::at(fabric, at), fabric.port(at)) else {
            return;
        };
        let state = link.state_name().unwrap_or("-").to_owned();
        *self.states.entry(state).or_default() += 1;
        if self.by == By::Total
            && let Some(all) = ports.first_mut()
        {
            all.counters = all.counters.plus(&port.counters);
            return;
        }
        let mut labels = String::new();
        if self.by != By::Total {
            add_label(&mut labels, "node", name);
            add_label(&mut labels, "port", at.port);
        }
        ports.push(PortSample {
            labels,
            link: (self.by != By::Total).then_some(link),
            counters: port.counters,
        });
    }

    /// Returns true if what was dropped of a function is wanted.
    fn is_wanted(&self, function: Option<FunctionId>) -> bool {
        let only = self.filter.vf.map(|vf: VfId| FunctionId(vf.get()));
        only.is_none() || function == only
    }

    fn drop_labels(
        &self,
        node: &str,
        port: PortNum,
        function: Option<FunctionId>,
        reason: DropReason,
    ) -> String {
        let mut labels = String::new();
        if self.by != By::Total {
            add_label(&mut labels, "node", node);
            add_label(&mut labels, "port", port);
        }
        self.add_function(&mut labels, function);
        add_label(&mut labels, "reason", reason.as_str());
        labels
    }
}

/// Something with labels, to which others with the same labels are added.
trait Labelled: Default {
    fn labels(&mut self) -> &mut String;
}

impl Labelled for VfSample {
    fn labels(&mut self) -> &mut String {
        &mut self.labels
    }
}

impl Labelled for PfPortSample {
    fn labels(&mut self) -> &mut String {
        &mut self.labels
    }
}

/// Returns the sample with these labels, which may be new. A host has few but those of VFs, of which each comes once.
fn sample<S: Labelled>(samples: &mut Vec<S>, labels: String) -> &mut S {
    const RECENT: usize = 4;
    let recent = samples.len().saturating_sub(RECENT);
    let found = samples[recent..]
        .iter_mut()
        .position(|sample| *sample.labels() == labels);
    let place = found.map_or(samples.len(), |place| recent + place);
    if found.is_none() {
        let mut sample = S::default();
        *sample.labels() = labels;
        samples.push(sample);
    }
    &mut samples[place]
}

impl VfSample {
    fn add(&mut self, row: &VfRow) {
        self.statistics.add(&row.statistics);
        let (to, from) = (&mut self.usage, &row.usage);
        for (to, from) in [
            (&mut to.tids, from.tids),
            (&mut to.sa_requests, from.sa_requests),
            (&mut to.cm_ids, from.cm_ids),
            (&mut to.cm_pending, from.cm_pending),
            (&mut to.groups, from.groups),
            (&mut to.joins, from.joins),
            (&mut to.subscriptions, from.subscriptions),
            (&mut to.subscribing, from.subscribing),
            (&mut to.queued, from.queued),
        ] {
            to.live += from.live;
            to.limit += from.limit;
        }
        let (to, from) = (&mut self.ages, &row.ages);
        to.transaction = to.transaction.max(from.transaction);
        to.exchange = to.exchange.max(from.exchange);
        to.frame = to.frame.max(from.frame);
        self.delivering += row.delivering;
    }
}

impl PfPortSample {
    fn add_port(&mut self, row: &PortRow) {
        self.up += u64::from(row.up);
        self.sa_requests += row.sa_requests;
        self.path_cache += row.sizes.path_cache;
        self.groups += row.sizes.mcast_groups;
        self.members += row.sizes.mcast_members;
        self.statistics.add(&row.statistics);
    }

    fn add_vf(&mut self, by: By, row: &VfRow, fault: &'static str) {
        if by != By::Vf {
            self.statistics.add(&row.statistics);
            self.sa_requests += row.usage.sa_requests.live;
        }
        *self.reasons.entry((row.reason, fault)).or_default() += 1;
        for (name, used) in row.usage.named() {
            if used.live > 0 && used.live >= used.limit {
                *self.at_quota.entry(name).or_default() += 1;
            }
        }
    }
}

impl HostSample {
    fn add_vmm(&mut self, labels: String, row: &VmmRow) {
        let same = self.vmms.last_mut().filter(|(of, _)| *of == labels);
        let sum = match same {
            Some((_, sum)) => sum,
            None => {
                self.vmms.push((labels, VmmSample::default()));
                let Some((_, sum)) = self.vmms.last_mut() else {
                    return;
                };
                sum
            }
        };
        sum.attached += u64::from(row.since.is_some());
        sum.row.vectors += row.vectors;
        sum.row.shared += row.shared;
        sum.row.touched += row.touched;
        sum.row.unshared += row.unshared;
        sum.row.resets += row.resets;
        sum.row.vmms += row.vmms;
        sum.row.refused += row.refused;
    }
}

fn group(mut labels: String, row: &GroupRow) -> GroupSample {
    add_label(&mut labels, "mgid", row.mgid);
    GroupSample {
        labels,
        members: row.members.len(),
        sa_joins: row.sa_joins,
    }
}
