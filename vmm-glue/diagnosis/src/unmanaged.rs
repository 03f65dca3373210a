//! Ports whose link is up and that no subnet manager has made active.

use ib_wire::{Lid, PortNum};

use crate::fault::Fault;
use crate::snapshot::OnPort;
use crate::subnet::{Extent, Subnet};
use crate::{m_keys, managers};

/// Unicast LIDs of a subnet (IBA 4.1.3): 0x0001 to 0xbfff.
const UNICAST_LIDS: u32 = 0xbfff;

/// Returns the fault of a port whose subnet manager can only be behind a trunk.
fn beyond_trunks(subnet: &Subnet, fault: Fault) -> Fault {
    let down = subnet.trunks.iter().find_map(|(at, trunk)| {
        let reason = trunk.peer.as_ref().err()?;
        Some((subnet.port_name(*at), &trunk.way, reason))
    });
    if let Some((port, way, reason)) = down {
        return fault
            .seen(format!("trunk {port} ({way}): {reason}"))
            .next("see whether the service at the other end runs, and its vhca show fabric");
    }
    let refusing = subnet.trunks.iter().find_map(|(at, trunk)| {
        let site = trunk.peer.as_ref().ok()?;
        (trunk.refused_smps > 0).then(|| (subnet.port_name(*at), site, trunk.refused_smps))
    });
    if let Some((port, site, refused)) = refusing {
        return fault
            .seen(format!(
                "trunk {port} refused {refused} SMPs of {site}, which it takes for a host"
            ))
            .next(format!(
                "if the subnet manager is to be at {site}, serve the trunk with peer=fabric"
            ));
    }
    let sites = subnet
        .trunks
        .values()
        .filter_map(|trunk| trunk.peer.as_ref().ok());
    let sites: Vec<&str> = sites.map(String::as_str).collect();
    let sites = sites.join(", ");
    fault
        .seen(format!(
            "trunks lead to {sites}, whose ports are not known here"
        ))
        .next(format!(
            "see the subnet manager of {sites}, or start one at one site"
        ))
}

/// Returns the reason for which no subnet manager has given a port a LID, or activated it, though its link is up.
pub(crate) fn why(on: OnPort<'_>, has_lid: bool) -> Fault {
    let (subnet, at) = (on.subnet(), on.at());
    let (code, summary) = match has_lid {
        false => (
            "no_sm",
            "no subnet manager has configured the physical port",
        ),
        true => (
            "port_not_active",
            "the subnet manager has not activated the port",
        ),
    };
    let mut fault = Fault::new(code, summary);
    if let Some(port) = on.physical() {
        let (name, lid) = (subnet.port_name(at), port.lid.get());
        fault = fault.seen(format!("{name} is {:?}, its LID is {lid}", port.state));
    }
    if subnet.is_attached(at) {
        return fault
            .seen("the fabric is a simulator's")
            .next(managers::start(subnet, at));
    }
    if subnet.extent == Extent::Adapters {
        return fault
            .seen("the fabric behind the adapter is not known here")
            .next("see whether a subnet manager runs on the fabric, and its log");
    }
    let Some(sm) = subnet.manager_near(at) else {
        return match managers::cut_off(subnet, at) {
            Some(cut) => cut.called(code, summary),
            None if !subnet.trunks.is_empty() => beyond_trunks(subnet, fault),
            None => fault
                .seen("no subnet manager runs where the port's packets get to (IsSM)")
                .next(managers::start(subnet, at)),
        };
    };
    let managed = m_keys::managed_between(subnet, at, sm);
    let foreign = m_keys::foreign(subnet, &managed);
    let refused = || m_keys::refused(subnet, on.snapshot.taken, &managed);
    if let Some(foreign) = foreign.or_else(refused) {
        return foreign;
    }
    let fault = fault.seen(format!("a subnet manager runs on {}", subnet.port_name(sm)));
    if let Some(full) = lids_used_up(subnet).filter(|_| !has_lid) {
        return full;
    }
    if on.is_fresh() && subnet.sm_answers.get(&sm) != Some(&None) {
        return fault.next(managers::WAIT);
    }
    managers::idle(subnet, fault, sm)
}

/// Returns the fault that the subnet has no LID left for a port without one.
fn lids_used_up(subnet: &Subnet) -> Option<Fault> {
    let mut used = 0;
    let mut lmc = 0;
    let mut without = 0_usize;
    for (at, port) in subnet.end_ports() {
        // A switch has one LID, whatever the LMC.
        if port.lid == Lid::NONE {
            without += 1;
        } else if at.port == PortNum::SWITCH_MANAGEMENT {
            used += 1;
        } else {
            used += 1_u32 << port.lmc.get();
            lmc = lmc.max(port.lmc.get());
        }
    }
    // LIDs of a port with an LMC begin at a multiple of their number, which leaves gaps.
    if used + 2 * (1_u32 << lmc) <= UNICAST_LIDS {
        return None;
    }
    let summary = "the subnet has no LID left for the port";
    Some(
        Fault::new("no_lid", summary)
            .seen(format!(
                "{used} of {UNICAST_LIDS} unicast LIDs are in use, with an LMC of {lmc}"
            ))
            .seen(format!("{without} ports have none"))
            .next("use a smaller LMC (vhca serve --lmc 0, opensm -l 0), or take ports away"),
    )
}
