//! The alias GUIDs of all ports, as GUIDInfoRecord requests set and delete them.

use std::collections::BTreeMap;

use ib_wire::Guid;

/// GUIDs in one GUIDInfo attribute (IBA 14.2.5.5).
pub(crate) const GUIDS_PER_BLOCK: usize = 8;

/// Prefix of the GUIDs that the SA makes up itself: the OpenIB OUI, as OpenSM's.
const ASSIGNED_OUI: u64 = 0x0014_0500_0000_0000;

/// Why a request to change a block is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuidRefusal {
    /// The block lies beyond the port's GUIDCap.
    NoSuchBlock,
    /// Entry 0 of block 0 is the port's own GUID and read-only.
    PortGuid,
    /// An alias that is a member of a multicast group cannot go.
    InUse,
}

/// The block after a request, and whether it differs from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuidChange {
    /// The block's eight GUIDs.
    pub(super) block: [Guid; GUIDS_PER_BLOCK],
    /// Whether the port must be told.
    pub(super) changed: bool,
}

/// A request to change the entries of `mask` in one block of a port's table.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuidRequest {
    /// The port.
    pub(super) port: Guid,
    /// The port's GUIDCap: how many entries its table has.
    pub(super) capacity: u8,
    /// The block.
    pub(super) block: u8,
    /// Bit `i` selects entry `i` of the block.
    pub(super) mask: u8,
}

impl GuidRequest {
    /// The table indices that are selected, with their place in the block.
    fn entries(self) -> Result<impl Iterator<Item = (usize, usize)>, GuidRefusal> {
        let first = usize::from(self.block) * GUIDS_PER_BLOCK;
        let capacity = usize::from(self.capacity);
        if first >= capacity {
            return Err(GuidRefusal::NoSuchBlock);
        }
        if self.block == 0 && self.mask & 1 != 0 {
            return Err(GuidRefusal::PortGuid);
        }
        Ok((0..GUIDS_PER_BLOCK)
            .filter(move |i| self.mask & (1 << i) != 0)
            .map(move |i| (first + i, i))
            .take_while(move |(index, _)| *index < capacity))
    }
}

/// All alias GUIDs of the subnet. A port has at most 255 entries (GUIDCap is one byte), so the
/// memory is bounded by the number of ports.
#[derive(Clone, Debug, Default)]
pub(super) struct AliasGuids {
    /// Entries that are set, by port and table index.
    tables: BTreeMap<Guid, BTreeMap<usize, Guid>>,
    /// The port of each alias.
    owners: BTreeMap<Guid, Guid>,
    /// What the SA made up for a port's index, to give the same again.
    assigned: BTreeMap<(Guid, usize), Guid>,
    counter: u32,
}

impl AliasGuids {
    /// The port that has this alias.
    pub(super) fn owner(&self, alias: Guid) -> Option<Guid> {
        self.owners.get(&alias).copied()
    }

    /// All aliases with their ports, in the order of the aliases.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Guid, Guid)> + '_ {
        self.owners.iter().map(|(alias, port)| (*alias, *port))
    }

    /// Returns the aliases from a GUID on with their ports, in order.
    pub(super) fn from(&self, first: Guid) -> impl Iterator<Item = (Guid, Guid)> + '_ {
        self.owners
            .range(first..)
            .map(|(alias, port)| (*alias, *port))
    }

    /// Returns the aliases of a port, in the order of its table.
    pub(super) fn of_port(&self, port: Guid) -> impl Iterator<Item = Guid> + '_ {
        let table = self.tables.get(&port).into_iter();
        table.flat_map(|table| table.values().copied())
    }

    /// A block of a port's table; entry 0 of block 0 is the port's GUID.
    pub(super) fn block(&self, port: Guid, block: u8) -> [Guid; GUIDS_PER_BLOCK] {
        let first = usize::from(block) * GUIDS_PER_BLOCK;
        let table = self.tables.get(&port);
        core::array::from_fn(|i| match first + i {
            0 => port,
            index => table
                .and_then(|t| t.get(&index))
                .copied()
                .unwrap_or(Guid::NONE),
        })
    }

    /// Sets entries. A requested GUID of 0 asks for the SA's choice: the entry's present GUID, the
    /// one chosen earlier for it, or a new one. A GUID that is in use elsewhere (as another alias,
    /// or `is_port_guid`) is not set; the answer shows what the entry holds instead.
    pub(super) fn set(
        &mut self,
        request: GuidRequest,
        wanted: &[Guid; GUIDS_PER_BLOCK],
        is_port_guid: impl Fn(Guid) -> bool,
    ) -> Result<GuidChange, GuidRefusal> {
        let mut changed = false;
        for (index, i) in request.entries()? {
            let held = self
                .tables
                .get(&request.port)
                .and_then(|t| t.get(&index))
                .copied();
            let choice = match (wanted[i].is_none(), held) {
                (true, Some(_)) => continue,
                (true, None) => self.assign(request.port, index, &is_port_guid),
                (false, _) => wanted[i],
            };
            if self.owners.contains_key(&choice) || is_port_guid(choice) {
                continue;
            }
            if let Some(held) = held {
                self.owners.remove(&held);
            }
            self.owners.insert(choice, request.port);
            self.tables
                .entry(request.port)
                .or_default()
                .insert(index, choice);
            changed = true;
        }
        Ok(GuidChange {
            block: self.block(request.port, request.block),
            changed,
        })
    }

    /// Clears entries; nothing is cleared if one of them is `in_use`.
    pub(super) fn delete(
        &mut self,
        request: GuidRequest,
        in_use: impl Fn(Guid) -> bool,
    ) -> Result<GuidChange, GuidRefusal> {
        let entries: Vec<usize> = request.entries()?.map(|(index, _)| index).collect();
        let mut changed = false;
        if let Some(table) = self.tables.get_mut(&request.port) {
            if entries
                .iter()
                .filter_map(|index| table.get(index))
                .any(|alias| in_use(*alias))
            {
                return Err(GuidRefusal::InUse);
            }
            for index in entries {
                if let Some(alias) = table.remove(&index) {
                    self.owners.remove(&alias);
                    changed = true;
                }
            }
        }
        Ok(GuidChange {
            block: self.block(request.port, request.block),
            changed,
        })
    }

    /// Forgets the aliases of a port that left. What was made up for it is kept for its return.
    pub(super) fn remove_port(&mut self, port: Guid) {
        for alias in self.tables.remove(&port).unwrap_or_default().values() {
            self.owners.remove(alias);
        }
    }

    fn assign(&mut self, port: Guid, index: usize, is_port_guid: &impl Fn(Guid) -> bool) -> Guid {
        if let Some(earlier) = self.assigned.get(&(port, index)) {
            return *earlier;
        }
        let guid = loop {
            self.counter = self.counter.wrapping_add(1);
            let guid = Guid::new(ASSIGNED_OUI | u64::from(self.counter));
            if self.counter != 0 && !self.owners.contains_key(&guid) && !is_port_guid(guid) {
                break guid;
            }
        };
        self.assigned.insert((port, index), guid);
        guid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Guid = Guid::new(0x30001);
    const OTHER: Guid = Guid::new(0x30002);
    const NONE: [Guid; 8] = [Guid::NONE; 8];

    fn request(port: Guid, block: u8, mask: u8) -> GuidRequest {
        GuidRequest {
            port,
            capacity: 32,
            block,
            mask,
        }
    }

    fn is_port(guid: Guid) -> bool {
        guid == PORT || guid == OTHER
    }

    fn with(entry: usize, guid: u64) -> [Guid; 8] {
        let mut block = NONE;
        block[entry] = Guid::new(guid);
        block
    }

    #[test]
    fn a_guid_of_zero_is_chosen_by_the_sa_and_stays() {
        let mut guids = AliasGuids::default();
        let first = guids.set(request(PORT, 0, 2), &NONE, is_port).unwrap();
        assert!(first.changed);
        assert_eq!(first.block[..2], [PORT, Guid::new(0x0014_0500_0000_0001)]);
        let again = guids.set(request(PORT, 0, 2), &NONE, is_port).unwrap();
        assert_eq!(
            again,
            GuidChange {
                changed: false,
                ..first
            }
        );
        guids.remove_port(PORT);
        assert_eq!(guids.owner(first.block[1]), None);
        let back = guids.set(request(PORT, 0, 2), &NONE, is_port).unwrap();
        assert_eq!(back.block, first.block);
    }

    #[test]
    fn a_guid_in_use_elsewhere_is_not_set_and_the_old_content_shows() {
        let mut guids = AliasGuids::default();
        guids
            .set(request(PORT, 0, 2), &with(1, 7), is_port)
            .unwrap();
        let refused = guids
            .set(request(OTHER, 0, 2), &with(1, 7), is_port)
            .unwrap();
        assert_eq!((refused.changed, refused.block[1]), (false, Guid::NONE));
        let refused = guids
            .set(request(OTHER, 0, 2), &with(1, PORT.get()), is_port)
            .unwrap();
        assert_eq!((refused.changed, refused.block[1]), (false, Guid::NONE));
        let same_port = guids
            .set(request(PORT, 0, 4), &with(2, 7), is_port)
            .unwrap();
        assert_eq!(same_port.block[1..3], [Guid::new(7), Guid::NONE]);
    }

    #[test]
    fn a_replaced_guid_is_free_again() {
        let mut guids = AliasGuids::default();
        guids
            .set(request(PORT, 1, 1), &with(0, 7), is_port)
            .unwrap();
        guids
            .set(request(PORT, 1, 1), &with(0, 8), is_port)
            .unwrap();
        assert_eq!(guids.owner(Guid::new(7)), None);
        assert_eq!(guids.iter().collect::<Vec<_>>(), [(Guid::new(8), PORT)]);
    }

    #[test]
    fn the_port_guid_and_blocks_beyond_the_capacity_are_refused() {
        let mut guids = AliasGuids::default();
        let refusal = |r: Result<GuidChange, GuidRefusal>| r.unwrap_err();
        assert_eq!(
            refusal(guids.set(request(PORT, 0, 1), &with(0, 1), is_port)),
            GuidRefusal::PortGuid
        );
        assert_eq!(
            refusal(guids.delete(request(PORT, 0, 3), |_| false)),
            GuidRefusal::PortGuid
        );
        assert_eq!(
            refusal(guids.set(request(PORT, 4, 1), &with(0, 1), is_port)),
            GuidRefusal::NoSuchBlock
        );
        let small = GuidRequest {
            capacity: 10,
            ..request(PORT, 1, 0xff)
        };
        let set = guids
            .set(small, &[1, 2, 3, 4, 5, 6, 7, 8].map(Guid::new), is_port)
            .unwrap();
        assert_eq!(set.block[..3], [Guid::new(1), Guid::new(2), Guid::NONE]);
    }

    #[test]
    fn deleting_is_all_or_nothing_when_an_alias_is_in_use() {
        let mut guids = AliasGuids::default();
        let two = [0, 5, 6, 0, 0, 0, 0, 0].map(Guid::new);
        guids.set(request(PORT, 0, 6), &two, is_port).unwrap();
        let in_use = |alias| alias == Guid::new(6);
        assert_eq!(
            guids.delete(request(PORT, 0, 6), in_use),
            Err(GuidRefusal::InUse)
        );
        assert_eq!(guids.owner(Guid::new(5)), Some(PORT));
        let gone = guids.delete(request(PORT, 0, 6), |_| false).unwrap();
        assert_eq!((gone.changed, gone.block), (true, guids.block(PORT, 0)));
        assert_eq!(guids.owner(Guid::new(5)), None);
        assert!(
            !guids
                .delete(request(PORT, 0, 6), |_| false)
                .unwrap()
                .changed
        );
    }
}
