//! Partitions that a port and its VFs share with the subnet manager's port, or do not.

use emulated_hca::{Endpoint, PhysicalPort};
use ib_wire::{PKey, PKeyIndex, PortNum};
use pf_context::inspect::Inspect;

use super::{Fault, set_command};
use crate::serve::set::{self, PKEYS};
use crate::serve::{Lab, NamedVf};

/// Remedy that makes the SM's port a member of a partition.
const JOIN: &str = "SELF in [[partition]], or in OpenSM's partitions.conf and then kill -HUP";

impl Lab {
    /// Returns the fault that a port and the SM's port are in no partition in which they may talk.
    pub(super) fn why_no_partition(&self, at: Endpoint, sm: Endpoint) -> Option<Fault> {
        let own = valid_keys(self.fabric().port(at)?);
        let peer = valid_keys(self.fabric().port(sm)?);
        if management_key(&own).is_none_or(|used| is_among(&peer, used)) {
            return None;
        }
        let (name, sm) = (self.port_name(at), self.port_name(sm));
        let summary = "the SA cannot be reached: the port and the SM's share no partition in which one is a full member";
        let fault = Fault::new("sa_unreachable", summary)
            .seen(format!("P_Keys of {name}: {}", list(&own)))
            .seen(format!("P_Keys of {sm}: {}", list(&peer)));
        Some(fault.next(format!(
            "have the subnet manager make {sm} or {name} a full member of their partition ({JOIN})"
        )))
    }

    /// Returns the fault that a VF's P_Key table is empty, or that the SM's port admits none of the packets with which the
    /// VF's guest asks the SA.
    pub(super) fn why_no_partition_of_vf(&self, vf: &NamedVf, port: PortNum) -> Option<Fault> {
        let at = self.endpoint(vf.host.port(port.0));
        let own = self.fabric().port(at)?;
        let table: Vec<PKey> = if self.settings.contains_key(&set::at(vf, port)) {
            let context = self.world().context(vf.host);
            let rows = context
                .pkeys()
                .filter(|row| row.port == port && row.vf == vf.vf);
            rows.map(|row| row.pkey).collect()
        } else {
            own.pkey(PKeyIndex(0)).into_iter().collect()
        };
        if !table.iter().any(|key| key.is_valid()) {
            let summary = "the VF is in no partition: its P_Key table is empty";
            let fault = Fault::new("no_pkey", summary).seen("it can neither send nor receive");
            return Some(fault.next(format!("{} pkeys index:0", set_command(vf, port))));
        }
        let sm = self.owner(own.sm_lid)?;
        let peer = valid_keys(self.fabric().port(sm)?);
        let used = management_key(&table).filter(|used| used.is_valid());
        if used.is_some_and(|used| is_among(&peer, used)) {
            return None;
        }
        let shared = management_key(&valid_keys(own)).filter(|key| is_among(&peer, *key));
        let Some(shared) = shared else {
            return self.why_no_partition(at, sm);
        };
        let others = table.iter().filter(|key| key.is_valid() && **key != shared);
        let keys = [&shared].into_iter().chain(others).take(PKEYS);
        let keys: Vec<String> = keys.map(ToString::to_string).collect();
        let name = self.port_name(sm);
        let summary = "the SA cannot be reached: the VF and the SM's port share no partition in which one is a full member";
        let fault = Fault::new("sa_unreachable", summary)
            .seen(format!("P_Keys of the VF: {}", list(&table)))
            .seen(format!("P_Keys of {name}: {}", list(&peer)))
            .next(format!(
                "{} pkeys {}",
                set_command(vf, port),
                keys.join(" ")
            ));
        Some(fault.remark(format_args!(
            "or make {name} a member of the VF's partition ({JOIN})"
        )))
    }
}

/// The valid P_Keys of a port.
fn valid_keys(port: &PhysicalPort) -> Vec<PKey> {
    let keys = (0..port.pkey_cap).filter_map(|index| port.pkey(PKeyIndex(index)));
    keys.filter(|key| key.is_valid()).collect()
}

/// Returns the key of requests to the SA: the default partition's if the table has it, or else what stands first, as Linux'
/// `ib_sa` and `PortView::sa_address` have it.
fn management_key(table: &[PKey]) -> Option<PKey> {
    let has = |key: &PKey| table.contains(key);
    let mut defaults = [PKey::DEFAULT_FULL, PKey::DEFAULT_LIMITED].into_iter();
    defaults.find(has).or_else(|| table.first().copied())
}

fn is_among(peer: &[PKey], key: PKey) -> bool {
    peer.iter().any(|peer| key.matches(*peer))
}

fn list(keys: &[PKey]) -> String {
    let valid = keys.iter().filter(|key| key.is_valid());
    let texts: Vec<String> = valid.map(ToString::to_string).collect();
    texts.join(", ")
}
