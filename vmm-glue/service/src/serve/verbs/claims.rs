//! VFs that programs can have, and which of them a program gets.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use pf_context::PlaceError;
use verbs_link::{DeviceView, Errno, ProcessDevice};
use vf_tunnel::VfId;
use vhca::world::{HostFunction, HostId};

use super::memory::ProcessMemory;
use super::rings::MappedRings;
use crate::serve::Lab;

/// A VF that programs can have.
#[derive(Debug)]
pub(crate) struct ProcessVf {
    host: HostId,
    host_name: String,
    vf: VfId,
    memory: ProcessMemory,
}

impl Lab {
    /// Offers a VF on which nothing runs, and that reaches `memory`, to programs.
    pub(crate) fn offer_to_programs(
        &mut self,
        host_name: &str,
        host: HostId,
        vf: VfId,
        memory: ProcessMemory,
    ) -> Result<(), PlaceError> {
        let device = Box::new(ProcessDevice::new());
        let at = self.world_mut().add_consumer(host, vf, device)?;
        let offered = ProcessVf {
            host,
            host_name: host_name.to_owned(),
            vf,
            memory,
        };
        self.process_vfs.insert(at, offered);
        Ok(())
    }

    /// Assigns a program the VF that it names as `NODE/N`, or the next free one of `NODE`, or of any node.
    ///
    /// # Errors
    /// [`Errno::ENODEV`] if there is none, [`Errno::EBUSY`] if it is taken, [`Errno::EAGAIN`] if it is being reset.
    pub(super) fn claim_vf(
        &mut self,
        name: &str,
        rings: &Arc<MappedRings>,
        process: OwnedFd,
    ) -> Result<HostFunction, Errno> {
        let (node, number) = split(name);
        let wanted = match node {
            "" => None,
            node => Some(self.node(node).ok_or(Errno::ENODEV)?),
        };
        let world = self.world();
        let is_wanted = |offered: &ProcessVf| {
            let node = world.host(offered.host).node();
            wanted.is_none_or(|wanted| wanted == node)
                && number.is_none_or(|number| number == offered.vf.get())
        };
        let offered = self.process_vfs.iter();
        let candidates: Vec<HostFunction> = offered
            .filter(|(_, offered)| is_wanted(offered))
            .map(|(at, _)| *at)
            .collect();
        if candidates.is_empty() {
            return Err(Errno::ENODEV);
        }
        let mut refused = Errno::EBUSY;
        for at in candidates {
            let device = self.world_mut().consumer_mut::<ProcessDevice>(at);
            let Some(device) = device else { continue };
            if device.claim(rings.clone()) {
                if let Some(offered) = self.process_vfs.get(&at) {
                    offered.memory.set(Some(process));
                }
                return Ok(at);
            }
            if device.is_resetting() {
                refused = Errno::EAGAIN;
            }
        }
        Err(refused)
    }

    /// Takes a VF back from a program that is gone.
    pub(super) fn release_vf(&mut self, at: HostFunction) {
        if let Some(device) = self.world_mut().consumer_mut::<ProcessDevice>(at) {
            device.release();
        }
        if let Some(offered) = self.process_vfs.get(&at) {
            offered.memory.set(None);
        }
    }

    /// Returns the device of a VF as its program sees it before it opens the device.
    pub(super) fn device_view(&mut self, at: HostFunction, name: &str) -> Option<DeviceView> {
        let description = self.process_vfs.get(&at)?.description();
        self.world_mut()
            .with_consumer(at, |_: &mut ProcessDevice, hca, _| {
                DeviceView::of(hca, name.to_owned(), 0, description)
            })
    }
}

impl ProcessVf {
    fn description(&self) -> String {
        format!("{}/{}", self.host_name, self.vf.get())
    }
}

/// Splits the number of a VF off a name.
pub(crate) fn split(name: &str) -> (&str, Option<u16>) {
    let parts = name.rsplit_once('/');
    let parts = parts.and_then(|(node, number)| Some((node, number.parse().ok()?)));
    parts.map_or((name, None), |(node, number)| (node, Some(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_end_with_the_number_of_a_vf() {
        assert_eq!(split("H1-1/3"), ("H1-1", Some(3)));
        assert_eq!(split("H1-1"), ("H1-1", None));
        assert_eq!(split("a/b"), ("a/b", None));
        assert_eq!(split(""), ("", None));
    }
}
