//! VFs that a VMM drives: each has a PCI function, which stands between the guest's driver and the VF.

use std::collections::BTreeSet;

use emulated_hca::Fabric;
use hca_api::{FunctionId, FunctionManager, Hca};
use ib_vtime::Instant;
use pf_context::context::PfError;
use thiserror::Error;
use vf_proxy::{PciEvent, PciFunction};
use vf_tunnel::VfId;

use super::pf_host::PfHost;
use super::vfs::pf_of;
use super::{Host, HostFunction, HostId, World, function_of};
use crate::Slice;

/// Why a VF cannot be driven by a VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// There is no such VF.
    #[error(transparent)]
    Pf(#[from] PfError),
    /// Something else runs on it: a guest's software, or another device.
    #[error("{0} is in use")]
    InUse(VfId),
}

/// The PCI function of a VF.
#[derive(Debug)]
pub(super) struct Device {
    function: Box<dyn PciFunction>,
    /// Vectors to be signalled. One that is raised again before it was taken is one.
    interrupts: BTreeSet<u16>,
    resets: u64,
}

impl Device {
    /// Does what is due, until the slice is over. Whether there may be more.
    fn poll(&mut self, now: Instant, hca: &mut dyn Hca, slice: &mut Slice) -> bool {
        while let Some(event) = hca.poll_event() {
            self.function.handle_hca_event(now, hca, &event);
            if slice.is_over() {
                return true;
            }
        }
        while self.function.poll(now, hca) {
            if slice.is_over() {
                return true;
            }
        }
        false
    }

    /// Takes what the function wants. Whether that is a reset of the VF.
    fn take_events(&mut self) -> bool {
        let mut wants_reset = false;
        while let Some(event) = self.function.poll_event() {
            match event {
                PciEvent::Interrupt { vector } => {
                    self.interrupts.insert(vector);
                }
                PciEvent::ResetWanted => wants_reset = true,
            }
        }
        wants_reset
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.function.poll_timeout()
    }
}

/// What came of a device's poll.
pub(super) struct DevicePoll {
    /// It has vectors to be signalled.
    pub(super) is_interrupting: bool,
    /// The VF was reset: its function has an event, and the PF something to do.
    pub(super) is_reset: bool,
    /// It has more to do, for which its turn was too short.
    pub(super) has_more: bool,
}

/// A device on a VF, as it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView<'d> {
    /// The PCI function.
    pub function: &'d dyn PciFunction,
    /// Resets of the VF that the function asked for: by its driver or its VMM.
    pub resets: u64,
}

impl Host {
    /// Lets the device on a VF do what is due, until the slice is over. `None` if there is none.
    pub(super) fn poll_device(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        vf: VfId,
        slice: &mut Slice,
    ) -> Option<DevicePoll> {
        let node = self.node();
        let pf = self.pf_mut()?;
        let device = pf.devices.get_mut(&vf)?;
        let has_more = match function_of(fabric, node, FunctionId(vf.get())) {
            Ok(mut hca) => device.poll(now, &mut hca, slice),
            Err(_) => false,
        };
        let is_reset = device.take_events();
        if is_reset {
            device.resets += 1;
            if let Ok(mut hca) = function_of(fabric, node, FunctionId::PF) {
                reset(pf, now, &mut hca, vf);
            }
        }
        let device = pf.devices.get(&vf)?;
        Some(DevicePoll {
            is_interrupting: !device.interrupts.is_empty(),
            is_reset,
            has_more,
        })
    }
}

/// A VF that has a device is one that the PF knows, so only a fault of the adapter could refuse.
fn reset(pf: &mut PfHost, now: Instant, hca: &mut dyn FunctionManager, vf: VfId) {
    if let Err(error) = pf.context.reset_vf(now, hca, vf) {
        log::error!("cannot reset {vf}: {error}");
    }
}

impl World {
    /// Gives a VF on which nothing runs to a VMM: `function` is what the guest's driver will find.
    ///
    /// # Errors
    /// [`DeviceError`].
    ///
    /// # Panics
    /// See [`World::add_vf`].
    pub fn add_device(
        &mut self,
        host: HostId,
        vf: VfId,
        function: Box<dyn PciFunction>,
    ) -> Result<HostFunction, DeviceError> {
        let pf = pf_of(&mut self.hosts[host.0]);
        if !pf.context.vfs().any(|known| known == vf) {
            return Err(PfError::NoVf(vf).into());
        }
        if pf.guests.contains_key(&vf) || pf.devices.contains_key(&vf) {
            return Err(DeviceError::InUse(vf));
        }
        let device = Device {
            function,
            interrupts: BTreeSet::new(),
            resets: 0,
        };
        pf.devices.insert(vf, device);
        self.wake(host.vf(vf));
        Ok(host.vf(vf))
    }

    /// The device on a VF.
    #[must_use]
    pub fn device(&self, at: HostFunction) -> Option<DeviceView<'_>> {
        let device = device_of(&self.hosts[at.host.0], at.function)?;
        Some(DeviceView {
            function: device.function.as_ref(),
            resets: device.resets,
        })
    }

    /// Calls something with the device on a VF and the VF's function. What it makes of that, other than
    /// what the call gives, comes with the next poll. `None` if there is no such device.
    pub fn with_device<T>(
        &mut self,
        at: HostFunction,
        call: impl FnOnce(&mut dyn PciFunction, &mut dyn Hca, Instant) -> T,
    ) -> Option<T> {
        self.wake(at);
        let host = &mut self.hosts[at.host.0];
        let mut hca = function_of(&mut self.fabric, host.node(), at.function).ok()?;
        let vf = VfId::new(at.function.0)?;
        let device = host.pf_mut()?.devices.get_mut(&vf)?;
        Some(call(device.function.as_mut(), &mut hca, self.now))
    }

    /// The next device that has MSI-X vectors to be signalled.
    pub fn poll_interrupting(&mut self) -> Option<HostFunction> {
        self.interrupting.pop_first()
    }

    /// The next MSI-X vector of a device that is to be signalled.
    pub fn poll_interrupt(&mut self, at: HostFunction) -> Option<u16> {
        let vf = VfId::new(at.function.0)?;
        let device = self.hosts[at.host.0].pf_mut()?.devices.get_mut(&vf)?;
        device.interrupts.pop_first()
    }
}

/// The device on a function, if it is a VF that has one.
pub(super) fn device_of(host: &Host, function: FunctionId) -> Option<&Device> {
    host.pf()?.devices.get(&VfId::new(function.0)?)
}

#[cfg(test)]
mod tests;
