//! Partitions: a VF's own table over the port's.

use ib_wire::{PKey, PKeyIndex};
use vf_tunnel::{DropReason, PhysicalPKeyIndex, VirtualPKeyIndex};

use crate::config::Strictness;

/// The port's P_Key table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortPKeys(Vec<PKey>);

impl PortPKeys {
    pub(crate) const fn new(table: Vec<PKey>) -> Self {
        Self(table)
    }

    /// What stands at an index; beyond the end nothing does.
    pub(crate) fn get(&self, index: PhysicalPKeyIndex) -> PKey {
        let at = usize::from(index.0.0);
        self.0.get(at).copied().unwrap_or(PKey::INVALID)
    }

    /// The key for what the port itself asks the SA: the default partition's, which every SA is in
    /// (IBA 10.9.2), or else the first.
    pub(crate) fn for_management(&self) -> PKey {
        let default = |full| {
            self.0
                .iter()
                .copied()
                .find(|key| key.base() == PKey::DEFAULT_FULL.base() && key.is_full() == full)
        };
        default(true)
            .or_else(|| default(false))
            .or_else(|| self.0.first().copied())
            .unwrap_or(PKey::INVALID)
    }
}

/// A VF's P_Key table: for each of its indices a place in the port's, or none.
#[derive(Clone, Debug)]
pub(crate) struct VfPKeys(Vec<Option<PhysicalPKeyIndex>>);

impl VfPKeys {
    pub(crate) const fn new(map: Vec<Option<PhysicalPKeyIndex>>) -> Self {
        Self(map)
    }

    /// The key that a VF means by an index.
    ///
    /// # Errors
    /// [`DropReason::PKeyIndexOutOfRange`], [`DropReason::NoPKey`].
    pub(crate) fn value(
        &self,
        index: VirtualPKeyIndex,
        port: &PortPKeys,
    ) -> Result<PKey, DropReason> {
        let entry = self
            .0
            .get(usize::from(index.0.0))
            .ok_or(DropReason::PKeyIndexOutOfRange)?;
        let key = entry.map(|physical| port.get(physical));
        key.filter(|key| key.is_valid()).ok_or(DropReason::NoPKey)
    }

    /// The VF's keys.
    pub(crate) fn values(&self, port: &PortPKeys) -> Vec<PKey> {
        let mapped = self.0.iter().flatten();
        mapped
            .map(|&physical| port.get(physical))
            .filter(|key| key.is_valid())
            .collect()
    }

    /// The VF's index for the partition of a packet: a full member's place before a limited one's.
    pub(crate) fn find(
        &self,
        packet: PKey,
        port: &PortPKeys,
        limited: Strictness,
    ) -> Option<VirtualPKeyIndex> {
        let matching = |full: bool| {
            self.0.iter().position(|entry| {
                entry.is_some_and(|physical| {
                    let key = port.get(physical);
                    key.is_valid() && key.base() == packet.base() && key.is_full() == full
                })
            })
        };
        let accepts_limited = packet.is_full() || limited == Strictness::Compat;
        let at = matching(true).or_else(|| matching(false).filter(|_| accepts_limited))?;
        u16::try_from(at)
            .ok()
            .map(|index| VirtualPKeyIndex(PKeyIndex(index)))
    }

    /// Whether the VF would see a difference between two tables of the port.
    pub(crate) fn sees_change(&self, old: &PortPKeys, new: &PortPKeys) -> bool {
        let mut mapped = self.0.iter().flatten();
        mapped.any(|&physical| old.get(physical) != new.get(physical))
    }

    /// Maps an index elsewhere. Gives whether that changed anything; an index beyond the table never
    /// does.
    pub(crate) fn map(&mut self, index: VirtualPKeyIndex, to: Option<PhysicalPKeyIndex>) -> bool {
        match self.0.get_mut(usize::from(index.0.0)) {
            Some(entry) if *entry != to => {
                *entry = to;
                true
            }
            _ => false,
        }
    }
}
