//! Replies, and commands of a server to its client.

use rustix::io::Errno;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::assembler::{Message, head};
use super::layout::{Command, DmaAccess, Header, HeaderFlags};

/// A reply to a command, with a payload in parts.
#[must_use]
pub fn reply(to: &Header, parts: &[&[u8]]) -> Vec<u8> {
    message(
        Header {
            id: to.id,
            command: to.command,
            flags: U32::new(HeaderFlags::REPLY.bits()),
            ..Header::default()
        },
        parts,
    )
}

/// A reply that says that a command failed.
#[must_use]
pub fn error_reply(to: &Header, error: Errno) -> Vec<u8> {
    message(
        Header {
            id: to.id,
            command: to.command,
            flags: U32::new((HeaderFlags::REPLY | HeaderFlags::ERROR).bits()),
            error: U32::new(error.raw_os_error().unsigned_abs()),
            ..Header::default()
        },
        &[],
    )
}

/// Asks the client for bytes of its memory.
#[must_use]
pub fn dma_read(id: u16, address: u64, count: u64) -> Vec<u8> {
    dma(Command::DMA_READ, id, address, count, &[])
}

/// Has the client write bytes to its memory.
#[must_use]
pub fn dma_write(id: u16, address: u64, data: &[u8]) -> Vec<u8> {
    dma(Command::DMA_WRITE, id, address, data.len() as u64, data)
}

fn dma(command: Command, id: u16, address: u64, count: u64, data: &[u8]) -> Vec<u8> {
    let access = DmaAccess {
        address: U64::new(address),
        count: U64::new(count),
    };
    let header = Header {
        id: U16::new(id),
        command: U16::new(command.0),
        ..Header::default()
    };
    message(header, &[access.as_bytes(), data])
}

/// The data of a reply to [`dma_read`] or, if it says that all is well, none to [`dma_write`].
#[must_use]
pub fn parse_dma_reply<F>(message: &Message<F>) -> Option<&[u8]> {
    if message.header.flags().contains(HeaderFlags::ERROR) {
        return None;
    }
    // The count of a reply to a write has four bytes in the specification and eight in its header file.
    match message.header.command() {
        Command::DMA_READ => head::<DmaAccess>(&message.payload).map(|(_, data)| data),
        Command::DMA_WRITE => Some(&[]),
        _ => None,
    }
}

/// Returns a message of parts behind a header, whose size is set here.
pub(super) fn message(mut header: Header, parts: &[&[u8]]) -> Vec<u8> {
    let size = size_of::<Header>() + parts.iter().map(|part| part.len()).sum::<usize>();
    // Messages are far shorter than 4 GiB.
    header.size = U32::new(u32::try_from(size).unwrap_or(u32::MAX));
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(header.as_bytes());
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}
