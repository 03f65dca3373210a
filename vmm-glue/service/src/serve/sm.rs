//! Subnet managers of the fabric, for `vhca show sm` and `vhca sm`.

use std::collections::BTreeMap;

use emulated_hca::Endpoint;
use ib_wire::smp::{CapabilityMask, SmInfo, SmState};
use ib_wire::{Guid, PKey};
use subnet_lite::SubnetManager;
use vhca_control::Refusal;

use super::lab::Lab;
use super::snapshot::end_ports;
use crate::show::{PartitionRow, SmRow};

impl Lab {
    /// Returns the managers of all ports at which one runs, as the ports say (IsSM), and what is known of them.
    pub(super) fn sm_rows(&self) -> Vec<SmRow> {
        let own = self.embedded();
        let mut said: BTreeMap<Guid, SmInfo> = BTreeMap::new();
        let mut rows = Vec::new();
        if let Some(manager) = own {
            let sm = manager.sm();
            said.extend(sm.other_managers());
            said.insert(sm.port_guid(), sm.sm_info());
        }
        let subnet = self.subnet();
        for at in subnet.sm_ports() {
            let Some(port) = subnet.port(at) else {
                continue;
            };
            let info = said.get(&port.guid);
            let answered = || subnet.sm_answers.get(&at).copied().flatten();
            // A manager that the embedded one has not met is master at least where its port has its own LID as the SM's.
            let masters = || subnet.is_master(at).then_some(SmState::MASTER);
            let embedded = own.filter(|manager| manager.sm().port_guid() == port.guid);
            let facts = self.service_facts().manager.filter(|_| embedded.is_some());
            rows.push(SmRow {
                node: subnet.node_name(at.node).to_owned(),
                port: at.port,
                guid: port.guid,
                lid: port.lid,
                kind: if embedded.is_some() {
                    "embedded"
                } else {
                    "program"
                },
                state: (answered().or_else(|| info.map(SmInfo::state))).or_else(masters),
                priority: info.map(SmInfo::priority),
                sweeps: facts.map(|facts| facts.stats.heavy_sweeps),
                last_sweep: facts.and_then(|facts| facts.last_sweep),
                last_sweep_age: facts.and_then(|facts| facts.last_sweep_age),
            });
        }
        rows
    }

    /// Returns the partitions of the embedded manager; of another one they are not known.
    pub(super) fn partition_rows(&self) -> Vec<PartitionRow> {
        let Some(manager) = self.embedded() else {
            return Vec::new();
        };
        let subnet = self.subnet();
        let guids: Vec<Guid> = subnet.end_ports().map(|(_, port)| port.guid).collect();
        let partitions = manager.sm().config().partitions.iter();
        let rows = partitions.map(|partition| {
            let keys = || guids.iter().filter_map(|guid| partition.pkey_of(*guid));
            let full = keys().filter(|key| key.is_full()).count();
            PartitionRow {
                pkey: PKey::new(partition.pkey.base() | 0x8000),
                sl: partition.sl,
                ipoib: partition.ipoib.is_some(),
                full,
                limited: keys().count() - full,
            }
        });
        rows.collect()
    }

    /// Returns the port of the embedded manager, if that runs.
    pub(super) fn manager_port(&self) -> Option<Endpoint> {
        let host = self.inventory.manager()?.id;
        let host = self.world().host(host);
        Some(host.node().port(host.manager()?.port().0))
    }

    /// Returns the ports at which subnet managers run, as the ports say (IsSM).
    pub(super) fn manager_ports(&self) -> Vec<Endpoint> {
        let fabric = self.world().fabric();
        let nodes = fabric
            .nodes()
            .filter_map(|(id, _)| Some((id, fabric.node(id)?)));
        let ports = nodes.flat_map(|(id, node)| {
            let ends = end_ports(node).iter();
            let managers = ends.filter(|port| port.capabilities.contains(CapabilityMask::IS_SM));
            managers.map(move |port| id.port(port.number.0))
        });
        ports.collect()
    }

    /// Starts a heavy sweep of the embedded manager.
    ///
    /// # Errors
    /// A refusal if none runs.
    pub fn sweep(&mut self) -> Result<(), Refusal> {
        let host = self.inventory.manager().map(|host| host.id);
        if host.is_some_and(|host| self.world_mut().request_sweep(host)) {
            return Ok(());
        }
        let message = "vhca's own subnet manager does not run: have the one that does sweep (OpenSM: kill -HUP), \
                       or start the service with --sm lite";
        Err(Refusal::new("no_manager", message))
    }

    /// Returns the embedded manager.
    fn embedded(&self) -> Option<&SubnetManager> {
        self.world().host(self.inventory.manager()?.id).manager()
    }
}

#[cfg(test)]
mod tests {
    use ib_vtime::{Duration, Instant};
    use vhca::Slice;

    use super::*;
    use crate::serve::{Options, SmChoice};

    fn pass(lab: &mut Lab, from_ms: u64) {
        for ms in from_ms..from_ms + 500 {
            let now = Instant::ZERO + Duration::from_millis(ms);
            lab.poll(now, &mut Slice::endless());
        }
    }

    #[test]
    fn the_embedded_manager_sweeps_when_it_is_told_to() {
        let mut lab = Lab::build(&Options::default(), 1).unwrap();
        pass(&mut lab, 0);
        let row = |lab: &Lab| match &lab.sm_rows()[..] {
            [row] => row.clone(),
            rows => panic!("{rows:?}"),
        };
        let before = row(&lab);
        assert_eq!(before.state, Some(SmState::MASTER));
        assert_eq!((before.node.as_str(), before.sweeps), ("mgmt", Some(1)));
        assert_eq!(lab.sweep(), Ok(()));
        pass(&mut lab, 500);
        assert_eq!(row(&lab).sweeps, Some(2));
        let [partition] = lab.partition_rows()[..] else {
            panic!("the default partition");
        };
        let ports = lab.subnet().end_ports().count();
        assert_eq!((partition.full, partition.limited), (ports, 0));
    }

    #[test]
    fn without_an_embedded_manager_there_is_nothing_to_sweep() {
        let options = Options {
            sm: SmChoice::None,
            ..Options::default()
        };
        let mut lab = Lab::build(&options, 1).unwrap();
        assert_eq!(lab.sweep().unwrap_err().code, "no_manager");
        assert_eq!((lab.sm_rows(), lab.partition_rows()), (vec![], vec![]));
    }
}
