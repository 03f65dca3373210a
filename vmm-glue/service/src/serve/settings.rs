//! Settings of VFs that an administrator changes while the service runs.

use core::num::NonZeroU16;
use std::collections::BTreeMap;

use cm_paravirt::SidrEntry;
use ib_wire::{Guid, PKey, PKeyIndex, PortNum};
use pf_context::context::{GuidSource, PfError};
use pf_context::guids::GuidWish;
use pf_context::{EgressLimit, VfPKeyEntry};
use vf_tunnel::PhysicalPKeyIndex;
use vhca_control::{Refusal, Right, VfChange, VfState};

use super::inventory::NamedVf;
use super::rights::rights;
use vhca::world::{HostPortId, World};

/// Entries of a VF's P_Key table.
pub(super) const PKEYS: usize = 16;

/// Addresses and services of a VF: each SIDR request is compared with all.
const SIDR_ENTRIES: usize = 64;

/// Highest limit of frames in a VF's queue.
const MAX_QUEUE: usize = 65_536;

/// Settings of a VF's port that differ from those at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VfSettings {
    pub(super) pkeys: Vec<Option<VfPKeyEntry>>,
    pub(super) limit: EgressLimit,
}

impl Default for VfSettings {
    fn default() -> Self {
        Self {
            pkeys: first_pkey(),
            limit: EgressLimit::default(),
        }
    }
}

/// The table of a VF at the start: what the port has first.
pub(super) fn first_pkey() -> Vec<Option<VfPKeyEntry>> {
    let mut table = vec![None; PKEYS];
    table[0] = Some(VfPKeyEntry::Index(PhysicalPKeyIndex(PKeyIndex(0))));
    table
}

/// Settings of all VFs.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Settings that differ from those at the start.
    changed: BTreeMap<HostPortId, VfSettings>,
    /// `true` if the PF contexts have QP0 of their ports, for VFs with the right to send SMPs.
    pub(super) vfs_may_have_smi: bool,
}

impl Settings {
    /// Returns the settings of a VF's port, if they were changed.
    pub(super) fn get(&self, at: &HostPortId) -> Option<&VfSettings> {
        self.changed.get(at)
    }

    /// Changes a VF's port.
    ///
    /// # Errors
    /// A refusal with the reason; nothing has changed then.
    pub(super) fn change(
        &mut self,
        world: &mut World,
        vf: &NamedVf,
        port: PortNum,
        change: &VfChange,
    ) -> Result<(), Refusal> {
        match change {
            VfChange::PortGuid(text) => set_guid(world, vf, port, guid_source(text)?),
            VfChange::Pkeys(texts) => self.set_pkeys(world, vf, port, pkey_table(texts)?),
            VfChange::Limits {
                rate,
                burst,
                queue,
                weight,
            } => {
                let at = at(vf, port);
                let before = self.changed.get(&at).cloned().unwrap_or_default().limit;
                let limit = EgressLimit {
                    mads_per_second: rate.unwrap_or(before.mads_per_second),
                    burst: burst.unwrap_or(before.burst),
                    queue: queue.unwrap_or(before.queue),
                    weight: match weight {
                        Some(weight) => NonZeroU16::new(*weight)
                            .ok_or_else(|| refused("bad_limit", "a weight is at least 1"))?,
                        None => before.weight,
                    },
                };
                self.set_limit(world, vf, port, limit)
            }
            VfChange::Rights(given) => {
                if given.contains(&Right::Smi) && !self.vfs_may_have_smi {
                    let message = "no VF of this service can send SMPs: start it with vhca serve --rights smi, \
                                   and take the right from VFs that do not need it";
                    return Err(Refusal::new("smi_not_available", message));
                }
                let context = world.context_mut(vf.host);
                let set = context.set_rights(vf.vf, port, rights(given));
                set.map_err(|error| refused("refused", error))
            }
            VfChange::Sidr(texts) => set_sidr(world, vf, &sidr_entries(texts)?),
            VfChange::State(state) => {
                let up = *state == VfState::Auto;
                let context = world.context_mut(vf.host);
                let set = context.set_admin_up(vf.vf, port, up);
                set.map_err(|error| refused("refused", error))
            }
        }
    }

    fn set_pkeys(
        &mut self,
        world: &mut World,
        vf: &NamedVf,
        port: PortNum,
        table: Vec<Option<VfPKeyEntry>>,
    ) -> Result<(), Refusal> {
        let set = world.map_pkeys(vf.host, vf.vf, port, &table);
        set.map_err(|error| match error {
            PfError::PKeyIndex { .. } => refused("bad_pkey", error),
            _ => refused("refused", error),
        })?;
        self.changed.entry(at(vf, port)).or_default().pkeys = table;
        Ok(())
    }

    fn set_limit(
        &mut self,
        world: &mut World,
        vf: &NamedVf,
        port: PortNum,
        limit: EgressLimit,
    ) -> Result<(), Refusal> {
        if limit.mads_per_second > 0 && limit.burst == 0 {
            return Err(refused("bad_limit", "with a rate, a burst is at least 1"));
        }
        if limit.queue > MAX_QUEUE {
            let message = format!("a queue has at most {MAX_QUEUE} places");
            return Err(refused("bad_limit", message));
        }
        let set = world.set_egress_limit(vf.host, vf.vf, port, limit);
        set.map_err(|error| refused("refused", error))?;
        self.changed.entry(at(vf, port)).or_default().limit = limit;
        Ok(())
    }
}

fn set_sidr(world: &mut World, vf: &NamedVf, entries: &[SidrEntry]) -> Result<(), Refusal> {
    let set = world.context_mut(vf.host).set_sidr(vf.vf, entries);
    set.map_err(|error| match error {
        PfError::Sidr(_) => refused("sidr_taken", error),
        _ => refused("refused", error),
    })
}

fn set_guid(
    world: &mut World,
    vf: &NamedVf,
    port: PortNum,
    source: GuidSource,
) -> Result<(), Refusal> {
    let now = world.now();
    let context = world.context_mut(vf.host);
    let set = context.set_guid_source(now, vf.vf, port, source);
    set.map_err(|error| refused("refused", error))
}

/// Returns a port of a VF.
pub(super) fn at(vf: &NamedVf, port: PortNum) -> HostPortId {
    vf.host.vf(vf.vf).port(port.0)
}

fn refused(code: &str, why: impl core::fmt::Display) -> Refusal {
    Refusal::new(code, why.to_string())
}

fn guid_source(text: &str) -> Result<GuidSource, Refusal> {
    Ok(match text {
        "sm" => GuidSource::Sa(GuidWish::SmAssigned),
        "none" => GuidSource::Sa(GuidWish::None),
        "hardware" => GuidSource::Hardware,
        _ => {
            let guid = hex(text).ok_or_else(|| {
                let message =
                    format!("{text:?} is no GUID: say 0x and its digits, sm, hardware or none");
                Refusal::new("bad_guid", message)
            })?;
            GuidSource::Sa(GuidWish::Admin(Guid::new(guid)))
        }
    })
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    let digits: String = digits.chars().filter(|c| *c != ':').collect();
    u64::from_str_radix(&digits, 16).ok()
}

fn sidr_entries(texts: &[String]) -> Result<Vec<SidrEntry>, Refusal> {
    if texts.len() > SIDR_ENTRIES {
        let message = format!("a VF has at most {SIDR_ENTRIES} addresses and services");
        return Err(Refusal::new("bad_sidr", message));
    }
    let entries = texts.iter().map(|text| {
        let entry = text.parse::<SidrEntry>();
        entry.map_err(|why| Refusal::new("bad_sidr", format!("{text:?}: {why}")))
    });
    entries.collect()
}

fn pkey_table(texts: &[String]) -> Result<Vec<Option<VfPKeyEntry>>, Refusal> {
    if texts.len() > PKEYS {
        let message = format!("a VF has at most {PKEYS} P_Keys");
        return Err(Refusal::new("bad_pkey", message));
    }
    let entries = texts.iter().map(|text| {
        pkey_entry(text).ok_or_else(|| {
            let message = format!(
                "{text:?} is no P_Key: say a value such as 0x8001, index:N, or - for nothing"
            );
            Refusal::new("bad_pkey", message)
        })
    });
    let mut table = entries.collect::<Result<Vec<_>, _>>()?;
    table.resize(PKEYS, None);
    Ok(table)
}

/// An entry, which may be none; `None` if the text is none of these.
fn pkey_entry(text: &str) -> Option<Option<VfPKeyEntry>> {
    if text == "-" {
        return Some(None);
    }
    if let Some(index) = text.strip_prefix("index:") {
        let index = PKeyIndex(index.parse().ok()?);
        return Some(Some(VfPKeyEntry::Index(PhysicalPKeyIndex(index))));
    }
    let key = PKey::new(u16::try_from(hex(text)?).ok()?);
    key.is_valid().then_some(Some(VfPKeyEntry::Value(key)))
}
