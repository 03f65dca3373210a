//! Arriving sends and writes, for the responders of both services.

use ib_wire::RKey;

use crate::effects::{Effects, Event, ReceiveFault, Received, ReceivedKind, RemoteRight};
use crate::request::{MAX_MESSAGE, RemoteRange, Status};
use crate::run::{Ending, Run, RunOperation};
use crate::timing::PathMtu;

/// State of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderState {
    /// Requests are served, the first raises an event: RTR.
    Listening,
    /// Requests are served: RTS and SQD.
    Serving,
    /// A request was refused, or the queue pair is in error: requests are dropped. Answers that are owed still
    /// leave.
    Failed,
}

/// A message of which packets are still to come.
#[derive(Clone, Copy, Debug)]
enum Message<R> {
    Send,
    Write {
        region: Option<R>,
        range: RemoteRange,
    },
}

/// A receive in use.
#[derive(Clone, Copy, Debug)]
struct Held<V> {
    receive: V,
    capacity: u64,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive request.
    NotReady,
    /// Sequence, opcode, right of the queue pair, length or resource.
    Invalid,
    /// Longer than its receive.
    TooLong,
    /// Key, range or right of memory.
    Access,
    /// Memory of the receive request.
    ReceiveMemory,
    /// The receive request is malformed.
    ReceiveMalformed,
    /// The receive queue cannot be read.
    ReceiveQueue,
}

/// The message that is arriving, if any, and the receive that it uses.
#[derive(Clone, Debug)]
pub(crate) struct Inbound<R, V> {
    message: Option<Message<R>>,
    /// Bytes of the message that arrived.
    offset: u32,
    held: Option<Held<V>>,
}

impl<R: Copy, V> Inbound<R, V> {
    pub(crate) const fn new() -> Self {
        Self {
            message: None,
            offset: 0,
            held: None,
        }
    }

    /// Returns `true` if packets of a message are still to come.
    pub(crate) const fn is_under_way(&self) -> bool {
        self.message.is_some()
    }

    /// Returns `true` if a run is the next of the message in progress, or begins one while there is none.
    pub(crate) const fn is_continued_by(&self, run: &Run) -> bool {
        match (&self.message, run.operation) {
            (None, _) => run.first,
            (Some(Message::Send), RunOperation::Send(_))
            | (Some(Message::Write { .. }), RunOperation::Write(..)) => !run.first,
            _ => false,
        }
    }

    /// Abandons the message in progress. Its receive is kept for the next one.
    pub(crate) fn give_up(&mut self) {
        self.message = None;
    }

    /// Fails the connection, unless it has failed. The receive in use says why, or `event` does if there is none.
    pub(crate) fn fail<E>(
        &mut self,
        state: &mut ResponderState,
        shared_receives: bool,
        status: Status,
        event: Option<Event>,
        fx: &mut E,
    ) where
        E: Effects<Region = R, Receive = V>,
    {
        if *state == ResponderState::Failed {
            return;
        }
        *state = ResponderState::Failed;
        let told = self.end(status, fx);
        if let Some(event) = event.filter(|_| !told) {
            fx.raise(event);
        }
        if shared_receives {
            fx.raise(Event::LastReceiveReached);
        }
    }

    /// Completes the receive in use with an error. Returns `false` if there is none.
    fn end<E>(&mut self, status: Status, fx: &mut E) -> bool
    where
        E: Effects<Region = R, Receive = V>,
    {
        self.message = None;
        let Some(held) = self.held.take() else {
            return false;
        };
        fx.complete_receive(Received {
            receive: held.receive,
            status,
            kind: ReceivedKind::Send,
            len: 0,
            immediate: None,
            invalidated: None,
            solicited: false,
        });
        true
    }

    /// Takes a run of a send, or of a write if the queue pair has the right. A refused one changes nothing but
    /// that a receive may be in use.
    ///
    /// `start` is the place of the run's first byte in the payload.
    pub(crate) fn take<E>(
        &mut self,
        run: &Run,
        start: u32,
        pmtu: PathMtu,
        may_write: bool,
        fx: &mut E,
    ) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        match run.operation {
            RunOperation::Send(ending) => self.send(run, ending, start, pmtu, fx),
            RunOperation::Write(range, ending) if may_write => {
                self.write(run, range, ending, start, pmtu, fx)
            }
            _ => Err(Refusal::Invalid),
        }
    }

    fn send<E>(
        &mut self,
        run: &Run,
        ending: Ending,
        start: u32,
        pmtu: PathMtu,
        fx: &mut E,
    ) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        let offset = if run.first { 0 } else { self.offset };
        if run.first {
            self.take_receive(fx)?;
        }
        let held = self.held.as_ref().ok_or(Refusal::Invalid)?;
        if !run.has_legal_length(pmtu) {
            return Err(Refusal::Invalid);
        }
        let end = offset.checked_add(run.len).ok_or(Refusal::Invalid)?;
        if end > MAX_MESSAGE {
            return Err(Refusal::Invalid);
        }
        if u64::from(end) > held.capacity {
            return Err(Refusal::TooLong);
        }
        if run.len > 0 {
            fx.fill(&held.receive, offset, start..start + run.len)
                .map_err(|_| Refusal::ReceiveMemory)?;
        }
        if run.last {
            let invalidated = match ending {
                Ending::Invalidate(rkey) => {
                    // Before the acknowledgement, so that the sender learns of a key that cannot be invalidated.
                    fx.invalidate(rkey).map_err(|_| Refusal::Access)?;
                    Some(rkey)
                }
                _ => None,
            };
            self.received(run, ReceivedKind::Send, end, ending, invalidated, fx);
        }
        self.advance(run, end, Message::Send);
        Ok(())
    }

    fn write<E>(
        &mut self,
        run: &Run,
        range: Option<RemoteRange>,
        ending: Ending,
        start: u32,
        pmtu: PathMtu,
        fx: &mut E,
    ) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        let (offset, range) = match (&self.message, range) {
            (Some(Message::Write { range, .. }), _) => (self.offset, *range),
            (_, Some(range)) => (0, range),
            _ => return Err(Refusal::Invalid),
        };
        let end = u64::from(offset) + u64::from(run.len);
        let total = u64::from(range.len);
        let fits = if run.last { end == total } else { end < total };
        if range.len > MAX_MESSAGE || !fits || !run.has_legal_length(pmtu) {
            return Err(Refusal::Invalid);
        }
        let region = match self.message {
            Some(Message::Write { region, .. }) => region,
            // A write of 0 bytes names no memory (IBA C9-88).
            _ if range.len == 0 => None,
            _ => Some(
                fx.look_up(range.rkey, range.addr, range.len, RemoteRight::Write)
                    .map_err(|_| Refusal::Access)?,
            ),
        };
        let immediate = run.last && matches!(ending, Ending::Immediate(_));
        if immediate {
            self.take_receive(fx)?;
        }
        if let Some(region) = region {
            let addr = range.addr.wrapping_add(u64::from(offset));
            fx.place(region, addr, start..start + run.len)
                .map_err(|_| Refusal::Access)?;
        }
        if immediate {
            let kind = ReceivedKind::WriteImmediate;
            self.received(run, kind, range.len, ending, None, fx);
        }
        self.advance(run, offset + run.len, Message::Write { region, range });
        Ok(())
    }

    /// Takes the receive request of the message in progress, unless it has one.
    fn take_receive<E>(&mut self, fx: &mut E) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        if self.held.is_some() {
            return Ok(());
        }
        match fx.take_receive() {
            Ok(Some(taken)) => {
                self.held = Some(Held {
                    receive: taken.receive,
                    capacity: taken.capacity,
                });
                Ok(())
            }
            Ok(None) => Err(Refusal::NotReady),
            Err(ReceiveFault::Malformed(receive)) => {
                self.held = Some(Held {
                    receive,
                    capacity: 0,
                });
                Err(Refusal::ReceiveMalformed)
            }
            Err(ReceiveFault::Unreachable) => Err(Refusal::ReceiveQueue),
        }
    }

    /// Completes the receive in use.
    fn received<E>(
        &mut self,
        run: &Run,
        kind: ReceivedKind,
        len: u32,
        ending: Ending,
        invalidated: Option<RKey>,
        fx: &mut E,
    ) where
        E: Effects<Region = R, Receive = V>,
    {
        let Some(held) = self.held.take() else {
            return;
        };
        let immediate = match ending {
            Ending::Immediate(data) => Some(data),
            _ => None,
        };
        fx.complete_receive(Received {
            receive: held.receive,
            status: Status::Success,
            kind,
            len,
            immediate,
            invalidated,
            solicited: run.solicited,
        });
    }

    /// Moves past a run.
    fn advance(&mut self, run: &Run, offset: u32, message: Message<R>) {
        self.offset = offset;
        self.message = (!run.last).then_some(message);
    }
}
