//! What is changed while the service runs.

use core::num::NonZeroU16;

use cm_paravirt::SidrEntry;
use emulated_hca::{Endpoint, LinkId, LinkState};
use ib_wire::{Guid, PKey, PKeyIndex, PortNum};
use pf_context::context::{GuidSource, PfError};
use pf_context::guids::GuidWish;
use pf_context::{EgressLimit, VfPKeyEntry};
use vf_tunnel::PhysicalPKeyIndex;
use vhca_control::{Refusal, Right, VfChange, VfState};

use super::rights::rights;
use super::{Lab, NamedVf};
use vhca::Slice;
use vhca::world::HostPortId;

/// Entries of a VF's P_Key table.
pub(super) const PKEYS: usize = 16;

/// Addresses and services of a VF: each SIDR request is compared with all.
const SIDR_ENTRIES: usize = 64;

/// Frames that a VF's queue can be told to hold at most.
const MAX_QUEUE: usize = 65_536;

/// What was set on a VF's port, as far as it differs from the start.
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

impl Lab {
    /// Changes a VF's port.
    ///
    /// # Errors
    /// A refusal that says why; nothing has changed then.
    pub fn set_vf(
        &mut self,
        vf: &NamedVf,
        port: PortNum,
        change: &VfChange,
    ) -> Result<(), Refusal> {
        self.check(vf, port)?;
        match change {
            VfChange::PortGuid(text) => self.set_guid(vf, port, guid_source(text)?),
            VfChange::Pkeys(texts) => self.set_pkeys(vf, port, pkey_table(texts)?),
            VfChange::Limits {
                rate,
                burst,
                queue,
                weight,
            } => {
                let at = at(vf, port);
                let before = self.settings.get(&at).cloned().unwrap_or_default().limit;
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
                self.set_limit(vf, port, limit)
            }
            VfChange::Rights(given) => {
                if given.contains(&Right::Smi) && !self.vfs_may_have_smi {
                    let message = "no VF of this service can send SMPs: start it with vhca serve --rights smi, \
                                   and take the right from those that need it not";
                    return Err(Refusal::new("smi_not_available", message));
                }
                let context = self.world_mut().context_mut(vf.host);
                let set = context.set_rights(vf.vf, port, rights(given));
                set.map_err(|error| refused("refused", error))
            }
            VfChange::Sidr(texts) => self.set_sidr(vf, &sidr_entries(texts)?),
            VfChange::State(state) => {
                let up = *state == VfState::Auto;
                let context = self.world_mut().context_mut(vf.host);
                let set = context.set_admin_up(vf.vf, port, up);
                set.map_err(|error| refused("refused", error))
            }
        }
    }

    fn set_sidr(&mut self, vf: &NamedVf, entries: &[SidrEntry]) -> Result<(), Refusal> {
        let context = self.world_mut().context_mut(vf.host);
        let set = context.set_sidr(vf.vf, entries);
        set.map_err(|error| match error {
            PfError::Sidr(_) => refused("sidr_taken", error),
            _ => refused("refused", error),
        })
    }

    /// Whether there is such a VF and port.
    fn check(&self, vf: &NamedVf, port: PortNum) -> Result<(), Refusal> {
        let context = self.world().context(self.existing(vf)?.host);
        if port.index() == 0 || port.index() > context.ports().len() {
            let message = format!("{} has no port {port}", vf.host_name);
            return Err(Refusal::new("no_such_port", message));
        }
        Ok(())
    }

    fn set_guid(&mut self, vf: &NamedVf, port: PortNum, source: GuidSource) -> Result<(), Refusal> {
        let at = at(vf, port);
        self.history.forget_refusal(at);
        let now = self.world().now();
        let context = self.world_mut().context_mut(vf.host);
        let set = context.set_guid_source(now, vf.vf, port, source);
        set.map_err(|error| refused("refused", error))?;
        self.poll(now, &mut Slice::endless());
        match self.history.refusal(at) {
            Some(refusal) => Err(refused("guid_refused", refusal)),
            None => Ok(()),
        }
    }

    fn set_pkeys(
        &mut self,
        vf: &NamedVf,
        port: PortNum,
        table: Vec<Option<VfPKeyEntry>>,
    ) -> Result<(), Refusal> {
        self.check_pkey_indices(vf, port, &table)?;
        let set = self.world_mut().map_pkeys(vf.host, vf.vf, port, &table);
        set.map_err(|error| refused("refused", error))?;
        self.settings.entry(at(vf, port)).or_default().pkeys = table;
        Ok(())
    }

    /// Whether the port's table has all the places that a VF's table names.
    fn check_pkey_indices(
        &self,
        vf: &NamedVf,
        port: PortNum,
        table: &[Option<VfPKeyEntry>],
    ) -> Result<(), Refusal> {
        let node = self.world().host(vf.host).node();
        let node = self.fabric().node(node);
        let places = node.and_then(|node| node.port(port));
        let places = places.map_or(0, |port| port.pkey_cap);
        let beyond = table.iter().flatten().find_map(|entry| match entry {
            VfPKeyEntry::Index(PhysicalPKeyIndex(index)) if index.0 >= places => Some(index.0),
            _ => None,
        });
        match beyond {
            None => Ok(()),
            Some(index) => {
                let message =
                    format!("index:{index} is beyond the port's table of {places} P_Keys");
                Err(Refusal::new("bad_pkey", message))
            }
        }
    }

    fn set_limit(
        &mut self,
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
        let world = self.world_mut();
        let set = world.set_egress_limit(vf.host, vf.vf, port, limit);
        set.map_err(|error| refused("refused", error))?;
        self.settings.entry(at(vf, port)).or_default().limit = limit;
        Ok(())
    }

    /// Plugs cables in or out: that of a port (`NODE/PORT`), or all between two nodes. Gives how many
    /// they are.
    ///
    /// # Errors
    /// A refusal that says why; nothing has changed then.
    pub fn set_link(&mut self, a: &str, b: Option<&str>, up: bool) -> Result<usize, Refusal> {
        let links = self.links_at(a, b)?;
        let state = if up { LinkState::Up } else { LinkState::Down };
        for link in &links {
            self.world_mut().fabric_mut().set_link(*link, state);
        }
        Ok(links.len())
    }

    /// Returns the link of a port (`NODE/PORT`), or all between two nodes.
    ///
    /// # Errors
    /// A refusal if there is none, or `a` alone may be any of several.
    pub(super) fn links_at(&self, a: &str, b: Option<&str>) -> Result<Vec<LinkId>, Refusal> {
        let ends = [Some(a), b].map(|end| end.map(|end| self.end(end)).transpose());
        let [a_end, b_end] = ends;
        let (Some(a_end), b_end) = (a_end?, b_end?) else {
            return Err(refused("bad_link", "a link has an end"));
        };
        if a_end.1.is_none() && b_end.is_none() {
            let message = format!("say NODE/PORT, or two nodes: {a} may have several links");
            return Err(Refusal::new("bad_link", message));
        }
        let links = self.links_between(a_end, b_end);
        if links.is_empty() {
            return Err(refused("no_such_link", "there is no such link"));
        }
        Ok(links)
    }

    fn links_between(&self, a: End, b: Option<End>) -> Vec<LinkId> {
        let is = |end: Endpoint, wanted: End| {
            end.node == wanted.0 && wanted.1.is_none_or(|port| port == end.port)
        };
        let fabric = self.fabric();
        let links = fabric.links().filter(|link| {
            let Some([one, other]) = fabric.link_ends(*link) else {
                return false;
            };
            let joins = |one, other| is(one, a) && b.is_none_or(|b| is(other, b));
            joins(one, other) || joins(other, one)
        });
        links.collect()
    }

    /// The end of a link that a text means: `NODE` or `NODE/PORT`.
    pub(super) fn end(&self, text: &str) -> Result<End, Refusal> {
        if let Some(node) = self.node(text) {
            return Ok((node, None));
        }
        let split = text.rsplit_once('/');
        let found = split.and_then(|(node, port)| Some((self.node(node)?, port.parse().ok()?)));
        match found {
            Some((node, port)) => Ok((node, Some(PortNum(port)))),
            None => Err(no_such_node(text)),
        }
    }
}

/// Returns the refusal of a node that does not exist.
pub(super) fn no_such_node(name: &str) -> Refusal {
    let message = format!("there is no node {name:?}; vhca show fabric lists them");
    Refusal::new("no_such_node", message)
}

/// A node, or a port of it.
pub(super) type End = (emulated_hca::NodeId, Option<PortNum>);

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
