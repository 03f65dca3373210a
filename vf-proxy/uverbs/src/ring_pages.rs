//! The pages of rings, as they count against the budget of a process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use verbs_link::{Budget, Charge};

use crate::ring_memory::{PAGE, RingMemory};

/// The memory of a process's rings, with the charge for its pages.
///
/// The charge covers the pages that existed when a ring was last made or destroyed, or the pages that the device has touched, if these are
/// more: a page that the program touches first is the program's until then.
#[derive(Debug)]
pub(crate) struct RingPages {
    pub(crate) memory: Arc<dyn RingMemory>,
    counted: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    charge: Option<Charge>,
    /// Bytes that the device has touched of rings that exist.
    touched: u64,
}

impl RingPages {
    pub(crate) fn new(memory: Arc<dyn RingMemory>, budget: &Budget) -> Self {
        Self {
            memory,
            counted: Mutex::new(Counted {
                charge: budget.charge(0),
                touched: 0,
            }),
        }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        // It is whole whatever happened to the thread that held it.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the first page of a ring, which is about to be touched. Returns `false` if the budget is used up.
    pub(crate) fn admit(&self) -> bool {
        let existing = self.memory.resident();
        let mut counted = self.counted();
        let touched = counted.touched + PAGE;
        let admitted = counted.resize(touched.max(existing.saturating_add(PAGE)));
        if admitted {
            counted.touched = touched;
        }
        admitted
    }

    /// Counts further pages that are about to be touched for the first time. Returns `false` if the budget is used up.
    pub(crate) fn touch(&self, pages: u64) -> bool {
        let mut counted = self.counted();
        let touched = counted.touched + pages * PAGE;
        let charged = counted.charge.as_ref().map_or(0, Charge::bytes);
        let within = touched <= charged || counted.resize(touched);
        if within {
            counted.touched = touched;
        }
        within
    }

    /// Releases a part of which so many pages were touched, with its memory.
    pub(crate) fn release(&self, offset: u64, len: u64, touched: u64) {
        self.memory.clear(offset, len);
        let existing = self.memory.resident();
        let mut counted = self.counted();
        counted.touched -= touched * PAGE;
        let bytes = counted.touched.max(existing);
        // Pages that a program over its budget has added are refused with its next ring.
        let _ = counted.resize(bytes);
    }

    /// Notes that no ring is left. The pages stay until the program is gone, or other rings take their place.
    pub(crate) fn release_all(&self) {
        let existing = self.memory.resident();
        let mut counted = self.counted();
        counted.touched = 0;
        let _ = counted.resize(existing);
    }
}

impl Counted {
    fn resize(&mut self, bytes: u64) -> bool {
        (self.charge.as_mut()).is_some_and(|charge| charge.resize(bytes))
    }
}
