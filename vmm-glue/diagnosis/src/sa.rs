//! Reasons for which the SA does not answer a port.

use ib_wire::Lid;

use crate::fault::Fault;
use crate::snapshot::OnPort;
use crate::subnet::{Extent, PortAt, Subnet};
use crate::{commands, links, m_keys, managers, partitions};

/// Returns `true` if the SA answered the port when it was asked last.
pub(crate) fn answers(on: OnPort<'_>) -> bool {
    on.facts().and_then(|port| port.sa_answers) == Some(true)
}

/// Returns `true` if the SA did not answer the port when it was asked last.
pub(crate) fn is_silent(on: OnPort<'_>) -> bool {
    on.facts().and_then(|port| port.sa_answers) == Some(false)
}

/// Returns the faults that keep a silent SA from answering a port, the one that is to be mended first at the start; none if it
/// answered when it was asked last.
pub(crate) fn silent(on: OnPort<'_>) -> Vec<Fault> {
    if !is_silent(on) {
        return Vec::new();
    }
    let (subnet, at) = (on.subnet(), on.at());
    let sm_lid = on.physical().map_or(Lid::NONE, |port| port.sm_lid);
    let fault = Fault::new("sa_not_answering", "the SA does not answer");
    let at_lid = format!("the SA is at LID {}", sm_lid.get());
    if subnet.is_attached(at) {
        return vec![
            fault
                .seen(at_lid)
                .next("start the subnet manager of the simulator's fabric, or see its log"),
        ];
    }
    if subnet.extent == Extent::Adapters {
        return vec![fault
            .seen(at_lid)
            .seen("the fabric behind the adapter is not known here")
            .next("see whether a subnet manager runs on the fabric and packets reach it, and its log")];
    }
    let Some(sm) = subnet.owner(sm_lid) else {
        let fault = fault.seen(format!("{at_lid}, which no port has"));
        return vec![managers::lost(on, fault, sm_lid)];
    };
    let managed = m_keys::managed_between(subnet, at, sm);
    let foreign = m_keys::foreign(subnet, &managed);
    let m_key = foreign.or_else(|| m_keys::refused(subnet, on.snapshot.taken, &managed));
    let mut faults = Vec::from_iter(partitions::emptied(subnet, at, sm));
    faults.extend(cut_off(subnet, at, sm));
    faults.extend(partitions::none_shared(subnet, at, sm));
    faults.extend(m_key);
    faults.extend(links::erroneous(on));
    if faults.is_empty() {
        faults.extend(unanswered(on, sm));
    }
    if faults.is_empty() {
        let fault = fault.seen(format!("{at_lid}, which is {}", subnet.port_name(sm)));
        faults.push(managers::lost(on, fault, sm_lid));
    }
    faults
}

/// Returns the fault that the SM's port did not answer a question of the port, though a route leads there.
fn unanswered(on: OnPort<'_>, sm: PortAt) -> Option<Fault> {
    if on.facts()?.sm_port_answers == Some(true) {
        return None;
    }
    let name = on.subnet().port_name(sm);
    let summary = "the SA cannot be reached: packets to its port are not answered";
    let fault = Fault::new("sa_unreachable", summary).seen(format!(
        "a route leads to {name}, and six questions within two seconds had no answer"
    ));
    Some(fault.next("vhca show drops --problems"))
}

/// Returns the reason for which packets between a port and the SM's port do not arrive, if none pass the fabric.
fn cut_off(subnet: &Subnet, at: PortAt, sm: PortAt) -> Option<Fault> {
    if let Some(link) = links::down(subnet, sm) {
        return Some(link.called(
            "sa_unreachable",
            "the SA cannot be reached: the link of its port is down",
        ));
    }
    [(at, sm), (sm, at)].into_iter().find_map(|(from, to)| {
        let end = subnet.ways.get(&[from, to])?.end;
        if end == to {
            return None;
        }
        let [name, far, last] = [from, to, end].map(|at| subnet.port_name(at));
        let way = format!("packets from {name} to {far} end at {last}");
        if let Some(link) = links::down(subnet, end) {
            let cut = "the SA cannot be reached: a link on the way is down";
            return Some(link.called("sa_unreachable", cut).seen(way));
        }
        if let Some(link) = links::cut_between(subnet, at, sm) {
            let cut = "the SA cannot be reached: the fabric is cut in two";
            return Some(link.called("sa_unreachable", cut).seen(way));
        }
        let fault = Fault::new("sa_unreachable", "the SA cannot be reached").seen(way);
        Some(fault.next(commands::route_anew(subnet, at)))
    })
}
