//! Completions.

use bitflags::bitflags;
use ib_wire::Qpn;

use crate::SourceAddress;

/// How a work request ended (IBA 11.6.2, completion return status).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionStatus {
    /// Done.
    Success,
    /// The buffer was too small for the message, or the message too long for the transport.
    LocalLength,
    /// An inconsistency inside the QP.
    LocalQpOperation,
    /// A gather or scatter entry does not name accessible memory.
    LocalProtection,
    /// The QP went to the error state (or was destroyed) with the request outstanding.
    Flushed,
    /// A window could not be bound, a region not registered, or a key not invalidated (IBA 11.6.2, memory management operation
    /// error).
    MwBind,
    /// A peer's request that was using the receive reached outside its rights.
    LocalAccess,
    /// The responder's answer made no sense.
    BadResponse,
    /// The responder found the request to access its memory outside its rights.
    RemoteAccess,
    /// The responder could not parse or serve the request.
    RemoteInvalidRequest,
    /// The responder failed to serve the request.
    RemoteOperation,
    /// Transport retries used up.
    RetryExceeded,
    /// Receiver-not-ready retries used up.
    RnrRetryExceeded,
    /// The transport gave the request up.
    Aborted,
}

/// The check that a request failed. A [`CompletionStatus`] stands for several; software reads the number as the vendor's error
/// (kernel `vendor_err` of `struct ib_wc`).
///
/// A wrong P_Key or Q_Key fails no request: the receiver drops the packet (IBA 9.6.1), and a connection runs out of retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// None: the request succeeded, or was flushed.
    #[default]
    None = 0,
    /// No region or window has the key.
    NoSuchKey = 1,
    /// The key is of another protection domain.
    OtherPd = 2,
    /// The range is not within the region or window.
    OutOfBounds = 3,
    /// The region or window lacks the right.
    NoRight = 4,
    /// The region is not registered or the window not bound, or no longer.
    NotValid = 5,
    /// Another queue pair has bound the window.
    OtherQp = 6,
    /// The function has no memory there.
    NoMemory = 7,
    /// A region to be registered or a window to be bound has to be free, and is not; or a window is bound to the region.
    NotFree = 8,
    /// Another region or window has the new key.
    KeyTaken = 9,
    /// The key is of an object for which there is no such request.
    WrongObject = 10,
    /// A registration or binding names rights, pages or a length that its object cannot take.
    BadRegistration = 11,
    /// The message is longer than the queue pair, its list or the transport allows.
    TooLong = 16,
    /// The message is longer than its receive.
    ReceiveTooShort = 17,
    /// The transport service has no such operation, or the request is malformed.
    BadRequest = 18,
    /// The queue pair may have no RDMA read or atomic operation outstanding.
    NoReads = 19,
    /// The address handle does not exist, or is of another protection domain.
    BadAddress = 20,
    /// The peer's message broke off, or its packets have no legal length.
    BadMessage = 21,
    /// The peer's answer is not one to the request.
    BadAnswer = 32,
    /// The peer's answer is too long or too short.
    AnswerLength = 33,
    /// The peer refused the request. It alone knows the check.
    Refused = 34,
    /// No answer within all retries.
    Retries = 35,
    /// The peer had no receive within all RNR retries.
    RnrRetries = 36,
}

/// What a completed work request was (IBA 11.4.2.1, operation type).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionOp {
    /// A send.
    Send,
    /// An RDMA write.
    RdmaWrite,
    /// An RDMA read.
    RdmaRead,
    /// An atomic compare and swap, masked or not.
    CompareSwap,
    /// An atomic fetch and add, masked or not.
    FetchAdd,
    /// An atomic write.
    AtomicWrite,
    /// A flush.
    Flush,
    /// A window bind.
    BindWindow,
    /// A local invalidate.
    LocalInvalidate,
    /// A fast registration.
    FastRegister,
    /// A receive.
    Recv,
    /// A receive consumed by an RDMA write with immediate.
    RecvRdmaImm,
}

bitflags! {
    /// Facts about a received message.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CompletionFlags: u8 {
        /// The packet had a GRH: the first 40 bytes of a UD receive buffer hold it.
        const GRH = 1 << 0;
        /// `immediate` is valid.
        const IMMEDIATE = 1 << 1;
        /// `immediate` is the remote key that the message invalidated.
        const INVALIDATED = 1 << 2;
        /// The sender asked for a solicited event.
        const SOLICITED = 1 << 3;
        /// The packet came by multicast.
        const MULTICAST = 1 << 4;
    }
}

/// One work completion (IBA 11.4.2.1, Poll for Completion).
///
/// Of a completion with an error status only `wr_id`, `status`, `cause`, `qpn` and `op` mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The consumer's name for the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// The check that it failed.
    pub cause: Cause,
    /// What it was.
    pub op: CompletionOp,
    /// The consumer's (external) number of the QP.
    pub qpn: Qpn,
    /// Bytes transferred. For a UD receive this counts the 40 bytes of GRH space.
    pub byte_len: u32,
    /// Immediate data, or the key that was invalidated, as `flags` say. Host byte order.
    pub immediate: u32,
    /// Facts about a received message.
    pub flags: CompletionFlags,
    /// The sender, for datagram receives.
    pub source: Option<SourceAddress>,
}

impl Completion {
    /// A completion for [`crate::Hca::poll_cq`] to overwrite.
    pub const BLANK: Self = Self {
        wr_id: 0,
        status: CompletionStatus::Success,
        cause: Cause::None,
        op: CompletionOp::Send,
        qpn: Qpn::SMI,
        byte_len: 0,
        immediate: 0,
        flags: CompletionFlags::empty(),
        source: None,
    };
}

/// What an armed completion queue announces (IBA 11.4.2.2, Request Completion Notification).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmKind {
    /// The next completion.
    Next,
    /// The next completion that is solicited or in error.
    Solicited,
}
