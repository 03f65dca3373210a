//! A range of queue pair numbers, given out in an order that only the holder of a secret can compute.

use std::collections::VecDeque;
use std::ops::Range;

use hca_api::{FunctionId, HcaError};
use ib_vtime::SecretNumbers;
use ib_wire::Qpn;

use super::QpRef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    /// Given back a short time ago.
    Resting,
    /// Set aside by a function.
    Reserved(FunctionId),
    /// In use; goes back to the reservation if it came from one.
    Used {
        qp: QpRef,
        reserved: bool,
    },
}

/// Slots in one allocation.
const PAGE: usize = 64;

/// Consecutive numbers, indexed from the first. A number is drawn from all that are free; the latest that were given back
/// rest, so that late packets do not reach a stranger.
#[derive(Debug)]
pub(super) struct QpnRange {
    numbers: Range<usize>,
    /// Made on first use: most adapters of a large fabric have no queue pairs of their own.
    pages: Vec<Option<Box<[Slot; PAGE]>>>,
    /// Indices of resting slots, oldest first.
    resting: VecDeque<usize>,
    /// Slots that are neither free nor resting.
    taken: usize,
}

impl QpnRange {
    /// Most numbers that rest.
    pub(super) const REST: usize = 256;

    /// Returns a range whose numbers are all free.
    pub(super) const fn new(numbers: Range<usize>) -> Self {
        Self {
            numbers,
            pages: Vec::new(),
            resting: VecDeque::new(),
            taken: 0,
        }
    }

    /// Returns the slot of a number, if the number is in the range.
    pub(super) fn slot(&self, qpn: Qpn) -> Option<Slot> {
        let index = (qpn.get() as usize).checked_sub(self.numbers.start)?;
        (index < self.numbers.len()).then(|| self.get(index))
    }

    /// Moves a number that its function set aside into use.
    pub(super) fn use_reserved(&mut self, qpn: Qpn, qp: QpRef) -> Result<(), HcaError> {
        if self.slot(qpn) != Some(Slot::Reserved(qp.function)) {
            return Err(HcaError::InvalidParameter);
        }
        let index = qpn.get() as usize - self.numbers.start;
        self.set(index, Slot::Used { qp, reserved: true });
        Ok(())
    }

    /// Takes a number out of use. Returns `true` if it went back to its function's reservation.
    pub(super) fn unassign(&mut self, qpn: Qpn) -> bool {
        let Some(Slot::Used { qp, reserved }) = self.slot(qpn) else {
            return false;
        };
        let index = qpn.get() as usize - self.numbers.start;
        if reserved {
            self.set(index, Slot::Reserved(qp.function));
        } else {
            self.rest(index);
        }
        reserved
    }

    /// Draws a number for a queue pair.
    pub(super) fn assign(&mut self, qp: QpRef, random: &mut SecretNumbers) -> Option<Qpn> {
        let used = Slot::Used {
            qp,
            reserved: false,
        };
        self.take(1, 1, used, random)
    }

    /// Draws `count` consecutive numbers for a function, the first a multiple of `align`.
    pub(super) fn reserve(
        &mut self,
        owner: FunctionId,
        count: usize,
        align: usize,
        random: &mut SecretNumbers,
    ) -> Option<Qpn> {
        self.take(count, align, Slot::Reserved(owner), random)
    }

    /// Takes back numbers that a function set aside, all or none.
    pub(super) fn release(
        &mut self,
        owner: FunctionId,
        first: Qpn,
        count: usize,
    ) -> Result<(), HcaError> {
        let start = (first.get() as usize).checked_sub(self.numbers.start);
        let start = start.ok_or(HcaError::InvalidParameter)?;
        let end = start.saturating_add(count);
        if count == 0 || end > self.numbers.len() {
            return Err(HcaError::InvalidParameter);
        }
        for index in start..end {
            match self.get(index) {
                Slot::Reserved(id) if id == owner => {}
                Slot::Used { qp, reserved: true } if qp.function == owner => {
                    return Err(HcaError::InUse);
                }
                _ => return Err(HcaError::InvalidParameter),
            }
        }
        (start..end).for_each(|index| self.rest(index));
        Ok(())
    }

    /// Takes back all numbers of a function.
    pub(super) fn release_all(&mut self, owner: FunctionId) {
        for page in 0..self.pages.len() {
            if self.pages[page].is_none() {
                continue;
            }
            for index in page * PAGE..(page + 1) * PAGE {
                let function = match self.get(index) {
                    Slot::Free | Slot::Resting => continue,
                    Slot::Reserved(id) => id,
                    Slot::Used { qp, .. } => qp.function,
                };
                if function == owner {
                    self.rest(index);
                }
            }
        }
    }

    fn take(
        &mut self,
        count: usize,
        align: usize,
        state: Slot,
        random: &mut SecretNumbers,
    ) -> Option<Qpn> {
        if count > self.numbers.len() - self.taken {
            return None;
        }
        let first = self.numbers.start.checked_next_multiple_of(align)?;
        let last = self.numbers.end.checked_sub(count)?;
        let places = last.checked_sub(first)? / align + 1;
        let drawn = first + usize::try_from(random.below(places as u64)).ok()? * align;
        let start = self.search(drawn, first..last + 1, count, align)?;
        let indices = start - self.numbers.start..start - self.numbers.start + count;
        self.resting.retain(|index| !indices.contains(index));
        indices.for_each(|index| self.set(index, state));
        self.taken += count;
        Qpn::new(u32::try_from(start).ok()?)
    }

    /// Returns the first of `count` free numbers, at the next place from `drawn` on and else from the beginning. Numbers
    /// that rest are taken where there are no others.
    fn search(
        &self,
        drawn: usize,
        places: Range<usize>,
        count: usize,
        align: usize,
    ) -> Option<usize> {
        let all = [drawn..places.end, places.start..drawn];
        let passes = all.clone().map(|part| (part, false));
        let passes = passes.into_iter().chain(all.map(|part| (part, true)));
        passes
            .filter(|(_, may_rest)| !may_rest || !self.resting.is_empty())
            .find_map(|(part, may_rest)| {
                let mut first = part.start;
                while first < part.end {
                    let mut run = (first..first + count).rev();
                    match run.find(|number| !self.is_free(number - self.numbers.start, may_rest)) {
                        None => return Some(first),
                        Some(taken) => first = (taken + 1).next_multiple_of(align),
                    }
                }
                None
            })
    }

    fn is_free(&self, index: usize, may_rest: bool) -> bool {
        match self.get(index) {
            Slot::Free => true,
            Slot::Resting => may_rest,
            Slot::Reserved(_) | Slot::Used { .. } => false,
        }
    }

    /// Frees a number that is taken.
    fn rest(&mut self, index: usize) {
        self.taken -= 1;
        self.set(index, Slot::Resting);
        self.resting.push_back(index);
        if self.resting.len() > Self::REST
            && let Some(rested) = self.resting.pop_front()
        {
            self.set(rested, Slot::Free);
        }
    }

    fn get(&self, index: usize) -> Slot {
        let page = self.pages.get(index / PAGE).and_then(Option::as_ref);
        page.map_or(Slot::Free, |page| page[index % PAGE])
    }

    fn set(&mut self, index: usize, slot: Slot) {
        if self.pages.is_empty() {
            let pages = self.numbers.len().div_ceil(PAGE);
            self.pages.resize_with(pages, || None);
        }
        let page = self.pages[index / PAGE].get_or_insert_with(|| Box::new([Slot::Free; PAGE]));
        page[index % PAGE] = slot;
    }
}
