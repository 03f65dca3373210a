//! VFs that a VMM drives: each has a PCI function, which stands between the guest's driver and the VF.

use hca_api::Hca;
use ib_vtime::Instant;
use pf_context::PlaceError;
use vf_pci::{PciChanges, PciDevice, PciFunction};
use vf_tunnel::VfId;

use super::{HostFunction, HostId, World};

impl World {
    /// Gives a VF on which nothing runs to a VMM: `function` is what the guest's driver will find.
    ///
    /// # Errors
    /// [`PlaceError`], also for a host that has no PF or is of another world.
    pub fn add_device(
        &mut self,
        host: HostId,
        vf: VfId,
        function: Box<dyn PciFunction>,
    ) -> Result<HostFunction, PlaceError> {
        self.add_consumer(host, vf, Box::new(PciDevice::new(function)))
    }

    /// Returns the device on a VF.
    #[must_use]
    pub fn device(&self, at: HostFunction) -> Option<&PciDevice> {
        self.consumer(at)
    }

    /// Calls something with the device on a VF and the VF's function. What it makes of that, other than
    /// what the call gives, comes with the next poll. `None` if there is no such device.
    pub fn with_device<T>(
        &mut self,
        at: HostFunction,
        call: impl FnOnce(&mut dyn PciFunction, &mut dyn Hca, Instant) -> T,
    ) -> Option<T> {
        self.with_consumer(at, |device: &mut PciDevice, hca, now| {
            call(device.function_mut(), hca, now)
        })
    }

    /// Resets a device, and its VF with it, at once: when this returns, the VF's queue pairs are gone, and nothing that they
    /// did reaches its guest's memory or answers peers from it. A VF without a device is left alone.
    pub fn reset_device(&mut self, at: HostFunction) {
        if self
            .with_device(at, |function, hca, now| function.reset(now, hca))
            .is_some()
        {
            self.carry_out_reset(at);
        }
    }

    /// Returns the next device that has MSI-X vectors to be signalled.
    pub fn poll_interrupting(&mut self) -> Option<HostFunction> {
        self.interrupting.pop_first()
    }

    /// Returns the next device that has changes, with them.
    #[must_use]
    pub fn poll_changed_device(&mut self) -> Option<(HostFunction, PciChanges)> {
        while let Some(at) = self.changed.pop_first() {
            let consumer = self.hosts.get_mut(at.host.0);
            let consumer = consumer.and_then(|host| host.consumer_mut(at.function));
            if let Some(device) = consumer.and_then(|it| it.downcast_mut::<PciDevice>()) {
                return Some((at, device.take_changes()));
            }
        }
        None
    }

    /// Returns the next MSI-X vector of a device that is to be signalled.
    pub fn poll_interrupt(&mut self, at: HostFunction) -> Option<u16> {
        let consumer = self.hosts.get_mut(at.host.0)?.consumer_mut(at.function)?;
        consumer.downcast_mut::<PciDevice>()?.poll_interrupt()
    }
}

#[cfg(test)]
mod tests;
