//! Requests at the expected PSN (IBA 9.7.4.1).

use ib_wire::packet::{FlushPlacement, FlushSelectivity};

use super::Responder;
use super::history::Record;
use crate::effects::{Effects, Event, RemoteRight};
use crate::inbound::Refusal;
use crate::inbound::ResponderState;
use crate::psn::MAX_UNACKNOWLEDGED;
use crate::request::{AtomicOp, Flush, MAX_MESSAGE, RemoteRange, RemoteStart};
use crate::run::{Run, RunOperation};

/// Placements that a flush can ask for.
const KNOWN_PLACEMENTS: FlushPlacement = FlushPlacement::GLOBAL.union(FlushPlacement::PERSISTENT);

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
                    RunOperation::Read(_)
                        | RunOperation::Atomic(..)
                        | RunOperation::AtomicWrite(_)
                        | RunOperation::Flush(..)
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
        if !self.inbound.is_continued_by(run) {
            return Err(Refusal::Invalid);
        }
        if self.state == ResponderState::Listening && !self.announced {
            self.announced = true;
            fx.raise(Event::CommunicationEstablished);
        }
        match run.operation {
            RunOperation::Send(_) | RunOperation::Write(..) => {
                let write = self.config.rights.write;
                self.inbound.take(run, start, self.config.pmtu, write, fx)?;
                self.advance(run.packets, run.last);
                Ok(())
            }
            RunOperation::Read(range) => self.read(run, range, fx),
            RunOperation::Atomic(at, op) => self.atomic(run, at, op, fx),
            RunOperation::AtomicWrite(range) => self.atomic_write(run, range, start, fx),
            RunOperation::Flush(range, flush) => self.flush(run, range, flush, fx),
            RunOperation::Reserved => Err(Refusal::Invalid),
        }
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

    fn atomic_write<E>(
        &mut self,
        run: &Run,
        range: RemoteRange,
        start: u32,
        fx: &mut E,
    ) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        let served = self.config.rights.write && self.history.has_room();
        let is_legal = run.len == 8 && range.len == 8 && range.addr.is_multiple_of(8);
        if !served || !is_legal {
            return Err(Refusal::Invalid);
        }
        let region = fx.look_up(range.rkey, range.addr, range.len, RemoteRight::Write);
        let region = region.map_err(|_| Refusal::Access)?;
        fx.place_at_once(region, range.addr, start..start + run.len)
            .map_err(|_| Refusal::Access)?;
        self.remember(1, Record::AtomicWrite);
        Ok(())
    }

    /// Flushes stores of earlier requests (IBA annex A19), all of which have been executed.
    fn flush<E>(
        &mut self,
        run: &Run,
        range: RemoteRange,
        flush: Flush,
        fx: &mut E,
    ) -> Result<(), Refusal>
    where
        E: Effects<Region = R, Receive = V>,
    {
        let Flush {
            placement,
            selectivity,
        } = flush;
        // Linux' rxe takes a flush to no placement as done; here it is as malformed as one to a reserved placement.
        let is_known = placement != FlushPlacement::NONE && KNOWN_PLACEMENTS.contains(placement);
        let served = self.config.rights.flush.contains(placement) && self.history.has_room();
        let range_of_key = match selectivity {
            FlushSelectivity::RANGE if range.len <= MAX_MESSAGE => Some((range.addr, range.len)),
            FlushSelectivity::REGION => None,
            _ => return Err(Refusal::Invalid),
        };
        if !is_known || !served || run.len > 0 {
            return Err(Refusal::Invalid);
        }
        fx.flush(range.rkey, range_of_key, placement)
            .map_err(|_| Refusal::Access)?;
        self.remember(1, Record::Flush);
        Ok(())
    }

    /// Moves past a read or atomic operation whose answer is to be sent.
    fn remember(&mut self, packets: u32, record: Record<R>) {
        self.history.push(self.expected, packets, record);
        self.advance(packets, true);
    }

    /// Moves past packets, which complete a request or not.
    fn advance(&mut self, packets: u32, completes: bool) {
        self.expected = self.expected.wrapping_add(packets);
        self.history.expire(self.expected);
        self.msn = self.msn.wrapping_add(u32::from(completes));
    }
}
