//! Commands as programs write them, and their answers.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::abi::{COMMAND_MASK, CommandHeader, EXTENDED, ExtendedHeader};
use crate::{ChannelId, Errno};

/// A command, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'b> {
    /// Number, without the flag of the extended form.
    pub number: u32,
    /// `true` for the extended form.
    pub extended: bool,
    /// The core's part; of the other form with the provider's part behind.
    payload: &'b [u8],
    /// Bytes that the program has for the answer of the core; of the other form for all of it.
    room: usize,
    /// Bytes that the program has for the provider's part; of the extended form.
    provider_room: usize,
    /// Address of the answer.
    response: u64,
}

impl<'b> Command<'b> {
    /// Takes apart what a program wrote.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for lengths that are not those of the bytes, as in the kernel.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Errno> {
        let (header, rest) = CommandHeader::ref_from_prefix(bytes).map_err(|_| Errno::EINVAL)?;
        let word = header.command.get();
        if word & !(COMMAND_MASK | EXTENDED) != 0 {
            return Err(Errno::EINVAL);
        }
        let (in_words, out_words) = (header.in_words.get(), header.out_words.get());
        let number = word & COMMAND_MASK;
        if word & EXTENDED == 0 {
            if usize::from(in_words) * 4 != bytes.len() {
                return Err(Errno::EINVAL);
            }
            let response = rest.first_chunk().copied().map_or(0, u64::from_ne_bytes);
            return Ok(Self {
                number,
                extended: false,
                payload: rest,
                room: usize::from(out_words) * 4,
                provider_room: 0,
                response,
            });
        }
        let (second, payload) = ExtendedHeader::ref_from_prefix(rest).map_err(|_| Errno::EINVAL)?;
        let core = usize::from(in_words) * 8;
        let provider = usize::from(second.provider_in_words.get()) * 8;
        if core + provider != payload.len() || second.reserved.get() != 0 {
            return Err(Errno::EINVAL);
        }
        let (payload, _) = payload.split_at(core);
        Ok(Self {
            number,
            extended: true,
            payload,
            room: usize::from(out_words) * 8,
            provider_room: usize::from(second.provider_out_words.get()) * 8,
            response: second.response.get(),
        })
    }

    /// Returns the place for the answer in the program: address and bytes.
    #[must_use]
    pub const fn place_of_answer(&self) -> (u64, usize) {
        (self.response, self.room + self.provider_room)
    }

    /// Returns the payload as a layout, and what stands behind it.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it is too short.
    pub fn read<T>(&self) -> Result<(T, &'b [u8]), Errno>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        T::read_from_prefix(self.payload).map_err(|_| Errno::EINVAL)
    }

    /// Returns the payload as a layout whose end a program may leave out; those bytes are zero.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it has fewer than `least` bytes.
    pub fn read_padded<T: FromBytes + IntoBytes + Default>(
        &self,
        least: usize,
    ) -> Result<T, Errno> {
        let mut layout = T::default();
        let bytes = layout.as_mut_bytes();
        let given = self.payload.len().min(bytes.len());
        if given < least {
            return Err(Errno::EINVAL);
        }
        bytes[..given].copy_from_slice(&self.payload[..given]);
        Ok(layout)
    }

    /// Lays out an answer in the place that the program has for it.
    ///
    /// # Errors
    /// [`Errno::ENOSPC`] if that is too small.
    pub fn answer(&self, answer: &Answer) -> Result<Vec<u8>, Errno> {
        let mut bytes = answer.core.clone();
        if self.extended {
            bytes.resize(self.room, 0);
            let provider = answer.provider.len().min(self.provider_room);
            bytes.extend_from_slice(&answer.provider[..provider]);
        } else {
            if self.room < bytes.len() {
                return Err(Errno::ENOSPC);
            }
            bytes.extend_from_slice(&answer.provider);
            bytes.truncate(self.room);
        }
        Ok(bytes)
    }

    /// Returns the bytes of the core's answer for which the program has room.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.room
    }
}

/// The two parts of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    core: Vec<u8>,
    provider: Vec<u8>,
}

impl Answer {
    /// Returns an answer of the core alone.
    #[must_use]
    pub fn new(core: &(impl IntoBytes + Immutable)) -> Self {
        Self {
            core: core.as_bytes().to_vec(),
            provider: Vec::new(),
        }
    }

    /// Adds the provider's part.
    #[must_use]
    pub fn with(mut self, provider: &(impl IntoBytes + Immutable)) -> Self {
        self.provider = provider.as_bytes().to_vec();
        self
    }
}

/// Events of an object that is gone: those that the program has not read must vanish, and count less in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetiredEvents {
    /// Channel.
    pub channel: ChannelId,
    /// The program's name for the object.
    pub element: u64,
    /// Offset of their number in the answer.
    pub offset: u32,
}

/// Result of a command that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Bytes for the program.
    pub answer: Vec<u8>,
    /// A channel that was opened: its number stands where the program expects a descriptor, at the start of the answer.
    pub opened: Option<ChannelId>,
    /// Events of the objects that the command destroyed.
    pub retired: Vec<RetiredEvents>,
}
