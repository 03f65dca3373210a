//! The bus of a driver without a VM: a thread of the VMM that makes the driver's accesses itself.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time;

use mlx4_driver::Bus;
use vhca::device::{Device, Interrupts, MsixMessage};
use vhca::emulated::{Duration, Instant};

/// Vectors that were signalled, and that the driver has not looked at.
#[derive(Debug, Default)]
pub(crate) struct Signals(Mutex<BTreeSet<u16>>);

impl Interrupts for Signals {
    fn trigger(&self, vector: u16, _: MsixMessage) {
        let mut raised = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        raised.insert(vector);
    }
}

#[derive(Debug)]
pub(crate) struct DeviceBus {
    device: Device,
    signals: Arc<Signals>,
    begun: time::Instant,
    /// `true` if the driver has to end.
    is_over: Arc<AtomicBool>,
}

impl DeviceBus {
    pub(crate) fn new(device: Device, signals: Arc<Signals>, is_over: Arc<AtomicBool>) -> Self {
        let begun = time::Instant::now();
        Self {
            device,
            signals,
            begun,
            is_over,
        }
    }
}

impl Bus for DeviceBus {
    fn now(&self) -> Instant {
        let elapsed = self.begun.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    fn bar_size(&self, bar: u8) -> Option<u64> {
        let mut bars = self.device.bars().iter();
        let found = bars.find(|found| found.index == bar)?;
        Some(found.size)
    }

    fn interrupt_vectors(&self) -> u16 {
        self.device.vectors()
    }

    fn config_read(&mut self, offset: u16, out: &mut [u8]) {
        self.device.config_read(offset, out);
    }

    fn config_write(&mut self, offset: u16, bytes: &[u8]) {
        // The driver's accesses name registers, not addresses.
        let _ = self.device.config_write(offset, bytes);
    }

    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        self.device.bar_read(bar, offset, out);
    }

    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.device.bar_write(bar, offset, bytes);
    }

    fn take_interrupt(&mut self) -> Option<u16> {
        let raised = self.signals.0.lock();
        raised.unwrap_or_else(PoisonError::into_inner).pop_first()
    }

    /// Yields to other threads. Unwinds if the driver's time is over, wherever it is in its work.
    fn wait(&mut self, _: Duration) {
        if self.is_over.load(Ordering::Relaxed) {
            resume_unwind(Box::new("the end"));
        }
        thread::yield_now();
    }

    fn reset(&mut self) {
        let _ = self.device.reset();
    }
}
