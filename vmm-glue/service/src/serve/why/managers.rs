//! Subnet managers: where they run, how far a port's packets get to them, and what makes them manage it.

use emulated_hca::{Endpoint, PhysicalPort};
use ib_wire::Lid;
use ib_wire::smp::CapabilityMask;

use super::Fault;
use crate::serve::Lab;
use crate::shell::quoted;

impl Lab {
    /// The end ports at which a subnet manager runs, as their capability masks say.
    pub(in crate::serve) fn managers(&self) -> impl Iterator<Item = Endpoint> {
        self.end_ports()
            .filter_map(|(at, port)| is_manager(port).then_some(at))
    }

    /// Returns where a subnet manager runs that a port's SMPs reach, if any does. A master comes before those that stand by.
    pub(in crate::serve) fn manager_near(&self, at: Endpoint) -> Option<Endpoint> {
        let reachable = self.reachable(at);
        let near = || self.managers().filter(|sm| reachable.contains(sm));
        near()
            .find(|sm| self.is_master(*sm))
            .or_else(|| near().next())
    }

    /// Returns `true` if a port's own PortInfo has the port as its subnet manager's.
    pub(in crate::serve) fn is_master(&self, at: Endpoint) -> bool {
        let port = self.fabric().port(at);
        port.is_some_and(|port| is_manager(port) && port.owns_lid(port.sm_lid))
    }

    /// Returns the fault that the link between a port and a subnet manager that it does not reach is down.
    pub(super) fn cut_from_manager(&self, at: Endpoint) -> Option<Fault> {
        self.managers().find_map(|sm| {
            let fault = self.cut_between(at, sm)?;
            Some(fault.seen(format!(
                "the subnet manager on {} is beyond it",
                self.port_name(sm)
            )))
        })
    }

    /// Adds to a silent SA's fault what became of the subnet manager that a port has, and how to have one again.
    pub(super) fn why_no_manager(&self, fault: Fault, at: Endpoint, sm_lid: Lid) -> Fault {
        let owner = self.owner(sm_lid);
        let port = owner.and_then(|sm| Some((sm, self.fabric().port(sm)?)));
        let near = self.manager_near(at);
        if let Some((sm, port)) = port {
            let name = self.port_name(sm);
            let other_is_master = near.is_some_and(|near| near != sm && self.is_master(near));
            if is_manager(port) && !other_is_master {
                let fault = fault.seen(format!(
                    "{name} says that a subnet manager runs there (IsSM), and packets reach it"
                ));
                return fault.next(self.wake_the_manager(sm));
            }
        }
        let fault = match port {
            Some((sm, _)) => {
                let name = self.port_name(sm);
                fault.seen(format!(
                    "no master subnet manager runs there, as far as {name} says (IsSM)"
                ))
            }
            None => fault,
        };
        let Some(sm) = near else {
            return fault.next(self.start_a_manager(at));
        };
        let name = self.port_name(sm);
        let lid = self.fabric().port(sm).map_or(Lid::NONE, |port| port.lid);
        let fault = fault.seen(format!(
            "a subnet manager runs on {name}, at LID {}",
            lid.get()
        ));
        if self.is_master(sm) {
            fault.next(self.port_command(at, &format!("smlid {}", lid.get())))
        } else if owner.is_none() {
            // Its LID was changed: what the subnet has as the SM's is the one that it had.
            fault.next(self.port_command(sm, &format!("lid {}", sm_lid.get())))
        } else {
            fault.next(format!(
                "wait a minute: the subnet manager on {name} takes over, unless it is stopped: see its log"
            ))
        }
    }

    /// Returns the command by which a subnet manager that does nothing goes on.
    pub(super) fn wake_the_manager(&self, sm: Endpoint) -> String {
        let name = self.port_name(sm);
        match self.managers.get(&sm) {
            Some(pid) => format!(
                "kill -CONT {} # that is the subnet manager on {name}: if it was not stopped, see its log",
                pid.as_raw_nonzero()
            ),
            None => format!(
                "see whether the subnet manager on {name} is stopped (kill -CONT PID), and its log"
            ),
        }
    }

    /// Returns the command that starts a subnet manager that reaches a port: on the manager's host if it can from there.
    pub(super) fn start_a_manager(&self, at: Endpoint) -> String {
        if self.is_attached(at) {
            return "start a subnet manager on the simulator's fabric, such as opensm".to_owned();
        }
        let host = self.manager().map(|host| self.world().host(host.id).node());
        let mut near = self.reachable(at).into_iter();
        let on = near.find(|near| Some(near.node) == host).unwrap_or(at);
        let node = self.fabric().node(on.node);
        // Without a GUID OpenSM takes the first port that it likes.
        let port = node.filter(|node| node.port_count() > 1);
        let port = port.and_then(|node| node.port(on.port));
        let bound = port.map_or_else(String::new, |port| format!("-g {} ", port.guid));
        format!(
            "OSM_CACHE_DIR=/tmp vhca run --node {} -- opensm {bound}-f opensm.log",
            quoted(self.node_name(on.node))
        )
    }
}

fn is_manager(port: &PhysicalPort) -> bool {
    port.capabilities.contains(CapabilityMask::IS_SM)
}
