//! The adapter's queue pair numbers.

mod range;

use hca_api::{FunctionId, HcaError, QpHandle};
use ib_vtime::{Secret, SecretNumbers};
use ib_wire::Qpn;

use self::range::{QpnRange, Slot};

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

/// All numbers. The lower half is given out to all functions: a quarter for single numbers, and one for runs, which single
/// numbers at random places would spoil; one takes what the other has none of. Where neither has any that fit, a function
/// has a range of its own, which no other function can fill or fragment.
#[derive(Debug)]
pub(super) struct QpnTable {
    singles: QpnRange,
    runs: QpnRange,
    /// Indexed by function.
    own: Vec<QpnRange>,
    random: SecretNumbers,
}

impl QpnTable {
    /// Numbers below belong to special QPs or are left out.
    const FIRST: usize = 0x40;
    /// Where numbers for runs begin.
    const FIRST_RUN: usize = 1 << 18;
    /// Where the functions' own ranges begin.
    const FIRST_OWN: usize = 1 << 19;
    /// Where those of the virtual functions begin: the physical one needs queue pairs for every other.
    const FIRST_VIRTUAL: usize = Self::FIRST_OWN + (1 << 18);
    /// Numbers that an adapter has.
    const MAX: usize = 1 << 20;

    /// Returns the table of an adapter with up to so many virtual functions. The order of numbers follows from the secret.
    pub(super) fn new(virtual_functions: u16, secret: Secret) -> Self {
        let share = Self::share(virtual_functions);
        let range = |at: usize| QpnRange::new(at..at + share);
        let virtual_ranges = (0..usize::from(virtual_functions))
            .map(|index| range(Self::FIRST_VIRTUAL + index * share));
        let mut own = vec![QpnRange::new(Self::FIRST_OWN..Self::FIRST_VIRTUAL)];
        own.extend(virtual_ranges);
        Self {
            singles: QpnRange::new(Self::FIRST..Self::FIRST_RUN),
            runs: QpnRange::new(Self::FIRST_RUN..Self::FIRST_OWN),
            own,
            random: secret.numbers(),
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
            Slot::Used { qp, .. } => Some(qp),
            Slot::Free | Slot::Resting | Slot::Reserved(_) => None,
        }
    }

    /// Gives a queue pair a number, or the one it wants from its function's reservations.
    pub(super) fn assign(&mut self, qp: QpRef, wanted: Option<Qpn>) -> Result<Qpn, HcaError> {
        if let Some(qpn) = wanted {
            let range = self.range_mut(qpn).ok_or(HcaError::InvalidParameter)?;
            return range.use_reserved(qpn, qp).map(|()| qpn);
        }
        let random = &mut self.random;
        let common = [&mut self.singles, &mut self.runs];
        let own = self.own.get_mut(usize::from(qp.function.0));
        let mut ranges = common.into_iter().chain(own);
        ranges
            .find_map(|range| range.assign(qp, random))
            .ok_or(HcaError::InsufficientResources)
    }

    /// Takes the number of a queue pair that is destroyed; gives whether it went back to its
    /// function's reservation.
    pub(super) fn unassign(&mut self, qpn: Qpn) -> bool {
        self.range_mut(qpn).is_some_and(|range| range.unassign(qpn))
    }

    /// Sets numbers aside: consecutive ones, the first a multiple of `align`.
    pub(super) fn reserve(
        &mut self,
        owner: FunctionId,
        count: u32,
        align: u32,
    ) -> Result<Qpn, HcaError> {
        if count == 0 || !align.is_power_of_two() {
            return Err(HcaError::InvalidParameter);
        }
        let is_single = count == 1 && align == 1;
        let (count, align) = (count as usize, align as usize);
        let random = &mut self.random;
        let mut common = [&mut self.runs, &mut self.singles];
        if is_single {
            common.reverse();
        }
        let own = self.own.get_mut(usize::from(owner.0));
        let mut ranges = common.into_iter().chain(own);
        ranges
            .find_map(|range| range.reserve(owner, count, align, random))
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
        let own = self.own.get_mut(usize::from(owner.0));
        let common = [&mut self.singles, &mut self.runs];
        for range in common.into_iter().chain(own) {
            range.release_all(owner);
        }
    }

    fn range(&self, qpn: Qpn) -> Option<&QpnRange> {
        match self.owner(qpn) {
            Some(function) => self.own.get(function),
            None if (qpn.get() as usize) < Self::FIRST_RUN => Some(&self.singles),
            None => Some(&self.runs),
        }
    }

    fn range_mut(&mut self, qpn: Qpn) -> Option<&mut QpnRange> {
        match self.owner(qpn) {
            Some(function) => self.own.get_mut(function),
            None if (qpn.get() as usize) < Self::FIRST_RUN => Some(&mut self.singles),
            None => Some(&mut self.runs),
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

#[cfg(test)]
mod tests;
