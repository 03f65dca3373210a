//! The surroundings of a connection's machine: memory, receive queues, completion queues and events of a function.

use core::ops::Range;
use core::sync::atomic::{Ordering, fence};

use hca_api::{
    AccessFlags, AsyncEvent, Cause, Completion, CompletionFlags, CompletionOp, CompletionStatus,
    MwBind, PdHandle, QpHandle,
};
use hca_functions::{SgeList, total_len};
use ib_transport::{
    AtomicOp, Effects, Event, LocalFault, LocalRight, Operation, ReceiveFault, Received,
    ReceivedKind, RemoteFault, RemoteRight, Request, Status, Taken,
};
use ib_wire::RKey;
use ib_wire::packet::FlushPlacement;

use super::super::function::FunctionState;
use super::super::memory::registration::Registration;
use super::super::memory::{Arrived, Gathered, ProtectionFault, RemoteRegion};
use super::super::qp::Side;
use super::super::work_queue::OwnedPayload;

/// A request of the send queue, but for what the machine keeps of it.
#[derive(Clone, Debug)]
pub(in super::super) struct Work {
    pub(in super::super) wr_id: u64,
    /// A success makes a completion.
    pub(in super::super) signalled: bool,
    pub(in super::super) payload: OwnedPayload,
    /// Of local requests.
    pub(in super::super) local: Option<Box<LocalWork>>,
}

/// A request that the adapter carries out by itself.
#[derive(Clone, Debug)]
pub(in super::super) enum LocalWork {
    Register(Registration),
    Bind(MwBind),
    /// The key.
    Invalidate(u32),
}

/// A receive that a message is put into.
#[derive(Clone, Debug)]
pub(in super::super) struct TakenReceive {
    wr_id: u64,
    scatter: SgeList,
    /// Protection domain of the queue that it was posted to.
    pd: PdHandle,
}

/// Why memory was refused last, to each work queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    send: Cause,
    receive: Cause,
}

impl Faults {
    const fn note(&mut self, side: Side, cause: Cause) {
        match side {
            Side::Send => self.send = cause,
            Side::Receive => self.receive = cause,
        }
    }
}

/// The surroundings of a queue pair, lent to its machine for a call.
#[derive(Debug)]
pub(super) struct Surroundings<'a> {
    state: &'a mut FunctionState,
    /// The queue pair.
    index: u32,
    /// Payload of the packets that arrived.
    arrived: Arrived<'a>,
    /// Payload of the packet that leaves.
    leaving: &'a mut Gathered,
    /// A send request completed.
    has_completed: bool,
    /// Local requests that were carried out.
    executed: u32,
}

impl<'a> Surroundings<'a> {
    pub(super) const fn new(
        state: &'a mut FunctionState,
        index: u32,
        arrived: Arrived<'a>,
        leaving: &'a mut Gathered,
    ) -> Self {
        Self {
            state,
            index,
            arrived,
            leaving,
            has_completed: false,
            executed: 0,
        }
    }

    /// Returns the local requests that were carried out since the surroundings were lent.
    pub(super) const fn executed(&self) -> u32 {
        self.executed
    }

    /// Returns `true` if a send request completed since the surroundings were lent.
    pub(super) const fn has_completed(&self) -> bool {
        self.has_completed
    }

    fn pd(&self) -> Result<PdHandle, ProtectionFault> {
        let qp = self.state.qp(QpHandle(self.index));
        qp.map(|qp| qp.pd)
            .map_err(|_| ProtectionFault(Cause::NotValid))
    }

    /// Returns a part of the arriving payload.
    fn part(&self, range: Range<u32>) -> Result<Arrived<'a>, ProtectionFault> {
        let part = self.arrived.get(range.start as usize..range.end as usize);
        part.ok_or(ProtectionFault(Cause::BadMessage))
    }

    /// Notes why memory was refused to a work queue, for the completion that the machine will make of it.
    fn noted<T, F: From<ProtectionFault>>(
        &mut self,
        side: Side,
        result: Result<T, ProtectionFault>,
    ) -> Result<T, F> {
        result.map_err(|fault| {
            let qp = self.state.qp_mut(QpHandle(self.index)).ok();
            if let Some(own) = qp.and_then(|qp| qp.connected_mut()) {
                own.faults.note(side, fault.0);
            }
            fault.into()
        })
    }

    fn completion(
        &self,
        wr_id: u64,
        (side, op): (Side, CompletionOp),
        status: Status,
    ) -> Completion {
        let qp = self.state.qp(QpHandle(self.index)).ok();
        let faults = qp.and_then(|qp| qp.connected()).map(|own| own.faults);
        Completion {
            wr_id,
            status: completion_status(status),
            cause: cause(side, status, faults.unwrap_or_default()),
            op,
            qpn: qp.map_or_else(ib_wire::Qpn::default, |qp| qp.numbers.external),
            ..Completion::BLANK
        }
    }
}

impl From<ProtectionFault> for LocalFault {
    fn from(_: ProtectionFault) -> Self {
        Self
    }
}

impl From<ProtectionFault> for RemoteFault {
    fn from(_: ProtectionFault) -> Self {
        Self
    }
}

impl Effects for Surroundings<'_> {
    type Buffer = Work;
    type Region = RemoteRegion;
    type Receive = TakenReceive;

    fn check_local(&mut self, work: &Work, len: u32, right: LocalRight) -> Result<(), LocalFault> {
        let access = match right {
            LocalRight::Gather => AccessFlags::empty(),
            LocalRight::Scatter => AccessFlags::LOCAL_WRITE,
        };
        let (given, sges) = work.payload.split();
        let len = u64::from(len).saturating_sub(given.len() as u64);
        let checked = self.state.memory.check_list(self.pd()?, sges, len, access);
        self.noted(Side::Send, checked)
    }

    fn gather(&mut self, work: &Work, range: Range<u32>) -> Result<(), LocalFault> {
        let pd = self.pd()?;
        let (given, sges) = work.payload.split();
        let (start, end) = (range.start as usize, range.end as usize);
        let head = given
            .get(start.min(given.len())..end.min(given.len()))
            .unwrap_or_default();
        let before = |at: usize| at.saturating_sub(given.len()) as u64;
        let rest = before(start)..before(end);
        let memory = &self.state.memory;
        self.leaving.clear();
        if head.is_empty() && self.leaving.may_stay(rest.end - rest.start) {
            let found = memory.find_range(pd, sges, &rest, self.leaving);
            if self.noted::<_, LocalFault>(Side::Send, found)? {
                return Ok(());
            }
            self.leaving.clear();
        }
        self.leaving.extend(head);
        let memory = &self.state.memory;
        let gathered = memory.gather_range(pd, sges, &rest, self.leaving);
        self.noted(Side::Send, gathered)
    }

    fn scatter(&mut self, work: &Work, offset: u32, payload: Range<u32>) -> Result<(), LocalFault> {
        let (pd, bytes) = (self.pd()?, self.part(payload)?);
        let (_, sges) = work.payload.split();
        let memory = &mut self.state.memory;
        let stored = memory.scatter_at(pd, sges, u64::from(offset), bytes);
        self.noted(Side::Send, stored)
    }

    fn store_original(&mut self, work: &Work, original: u64) -> Result<(), LocalFault> {
        let pd = self.pd()?;
        let (_, sges) = work.payload.split();
        let memory = &mut self.state.memory;
        let stored = memory.scatter_at(pd, sges, 0, Arrived::Bytes(&original.to_ne_bytes()));
        self.noted(Side::Send, stored)
    }

    fn execute(&mut self, work: &Work) -> Result<(), LocalFault> {
        self.executed += 1;
        let (pd, qp) = (self.pd()?, QpHandle(self.index));
        let memory = &mut self.state.memory;
        let executed = match work.local.as_deref().ok_or(LocalFault)? {
            LocalWork::Register(registration) => memory.fast_register(pd, registration),
            LocalWork::Bind(bind) => memory.bind(pd, qp, bind),
            LocalWork::Invalidate(key) => memory.invalidate(pd, qp, *key, AccessFlags::empty()),
        };
        self.noted(Side::Send, executed)
    }

    fn complete_send(&mut self, request: Request<Work>, status: Status) {
        self.has_completed = true;
        if status == Status::Success && !request.buffer.signalled {
            return;
        }
        let op = match request.buffer.local.as_deref() {
            Some(LocalWork::Register(_)) => CompletionOp::FastRegister,
            Some(LocalWork::Bind(_)) => CompletionOp::BindWindow,
            Some(LocalWork::Invalidate(_)) => CompletionOp::LocalInvalidate,
            None => completion_op(request.operation),
        };
        let completion = Completion {
            byte_len: request.len,
            ..self.completion(request.buffer.wr_id, (Side::Send, op), status)
        };
        self.state.complete(self.index, Side::Send, completion);
    }

    fn look_up(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u32,
        right: RemoteRight,
    ) -> Result<RemoteRegion, RemoteFault> {
        let access = match right {
            RemoteRight::Read => AccessFlags::REMOTE_READ,
            RemoteRight::Write => AccessFlags::REMOTE_WRITE,
            RemoteRight::Atomic => AccessFlags::REMOTE_ATOMIC,
        };
        let (user, memory) = ((self.pd()?, QpHandle(self.index)), &self.state.memory);
        let range = Some((addr, len.into()));
        let found = memory.look_up_remote(user, rkey.get(), range, access);
        self.noted(Side::Receive, found)
    }

    fn place(
        &mut self,
        region: RemoteRegion,
        addr: u64,
        payload: Range<u32>,
    ) -> Result<(), RemoteFault> {
        let bytes = self.part(payload)?;
        let placed = self.state.memory.place(region, addr, bytes);
        self.noted(Side::Receive, placed)
    }

    fn place_at_once(
        &mut self,
        region: RemoteRegion,
        addr: u64,
        payload: Range<u32>,
    ) -> Result<(), RemoteFault> {
        let bytes = self.part(payload)?.word().ok_or(RemoteFault)?;
        let memory = &mut self.state.memory;
        let placed = memory.update(region, addr, &mut |_| u64::from_ne_bytes(bytes));
        self.noted(Side::Receive, placed.map(|_| ()))
    }

    fn flush(
        &mut self,
        rkey: RKey,
        range: Option<(u64, u32)>,
        placement: FlushPlacement,
    ) -> Result<(), RemoteFault> {
        let mut access = AccessFlags::empty();
        for (asked, right) in [
            (FlushPlacement::GLOBAL, AccessFlags::FLUSH_GLOBAL),
            (FlushPlacement::PERSISTENT, AccessFlags::FLUSH_PERSISTENT),
        ] {
            access.set(right, placement.contains(asked));
        }
        let range = range.map(|(addr, len)| (addr, len.into()));
        let (user, memory) = ((self.pd()?, QpHandle(self.index)), &self.state.memory);
        let found = memory.look_up_remote(user, rkey.get(), range, access);
        self.noted::<_, RemoteFault>(Side::Receive, found)?;
        // A request that was executed has stored its bytes: other processors have to see them before the answer.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn fetch(&mut self, region: RemoteRegion, addr: u64, len: u32) -> Result<(), RemoteFault> {
        let memory = &self.state.memory;
        self.leaving.clear();
        // The payload of an answer does not stay: a registration that ends is refused from the next packet on, not from this one.
        let fetched = memory.fetch(region, addr, len, self.leaving);
        self.noted(Side::Receive, fetched)
    }

    fn atomic(
        &mut self,
        region: RemoteRegion,
        addr: u64,
        op: AtomicOp,
    ) -> Result<u64, RemoteFault> {
        let memory = &mut self.state.memory;
        let original = memory.update(region, addr, &mut |original| op.apply(original));
        self.noted(Side::Receive, original)
    }

    fn take_receive(&mut self) -> Result<Option<Taken<TakenReceive>>, ReceiveFault<TakenReceive>> {
        let qp = self.state.qp(QpHandle(self.index));
        let srq = qp.map_or(None, |qp| qp.srq);
        let pd = match srq.map(|srq| self.state.srq(srq)) {
            Some(Ok(srq)) => srq.pd,
            _ => self.pd().map_err(|_| ReceiveFault::Unreachable)?,
        };
        Ok(self.state.take_receive(self.index).map(|receive| Taken {
            capacity: total_len(receive.scatter.as_slice()),
            receive: TakenReceive {
                wr_id: receive.wr_id,
                scatter: receive.scatter,
                pd,
            },
        }))
    }

    fn fill(
        &mut self,
        receive: &TakenReceive,
        offset: u32,
        payload: Range<u32>,
    ) -> Result<(), LocalFault> {
        let bytes = self.part(payload)?;
        let (sges, offset) = (receive.scatter.as_slice(), u64::from(offset));
        let memory = &mut self.state.memory;
        let stored = memory.scatter_at(receive.pd, sges, offset, bytes);
        self.noted(Side::Receive, stored)
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), RemoteFault> {
        let (pd, qp) = (self.pd()?, QpHandle(self.index));
        let (memory, right) = (&mut self.state.memory, AccessFlags::REMOTE_INVALIDATE);
        let invalidated = memory.invalidate(pd, qp, rkey.get(), right);
        self.noted(Side::Receive, invalidated)
    }

    fn complete_receive(&mut self, received: Received<TakenReceive>) {
        let op = match received.kind {
            ReceivedKind::Send => CompletionOp::Recv,
            ReceivedKind::WriteImmediate => CompletionOp::RecvRdmaImm,
        };
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::SOLICITED, received.solicited);
        flags.set(CompletionFlags::IMMEDIATE, received.immediate.is_some());
        flags.set(CompletionFlags::INVALIDATED, received.invalidated.is_some());
        let invalidated = received.invalidated.map_or(0, RKey::get);
        let completion = Completion {
            byte_len: received.len,
            immediate: received.immediate.map_or(invalidated, u32::from_be_bytes),
            flags,
            ..self.completion(received.receive.wr_id, (Side::Receive, op), received.status)
        };
        self.state.complete(self.index, Side::Receive, completion);
    }

    fn raise(&mut self, event: Event) {
        let qp = QpHandle(self.index);
        self.state.events.raise(match event {
            Event::CommunicationEstablished => AsyncEvent::CommunicationEstablished(qp),
            Event::SendQueueDrained => {
                let asked = self
                    .state
                    .qp(qp)
                    .is_ok_and(|qp| qp.connected().is_some_and(|own| own.announces_drain));
                if !asked {
                    return;
                }
                AsyncEvent::SendQueueDrained(qp)
            }
            Event::RequestError => AsyncEvent::QpRequestError(qp),
            Event::AccessError => AsyncEvent::QpAccessError(qp),
            Event::Fatal => AsyncEvent::QpFatal(qp),
            Event::LastReceiveReached => AsyncEvent::LastWqeReached(qp),
        });
    }
}

const fn completion_op(operation: Operation) -> CompletionOp {
    match operation {
        Operation::Send | Operation::SendImmediate(_) | Operation::SendInvalidate(_) => {
            CompletionOp::Send
        }
        Operation::Write(_) | Operation::WriteImmediate(..) => CompletionOp::RdmaWrite,
        Operation::Read(_) => CompletionOp::RdmaRead,
        Operation::Atomic(_, AtomicOp::CompareSwap { .. } | AtomicOp::MaskedCompareSwap { .. }) => {
            CompletionOp::CompareSwap
        }
        Operation::Atomic(_, AtomicOp::FetchAdd { .. } | AtomicOp::MaskedFetchAdd { .. }) => {
            CompletionOp::FetchAdd
        }
        Operation::AtomicWrite(_) => CompletionOp::AtomicWrite,
        Operation::Flush(..) => CompletionOp::Flush,
        // Its work says which.
        Operation::Local { .. } => CompletionOp::LocalInvalidate,
    }
}

/// Returns the check that a status of a work queue stands for, of memory the one that failed last.
const fn cause(side: Side, status: Status, faults: Faults) -> Cause {
    match (status, side) {
        (Status::Success | Status::Flushed, _) => Cause::None,
        (Status::LocalProtection | Status::MemoryManagement, Side::Send) => faults.send,
        (
            Status::LocalProtection | Status::MemoryManagement | Status::LocalAccess,
            Side::Receive,
        ) => faults.receive,
        (Status::LocalLength, Side::Send) => Cause::TooLong,
        (Status::LocalLength, Side::Receive) => Cause::ReceiveTooShort,
        (Status::LocalQpOperation, _) => Cause::BadRequest,
        (Status::NoReads, _) => Cause::NoReads,
        (Status::BadResponse, _) => Cause::BadAnswer,
        (Status::AnswerLength, _) => Cause::AnswerLength,
        (Status::RemoteInvalidRequest, Side::Receive) => Cause::BadMessage,
        (
            Status::RemoteInvalidRequest
            | Status::RemoteAccess
            | Status::RemoteOperation
            | Status::LocalAccess,
            _,
        ) => Cause::Refused,
        (Status::RetryExceeded, _) => Cause::Retries,
        (Status::RnrRetryExceeded, _) => Cause::RnrRetries,
    }
}

const fn completion_status(status: Status) -> CompletionStatus {
    match status {
        Status::Success => CompletionStatus::Success,
        Status::LocalLength | Status::AnswerLength => CompletionStatus::LocalLength,
        Status::LocalQpOperation | Status::NoReads => CompletionStatus::LocalQpOperation,
        Status::LocalProtection => CompletionStatus::LocalProtection,
        Status::MemoryManagement => CompletionStatus::MwBind,
        Status::Flushed => CompletionStatus::Flushed,
        Status::BadResponse => CompletionStatus::BadResponse,
        Status::LocalAccess => CompletionStatus::LocalAccess,
        Status::RemoteInvalidRequest => CompletionStatus::RemoteInvalidRequest,
        Status::RemoteAccess => CompletionStatus::RemoteAccess,
        Status::RemoteOperation => CompletionStatus::RemoteOperation,
        Status::RetryExceeded => CompletionStatus::RetryExceeded,
        Status::RnrRetryExceeded => CompletionStatus::RnrRetryExceeded,
    }
}
