//! The lock around a provider, and what its owner does before it lets go.
//!
//! # Orders
//!
//! Of the locks that a thread holds at once, a device's `placing` comes first, then the provider's, then the inbox's.
//! Whoever unlocks the provider looks at the inbox again afterwards: a vCPU that found the lock taken has put its write
//! there before, so that it is seen by the owner or by whoever locks next. A vCPU works for its own guest alone: it leaves
//! others' writes to the loop, which is awake then, that is, it will have the lock once more before it sleeps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::{Duration, Instant as WallInstant};

use ib_vtime::Instant;
use thiserror::Error;
use vf_proxy::{Doorbell, PciDevice};

use super::Slice;
use super::inbox::{Inbox, Posted};
use super::{Doorbells, Interrupts, PlacedDoorbell, Provider, Wake};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// How long a step goes on while others may wait for the lock.
const STEP: Duration = Duration::from_micros(50);

/// The backend cannot go on: its provider panicked. Its devices answer as detached ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the provider of the devices has failed; see the log for its panic")]
pub struct BackendFailed;

/// Doorbells that were rung, by device.
pub(super) type Rung<A> = BTreeMap<A, BTreeSet<Doorbell>>;

/// Shared by all threads.
pub(super) struct Shared<P: Provider> {
    state: Mutex<State<P>>,
    /// By function and attachment: a write is for the device that it was made to, and not for its successor.
    pub(super) inbox: Mutex<Inbox<(P::At, u64)>>,
    /// A device is held no longer.
    pub(super) released: Condvar,
    wake: Arc<dyn Wake>,
    /// The time `base` by the wall clock.
    origin: WallInstant,
    base: Instant,
}

/// Protected by the lock of the provider.
pub(super) struct State<P: Provider> {
    pub(super) provider: P,
    pub(super) entries: BTreeMap<P::At, Entry>,
    /// Devices that were attached so far, by which they are numbered.
    pub(super) attached: u64,
    /// Devices whose doorbells may be elsewhere than their VMM was told.
    pub(super) unplaced: BTreeSet<P::At>,
    /// The deadline that the loop sleeps for, if it sleeps.
    sleeps: Option<Option<Instant>>,
    has_failed: bool,
}

/// A device that a VMM drives.
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) interrupts: Arc<dyn Interrupts>,
    pub(super) placing: Arc<Placing>,
    /// Vectors that were raised before the guest programmed their entries.
    pub(super) waiting: BTreeSet<u16>,
    pub(super) counters: Arc<Counters>,
    /// The device has no turns.
    pub(super) is_held: bool,
    /// Doorbells that were rung by events while it was held.
    pub(super) rung: BTreeSet<Doorbell>,
}

/// Where a device's doorbells are.
pub(super) struct Placing {
    pub(super) doorbells: Arc<dyn Doorbells>,
    /// The list that the VMM was told last. Locked while it is told.
    pub(super) last: Mutex<Vec<PlacedDoorbell>>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) writes: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) rings: AtomicU64,
    pub(super) interrupts: AtomicU64,
    pub(super) after_detach: AtomicU64,
    pub(super) is_detached: AtomicBool,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A panic of the provider is noted in the state, so a poisoned lock says nothing more.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P: Provider> Shared<P> {
    pub(super) fn new(provider: P, wake: Arc<dyn Wake>) -> Self {
        let base = provider.now();
        Self {
            state: Mutex::new(State {
                provider,
                entries: BTreeMap::new(),
                attached: 0,
                unplaced: BTreeSet::new(),
                sleeps: None,
                has_failed: false,
            }),
            inbox: Mutex::new(Inbox::default()),
            released: Condvar::new(),
            wake,
            origin: WallInstant::now(),
            base,
        }
    }

    /// Takes doorbells whose stores came without an exit, then does what is due for a short time.
    pub(super) fn step(&self, rung: &Rung<P::At>) -> Result<(), BackendFailed> {
        self.locked(|state, now| {
            state.sleeps = None;
            self.drain(state, now);
            for (at, doorbells) in rung {
                state.ring(now, *at, doorbells);
            }
            state.provider.poll_for(now, &mut Slice::of(STEP));
            state.dispatch_all();
        })?;
        self.place_doorbells();
        Ok(())
    }

    /// Returns when to step at the latest, and notes that the loop sleeps until then.
    pub(super) fn deadline(&self) -> Result<Option<Instant>, BackendFailed> {
        self.locked(|state, now| {
            self.drain(state, now);
            let next = match state.unplaced.is_empty() {
                true => state.provider.poll_timeout(),
                false => Some(now),
            };
            state.sleeps = Some(next);
            next
        })
    }

    pub(super) fn now(&self) -> Instant {
        self.base + self.origin.elapsed()
    }

    /// Calls something with the lock held, then does what whoever lets go of it has to do.
    pub(super) fn locked<T>(
        &self,
        call: impl FnOnce(&mut State<P>, Instant) -> T,
    ) -> Result<T, BackendFailed> {
        let result = self.owning(lock(&self.state), call);
        self.pass_on();
        result
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State<P>>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Calls something with the state, and wakes the loop if it sleeps for too long then.
    fn owning<T>(
        &self,
        mut state: MutexGuard<'_, State<P>>,
        call: impl FnOnce(&mut State<P>, Instant) -> T,
    ) -> Result<T, BackendFailed> {
        if state.has_failed {
            return Err(BackendFailed);
        }
        // Read under the lock, so that the provider's time never goes back.
        let now = self.now();
        let called = catch_unwind(AssertUnwindSafe(|| {
            let result = call(&mut state, now);
            let is_late = state.sleeps_too_long();
            (result, is_late)
        }));
        match called {
            Ok((result, is_late)) => {
                if is_late {
                    state.sleeps = None;
                }
                // The loop's thread wants the lock, and may have this processor as soon as it is awake.
                drop(state);
                if is_late {
                    self.wake.wake();
                }
                Ok(result)
            }
            Err(_) => {
                log::error!("the provider of virtual HCAs panicked: its devices are gone");
                state.has_failed = true;
                drop(state);
                lock(&self.inbox).clear();
                self.released.notify_all();
                self.wake.wake();
                Err(BackendFailed)
            }
        }
    }

    /// Posts a write. Returns `false` if it cannot be posted; for a held device only after it is held no longer.
    pub(super) fn post(&self, at: (P::At, u64), posted: Option<Posted>) -> bool {
        let mut inbox = lock(&self.inbox);
        loop {
            if posted.is_some_and(|posted| inbox.push(at, posted)) {
                return true;
            }
            if !inbox.is_held(at) {
                return false;
            }
            let waited = self.released.wait(inbox);
            inbox = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Carries out the posted writes of a device if the lock is free. Its owner sees to them otherwise.
    pub(super) fn serve_inbox_of(&self, at: (P::At, u64)) {
        let Some(state) = self.try_lock() else {
            return;
        };
        if self
            .owning(state, |state, now| self.drain_of(state, now, at))
            .is_err()
        {
            lock(&self.inbox).clear();
        }
        self.pass_on();
    }

    /// Leaves posted writes to the loop: those that came while the lock was taken.
    fn pass_on(&self) {
        if lock(&self.inbox).is_empty() {
            return;
        }
        let Some(mut state) = self.try_lock() else {
            return;
        };
        let sleeps = state.sleeps.take().is_some();
        drop(state);
        if sleeps {
            self.wake.wake();
        }
    }

    /// Carries out all posted writes.
    pub(super) fn drain(&self, state: &mut State<P>, now: Instant) {
        let posted = lock(&self.inbox).take_all();
        for (at, writes) in posted {
            state.carry_out(now, at, writes);
        }
    }

    /// Carries out the posted writes of a device.
    pub(super) fn drain_of(&self, state: &mut State<P>, now: Instant, at: (P::At, u64)) {
        let writes = lock(&self.inbox).take_of(at);
        state.carry_out(now, at, writes);
    }

    /// Reports to VMMs where their doorbells are, unless they know.
    pub(super) fn place_doorbells(&self) {
        loop {
            let next = self.locked(|state, _| {
                let at = state.unplaced.pop_first()?;
                let entry = state.entries.get(&at)?;
                Some((at, Arc::clone(&entry.placing)))
            });
            let Ok(Some((at, placing))) = next else {
                return;
            };
            self.place_doorbells_of(at, &placing);
        }
    }

    /// Reports to a VMM where the doorbells of a device are, unless it knows.
    pub(super) fn place_doorbells_of(&self, at: P::At, placing: &Arc<Placing>) {
        // The list is looked up behind this lock, so the last one to tell tells the newest.
        let mut last = lock(&placing.last);
        let placed = self.locked(|state, _| {
            let entry = state.entries.get(&at);
            if !entry.is_some_and(|entry| Arc::ptr_eq(&entry.placing, placing)) {
                return Vec::new();
            }
            let device = state.provider.device(at);
            device.map_or_else(Vec::new, |device| placed_doorbells(device))
        });
        let placed = placed.unwrap_or_default();
        if *last != placed {
            placing.doorbells.set(&placed);
            *last = placed;
        }
    }
}

/// Returns a device's doorbells with their addresses.
fn placed_doorbells(device: &PciDevice) -> Vec<PlacedDoorbell> {
    let function = device.function();
    let doorbells = function.doorbells().into_iter();
    let placed = doorbells.filter_map(|doorbell| {
        let address = function.bar_address(doorbell.bar)?;
        let address = address.checked_add(doorbell.offset)?;
        Some(PlacedDoorbell { address, doorbell })
    });
    placed.collect()
}

impl<P: Provider> State<P> {
    /// Returns `true` if the loop sleeps for something later than what there is to do.
    fn sleeps_too_long(&self) -> bool {
        let Some(until) = self.sleeps else {
            return false;
        };
        if !self.unplaced.is_empty() {
            return true;
        }
        let next = self.provider.poll_timeout();
        next.is_some_and(|next| until.is_none_or(|until| next < until))
    }

    /// Carries out writes of a device, and gives it a turn.
    pub(super) fn carry_out(
        &mut self,
        now: Instant,
        (at, id): (P::At, u64),
        writes: VecDeque<Posted>,
    ) {
        let is_its = self.entries.get(&at).is_some_and(|entry| entry.id == id);
        if writes.is_empty() || !is_its {
            return;
        }
        self.provider.lend(now, at, &mut |device, hca| {
            let function = device.function_mut();
            for write in &writes {
                match *write {
                    Posted::Write {
                        bar,
                        offset,
                        bytes,
                        len,
                    } => function.bar_write(now, hca, bar, offset, &bytes[..len.into()]),
                    Posted::Ring(doorbell) => function.ring(now, hca, doorbell),
                }
            }
            device.collect_events();
        });
        self.provider.take_turn(now, at);
        self.dispatch(at);
    }

    /// Rings doorbells of a device, and gives it a turn.
    pub(super) fn ring(&mut self, now: Instant, at: P::At, doorbells: &BTreeSet<Doorbell>) {
        let Some(entry) = self.entries.get_mut(&at) else {
            return;
        };
        if entry.is_held {
            return entry.rung.extend(doorbells);
        }
        let id = entry.id;
        let rings = &entry.counters.rings;
        rings.fetch_add(doorbells.len() as u64, Ordering::Relaxed);
        let posted = doorbells.iter().copied().map(Posted::Ring);
        self.carry_out(now, (at, id), posted.collect());
    }

    /// Passes on what all devices have to tell.
    fn dispatch_all(&mut self) {
        while let Some(at) = self.provider.poll_changed() {
            self.dispatch(at);
        }
    }

    /// Passes on what a device has to tell: what changed before the interrupts.
    pub(super) fn dispatch(&mut self, at: P::At) {
        let Some(entry) = self.entries.get_mut(&at) else {
            return;
        };
        let Some(device) = self.provider.device(at) else {
            return;
        };
        let changes = device.take_changes();
        if changes.bars || changes.doorbells {
            self.unplaced.insert(at);
        }
        let function = device.function();
        let vectors = changes.vectors.into_iter();
        let messages: Vec<_> = vectors
            .map(|vector| (vector, function.message(vector)))
            .collect();
        if !messages.is_empty() {
            entry.interrupts.update(&messages);
        }
        while let Some(vector) = device.poll_interrupt() {
            entry.waiting.insert(vector);
        }
        let function = device.function();
        entry.waiting.retain(|vector| {
            let Some(message) = function.message(*vector) else {
                return true;
            };
            count(&entry.counters.interrupts);
            entry.interrupts.trigger(*vector, message);
            false
        });
    }
}
