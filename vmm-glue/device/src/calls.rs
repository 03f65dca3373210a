//! The calls of a device, whichever way its function is reached.

use core::error;
use std::sync::Arc;

use hca_api::AddressSpace;
use thiserror::Error;
use vf_pci::{Bar, Doorbell};

/// A base address register that a write to configuration space moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarMove {
    /// Index of the register.
    pub bar: u8,
    /// Its size in bytes, a power of two.
    pub size: u64,
    /// Its address before; `None` if it had none.
    pub from: Option<u64>,
    /// Its address now; `None` if it has none.
    pub to: Option<u64>,
}

/// Effects of a write to configuration space, or of a reset, that the VMM has to follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct ConfigEffect {
    /// The base address registers that moved, appeared or went.
    pub moved: Vec<BarMove>,
}

/// Counts of a device since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStatistics {
    /// Writes behind base address registers.
    pub writes: u64,
    /// Writes that waited for the lock: they were longer than eight bytes, or the device's queue was full.
    pub waits: u64,
    /// Doorbells without a value.
    pub rings: u64,
    /// Interrupts that were signalled.
    pub interrupts: u64,
    /// Accesses after the device was detached, or its backend failed.
    pub after_detach: u64,
}

/// Why the state of a device cannot be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The provider of the function, or the process that serves it, cannot.
    #[error("the state of this device cannot be saved")]
    Unsupported,
}

/// A call that a device makes once when it has failed, with the reason.
pub type FailureCall = Box<dyn FnOnce(Arc<dyn error::Error + Send + Sync>) + Send>;

/// The calls of a [`Device`](super::Device), which has their descriptions.
///
/// Crates of this workspace implement it: functions of a [`Provider`](super::Provider), and functions that another process
/// serves. It gains methods in minor versions, so it is sealed.
pub trait Calls: Sealed + Send + Sync {
    /// [`Device::bars`](super::Device::bars).
    fn bars(&self) -> &[Bar];
    /// [`Device::vectors`](super::Device::vectors).
    fn vectors(&self) -> u16;
    /// [`Device::config_read`](super::Device::config_read).
    fn config_read(&self, offset: u16, out: &mut [u8]);
    /// [`Device::config_write`](super::Device::config_write).
    fn config_write(&self, offset: u16, bytes: &[u8]) -> ConfigEffect;
    /// [`Device::bar_read`](super::Device::bar_read).
    fn bar_read(&self, bar: u8, offset: u64, out: &mut [u8]);
    /// [`Device::bar_write`](super::Device::bar_write).
    fn bar_write(&self, bar: u8, offset: u64, bytes: &[u8]);
    /// [`Device::ring`](super::Device::ring).
    fn ring(&self, doorbell: Doorbell);
    /// [`Device::reset`](super::Device::reset).
    fn reset(&self) -> ConfigEffect;
    /// [`Device::pause`](super::Device::pause).
    fn pause(&self);
    /// [`Device::resume`](super::Device::resume).
    fn resume(&self);
    /// [`Device::save`](super::Device::save).
    fn save(&self) -> Result<Vec<u8>, SaveError> {
        Err(SaveError::Unsupported)
    }
    /// [`Device::is_paused`](super::Device::is_paused).
    fn is_paused(&self) -> bool;
    /// [`Device::detach`](super::Device::detach).
    fn detach(&self) -> Option<Box<dyn AddressSpace>>;
    /// [`Device::on_failure`](super::Device::on_failure).
    fn on_failure(&self, call: FailureCall);
    /// [`Device::statistics`](super::Device::statistics).
    fn statistics(&self) -> DeviceStatistics;
}

/// Marks the implementations of [`Calls`], which are in this workspace.
#[doc(hidden)]
pub trait Sealed {}
