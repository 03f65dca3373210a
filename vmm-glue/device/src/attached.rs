//! A device of a provider of a certain kind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hca_api::{AddressSpace, Hca};
use ib_vtime::Instant;
use vf_proxy::{Bar, Doorbell, PciDevice};

use super::inbox::Posted;
use super::shared::{Counters, Placing, Shared, State, count, lock};
use super::{BarMove, ConfigEffect, DeviceStatistics, Provider};

/// The calls of a [`Device`](super::Device), whatever its provider.
pub(super) trait Calls: Send + Sync {
    fn bars(&self) -> &[Bar];
    fn vectors(&self) -> u16;
    fn config_read(&self, offset: u16, out: &mut [u8]);
    fn config_write(&self, offset: u16, bytes: &[u8]) -> ConfigEffect;
    fn bar_read(&self, bar: u8, offset: u64, out: &mut [u8]);
    fn bar_write(&self, bar: u8, offset: u64, bytes: &[u8]);
    fn ring(&self, doorbell: Doorbell);
    fn reset(&self);
    fn pause(&self);
    fn resume(&self);
    fn is_paused(&self) -> bool;
    fn detach(&self) -> Option<Box<dyn AddressSpace>>;
    fn statistics(&self) -> DeviceStatistics;
}

/// A device of a provider of a certain kind.
pub(super) struct Attached<P: Provider> {
    pub(super) shared: Arc<Shared<P>>,
    pub(super) at: P::At,
    pub(super) id: u64,
    pub(super) bars: Vec<Bar>,
    pub(super) vectors: u16,
    pub(super) placing: Arc<Placing>,
    pub(super) counters: Arc<Counters>,
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

    /// Lends the function to a call, behind all writes before it, and passes on what comes of it.
    fn with_function(&self, call: impl FnOnce(&mut PciDevice, &mut dyn Hca, Instant)) -> bool {
        let done = self.behind_writes(|state, now| {
            self.lend(state, now, |device, hca| call(device, hca, now))
        });
        done.is_some()
    }

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
        let key = (self.at, self.id);
        if self.shared.post(key, posted) {
            return self.shared.serve_inbox_of(key);
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
            if self.shared.post(key, posted) {
                return self.shared.serve_inbox_of(key);
            }
        }
    }
}

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

    fn reset(&self) {
        // Writes before it do nothing any more.
        lock(&self.shared.inbox).forget_kept((self.at, self.id));
        self.behind_writes(|state, now| {
            state.entries.get_mut(&self.at)?.rung.clear();
            self.lend(state, now, |device, hca| {
                device.function_mut().reset(now, hca)
            })
        });
        self.shared.place_doorbells_of(self.at, &self.placing);
    }

    fn pause(&self) {
        let key = (self.at, self.id);
        self.behind_writes(|state, _| {
            if let Some(entry) = state.entries.get_mut(&self.at) {
                entry.is_held = true;
            }
            state.provider.hold(self.at, true);
            lock(&self.shared.inbox).hold(key);
            Some(())
        });
    }

    fn resume(&self) {
        let key = (self.at, self.id);
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
            Some(())
        });
        self.shared.released.notify_all();
    }

    fn is_paused(&self) -> bool {
        lock(&self.shared.inbox).is_held((self.at, self.id))
    }

    fn detach(&self) -> Option<Box<dyn AddressSpace>> {
        let memory = self.behind_writes(|state, _| {
            state.entries.remove(&self.at);
            self.counters.is_detached.store(true, Ordering::Relaxed);
            lock(&self.shared.inbox).release((self.at, self.id));
            state.provider.detach(self.at)
        });
        self.shared.released.notify_all();
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
