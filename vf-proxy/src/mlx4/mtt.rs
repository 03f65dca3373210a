//! The memory translation table: a flat array of page addresses per function, given out in ranges of
//! powers of two.
//!
//! Queues and regions copy the addresses of their pages when they are made. They pin the range that the
//! addresses came from, so that it cannot be given back under them (`rem_mtts` of the resource tracker
//! answers busy, too).
//!
//! A copy takes as much memory as the entries. The driver makes one object of each range; one that makes
//! more of them finds that all copies together are not larger than the table.

use std::collections::{BTreeMap, BTreeSet};

use mlx4_defs::mtt::MttEntry;
use mlx4_defs::{LogPageSize, MttIndex, Status};
use zerocopy::network_endian::U64;

use super::capability::MAX_REGIONS;
use vf_pci::{MAX_PAGE_SHIFT, PagedBuffer};

/// A range that the driver was given.
#[derive(Debug)]
struct Range {
    order: u8,
    /// As numbers, so that those which nobody wrote take no memory. Empty until the first entry is written.
    entries: Vec<u64>,
    /// Objects that were made from it.
    pins: u32,
}

impl Range {
    const fn len(&self) -> u64 {
        1 << self.order
    }
}

/// A hold on a range, to be given back with [`Mtts::unpin`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MttPin {
    first: MttIndex,
}

/// Ranges that may be given out at the same time: two for each memory region that there can be, and as many for queues. A
/// range takes some 85 bytes, whatever its size.
const MAX_RANGES: usize = 4 * MAX_REGIONS as usize;

/// The table.
#[derive(Debug)]
pub(super) struct Mtts {
    ranges: BTreeMap<MttIndex, Range>,
    /// First entries of free ranges, by order.
    free: Vec<BTreeSet<MttIndex>>,
    /// Entries of pinned ranges, counted once for each pin.
    pinned: u64,
}

impl Mtts {
    /// A table of `1 << log_entries` entries.
    pub(super) fn new(log_entries: u8) -> Self {
        let mut free = vec![BTreeSet::new(); usize::from(log_entries) + 1];
        if let Some(whole) = free.last_mut() {
            whole.insert(MttIndex(0));
        }
        Self {
            ranges: BTreeMap::new(),
            free,
            pinned: 0,
        }
    }

    /// Gives out a range of `1 << order` entries, a multiple of its size, and tells its first one.
    ///
    /// # Errors
    /// [`Status::EXCEED_LIM`].
    pub(super) fn alloc(&mut self, order: u8) -> Result<MttIndex, Status> {
        if self.ranges.len() >= MAX_RANGES {
            return Err(Status::EXCEED_LIM);
        }
        let mut larger = (0..).zip(&self.free).skip(usize::from(order));
        let (from, first) = larger
            .find_map(|(order, starts)| Some((order, *starts.first()?)))
            .ok_or(Status::EXCEED_LIM)?;
        self.starts(from)?.remove(&first);
        for half in (order..from).rev() {
            self.starts(half)?.insert(MttIndex(first.0 + (1 << half)));
        }
        let range = Range {
            order,
            entries: Vec::new(),
            pins: 0,
        };
        self.ranges.insert(first, range);
        Ok(first)
    }

    /// Takes a range back.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] if it was not given out like that, [`Status::RESOURCE_BUSY`] while
    /// something was made from it.
    pub(super) fn free(&mut self, first: MttIndex, order: u8) -> Result<(), Status> {
        let range = self.ranges.get(&first).ok_or(Status::BAD_PARAM)?;
        if range.order != order {
            return Err(Status::BAD_PARAM);
        }
        if range.pins != 0 {
            return Err(Status::RESOURCE_BUSY);
        }
        self.ranges.remove(&first);
        let (MttIndex(mut first), mut order) = (first, order);
        while self
            .free
            .get_mut(usize::from(order))
            .is_some_and(|starts| starts.remove(&MttIndex(first ^ 1 << order)))
        {
            first &= !(1 << order);
            order += 1;
        }
        self.starts(order)?.insert(MttIndex(first));
        Ok(())
    }

    fn starts(&mut self, order: u8) -> Result<&mut BTreeSet<MttIndex>, Status> {
        let starts = self.free.get_mut(usize::from(order));
        starts.ok_or(Status::EXCEED_LIM)
    }

    /// Writes entries.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] if they are not within one range that was given out.
    pub(super) fn write(&mut self, first: MttIndex, entries: &[MttEntry]) -> Result<(), Status> {
        let (start, at) = self.locate(first, entries.len())?;
        let range = self.ranges.get_mut(&start).ok_or(Status::BAD_PARAM)?;
        if range.entries.is_empty() {
            range.entries = vec![0; 1 << range.order];
        }
        let target = range.entries.get_mut(at..at + entries.len());
        for (old, new) in target.ok_or(Status::BAD_PARAM)?.iter_mut().zip(entries) {
            *old = new.0.get();
        }
        Ok(())
    }

    /// The page addresses in `count` entries from `first` on.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] if they are not within one range that was given out, or one of them names
    /// no page.
    pub(super) fn pages(&self, first: MttIndex, count: usize) -> Result<Vec<u64>, Status> {
        let mut pages = Vec::with_capacity(count.min(1 << (self.free.len() - 1)));
        self.append_pages(first, count, &mut pages)?;
        Ok(pages)
    }

    /// Appends the page addresses in `count` entries from `first` on.
    ///
    /// # Errors
    /// As [`Self::pages`].
    pub(super) fn append_pages(
        &self,
        first: MttIndex,
        count: usize,
        pages: &mut Vec<u64>,
    ) -> Result<(), Status> {
        let (start, at) = self.locate(first, count)?;
        let range = self.ranges.get(&start).ok_or(Status::BAD_PARAM)?;
        let entries = range.entries.get(at..at + count);
        let entries = entries.ok_or(Status::BAD_PARAM)?;
        for entry in entries {
            let entry = MttEntry(U64::new(*entry));
            if !entry.is_present() {
                return Err(Status::BAD_PARAM);
            }
            pages.push(entry.address());
        }
        Ok(())
    }

    /// Checks that a range that was given out holds `count` entries from `first` on.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`].
    pub(super) fn check(&self, first: MttIndex, count: usize) -> Result<(), Status> {
        self.locate(first, count).map(|_| ())
    }

    /// The memory of a queue of so many bytes whose pages begin at an entry.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] also for pages of a size that the table does not have.
    pub(super) fn queue(
        &self,
        first: MttIndex,
        page: LogPageSize,
        bytes: u64,
    ) -> Result<PagedBuffer, Status> {
        let shift = u8::try_from(page.shift())
            .ok()
            .filter(|shift| *shift <= MAX_PAGE_SHIFT)
            .ok_or(Status::BAD_PARAM)?;
        let count = usize::try_from(bytes.div_ceil(1 << shift)).map_err(|_| Status::BAD_PARAM)?;
        PagedBuffer::new(self.pages(first, count)?, shift).ok_or(Status::BAD_PARAM)
    }

    /// Holds the range that an entry is in.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] if it is in none, [`Status::EXCEED_LIM`] if there would be more pinned than
    /// the table has.
    pub(super) fn pin(&mut self, entry: MttIndex) -> Result<MttPin, Status> {
        let (first, _) = self.locate(entry, 1)?;
        let range = self.ranges.get_mut(&first).ok_or(Status::BAD_PARAM)?;
        let pinned = self.pinned + range.len();
        if pinned > 1 << (self.free.len() - 1) {
            return Err(Status::EXCEED_LIM);
        }
        self.pinned = pinned;
        range.pins += 1;
        Ok(MttPin { first })
    }

    /// Lets a range go.
    #[expect(clippy::needless_pass_by_value, reason = "a hold is given back once")]
    pub(super) fn unpin(&mut self, pin: MttPin) {
        if let Some(range) = self.ranges.get_mut(&pin.first) {
            range.pins -= 1;
            self.pinned -= range.len();
        }
    }

    /// The range that holds all of `count` entries, and where in it they begin.
    fn locate(&self, first: MttIndex, count: usize) -> Result<(MttIndex, usize), Status> {
        let (&start, range) = self
            .ranges
            .range(..=first)
            .next_back()
            .ok_or(Status::BAD_PARAM)?;
        let at = usize::try_from(first.0 - start.0).map_err(|_| Status::BAD_PARAM)?;
        let end = at.checked_add(count).ok_or(Status::BAD_PARAM)?;
        if at >= 1 << range.order || end > 1 << range.order {
            return Err(Status::BAD_PARAM);
        }
        Ok((start, at))
    }
}

#[cfg(test)]
mod tests;
