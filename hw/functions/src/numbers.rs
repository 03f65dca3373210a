//! Numbers of the ends of tunnels, and numbers that virtual functions set aside. No packet carries them.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use hca_api::{FunctionId, HcaError};
use ib_wire::Qpn;

/// Numbers that virtual functions set aside.
const RESERVABLE: Range<u32> = 0xe_0000..0xf_0000;

/// Numbers of ends for which none was set aside.
const DRAWN: Range<u32> = 0xf_0000..0x10_0000;

/// The numbers.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Numbers that ends have.
    used: BTreeSet<Qpn>,
    /// Numbers that are set aside, with the functions that they are for.
    reserved: BTreeMap<u32, FunctionId>,
    next: u32,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            used: BTreeSet::new(),
            reserved: BTreeMap::new(),
            next: DRAWN.start,
        }
    }
}

impl Numbers {
    /// Returns the number for an end of a function: one that the function chooses among its own ones, or a free one. A number that was given
    /// back comes again last. [`Self::insert`] is to follow.
    pub(crate) fn choose(
        &mut self,
        owner: FunctionId,
        chosen: Option<Qpn>,
    ) -> Result<Qpn, HcaError> {
        if let Some(number) = chosen {
            let is_own = self.reserved.get(&number.get()) == Some(&owner);
            let is_free = is_own && !self.used.contains(&number);
            return is_free.then_some(number).ok_or(HcaError::InvalidParameter);
        }
        for _ in DRAWN {
            let number = Qpn::from_low_bits(self.next);
            self.next += 1;
            if self.next == DRAWN.end {
                self.next = DRAWN.start;
            }
            if !self.used.contains(&number) {
                return Ok(number);
            }
        }
        Err(HcaError::InsufficientResources)
    }

    /// Notes that an end has a number.
    pub(crate) fn insert(&mut self, number: Qpn) {
        self.used.insert(number);
    }

    /// Notes that no end has a number any longer.
    pub(crate) fn remove(&mut self, number: Qpn) {
        self.used.remove(&number);
    }

    /// Sets numbers aside, of which a function can have `most`. Returns the first of them, a multiple of `align`.
    pub(crate) fn reserve(
        &mut self,
        owner: FunctionId,
        (count, align): (u32, u32),
        most: u32,
    ) -> Result<Qpn, HcaError> {
        if count == 0 || !align.is_power_of_two() {
            return Err(HcaError::InvalidParameter);
        }
        let held = self.reserved.values().filter(|of| **of == owner).count();
        let room = most.saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        let size = RESERVABLE.end - RESERVABLE.start;
        if count > room || align > size {
            return Err(HcaError::InsufficientResources);
        }
        let mut starts = RESERVABLE.step_by(align as usize);
        let first = starts.find(|first| {
            let end = first.saturating_add(count);
            end <= RESERVABLE.end && self.reserved.range(*first..end).next().is_none()
        });
        let first = first.ok_or(HcaError::InsufficientResources)?;
        let numbers = first..first + count;
        self.reserved.extend(numbers.map(|number| (number, owner)));
        Ok(Qpn::from_low_bits(first))
    }

    /// Takes numbers back from a function.
    pub(crate) fn release(
        &mut self,
        owner: FunctionId,
        first: Qpn,
        count: u32,
    ) -> Result<(), HcaError> {
        let first = first.get();
        let numbers = first..first.checked_add(count).ok_or(HcaError::InvalidParameter)?;
        let held = self.reserved.range(numbers.clone());
        let own = held.filter(|(_, of)| **of == owner).count();
        if count == 0 || own != numbers.len() {
            return Err(HcaError::InvalidParameter);
        }
        let mut each = numbers.clone().map(Qpn::from_low_bits);
        if each.any(|number| self.used.contains(&number)) {
            return Err(HcaError::InUse);
        }
        for number in numbers {
            self.reserved.remove(&number);
        }
        Ok(())
    }

    /// Takes all numbers back from a function, of which no end has one any longer.
    pub(crate) fn forget(&mut self, owner: FunctionId) {
        self.reserved.retain(|_, of| *of != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: FunctionId = FunctionId(1);
    const TWO: FunctionId = FunctionId(2);

    #[test]
    fn numbers_that_are_set_aside_are_for_their_function_alone_and_for_one_end_at_a_time() {
        let mut numbers = Numbers::default();
        let first = numbers.reserve(ONE, (4, 4), 8).unwrap();
        assert_eq!(first.get() % 4, 0);
        let second = Qpn::from_low_bits(first.get() + 1);
        assert_eq!(numbers.choose(ONE, Some(second)), Ok(second));
        numbers.insert(second);
        let refused = Err(HcaError::InvalidParameter);
        assert_eq!(numbers.choose(ONE, Some(second)), refused);
        assert_eq!(numbers.choose(TWO, Some(first)), refused);
        assert_eq!(
            numbers.release(TWO, first, 4),
            Err(HcaError::InvalidParameter)
        );
        assert_eq!(numbers.release(ONE, first, 4), Err(HcaError::InUse));
        assert_eq!(
            numbers.release(ONE, first, 5),
            Err(HcaError::InvalidParameter)
        );
        assert_eq!(
            numbers.release(ONE, first, 0),
            Err(HcaError::InvalidParameter)
        );
        numbers.remove(second);
        assert_eq!(numbers.release(ONE, first, 4), Ok(()));
        assert_eq!(numbers.choose(ONE, Some(second)), refused);
    }

    #[test]
    fn runs_are_aligned_apart_and_bounded_by_the_quota() {
        let mut numbers = Numbers::default();
        let mut all = BTreeSet::new();
        for (count, align) in [(1, 1), (3, 8), (8, 8), (1, 1), (2, 64)] {
            let first = numbers.reserve(ONE, (count, align), 16).unwrap().get();
            assert_eq!(first % align, 0);
            assert!((first..first + count).all(|number| all.insert(number)));
        }
        let full = Err(HcaError::InsufficientResources);
        assert_eq!(numbers.reserve(ONE, (2, 1), 16), full);
        assert_eq!(numbers.reserve(TWO, (1, 1 << 31), 16), full);
        assert_eq!(numbers.reserve(TWO, (u32::MAX, 1), u32::MAX), full);
        for strange in [(0, 1), (1, 0), (1, 3)] {
            let refused = numbers.reserve(TWO, strange, 16);
            assert_eq!(refused, Err(HcaError::InvalidParameter), "{strange:?}");
        }
        numbers.forget(ONE);
        assert!(numbers.reserve(ONE, (16, 1), 16).is_ok());
    }
}
