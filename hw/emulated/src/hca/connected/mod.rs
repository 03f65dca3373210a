//! The transport of RC and UC queue pairs: attributes, and the machine that holds them to it.
//!
//! The machines are those of [`ib_transport`]. One exists from the transition to RTR to the reset; it is taken out of
//! its queue pair while it works, so that it can be lent the rest of the function. Packets leave in the turns of
//! [`Device::serve_backlog`](super::Device), a packet at a time or a run that goes whole.

mod drive;
mod effects;
mod refusals;
mod runs;

use hca_api::{
    AccessFlags, AddressVector, HcaError, Payload, QpModify, RemoteAddress, SendFlags, SendOp,
    SendRequest,
};
use hca_functions::total_len;
use ib_transport::{
    AckTimeout, AtomicOp, Effects, Flush, Operation, PathMtu, ReliableConnection, RemoteRights,
    RemoteStart, Request, RequesterConfig, RequesterState, ResponderConfig, RetryCount,
    RnrRetryCount, RnrTimer, Transfer, UcReceiverConfig, UcSenderConfig, UcSenderState,
    UnreliableConnection,
};
use ib_vtime::{Instant, TimerKey};
use ib_wire::packet::{FlushPlacement, FlushSelectivity, TransportService};
use ib_wire::{Mtu, Psn, Qpn, RKey};

use super::connection_counters::ConnectionCounters;
use super::memory::RemoteRegion;
use super::memory::registration::Registration;
use super::work_queue::{OwnedPayload, SpareBytes};
use crate::{DropReason, PacketSource};
use effects::{Faults, LocalWork, Surroundings, TakenReceive, Work};
use refusals::Refusals;

/// PSNs that a requester may have unacknowledged.
const WINDOW: u32 = 128;
/// Packets inside a message between two that ask for an acknowledgement.
const ACK_INTERVAL: u32 = 16;
/// Bytes of the longest message: 1 GiB.
const MAX_MESSAGE: u32 = 1 << 30;

/// Attributes of a connection, as transitions brought them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attributes {
    pub(super) primary: Option<AddressVector>,
    pub(super) dest_qpn: Qpn,
    pub(super) path_mtu: Mtu,
    pub(super) access: AccessFlags,
    rq_psn: Psn,
    sq_psn: Psn,
    /// ACK timeout as the IBA code.
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    /// RNR timer as the IBA code.
    pub(super) min_rnr_timer: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
}

impl Attributes {
    /// Takes what a change gives; the caller has checked it.
    pub(super) fn apply(&mut self, change: &QpModify) {
        fn set<T: Copy>(to: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *to = given;
            }
        }
        if change.primary.is_some() {
            self.primary = change.primary;
        }
        set(&mut self.dest_qpn, change.dest_qpn);
        set(&mut self.path_mtu, change.path_mtu);
        set(&mut self.access, change.access);
        set(&mut self.rq_psn, change.rq_psn);
        set(&mut self.sq_psn, change.sq_psn);
        set(&mut self.timeout, change.timeout);
        set(&mut self.retry_count, change.retry_count);
        set(&mut self.rnr_retry, change.rnr_retry);
        set(&mut self.min_rnr_timer, change.min_rnr_timer);
        set(&mut self.max_rd_atomic, change.max_rd_atomic);
        set(&mut self.max_dest_rd_atomic, change.max_dest_rd_atomic);
    }

    const fn requester(&self, pmtu: PathMtu) -> RequesterConfig {
        RequesterConfig {
            pmtu,
            first_psn: self.sq_psn,
            ack_timeout: AckTimeout::from_low_bits(self.timeout),
            retries: RetryCount::from_low_bits(self.retry_count),
            rnr_retries: RnrRetryCount::from_low_bits(self.rnr_retry),
            max_reads: self.max_rd_atomic,
            window: WINDOW,
            ack_interval: ACK_INTERVAL,
            max_message: MAX_MESSAGE,
        }
    }

    const fn sender(&self, pmtu: PathMtu) -> UcSenderConfig {
        UcSenderConfig {
            pmtu,
            first_psn: self.sq_psn,
            max_message: MAX_MESSAGE,
        }
    }

    const fn rights(&self) -> RemoteRights {
        RemoteRights {
            read: self.access.contains(AccessFlags::REMOTE_READ),
            write: self.access.contains(AccessFlags::REMOTE_WRITE),
            atomic: self.access.contains(AccessFlags::REMOTE_ATOMIC),
            flush: placements(self.access),
        }
    }
}

/// Returns the placements that flushes by the rights may ask for.
const fn placements(access: AccessFlags) -> FlushPlacement {
    match (
        access.contains(AccessFlags::FLUSH_GLOBAL),
        access.contains(AccessFlags::FLUSH_PERSISTENT),
    ) {
        (false, false) => FlushPlacement::NONE,
        (true, false) => FlushPlacement::GLOBAL,
        (false, true) => FlushPlacement::PERSISTENT,
        (true, true) => FlushPlacement::GLOBAL.union(FlushPlacement::PERSISTENT),
    }
}

/// Way from a queue pair to its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// In frames, each of which crosses every link by itself.
    #[default]
    Packets,
    /// In runs that are handed over whole.
    Whole,
}

/// The transport of an RC or UC queue pair.
#[derive(Debug)]
pub(super) struct Connected {
    service: TransportService,
    shared_receives: bool,
    pub(super) attributes: Attributes,
    pub(super) counters: ConnectionCounters,
    /// `None` before RTR, and while it is lent out.
    machine: Option<Box<Machine>>,
    /// A machine exists, here or lent out.
    is_live: bool,
    /// The entry in the device's timer queue. It fires at the machine's deadline or earlier.
    timer: Option<TimerKey>,
    /// RNR NAKs in a row.
    refusals: Refusals,
    /// The consumer asked to be told when the send queue is drained.
    announces_drain: bool,
    faults: Faults,
    /// Way that the latest packets took.
    pub(super) way: Way,
    /// The peer of whole runs is of another function, so it copies their payload from memory to memory.
    is_copied: bool,
}

impl Connected {
    pub(super) fn new(service: TransportService, shared_receives: bool) -> Self {
        Self {
            service,
            shared_receives,
            attributes: Attributes::default(),
            counters: ConnectionCounters::default(),
            machine: None,
            is_live: false,
            timer: None,
            refusals: Refusals::default(),
            announces_drain: false,
            faults: Faults::default(),
            way: Way::default(),
            is_copied: false,
        }
    }

    /// Returns `true` from RTR on, in ERR too.
    pub(super) const fn is_live(&self) -> bool {
        self.is_live
    }

    /// Ends the machine; nothing completes. The device's timer fires once more, for nothing.
    pub(super) fn reset(&mut self) {
        self.machine = None;
        self.is_live = false;
        self.refusals = Refusals::default();
        self.announces_drain = false;
        self.way = Way::default();
        self.attributes = Attributes::default();
    }

    /// Checks that a packet whose sender is known was sent by the peer. Siblings of the peer have its LID, and numbers are
    /// unique within an adapter.
    ///
    /// # Errors
    /// [`DropReason::ForeignPeer`].
    pub(super) fn check_source(&self, source: Option<PacketSource>) -> Result<(), DropReason> {
        match source {
            Some(source) if source.qpn != self.attributes.dest_qpn => Err(DropReason::ForeignPeer),
            _ => Ok(()),
        }
    }

    /// Makes the machine for RTR.
    fn listen(&mut self) -> Result<(), HcaError> {
        let pmtu = self.path_mtu()?;
        let attributes = &self.attributes;
        let machine = if self.service == TransportService::Uc {
            let receiver = UcReceiverConfig {
                pmtu,
                first_psn: attributes.rq_psn,
                write: attributes.rights().write,
                shared_receives: self.shared_receives,
            };
            let sender = attributes.sender(pmtu);
            Machine::Unreliable(UnreliableConnection::new(sender, receiver))
        } else {
            let responder = ResponderConfig {
                pmtu,
                first_psn: attributes.rq_psn,
                rights: attributes.rights(),
                max_reads: attributes.max_dest_rd_atomic,
                min_rnr_timer: RnrTimer::from_low_bits(attributes.min_rnr_timer),
                shared_receives: self.shared_receives,
            };
            let requester = attributes.requester(pmtu);
            Machine::Reliable(ReliableConnection::new(requester, responder))
        };
        self.machine = Some(Box::new(machine));
        self.is_live = true;
        Ok(())
    }

    fn path_mtu(&self) -> Result<PathMtu, HcaError> {
        PathMtu::new(self.attributes.path_mtu).ok_or(HcaError::InvalidParameter)
    }

    /// Hands changed attributes to the machine, those of a transition to RTS before it starts.
    fn configure(&mut self) -> Result<(), HcaError> {
        if !self.is_live {
            return Ok(());
        }
        let pmtu = self.path_mtu()?;
        let attributes = self.attributes;
        match self.machine.as_deref_mut() {
            Some(Machine::Reliable(connection)) => {
                let changed = attributes.requester(pmtu);
                let requester = connection.requester_mut();
                if requester.state() == RequesterState::Waiting {
                    requester.configure(changed);
                } else {
                    requester.modify(|config| *config = changed);
                }
                let timer = RnrTimer::from_low_bits(attributes.min_rnr_timer);
                let responder = connection.responder_mut();
                responder.modify(attributes.rights(), attributes.max_dest_rd_atomic, timer);
            }
            Some(Machine::Unreliable(connection)) => {
                connection.configure(attributes.sender(pmtu));
                connection.permit_writes(attributes.rights().write);
            }
            None => {}
        }
        Ok(())
    }

    /// Returns the requests that are posted and not complete.
    pub(super) fn outstanding(&self) -> usize {
        match self.machine.as_deref() {
            Some(Machine::Reliable(connection)) => connection.requester().len(),
            Some(Machine::Unreliable(connection)) => connection.sender().len(),
            None => 0,
        }
    }

    /// Returns `true` in SQD until everything that was begun is complete.
    pub(super) fn is_draining(&self) -> bool {
        match self.machine.as_deref() {
            Some(Machine::Reliable(connection)) => {
                connection.requester().state() == RequesterState::Draining
            }
            Some(Machine::Unreliable(connection)) => {
                connection.sender().state() == UcSenderState::Draining
            }
            None => false,
        }
    }

    /// Returns the next PSN to send and the next to expect.
    pub(super) fn psns(&self) -> (Psn, Psn) {
        let attributes = &self.attributes;
        match self.machine.as_deref() {
            Some(Machine::Reliable(connection)) => {
                let responder = connection.responder();
                (connection.requester().next_psn(), responder.expected_psn())
            }
            Some(Machine::Unreliable(connection)) => {
                let receiver = connection.receiver();
                (connection.sender().next_psn(), receiver.expected_psn())
            }
            None => (attributes.sq_psn, attributes.rq_psn),
        }
    }
}

/// The machine of either service.
#[derive(Debug)]
enum Machine {
    Reliable(ReliableConnection<Work, RemoteRegion, TakenReceive>),
    Unreliable(UnreliableConnection<Work, RemoteRegion, TakenReceive>),
}

impl Machine {
    fn is_failed(&self) -> bool {
        match self {
            Self::Reliable(connection) => connection.is_failed(),
            Self::Unreliable(connection) => connection.is_failed(),
        }
    }

    /// Returns `true` in SQE.
    fn has_send_error(&self) -> bool {
        match self {
            Self::Reliable(_) => false,
            Self::Unreliable(connection) => connection.sender().state() == UcSenderState::SendError,
        }
    }

    /// Returns the times that packets were sent again, and the RNR NAKs received.
    const fn repeats(&self) -> (u64, u64) {
        match self {
            Self::Reliable(connection) => {
                let requester = connection.requester();
                (requester.retransmissions(), requester.rnr_naks())
            }
            Self::Unreliable(_) => (0, 0),
        }
    }

    fn start(&mut self) {
        match self {
            Self::Reliable(connection) => connection.start(),
            Self::Unreliable(connection) => connection.start(),
        }
    }

    fn post(&mut self, request: Request<Work>, fx: &mut Surroundings<'_>) {
        match self {
            Self::Reliable(connection) => connection.post(request, fx),
            Self::Unreliable(connection) => connection.post(request, fx),
        }
    }

    fn handle(&mut self, now: Instant, transfer: &Transfer, fx: &mut Surroundings<'_>) {
        match self {
            Self::Reliable(connection) => connection.handle(now, transfer, fx),
            Self::Unreliable(connection) => connection.handle(transfer, fx),
        }
    }

    /// Returns the next packets to send, `budget` at most.
    #[must_use]
    fn poll_transmit(
        &mut self,
        now: Instant,
        budget: u32,
        fx: &mut Surroundings<'_>,
    ) -> Option<Transfer> {
        match self {
            Self::Reliable(connection) => connection.poll_transmit(now, budget, fx),
            Self::Unreliable(connection) => connection.poll_transmit(budget, fx),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Reliable(connection) => connection.poll_timeout(),
            Self::Unreliable(_) => None,
        }
    }

    fn handle_timeout(&mut self, now: Instant, fx: &mut Surroundings<'_>) {
        if let Self::Reliable(connection) = self {
            connection.handle_timeout(now, fx);
        }
    }

    fn drain(&mut self, fx: &mut Surroundings<'_>) {
        match self {
            Self::Reliable(connection) => connection.drain(fx),
            Self::Unreliable(connection) => connection.drain(fx),
        }
    }

    fn abort<E>(&mut self, fx: &mut E)
    where
        E: Effects<Buffer = Work, Region = RemoteRegion, Receive = TakenReceive>,
    {
        match self {
            Self::Reliable(connection) => connection.abort(fx),
            Self::Unreliable(connection) => connection.abort(fx),
        }
    }
}

/// Makes the machine's request of a consumer's one. An operation that the service lacks completes with an error in its turn.
///
/// # Errors
/// [`HcaError::InvalidParameter`] for a destination, and for a read that names no memory.
fn request(
    signal_all: bool,
    request: &SendRequest<'_>,
    spare: &mut SpareBytes,
) -> Result<Request<Work>, HcaError> {
    let operation = operation(request);
    let scatters = matches!(operation, Operation::Read(_) | Operation::Atomic(..));
    if scatters && !matches!(request.payload, Payload::Gather(_)) {
        return Err(HcaError::InvalidParameter);
    }
    if request.destination.is_some() {
        return Err(HcaError::InvalidParameter);
    }
    let local = local_work(&request.op);
    let payload = if local.is_some() || matches!(operation, Operation::Flush(..)) {
        Payload::Gather(&[])
    } else {
        request.payload
    };
    let payload = OwnedPayload::new(payload, spare);
    let (given, sges) = payload.split();
    let len = match request.op {
        SendOp::Flush { len, .. } => len.unwrap_or(0).into(),
        _ => given.len() as u64 + total_len(sges),
    };
    Ok(Request {
        operation,
        // What does not fit is longer than any message may be.
        len: u32::try_from(len).unwrap_or(u32::MAX),
        fence: (request.flags).intersects(SendFlags::FENCE | SendFlags::STRONG_FENCE),
        solicited: request.flags.contains(SendFlags::SOLICITED),
        buffer: Work {
            wr_id: request.wr_id,
            signalled: signal_all || request.flags.contains(SendFlags::SIGNALED),
            payload,
            local,
        },
    })
}

/// Returns what the adapter carries out by itself of a request.
fn local_work(op: &SendOp<'_>) -> Option<Box<LocalWork>> {
    let work = match op {
        SendOp::FastRegister(given) => LocalWork::Register(Registration::new(given)),
        SendOp::BindWindow(bind) => LocalWork::Bind(*bind),
        SendOp::LocalInvalidate(key) => LocalWork::Invalidate(key.0),
        _ => return None,
    };
    Some(Box::new(work))
}

fn operation(request: &SendRequest<'_>) -> Operation {
    let start = |remote: RemoteAddress| RemoteStart {
        addr: remote.addr,
        rkey: RKey::new(remote.rkey.0),
    };
    match request.op {
        SendOp::Send => Operation::Send,
        SendOp::SendImmediate(data) => Operation::SendImmediate(data.to_be_bytes()),
        SendOp::RdmaWrite(remote) => Operation::Write(start(remote)),
        SendOp::RdmaWriteImmediate(remote, data) => {
            Operation::WriteImmediate(start(remote), data.to_be_bytes())
        }
        SendOp::RdmaRead(remote) => Operation::Read(start(remote)),
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => Operation::Atomic(start(remote), AtomicOp::CompareSwap { compare, swap }),
        SendOp::FetchAdd { remote, add } => {
            Operation::Atomic(start(remote), AtomicOp::FetchAdd { add })
        }
        SendOp::MaskedCompareSwap {
            remote,
            compare,
            compare_mask,
            swap,
            swap_mask,
        } => {
            let op = AtomicOp::MaskedCompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            };
            Operation::Atomic(start(remote), op)
        }
        SendOp::MaskedFetchAdd {
            remote,
            add,
            boundary,
        } => Operation::Atomic(start(remote), AtomicOp::MaskedFetchAdd { add, boundary }),
        SendOp::AtomicWrite(remote) => Operation::AtomicWrite(start(remote)),
        SendOp::Flush {
            remote,
            len,
            placement,
        } => {
            let selectivity = match len {
                Some(_) => FlushSelectivity::RANGE,
                None => FlushSelectivity::REGION,
            };
            let flush = Flush {
                placement,
                selectivity,
            };
            Operation::Flush(start(remote), flush)
        }
        SendOp::SendInvalidate(key) => Operation::SendInvalidate(RKey::new(key.0)),
        SendOp::LocalInvalidate(_) => Operation::Local { after_all: true },
        SendOp::FastRegister(_) | SendOp::BindWindow(_) => Operation::Local {
            after_all: request.flags.contains(SendFlags::STRONG_FENCE),
        },
    }
}
