//! The interface of the machines to memory, receive queues and completion queues.

use core::ops::Range;

use ib_wire::RKey;
use ib_wire::packet::FlushPlacement;

use crate::request::{AtomicOp, Request, Status};

/// Use of a local gather or scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalRight {
    /// Read by the adapter.
    Gather,
    /// Written by the adapter: needs local write.
    Scatter,
}

/// Use of memory by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteRight {
    /// RDMA read.
    Read,
    /// RDMA write.
    Write,
    /// Atomic operation.
    Atomic,
}

/// A local list names memory that cannot be used so: key, protection domain, right, range or mapping. Of a local request:
/// the key cannot be registered or invalidated so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalFault;

/// A remote key does not allow an access: unknown, stale, of another protection domain, without the right,
/// out of range, or gone since it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFault;

/// A receive request as it was taken from its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken<V> {
    /// The request.
    pub receive: V,
    /// Bytes of its scatter list.
    pub capacity: u64,
}

/// No receive request can be taken, and not because there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveFault<V> {
    /// The next request is malformed; it completes with [`Status::LocalQpOperation`].
    Malformed(V),
    /// The queue itself cannot be read.
    Unreachable,
}

/// Kind of message that completed a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedKind {
    /// A send.
    Send,
    /// An RDMA write with immediate data.
    WriteImmediate,
}

/// A completed receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<V> {
    /// The request.
    pub receive: V,
    /// Status. With an error nothing below means anything.
    pub status: Status,
    /// Operation of the sender.
    pub kind: ReceivedKind,
    /// Bytes of the message.
    pub len: u32,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// Key that the message invalidated.
    pub invalidated: Option<RKey>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
}

/// An affiliated asynchronous event of the queue pair (IBA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first request arrived in RTR.
    CommunicationEstablished,
    /// Everything begun before the drain is complete.
    SendQueueDrained,
    /// The responder refused a request as invalid, without a receive in progress that could say so.
    RequestError,
    /// The responder refused an access, without a receive in progress that could say so.
    AccessError,
    /// The queue pair cannot work on and cannot say why otherwise.
    Fatal,
    /// A queue pair with a shared receive queue is in error and holds no receive any more.
    LastReceiveReached,
}

/// The surroundings of a machine, lent for each call: the device has real memory and queues, a test has byte
/// arrays.
///
/// The payload of an arriving run is the implementation's: ranges in [`Self::scatter`], [`Self::fill`] and
/// [`Self::place`] count its bytes from the run's first. Bytes are stored in the order of increasing addresses,
/// the last 8 at most after all others, since programs poll the last byte of a message (IBA 9.5). Methods may be
/// called more than once with the same bytes: a run that cannot be taken whole is taken again in parts.
pub trait Effects {
    /// Gather or scatter list of a send queue's request.
    type Buffer;
    /// A remote key that was looked up: memory region and generation.
    type Region: Copy;
    /// A receive request.
    type Receive;

    /// Checks that `len` bytes of a list may be used so, before any packet of the request leaves.
    ///
    /// # Errors
    /// Key, protection domain, right, range or mapping; the request completes with
    /// [`Status::LocalProtection`].
    fn check_local(
        &mut self,
        buffer: &Self::Buffer,
        len: u32,
        right: LocalRight,
    ) -> Result<(), LocalFault>;

    /// Makes bytes of a gather list the payload of the run that the poll under way returns.
    ///
    /// # Errors
    /// As [`Self::check_local`].
    fn gather(&mut self, buffer: &Self::Buffer, range: Range<u32>) -> Result<(), LocalFault>;

    /// Stores bytes of the payload at an offset of a scatter list: data of a read.
    ///
    /// # Errors
    /// As [`Self::check_local`].
    fn scatter(
        &mut self,
        buffer: &Self::Buffer,
        offset: u32,
        payload: Range<u32>,
    ) -> Result<(), LocalFault>;

    /// Stores the original value of an atomic operation in the first 8 bytes of a scatter list, in the byte
    /// order of the consumer.
    ///
    /// # Errors
    /// As [`Self::check_local`].
    fn store_original(&mut self, buffer: &Self::Buffer, original: u64) -> Result<(), LocalFault>;

    /// Carries out a request of [`Operation::Local`](crate::Operation::Local). It has taken effect when the call returns,
    /// before the next request starts.
    ///
    /// # Errors
    /// The request is refused; it completes with [`Status::MemoryManagement`].
    fn execute(&mut self, buffer: &Self::Buffer) -> Result<(), LocalFault>;

    /// Completes a request of the send queue. Successful ones come here whether they are signalled or not.
    fn complete_send(&mut self, request: Request<Self::Buffer>, status: Status);

    /// Looks up a remote key for an access of `len` bytes, at least one, in the order of tests of IBA 10.6.
    ///
    /// # Errors
    /// The first test that fails.
    fn look_up(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u32,
        right: RemoteRight,
    ) -> Result<Self::Region, RemoteFault>;

    /// Stores bytes of the payload in a region.
    ///
    /// # Errors
    /// The region is gone since it was looked up.
    fn place(
        &mut self,
        region: Self::Region,
        addr: u64,
        payload: Range<u32>,
    ) -> Result<(), RemoteFault>;

    /// Stores 8 bytes of the payload at once, at an address that is a multiple of 8: who reads finds all of them or none.
    ///
    /// # Errors
    /// As [`Self::place`].
    fn place_at_once(
        &mut self,
        region: Self::Region,
        addr: u64,
        payload: Range<u32>,
    ) -> Result<(), RemoteFault>;

    /// Places what earlier requests stored in a range, as its address and bytes, or in the whole region of the key. The range can be
    /// of no byte; the key is looked up for it, too. `placement` has bits that the standard knows, at least one.
    ///
    /// # Errors
    /// As [`Self::look_up`], for rights to each placement.
    fn flush(
        &mut self,
        rkey: RKey,
        range: Option<(u64, u32)>,
        placement: FlushPlacement,
    ) -> Result<(), RemoteFault>;

    /// Makes bytes of a region the payload of the response that the poll under way returns.
    ///
    /// # Errors
    /// The region is gone since it was looked up.
    fn fetch(&mut self, region: Self::Region, addr: u64, len: u32) -> Result<(), RemoteFault>;

    /// Executes an atomic operation on 8 bytes in the byte order of the consumer, and returns the original
    /// value.
    ///
    /// # Errors
    /// The region is gone since it was looked up.
    fn atomic(&mut self, region: Self::Region, addr: u64, op: AtomicOp)
    -> Result<u64, RemoteFault>;

    /// Takes the next receive request, or `None` if there is none. A queue whose producer index lies in the
    /// consumer's memory is read anew before that.
    ///
    /// # Errors
    /// The request or the queue is unusable.
    fn take_receive(&mut self)
    -> Result<Option<Taken<Self::Receive>>, ReceiveFault<Self::Receive>>;

    /// Stores bytes of the payload at an offset of a receive's scatter list.
    ///
    /// # Errors
    /// As [`Self::check_local`].
    fn fill(
        &mut self,
        receive: &Self::Receive,
        offset: u32,
        payload: Range<u32>,
    ) -> Result<(), LocalFault>;

    /// Invalidates a local key for a peer.
    ///
    /// # Errors
    /// The key is unknown or may not be invalidated by a peer.
    fn invalidate(&mut self, rkey: RKey) -> Result<(), RemoteFault>;

    /// Completes a receive.
    fn complete_receive(&mut self, received: Received<Self::Receive>);

    /// Raises an event of the queue pair.
    fn raise(&mut self, event: Event);
}
