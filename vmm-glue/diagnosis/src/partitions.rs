//! Partitions that a port and its VFs share with the subnet manager's port, or do not.

use ib_wire::PKey;
use pf_context::VfPKeyEntry;

use crate::commands;
use crate::fault::Fault;
use crate::snapshot::{OnPort, VfPort};
use crate::subnet::{PortAt, Subnet};

/// Remedy that makes the SM's port a member of a partition.
const JOIN: &str = "SELF in [[partition]], or in OpenSM's partitions.conf and then kill -HUP";

/// Entries of a VF's P_Key table.
const VF_PKEYS: usize = 16;

/// Returns the fault that a port and the SM's port are in no partition in which they may talk.
pub(crate) fn none_shared(subnet: &Subnet, at: PortAt, sm: PortAt) -> Option<Fault> {
    let own = valid_keys(subnet, at)?;
    let peer = valid_keys(subnet, sm)?;
    if management_key(&own).is_none_or(|used| is_among(&peer, used)) {
        return None;
    }
    let (name, sm) = (subnet.port_name(at), subnet.port_name(sm));
    let summary = "the SA cannot be reached: the port and the SM's share no partition in which one is a full member";
    let fault = Fault::new("sa_unreachable", summary)
        .seen(format!("P_Keys of {name}: {}", list(&own)))
        .seen(format!("P_Keys of {sm}: {}", list(&peer)));
    Some(fault.next(format!(
        "have the subnet manager make {sm} or {name} a full member of their partition ({JOIN})"
    )))
}

/// Returns the fault that a port or the SM's port has no P_Key at all: then neither sends or takes a packet of the SA's.
pub(crate) fn emptied(subnet: &Subnet, at: PortAt, sm: PortAt) -> Option<Fault> {
    let empty = |at: &PortAt| valid_keys(subnet, *at).is_some_and(|keys| keys.is_empty());
    let at = [at, sm].into_iter().find(empty)?;
    Some(no_key(subnet, at))
}

fn no_key(subnet: &Subnet, at: PortAt) -> Fault {
    let fault = Fault::new("pkey_missing", "the physical port is in no partition");
    let fault = fault.seen(format!(
        "the P_Key table of {} is empty",
        subnet.port_name(at)
    ));
    fault.next(commands::sweep(subnet, at))
}

/// Returns the fault that a VF's P_Key table is empty, or that the SM's port admits none of the packets with which the VF's guest
/// asks the SA.
pub(crate) fn none_of_vf(on: OnPort<'_>, vf: u16, row: &VfPort) -> Option<Fault> {
    let (subnet, at, port) = (on.subnet(), on.at(), on.number);
    let own = subnet.partitions.get(&at)?;
    let table: Vec<PKey> = match &row.pkeys {
        Some(table) => table.keys.iter().map(|(_, key)| *key).collect(),
        None => own.first().copied().into_iter().collect(),
    };
    let set = commands::set_vf(&on.pf.host, vf, port);
    if own.iter().all(|key| !key.is_valid()) {
        return Some(no_key(subnet, at));
    }
    if !table.iter().any(|key| key.is_valid()) {
        let summary = "the VF is in no partition: its P_Key table is empty";
        let fault = Fault::new("no_pkey", summary).seen("it can neither send nor receive");
        return Some(fault.next(format!("{set} pkeys index:0")));
    }
    let sm = subnet.owner(subnet.port(at)?.sm_lid)?;
    let peer = valid_keys(subnet, sm)?;
    let used = management_key(&table).filter(|used| used.is_valid());
    if used.is_some_and(|used| is_among(&peer, used)) {
        return None;
    }
    let shared = management_key(&valid(own)).filter(|key| is_among(&peer, *key));
    let Some(shared) = shared else {
        return none_shared(subnet, at, sm);
    };
    let others = table.iter().filter(|key| key.is_valid() && **key != shared);
    let keys = [&shared].into_iter().chain(others).take(VF_PKEYS);
    let keys: Vec<String> = keys.map(ToString::to_string).collect();
    let name = subnet.port_name(sm);
    let summary = "the SA cannot be reached: the VF and the SM's port share no partition in which one is a full member";
    let fault = Fault::new("sa_unreachable", summary)
        .seen(format!("P_Keys of the VF: {}", list(&table)))
        .seen(format!("P_Keys of {name}: {}", list(&peer)))
        .next(format!("{set} pkeys {}", keys.join(" ")));
    Some(fault.remark(format_args!(
        "or make {name} a member of the VF's partition ({JOIN})"
    )))
}

/// Returns the fault that there are entries of the VF's P_Key table behind which the port has no key.
pub(crate) fn missing(on: OnPort<'_>, vf: u16, row: &VfPort) -> Option<Fault> {
    let table = row.pkeys.as_ref()?;
    let without = table.keys.iter().filter(|(_, key)| !key.is_valid());
    let missing: Vec<String> = without
        .filter_map(|(index, _)| {
            let entry = table.wanted.get(usize::from(*index)).copied().flatten()?;
            Some(match entry {
                VfPKeyEntry::Value(key) => {
                    format!("index {index} is for {key}, which the port does not have")
                }
                VfPKeyEntry::Index(place) => {
                    format!(
                        "index {index} is for the port's entry {}, which is empty",
                        place.0.0
                    )
                }
            })
        })
        .collect();
    if missing.is_empty() {
        return None;
    }
    let summary = "the port is not in a partition that the VF is to be in";
    let mut fault = Fault::new("pkey_missing", summary);
    fault.seen = missing;
    let set = commands::set_vf(&on.pf.host, vf, on.number);
    let first = on
        .subnet()
        .partitions
        .get(&on.at())
        .and_then(|keys| keys.first());
    if first.is_some_and(|key| !key.is_valid()) || first.is_none() {
        return Some(fault.next(commands::sweep(on.subnet(), on.at())));
    }
    let fault = fault.next(format!("{set} pkeys index:0"));
    Some(fault.remark(format_args!(
        "or have the subnet manager put {} into the partition",
        on.pf.host
    )))
}

/// Returns the valid P_Keys of a port.
fn valid_keys(subnet: &Subnet, at: PortAt) -> Option<Vec<PKey>> {
    subnet.partitions.get(&at).map(|table| valid(table))
}

pub(crate) fn valid(table: &[PKey]) -> Vec<PKey> {
    let keys = table.iter().copied();
    keys.filter(|key| key.is_valid()).collect()
}

/// Returns the key of requests to the SA: the default partition's if the table has it, or else the first, as Linux' `ib_sa` and
/// `PortView::sa_address` have it.
fn management_key(table: &[PKey]) -> Option<PKey> {
    let has = |key: &PKey| table.contains(key);
    let mut defaults = [PKey::DEFAULT_FULL, PKey::DEFAULT_LIMITED].into_iter();
    defaults.find(has).or_else(|| table.first().copied())
}

fn is_among(peer: &[PKey], key: PKey) -> bool {
    peer.iter().any(|peer| key.matches(*peer))
}

pub(crate) fn list(keys: &[PKey]) -> String {
    let valid = keys.iter().filter(|key| key.is_valid());
    let texts: Vec<String> = valid.map(ToString::to_string).collect();
    texts.join(", ")
}
