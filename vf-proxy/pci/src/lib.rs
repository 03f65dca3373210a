//! A PCI function as a VMM sees it: [`PciFunction`], and [`PciDevice`], which is one as the consumer of its VF.
//!
//! What a guest's driver drives is a *personality*: registers, rings and interrupts of some adapter,
//! translated to calls on the VF's function. Front ends (a vfio-user server, a device inside a VMM) know
//! only this trait.
//!
//! Beside the trait is what personalities share: an [`Endpoint`] with configuration space, MSI-X and the
//! interrupts to signal, and [`PagedBuffer`], a ring in pages of the guest's memory.

#![forbid(unsafe_code)]

mod config_space;
mod device;
mod endpoint;
mod msix;
mod paged_buffer;
pub mod registers;

use core::fmt;

use hca_api::{Hca, HcaEvent};
use ib_vtime::Instant;

pub use config_space::Identity;
pub use device::{PciChanges, PciDevice};
pub use endpoint::Endpoint;
pub use paged_buffer::{Fill, MAX_PAGE_SHIFT, MIN_PAGE_SHIFT, PagedBuffer};

/// One of a function's base address registers. All are 64-bit memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Number of the register, even: the next one holds the upper half of the address.
    pub index: u8,
    /// Bytes, a power of two.
    pub size: u64,
    /// Whether reads have no side effects, so that the VMM may put it above 4 GiB.
    pub prefetchable: bool,
}

/// Message of an MSI-X vector: a write of `data` to `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixMessage {
    /// Message address.
    pub address: u64,
    /// Message data.
    pub data: u32,
}

/// A register behind a base address register that only says "look": whatever is stored there, the function can do its
/// work without the value ([`PciFunction::ring`]). So a VMM need not trap stores to it: it may have an ioeventfd there,
/// without a data match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Doorbell {
    /// Index of the base address register.
    pub bar: u8,
    /// Offset behind it.
    pub offset: u64,
    /// Bytes of the register.
    pub len: u8,
}

/// What a function wants of whoever owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciEvent {
    /// Signal an MSI-X vector.
    Interrupt {
        /// Entry of the MSI-X table.
        vector: u16,
    },
    /// Have the PF reset the VF: release what it owns and forget what it has under way. The function
    /// goes on when it is told of [`hca_api::AsyncEvent::FunctionReset`].
    ResetWanted,
    /// [`PciFunction::message`] returns another message than before for a vector: its entry, its mask, the function
    /// mask, MSI-X as a whole or the bus master bit changed. Comes before the interrupts that depend on it.
    VectorChanged {
        /// Entry of the MSI-X table.
        vector: u16,
    },
    /// [`PciFunction::bar_address`] returns another address than before for some register.
    BarsChanged,
    /// [`PciFunction::doorbells`] returns another list than before.
    DoorbellsChanged,
}

/// A PCI function.
///
/// Sans-I/O like every machine: the owner keeps the VF's function and lends it to each call, passes on
/// its events with [`PciFunction::handle_hca_event`], calls [`PciFunction::poll`] then and when
/// [`PciFunction::poll_timeout`] says so, and pulls what the function wants from
/// [`PciFunction::poll_event`].
///
/// Offsets and lengths come from a VMM, hence from a guest: an access that no register answers reads as
/// zeros and writes nothing. Behind base address registers nothing answers before configuration space says
/// so: all reads as ones.
pub trait PciFunction: fmt::Debug + Send {
    /// The base address registers.
    fn bars(&self) -> &[Bar];

    /// Entries of the MSI-X table.
    fn interrupt_vectors(&self) -> u16;

    /// Returns the message that signals an MSI-X vector. `None` while the vector is masked or MSI-X is off, while the
    /// function is no bus master, as long as the guest has not programmed the table behind the function's own register
    /// (a VMM may keep it), and for a vector that there is not.
    fn message(&self, _vector: u16) -> Option<MsixMessage> {
        None
    }

    /// Returns the address of a base address register, by its index. `None` while memory space is off, for a register
    /// without an address, and for one that there is not. While the guest learns the size of a register, it is where it
    /// was before.
    fn bar_address(&self, _bar: u8) -> Option<u64> {
        None
    }

    /// Returns the registers that [`PciFunction::ring`] can do for, in increasing order: those of pages that a queue
    /// names. Stores to them may also be passed to [`PciFunction::bar_write`].
    fn doorbells(&self) -> Vec<Doorbell> {
        Vec::new()
    }

    /// Takes a store to a doorbell whose value is lost: the function looks for new work wherever the doorbell may have
    /// meant. A doorbell that is not among [`PciFunction::doorbells`] does nothing. The function is to be polled then.
    fn ring(&mut self, _now: Instant, _hca: &mut dyn Hca, _doorbell: Doorbell) {}

    /// Returns `true` if a driver has set the function up since its last reset.
    fn has_driver(&self) -> bool;

    /// Returns since when events have waited for the driver, none of which it took. `None` if it has taken all, or none are
    /// told by queues.
    fn events_waiting_since(&self) -> Option<Instant> {
        None
    }

    /// Reads configuration space. All 4096 bytes can be read.
    fn config_read(&self, offset: u16, out: &mut [u8]);

    /// Writes configuration space; this can be a function-level reset.
    fn config_write(&mut self, now: Instant, hca: &mut dyn Hca, offset: u16, bytes: &[u8]);

    /// Reads behind a base address register.
    fn bar_read(&mut self, bar: u8, offset: u64, out: &mut [u8]);

    /// Writes behind a base address register.
    fn bar_write(&mut self, now: Instant, hca: &mut dyn Hca, bar: u8, offset: u64, bytes: &[u8]);

    /// Takes an event of the VF's function.
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent);

    /// Does what is due. Whether there was anything.
    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool;

    /// When to poll at the latest.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What the function wants next.
    fn poll_event(&mut self) -> Option<PciEvent>;

    /// Resets the function as its VMM does when the machine resets or the VMM is gone: everything but
    /// what the PF configured starts anew. Nothing is read or written in the guest's memory any more until
    /// the driver comes again.
    fn reset(&mut self, now: Instant, hca: &mut dyn Hca);
}
