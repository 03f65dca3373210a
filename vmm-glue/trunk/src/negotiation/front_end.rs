//! The end that connects, and owns the memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;

use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::{FEATURES, NegotiationError, PATIENCE, PROTOCOL, VERSION};
use crate::parts::{RingParts, Side};
use crate::ring::memory::{self, Plan, QUEUES};

/// Sets up a trunk with the service that listens at a path, as its front end: for a VMM, before its loop or in a thread, since the call
/// blocks for up to some seconds. [`Carrier::over_rings`](crate::Carrier::over_rings) takes the parts.
///
/// # Errors
/// [`NegotiationError`].
pub fn connect(path: &Path) -> Result<RingParts, NegotiationError> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let lifeline = stream.try_clone()?;
    let mut front_end = Frontend::from_stream(stream, QUEUES as u64);
    agree(&mut front_end)?;

    let plan = Plan::new();
    let file = memory::create(plan.bytes)?;
    // Addresses of the front end's own memory are names here: it has the memory where it maps it later.
    front_end.set_mem_table(&[VhostUserMemoryRegionInfo {
        guest_phys_addr: memory::BASE,
        memory_size: plan.bytes,
        userspace_addr: memory::BASE,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    }])?;
    let (mut kicks, mut calls) = (Vec::new(), Vec::new());
    for (number, (addresses, _)) in plan.queues.iter().enumerate() {
        let [kick, call] = [(); 2].map(|()| EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK));
        let (kick, call) = (kick?, call?);
        front_end.set_vring_num(number, addresses.size)?;
        front_end.set_vring_base(number, 0)?;
        front_end.set_vring_addr(
            number,
            &VringConfigData {
                queue_max_size: addresses.size,
                queue_size: addresses.size,
                flags: 0,
                desc_table_addr: addresses.descriptors,
                used_ring_addr: addresses.used,
                avail_ring_addr: addresses.available,
                log_addr: None,
            },
        )?;
        front_end.set_vring_call(number, &call)?;
        front_end.set_vring_kick(number, &kick)?;
        kicks.push(owned(&kick)?);
        calls.push(owned(&call)?);
    }
    for number in 0..QUEUES {
        front_end.set_vring_enable(number, true)?;
    }
    let array = |eventfds: Vec<OwnedFd>| <[OwnedFd; QUEUES]>::try_from(eventfds);
    let missing = |_| io::Error::from(io::ErrorKind::UnexpectedEof);
    Ok(RingParts {
        side: Side::Driver,
        lifeline: lifeline.into(),
        memory: file,
        base: memory::BASE,
        bytes: plan.bytes,
        queues: plan.queues.map(|(addresses, _)| addresses),
        kicks: array(kicks).map_err(missing)?,
        calls: array(calls).map_err(missing)?,
    })
}

/// Agrees on features and on the version.
fn agree(front_end: &mut Frontend) -> Result<(), NegotiationError> {
    let missing = |what: &str| {
        let words = format!("the other end is not the listener of a trunk: it has no {what}");
        NegotiationError::Protocol(words)
    };
    if front_end.get_features()? & FEATURES != FEATURES {
        return Err(missing(
            "version 1 of virtio, event indices or protocol features",
        ));
    }
    front_end.set_owner()?;
    front_end.set_features(FEATURES)?;
    if !front_end.get_protocol_features()?.contains(PROTOCOL) {
        return Err(missing("configuration, acknowledgements or several queues"));
    }
    front_end.set_protocol_features(PROTOCOL)?;
    front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let empty = [0; size_of::<u16>()];
    let flags = VhostUserConfigFlags::empty();
    let (_, config) = front_end.get_config(0, 2, flags, &empty)?;
    let version = config.first_chunk().copied().map_or(0, u16::from_le_bytes);
    if version != VERSION {
        return Err(NegotiationError::Version(version));
    }
    match front_end.get_queue_num()? >= QUEUES as u64 {
        true => Ok(()),
        false => Err(missing("four queues")),
    }
}

/// Returns an eventfd as a descriptor, which its type is not: one comes back from a socket as it was sent.
fn owned(eventfd: &EventFd) -> io::Result<OwnedFd> {
    let (sending, receiving) = UnixDatagram::pair()?;
    sending.send_with_fd(&[0_u8][..], eventfd.as_raw_fd())?;
    let (_, file) = receiving.recv_with_fd(&mut [0])?;
    file.map(OwnedFd::from)
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
