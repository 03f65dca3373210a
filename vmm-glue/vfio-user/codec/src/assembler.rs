//! From a stream of bytes and descriptors to messages.

use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::layout::{Header, HeaderFlags, MAX_MESSAGE};

/// Why a connection cannot be understood from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A message is shorter than its header.
    #[error("a message says that it has {0} bytes, less than its header")]
    Short(u32),
    /// A message is longer than any that was agreed on.
    #[error("a message says that it has {0} bytes; {MAX_MESSAGE} are the most")]
    Long(u32),
    /// A message is neither a command nor a reply.
    #[error("a message is of no known type: its flags are {0:#x}")]
    Type(u32),
    /// Too many descriptors come with a message.
    #[error("more than {0} descriptors come with a message")]
    Descriptors(usize),
}

/// A message with the descriptors that came with it.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<F> {
    /// The header.
    pub header: Header,
    /// What follows it.
    pub payload: Vec<u8>,
    /// Descriptors, in the order in which they came.
    pub fds: Vec<F>,
}

/// Makes messages from what a socket gives.
///
/// It asks for one message's bytes at a time ([`Self::space`]), so that descriptors, which a socket gives with
/// bytes, belong to the message whose bytes they come with.
#[derive(Debug)]
pub struct Assembler<F> {
    header: Header,
    /// Zeros where bytes have not come yet.
    payload: Vec<u8>,
    /// Bytes of the message that have come, the header included.
    have: usize,
    fds: Vec<F>,
    most_fds: usize,
}

impl<F> Assembler<F> {
    /// An assembler that waits for a first message, and takes so many descriptors with each.
    #[must_use]
    pub fn new(most_fds: usize) -> Self {
        Self {
            header: Header::default(),
            payload: Vec::new(),
            have: 0,
            fds: Vec::new(),
            most_fds,
        }
    }

    /// Whether a part of a message has come.
    #[must_use]
    pub const fn is_amid(&self) -> bool {
        self.have > 0
    }

    /// Where the next bytes go; never empty. To be followed by [`Self::filled`].
    pub fn space(&mut self) -> &mut [u8] {
        match self.have.checked_sub(size_of::<Header>()) {
            Some(have) => self.payload.get_mut(have..).unwrap_or_default(),
            None => &mut self.header.as_mut_bytes()[self.have..],
        }
    }

    /// Takes the first `count` bytes of [`Self::space`] for come, and descriptors that came with them. Gives the
    /// message when it is complete.
    ///
    /// # Errors
    /// [`ProtocolError`]; the connection has to end then.
    pub fn filled(
        &mut self,
        count: usize,
        fds: impl IntoIterator<Item = F>,
    ) -> Result<Option<Message<F>>, ProtocolError> {
        let in_header = self.have < size_of::<Header>();
        self.have += count;
        for fd in fds {
            if self.fds.len() == self.most_fds {
                return Err(ProtocolError::Descriptors(self.most_fds));
            }
            self.fds.push(fd);
        }
        if in_header && self.have >= size_of::<Header>() {
            let len = payload_len(&self.header)?;
            self.payload = vec![0; len];
        }
        let whole = size_of::<Header>() + self.payload.len();
        Ok((self.have >= whole).then(|| self.take()))
    }

    fn take(&mut self) -> Message<F> {
        let whole = core::mem::replace(self, Self::new(self.most_fds));
        Message {
            header: whole.header,
            payload: whole.payload,
            fds: whole.fds,
        }
    }
}

fn payload_len(header: &Header) -> Result<usize, ProtocolError> {
    let kind = header.flags.get() & HeaderFlags::TYPE;
    if kind > HeaderFlags::REPLY.bits() {
        return Err(ProtocolError::Type(header.flags.get()));
    }
    let size = header.size.get();
    let bytes = usize::try_from(size).map_err(|_| ProtocolError::Long(size))?;
    if bytes > MAX_MESSAGE {
        return Err(ProtocolError::Long(size));
    }
    bytes
        .checked_sub(size_of::<Header>())
        .ok_or(ProtocolError::Short(size))
}

/// Reads a layout from the beginning of bytes.
pub(super) fn head<T: FromBytes>(bytes: &[u8]) -> Option<(T, &[u8])> {
    T::read_from_prefix(bytes).ok()
}
