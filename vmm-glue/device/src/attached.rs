//! A device of a provider of a certain kind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hca_api::{AddressSpace, Hca};
use ib_vtime::Instant;
use vf_pci::{Bar, Doorbell, PciDevice};

use super::Provider;
use super::calls::{
    BarMove, Calls, ConfigEffect, DeviceStatistics, FailureCall, SaveError, Sealed,
};
use super::inbox::Posted;
use super::shared::{
    BackendFailed, Counters, Giver, Placing, Shared, State, Updating, count, lock,
};

/// A device of a provider of a certain kind.
pub(super) struct Attached<P: Provider> {
    pub(super) shared: Arc<Shared<P>>,
    pub(super) at: P::At,
    pub(super) id: u64,
    pub(super) bars: Vec<Bar>,
    pub(super) vectors: u16,
    pub(super) updating: Arc<Updating>,
    pub(super) placing: Arc<Placing>,
    pub(super) counters: Arc<Counters>,
}

impl<P: Provider> Attached<P> {
    /// Calls something behind all writes before it, and updates the interrupts that changed. `None` if the device is
    /// detached, or its backend failed.
    fn behind_writes<T>(
        &self,
        call: impl FnOnce(&mut State<P>, Instant) -> Option<T>,
    ) -> Option<T> {
        let key = self.key();
        let called = self.shared.locked(|state, now| {
            state.entry(key)?;
            let before = state.changes(key);
            self.shared.drain_of(state, now, key);
            let called = call(state, now);
            Some((called, state.claim(key, before)))
        });
        let (called, has_to_update) = called.ok().flatten().unwrap_or((None, false));
        if called.is_none() {
            count(&self.counters.after_detach);
        }
        if has_to_update {
            self.shared.update_of(key, &self.updating);
        }
        called
    }

    const fn key(&self) -> (P::At, u64) {
        (self.at, self.id)
    }

    /// Reports where the doorbells are, unless the VMM knows.
    fn place_doorbells(&self) {
        self.shared
            .place_doorbells_of(self.at, &self.placing, Giver::Caller);
    }

    /// Calls something that may move the base address registers, behind all writes before it, and returns the ones that it moved.
    fn reconfigure(
        &self,
        begin: impl FnOnce(&mut State<P>) -> Option<()>,
        call: impl FnOnce(&mut PciDevice, &mut dyn Hca, Instant),
    ) -> ConfigEffect {
        let mut effect = ConfigEffect::default();
        let addresses = |device: &PciDevice| -> Vec<_> {
            let bars = self.bars.iter();
            bars.map(|bar| device.function().bar_address(bar.index))
                .collect()
        };
        self.behind_writes(|state, now| {
            begin(state)?;
            self.lend(state, now, |device, hca| {
                let before = addresses(device);
                call(device, hca, now);
                let moves = before.into_iter().zip(addresses(device)).zip(&self.bars);
                let moves = moves.filter(|((from, to), _)| from != to);
                effect.moved.extend(moves.map(|((from, to), bar)| BarMove {
                    bar: bar.index,
                    size: bar.size,
                    from,
                    to,
                }));
            })?;
            // This thread reports it, below: for the loop, all devices would wait.
            state.unplaced.remove(&self.at);
            Some(())
        });
        self.place_doorbells();
        effect
    }

    /// Lends the function to a call, and passes the device's changes and interrupts on.
    fn lend(
        &self,
        state: &mut State<P>,
        now: Instant,
        call: impl FnOnce(&mut PciDevice, &mut dyn Hca),
    ) -> Option<()> {
        let mut call = Some(call);
        let is_there = state.provider.lend(now, self.at, &mut |device, hca| {
            if let Some(call) = call.take() {
                call(device, hca);
            }
            device.collect_events();
        });
        state.provider.take_turn(now, self.at);
        state.dispatch(self.at);
        is_there.then_some(())
    }

    /// Posts a write. One that cannot be posted is carried out by a call, behind those before it.
    fn post(
        &self,
        posted: Option<Posted>,
        mut otherwise: impl FnMut(&mut PciDevice, &mut dyn Hca, Instant),
    ) {
        if self.counters.is_detached.load(Ordering::Relaxed) {
            return count(&self.counters.after_detach);
        }
        if self.shared.post(self.key(), posted) {
            return self.serve_inbox();
        }
        count(&self.counters.waits);
        loop {
            let is_done = self.behind_writes(|state, now| {
                let is_held = state.entries.get(&self.at).is_some_and(|it| it.is_held);
                if !is_held {
                    self.lend(state, now, |device, hca| otherwise(device, hca, now))?;
                }
                Some(!is_held)
            });
            if is_done.unwrap_or(true) {
                return;
            }
            // The device was paused before the lock was free.
            if self.shared.post(self.key(), posted) {
                return self.serve_inbox();
            }
        }
    }

    /// Carries out posted writes if the lock is free, and places the doorbells that the loop has left to a vCPU.
    fn serve_inbox(&self) {
        self.shared.serve_inbox_of(self.key(), &self.updating);
        if self.placing.is_left.load(Ordering::Relaxed) {
            self.place_doorbells();
        }
    }
}

impl<P: Provider> Sealed for Attached<P> {}

impl<P: Provider> Calls for Attached<P> {
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
        let write = |device: &mut PciDevice, hca: &mut dyn Hca, now| {
            device.function_mut().config_write(now, hca, offset, bytes);
        };
        self.reconfigure(|_| Some(()), write)
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
        self.post(Posted::write(bar, offset, bytes), |device, hca, now| {
            device
                .function_mut()
                .bar_write(now, hca, bar, offset, bytes);
        });
    }

    fn ring(&self, doorbell: Doorbell) {
        count(&self.counters.rings);
        self.post(Some(Posted::Ring(doorbell)), |device, hca, now| {
            device.function_mut().ring(now, hca, doorbell);
        });
    }

    fn reset(&self) -> ConfigEffect {
        // Writes before it have no effect.
        lock(&self.shared.inbox).forget_kept(self.key());
        let forget = |state: &mut State<P>| {
            let entry = state.entries.get_mut(&self.at)?;
            entry.rung.clear();
            entry.vectors.forget_raised();
            Some(())
        };
        self.reconfigure(forget, |device, hca, now| {
            device.function_mut().reset(now, hca);
        })
    }

    fn pause(&self) {
        let key = self.key();
        self.behind_writes(|state, _| {
            if let Some(entry) = state.entries.get_mut(&self.at) {
                entry.is_held = true;
            }
            state.provider.hold(self.at, true);
            lock(&self.shared.inbox).hold(key);
            Some(())
        });
        // An update of another thread may be under way.
        self.shared.update_of(key, &self.updating);
    }

    fn resume(&self) {
        let key = self.key();
        self.behind_writes(|state, now| {
            let entry = state.entries.get_mut(&self.at)?;
            if !core::mem::take(&mut entry.is_held) {
                return Some(());
            }
            let rung = core::mem::take(&mut entry.rung);
            state.provider.hold(self.at, false);
            let kept = lock(&self.shared.inbox).release(key);
            state.carry_out(now, key, kept);
            state.ring(now, self.at, &rung);
            // Vectors may have waited for the end of the pause.
            state.dispatch(self.at);
            Some(())
        });
        self.shared.released.notify_all();
    }

    fn save(&self) -> Result<Vec<u8>, SaveError> {
        let saved = self.shared.locked(|state, _| state.provider.save(self.at));
        saved.unwrap_or(Err(SaveError::Unsupported))
    }

    fn is_paused(&self) -> bool {
        lock(&self.shared.inbox).is_held(self.key())
    }

    fn detach(&self) -> Option<Box<dyn AddressSpace>> {
        let memory = self.behind_writes(|state, _| {
            state.entries.remove(&self.at);
            state.unplaced.remove(&self.at);
            self.counters.is_detached.store(true, Ordering::Relaxed);
            lock(&self.shared.inbox).release(self.key());
            state.provider.detach(self.at)
        });
        self.shared.released.notify_all();
        // There is none to make; another thread may be in one.
        self.shared.update_of(self.key(), &self.updating);
        // The list is empty from here on.
        self.place_doorbells();
        memory
    }

    fn on_failure(&self, call: FailureCall) {
        let mut call = Some(call);
        let key = self.key();
        let kept = self.shared.locked(|state, _| {
            if let Some(entry) = state.entry(key) {
                entry.on_failure.extend(call.take());
            }
        });
        if let (Err(BackendFailed), Some(call)) = (kept, call) {
            call(Arc::new(BackendFailed));
        }
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
