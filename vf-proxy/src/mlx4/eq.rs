//! Event queues: rings in the guest's memory, what interrupts, and which events go where.
//!
//! A queue that is armed interrupts at its next entry and is *fired* then, until the driver arms it
//! again. Arming is a level: if the driver has not taken every entry when it arms, the interrupt comes at
//! once (`eq_set_ci`). A queue that the driver made *always armed* interrupts at each entry and is never fired; Linux
//! names that state (`MLX4_EQ_STATE_ALWAYS_ARMED`) and makes its queues armed.
//!
//! # Full queues
//!
//! A full queue is never overwritten. What comes meanwhile is kept in order, equal events once, and is
//! written when the driver's doorbell says that it took entries. So a process of the guest that makes events
//! faster than its kernel takes them costs nobody an event: there is room for one of each completion queue.
//! Events of ports are not kept here but at their port ([`Eqs::has_room`]), where they are merged.

mod backlog;

use std::collections::BTreeMap;

use hca_api::Hca;
use mlx4_defs::eq::{EqContext, EqDoorbell, EqState, EventMask};
use mlx4_defs::eqe::{EQE_SIZE, Eqe, EventType};
use mlx4_defs::{Cqn, Eqn, Status};
use zerocopy::IntoBytes;

use self::backlog::Backlog;
use super::capability::{FIRST_EQN, MAX_EQS};
use super::mtt::{MttPin, Mtts};
use vf_pci::{Fill, PagedBuffer};

/// Largest queue: 2^17 entries, 4 MiB. The driver makes its own from the CQ quota.
const MAX_LOG_ENTRIES: u8 = 17;
/// Entries of a queue that belong to the device read like this, as the firmware leaves them.
const HARDWARE_OWNED: u8 = 0xcc;
/// Consumer indices are modulo 2^24.
const INDEX_MASK: u32 = 0xff_ffff;
/// Event types that can be assigned: those with a bit in the mask.
const EVENT_TYPES: usize = 64;

/// A queue.
#[derive(Debug)]
struct Eq {
    buffer: PagedBuffer,
    pin: MttPin,
    /// A power of two.
    entries: u32,
    producer: u32,
    /// Modulo 2^24, as the driver told it.
    consumer: u32,
    /// Armed, fired or always armed.
    state: EqState,
    vector: u16,
    /// What came while the queue was full.
    backlog: Backlog,
    lost: u64,
}

impl Eq {
    const fn waiting(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & INDEX_MASK
    }

    const fn is_full(&self) -> bool {
        self.waiting() >= self.entries
    }

    /// Writes an entry, or keeps it while there is no room; gives the vector to raise. An entry for which
    /// there is no memory is lost.
    fn post(&mut self, hca: &mut dyn Hca, eqe: Eqe) -> Option<u16> {
        if self.is_full() {
            self.lost += u64::from(!self.backlog.keep(eqe));
            return None;
        }
        self.write(hca, eqe);
        self.interrupt()
    }

    /// Writes an entry for which there is room.
    fn write(&mut self, hca: &mut dyn Hca, mut eqe: Eqe) {
        eqe.set_owner(self.producer & self.entries != 0);
        let slot = u64::from(self.producer & (self.entries - 1));
        // Writes go up in addresses, and the owner bit is in the last byte.
        let offset = slot * EQE_SIZE as u64;
        match self.buffer.write(hca, offset, eqe.as_bytes()) {
            Ok(()) => self.producer = self.producer.wrapping_add(1),
            Err(_) => self.lost += 1,
        }
    }

    /// Gives the vector to raise, now that an interrupt is due if there is something to take and the state has it.
    fn interrupt(&mut self) -> Option<u16> {
        if self.waiting() == 0 || self.state == EqState::FIRED {
            return None;
        }
        if self.state == EqState::ARMED {
            self.state = EqState::FIRED;
        }
        Some(self.vector)
    }

    /// The driver took entries, which makes room for what was kept, and perhaps arms; gives the vector to
    /// raise.
    fn set_consumer(&mut self, hca: &mut dyn Hca, doorbell: EqDoorbell) -> Option<u16> {
        self.consumer = doorbell.consumer_index();
        if doorbell.arm() && self.state == EqState::FIRED {
            self.state = EqState::ARMED;
        }
        let mut is_due = doorbell.arm();
        while !self.is_full()
            && let Some(eqe) = self.backlog.next()
        {
            self.write(hca, eqe);
            is_due = true;
        }
        if is_due { self.interrupt() } else { None }
    }
}

/// A queue whose entries are not all the device's yet.
#[derive(Debug)]
pub(super) struct NewEq {
    eqn: Eqn,
    queue: Eq,
}

impl NewEq {
    /// Gives up what it holds.
    pub(super) fn give_up(self, mtts: &mut Mtts) {
        mtts.unpin(self.queue.pin);
    }
}

/// How far the driver is with its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Events that it has not taken.
    pub(super) waiting: u64,
    /// The consumer indices of all queues together, modulo 2^32.
    taken: u32,
}

impl Progress {
    /// Returns `true` if the driver has taken events between this and `later`.
    pub(super) const fn taken_since(self, later: Self) -> bool {
        self.taken != later.taken
    }
}

/// The queues of a function.
#[derive(Debug)]
pub(super) struct Eqs {
    queues: BTreeMap<Eqn, Eq>,
    /// For each event type the queue that gets it.
    assigned: [Option<Eqn>; EVENT_TYPES],
}

impl Default for Eqs {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            assigned: [None; EVENT_TYPES],
        }
    }
}

impl Eqs {
    /// Events that the driver has not taken yet, and those that it has, modulo 2^32.
    pub(super) fn progress(&self) -> Progress {
        let mut progress = Progress::default();
        for queue in self.queues.values() {
            progress.waiting += u64::from(queue.waiting());
            progress.taken = progress.taken.wrapping_add(queue.consumer);
        }
        progress
    }

    /// Begins to make a queue (`SW2HW_EQ`): it is there when its entries were given to the device.
    ///
    /// # Errors
    /// [`Status::BAD_INDEX`] for a number that the function does not have, [`Status::BAD_RES_STATE`] for
    /// one that is taken, [`Status::BAD_PARAM`].
    pub(super) fn create(
        &self,
        mtts: &mut Mtts,
        eqn: Eqn,
        context: &EqContext,
    ) -> Result<(NewEq, Fill), Status> {
        if !(FIRST_EQN..MAX_EQS).contains(&eqn.0) {
            return Err(Status::BAD_INDEX);
        }
        if self.queues.contains_key(&eqn) {
            return Err(Status::BAD_RES_STATE);
        }
        let log_entries = context.log_entries();
        if log_entries > MAX_LOG_ENTRIES || context.page_offset.get() != 0 {
            return Err(Status::BAD_PARAM);
        }
        let entries = 1_u32 << log_entries;
        let bytes = u64::from(entries) * EQE_SIZE as u64;
        let first = context.mtt_base.entry();
        let buffer = mtts.queue(first, context.log_page_size, bytes)?;
        let fill = Fill::new(buffer.clone(), 0, bytes, [HARDWARE_OWNED; 2]);
        let queue = Eq {
            buffer,
            pin: mtts.pin(first)?,
            entries,
            producer: 0,
            consumer: 0,
            state: match context.state() {
                state @ (EqState::ARMED | EqState::ALWAYS_ARMED) => state,
                _ => EqState::FIRED,
            },
            vector: context.vector.into(),
            backlog: Backlog::default(),
            lost: 0,
        };
        Ok((NewEq { eqn, queue }, fill))
    }

    /// A queue's entries are the device's.
    pub(super) fn finish(&mut self, new: NewEq) {
        self.queues.insert(new.eqn, new.queue);
    }

    /// Ends a queue (`HW2SW_EQ`). Events assigned to it are assigned to none.
    ///
    /// # Errors
    /// [`Status::BAD_RESOURCE`] if there is no such queue.
    pub(super) fn destroy(&mut self, mtts: &mut Mtts, eqn: Eqn) -> Result<(), Status> {
        let queue = self.queues.remove(&eqn).ok_or(Status::BAD_RESOURCE)?;
        mtts.unpin(queue.pin);
        for assigned in &mut self.assigned {
            *assigned = assigned.filter(|other| *other != eqn);
        }
        Ok(())
    }

    /// Assigns events to a queue, or takes them from it (`MAP_EQ`).
    ///
    /// # Errors
    /// [`Status::BAD_RESOURCE`] if there is no such queue.
    pub(super) fn map(&mut self, eqn: Eqn, events: EventMask, unmap: bool) -> Result<(), Status> {
        if !self.queues.contains_key(&eqn) {
            return Err(Status::BAD_RESOURCE);
        }
        for (event, assigned) in (0..).zip(&mut self.assigned) {
            if !events.contains(EventType::new(event)) {
                continue;
            }
            if !unmap {
                *assigned = Some(eqn);
            } else if *assigned == Some(eqn) {
                *assigned = None;
            }
        }
        Ok(())
    }

    /// Puts an event into the queue that its type is assigned to; gives the vector to raise.
    pub(super) fn post_assigned(&mut self, hca: &mut dyn Hca, eqe: Eqe) -> Option<u16> {
        let event = usize::from(eqe.event_type.get());
        let eqn = (*self.assigned.get(event)?)?;
        self.post(hca, eqn, eqe)
    }

    /// Puts an event into a queue; gives the vector to raise.
    pub(super) fn post(&mut self, hca: &mut dyn Hca, eqn: Eqn, eqe: Eqe) -> Option<u16> {
        self.queues.get_mut(&eqn)?.post(hca, eqe)
    }

    /// Whether an event of a type would be written now, or be nobody's.
    pub(super) fn has_room(&self, event: EventType) -> bool {
        let assigned = self.assigned.get(usize::from(event.get()));
        let queue = assigned.and_then(|eqn| self.queues.get(&(*eqn)?));
        queue.is_none_or(|queue| !queue.is_full())
    }

    /// The driver rang a queue's doorbell; gives the vector to raise.
    pub(super) fn doorbell(
        &mut self,
        hca: &mut dyn Hca,
        eqn: Eqn,
        doorbell: EqDoorbell,
    ) -> Option<u16> {
        self.queues.get_mut(&eqn)?.set_consumer(hca, doorbell)
    }

    /// A completion queue is gone: nothing is told of it any more.
    pub(super) fn forget_completions(&mut self, cqn: Cqn) {
        for queue in self.queues.values_mut() {
            queue.backlog.forget(Eqe::completion(cqn));
        }
    }

    /// Events that were lost for want of memory, or because too many came while a queue was full.
    pub(super) fn lost(&self) -> u64 {
        self.queues.values().map(|queue| queue.lost).sum()
    }
}

#[cfg(test)]
mod tests;
