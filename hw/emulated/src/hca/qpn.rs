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

/// All numbers, indexed by number. Grows with use; numbers that were given back rest before they are
/// given out again, so that late packets do not reach a stranger.
#[derive(Debug)]
pub(super) struct QpnTable {
    slots: Vec<Slot>,
    /// Free slots among `slots`.
    free: usize,
    /// Where the search for a free slot goes on.
    cursor: usize,
}

impl QpnTable {
    /// Numbers below belong to special QPs or are left out.
    const FIRST: usize = 0x40;
    /// Numbers that an adapter has.
    const MAX: usize = 1 << 20;
    /// So many free numbers there are before one is used again.
    const REST: usize = 256;

    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: 0,
            cursor: 0,
        }
    }

    /// The queue pair that has a number.
    pub(super) fn get(&self, qpn: Qpn) -> Option<QpRef> {
        let index = (qpn.get() as usize).checked_sub(Self::FIRST)?;
        match self.slots.get(index)? {
            Slot::Used { qp, .. } => Some(*qp),
            Slot::Free | Slot::Reserved(_) => None,
        }
    }

    /// Gives a queue pair a number, or the one it wants from its function's reservations.
    pub(super) fn assign(&mut self, qp: QpRef, wanted: Option<Qpn>) -> Result<Qpn, HcaError> {
        let Some(qpn) = wanted else {
            let index = self.free_slot().ok_or(HcaError::InsufficientResources)?;
            self.free -= 1;
            self.slots[index] = Slot::Used {
                qp,
                reserved: false,
            };
            return number(index);
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
        let Some(slot) = self.slot_mut(qpn) else {
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
                self.free += 1;
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
        let first = self
            .run_at_the_end(count, align)
            .or_else(|| self.free_run(count, align))
            .ok_or(HcaError::InsufficientResources)?;
        self.slots[first..first + count].fill(Slot::Reserved(owner));
        self.free -= count;
        number(first)
    }

    /// Gives numbers back.
    pub(super) fn release(
        &mut self,
        owner: FunctionId,
        first: Qpn,
        count: u32,
    ) -> Result<(), HcaError> {
        let start = (first.get() as usize)
            .checked_sub(Self::FIRST)
            .ok_or(HcaError::InvalidParameter)?;
        let range = start..start.saturating_add(count as usize);
        let slots = self
            .slots
            .get_mut(range)
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

    /// Takes back everything that a function has.
    pub(super) fn release_all(&mut self, owner: FunctionId) {
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

    fn slot_mut(&mut self, qpn: Qpn) -> Option<&mut Slot> {
        let index = (qpn.get() as usize).checked_sub(Self::FIRST)?;
        self.slots.get_mut(index)
    }

    fn free_slot(&mut self) -> Option<usize> {
        if self.free <= Self::REST && self.slots.len() < Self::MAX - Self::FIRST {
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
        let end = self.slots.len() + Self::FIRST;
        let first = end.checked_next_multiple_of(align)?;
        if first.checked_add(count)? > Self::MAX {
            return None;
        }
        self.slots.resize(first + count - Self::FIRST, Slot::Free);
        self.free += first + count - end;
        Some(first - Self::FIRST)
    }

    fn free_run(&self, count: usize, align: usize) -> Option<usize> {
        let mut first = Self::FIRST.next_multiple_of(align);
        while first + count <= self.slots.len() + Self::FIRST {
            let start = first - Self::FIRST;
            let run = &self.slots[start..start + count];
            match run.iter().rposition(|slot| *slot != Slot::Free) {
                None => return Some(start),
                Some(taken) => first = (first + taken + 1).next_multiple_of(align),
            }
        }
        None
    }
}

fn number(index: usize) -> Result<Qpn, HcaError> {
    u32::try_from(index + QpnTable::FIRST)
        .ok()
        .and_then(Qpn::new)
        .ok_or(HcaError::InsufficientResources)
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
        let mut table = QpnTable::new();
        let qpn = table.assign(qp(7), None).unwrap();
        assert_eq!(table.get(qpn), Some(qp(7)));
        table.unassign(qpn);
        assert_eq!(table.get(qpn), None);
        assert_eq!(table.get(Qpn::GSI), None);
        assert_eq!(table.get(Qpn::MULTICAST), None);
    }

    #[test]
    fn a_number_rests_before_it_is_given_out_again() {
        let mut table = QpnTable::new();
        let first = table.assign(qp(0), None).unwrap();
        table.unassign(first);
        for _ in 0..QpnTable::REST {
            let next = table.assign(qp(0), None).unwrap();
            assert_ne!(next, first);
            table.unassign(next);
        }
        assert_eq!(table.assign(qp(0), None), Ok(first));
    }

    #[test]
    fn reserved_numbers_are_aligned_and_belong_to_the_function_that_reserved_them() {
        let mut table = QpnTable::new();
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
        let mut table = QpnTable::new();
        let all = u32::try_from(QpnTable::MAX - QpnTable::FIRST).unwrap();
        let first = table.reserve(VF, all, 1).unwrap();
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
        table.release_all(VF);
        assert!(table.reserve(VF, 16, 16).is_ok());
        assert_eq!(table.reserve(VF, 1, 3), Err(HcaError::InvalidParameter));
    }
}
