//! Subnet managers: how far a port's packets get to them, and how they manage it again.

use ib_wire::smp::SmState;
use ib_wire::{Lid, PortNum};

use crate::commands;
use crate::fault::Fault;
use crate::links;
use crate::shell::quoted;
use crate::snapshot::OnPort;
use crate::subnet::{PortAt, Subnet};

/// Remedy of a port that a subnet manager may not have noticed yet.
pub(crate) const WAIT: &str =
    "wait ten seconds, in which a subnet manager notices the port; then ask again";

/// Returns the fault that the link between a port and a subnet manager that it does not reach is down.
pub(crate) fn cut_off(subnet: &Subnet, at: PortAt) -> Option<Fault> {
    subnet.sm_ports().find_map(|sm| {
        let fault = links::cut_between(subnet, at, sm)?;
        Some(fault.seen(format!(
            "the subnet manager on {} is beyond it",
            subnet.port_name(sm)
        )))
    })
}

/// Adds to a silent SA's fault the fate of the subnet manager that a port has, and how to have one again.
pub(crate) fn lost(on: OnPort<'_>, fault: Fault, sm_lid: Lid) -> Fault {
    let (subnet, at) = (on.subnet(), on.at());
    let owner = subnet.owner(sm_lid);
    let port = owner.and_then(|sm| Some((sm, subnet.port(sm)?)));
    let near = subnet.manager_near(at);
    if let Some((sm, port)) = port {
        let name = subnet.port_name(sm);
        let other_is_master = near.is_some_and(|near| near != sm && subnet.is_master(near));
        if port.is_sm && !other_is_master {
            let fault = fault.seen(format!(
                "{name} says that a subnet manager runs there (IsSM), and answers packets of the port"
            ));
            return idle(subnet, fault, sm);
        }
    }
    let fault = match port {
        Some((sm, _)) => {
            let name = subnet.port_name(sm);
            fault.seen(format!(
                "no master subnet manager runs there, as far as {name} says (IsSM)"
            ))
        }
        None => fault,
    };
    let Some(sm) = near else {
        return fault.next(start(subnet, at));
    };
    let name = subnet.port_name(sm);
    let lid = subnet.port(sm).map_or(Lid::NONE, |port| port.lid);
    let fault = fault.seen(format!(
        "a subnet manager runs on {name}, at LID {}",
        lid.get()
    ));
    if subnet.is_master(sm) {
        fault.next(commands::port(subnet, at, &format!("smlid {}", lid.get())))
    } else if owner.is_none() {
        // Its LID was changed: the subnet still has the one from before as the SM's.
        fault.next(commands::port(subnet, sm, &format!("lid {}", sm_lid.get())))
    } else {
        match subnet.sm_answers.get(&sm) {
            Some(None | Some(SmState::NOT_ACTIVE)) => idle(subnet, fault, sm),
            _ => fault.next(format!(
                "wait a minute: the subnet manager on {name} takes over, unless it is stopped: see its log"
            )),
        }
    }
}

/// Adds to a fault the state of the subnet manager of a port that does not do its work, and the command or words that end that.
pub(crate) fn idle(subnet: &Subnet, fault: Fault, sm: PortAt) -> Fault {
    let name = subnet.port_name(sm);
    let state = match subnet.sm_answers.get(&sm) {
        None => return fault.next(wake(subnet, sm)),
        Some(None) => {
            let fault = fault.seen(format!(
                "the subnet manager on {name} did not answer Get(SMInfo)"
            ));
            return fault.next(wake(subnet, sm));
        }
        Some(Some(state)) => *state,
    };
    let fault = fault.seen(format!(
        "the subnet manager on {name} says by SMInfo that it is {state:?}"
    ));
    match state {
        SmState::NOT_ACTIVE => fault.next(format!(
            "start the subnet manager on {name} anew with sm_inactive FALSE, or have another one manage the subnet"
        )),
        _ => fault.next(commands::sweep(subnet, sm)).remark("see its log if that does not help"),
    }
}

/// Returns the command that makes an idle subnet manager sweep.
fn wake(subnet: &Subnet, sm: PortAt) -> String {
    let name = subnet.port_name(sm);
    match subnet.managers.get(&sm) {
        Some(pid) => format!(
            "kill -CONT {pid} # that is the subnet manager on {name}: if it was not stopped, see its log, and whether OpenSM has sm_inactive TRUE"
        ),
        None => format!(
            "see whether the subnet manager on {name} is stopped (kill -CONT PID), and its log"
        ),
    }
}

/// Returns the command that starts a subnet manager that reaches a port: on the host for management if it can from there.
pub(crate) fn start(subnet: &Subnet, at: PortAt) -> String {
    if subnet.is_attached(at) {
        return "start a subnet manager on the simulator's fabric, such as opensm".to_owned();
    }
    let mut near = subnet.reachable(at).into_iter();
    let on = near.find(|near| Some(near.node) == subnet.management);
    let on = on.unwrap_or(at);
    let last = subnet.nodes.get(on.node).and_then(|node| node.ports.last());
    // Without a GUID OpenSM takes the first port that it likes.
    let has_others = last.is_some_and(|last| last.number > PortNum(1));
    let port = subnet.port(on).filter(|_| has_others);
    let bound = port.map_or_else(String::new, |port| format!("-g {} ", port.guid));
    format!(
        "OSM_CACHE_DIR=/tmp vhca run --node {} -- opensm {bound}-f opensm.log",
        quoted(subnet.node_name(on.node))
    )
}
