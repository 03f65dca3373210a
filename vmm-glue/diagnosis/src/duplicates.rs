//! LIDs and GUIDs that two ports of a subnet have.

use hca_api::PhysicalState;
use ib_wire::{Guid, Lid};

use crate::commands;
use crate::fault::Fault;
use crate::snapshot::OnPort;
use crate::subnet::{Port, PortAt, Subnet};

/// Returns the faults that another port has the GUID of a port or its LID, or that two ports have the LID of its SM.
pub(crate) fn of(on: OnPort<'_>) -> impl Iterator<Item = Fault> {
    guid(on).into_iter().chain(lid(on))
}

fn guid(on: OnPort<'_>) -> Option<Fault> {
    let (subnet, at) = (on.subnet(), on.at());
    let own = on.physical()?.guid;
    let mut ports = subnet.end_ports().filter(|(other, port)| {
        *other != at && own != Guid::NONE && port.guid == own && is_linked(subnet, *other)
    });
    let (other, _) = ports.next()?;
    let fault = Fault::new(
        "duplicate_guid",
        "another port of the subnet has the GUID of the port",
    );
    let [name, other] = [at, other].map(|at| subnet.port_name(at));
    Some(fault.seen(format!("{name} and {other} have {own}")).next(
        "give one of the two another GUID in the topology file, and start its service anew; or part the two fabrics",
    ))
}

fn lid(on: OnPort<'_>) -> Option<Fault> {
    let (subnet, port) = (on.subnet(), on.physical()?);
    [("the port", port.lid), ("the port's SM", port.sm_lid)]
        .into_iter()
        .find_map(|(whose, lid)| shared(subnet, on.at(), whose, lid))
}

/// Returns the fault that two ports have a LID.
fn shared(subnet: &Subnet, at: PortAt, whose: &str, lid: Lid) -> Option<Fault> {
    let owners = subnet.owners(lid).filter(|owner| is_linked(subnet, *owner));
    let names: Vec<String> = owners.map(|owner| subnet.port_name(owner)).collect();
    if names.len() < 2 {
        return None;
    }
    let summary = format!("another port of the subnet has the LID of {whose}");
    let fault = Fault::new("duplicate_lid", summary);
    let fault = fault.seen(format!(
        "LID {} is that of {}",
        lid.get(),
        names.join(" and ")
    ));
    Some(fault.next(commands::sweep(subnet, at)))
}

/// Returns `true` if the link of an end port is up. Of a switch's links any may be.
fn is_linked(subnet: &Subnet, at: PortAt) -> bool {
    let is_up = |port: &Port| port.physical_state == PhysicalState::LinkUp;
    subnet.is_switch(at.node) || subnet.port(at).is_some_and(is_up)
}
