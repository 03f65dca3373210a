//! The bus on which a driver finds its device.

use core::fmt;

use ib_vtime::{Duration, Instant};

/// A PCI bus with one function on it, and the time that passes there.
pub trait Bus: fmt::Debug {
    /// Returns the time.
    fn now(&self) -> Instant;

    /// Returns the bytes behind a base address register, or `None` if there is no such register.
    fn bar_size(&self, bar: u8) -> Option<u64>;

    /// Returns the number of entries of the function's MSI-X table.
    fn interrupt_vectors(&self) -> u16;

    /// Reads configuration space.
    fn config_read(&mut self, offset: u16, out: &mut [u8]);

    /// Writes configuration space.
    fn config_write(&mut self, offset: u16, bytes: &[u8]);

    /// Reads behind a base address register.
    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]);

    /// Writes behind a base address register.
    fn bar_write(&mut self, bar: u8, offset: u64, bytes: &[u8]);

    /// Returns address and data of the message by which the function signals a vector.
    fn message(&self, vector: u16) -> (u64, u32) {
        (0xfee0_0000, 0x4000 + u32::from(vector))
    }

    /// Returns the next MSI-X vector that was signalled, if any.
    fn take_interrupt(&mut self) -> Option<u16>;

    /// Waits until the next interrupt, but not longer than `at_most`.
    fn wait(&mut self, at_most: Duration);

    /// Resets the function as its VMM does when the machine resets.
    fn reset(&mut self);

    /// Returns the longest time that the driver waits for anything, if that is shorter than a kernel's limit.
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
