//! The lock around a provider, and what its owner does before it lets go.
//!
//! # Orders
//!
//! Of the locks that a thread holds at once, a device's `placing` comes first, then the provider's, then the inbox's.
//! Whoever unlocks the provider looks at the inbox again afterwards: a vCPU that found the lock taken has put its write
//! there before, so that it is seen by the owner or by whoever locks next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant as WallInstant};

use core::fmt;

use hca_api::AddressSpace;
use ib_vtime::Instant;
use thiserror::Error;
use vf_proxy::{Bar, Doorbell, PciDevice};

use super::inbox::{Inbox, Posted};
use super::{
    AttachError, BarMove, ConfigEffect, Device, DeviceStatistics, Doorbells, Interrupts,
    PlacedDoorbell, Provider, Wake,
};
use crate::Slice;

/// How long a step goes on while others may wait for the lock.
const STEP: Duration = Duration::from_micros(50);

/// How often a vCPU empties the inbox before it leaves the rest to the loop.
const ROUNDS: u32 = 16;

/// The backend cannot go on: its provider panicked. Its devices answer as detached ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the provider of the devices has failed; see the log for its panic")]
pub struct BackendFailed;

/// A provider, shared by the threads of a VMM. A clone is the same backend.
pub struct Backend<P: Provider>(Arc<Shared<P>>);

impl<P: Provider> Clone for Backend<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: Provider> fmt::Debug for Backend<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").finish_non_exhaustive()
    }
}

impl<P: Provider> Backend<P> {
    /// Shares a provider, whose time goes on by the wall clock from here on.
    #[must_use]
    pub fn new(provider: P, wake: Arc<dyn Wake>) -> Self {
        let base = provider.now();
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                provider,
                entries: BTreeMap::new(),
                attached: 0,
                unplaced: BTreeSet::new(),
                sleeps: None,
                has_failed: false,
            }),
            inbox: Mutex::new(Inbox::default()),
            wake,
            origin: WallInstant::now(),
            base,
        }))
    }

    /// Calls something with the provider: to add what it serves, or to look at it.
    ///
    /// # Errors
    /// [`BackendFailed`], also if `call` panics.
    pub fn with<T>(&self, call: impl FnOnce(&mut P) -> T) -> Result<T, BackendFailed> {
        self.0.locked(|state, _| call(&mut state.provider))
    }

    /// Attaches the VMM of a function. All calls of the device may be made from any thread.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(
        &self,
        at: P::At,
        interrupts: Arc<dyn Interrupts>,
        doorbells: Arc<dyn Doorbells>,
    ) -> Result<Device, AttachError> {
        let placing = Arc::new(Placing {
            doorbells,
            last: Mutex::new(Vec::new()),
        });
        let counters = Arc::new(Counters::default());
        let (of_entry, of_device) = (Arc::clone(&placing), Arc::clone(&counters));
        let attached = self.0.locked(|state, _| {
            let device = state.provider.device(at).ok_or(AttachError::NoFunction)?;
            let function = device.function();
            let registers = (function.bars().to_vec(), function.interrupt_vectors());
            if state.entries.contains_key(&at) {
                return Err(AttachError::InUse);
            }
            state.attached += 1;
            let entry = Entry {
                id: state.attached,
                interrupts,
                placing: of_entry,
                waiting: BTreeSet::new(),
                counters: of_device,
            };
            state.entries.insert(at, entry);
            state.unplaced.insert(at);
            state.dispatch(at);
            Ok((state.attached, registers))
        })?;
        let (id, (bars, vectors)) = attached?;
        self.0.place_doorbells();
        Ok(Device(Arc::new(Attached {
            shared: Arc::clone(&self.0),
            at,
            id,
            bars,
            vectors,
            placing,
            counters,
        })))
    }

    /// Returns the time, as the provider counts it.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.now()
    }

    /// Does what is due, for a short time. The loop calls this when [`Backend::deadline`] has passed, and when it was
    /// woken.
    ///
    /// # Errors
    /// [`BackendFailed`]: the loop ends.
    pub fn step(&self) -> Result<(), BackendFailed> {
        self.0.locked(|state, now| {
            state.sleeps = None;
            self.0.drain(state, now);
            state.provider.poll_for(now, &mut Slice::of(STEP));
            state.dispatch_all();
        })?;
        self.0.place_doorbells();
        Ok(())
    }

    /// Returns when to call [`Backend::step`] at the latest, and notes that the loop sleeps until then: an access that
    /// brings this nearer wakes it. `None`: not before it is woken.
    ///
    /// # Errors
    /// [`BackendFailed`]: the loop ends.
    pub fn deadline(&self) -> Result<Option<Instant>, BackendFailed> {
        self.0.locked(|state, now| {
            let next = match state.unplaced.is_empty() {
                true => state.provider.poll_timeout(),
                false => Some(now),
            };
            state.sleeps = Some(next);
            next
        })
    }

    /// Returns how long the loop may sleep: until [`Backend::deadline`], with which this agrees.
    ///
    /// # Errors
    /// [`BackendFailed`]: the loop ends.
    pub fn sleep_time(&self) -> Result<Option<Duration>, BackendFailed> {
        let deadline = self.deadline()?;
        Ok(deadline.map(|deadline| deadline - self.now()))
    }
}

/// The calls of a [`Device`], whatever its provider.
pub(super) trait Seat: Send + Sync {
    fn bars(&self) -> &[Bar];
    fn vectors(&self) -> u16;
    fn config_read(&self, offset: u16, out: &mut [u8]);
    fn config_write(&self, offset: u16, bytes: &[u8]) -> ConfigEffect;
    fn bar_read(&self, bar: u8, offset: u64, out: &mut [u8]);
    fn bar_write(&self, bar: u8, offset: u64, bytes: &[u8]);
    fn ring(&self, doorbell: Doorbell);
    fn reset(&self);
    fn detach(&self) -> Option<Box<dyn AddressSpace>>;
    fn statistics(&self) -> DeviceStatistics;
}

/// Shared by all threads.
struct Shared<P: Provider> {
    state: Mutex<State<P>>,
    /// By function and attachment: a write is for the device that it was made to, and not for its successor.
    inbox: Mutex<Inbox<(P::At, u64)>>,
    wake: Arc<dyn Wake>,
    /// The time `base` by the wall clock.
    origin: WallInstant,
    base: Instant,
}

/// Protected by the lock of the provider.
struct State<P: Provider> {
    provider: P,
    entries: BTreeMap<P::At, Entry>,
    /// Devices that were attached so far, by which they are numbered.
    attached: u64,
    /// Devices whose doorbells may be elsewhere than their VMM was told.
    unplaced: BTreeSet<P::At>,
    /// The deadline that the loop sleeps for, if it sleeps.
    sleeps: Option<Option<Instant>>,
    has_failed: bool,
}

/// A device that a VMM drives.
struct Entry {
    id: u64,
    interrupts: Arc<dyn Interrupts>,
    placing: Arc<Placing>,
    /// Vectors that were raised before the guest programmed their entries.
    waiting: BTreeSet<u16>,
    counters: Arc<Counters>,
}

/// Where a device's doorbells are.
struct Placing {
    doorbells: Arc<dyn Doorbells>,
    /// The list that the VMM was told last. Locked while it is told.
    last: Mutex<Vec<PlacedDoorbell>>,
}

#[derive(Debug, Default)]
struct Counters {
    writes: AtomicU64,
    waits: AtomicU64,
    rings: AtomicU64,
    interrupts: AtomicU64,
    after_detach: AtomicU64,
    is_detached: AtomicBool,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A panic of the provider is noted in the state, so a poisoned lock says nothing more.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P: Provider> Shared<P> {
    fn now(&self) -> Instant {
        self.base + self.origin.elapsed()
    }

    /// Calls something with the lock held, then does what whoever lets go of it has to do.
    fn locked<T>(
        &self,
        call: impl FnOnce(&mut State<P>, Instant) -> T,
    ) -> Result<T, BackendFailed> {
        let result = self.owning(&mut lock(&self.state), call);
        self.serve_inbox();
        result
    }

    /// Calls something with the state, and wakes the loop if it sleeps for too long then.
    fn owning<T>(
        &self,
        state: &mut State<P>,
        call: impl FnOnce(&mut State<P>, Instant) -> T,
    ) -> Result<T, BackendFailed> {
        if state.has_failed {
            return Err(BackendFailed);
        }
        // Read under the lock, so that the provider's time never goes back.
        let now = self.now();
        let called = catch_unwind(AssertUnwindSafe(|| {
            let result = call(state, now);
            let is_late = state.sleeps_too_long();
            (result, is_late)
        }));
        match called {
            Ok((result, is_late)) => {
                if is_late {
                    state.sleeps = None;
                    self.wake.wake();
                }
                Ok(result)
            }
            Err(_) => {
                log::error!("the provider of virtual HCAs panicked: its devices are gone");
                state.has_failed = true;
                self.wake.wake();
                Err(BackendFailed)
            }
        }
    }

    /// Carries out posted writes for as long as the lock is free. Its next owner looks for itself.
    fn serve_inbox(&self) {
        for _ in 0..ROUNDS {
            if lock(&self.inbox).is_empty() {
                return;
            }
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let served = self.owning(&mut state, |state, now| self.drain(state, now));
            if served.is_err() {
                lock(&self.inbox).take_all();
                return;
            }
        }
        // Other vCPUs write as fast as this one carries out: it has a guest to go on with.
        self.wake.wake();
    }

    /// Carries out all posted writes.
    fn drain(&self, state: &mut State<P>, now: Instant) {
        let posted = lock(&self.inbox).take_all();
        for (at, writes) in posted {
            state.carry_out(now, at, writes);
        }
    }

    /// Carries out the posted writes of a device.
    fn drain_of(&self, state: &mut State<P>, now: Instant, at: (P::At, u64)) {
        let writes = lock(&self.inbox).take_of(at);
        state.carry_out(now, at, writes);
    }

    /// Reports to VMMs where their doorbells are, unless they know.
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
            self.place_doorbells_of(at, &placing);
        }
    }

    /// Reports to a VMM where the doorbells of a device are, unless it knows.
    fn place_doorbells_of(&self, at: P::At, placing: &Arc<Placing>) {
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
    fn carry_out(&mut self, now: Instant, (at, id): (P::At, u64), writes: VecDeque<Posted>) {
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

    /// Passes on what all devices have to tell.
    fn dispatch_all(&mut self) {
        while let Some(at) = self.provider.poll_changed() {
            self.dispatch(at);
        }
    }

    /// Passes on what a device has to tell: what changed before the interrupts.
    fn dispatch(&mut self, at: P::At) {
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

/// A device of a provider of a certain kind.
struct Attached<P: Provider> {
    shared: Arc<Shared<P>>,
    at: P::At,
    id: u64,
    bars: Vec<Bar>,
    vectors: u16,
    placing: Arc<Placing>,
    counters: Arc<Counters>,
}

impl<P: Provider> Attached<P> {
    /// Calls something behind all writes before it. `None` if the device is detached, or its backend failed.
    fn behind_writes<T>(
        &self,
        call: impl FnOnce(&mut State<P>, Instant) -> Option<T>,
    ) -> Option<T> {
        let called = self.shared.locked(|state, now| {
            if !self.is_attached(state) {
                return None;
            }
            self.shared.drain_of(state, now, (self.at, self.id));
            call(state, now)
        });
        let called = called.ok().flatten();
        if called.is_none() {
            count(&self.counters.after_detach);
        }
        called
    }

    /// Returns `true` unless the device was detached; another may have its function by now.
    fn is_attached(&self, state: &State<P>) -> bool {
        let entry = state.entries.get(&self.at);
        entry.is_some_and(|entry| entry.id == self.id)
    }

    /// Lends the function to a call, and passes on what comes of it.
    fn with_function(
        &self,
        call: impl FnOnce(&mut PciDevice, &mut dyn hca_api::Hca, Instant),
    ) -> bool {
        let mut call = Some(call);
        let done = self.behind_writes(|state, now| {
            let is_there = state.provider.lend(now, self.at, &mut |device, hca| {
                if let Some(call) = call.take() {
                    call(device, hca, now);
                }
                device.collect_events();
            });
            state.provider.take_turn(now, self.at);
            state.dispatch(self.at);
            is_there.then_some(())
        });
        done.is_some()
    }

    /// Posts a write. One that cannot be posted is carried out by a call, behind those before it.
    fn post(&self, posted: Option<Posted>, otherwise: impl FnOnce()) {
        if self.counters.is_detached.load(Ordering::Relaxed) {
            return count(&self.counters.after_detach);
        }
        let key = (self.at, self.id);
        let is_posted = posted.is_some_and(|posted| lock(&self.shared.inbox).push(key, posted));
        if is_posted {
            self.shared.serve_inbox();
        } else {
            count(&self.counters.waits);
            otherwise();
        }
    }
}

impl<P: Provider> Seat for Attached<P> {
    fn bars(&self) -> &[Bar] {
        &self.bars
    }

    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        let read = self.behind_writes(|state, _| {
            let device = state.provider.device(self.at)?;
            device.function().config_read(offset, out);
            Some(())
        });
        if read.is_none() {
            out.fill(0xff);
        }
    }

    fn config_write(&self, offset: u16, bytes: &[u8]) -> ConfigEffect {
        let mut effect = ConfigEffect::default();
        let addresses = |device: &PciDevice| -> Vec<_> {
            let bars = self.bars.iter();
            bars.map(|bar| device.function().bar_address(bar.index))
                .collect()
        };
        self.with_function(|device, hca, now| {
            let before = addresses(device);
            device.function_mut().config_write(now, hca, offset, bytes);
            let moves = before.into_iter().zip(addresses(device)).zip(&self.bars);
            let moves = moves.filter(|((from, to), _)| from != to);
            effect.moved.extend(moves.map(|((from, to), bar)| BarMove {
                bar: bar.index,
                from,
                to,
            }));
        });
        self.shared.place_doorbells_of(self.at, &self.placing);
        effect
    }

    fn bar_read(&self, bar: u8, offset: u64, out: &mut [u8]) {
        let read = self.behind_writes(|state, _| {
            let device = state.provider.device(self.at)?;
            device.function_mut().bar_read(bar, offset, out);
            Some(())
        });
        if read.is_none() {
            out.fill(0xff);
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, bytes: &[u8]) {
        count(&self.counters.writes);
        self.post(Posted::write(bar, offset, bytes), || {
            self.with_function(|device, hca, now| {
                device
                    .function_mut()
                    .bar_write(now, hca, bar, offset, bytes);
            });
        });
    }

    fn ring(&self, doorbell: Doorbell) {
        count(&self.counters.rings);
        self.post(Some(Posted::Ring(doorbell)), || {
            self.with_function(|device, hca, now| device.function_mut().ring(now, hca, doorbell));
        });
    }

    fn reset(&self) {
        self.with_function(|device, hca, now| device.function_mut().reset(now, hca));
        self.shared.place_doorbells_of(self.at, &self.placing);
    }

    fn detach(&self) -> Option<Box<dyn AddressSpace>> {
        let memory = self.behind_writes(|state, _| {
            state.entries.remove(&self.at);
            self.counters.is_detached.store(true, Ordering::Relaxed);
            state.provider.detach(self.at)
        });
        // No doorbell leads anywhere any more.
        self.shared.place_doorbells_of(self.at, &self.placing);
        memory
    }

    fn statistics(&self) -> DeviceStatistics {
        let Counters {
            writes,
            waits,
            rings,
            interrupts,
            after_detach,
            is_detached: _,
        } = &*self.counters;
        let [writes, waits, rings, interrupts, after_detach] =
            [writes, waits, rings, interrupts, after_detach].map(|n| n.load(Ordering::Relaxed));
        DeviceStatistics {
            writes,
            waits,
            rings,
            interrupts,
            after_detach,
        }
    }
}
