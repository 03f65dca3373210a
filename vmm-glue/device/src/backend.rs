//! A provider as the threads of a VMM share it.

use core::fmt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ib_vtime::Instant;

use super::attached::Attached;
use super::shared::{BackendFailed, Counters, Entry, Giver, Placing, Rung, Shared, Updating};
use super::vectors::Vectors;
use super::{AttachError, Device, Doorbells, Interrupts, Provider, Wake};

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
        Self(Arc::new(Shared::new(provider, wake)))
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
        let (updating, placing) = (Updating::new(interrupts), Placing::new(doorbells));
        let counters = Arc::new(Counters::default());
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
                updating: Arc::clone(&updating),
                placing: Arc::clone(&placing),
                vectors: Vectors::default(),
                counters: Arc::clone(&counters),
                is_held: false,
                rung: BTreeSet::new(),
                on_failure: Vec::new(),
            };
            state.entries.insert(at, entry);
            state.dispatch(at);
            Ok((state.attached, registers))
        })?;
        let (id, (bars, vectors)) = attached?;
        self.0.update_of((at, id), &updating);
        self.0.place_doorbells_of(at, &placing, Giver::Caller);
        Ok(Device::new(Arc::new(Attached {
            shared: Arc::clone(&self.0),
            at,
            id,
            bars,
            vectors,
            updating,
            placing,
            counters,
        })))
    }

    /// Returns the time, as the provider counts it.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.now()
    }

    /// Calls [`Interrupts::update`] of the devices that have changed messages which no thread is about to pass on. For the
    /// thread that [`Wake::update_due`] asks: this waits for each of those calls.
    ///
    /// # Errors
    /// [`BackendFailed`].
    pub fn update_interrupts(&self) -> Result<(), BackendFailed> {
        self.0.update_all()
    }

    /// Does what is due, for a short time. The loop calls this when [`Backend::deadline`] has passed, and when it was
    /// woken.
    ///
    /// # Errors
    /// [`BackendFailed`]: the loop ends.
    pub fn step(&self) -> Result<(), BackendFailed> {
        self.0.step(&Rung::new())
    }

    /// Steps as [`Backend::step`] does, after doorbells whose stores came as events.
    pub(super) fn ring_and_step(&self, rung: &Rung<P::At>) -> Result<(), BackendFailed> {
        self.0.step(rung)
    }

    /// Returns when to call [`Backend::step`] at the latest, and notes that the loop sleeps until then: an access that
    /// brings this nearer wakes it. `None`: not before it is woken.
    ///
    /// # Errors
    /// [`BackendFailed`]: the loop ends.
    pub fn deadline(&self) -> Result<Option<Instant>, BackendFailed> {
        self.0.deadline()
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
