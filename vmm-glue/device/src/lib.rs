//! A device as a VMM links it: the PCI function of a VF, for any number of threads.
//!
//! A [`Backend`] shares a [`Provider`] (of crate `vhca`, a `World`) among the threads of a VMM: vCPUs, which access
//! [`Device`]s, and one loop, which calls [`Backend::step`] and sleeps until [`Backend::deadline`]. The VMM provides the
//! rest by three traits: [`Interrupts`], [`Doorbells`] and [`Wake`]. Nothing here makes a thread, and nothing outside of
//! [`event`], which has the loop on descriptors, owns one. The feature `kvm` has the traits for KVM. A device reaches the memory
//! of a VMM that is built on vm-memory by [`GuestRam`].
//!
//! | call | may wait |
//! | --- | --- |
//! | [`Device::bar_write`], [`Device::ring`] | no: it is carried out if the lock is free, and left to the loop otherwise. One to the MSI-X table that is carried out waits for [`Interrupts::update`] |
//! | [`Device::config_read`], [`Device::bar_read`] | for the lock, that is for one step |
//! | [`Device::config_write`], [`Device::reset`], [`Device::detach`] | for the lock, for [`Interrupts::update`] and for [`Doorbells::set`] |
//! | [`Device::pause`], [`Device::resume`] | for the lock, and for [`Interrupts::update`] |
//!
//! A device waits for its own VMM's [`Interrupts::update`] and [`Doorbells::set`] only: no lock of the backend is held during
//! them. If the loop carries out a write to the MSI-X table, the device's next call makes the update, whichever it is, and
//! waits for it; [`Wake::update_due`] is for the case that no call comes. [`Doorbells::set_in_loop`] can leave doorbells to the
//! next posted write in the same way.
//!
//! The order is PCI's: accesses to one device are carried out in the order in which they came, and a read comes behind
//! every write before it.
//!
//! The crate knows no fabric and no PF: a [`Provider`] supplies functions and the time of its next work.

#![forbid(unsafe_code)]

mod attached;
mod backend;
pub mod calls;
pub mod event;
mod guest_ram;
mod inbox;
#[cfg(feature = "kvm")]
pub mod kvm;
mod provider;
mod shared;
mod slice;
mod sync;
mod vectors;

use core::error::Error;
use core::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use thiserror::Error;
use vmm_sys_util::eventfd::EventFd;

pub use hca_api::AddressSpace;
pub use ib_vtime::Instant;
pub use vf_pci::{Bar, Doorbell, MsixMessage};

pub use backend::Backend;
pub use guest_ram::GuestRam;
pub use provider::Provider;
pub use shared::BackendFailed;
pub use slice::Slice;

use calls::Calls;
pub use calls::{BarMove, ConfigEffect, DeviceStatistics, SaveError};

/// The first base address register in configuration space (`PCI_BASE_ADDRESS_0`).
const FIRST_BAR: u16 = 0x10;

/// Wakes the thread that calls [`Backend::step`]: an eventfd's write, or a condition variable's notification. One that does
/// nothing makes devices slow, not wrong, as long as that thread looks again by itself.
pub trait Wake: Send + Sync {
    /// Ends the sleep of the thread, or its next one if it does not sleep.
    fn wake(&self);

    /// Asks another thread to call [`Backend::update_interrupts`] soon, and returns `true`. The loop's thread calls this, once
    /// for each change of a device's messages that it carried out itself, and must not wait here.
    ///
    /// By default this returns `false`: then the loop's thread makes the updates. It holds no lock, so other devices' accesses
    /// do not wait for [`Interrupts::update`], but packets and doorbells by event do.
    fn update_due(&self) -> bool {
        false
    }
}

/// Signals the MSI-X vectors of a device. An implementation must not call the device.
///
/// A vector that is raised while its message changes waits until [`Interrupts::update`] has returned. So the calls for one vector
/// come one after the other; `trigger` may come for other vectors during an update. After [`Device::detach`] no call comes,
/// and none is under way.
pub trait Interrupts: Send + Sync {
    /// Takes the messages that changed since the call before; `None` for a vector that is masked or off. Comes before every
    /// [`Interrupts::trigger`] that depends on it.
    ///
    /// The thread whose access changed them calls this behind the access, without a lock of the backend: only calls of the
    /// same device wait for it. The calls of one device come one after the other. What several accesses changed may come in
    /// one call, with the newest messages.
    fn update(&self, _changes: &[(u16, Option<MsixMessage>)]) {}

    /// Returns the eventfd whose signal does what [`Interrupts::trigger`] does for a vector, if the VMM has one, such as an irqfd.
    /// A device that another process serves has that process signal it, without a thread of the VMM. `None` by default: then
    /// [`Interrupts::trigger`] is called. [`Backend::attach`] does not call this.
    fn notifier(&self, _vector: u16) -> Option<OwnedFd> {
        None
    }

    /// Signals a vector, with the message that the last update of it had. Masked vectors are held back, and never come here.
    ///
    /// Called with the lock of the backend held: all devices wait for it.
    fn trigger(&self, vector: u16, message: MsixMessage);
}

/// A doorbell with its address in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlacedDoorbell {
    /// Guest-physical address.
    pub address: u64,
    /// The doorbell, to be given to [`Device::ring`].
    pub doorbell: Doorbell,
}

/// A doorbell of a device that another process serves: the process rings it when the eventfd is signalled.
#[derive(Clone, Debug)]
pub struct SignalledDoorbell {
    /// The doorbell with its address.
    pub placed: PlacedDoorbell,
    /// The eventfd. It is the same one in each call, for as long as the doorbell is there.
    pub event: Arc<EventFd>,
}

/// Ends stores to doorbells without an exit to the VMM.
pub trait Doorbells: Send + Sync {
    /// Takes the doorbells that there are, in place of those of the call before. The list is empty while the register
    /// they are behind has no address. The calls of one device come one after the other.
    fn set(&self, doorbells: &[PlacedDoorbell]);

    /// Takes them as [`Doorbells::set`] does, on the loop's thread, where the loop waits for it. Returns `false` if it left
    /// something to a thread that may wait: then the device's next posted write calls [`Doorbells::set`] with the list.
    fn set_in_loop(&self, doorbells: &[PlacedDoorbell]) -> bool {
        self.set(doorbells);
        true
    }

    /// Takes the doorbells of a device that another process serves, in place of the list before: devices of services call this instead of
    /// the others. Each may be registered with its eventfd, for stores of any length and value. By default all stay trapped.
    fn set_signalled(&self, _: &[SignalledDoorbell]) {}
}

/// Leaves all doorbells trapped: each store comes by [`Device::bar_write`].
#[derive(Clone, Copy, Debug, Default)]
pub struct TrappedDoorbells;

impl Doorbells for TrappedDoorbells {
    fn set(&self, _: &[PlacedDoorbell]) {}
}

/// Why a device cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The provider has no PCI function there.
    #[error("there is no PCI function of this name; put one there first (World::add_device)")]
    NoFunction,
    /// It is attached already.
    #[error("the PCI function is attached already; detach it first")]
    InUse,
    /// The backend has failed.
    #[error(transparent)]
    Failed(#[from] BackendFailed),
}

/// The PCI function of a VF. A clone is the same device.
///
/// After [`Device::detach`], and when the backend has failed, reads return ones and writes do nothing.
#[derive(Clone)]
pub struct Device(Arc<dyn Calls>);

impl Device {
    /// Makes a device of its calls. VMMs attach devices instead: by [`Backend::attach`], or by `attach` of crate `vhca-remote`.
    #[must_use]
    pub fn new(calls: Arc<dyn Calls>) -> Self {
        Self(calls)
    }

    /// Returns the base address registers.
    #[must_use]
    pub fn bars(&self) -> &[Bar] {
        self.0.bars()
    }

    /// Returns the number of entries of the MSI-X table.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.0.vectors()
    }

    /// Reads configuration space. All 4096 bytes can be read.
    pub fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.0.config_read(offset, out);
    }

    /// Writes configuration space. When this returns, [`Interrupts::update`] and [`Doorbells::set`] have been called with the
    /// changes.
    pub fn config_write(&self, offset: u16, bytes: &[u8]) -> ConfigEffect {
        self.0.config_write(offset, bytes)
    }

    /// Reads behind a base address register.
    pub fn bar_read(&self, bar: u8, offset: u64, out: &mut [u8]) {
        self.0.bar_read(bar, offset, out);
    }

    /// Writes behind a base address register. This is a posted write: it may be carried out after the call. One that changes the
    /// message of a vector within the call returns when [`Interrupts::update`] has.
    pub fn bar_write(&self, bar: u8, offset: u64, bytes: &[u8]) {
        self.0.bar_write(bar, offset, bytes);
    }

    /// Takes a store to a doorbell whose value is lost. With an ioeventfd: read that, then call this.
    pub fn ring(&self, doorbell: Doorbell) {
        self.0.ring(doorbell);
    }

    /// Resets the function, as when the machine resets. Its base address registers have no addresses then.
    pub fn reset(&self) -> ConfigEffect {
        self.0.reset()
    }

    /// Writes an address into a base address register: for a VMM that cannot follow a [`BarMove`], with the address before it.
    /// `bar` is the index of the register.
    pub fn restore_bar(&self, bar: u8, address: u64) -> ConfigEffect {
        let register = FIRST_BAR + 4 * u16::from(bar);
        self.0.config_write(register, &address.to_le_bytes())
    }

    /// Holds the VF, before its VM is saved or moved. When this returns, no turn of it is under way, and until
    /// [`Device::resume`] nothing of the guest's memory is read or written, and no vector is signalled. Doorbells and writes are kept; packets for the VF
    /// wait, up to a bound of the provider's (256 KiB of a `World`), beyond which they are dropped and counted.
    ///
    /// A service in another process holds no VF: this does nothing there, and [`Device::is_paused`] stays `false`.
    ///
    /// To be called when the vCPUs stand still: a write beyond 1024 that are kept, and one of more than eight bytes, wait for
    /// [`Device::resume`]. Reads and writes to configuration space are answered meanwhile, without the writes that are kept.
    pub fn pause(&self) {
        self.0.pause();
    }

    /// Ends the pause: carries out what was kept, then takes the packets that waited.
    pub fn resume(&self) {
        self.0.resume();
    }

    /// Returns the state of the function, which a VF of the same kind can continue from. To be called between [`Device::pause`] and
    /// [`Device::resume`].
    ///
    /// # Errors
    /// [`SaveError::Unsupported`], as yet for each device.
    pub fn save(&self) -> Result<Vec<u8>, SaveError> {
        self.0.save()
    }

    /// Returns `true` between [`Device::pause`] and [`Device::resume`].
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.0.is_paused()
    }

    /// Ends the VF, and returns the memory that it reached. `None` if it has ended before.
    #[must_use = "the guest's memory is freed with it"]
    pub fn detach(&self) -> Option<Box<dyn AddressSpace>> {
        self.0.detach()
    }

    /// Calls something once, with the reason, when the device has failed: its [`Provider`] panicked, or the process that serves it is
    /// gone. It is called at once if that has happened before, and never if the device is detached first. The thread that notices
    /// the failure makes the call, with no lock of the device held.
    pub fn on_failure(&self, call: impl FnOnce(Arc<dyn Error + Send + Sync>) + Send + 'static) {
        self.0.on_failure(Box::new(call));
    }

    /// Returns what the device counted.
    #[must_use]
    pub fn statistics(&self) -> DeviceStatistics {
        self.0.statistics()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}
