//! Reasons for which the SA does not answer a port.

use ib_wire::Lid;

use crate::fault::Fault;
use crate::snapshot::OnPort;
use crate::subnet::{Extent, PortAt, Subnet};
use crate::{links, m_keys, managers, partitions};

/// Returns `true` if the SA answered the port when it was asked last.
pub(crate) fn answers(on: OnPort<'_>) -> bool {
    on.facts().and_then(|port| port.sa_answers) == Some(true)
}

/// Returns the fault that keeps the SA from being used, if it did not answer when it was asked last.
pub(crate) fn silent(on: OnPort<'_>) -> Option<Fault> {
    let is_silent = on.facts()?.sa_answers == Some(false);
    is_silent.then(|| no_answer(on))
}

/// Returns the fault that keeps the SA from answering a port.
fn no_answer(on: OnPort<'_>) -> Fault {
    let (subnet, at) = (on.subnet(), on.at());
    let sm_lid = on.physical().map_or(Lid::NONE, |port| port.sm_lid);
    let fault = Fault::new("sa_not_answering", "the SA does not answer");
    let at_lid = format!("the SA is at LID {}", sm_lid.get());
    if subnet.is_attached(at) {
        return fault
            .seen(at_lid)
            .next("start the subnet manager of the simulator's fabric, or see its log");
    }
    if subnet.extent == Extent::Adapters {
        return fault
            .seen(at_lid)
            .seen("the fabric behind the adapter is not known here")
            .next(
                "see whether a subnet manager runs on the fabric and packets reach it, and its log",
            );
    }
    let Some(sm) = subnet.owner(sm_lid) else {
        let fault = fault.seen(format!("{at_lid}, which no port has"));
        return managers::lost(subnet, fault, at, sm_lid);
    };
    if let Some(cut) = cut_off(subnet, at, sm) {
        return cut;
    }
    let managed = m_keys::managed_between(subnet, at, sm);
    let foreign = m_keys::foreign(subnet, &managed);
    let refused = || m_keys::refused(subnet, on.snapshot.taken, &managed);
    if let Some(foreign) = foreign.or_else(refused) {
        return foreign;
    }
    let fault = fault.seen(format!("{at_lid}, which is {}", subnet.port_name(sm)));
    managers::lost(subnet, fault, at, sm_lid)
}

/// Returns the reason for which packets between a port and the SM's port do not arrive, if none pass the fabric.
fn cut_off(subnet: &Subnet, at: PortAt, sm: PortAt) -> Option<Fault> {
    let name = subnet.port_name(sm);
    if let Some(link) = links::down(subnet, sm) {
        return Some(link.called(
            "sa_unreachable",
            "the SA cannot be reached: the link of its port is down",
        ));
    }
    for (from, to) in [(at, sm), (sm, at)] {
        let Some(end) = subnet.dead_ends.get(&[from, to]) else {
            continue;
        };
        let way = format!(
            "packets from {} to {} end at {}",
            subnet.port_name(from),
            subnet.port_name(to),
            subnet.port_name(*end)
        );
        if let Some(link) = links::down(subnet, *end) {
            let cut = "the SA cannot be reached: a link on the way is down";
            return Some(link.called("sa_unreachable", cut).seen(way));
        }
        if let Some(link) = links::cut_between(subnet, at, sm) {
            let cut = "the SA cannot be reached: the fabric is cut in two";
            return Some(link.called("sa_unreachable", cut).seen(way));
        }
        let fault = Fault::new("sa_unreachable", "the SA cannot be reached").seen(way);
        return Some(fault.next(format!(
            "have the subnet manager on {name} route anew: it does so when it is restarted, OpenSM also on kill -HUP"
        )));
    }
    partitions::none_shared(subnet, at, sm)
}
