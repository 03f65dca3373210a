//! Rows of tables from PF contexts, the fabric and the service; and the text that Prometheus reads.
//!
//! `vhca_control::table` says how values are written, and prints them.

mod drops;
mod fabric;
mod link;
mod metrics;
mod page;
mod programs;
mod qps;
mod rows;
mod sm;
mod table;
#[cfg(test)]
mod tests;
mod totals;
mod trunks;
mod vfs;
mod vmms;

use emulated_hca::{Fabric, LinkId, NodeId};
use ib_vtime::{Duration, Instant};
use ib_wire::PortNum;
use pf_context::inspect::Inspect;
use vhca::world::OutsideHca;
use vhca_control::Subject;

pub(crate) use link::rates;
pub use metrics::{ManagerFacts, Metrics, Programs, ServiceFacts};
pub use page::Page;
pub use programs::{ProgramRow, ProgramUsage};
pub use sm::{PartitionRow, SmRow};
pub use table::Filter;
pub use totals::Totals;
pub use trunks::TrunkRow;
pub use vfs::{AwaitedRow, FaultCodes};
pub use vmms::VmmRow;

use table::Table;

/// A PF by name.
#[derive(Clone, Copy, Debug)]
pub struct NamedPf<'a> {
    /// The name of its host.
    pub name: &'a str,
    /// Its adapter.
    pub node: NodeId,
    /// What there is to look at.
    pub rows: &'a dyn Inspect,
}

/// All that there is to look at.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The PFs.
    pub pfs: &'a [NamedPf<'a>],
    /// The VFs of these PFs that are offered to VMMs.
    pub vmms: &'a dyn Vmms,
    /// The fabric behind them.
    pub fabric: &'a Fabric,
    /// The service itself.
    pub service: &'a ServiceFacts,
    /// The time.
    pub now: Instant,
}

/// Facts that only the service has: planned faults of links, bare nodes, VMMs and faults of VFs, and nodes whose VFs are still awaited.
pub trait Vmms: std::fmt::Debug {
    /// Returns true if there are none.
    fn is_empty(&self) -> bool;

    /// Returns those of a host.
    fn of_host(&self, host: &str) -> Vec<VmmRow>;

    /// Returns the faults that the service makes by order on a link, in the words of `vhca set link`, if there are some.
    fn planned_faults(&self, _link: LinkId) -> Option<String> {
        None
    }

    /// Returns `true` if nothing of the service's runs on a node.
    fn is_bare(&self, _node: NodeId) -> bool {
        false
    }

    /// Returns the adapter outside of the fabric for which a node stands.
    fn outside(&self, _node: NodeId) -> Option<&dyn OutsideHca> {
        None
    }

    /// Returns the faults of a host's VFs.
    fn faults_of(&self, _host: &str) -> FaultCodes {
        FaultCodes::default()
    }

    /// Returns how long ago the SA last answered a port of a host, if it has ever been asked.
    fn sa_answer_age(&self, _host: &str, _port: PortNum) -> Option<Duration> {
        None
    }

    /// Returns the VFs of a host that are offered to programs.
    fn programs_of(&self, _host: &str) -> Vec<ProgramRow> {
        Vec::new()
    }

    /// Returns the subnet managers of the fabric.
    fn subnet_managers(&self) -> Vec<SmRow> {
        Vec::new()
    }

    /// Returns the partitions of the embedded subnet manager.
    fn partitions(&self) -> Vec<PartitionRow> {
        Vec::new()
    }

    /// Returns the nodes of simulators that are not attached yet.
    fn awaited(&self) -> Vec<AwaitedRow> {
        Vec::new()
    }
}

/// Returns the tables of a subject, to be written. In tables of what is in PFs the first column names the host.
#[must_use]
pub fn page(scene: &Scene<'_>, subject: Subject, filter: Filter) -> Page {
    let tables = match subject {
        Subject::Vfs => {
            let mut tables = vec![Table::of_pfs("vfs", vfs::rows)];
            if !scene.vmms.is_empty() {
                tables.push(Table::of_vmms());
            }
            if !scene.vmms.awaited().is_empty() {
                tables.push(Table::of_service("awaited", |scene| scene.vmms.awaited()));
            }
            tables
        }
        Subject::Ports => vec![
            Table::of_nodes("ports", fabric::ports),
            Table::of_pfs("pf_ports", |_, pf| pf.rows.ports().collect()),
        ],
        Subject::Tids => vec![Table::of_pfs("tids", |scene, pf| {
            pf.rows.tids(scene.now).collect()
        })],
        Subject::Cm => {
            let mut tables = vec![Table::of_pfs("cm", |scene, pf| {
                pf.rows.cm(scene.now).collect()
            })];
            if scene.pfs.iter().any(|pf| pf.rows.sidr().next().is_some()) {
                tables.push(Table::of_pfs("sidr", |_, pf| pf.rows.sidr().collect()));
            }
            tables
        }
        Subject::Mcast => vec![
            Table::of_pfs("groups", |_, pf| pf.rows.groups().collect()),
            Table::of_pfs("subscriptions", |_, pf| pf.rows.subscriptions().collect()),
        ],
        Subject::Guids => vec![Table::of_pfs("guids", |_, pf| pf.rows.guids().collect())],
        Subject::Pkeys => vec![Table::of_pfs("pkeys", |_, pf| {
            pf.rows.pkeys().filter(rows::is_used).collect()
        })],
        Subject::Counters => vec![Table::of_pfs("counters", |scene, pf| {
            pf.rows.counters(scene.now).collect()
        })],
        Subject::Drops => vec![Table::of_nodes("drops", |scene, node| {
            drops::rows(scene.fabric, node, scene.now)
        })],
        Subject::Qps => vec![Table::of_nodes("qps", |scene, node| {
            qps::rows(scene.fabric, node)
        })],
        Subject::Programs => vec![Table::of_pfs("programs", |scene, pf| {
            scene.vmms.programs_of(pf.name)
        })],
        Subject::Sm => vec![
            Table::of_service("managers", |scene| scene.vmms.subnet_managers()),
            Table::of_service("partitions", |scene| scene.vmms.partitions()),
        ],
        Subject::Fabric => {
            let mut tables = vec![
                Table::of_nodes("nodes", fabric::node),
                Table::of_links("links", |scene, filter, node| {
                    fabric::links(scene, filter, node)
                }),
            ];
            if !scene.service.trunks.is_empty() {
                tables.push(Table::of_nodes("trunks", |scene, node| {
                    let trunks = scene.service.trunks.iter();
                    trunks
                        .filter(|trunk| trunk.near.node == node)
                        .cloned()
                        .collect()
                }));
            }
            tables
        }
    };
    Page::new(tables, filter)
}
