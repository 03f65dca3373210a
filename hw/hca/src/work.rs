//! Work requests.

use bitflags::bitflags;
use ib_wire::packet::FlushPlacement;
use ib_wire::{PKeyIndex, QKey, Qpn};

use crate::{AccessFlags, AddressVector, AvHandle, LKey, RKey};

/// One gather or scatter entry (IBA 11.4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First byte, as the region of `lkey` counts addresses.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The region.
    pub lkey: LKey,
}

/// The bytes of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Gathered from memory regions.
    Gather(&'a [Sge]),
    /// Given with the request; the caller's buffer is free when the call returns.
    Inline(&'a [u8]),
    /// Bytes given with the request, and behind them others that are gathered: a header of the
    /// caller's making in front of a message in memory.
    Headed(&'a [u8], &'a [Sge]),
}

impl Payload<'_> {
    /// Returns the number of its inline bytes, and of entries of its gather list.
    #[must_use]
    pub const fn shape(&self) -> (usize, usize) {
        match self {
            Self::Gather(list) => (0, list.len()),
            Self::Inline(bytes) => (bytes.len(), 0),
            Self::Headed(head, list) => (head.len(), list.len()),
        }
    }
}

/// A peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address as the peer's region or window counts it.
    pub addr: u64,
    /// The peer's key.
    pub rkey: RKey,
}

/// The binding of a memory window to a part of a region (IBA 10.6.7.2, 11.4.1.1), with window, region and queue pair in one
/// protection domain. The part is valid before the next request of the queue starts.
///
/// * A window of [`MwType::Type1`](crate::MwType::Type1) may be bound again and again; every queue pair of its protection domain may
///   be used with it.
/// * A window of [`MwType::Type2`](crate::MwType::Type2) has to be free. It belongs to the queue pair that binds it (type 2B) until it
///   is invalidated.
///
/// A binding that is refused completes with [`CompletionStatus::MwBind`](crate::CompletionStatus::MwBind); the window stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window, by its key.
    pub window: RKey,
    /// Low byte of the window's new key; the other bits stay.
    pub variant: u8,
    /// The region, by its local key: one with [`AccessFlags::MW_BIND`], whose addresses do not count from zero.
    pub region: LKey,
    /// First byte, as the region counts addresses.
    pub addr: u64,
    /// Bytes. 0 unbinds a window of type 1, and is refused for one of type 2.
    pub len: u64,
    /// Rights of peers, and for type 2 [`AccessFlags::ZERO_BASED`]; other bits are ignored. Writes and atomics need a region with
    /// [`AccessFlags::LOCAL_WRITE`].
    pub access: AccessFlags,
}

/// Pages of a fast registration, in the order of the region's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageList<'a> {
    /// Addresses in the function's address space, given with the request.
    Given(&'a [u64]),
    /// The list is in the function's address space, from this address on: for each page 64 bits in big-endian order, the lowest of
    /// which is 1. Other bits below the page size are ignored. The provider reads as many as the region needs, once, when it
    /// carries the request out.
    InMemory(u64),
}

/// A fast registration (IBA 11.4.1.1, fast register physical MR). The region of the key's upper 24 bits has to be one of
/// [`MrKind::FastRegister`](crate::MrKind::FastRegister) in the protection domain of the queue pair, and empty.
///
/// The region is valid before the next request of the queue starts. A registration that is refused completes with
/// [`CompletionStatus::MwBind`](crate::CompletionStatus::MwBind). Whether a queue pair may register pages of its choice is for the
/// caller to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegister<'a> {
    /// The region's new key; the low byte is the consumer's.
    pub key: RKey,
    /// First byte of the region, in its own address count.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Its pages. The first byte is as far into the first page as `iova` is into a page.
    pub pages: PageList<'a>,
    /// Base-2 logarithm of the page size.
    pub page_shift: u8,
    /// Rights; the region may be given each of them.
    pub access: AccessFlags,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp<'a> {
    /// Send.
    Send,
    /// Send with 32 bits of immediate data.
    SendImmediate(u32),
    /// Send and invalidate the peer's key; RC only.
    SendInvalidate(RKey),
    /// RDMA write.
    RdmaWrite(RemoteAddress),
    /// RDMA write with immediate data.
    RdmaWriteImmediate(RemoteAddress, u32),
    /// RDMA read into the payload's scatter list.
    RdmaRead(RemoteAddress),
    /// Atomic compare and swap; the old value goes to the payload's scatter list.
    CompareSwap {
        /// Where.
        remote: RemoteAddress,
        /// The value to expect.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Atomic fetch and add; the old value goes to the payload's scatter list.
    FetchAdd {
        /// Where.
        remote: RemoteAddress,
        /// The value to add.
        add: u64,
    },
    /// Atomic compare of some bits and swap of some bits (kernel `IB_WR_MASKED_ATOMIC_CMP_AND_SWP`). Only peers with an adapter of
    /// the same make know it.
    MaskedCompareSwap {
        /// Where.
        remote: RemoteAddress,
        /// The value to expect.
        compare: u64,
        /// The bits to compare.
        compare_mask: u64,
        /// The value to store.
        swap: u64,
        /// The bits to store.
        swap_mask: u64,
    },
    /// Atomic fetch and add to several numbers (kernel `IB_WR_MASKED_ATOMIC_FETCH_AND_ADD`). Only peers with an adapter of the same
    /// make know it.
    MaskedFetchAdd {
        /// Where.
        remote: RemoteAddress,
        /// The values to add.
        add: u64,
        /// The uppermost bit of each number, which no carry leaves; 0 is one number of 64 bits.
        boundary: u64,
    },
    /// Write 8 bytes at once to an address that is a multiple of 8 (IBA 1.6, ATOMIC WRITE); RC only. It counts among the reads and atomic
    /// operations that may be outstanding.
    AtomicWrite(RemoteAddress),
    /// Flush what earlier requests of the queue pair stored at the peer (IBA annex A19); RC only. The payload is ignored. It counts among the
    /// reads and atomic operations that may be outstanding.
    Flush {
        /// Memory of the peer. Of a whole region the key alone counts.
        remote: RemoteAddress,
        /// Bytes of a range, or `None` for the whole region.
        len: Option<u32>,
        /// Placement that the peer ensures before it answers. It refuses one without the right of its queue pair
        /// ([`CompletionStatus::RemoteInvalidRequest`](crate::CompletionStatus::RemoteInvalidRequest)) or of the region
        /// ([`CompletionStatus::RemoteAccess`](crate::CompletionStatus::RemoteAccess)).
        placement: FlushPlacement,
    },
    /// Bind a memory window; RC only.
    BindWindow(MwBind),
    /// Invalidate a local region for fast registration or a window of type 2, when all earlier requests are complete; RC only. A refused one completes with
    /// [`CompletionStatus::MwBind`](crate::CompletionStatus::MwBind).
    LocalInvalidate(RKey),
    /// Fill a fast-register region; RC only.
    FastRegister(FastRegister<'a>),
}

bitflags! {
    /// Modifiers of a send request (IBA 11.4.1.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Make a completion also on success.
        const SIGNALED = 1 << 0;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 1 << 1;
        /// Wait for outstanding RDMA reads and atomics first.
        const FENCE = 1 << 2;
        /// Wait for all earlier local requests first.
        const STRONG_FENCE = 1 << 3;
    }
}

/// An address, held by the provider or given with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdAddress {
    /// A handle from [`crate::Hca::create_av`].
    Handle(AvHandle),
    /// The vector itself.
    Vector(AddressVector),
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// Where.
    pub address: UdAddress,
    /// The QP there; [`Qpn::MULTICAST`] for multicast.
    pub qpn: Qpn,
    /// The key. A privileged key stands for the sending QP's own key (IBA 10.2.5).
    pub qkey: QKey,
    /// The partition, for QPs that choose it per request: special QPs. `None` takes the QP's own.
    pub pkey_index: Option<PKeyIndex>,
}

/// A request for the send queue (IBA 11.4.1.1, Post Send Request).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// The consumer's name for the request.
    pub wr_id: u64,
    /// What it does.
    pub op: SendOp<'a>,
    /// The bytes to send, or for reads and atomics where to put them (then it must gather).
    pub payload: Payload<'a>,
    /// Modifiers.
    pub flags: SendFlags,
    /// The destination; required for UD and special QPs, ignored for proxy and tunnel QPs, refused
    /// for connected ones.
    pub destination: Option<UdDestination>,
}

/// A request for a receive queue (IBA 11.4.1.2, Post Receive Request).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvRequest<'a> {
    /// The consumer's name for the request.
    pub wr_id: u64,
    /// Where the message goes. Datagram QPs put 40 bytes of GRH space first.
    pub scatter: &'a [Sge],
}
