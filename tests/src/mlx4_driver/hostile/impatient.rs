//! A bus whose driver does not wait for what will not come.

use ib_vtime::{Duration, Instant};
use vf_proxy::Bar;

use super::super::Bus;

/// A bus as it is, but nobody on it waits for long.
#[derive(Debug)]
pub(super) struct Impatient<'b>(pub(super) &'b mut dyn Bus);

impl Bus for Impatient<'_> {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn bars(&self) -> Vec<Bar> {
        self.0.bars()
    }

    fn interrupt_vectors(&self) -> u16 {
        self.0.interrupt_vectors()
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        self.0.config_read(offset, out);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        self.0.config_write(offset, bytes);
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        self.0.bar_read(bar, offset, out);
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.0.bar_write(bar, offset, bytes);
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        self.0.take_interrupt()
    }

    fn wait(&mut self, at_most: Duration) {
        self.0.wait(at_most.min(Duration::from_micros(100)));
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(1)
    }
}
