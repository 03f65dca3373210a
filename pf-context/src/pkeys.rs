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

/// A VF's P_Key table: for each of its indices a place in the port's, or none, and what stands there.
#[derive(Clone, Debug)]
pub(crate) struct VfPKeys {
    map: Vec<Option<PhysicalPKeyIndex>>,
    keys: Vec<PKey>,
}

impl VfPKeys {
    pub(crate) fn new(map: Vec<Option<PhysicalPKeyIndex>>, port: &PortPKeys) -> Self {
        let mut table = Self {
            map,
            keys: Vec::new(),
        };
        table.refresh(port);
        table
    }

    /// Reads the port's table anew. Gives whether the VF's is another now.
    pub(crate) fn refresh(&mut self, port: &PortPKeys) -> bool {
        let key = |entry: &Option<_>| entry.map_or(PKey::INVALID, |physical| port.get(physical));
        let keys = self.map.iter().map(key).collect();
        let changed = self.keys != keys;
        self.keys = keys;
        changed
    }

    /// The key that a VF means by an index.
    ///
    /// # Errors
    /// [`DropReason::PKeyIndexOutOfRange`], [`DropReason::NoPKey`].
    pub(crate) fn value(&self, index: VirtualPKeyIndex) -> Result<PKey, DropReason> {
        let key = self
            .keys
            .get(usize::from(index.0.0))
            .ok_or(DropReason::PKeyIndexOutOfRange)?;
        key.is_valid().then_some(*key).ok_or(DropReason::NoPKey)
    }

    /// The VF's keys by its own indices; an invalid one where there is none.
    pub(crate) fn keys(&self) -> &[PKey] {
        &self.keys
    }

    /// The VF's index for the partition of a packet: a full member's place before a limited one's.
    pub(crate) fn find(&self, packet: PKey, limited: Strictness) -> Option<VirtualPKeyIndex> {
        let matching = |full: bool| {
            let mut keys = self.keys.iter();
            keys.position(|key| {
                key.is_valid() && key.base() == packet.base() && key.is_full() == full
            })
        };
        let accepts_limited = packet.is_full() || limited == Strictness::Compat;
        let at = matching(true).or_else(|| matching(false).filter(|_| accepts_limited))?;
        u16::try_from(at)
            .ok()
            .map(|index| VirtualPKeyIndex(PKeyIndex(index)))
    }

    /// Maps an index elsewhere. Gives whether the map changed; an index beyond the table never
    /// changes it.
    pub(crate) fn map(
        &mut self,
        index: VirtualPKeyIndex,
        to: Option<PhysicalPKeyIndex>,
        port: &PortPKeys,
    ) -> bool {
        match self.map.get_mut(usize::from(index.0.0)) {
            Some(entry) if *entry != to => {
                *entry = to;
                self.refresh(port);
                true
            }
            _ => false,
        }
    }
}
