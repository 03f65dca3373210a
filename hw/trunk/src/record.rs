//! Layout of records.

use hca_api::FunctionId;
use ib_fabric::PacketSource;
use ib_wire::{Qpn, Vl};
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::close::CloseReason;

/// Bytes of a record's body at most.
pub const MAX_BODY: usize = 66 * 1024;

/// Bytes of a record at most.
pub const MAX_RECORD: usize = size_of::<Header>() + MAX_BODY;

/// Lanes with credits: VL0 to VL14.
pub(crate) const DATA_LANES: usize = 15;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello,
    Packet,
    Run,
    Credit,
    Port,
    Ping,
    Pong,
    Close,
}

impl Kind {
    const NUMBERS: [(Self, u8); 8] = [
        (Self::Hello, 0),
        (Self::Packet, 1),
        (Self::Run, 2),
        (Self::Credit, 3),
        (Self::Port, 4),
        (Self::Ping, 5),
        (Self::Pong, 6),
        (Self::Close, 7),
    ];

    fn from_number(number: u8) -> Option<Self> {
        let found = Self::NUMBERS.iter().find(|(_, known)| *known == number);
        found.map(|(kind, _)| *kind)
    }

    fn number(self) -> u8 {
        let found = Self::NUMBERS.iter().find(|(kind, _)| *kind == self);
        found.map_or(u8::MAX, |(_, number)| *number)
    }
}

/// Flags of records of packets and runs.
pub(crate) mod flag {
    /// The VCRC follows the packet, since it does not match.
    pub(crate) const BAD_VCRC: u8 = 1 << 0;
    /// A [`SourceBody`](super::SourceBody) is in front of the packet, or the run.
    pub(crate) const SOURCE: u8 = 1 << 7;
}

/// Sender of a packet of a connection, which no byte of the packet names. Network byte order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SourceBody {
    function: U16,
    reserved: [u8; 2],
    qpn: U32,
}

impl SourceBody {
    pub(crate) fn new(source: PacketSource) -> Self {
        Self {
            function: U16::new(source.function.0),
            reserved: [0; 2],
            qpn: U32::new(source.qpn.get()),
        }
    }

    /// Takes the sender from the front of a body, if the flags say that it is there.
    ///
    /// # Errors
    /// [`CloseReason::Garbage`] for a body that is too short, and for a number that no queue pair has.
    pub(crate) fn take(
        flags: u8,
        body: &[u8],
    ) -> Result<(Option<PacketSource>, &[u8]), CloseReason> {
        if flags & flag::SOURCE == 0 {
            return Ok((None, body));
        }
        let (source, rest) = Self::read_from_prefix(body).map_err(|_| CloseReason::Garbage)?;
        let source = PacketSource {
            function: FunctionId(source.function.get()),
            qpn: Qpn::new(source.qpn.get()).ok_or(CloseReason::Garbage)?,
        };
        Ok((Some(source), rest))
    }
}

/// Returns the bytes of a sender in front of a packet, and the flag for them.
pub(crate) fn in_front(source: Option<&SourceBody>) -> (&[u8], u8) {
    source.map_or((&[], 0), |source| (source.as_bytes(), flag::SOURCE))
}

/// Reads the body of a record that has one size.
pub(crate) fn read<T: FromBytes>(body: &[u8]) -> Result<T, CloseReason> {
    T::read_from_bytes(body).map_err(|_| CloseReason::Garbage)
}

/// The header of a record. Network byte order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    kind: u8,
    pub(crate) flags: u8,
    lane: u8,
    reserved: u8,
    length: U32,
}

impl Header {
    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.kind)
    }

    /// The lane of a packet or a run.
    pub(crate) fn lane(&self) -> Option<Vl> {
        Vl::new(self.lane)
    }

    /// Bytes of the body.
    pub(crate) fn length(&self) -> usize {
        usize::try_from(self.length.get()).unwrap_or(usize::MAX)
    }
}

/// A record at the front of bytes.
#[derive(Debug)]
pub(crate) struct Record<'b> {
    pub(crate) header: Header,
    pub(crate) body: &'b [u8],
    /// The bytes behind it.
    pub(crate) rest: &'b [u8],
}

/// Takes the record at the front of bytes, with a body of at most `most` bytes. Returns `None` if it is not whole.
///
/// # Errors
/// [`CloseReason::Garbage`] for a longer body, as soon as its header is there.
pub(crate) fn split(bytes: &[u8], most: usize) -> Result<Option<Record<'_>>, CloseReason> {
    let Ok((header, behind)) = Header::read_from_prefix(bytes) else {
        return Ok(None);
    };
    let length = header.length();
    if length > most {
        return Err(CloseReason::Garbage);
    }
    let whole = behind.split_at_checked(length);
    Ok(whole.map(|(body, rest)| Record { header, body, rest }))
}

/// A place that records are appended to: bytes, or memory that both ends share.
pub trait RecordSink {
    /// Returns the bytes that were appended.
    fn written(&self) -> usize;

    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]);
}

impl RecordSink for Vec<u8> {
    fn written(&self) -> usize {
        self.len()
    }

    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends a record.
pub(crate) fn put(out: &mut Vec<u8>, kind: Kind, body: &[u8]) {
    put_on(out, kind, 0, Vl::default(), &[body]);
}

/// Appends a record with flags and lane, of a body in parts.
pub(crate) fn put_on(out: &mut impl RecordSink, kind: Kind, flags: u8, lane: Vl, body: &[&[u8]]) {
    let length: usize = body.iter().map(|part| part.len()).sum();
    let header = Header {
        kind: kind.number(),
        flags,
        lane: lane.get(),
        reserved: 0,
        length: U32::new(u32::try_from(length).unwrap_or(u32::MAX)),
    };
    out.append(header.as_bytes());
    body.iter().for_each(|part| out.append(part));
}

/// Body of a credit record: for each data lane the bytes that may come since the session began.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct CreditBody {
    pub(crate) limits: [U64; DATA_LANES],
}

/// Body of a port record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PortBody {
    /// 0 if the port is disabled, else 1.
    pub(crate) enabled: u8,
    reserved: [u8; 3],
}

impl PortBody {
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled: enabled.into(),
            reserved: [0; 3],
        }
    }
}

/// Body of a ping and of its pong.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PingBody {
    /// Nanoseconds by the clock of the sender of the ping.
    pub(crate) time: U64,
}

/// Body of a close record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct CloseBody {
    reason: U16,
    reserved: [u8; 2],
}

impl CloseBody {
    pub(crate) fn new(reason: CloseReason) -> Self {
        Self {
            reason: U16::new(reason.number()),
            reserved: [0; 2],
        }
    }

    pub(crate) fn reason(&self) -> CloseReason {
        CloseReason::from_number(self.reason.get())
    }
}
