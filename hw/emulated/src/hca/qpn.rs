//! The adapter's queue pair numbers.

use hca_api::{FunctionId, HcaError, QpHandle};
use ib_wire::Qpn;

/// A queue pair of some function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpRef {
    pub(super) function: FunctionId,
    /// Index into the function's queue pairs; also the handle.
    pub(super) index: u32,
}

impl QpRef {
    pub(super) const fn new(function: FunctionId, qp: QpHandle) -> Self {
        Self {
            function,
            index: qp.0,
        }
    }

    pub(super) const fn handle(self) -> QpHandle {
        QpHandle(self.index)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// Set aside by a function.
    Reserved(FunctionId),
    /// In use; goes back to the reservation if it came from one.
    Used {
        qp: QpRef,
        reserved: bool,
    },
}

/// Numbers in a row, indexed from the first. Grows with use; numbers that were given back rest before they are given out
/// again, so that late packets do not reach a stranger.
#[derive(Debug)]
struct Range {
    first: usize,
    end: usize,
    slots: Vec<Slot>,
    /// Free slots among `slots`.
    free: usize,
    /// Where the search for a free slot goes on.
    cursor: usize,
}

impl Range {
    /// So many free numbers there are before one is used again.
    const REST: usize = 256;

    const fn new(first: usize, end: usize) -> Self {
        Self {
            first,
            end,
            slots: Vec::new(),
            free: 0,
            cursor: 0,
        }
    }

    fn slot(&self, qpn: Qpn) -> Option<&Slot> {
        self.slots
            .get((qpn.get() as usize).checked_sub(self.first)?)
    }

    fn slot_mut(&mut self, qpn: Qpn) -> Option<&mut Slot> {
        let index = (qpn.get() as usize).checked_sub(self.first)?;
        self.slots.get_mut(index)
    }

    fn assign(&mut self, qp: QpRef) -> Option<Qpn> {
        let index = self.free_slot()?;
        self.free -= 1;
        self.slots[index] = Slot::Used {
            qp,
            reserved: false,
        };
        number(self.first + index)
    }

    fn reserve(&mut self, owner: FunctionId, count: usize, align: usize) -> Option<Qpn> {
        let start = self
            .run_at_the_end(count, align)
            .or_else(|| self.free_run(count, align))?;
        self.slots[start..start + count].fill(Slot::Reserved(owner));
        self.free -= count;
        number(self.first + start)
    }

    fn release(&mut self, owner: FunctionId, first: Qpn, count: usize) -> Result<(), HcaError> {
        let start = (first.get() as usize)
            .checked_sub(self.first)
            .ok_or(HcaError::InvalidParameter)?;
        let slots = self
            .slots
            .get_mut(start..start.saturating_add(count))
            .filter(|slots| !slots.is_empty())
            .ok_or(HcaError::InvalidParameter)?;
        for slot in slots.iter() {
            match slot {
                Slot::Reserved(id) if *id == owner => {}
                Slot::Used { qp, reserved: true } if qp.function == owner => {
                    return Err(HcaError::InUse);
                }
                _ => return Err(HcaError::InvalidParameter),
            }
        }
        slots.fill(Slot::Free);
        self.free += slots.len();
        Ok(())
    }

    fn release_all(&mut self, owner: FunctionId) {
        for slot in &mut self.slots {
            let theirs = match slot {
                Slot::Free => false,
                Slot::Reserved(id) => *id == owner,
                Slot::Used { qp, .. } => qp.function == owner,
            };
            if theirs {
                *slot = Slot::Free;
                self.free += 1;
            }
        }
    }

    fn free_slot(&mut self) -> Option<usize> {
        if self.free <= Self::REST && self.slots.len() < self.end - self.first {
            self.slots.push(Slot::Free);
            self.free += 1;
            return Some(self.slots.len() - 1);
        }
        let (behind, ahead) = self.slots.split_at(self.cursor.min(self.slots.len()));
        let is_free = |slot: &Slot| *slot == Slot::Free;
        let found = match ahead.iter().position(is_free) {
            Some(at) => behind.len() + at,
            None => behind.iter().position(is_free)?,
        };
        self.cursor = found + 1;
        Some(found)
    }

    fn run_at_the_end(&mut self, count: usize, align: usize) -> Option<usize> {
        let end = self.slots.len() + self.first;
        let first = end.checked_next_multiple_of(align)?;
        if first.checked_add(count)? > self.end {
            return None;
        }
        self.slots.resize(first + count - self.first, Slot::Free);
        self.free += first + count - end;
        Some(first - self.first)
    }

    fn free_run(&self, count: usize, align: usize) -> Option<usize> {
        let mut first = self.first.checked_next_multiple_of(align)?;
        while first.checked_add(count)? <= self.slots.len() + self.first {
            let start = first - self.first;
            let run = &self.slots[start..start + count];
            match run.iter().rposition(|slot| *slot != Slot::Free) {
                None => return Some(start),
                Some(taken) => first = (first + taken + 1).next_multiple_of(align),
            }
        }
        None
    }
}

/// All numbers. The lower half is given out to whoever asks first; where it has none left that fits, a function has a
/// range of its own, which no other function can fill or fragment.
#[derive(Debug)]
pub(super) struct QpnTable {
    common: Range,
    /// Indexed by function.
    own: Vec<Range>,
}

impl QpnTable {
    /// Numbers below belong to special QPs or are left out.
    const FIRST: usize = 0x40;
    /// Where the functions' own ranges begin.
    const FIRST_OWN: usize = 1 << 19;
    /// Where those of the virtual functions begin: the physical one needs queue pairs for every other.
    const FIRST_VIRTUAL: usize = Self::FIRST_OWN + (1 << 18);
    /// Numbers that an adapter has.
    const MAX: usize = 1 << 20;

    /// The table of an adapter with up to so many virtual functions.
    pub(super) fn new(virtual_functions: u16) -> Self {
        let share = Self::share(virtual_functions);
        let range = |at: usize| Range::new(at, at + share);
        let virtual_ranges = (0..usize::from(virtual_functions))
            .map(|index| range(Self::FIRST_VIRTUAL + index * share));
        let mut own = vec![Range::new(Self::FIRST_OWN, Self::FIRST_VIRTUAL)];
        own.extend(virtual_ranges);
        Self {
            common: Range::new(Self::FIRST, Self::FIRST_OWN),
            own,
        }
    }

    /// Numbers that are one virtual function's own: a power of two, so that aligned runs fit.
    fn share(virtual_functions: u16) -> usize {
        let parts = usize::from(virtual_functions.max(1)).next_power_of_two();
        (Self::MAX - Self::FIRST_VIRTUAL) / parts
    }

    /// The queue pair that has a number.
    pub(super) fn get(&self, qpn: Qpn) -> Option<QpRef> {
        match self.range(qpn)?.slot(qpn)? {
            Slot::Used { qp, .. } => Some(*qp),
            Slot::Free | Slot::Reserved(_) => None,
        }
    }

    /// Gives a queue pair a number, or the one it wants from its function's reservations.
    pub(super) fn assign(&mut self, qp: QpRef, wanted: Option<Qpn>) -> Result<Qpn, HcaError> {
        let Some(qpn) = wanted else {
            return self
                .common
                .assign(qp)
                .or_else(|| self.own_of(qp.function)?.assign(qp))
                .ok_or(HcaError::InsufficientResources);
        };
        let slot = self.slot_mut(qpn).ok_or(HcaError::InvalidParameter)?;
        if *slot != Slot::Reserved(qp.function) {
            return Err(HcaError::InvalidParameter);
        }
        *slot = Slot::Used { qp, reserved: true };
        Ok(qpn)
    }

    /// Takes the number of a queue pair that is destroyed; gives whether it went back to its
    /// function's reservation.
    pub(super) fn unassign(&mut self, qpn: Qpn) -> bool {
        let Some(range) = self.range_mut(qpn) else {
            return false;
        };
        let Some(slot) = range.slot_mut(qpn) else {
            return false;
        };
        match *slot {
            Slot::Used { qp, reserved: true } => {
                *slot = Slot::Reserved(qp.function);
                true
            }
            Slot::Used {
                reserved: false, ..
            } => {
                *slot = Slot::Free;
                range.free += 1;
                false
            }
            Slot::Free | Slot::Reserved(_) => false,
        }
    }

    /// Sets numbers aside.
    pub(super) fn reserve(
        &mut self,
        owner: FunctionId,
        count: u32,
        align: u32,
    ) -> Result<Qpn, HcaError> {
        if count == 0 || !align.is_power_of_two() {
            return Err(HcaError::InvalidParameter);
        }
        let (count, align) = (count as usize, align as usize);
        self.common
            .reserve(owner, count, align)
            .or_else(|| self.own_of(owner)?.reserve(owner, count, align))
            .ok_or(HcaError::InsufficientResources)
    }

    /// Gives numbers back.
    pub(super) fn release(
        &mut self,
        owner: FunctionId,
        first: Qpn,
        count: u32,
    ) -> Result<(), HcaError> {
        self.range_mut(first)
            .ok_or(HcaError::InvalidParameter)?
            .release(owner, first, count as usize)
    }

    /// Takes back everything that a function has.
    pub(super) fn release_all(&mut self, owner: FunctionId) {
        self.common.release_all(owner);
        if let Some(own) = self.own_of(owner) {
            own.release_all(owner);
        }
    }

    fn own_of(&mut self, function: FunctionId) -> Option<&mut Range> {
        self.own.get_mut(usize::from(function.0))
    }

    fn slot_mut(&mut self, qpn: Qpn) -> Option<&mut Slot> {
        self.range_mut(qpn)?.slot_mut(qpn)
    }

    fn range(&self, qpn: Qpn) -> Option<&Range> {
        match self.owner(qpn) {
            None => Some(&self.common),
            Some(function) => self.own.get(function),
        }
    }

    fn range_mut(&mut self, qpn: Qpn) -> Option<&mut Range> {
        match self.owner(qpn) {
            None => Some(&mut self.common),
            Some(function) => self.own.get_mut(function),
        }
    }

    /// The function in whose own range a number is.
    fn owner(&self, qpn: Qpn) -> Option<usize> {
        let at = (qpn.get() as usize).checked_sub(Self::FIRST_OWN)?;
        let virtual_functions = u16::try_from(self.own.len() - 1).unwrap_or(u16::MAX);
        Some(
            at.checked_sub(Self::FIRST_VIRTUAL - Self::FIRST_OWN)
                .map_or(0, |at| 1 + at / Self::share(virtual_functions)),
        )
    }
}

fn number(qpn: usize) -> Option<Qpn> {
    Qpn::new(u32::try_from(qpn).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VF: FunctionId = FunctionId(1);

    fn qp(index: u32) -> QpRef {
        QpRef {
            function: VF,
            index,
        }
    }

    #[test]
    fn a_number_leads_to_its_queue_pair_until_it_is_taken_back() {
        let mut table = QpnTable::new(126);
        let qpn = table.assign(qp(7), None).unwrap();
        assert_eq!(table.get(qpn), Some(qp(7)));
        table.unassign(qpn);
        assert_eq!(table.get(qpn), None);
        assert_eq!(table.get(Qpn::GSI), None);
        assert_eq!(table.get(Qpn::MULTICAST), None);
    }

    #[test]
    fn a_number_rests_before_it_is_given_out_again() {
        let mut table = QpnTable::new(126);
        let first = table.assign(qp(0), None).unwrap();
        table.unassign(first);
        for _ in 0..Range::REST {
            let next = table.assign(qp(0), None).unwrap();
            assert_ne!(next, first);
            table.unassign(next);
        }
        assert_eq!(table.assign(qp(0), None), Ok(first));
    }

    #[test]
    fn reserved_numbers_are_aligned_and_belong_to_the_function_that_reserved_them() {
        let mut table = QpnTable::new(126);
        table.assign(qp(0), None).unwrap();
        let first = table.reserve(VF, 4, 64).unwrap();
        assert_eq!(first.get() % 64, 0);
        let stranger = QpRef {
            function: FunctionId(2),
            index: 0,
        };
        assert_eq!(
            table.assign(stranger, Some(first)),
            Err(HcaError::InvalidParameter)
        );
        assert_eq!(table.assign(qp(1), Some(first)), Ok(first));
        assert_eq!(table.release(VF, first, 4), Err(HcaError::InUse));
        table.unassign(first);
        assert_eq!(
            table.release(FunctionId(2), first, 4),
            Err(HcaError::InvalidParameter)
        );
        assert_eq!(table.release(VF, first, 4), Ok(()));
        assert_eq!(
            table.release(VF, first, 4),
            Err(HcaError::InvalidParameter),
            "not set aside any more"
        );
    }

    #[test]
    fn a_full_table_finds_runs_among_what_was_released() {
        let mut table = QpnTable::new(126);
        let all = u32::try_from(QpnTable::FIRST_OWN - QpnTable::FIRST).unwrap();
        let first = table.reserve(VF, all, 1).unwrap();
        let share = u32::try_from(QpnTable::share(126)).unwrap();
        let own = table.reserve(VF, share, share).unwrap();
        assert_eq!(
            table.assign(qp(0), None),
            Err(HcaError::InsufficientResources)
        );
        let hole = first.wrapping_add(0x1000 - first.get());
        table.release(VF, hole, 8).unwrap();
        assert_eq!(
            table.reserve(VF, 16, 1),
            Err(HcaError::InsufficientResources)
        );
        assert_eq!(table.reserve(VF, 8, 8), Ok(hole));
        assert_eq!(table.release(VF, own, share), Ok(()));
        table.release_all(VF);
        assert!(table.reserve(VF, 16, 16).is_ok());
        assert_eq!(table.reserve(VF, 1, 3), Err(HcaError::InvalidParameter));
    }

    /// What others hold, and how they spread it, leaves each function numbers of its own.
    #[test]
    fn nobody_can_take_or_fragment_the_last_numbers_of_a_function() {
        for virtual_functions in [1, 126, 1024] {
            let mut table = QpnTable::new(virtual_functions);
            let hostile = FunctionId(virtual_functions);
            let quiet = FunctionId(1);
            // One number of each run of 128 spoils it.
            while table.reserve(hostile, 1, 128).is_ok() {}
            for function in [FunctionId::PF, quiet] {
                if function == hostile {
                    continue;
                }
                let first = table.reserve(function, 128, 128).unwrap();
                assert_eq!(first.get() % 128, 0);
                let at = QpRef { function, index: 3 };
                assert_eq!(table.assign(at, Some(first)), Ok(first));
                assert_eq!(table.get(first), Some(at));
                assert_eq!(
                    table.release(hostile, first, 1),
                    Err(HcaError::InvalidParameter)
                );
                assert!(table.assign(at, None).is_ok());
            }
        }
    }
}
