//! Partitions: a VF's own table over the port's.

use ib_wire::{PKey, PKeyIndex};
use vf_tunnel::{DropReason, PhysicalPKeyIndex, VirtualPKeyIndex};

use crate::config::{Strictness, VfPKeyEntry};

/// An index of a table, the place of the port's table behind it, and what stands there.
pub(crate) type Entry = (VirtualPKeyIndex, Option<PhysicalPKeyIndex>, PKey);

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

    /// Where in the table an entry of a VF's leads.
    fn place(&self, entry: VfPKeyEntry) -> Option<PhysicalPKeyIndex> {
        let key = match entry {
            VfPKeyEntry::Index(place) => return Some(place),
            VfPKeyEntry::Value(key) => key,
        };
        let limited = PKey::new(key.base());
        let find = |key: PKey| self.0.iter().position(|&at| at == key && key.is_valid());
        let at = find(key).or_else(|| find(limited))?;
        u16::try_from(at)
            .ok()
            .map(|at| PhysicalPKeyIndex(PKeyIndex(at)))
    }

    /// All entries, as those of a table over itself.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..).zip(&self.0).map(|(at, &key)| {
            let index = PKeyIndex(at);
            (VirtualPKeyIndex(index), Some(PhysicalPKeyIndex(index)), key)
        })
    }

    /// The key for what the port itself asks the SA: the default partition's, which every SA is in
    /// (IBA 10.9.2), or else the first.
    pub(crate) fn for_management(&self) -> PKey {
        self.of_partition(PKey::DEFAULT_FULL)
            .or_else(|| self.0.first().copied())
            .unwrap_or(PKey::INVALID)
    }

    /// The key by which the port is in a partition, the full member's before the limited one's.
    pub(crate) fn of_partition(&self, partition: PKey) -> Option<PKey> {
        let memberships = [partition.full(), PKey::new(partition.base())];
        let mut own = memberships.into_iter().filter(|key| self.0.contains(key));
        own.next().filter(|key| key.is_valid())
    }
}

/// A VF's P_Key table: for each of its indices what the operator put behind it, the place of the
/// port's table that this is, and the key that stands there.
#[derive(Clone, Debug)]
pub(crate) struct VfPKeys {
    entries: Vec<Option<VfPKeyEntry>>,
    places: Vec<Option<PhysicalPKeyIndex>>,
    keys: Vec<PKey>,
}

impl VfPKeys {
    pub(crate) fn new(entries: Vec<Option<VfPKeyEntry>>, port: &PortPKeys) -> Self {
        let mut table = Self {
            entries,
            places: Vec::new(),
            keys: Vec::new(),
        };
        table.refresh(port);
        table
    }

    /// Reads the port's table anew. Gives whether the VF's is another now; that a key is at another
    /// place of the port's is none of the VF's business.
    pub(crate) fn refresh(&mut self, port: &PortPKeys) -> bool {
        let entries = self.entries.iter();
        self.places = entries
            .map(|entry| entry.and_then(|entry| port.place(entry)))
            .collect();
        let key = |place: &Option<_>| place.map_or(PKey::INVALID, |place| port.get(place));
        let keys = self.places.iter().map(key).collect();
        let changed = self.keys != keys;
        self.keys = keys;
        changed
    }

    /// The places of the port's table by the VF's own indices.
    pub(crate) fn places(&self) -> &[Option<PhysicalPKeyIndex>] {
        &self.places
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

    /// All entries.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        let entries = (0..).zip(self.places.iter().zip(&self.keys));
        entries.map(|(at, (&physical, &key))| (VirtualPKeyIndex(PKeyIndex(at)), physical, key))
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

    /// Puts something else behind an index. Gives whether that is another place or key; an index
    /// beyond the table is none.
    pub(crate) fn map(
        &mut self,
        index: VirtualPKeyIndex,
        to: Option<VfPKeyEntry>,
        port: &PortPKeys,
    ) -> bool {
        let at = usize::from(index.0.0);
        let Some(entry) = self.entries.get_mut(at) else {
            return false;
        };
        *entry = to;
        let before = self.places.get(at).copied();
        self.refresh(port) || self.places.get(at).copied() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: PKey = PKey::new(0x8001);
    const LIMITED: PKey = PKey::new(0x0001);

    fn place_of(key: PKey, table: &[PKey]) -> Option<u16> {
        let port = PortPKeys::new(table.to_vec());
        port.place(VfPKeyEntry::Value(key)).map(|place| place.0.0)
    }

    #[test]
    fn a_key_is_found_by_value_where_it_is_first() {
        let table = [PKey::DEFAULT_FULL, LIMITED, FULL, FULL];
        assert_eq!(place_of(FULL, &table), Some(2));
        assert_eq!(place_of(LIMITED, &table), Some(1));
        assert_eq!(place_of(PKey::new(0x8002), &table), None);
    }

    #[test]
    fn a_full_key_may_turn_out_limited_and_a_limited_one_never_full() {
        assert_eq!(place_of(FULL, &[PKey::DEFAULT_FULL, LIMITED]), Some(1));
        assert_eq!(place_of(LIMITED, &[PKey::DEFAULT_FULL, FULL]), None);
    }

    #[test]
    fn an_invalid_key_is_found_nowhere() {
        assert_eq!(place_of(PKey::INVALID, &[PKey::INVALID]), None);
        let partition_0 = PKey::new(0x8000);
        assert_eq!(place_of(partition_0, &[partition_0]), None);
    }
}
