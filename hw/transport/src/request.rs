//! Requests of a send queue and their completion status.

use ib_wire::RKey;
use ib_wire::packet::{FlushPlacement, FlushSelectivity};

/// Bytes of the longest message that a RETH may announce (IBA 9.3.3, C9-94).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// A range of the peer's memory, as a RETH names it (IBA 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// First byte, as the peer's region counts addresses.
    pub addr: u64,
    /// Key of the peer's memory.
    pub rkey: RKey,
    /// Bytes.
    pub len: u32,
}

/// The start of a range of the peer's memory; the request has the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteStart {
    /// First byte, as the peer's region counts addresses.
    pub addr: u64,
    /// Key of the peer's memory.
    pub rkey: RKey,
}

/// An atomic operation on 8 bytes; values are numbers, not bytes (IBA 9.4.5). The standard has no masked ones: on the wire they have
/// opcodes of their own ([`ib_wire::packet::BthOpcode::RC_MASKED_COMPARE_SWAP`]), which peers of other makers do not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if memory holds `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Adds modulo 2^64.
    FetchAdd {
        /// Value to add.
        add: u64,
    },
    /// Stores some bits of `swap` if some bits of memory are as in `compare` (kernel `IB_WR_MASKED_ATOMIC_CMP_AND_SWP`).
    MaskedCompareSwap {
        /// Expected value.
        compare: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Value to store.
        swap: u64,
        /// Bits that are stored.
        swap_mask: u64,
    },
    /// Adds to several numbers (kernel `IB_WR_MASKED_ATOMIC_FETCH_AND_ADD`).
    MaskedFetchAdd {
        /// Values to add.
        add: u64,
        /// The uppermost bit of each number. No carry leaves it; 0 is one number of 64 bits.
        boundary: u64,
    },
}

impl AtomicOp {
    /// Returns the value that memory holds afterwards, if it held `original`.
    #[must_use]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if compare == original => swap,
            Self::MaskedCompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } if (original ^ compare) & compare_mask == 0 => {
                (original & !swap_mask) | (swap & swap_mask)
            }
            Self::CompareSwap { .. } | Self::MaskedCompareSwap { .. } => original,
            Self::FetchAdd { add } => original.wrapping_add(add),
            Self::MaskedFetchAdd { add, boundary } => {
                // Without uppermost bits a sum carries into them at most, and there it is their sum without carry.
                let below = (original & !boundary).wrapping_add(add & !boundary);
                below ^ ((original ^ add) & boundary)
            }
        }
    }

    /// Returns `true` if both are of the same opcode.
    pub(crate) fn is_same_opcode(self, other: Self) -> bool {
        core::mem::discriminant(&self) == core::mem::discriminant(&other)
    }
}

/// Placement and memory of a flush, as a FETH names them (IBA annex A19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Placement of the bytes that earlier requests stored.
    pub placement: FlushPlacement,
    /// A range, or the whole region of the key.
    pub selectivity: FlushSelectivity,
}

/// The operation of a request (IBA 11.4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Send.
    Send,
    /// Send with immediate data.
    SendImmediate([u8; 4]),
    /// Send that invalidates a key of the peer; RC only.
    SendInvalidate(RKey),
    /// RDMA write.
    Write(RemoteStart),
    /// RDMA write with immediate data.
    WriteImmediate(RemoteStart, [u8; 4]),
    /// RDMA read; RC only.
    Read(RemoteStart),
    /// Atomic operation; RC only.
    Atomic(RemoteStart, AtomicOp),
    /// Atomic write of 8 bytes to an address that is a multiple of 8; RC only.
    AtomicWrite(RemoteStart),
    /// Flush of what earlier requests stored in [`Request::len`] bytes or in the whole region of the key, where address and length
    /// say nothing; RC only. It uses no byte of its list.
    Flush(RemoteStart, Flush),
    /// Request that [`Effects::execute`](crate::Effects::execute) carries out: a fast registration or a local invalidate; RC
    /// only. It sends nothing and takes no PSN.
    Local {
        /// Starts only when every earlier request is complete.
        after_all: bool,
    },
}

impl Operation {
    /// Returns `true` if the request ends with an answer of its own from the peer: a read, an atomic operation, an atomic write or a
    /// flush.
    #[must_use]
    pub const fn is_read_or_atomic(self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::Atomic(..) | Self::AtomicWrite(_) | Self::Flush(..)
        )
    }

    /// Returns the bytes of the read response to a request of `len` bytes. An atomic write or a flush is answered by one without data.
    pub(crate) const fn answer_len(&self, len: u32) -> u32 {
        match self {
            Self::AtomicWrite(_) | Self::Flush(..) => 0,
            _ => len,
        }
    }

    /// Returns `true` if the request sends nothing.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Local { .. })
    }

    /// Returns `true` if the peer needs a receive request for it.
    #[must_use]
    pub const fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendImmediate(_)
                | Self::SendInvalidate(_)
                | Self::WriteImmediate(..)
        )
    }
}

/// A request of a send queue. `B` is the consumer's gather or scatter list, together with whatever
/// names the request when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<B> {
    /// Operation.
    pub operation: Operation,
    /// Gather list of a send or write, scatter list of a read or atomic operation.
    pub buffer: B,
    /// Bytes of the list: 8 of an atomic write. An atomic operation uses the first 8. Of a flush: bytes at the peer.
    pub len: u32,
    /// Starts only when every earlier read and atomic operation is complete (IBA 10.8.3.3).
    pub fence: bool,
    /// Asks for a solicited event at the receiver.
    pub solicited: bool,
}

/// How a request of either queue ended (IBA 11.6.2; kernel `enum ib_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done.
    Success,
    /// A message longer than the transport or the receive allows.
    LocalLength,
    /// An answer of the wrong length; [`Self::LocalLength`] to the consumer.
    AnswerLength,
    /// An operation that the service does not have, or a malformed request.
    LocalQpOperation,
    /// A read or atomic operation, of which none may be outstanding; [`Self::LocalQpOperation`] to the consumer.
    NoReads,
    /// A gather or scatter entry does not name accessible memory.
    LocalProtection,
    /// A fast registration or a local invalidate was refused (IBA 11.6.2, memory management operation error).
    MemoryManagement,
    /// The queue was in error.
    Flushed,
    /// The peer's answer does not fit the request.
    BadResponse,
    /// A key of the peer's request was refused while a receive was in progress.
    LocalAccess,
    /// The responder refused the request as malformed or not permitted by its queue pair. Of a receive:
    /// the message broke off.
    RemoteInvalidRequest,
    /// The responder refused key, range or right.
    RemoteAccess,
    /// The responder failed to serve the request.
    RemoteOperation,
    /// Transport retries used up.
    RetryExceeded,
    /// RNR retries used up.
    RnrRetryExceeded,
}
