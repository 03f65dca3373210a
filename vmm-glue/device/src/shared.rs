//! The lock around a provider, and the duties of a thread that holds it.
//!
//! # Orders
//!
//! Of the locks that a thread holds at once, a device's own come first (`placing` or `updating`, never both), then the
//! provider's, then the inbox's. `Doorbells::set` and `Interrupts::update` are called with the device's own lock alone.
//!
//! The thread whose call changes a vector's message calls `Interrupts::update` with it. For a change that the loop carried out
//! the device's next call does so, the thread that [`Wake::update_due`] asks, or else the loop, outside of the provider's lock.
//!
//! A thread that unlocks the provider looks at the inbox again afterwards: a vCPU that found the lock taken has put its write
//! there before, so that the owner sees it, or the next one. A vCPU works for its own guest alone: it leaves others' writes
//! to the loop, which is awake then, that is, it will have the lock once more before it sleeps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::{Duration, Instant as WallInstant};

use ib_vtime::Instant;
use thiserror::Error;
use vf_pci::{Doorbell, PciDevice};

use super::Slice;
use super::calls::FailureCall;
use super::inbox::{Inbox, Posted};
use super::vectors::Vectors;
use super::{Doorbells, Interrupts, MsixMessage, PlacedDoorbell, Provider, Wake};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// How long a step goes on while others may wait for the lock.
const STEP: Duration = Duration::from_micros(50);

/// The backend cannot go on: its provider panicked. Its devices answer as detached ones. With `panic = "abort"` the process ends
/// instead.
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
    /// Devices whose doorbells may be elsewhere than in the list that their VMM has.
    pub(super) unplaced: BTreeSet<P::At>,
    /// Devices with changed messages for which no thread makes an update.
    due: BTreeSet<P::At>,
    /// The loop has not asked for some of those.
    is_unasked: bool,
    /// The deadline that the loop sleeps for, if it sleeps.
    sleeps: Option<Option<Instant>>,
    has_failed: bool,
}

/// A device that a VMM drives.
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) updating: Arc<Updating>,
    pub(super) placing: Arc<Placing>,
    pub(super) vectors: Vectors,
    pub(super) counters: Arc<Counters>,
    /// The device has no turns.
    pub(super) is_held: bool,
    /// Doorbells that were rung by events while it was held.
    pub(super) rung: BTreeSet<Doorbell>,
    /// Calls to make when the backend fails.
    pub(super) on_failure: Vec<FailureCall>,
}

/// A device's interrupts.
pub(super) struct Updating {
    interrupts: Arc<dyn Interrupts>,
    /// Locked during `Interrupts::update`.
    own: Mutex<()>,
}

impl Updating {
    pub(super) fn new(interrupts: Arc<dyn Interrupts>) -> Arc<Self> {
        let own = Mutex::new(());
        Arc::new(Self { interrupts, own })
    }
}

/// Where a device's doorbells are.
pub(super) struct Placing {
    doorbells: Arc<dyn Doorbells>,
    /// The list that the VMM was given last. Locked while it is given.
    last: Mutex<Vec<PlacedDoorbell>>,
    /// The loop has left some of the list to the device's next call.
    pub(super) is_left: AtomicBool,
}

impl Placing {
    pub(super) fn new(doorbells: Arc<dyn Doorbells>) -> Arc<Self> {
        Arc::new(Self {
            doorbells,
            last: Mutex::new(Vec::new()),
            is_left: AtomicBool::new(false),
        })
    }
}

/// The thread that gives a VMM the list of its doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giver {
    /// One of the VMM's, in a call of the device.
    Caller,
    Loop,
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
                due: BTreeSet::new(),
                is_unasked: false,
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
        let has_to_ask = self.locked(|state, now| {
            state.sleeps = None;
            self.drain(state, now);
            for (at, doorbells) in rung {
                state.ring(now, *at, doorbells);
            }
            state.provider.poll_for(now, &mut Slice::of(STEP));
            state.dispatch_all();
            core::mem::take(&mut state.is_unasked) && !state.due.is_empty()
        })?;
        self.place_doorbells();
        if has_to_ask && !self.wake.update_due() {
            self.update_all()?;
        }
        Ok(())
    }

    /// Returns when to step at the latest, and notes that the loop sleeps until then.
    pub(super) fn deadline(&self) -> Result<Option<Instant>, BackendFailed> {
        self.locked(|state, now| {
            self.drain(state, now);
            let next = match state.has_calls_to_make() {
                true => Some(now),
                false => state.provider.poll_timeout(),
            };
            state.sleeps = Some(next);
            next
        })
    }

    pub(super) fn now(&self) -> Instant {
        self.base + self.origin.elapsed()
    }

    /// Calls something with the lock held, then does the duties of a thread that unlocks it.
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
                let entries = state.entries.values_mut();
                let calls: Vec<FailureCall> = entries
                    .flat_map(|entry| core::mem::take(&mut entry.on_failure))
                    .collect();
                drop(state);
                lock(&self.inbox).clear();
                self.released.notify_all();
                self.wake.wake();
                for call in calls {
                    call(Arc::new(BackendFailed));
                }
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
    pub(super) fn serve_inbox_of(&self, at: (P::At, u64), updating: &Updating) {
        let Some(state) = self.try_lock() else {
            return;
        };
        let served = self.owning(state, |state, now| {
            let before = state.changes(at);
            self.drain_of(state, now, at);
            state.claim(at, before)
        });
        if served.is_err() {
            lock(&self.inbox).clear();
        }
        self.pass_on();
        if served == Ok(true) {
            self.update_of(at, updating);
        }
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

    /// Calls `Interrupts::update` with the changed messages of a device, if it has any, once no other call of it is under
    /// way.
    pub(super) fn update_of(&self, at: (P::At, u64), updating: &Updating) {
        // The messages are looked up behind this lock, so the last update has the newest.
        let _own = lock(&updating.own);
        let changes = self.locked(|state, _| state.begin_update(at));
        let changes = changes.unwrap_or_default();
        if changes.is_empty() {
            return;
        }
        let updated = catch_unwind(AssertUnwindSafe(|| updating.interrupts.update(&changes)));
        // A backend that has failed by now signals nothing.
        let _ = self.locked(|state, _| state.end_update(at));
        if let Err(panic) = updated {
            // A fault of the VMM's, in a thread of its own: the device stays.
            resume_unwind(panic);
        }
    }

    /// Makes the updates that are due, of each device for which no other thread does.
    pub(super) fn update_all(&self) -> Result<(), BackendFailed> {
        for at in self.locked(|state, _| state.due.clone())? {
            // Claimed one by one: a device's own calls see to it while this thread is with another.
            let claimed = self.locked(|state, _| {
                let entry = state.entries.get(&at)?;
                let (key, updating) = ((at, entry.id), Arc::clone(&entry.updating));
                let changes = entry.vectors.changes();
                state.claim(key, changes).then_some((key, updating))
            })?;
            if let Some((key, updating)) = claimed {
                self.update_of(key, &updating);
            }
        }
        Ok(())
    }

    /// Reports to VMMs where their doorbells are, unless they know. The loop does this.
    fn place_doorbells(&self) {
        loop {
            let next = self.locked(|state, _| {
                let at = state.unplaced.pop_first()?;
                let entry = state.entries.get(&at)?;
                Some((at, Arc::clone(&entry.placing)))
            });
            let Ok(Some((at, placing))) = next else {
                return;
            };
            self.place_doorbells_of(at, &placing, Giver::Loop);
        }
    }

    /// Reports to a VMM where the doorbells of a device are, unless it knows.
    pub(super) fn place_doorbells_of(&self, at: P::At, placing: &Arc<Placing>, giver: Giver) {
        // The list is looked up behind this lock, so the VMM gets the newest last.
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
        let is_changed = *last != placed;
        match giver {
            Giver::Caller => {
                if placing.is_left.swap(false, Ordering::Relaxed) || is_changed {
                    placing.doorbells.set(&placed);
                }
            }
            Giver::Loop => {
                if is_changed {
                    let is_whole = placing.doorbells.set_in_loop(&placed);
                    placing.is_left.store(!is_whole, Ordering::Relaxed);
                }
            }
        }
        *last = placed;
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
    /// Returns `true` if the loop has to call a VMM.
    fn has_calls_to_make(&self) -> bool {
        !self.unplaced.is_empty() || (self.is_unasked && !self.due.is_empty())
    }

    /// Returns a device unless it was detached: another may have its function by now.
    pub(super) fn entry(&mut self, (at, id): (P::At, u64)) -> Option<&mut Entry> {
        self.entries.get_mut(&at).filter(|entry| entry.id == id)
    }

    /// Returns how often messages of a device changed.
    pub(super) fn changes(&mut self, at: (P::At, u64)) -> u64 {
        self.entry(at).map_or(0, |entry| entry.vectors.changes())
    }

    /// Returns `true` if the caller has to update a device's interrupts, which had changed `before` times when it came.
    pub(super) fn claim(&mut self, at: (P::At, u64), before: u64) -> bool {
        let is_due = self
            .entry(at)
            .is_some_and(|entry| entry.vectors.claim(before));
        if is_due {
            self.due.remove(&at.0);
        }
        is_due
    }

    /// Takes the changed messages of a device, which the caller passes to its VMM.
    fn begin_update(&mut self, at: (P::At, u64)) -> Vec<(u16, Option<MsixMessage>)> {
        if self.entry(at).is_none() {
            return Vec::new();
        }
        self.due.remove(&at.0);
        let (Some(entry), Some(device)) = (self.entries.get_mut(&at.0), self.provider.device(at.0))
        else {
            return Vec::new();
        };
        let vectors = entry.vectors.begin().iter();
        vectors
            .map(|vector| (*vector, device.function().message(*vector)))
            .collect()
    }

    /// Signals the vectors that waited for an update. What changed since is for the loop to ask for.
    fn end_update(&mut self, at: (P::At, u64)) {
        let Some(entry) = self.entry(at) else {
            return;
        };
        if entry.vectors.end() {
            self.due.insert(at.0);
            self.is_unasked = true;
        }
        self.dispatch(at.0);
    }

    /// Returns `true` if the loop sleeps for something later than what there is to do.
    fn sleeps_too_long(&self) -> bool {
        let Some(until) = self.sleeps else {
            return false;
        };
        if self.has_calls_to_make() {
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

    /// Passes on all devices' changes and interrupts.
    fn dispatch_all(&mut self) {
        while let Some(at) = self.provider.poll_changed() {
            self.dispatch(at);
        }
    }

    /// Passes on a device's changes, then its interrupts.
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
        if entry.vectors.note(changes.vectors) {
            self.due.insert(at);
            self.is_unasked = true;
        }
        while let Some(vector) = device.poll_interrupt() {
            entry.vectors.raise(vector);
        }
        if entry.is_held {
            return;
        }
        let function = device.function();
        entry.vectors.signal(|vector| {
            let Some(message) = function.message(vector) else {
                return false;
            };
            count(&entry.counters.interrupts);
            entry.updating.interrupts.trigger(vector, message);
            true
        });
    }
}
