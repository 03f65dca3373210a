//! The source of the functions that devices are attached to.

use core::fmt::Debug;
use std::os::fd::BorrowedFd;

use hca_api::{AddressSpace, Hca};
use ib_vtime::Instant;
use vf_pci::PciDevice;

use super::Slice;
use super::calls::SaveError;

/// Drives VFs with PCI functions. Sans-I/O: it never blocks, and `now` never decreases.
pub trait Provider: Send + 'static {
    /// Names a function.
    type At: Copy + Ord + Debug + Send + Sync + 'static;

    /// Returns the time of the last poll.
    fn now(&self) -> Instant;

    /// Returns the device of a function, to be read. `None` if there is none.
    fn device(&mut self, at: Self::At) -> Option<&mut PciDevice>;

    /// Lends a device with its function to a call. Returns `false` if there is none.
    fn lend(
        &mut self,
        now: Instant,
        at: Self::At,
        call: &mut dyn FnMut(&mut PciDevice, &mut dyn Hca),
    ) -> bool;

    /// Does what is due on a device for a short time, after it was lent. The rest comes with the next poll.
    fn take_turn(&mut self, now: Instant, at: Self::At);

    /// Does what is due, until nothing is left or the slice is over.
    fn poll_for(&mut self, now: Instant, slice: &mut Slice);

    /// Returns when to poll at the latest; a time that has passed means at once.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Takes the next device that has interrupts to be signalled, or that changed. To be polled after each poll and each
    /// turn.
    fn poll_changed(&mut self) -> Option<Self::At>;

    /// Holds a device, or lets it go on. While it is held it has no turns, nothing of its guest's memory is read or written,
    /// and what comes for it waits, up to a bound of the provider's; the rest is dropped and counted.
    fn hold(&mut self, at: Self::At, held: bool);

    /// Returns a descriptor that can be read when the provider is to be polled. `None` if only calls and
    /// time bring it anything.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the state of a function that is held.
    ///
    /// # Errors
    /// [`SaveError::Unsupported`] by default.
    fn save(&mut self, _: Self::At) -> Result<Vec<u8>, SaveError> {
        Err(SaveError::Unsupported)
    }

    /// Ends a VF, and returns the memory that it reached. `None` if there is none.
    fn detach(&mut self, at: Self::At) -> Option<Box<dyn AddressSpace>>;
}
