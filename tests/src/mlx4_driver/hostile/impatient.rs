//! A bus whose driver does not wait for what will not come.

use ib_vtime::{Duration, Instant};

use super::super::Bus;

/// The share of its patience that a driver waits before it looks again.
const LOOKS: u32 = 10;

/// A bus as it is, but nobody on it waits for long.
#[derive(Debug)]
pub(super) struct Impatient<'b> {
    pub(super) bus: &'b mut dyn Bus,
    pub(super) patience: Duration,
}

impl Bus for Impatient<'_> {
    fn now(&self) -> Instant {
        self.bus.now()
    }

    fn bar_size(&self, bar: u8) -> Option<u64> {
        self.bus.bar_size(bar)
    }

    fn interrupt_vectors(&self) -> u16 {
        self.bus.interrupt_vectors()
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        self.bus.config_read(offset, out);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        self.bus.config_write(offset, bytes);
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        self.bus.bar_read(bar, offset, out);
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.bus.bar_write(bar, offset, bytes);
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        self.bus.take_interrupt()
    }

    fn wait(&mut self, at_most: Duration) {
        self.bus.wait(at_most.min(self.patience / LOOKS));
    }

    fn reset(&mut self) {
        self.bus.reset();
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}
