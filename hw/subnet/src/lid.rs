//! Which LIDs belong to which port.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::{Guid, Lid, Lmc};

/// Unicast LIDs, 0 included for simple indexing.
const UNICAST_END: usize = 0xc000;

/// A port that needs LIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LidRequest {
    /// The port's GUID.
    pub port_guid: Guid,
    /// The LID that the port reports now, [`Lid::NONE`] if it has none.
    pub current: Lid,
    /// How many low bits of the LID are the port's path bits.
    pub lmc: Lmc,
}

/// The base LID and LMC of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LidRange {
    /// The first LID, a multiple of 2^LMC.
    pub base: Lid,
    /// Two to this power LIDs follow each other.
    pub lmc: Lmc,
}

impl LidRange {
    fn lids(self) -> core::ops::Range<usize> {
        self.base.index()..self.base.index() + (1 << self.lmc.get())
    }

    /// Whether the LID is one of the range's.
    #[must_use]
    pub fn contains(self, lid: Lid) -> bool {
        self.lids().contains(&lid.index())
    }
}

/// Assigns LIDs and remembers them by port GUID, so that a port that goes and comes back keeps its
/// address.
///
/// Order of preference, as OpenSM's: the remembered range, the LID that the port holds already
/// (which keeps a running subnet as it is when the manager restarts), the lowest free range. The
/// ranges of absent ports stay reserved until no other is left, so the memory is bounded by the LID
/// space.
#[derive(Clone, Debug, Default)]
pub struct LidManager {
    known: BTreeMap<Guid, LidRange>,
}

impl LidManager {
    /// Starts with remembered ranges, such as those saved by an earlier run. Those that do not fit
    /// the LID space or overlap an earlier one are dropped.
    #[must_use]
    pub fn with_known(known: impl IntoIterator<Item = (Guid, LidRange)>) -> Self {
        let mut manager = Self::default();
        let mut space = LidSpace::new();
        for (guid, range) in known {
            if !manager.known.contains_key(&guid) && space.reserve(range, guid) {
                manager.known.insert(guid, range);
            }
        }
        manager
    }

    /// All remembered ranges, of present and absent ports.
    pub fn known(&self) -> impl Iterator<Item = (Guid, LidRange)> + '_ {
        self.known.iter().map(|(guid, range)| (*guid, *range))
    }

    /// Assigns a range to every port, in the order of the requests; the GUIDs must differ. `None`
    /// stands for a port that the LID space has no room for.
    pub fn assign(&mut self, requests: &[LidRequest]) -> Vec<Option<LidRange>> {
        let present: BTreeSet<Guid> = requests.iter().map(|r| r.port_guid).collect();
        let mut space = LidSpace::new();
        for request in requests {
            // A range of another size cannot be kept.
            if self
                .known
                .get(&request.port_guid)
                .is_some_and(|r| r.lmc != request.lmc)
            {
                self.known.remove(&request.port_guid);
            }
        }
        for (guid, range) in &self.known {
            space.reserve(*range, *guid);
        }
        for request in requests {
            let current = LidRange {
                base: request.current,
                lmc: request.lmc,
            };
            if !self.known.contains_key(&request.port_guid)
                && space.reserve(current, request.port_guid)
            {
                self.known.insert(request.port_guid, current);
            }
        }
        requests
            .iter()
            .map(|request| {
                let guid = request.port_guid;
                if let Some(range) = self.known.get(&guid) {
                    return Some(*range);
                }
                let range = space.allocate(request.lmc, guid).or_else(|| {
                    self.forget_absent(&present, &mut space);
                    space.allocate(request.lmc, guid)
                })?;
                self.known.insert(guid, range);
                Some(range)
            })
            .collect()
    }

    fn forget_absent(&mut self, present: &BTreeSet<Guid>, space: &mut LidSpace) {
        self.known.retain(|guid, range| {
            let keep = present.contains(guid);
            if !keep {
                space.release(*range);
            }
            keep
        });
    }
}

/// Who owns each LID.
struct LidSpace {
    owners: Vec<Option<Guid>>,
    /// Below this no LID is free.
    cursor: usize,
}

impl LidSpace {
    fn new() -> Self {
        Self {
            owners: vec![None; UNICAST_END],
            cursor: 1,
        }
    }

    /// Takes a range if it is legal and free.
    fn reserve(&mut self, range: LidRange, owner: Guid) -> bool {
        let lids = range.lids();
        let fits = lids.start != 0 && lids.start.is_multiple_of(lids.len());
        let Some(slots) = self.owners.get_mut(lids).filter(|_| fits) else {
            return false;
        };
        if slots.iter().any(Option::is_some) {
            return false;
        }
        slots.fill(Some(owner));
        true
    }

    fn allocate(&mut self, lmc: Lmc, owner: Guid) -> Option<LidRange> {
        while self.owners.get(self.cursor).is_some_and(Option::is_some) {
            self.cursor += 1;
        }
        let size = 1 << lmc.get();
        (self.cursor.next_multiple_of(size)..UNICAST_END)
            .step_by(size)
            .filter_map(|base| {
                Some(LidRange {
                    base: Lid::new(u16::try_from(base).ok()?),
                    lmc,
                })
            })
            .find(|range| self.reserve(*range, owner))
    }

    fn release(&mut self, range: LidRange) {
        if let Some(slots) = self.owners.get_mut(range.lids()) {
            slots.fill(None);
        }
        self.cursor = 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(guid: u64, current: u16, lmc: u8) -> LidRequest {
        LidRequest {
            port_guid: Guid::new(guid),
            current: Lid::new(current),
            lmc: Lmc::new(lmc).unwrap(),
        }
    }

    fn bases(assigned: &[Option<LidRange>]) -> Vec<u16> {
        assigned
            .iter()
            .map(|range| range.unwrap().base.get())
            .collect()
    }

    #[test]
    fn fresh_ports_get_the_lowest_lids_in_order() {
        let mut manager = LidManager::default();
        assert_eq!(
            bases(&manager.assign(&[request(9, 0, 0), request(3, 0, 0)])),
            [1, 2]
        );
    }

    #[test]
    fn lids_held_by_ports_survive_a_manager_that_remembers_nothing() {
        let mut manager = LidManager::default();
        let ports = [request(1, 0, 0), request(2, 7, 0), request(3, 1, 0)];
        assert_eq!(bases(&manager.assign(&ports)), [2, 7, 1]);
    }

    #[test]
    fn the_first_of_two_ports_with_one_lid_keeps_it() {
        let mut manager = LidManager::default();
        assert_eq!(
            bases(&manager.assign(&[request(1, 5, 0), request(2, 5, 0)])),
            [5, 1]
        );
    }

    #[test]
    fn a_port_that_returns_gets_its_old_lid_even_if_it_claims_another() {
        let mut manager = LidManager::default();
        manager.assign(&[request(1, 0, 0), request(2, 0, 0)]);
        assert_eq!(
            bases(&manager.assign(&[request(2, 0, 0), request(3, 0, 0)])),
            [2, 3]
        );
        assert_eq!(
            bases(&manager.assign(&[request(1, 40, 0), request(2, 0, 0)])),
            [1, 2]
        );
    }

    #[test]
    fn a_changed_lmc_gives_an_aligned_new_range() {
        let mut manager = LidManager::default();
        manager.assign(&[request(1, 0, 0), request(2, 0, 0)]);
        assert_eq!(
            bases(&manager.assign(&[request(1, 1, 0), request(2, 2, 2)])),
            [1, 4]
        );
    }

    #[test]
    fn illegal_claims_are_ignored() {
        let mut manager = LidManager::default();
        let claims = [
            request(1, 0xc000, 0),
            request(2, 0xffff, 7),
            request(3, 5, 1),
        ];
        assert_eq!(bases(&manager.assign(&claims)), [1, 0x80, 2]);
    }

    #[test]
    fn absent_ports_lose_their_lids_only_when_none_is_left() {
        let mut manager = LidManager::default();
        let old: Vec<_> = (1..0x180).map(|guid| request(guid, 0, 7)).collect();
        assert!(manager.assign(&old).iter().all(Option::is_some));
        assert_eq!(bases(&manager.assign(&[request(0x1000, 0, 7)])), [0x80]);
        let too_many: Vec<_> = (1..0x181).map(|guid| request(guid, 0, 7)).collect();
        assert_eq!(
            manager
                .assign(&too_many)
                .iter()
                .filter(|r| r.is_none())
                .count(),
            1
        );
    }

    proptest! {
        #[test]
        fn no_two_present_ports_share_a_lid_and_all_ranges_are_aligned(
            rounds in prop::collection::vec(
                prop::collection::btree_map(1_u64..40, (0_u16..60, 0_u8..4), 0..30),
                1..5,
            ),
        ) {
            let mut manager = LidManager::default();
            for round in rounds {
                let requests: Vec<_> =
                    round.iter().map(|(guid, (lid, lmc))| request(*guid, *lid, *lmc)).collect();
                let mut used = BTreeSet::new();
                for range in manager.assign(&requests) {
                    let range = range.unwrap();
                    prop_assert_eq!(range.base.get() & range.lmc.mask(), 0);
                    for lid in range.lids() {
                        prop_assert!(lid != 0 && used.insert(lid));
                    }
                }
            }
        }
    }
}
