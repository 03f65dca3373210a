//! The protocol between the library in a program and the service: datagrams on a Unix socket of kind SEQPACKET, one connection
//! for each process.
//!
//! * A [`Request`] is a header and a body. One with an answer comes with a socket of its own for the [`CallReply`], so that
//!   threads and forked children cannot take each other's; [`Verb::Claim`] brings the descriptor of the process's memory, too.
//! * Descriptors come with the reply: the memory file with [`Verb::Open`], and with a command that opens a channel the end
//!   that the program reads. Nobody but the service has the other end, so that its end is told to whoever reads.
//! * The end of the connection is the end of the process for the service.
//!
//! Both ends are on one host, so integers are in its byte order.

use linux_abi::abi_layout;
use zerocopy::native_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::{ChannelId, Errno, RetiredEvents};

const MAGIC: u32 = u32::from_ne_bytes(*b"vrb2");

/// Bytes of the longest request.
pub const MAX_REQUEST: usize = size_of::<RequestHeader>() + 4096;

/// Purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Takes a VF for the process; the body names it. Comes with the descriptor of the process's memory.
    Claim,
    /// Opens a file of the device.
    Open,
    /// Says that the process has mapped the memory file, which no process can map for writing, write or punch from then on.
    Mapped,
    /// Carries out a command of a file; the body is what the program wrote.
    Command {
        /// File.
        context: u32,
    },
    /// Rings the doorbell of a queue pair, without an answer.
    Doorbell {
        /// File.
        context: u32,
        /// Handle of the queue pair.
        qp: u32,
    },
    /// Arms a completion queue, without an answer; the body is [`ArmLayout`].
    Arm {
        /// File.
        context: u32,
        /// Handle of the queue.
        cq: u32,
    },
    /// Closes a file, without an answer.
    Close {
        /// File.
        context: u32,
    },
    /// Closes a channel, without an answer.
    CloseChannel {
        /// Channel.
        channel: u32,
    },
    /// Answers a netlink message; the body is the message.
    Netlink,
    /// Opens a file of the RDMA CM, whose events its channel carries. The body is a [`Namespace`](crate::Namespace), or empty.
    OpenCm,
    /// Returns a record that the library took from a channel; the body is the record. There is no answer. See
    /// [`PutBackLimit`].
    PutBack {
        /// Channel.
        channel: u32,
    },
    /// Carries out a command of such a file; the body is what the program wrote.
    CmCommand {
        /// Channel.
        channel: u32,
    },
    /// Asks for the IP interface of the process's VF, without taking one; the body names it as with [`Verb::Claim`]. The body of
    /// the answer is an [`InterfaceLayout`](crate::InterfaceLayout), or empty if the VF has no interface.
    Interface,
}

abi_layout! {
    /// Body of [`Verb::Arm`]: the completions that wake the program.
    pub ArmLayout, 8 {
        /// Not 0 for solicited completions only.
        pub solicited_only: U32,
        /// Producer index of the ring as the program saw it: a completion that came since wakes it, too.
        pub seen: U32,
    }
}

abi_layout! {
    RequestHeader, 16 {
        magic: U32,
        verb: U32,
        first: U32,
        second: U32,
    }
}

/// A datagram from the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// Purpose.
    pub verb: Verb,
    /// Text, command or message.
    pub body: &'b [u8],
}

impl<'b> Request<'b> {
    /// Returns the bytes before the body.
    #[must_use]
    pub fn header(&self) -> [u8; 16] {
        let (verb, first, second) = match self.verb {
            Verb::Claim => (1, 0, 0),
            Verb::Open => (2, 0, 0),
            Verb::Command { context } => (3, context, 0),
            Verb::Doorbell { context, qp } => (4, context, qp),
            Verb::Close { context } => (5, context, 0),
            Verb::CloseChannel { channel } => (6, channel, 0),
            Verb::Netlink => (7, 0, 0),
            Verb::OpenCm => (8, 0, 0),
            Verb::CmCommand { channel } => (9, channel, 0),
            Verb::PutBack { channel } => (10, channel, 0),
            Verb::Mapped => (11, 0, 0),
            Verb::Arm { context, cq } => (12, context, cq),
            Verb::Interface => (13, 0, 0),
        };
        let header = RequestHeader {
            magic: MAGIC.into(),
            verb: verb.into(),
            first: first.into(),
            second: second.into(),
        };
        zerocopy::transmute!(header)
    }

    /// Takes a datagram apart.
    ///
    /// # Errors
    /// [`Errno::EPROTO`] for one that is none of this protocol.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Errno> {
        let (header, body) = RequestHeader::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        if header.magic.get() != MAGIC {
            return Err(Errno::EPROTO);
        }
        let (first, second) = (header.first.get(), header.second.get());
        let verb = match header.verb.get() {
            1 => Verb::Claim,
            2 => Verb::Open,
            3 => Verb::Command { context: first },
            4 => Verb::Doorbell {
                context: first,
                qp: second,
            },
            5 => Verb::Close { context: first },
            6 => Verb::CloseChannel { channel: first },
            7 => Verb::Netlink,
            8 => Verb::OpenCm,
            9 => Verb::CmCommand { channel: first },
            10 => Verb::PutBack { channel: first },
            11 => Verb::Mapped,
            12 => Verb::Arm {
                context: first,
                cq: second,
            },
            13 => Verb::Interface,
            _ => return Err(Errno::EPROTO),
        };
        Ok(Self { verb, body })
    }
}

abi_layout! {
    RetiredLayout, 16 {
        channel: U32,
        offset: U32,
        element: U64,
    }
}

abi_layout! {
    ReplyHeader, 16 {
        magic: U32,
        errno: U32,
        /// Number of the file or of the channel that was opened, or 0.
        opened: U32,
        /// Entries about events of objects that are gone, which follow.
        retired: U32,
    }
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallReply {
    /// Error, if there is one.
    pub error: Option<Errno>,
    /// Number of the file or of the channel that was opened, or 0.
    pub opened: u32,
    /// Events of objects that are gone.
    pub retired: Vec<RetiredEvents>,
    /// Bytes for the program.
    pub body: Vec<u8>,
}

impl CallReply {
    /// Returns the reply that carries an error.
    #[must_use]
    pub fn failed(error: Errno) -> Self {
        Self {
            error: Some(error),
            ..Self::default()
        }
    }

    /// Returns the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let retired = self.retired.iter().map(|retired| RetiredLayout {
            channel: retired.channel.0.into(),
            offset: retired.offset.into(),
            element: retired.element.into(),
        });
        let retired: Vec<RetiredLayout> = retired.collect();
        let header = ReplyHeader {
            magic: MAGIC.into(),
            errno: self.error.map_or(0, Errno::to_u32).into(),
            opened: self.opened.into(),
            // Objects of a process are fewer by far.
            retired: u32::try_from(retired.len()).unwrap_or(u32::MAX).into(),
        };
        [header.as_bytes(), retired.as_bytes(), &self.body].concat()
    }

    /// Takes a datagram apart.
    ///
    /// # Errors
    /// [`Errno::EPROTO`] for one that is none of this protocol.
    pub fn decode(bytes: &[u8]) -> Result<Self, Errno> {
        let (header, body) = ReplyHeader::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        if header.magic.get() != MAGIC {
            return Err(Errno::EPROTO);
        }
        let count = usize::try_from(header.retired.get()).map_err(|_| Errno::EPROTO)?;
        let (retired, body) = <[RetiredLayout]>::ref_from_prefix_with_elems(body, count)
            .map_err(|_| Errno::EPROTO)?;
        let retired = retired.iter().map(|layout| RetiredEvents {
            channel: ChannelId(layout.channel.get()),
            element: layout.element.get(),
            offset: layout.offset.get(),
        });
        Ok(Self {
            error: Errno::from_u32(header.errno.get()),
            opened: header.opened.get(),
            retired: retired.collect(),
            body: body.to_vec(),
        })
    }
}

/// Bytes of records that a process may put back: at most the bytes sent to it, less those already put back.
///
/// The channels of a process have one limit together, since a record goes to another channel with the id that it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutBackLimit {
    bytes: u64,
}

impl PutBackLimit {
    /// Bytes of records.
    pub const RECORD: core::ops::RangeInclusive<usize> = 8..=512;

    /// Notes that a record was sent.
    pub const fn note_sent(&mut self, record: &[u8]) {
        self.bytes = self.bytes.saturating_add(record.len() as u64);
    }

    /// Takes a record back.
    ///
    /// # Errors
    /// [`Errno::EPROTO`] for one that the process cannot have had.
    pub fn take_back(&mut self, record: &[u8]) -> Result<(), Errno> {
        let left = self.bytes.checked_sub(record.len() as u64);
        match left.filter(|_| Self::RECORD.contains(&record.len())) {
            Some(left) => self.bytes = left,
            None => return Err(Errno::EPROTO),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_come_back_as_they_were_sent() {
        for verb in [
            Verb::Claim,
            Verb::Open,
            Verb::Command { context: 3 },
            Verb::Doorbell { context: 3, qp: 9 },
            Verb::Arm { context: 3, cq: 9 },
            Verb::Close { context: 3 },
            Verb::CloseChannel { channel: 4 },
            Verb::Netlink,
            Verb::OpenCm,
            Verb::CmCommand { channel: 5 },
            Verb::PutBack { channel: 5 },
            Verb::Mapped,
            Verb::Interface,
        ] {
            let request = Request {
                verb,
                body: b"text",
            };
            let bytes = [&request.header()[..], request.body].concat();
            assert_eq!(Request::decode(&bytes), Ok(request));
        }
        let reply = CallReply {
            error: Some(Errno::EBUSY),
            opened: 7,
            retired: [0x5555, 0x6666]
                .map(|element| RetiredEvents {
                    channel: ChannelId(2),
                    element,
                    offset: 4,
                })
                .to_vec(),
            body: vec![1, 2, 3],
        };
        let bytes = reply.encode();
        let cut = &bytes[..40];
        assert_eq!(CallReply::decode(cut), Err(Errno::EPROTO));
        assert_eq!(CallReply::decode(&bytes), Ok(reply));
    }

    #[test]
    fn records_that_were_never_sent_are_not_taken_back() {
        let mut limit = PutBackLimit::default();
        let refused = Err(Errno::EPROTO);
        assert_eq!(limit.take_back(&[0; 8]), refused);
        limit.note_sent(&[0; 512]);
        limit.note_sent(&[0; 512]);
        assert_eq!(limit.take_back(&[0; 513]), refused, "longer than any");
        assert_eq!(limit.take_back(&[0; 7]), refused, "shorter than any");
        assert_eq!(limit.take_back(&[0; 512]), Ok(()));
        assert_eq!(limit.take_back(&[0; 500]), Ok(()));
        assert_eq!(limit.take_back(&[0; 13]), refused, "12 bytes are left");
        assert_eq!(limit.take_back(&[0; 12]), Ok(()));
        assert_eq!(limit, PutBackLimit::default());
    }

    #[test]
    fn other_datagrams_are_none_of_the_protocol() {
        assert_eq!(Request::decode(&[0; 15]), Err(Errno::EPROTO));
        assert_eq!(Request::decode(&[0; 16]), Err(Errno::EPROTO));
        let request = Request {
            verb: Verb::Open,
            body: &[],
        };
        let mut header = request.header();
        header[4] = 99;
        assert_eq!(Request::decode(&header), Err(Errno::EPROTO));
        assert_eq!(CallReply::decode(&[0; 64]), Err(Errno::EPROTO));
    }
}
