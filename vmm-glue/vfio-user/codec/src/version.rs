//! What both sides can do.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::assembler::head;
use super::layout::{ANNOUNCED_FDS, Header, MAX_DATA};
use super::outgoing::reply;

/// Most bytes of what a client says of itself.
const MAX_TEXT: usize = 4096;

/// The fewest bytes of memory in one message with which a client is served. What a device reads at once, a mailbox of
/// 4 KiB at most, takes one message then: with thousands, all other clients would wait for them.
const MIN_TRANSFER: u64 = 4096;

/// The version that is spoken; clients that know later minor ones accept it, and QEMU refuses any other.
pub(super) const MAJOR: u16 = 0;
const MINOR: u16 = 0;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Numbers {
    major: U16,
    minor: U16,
}

/// Abilities of an end. All else that it says is for versions to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// The most bytes that it takes in one message that reads or writes memory.
    pub max_data_xfer_size: u64,
    /// Whether it sends several writes in one message.
    pub write_multiple: bool,
    /// The most descriptors that it takes with one message.
    pub max_msg_fds: u64,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_data_xfer_size: 1 << 20,
            max_msg_fds: 1,
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

/// Capabilities that a client announces: a server of registers needs no others.
#[derive(Serialize)]
struct Proposal {
    capabilities: Proposed,
}

#[derive(Serialize)]
struct Proposed {
    max_msg_fds: usize,
    max_data_xfer_size: usize,
    pgsizes: u64,
}

/// Returns the content of a client's proposal.
pub(super) fn proposal() -> Vec<u8> {
    with_numbers(&Proposal {
        capabilities: Proposed {
            max_msg_fds: ANNOUNCED_FDS,
            max_data_xfer_size: MAX_DATA,
            pgsizes: 4096,
        },
    })
    .unwrap_or_default()
}

/// Returns the numbers of the version, and capabilities as text behind them.
fn with_numbers(capabilities: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let numbers = Numbers {
        major: U16::new(MAJOR),
        minor: U16::new(MINOR),
    };
    let mut content = numbers.as_bytes().to_vec();
    serde_json::to_writer(&mut content, capabilities)?;
    content.push(0);
    Ok(content)
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
    /// Its capabilities.
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
        let content = with_numbers(&offer).map_err(|_| Errno::INVAL)?;
        Ok(reply(header, &[&content]))
    }
}
