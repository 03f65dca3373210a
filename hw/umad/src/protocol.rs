//! The protocol between the library in a program and the server: datagrams on a Unix socket of
//! kind SEQPACKET, one connection for each file that the program opens.
//!
//! * The first datagram is a [`Hello`]: which adapters, and what for. The server answers with a
//!   [`HelloReply`]. What an attribute of sysfs holds, or where the tree of files is, stands
//!   in the reply, and the connection has done its duty.
//! * The connection of an umad file is then the descriptor that the program has. What can be read
//!   are [`Delivery`]s only, so `poll` and `select` tell the truth without help.
//! * The program's side sends [`Frame`]s: messages, in parts if they are long, and calls. A call
//!   comes with a socket of its own for the [`CallReply`], so that no answer mixes with messages and
//!   no state is left in the program.
//! * A message that is too long for a datagram is announced with its head, since the kernel gives
//!   this much to a reader whose buffer is too small. The reader fetches the rest by a call, and
//!   gets a memory file: so it finds all or nothing, and what nobody fetches is the server's, and
//!   counted.
//!
//! Both ends are on one host, so integers are in its byte order.

use ib_wire::mad::MAD_SIZE;
use linux_abi::{Errno, abi_layout};
use zerocopy::native_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::abi::HEADER_SIZE;

const MAGIC: [u8; 8] = *b"vhcaumad";
const VERSION: u16 = 1;

/// Bytes that one part of a written message holds at most.
pub const PART_MAX: usize = 32 << 10;

/// Bytes of the longest datagram in either direction.
pub const MAX_DATAGRAM: usize = size_of::<DeliveryHeader>() + PART_MAX;

/// Bytes of header and message that a delivery holds at most; longer ones are announced.
pub const INLINE_MAX: usize = PART_MAX;

/// Bytes of header and message that an announcement holds.
pub const LONG_HEAD: usize = HEADER_SIZE + MAD_SIZE;

/// Bytes of the longest message, without the header before it: 4 MiB of data and the headers of the
/// first MAD.
pub const MAX_MESSAGE: usize = (4 << 20) + 64;

/// Bytes of the longest list of adapters and of the longest path in a hello.
const MAX_TEXT: usize = 1024;

/// Bytes of the longest answer to a hello.
pub const HELLO_REPLY_SIZE: usize = size_of::<HelloReplyHeader>() + 4096;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'b> {
    /// `/dev/infiniband/umadN`.
    Umad(u32),
    /// `/dev/infiniband/issmN`.
    IsSm(u32),
    /// The content of a file, by its path below `/` and without links in it.
    Attribute(&'b str),
    /// The path of a tree of files that looks like sysfs and the devices.
    Tree,
    /// Names of the ports that the program will use and that a subnet manager has yet to make active, with commas between
    /// them; nothing if there are none.
    PendingPorts,
}

/// The first datagram of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'b> {
    /// The adapters that the program sees, by description or GUID, with commas between them; empty
    /// for the server's choice.
    pub adapters: &'b str,
    /// Name of the device of libibverbs; empty for the next after the adapters.
    pub device: &'b str,
    /// What for.
    pub purpose: Purpose<'b>,
}

abi_layout! {
    HelloHeader, 24 {
        magic: [u8; 8],
        version: U16,
        purpose: u8,
        device: u8,
        number: U32,
        adapters: U32,
        path: U32,
    }
}

impl<'b> Hello<'b> {
    /// The datagram. `None` if a text is too long.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let (purpose, number, path) = match self.purpose {
            Purpose::Umad(number) => (1, number, ""),
            Purpose::IsSm(number) => (2, number, ""),
            Purpose::Attribute(path) => (3, 0, path),
            Purpose::Tree => (4, 0, ""),
            Purpose::PendingPorts => (5, 0, ""),
        };
        if self.adapters.len() > MAX_TEXT || path.len() > MAX_TEXT {
            return None;
        }
        let header = HelloHeader {
            magic: MAGIC,
            version: VERSION.into(),
            purpose,
            device: u8::try_from(self.device.len()).ok()?,
            number: number.into(),
            adapters: u32::try_from(self.adapters.len()).ok()?.into(),
            path: u32::try_from(path.len()).ok()?.into(),
        };
        let texts = [self.adapters, path, self.device].map(str::as_bytes);
        Some([header.as_bytes(), &texts.concat()].concat())
    }

    /// What a datagram says.
    ///
    /// # Errors
    /// [`Errno::EPROTO`] for anything else.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Errno> {
        let (header, rest) = HelloHeader::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        if header.magic != MAGIC || header.version.get() != VERSION {
            return Err(Errno::EPROTO);
        }
        let length = |length: U32| {
            usize::try_from(length.get())
                .ok()
                .filter(|l| *l <= MAX_TEXT)
        };
        let (adapters, path) = (length(header.adapters), length(header.path));
        let (Some(adapters), Some(path)) = (adapters, path) else {
            return Err(Errno::EPROTO);
        };
        if rest.len() != adapters + path + usize::from(header.device) {
            return Err(Errno::EPROTO);
        }
        let (adapters, rest) = rest.split_at(adapters);
        let (path, device) = rest.split_at(path);
        let text = |bytes| core::str::from_utf8(bytes).map_err(|_| Errno::EPROTO);
        let purpose = match header.purpose {
            1 => Purpose::Umad(header.number.get()),
            2 => Purpose::IsSm(header.number.get()),
            3 => Purpose::Attribute(text(path)?),
            4 => Purpose::Tree,
            5 => Purpose::PendingPorts,
            _ => return Err(Errno::EPROTO),
        };
        Ok(Self {
            adapters: text(adapters)?,
            device: text(device)?,
            purpose,
        })
    }
}

/// The answer to a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloReply<'b> {
    /// The text that was asked for, empty for a file that is open now; or why there is none. [`Errno::ENFILE`] asks to
    /// try again with another connection, because the server is short of descriptors.
    pub result: Result<&'b [u8], Errno>,
}

abi_layout! {
    HelloReplyHeader, 16 {
        magic: [u8; 8],
        version: U16,
        reserved: U16,
        errno: U32,
    }
}

impl<'b> HelloReply<'b> {
    /// The datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (errno, text) = match self.result {
            Ok(text) => (0, text),
            Err(errno) => (errno.to_u32(), &[][..]),
        };
        let header = HelloReplyHeader {
            magic: MAGIC,
            version: VERSION.into(),
            reserved: U16::ZERO,
            errno: errno.into(),
        };
        [header.as_bytes(), text].concat()
    }

    /// What a datagram says.
    ///
    /// # Errors
    /// [`Errno::EPROTO`] for anything else.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Errno> {
        let (header, text) =
            HelloReplyHeader::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        if header.magic != MAGIC || header.version.get() != VERSION {
            return Err(Errno::EPROTO);
        }
        Ok(Self {
            result: Errno::from_u32(header.errno.get()).map_or(Ok(text), Err),
        })
    }
}

/// What a program's side sends on the connection of an umad file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A part of a written message.
    Part {
        /// Bytes of the whole.
        total: usize,
        /// Where the part goes.
        offset: usize,
    },
    /// A call. Its answer goes to the socket that comes with it.
    Call(Call),
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// An `ioctl`, by its request; the body is its argument.
    Ioctl(u32),
    /// Asks for an announced message.
    Fetch(u64),
    /// Asks whether a request may be written, or one with its transaction id is under way; the body is the header and the
    /// common header of the MAD. Asked only if the program's side has sent such a one and seen nothing of its end.
    MayWrite,
}

/// A datagram from a program's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'b> {
    /// What it is.
    pub kind: FrameKind,
    /// The part, or the argument.
    pub body: &'b [u8],
}

abi_layout! {
    FrameHeader, 16 {
        kind: u8,
        reserved: [u8; 3],
        total: U32,
        offset: U64,
    }
}

impl<'b> Frame<'b> {
    /// What stands before the body. `None` for numbers that do not fit.
    #[must_use]
    pub fn header(&self) -> Option<[u8; 16]> {
        let mut header = FrameHeader::new_zeroed();
        match self.kind {
            FrameKind::Part { total, offset } => {
                header.kind = 1;
                header.total = u32::try_from(total).ok()?.into();
                header.offset = u64::try_from(offset).ok()?.into();
            }
            FrameKind::Call(Call::Ioctl(request)) => {
                header.kind = 2;
                header.total = request.into();
            }
            FrameKind::Call(Call::Fetch(serial)) => {
                header.kind = 3;
                header.offset = serial.into();
            }
            FrameKind::Call(Call::MayWrite) => header.kind = 4,
        }
        Some(zerocopy::transmute!(header))
    }

    /// What a datagram says.
    ///
    /// # Errors
    /// [`Errno::EPROTO`] for anything else.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Errno> {
        let (header, body) = FrameHeader::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        let kind = match header.kind {
            1 => {
                let total = usize::try_from(header.total.get()).map_err(|_| Errno::EPROTO)?;
                let offset = usize::try_from(header.offset.get()).map_err(|_| Errno::EPROTO)?;
                let fits = offset
                    .checked_add(body.len())
                    .is_some_and(|end| end <= total);
                if !fits || total > HEADER_SIZE + MAX_MESSAGE {
                    return Err(Errno::EPROTO);
                }
                FrameKind::Part { total, offset }
            }
            2 => FrameKind::Call(Call::Ioctl(header.total.get())),
            3 => FrameKind::Call(Call::Fetch(header.offset.get())),
            4 => FrameKind::Call(Call::MayWrite),
            _ => return Err(Errno::EPROTO),
        };
        Ok(Self { kind, body })
    }
}

/// The frames that carry a written message.
pub fn frames(message: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    let total = message.len();
    message
        .chunks(PART_MAX)
        .enumerate()
        .map(move |(index, body)| Frame {
            kind: FrameKind::Part {
                total,
                offset: index * PART_MAX,
            },
            body,
        })
}

/// The answer to a [`Call`]: the argument as the kernel would leave it, and an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallReply<'b> {
    /// The error, if there is one.
    pub error: Option<Errno>,
    /// The argument, or nothing.
    pub body: &'b [u8],
}

impl<'b> CallReply<'b> {
    /// The datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let errno = U32::new(self.error.map_or(0, Errno::to_u32));
        [errno.as_bytes(), self.body].concat()
    }

    /// What a datagram says.
    ///
    /// # Errors
    /// [`Errno::EPROTO`] for anything else.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Errno> {
        let (errno, body) = U32::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        Ok(Self {
            error: Errno::from_u32(errno.get()),
            body,
        })
    }
}

/// A message for the program to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'b> {
    /// Bytes of the header at the start of the message.
    pub header_size: usize,
    /// Bytes of header and message.
    pub total: usize,
    /// Of an announcement the number to fetch the message by.
    pub serial: Option<u64>,
    /// Header and message, or of an announcement the start of them.
    pub body: &'b [u8],
}

abi_layout! {
    DeliveryHeader, 16 {
        kind: u8,
        header_size: u8,
        reserved: [u8; 2],
        total: U32,
        serial: U64,
    }
}

impl<'b> Delivery<'b> {
    /// Bytes before the body.
    pub const HEADER_SIZE: usize = size_of::<DeliveryHeader>();

    /// The datagram. `None` for numbers that do not fit.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let header = DeliveryHeader {
            kind: if self.serial.is_some() { 2 } else { 1 },
            header_size: u8::try_from(self.header_size).ok()?,
            reserved: [0; 2],
            total: u32::try_from(self.total).ok()?.into(),
            serial: self.serial.unwrap_or(0).into(),
        };
        Some([header.as_bytes(), self.body].concat())
    }

    /// What a datagram, or the start of one, says.
    ///
    /// # Errors
    /// [`Errno::EPROTO`] for anything else.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Errno> {
        let (header, body) = DeliveryHeader::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        let serial = match header.kind {
            1 => None,
            2 => Some(header.serial.get()),
            _ => return Err(Errno::EPROTO),
        };
        let total = usize::try_from(header.total.get()).map_err(|_| Errno::EPROTO)?;
        let header_size = usize::from(header.header_size);
        if header_size > total {
            return Err(Errno::EPROTO);
        }
        Ok(Self {
            header_size,
            total,
            serial,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_hello_comes_back_as_it_was_said() {
        for purpose in [
            Purpose::Umad(3),
            Purpose::IsSm(0),
            Purpose::Attribute("infiniband/vhca0/node_guid"),
            Purpose::Tree,
            Purpose::PendingPorts,
        ] {
            let hello = Hello {
                adapters: "H-1,0x0002c90300000001",
                device: "mlx5_0",
                purpose,
            };
            assert_eq!(Hello::decode(&hello.encode().unwrap()), Ok(hello));
        }
        let long = "x".repeat(MAX_TEXT + 1);
        let hello = Hello {
            adapters: &long,
            device: "",
            purpose: Purpose::Tree,
        };
        assert!(hello.encode().is_none());
    }

    #[test]
    fn a_hello_of_another_version_or_length_is_refused() {
        let hello = Hello {
            adapters: "H-1",
            device: "",
            purpose: Purpose::Tree,
        };
        let bytes = hello.encode().unwrap();
        assert_eq!(Hello::decode(&bytes[..20]), Err(Errno::EPROTO));
        assert_eq!(Hello::decode(&bytes[..26]), Err(Errno::EPROTO));
        for at in [0, 8, 10, 16] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x40;
            assert_eq!(Hello::decode(&wrong), Err(Errno::EPROTO), "byte {at}");
        }
    }

    #[test]
    fn replies_and_deliveries_come_back_as_they_were_said() {
        for result in [Ok(&b"4: ACTIVE\n"[..]), Err(Errno::ENOENT)] {
            let reply = HelloReply { result };
            assert_eq!(HelloReply::decode(&reply.encode()), Ok(reply));
        }
        for error in [None, Some(Errno::EINVAL)] {
            let reply = CallReply { error, body: &[7] };
            assert_eq!(CallReply::decode(&reply.encode()), Ok(reply));
        }
        for serial in [None, Some(9)] {
            let delivery = Delivery {
                header_size: 64,
                total: 320,
                serial,
                body: &[1, 2, 3],
            };
            assert_eq!(Delivery::decode(&delivery.encode().unwrap()), Ok(delivery));
        }
    }

    proptest! {
        #[test]
        fn the_frames_of_a_message_hold_all_of_it_in_order(len in 1_usize..200_000) {
            let message: Vec<u8> = (0_u8..251).cycle().take(len).collect();
            let mut joined = Vec::new();
            for frame in frames(&message) {
                let bytes = [&frame.header().unwrap()[..], frame.body].concat();
                prop_assert!(bytes.len() <= MAX_DATAGRAM);
                prop_assert_eq!(Frame::decode(&bytes), Ok(frame));
                prop_assert_eq!(
                    frame.kind,
                    FrameKind::Part { total: len, offset: joined.len() }
                );
                joined.extend_from_slice(frame.body);
            }
            prop_assert_eq!(joined, message);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(frame) = Frame::decode(&bytes)
                && let FrameKind::Part { total, offset } = frame.kind
            {
                prop_assert!(offset + frame.body.len() <= total);
            }
            if let Ok(hello) = Hello::decode(&bytes) {
                let encoded = hello.encode().unwrap();
                prop_assert_eq!(Hello::decode(&encoded), Ok(hello));
            }
            let _ = (HelloReply::decode(&bytes), CallReply::decode(&bytes));
            if let Ok(delivery) = Delivery::decode(&bytes) {
                prop_assert!(delivery.header_size <= delivery.total);
            }
        }
    }
}
