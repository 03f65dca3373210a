//! The way from a socket to a device.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vhca_device::{Device, Doorbells, GuestRam, Interrupts};
use vhca_vfio_user_codec::{ClientCommand, Command, DmaMap, DmaMapFlags, IrqInfo};
use vm_memory::{Address, GuestAddressSpace, GuestMemoryBackend, GuestMemoryRegion};
use zerocopy::little_endian::{U32, U64};

use crate::config::{Config, Layout};
use crate::device::{Events, RemoteDevice, Shared};
use crate::doorbells::Placing;
use crate::error::{AttachError, LinkError};
use crate::link::{Link, TIMEOUT};
use crate::socket::Socket;
use crate::watcher::{Watcher, event};

/// Attaches to the VF behind a socket of `vhca serve --vfio-user`, and returns its device. The VF is this VMM's until
/// [`Device::detach`], or until the last clone of the device is dropped; then the service resets it.
///
/// The service maps the regions that `memory` has now, so each has to be in a file that both processes share: a memfd, or a file of
/// tmpfs or hugetlbfs, mapped with `MAP_SHARED`.
///
/// `doorbells` gets the doorbells for which the service watches eventfds, by
/// [`set_signalled`](vhca_device::Doorbells::set_signalled): 64 of a VF at most. Stores to the others are trapped, and come by
/// [`Device::bar_write`].
///
/// # Errors
/// [`AttachError`].
pub fn attach<M>(
    socket: impl AsRef<Path>,
    memory: M,
    interrupts: Arc<dyn Interrupts>,
    doorbells: Arc<dyn Doorbells>,
) -> Result<Device, AttachError>
where
    M: GuestAddressSpace + Send + 'static,
    M::M: GuestMemoryBackend,
{
    let socket = socket.as_ref();
    let connected = Socket::connect(socket).map_err(|error| AttachError::Connect {
        path: socket.to_path_buf(),
        error,
    })?;
    attach_over(connected, TIMEOUT, memory, (interrupts, doorbells))
}

/// Attaches over a connected socket.
pub(crate) fn attach_over<M>(
    socket: Socket,
    timeout: Duration,
    memory: M,
    (interrupts, doorbells): (Arc<dyn Interrupts>, Arc<dyn Doorbells>),
) -> Result<Device, AttachError>
where
    M: GuestAddressSpace + Send + 'static,
    M::M: GuestMemoryBackend,
{
    let mut link = Link::new(socket, timeout).map_err(refusal)?;
    let layout = Layout::of(&mut link)?;
    map(&mut link, &*memory.memory())?;
    let events = events(&*interrupts, layout.vectors)?;
    let config = layout.read(&mut link, &Config::default(), None)?;
    let socket = link.socket().watched()?;
    let memory = Box::new(GuestRam::new(memory));
    if layout.has_doorbells {
        link.signal_by(IrqInfo::DOORBELLS, core::slice::from_ref(&events.changed))?;
    }
    let placing = Placing::new(doorbells);
    let shared = Shared::new(layout, (link, config), interrupts, placing, events, memory);
    let shared = Arc::new(shared);
    shared.place_doorbells();
    let watcher = Watcher::start(Arc::clone(&shared), socket)?;
    Ok(Device::new(Arc::new(RemoteDevice { shared, watcher })))
}

/// Returns the reason for which a service turns a VMM away.
fn refusal(error: LinkError) -> AttachError {
    match error {
        LinkError::Refused(Command::VERSION, Errno::BUSY) => AttachError::InUse,
        LinkError::Refused(Command::VERSION, Errno::AGAIN) => AttachError::Busy,
        error => error.into(),
    }
}

/// Asks the service to map the regions of a guest's memory.
fn map(link: &mut Link, memory: &impl GuestMemoryBackend) -> Result<(), AttachError> {
    for region in memory.iter() {
        let (address, size) = (region.start_addr().raw_value(), region.len());
        let Some(file) = region.file_offset() else {
            return Err(AttachError::NoFile { address, size });
        };
        let map = DmaMap {
            flags: U32::new((DmaMapFlags::READ | DmaMapFlags::WRITE).bits()),
            offset: U64::new(file.start()),
            address: U64::new(address),
            size: U64::new(size),
            ..DmaMap::default()
        };
        let mapped = link.carry_out(&ClientCommand::DmaMap(map), &[file.file().as_fd()]);
        mapped.map_err(|error| match error {
            LinkError::Refused(_, error) => AttachError::Memory { address, error },
            error => error.into(),
        })?;
    }
    Ok(())
}

/// Returns an eventfd for each vector: the VMM's own if it has one, or else one that is to be watched as well.
fn events(interrupts: &dyn Interrupts, vectors: u16) -> Result<Events, AttachError> {
    let mut watched = Vec::new();
    let mut events = Vec::new();
    for vector in 0..vectors {
        let event = match interrupts.notifier(vector) {
            Some(own) => own,
            None => {
                let ours = event()?;
                watched.push((vector, ours.try_clone()?));
                ours
            }
        };
        events.push(event);
    }
    Ok(Events {
        events,
        watched,
        changed: event()?,
    })
}
