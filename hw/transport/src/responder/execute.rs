//! Requests at the expected PSN (IBA 9.7.4.1).

use ib_wire::Psn;

use super::history::Record;
use super::{Held, Message, Refusal, Responder, ResponderState};
use crate::effects::{Effects, Event, ReceiveFault, Received, ReceivedKind, RemoteRight};
use crate::psn::MAX_UNACKNOWLEDGED;
use crate::request::{AtomicOp, MAX_MESSAGE, RemoteRange, RemoteStart, Status};
use crate::run::{Ending, Run, RunOperation};

impl<R: Copy, V> Responder<R, V> {
    /// Takes a run at the expected PSN. One that cannot be taken whole is taken in halves, down to the packet
    /// that is refused. Returns `false` if one was.
    ///
    /// `start` is the place of the run's first byte in the payload.
    pub(super) fn accept<E>(&mut self, run: &Run, start: u32, fx: &mut E) -> bool
    where
        E: Effects<Region = R, Receive = V>,
    {
        let psn = self.expected;
        let Err(refusal) = self.execute(run, start, fx) else {
            self.nak_sent = false;
            self.nak = None;
            if run.ack_request
                && !matches!(
                    run.operation,
                    RunOperation::Read(_) | RunOperation::Atomic(..)
                )
            {
                self.ack = Some(psn.wrapping_add(run.packets - 1));
            }
            return true;
        };
        if let Some((front, back)) = run.split(run.packets / 2, self.config.pmtu) {
            return self.accept(&front, start, fx)
                && self.accept(&back, start.saturating_add(front.len), fx);
        }
        self.refuse(psn, refusal, fx);
        false
    }

    /// Executes a run, or changes nothing that a peer or a consumer sees.
    fn execute<E>(&mut self, run: &Run, start: u32, fx: &mut E) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        let continues = match (&self.message, run.operation) {
            (None, _) => run.first,
            (Some(Message::Send), RunOperation::Send(_))
            | (Some(Message::Write { .. }), RunOperation::Write(..)) => !run.first,
            _ => false,
        };
        if !continues {
            return Err(Refusal::Invalid);
        }
        if self.state == ResponderState::Listening && !self.announced {
            self.announced = true;
            fx.raise(Event::CommunicationEstablished);
        }
        match run.operation {
            RunOperation::Send(ending) => self.send(run, ending, start, fx),
            RunOperation::Write(range, ending) => self.write(run, range, ending, start, fx),
            RunOperation::Read(range) => self.read(run, range, fx),
            RunOperation::Atomic(at, op) => self.atomic(run, at, op, fx),
            RunOperation::Reserved => Err(Refusal::Invalid),
        }
    }

    fn send<E>(&mut self, run: &Run, ending: Ending, start: u32, fx: &mut E) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        let offset = if run.first { 0 } else { self.offset };
        if run.first {
            self.take_receive(fx)?;
        }
        let held = self.held.as_ref().ok_or(Refusal::Invalid)?;
        if !run.has_legal_length(self.config.pmtu) {
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
        fx: &mut E,
    ) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        if !self.config.rights.write {
            return Err(Refusal::Invalid);
        }
        let (offset, range) = match (&self.message, range) {
            (Some(Message::Write { range, .. }), _) => (self.offset, *range),
            (_, Some(range)) => (0, range),
            _ => return Err(Refusal::Invalid),
        };
        let end = u64::from(offset) + u64::from(run.len);
        let total = u64::from(range.len);
        let fits = if run.last { end == total } else { end < total };
        if range.len > MAX_MESSAGE || !fits || !run.has_legal_length(self.config.pmtu) {
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

    fn read<E>(&mut self, run: &Run, range: RemoteRange, fx: &mut E) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        let packets = self.config.pmtu.packets(range.len);
        let served = self.config.rights.read && self.history.has_room();
        if !served || run.len > 0 || range.len > MAX_MESSAGE || packets > MAX_UNACKNOWLEDGED {
            return Err(Refusal::Invalid);
        }
        let region = if range.len == 0 {
            None
        } else {
            Some(
                fx.look_up(range.rkey, range.addr, range.len, RemoteRight::Read)
                    .map_err(|_| Refusal::Access)?,
            )
        };
        let record = Record::Read {
            region,
            range,
            from: 0,
        };
        self.remember(packets, record);
        Ok(())
    }

    fn atomic<E>(
        &mut self,
        run: &Run,
        at: RemoteStart,
        op: AtomicOp,
        fx: &mut E,
    ) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        let served = self.config.rights.atomic && self.history.has_room();
        if !served || run.len > 0 || !at.addr.is_multiple_of(8) {
            return Err(Refusal::Invalid);
        }
        let region = fx.look_up(at.rkey, at.addr, 8, RemoteRight::Atomic);
        let region = region.map_err(|_| Refusal::Access)?;
        let original = fx.atomic(region, at.addr, op);
        let original = original.map_err(|_| Refusal::Access)?;
        self.remember(1, Record::Atomic { op, original });
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
        invalidated: Option<ib_wire::RKey>,
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

    /// Moves past a run of a send or write.
    fn advance(&mut self, run: &Run, offset: u32, message: Message<R>) {
        self.expected = self.expected.wrapping_add(run.packets);
        self.history.expire(self.expected);
        self.offset = offset;
        if run.last {
            self.message = None;
            self.msn = self.msn.wrapping_add(1);
        } else {
            self.message = Some(message);
        }
    }

    /// Moves past a read or atomic operation whose answer is to be sent.
    fn remember(&mut self, packets: u32, record: Record<R>) {
        let psn: Psn = self.expected;
        self.history.push(psn, packets, record);
        self.expected = psn.wrapping_add(packets);
        self.history.expire(self.expected);
        self.msn = self.msn.wrapping_add(1);
    }
}
