//! Files of `/dev/infiniband/rdma_cm`.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use verbs_link::Verb;
use verbs_link::abi::rdma_cm::{CmCommandHeader, cm_command};
use zerocopy::FromBytes;

use crate::verbs::{self, Channel};

/// Offset of the address of the answer: CREATE_ID has the program's name for the id before it.
const RESPONSE_AT: usize = 8;
const RESPONSE_OF_CREATE_AT: usize = 16;

/// Offset of the old channel's descriptor in MIGRATE_ID.
const OLD_CHANNEL_AT: usize = 20;

/// Opens a file. Returns the program's descriptor.
pub(crate) fn open(flags: OFlags) -> Result<OwnedFd, Errno> {
    let program = verbs::open_rdma_cm()?;
    if !flags.contains(OFlags::CLOEXEC) {
        rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty())?;
    }
    if flags.contains(OFlags::NONBLOCK) {
        rustix::fs::fcntl_setfl(&program, OFlags::NONBLOCK)?;
    }
    Ok(program)
}

/// Carries out a command. Copies the answer to where the command says.
///
/// # Safety
/// The command names memory of the caller's that is as long as the command says, as the kernel's interface demands.
pub(crate) unsafe fn write(channel: &Channel, bytes: &[u8]) -> Result<(), Errno> {
    let header = CmCommandHeader::ref_from_prefix(bytes);
    let (header, payload) = header.map_err(|_| Errno::INVAL)?;
    if usize::from(header.in_bytes.get()) > payload.len() {
        return Err(Errno::INVAL);
    }
    let number = header.command.get();
    let room = usize::from(header.out_bytes.get());
    let response_at = match number {
        cm_command::CREATE_ID => RESPONSE_OF_CREATE_AT,
        _ => RESPONSE_AT,
    };
    let response = bytes
        .get(response_at..)
        .and_then(|rest| rest.first_chunk().copied());
    let response = response.map_or(0, u64::from_ne_bytes);
    let body = if number == cm_command::GET_EVENT {
        channel.next_record()?
    } else {
        let mut translated = bytes.to_vec();
        if number == cm_command::MIGRATE_ID {
            verbs::translate_channel(&mut translated, OLD_CHANNEL_AT)?;
        }
        let verb = Verb::CmCommand {
            channel: channel.number(),
        };
        let mut reply = channel.call(verb, &translated)?;
        let next = (number == cm_command::MIGRATE_ID).then_some(channel);
        verbs::settle(&mut reply.body, &reply.retired, next);
        reply.body
    };
    // SAFETY: by this function's contract `room` bytes are there.
    unsafe { verbs::answer(response, room, &body) }
}
