//! The way to the port of a Linux HCA.

use std::os::fd::{AsRawFd, RawFd};

use vhca::watch::{EventSet, Ready};
use vhca::world::HostId;

use super::super::lab::Lab;
use super::super::linux_port::Port;
use super::super::way_in::{Turn, WayIn};

/// Watches the files of a port.
#[derive(Debug)]
pub(crate) struct LinuxWay {
    host: HostId,
    /// Descriptors of the umad files and of events of libibverbs, in the order of their numbers.
    files: Vec<RawFd>,
}

impl LinuxWay {
    /// Watches the port that a host has.
    #[must_use]
    pub(crate) const fn new(host: HostId) -> Self {
        Self {
            host,
            files: Vec::new(),
        }
    }

    /// Returns the ways to all ports of a lab.
    pub(crate) fn all(lab: &mut Lab) -> Vec<Self> {
        let hosts: Vec<_> = lab.inventory.pf_hosts().map(|host| host.id).collect();
        let world = lab.world_mut();
        let has_port = |host: &HostId| world.outside_hca_mut::<Port>(*host).is_some();
        hosts.into_iter().filter(has_port).map(Self::new).collect()
    }
}

impl WayIn for LinuxWay {
    fn start(&mut self, turn: &mut Turn<'_>) {
        let Some(port) = turn.lab.world_mut().outside_hca_mut::<Port>(self.host) else {
            return;
        };
        for (_, file) in port.descriptors() {
            turn.watches.add(&file, EventSet::IN);
            self.files.push(file.as_raw_fd());
        }
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, ready: Ready) {
        let number = self.files.iter().position(|file| *file == ready.fd);
        let port = turn.lab.world_mut().outside_hca_mut::<Port>(self.host);
        if let (Some(number), Some(port)) = (number, port) {
            port.set_ready(number);
        }
    }

    fn flush(&mut self, _: &mut Turn<'_>) {}
}
