//! What both sides can do.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::assembler::head;
use super::{ANNOUNCED_FDS, Header, MAX_DATA, reply};

/// Most bytes of what a client says of itself.
const MAX_TEXT: usize = 4096;

/// The fewest bytes of memory in one message with which a client is served. What a device reads at once, a mailbox of
/// 4 KiB at most, takes one message then: were it thousands, everybody would wait for them.
const MIN_TRANSFER: u64 = 4096;

/// The version that is spoken; clients that know later minor ones accept it, and QEMU refuses any other.
const MAJOR: u16 = 0;
const MINOR: u16 = 0;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Numbers {
    major: U16,
    minor: U16,
}

/// What a client can do. All else that it says is for versions to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// The most bytes that it takes in one message that reads or writes memory.
    pub max_data_xfer_size: u64,
    /// Whether it sends several writes in one message.
    pub write_multiple: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_data_xfer_size: 1 << 20,
            write_multiple: false,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Said {
    capabilities: Capabilities,
}

#[derive(Serialize)]
struct Offer {
    capabilities: Offered,
}

#[derive(Serialize)]
struct Offered {
    max_msg_fds: usize,
    max_data_xfer_size: usize,
    max_dma_maps: usize,
    pgsizes: u64,
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    write_multiple: bool,
}

/// A client's proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The major version, which both must have.
    pub major: u16,
    /// The latest minor version that it knows.
    pub minor: u16,
    /// What it can do.
    pub capabilities: Capabilities,
}

impl Version {
    /// Reads a proposal.
    ///
    /// # Errors
    /// [`Errno::INVAL`].
    pub fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let (numbers, text) = head::<Numbers>(payload).ok_or(Errno::INVAL)?;
        if text.len() > MAX_TEXT {
            return Err(Errno::INVAL);
        }
        // What follows the zero is not part of the text.
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        let said = match text {
            [] => Said::default(),
            text => serde_json::from_slice(text).map_err(|_| Errno::INVAL)?,
        };
        Ok(Self {
            major: numbers.major.get(),
            minor: numbers.minor.get(),
            capabilities: said.capabilities,
        })
    }

    /// Returns `true` if the client takes too few bytes of memory in a message to be served.
    #[must_use]
    pub const fn takes_too_little(&self) -> bool {
        self.capabilities.max_data_xfer_size < MIN_TRANSFER
    }

    /// The reply to a proposal, `max_dma_maps` being how many ranges of memory may be mapped at a time.
    ///
    /// # Errors
    /// [`Errno::OPNOTSUPP`] if the major version is another, [`Errno::INVAL`] if the client
    /// [takes too little](Self::takes_too_little).
    pub fn negotiate(&self, header: &Header, max_dma_maps: usize) -> Result<Vec<u8>, Errno> {
        if self.major != MAJOR {
            return Err(Errno::OPNOTSUPP);
        }
        if self.takes_too_little() {
            return Err(Errno::INVAL);
        }
        let offer = Offer {
            capabilities: Offered {
                max_msg_fds: ANNOUNCED_FDS,
                max_data_xfer_size: MAX_DATA,
                max_dma_maps,
                pgsizes: 4096,
                write_multiple: self.capabilities.write_multiple,
            },
        };
        let mut text = serde_json::to_vec(&offer).map_err(|_| Errno::INVAL)?;
        text.push(0);
        let numbers = Numbers {
            major: U16::new(MAJOR),
            minor: U16::new(MINOR),
        };
        Ok(reply(header, &[numbers.as_bytes(), &text]))
    }
}
