//! Where a driver finds its device.

use core::fmt;

use ib_vtime::{Duration, Instant};
use vf_proxy::Bar;

/// A PCI bus with one function on it, and the time that passes there.
///
/// One implementation drives a function on an emulated adapter that nothing else uses
/// ([`super::Bench`]); another one a function in a [`vhca::world::World`] ([`super::Lab`]).
pub trait Bus: fmt::Debug {
    /// The time.
    fn now(&self) -> Instant;

    /// The function's base address registers.
    fn bars(&self) -> Vec<Bar>;

    /// Entries of the function's MSI-X table.
    fn interrupt_vectors(&self) -> u16;

    /// Reads configuration space.
    fn config_read(&mut self, offset: u16, out: &mut [u8]);

    /// Writes configuration space.
    fn config_write(&mut self, offset: u16, bytes: &[u8]);

    /// Reads behind a base address register.
    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]);

    /// Writes behind a base address register.
    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]);

    /// The next MSI-X vector that was signalled.
    fn take_interrupt(&mut self) -> Option<u16>;

    /// Lets time pass: until the next interrupt, or for so long.
    fn wait(&mut self, at_most: Duration);

    /// Resets the function as its VMM does when the machine resets.
    fn reset(&mut self);

    /// How long whoever drives the function waits for anything, at most.
    fn patience(&self) -> Duration {
        Duration::MAX
    }

    /// Reads a big-endian register of 32 bits.
    fn read_be32(&mut self, bar: u8, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.bar_read(bar, offset, &mut bytes);
        u32::from_be_bytes(bytes)
    }

    /// Writes a big-endian register of 32 bits.
    fn write_be32(&mut self, bar: u8, offset: u64, value: u32) {
        self.bar_write(bar, offset, &value.to_be_bytes());
    }
}
