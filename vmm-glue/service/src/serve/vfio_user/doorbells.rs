//! Doorbells of VFs whose VMM has eventfds for them.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use vf_pci::Doorbell;
use vhca::watch::EventSet;
use vhca::world::HostFunction;
use vhca_receiver::{Work, during};
use vhca_vfio_user::DoorbellChange;

use super::{Owner, VfioUserSockets};
use crate::serve::descriptors::DescriptorLimit;
use crate::serve::way_in::Turn;

/// Makes the eventfd of a doorbell, unless descriptors run short.
pub(super) fn event() -> Result<OwnedFd, Errno> {
    let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    match DescriptorLimit::current().may_stay(event.as_raw_fd()) {
        true => Ok(event),
        false => Err(Errno::MFILE),
    }
}

impl VfioUserSockets {
    /// Watches the eventfds of doorbells that a VMM has now, and no others of it.
    pub(super) fn watch_doorbells(&mut self, turn: &mut Turn<'_>, at: HostFunction) {
        let door = self.doors.get_mut(&at);
        let Some(client) = door.and_then(|door| door.client.as_mut()) else {
            return;
        };
        while let Some(change) = client.session.poll_doorbell_change() {
            match change {
                DoorbellChange::Added(doorbell) => {
                    if let Some(event) = client.session.event(&doorbell) {
                        turn.watches
                            .add(event, EventSet::IN | EventSet::EDGE_TRIGGERED);
                        let owner = Owner::Doorbell(at, doorbell);
                        self.owners.insert(event.as_raw_fd(), owner);
                    }
                }
                DoorbellChange::Removed(event) => {
                    self.owners.remove(&event.as_raw_fd());
                    turn.watches.remove(event);
                }
            }
        }
    }

    /// Takes the signal of a doorbell's eventfd.
    pub(super) fn note_rung(&mut self, turn: &mut Turn<'_>, at: HostFunction, doorbell: Doorbell) {
        let door = self.doors.get_mut(&at);
        if let Some(client) = door.and_then(|door| door.client.as_mut()) {
            client.session.note_rung(doorbell);
            self.serve_in_turn(turn, at);
        }
    }

    /// Signals VMMs whose guest has other doorbells than before.
    pub(super) fn signal_doorbells(&mut self, turn: &mut Turn<'_>) {
        let world = turn.lab.world_mut();
        while let Some((at, changes)) = world.poll_changed_device() {
            let door = self.doors.get_mut(&at);
            if let Some(client) = door.and_then(|door| door.client.as_mut())
                && changes.doorbells
            {
                let fd = client.connection().as_raw_fd();
                let session = &mut client.session;
                during(Work::WakeUp, fd, || session.raise_doorbells_changed());
            }
        }
    }
}
