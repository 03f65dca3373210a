//! How the device drives connected queue pairs: posts, packets, transitions and time.

use hca_api::{FunctionId, HcaError, QpModify, QpState, SendRequest};
use ib_transport::Transfer;
use ib_vtime::{Instant, TimerKey};
use ib_wire::PortNum;

use super::super::connection_counters::ConnectionCounters;
use super::super::inbound::Inbound;
use super::super::memory::{Arrived, Gathered};
use super::super::qpn::QpRef;
use super::super::{Device, DropReason};
use super::{Connected, Machine, Surroundings, request};

/// Timers that a call carries out where others wait: packets of all functions wait for them.
const TIMERS: usize = 4;

impl Device {
    /// Lends a queue pair's machine out for a call, with its surroundings, and draws the conclusions: the state of the
    /// queue pair follows that of the machine or the other way round, and the timer follows the deadline.
    ///
    /// Returns `None` if there is no machine.
    pub(super) fn with_machine<T>(
        &mut self,
        at: QpRef,
        arrived: Arrived<'_>,
        leaving: &mut Gathered,
        call: impl FnOnce(&mut Machine, Instant, &mut Surroundings<'_>) -> T,
    ) -> Option<T> {
        let now = self.node.now();
        let state = self.state_mut(at.function).ok()?;
        let mut machine = state
            .qp_mut(at.handle())
            .ok()?
            .connected_mut()?
            .machine
            .take()?;
        let before = machine.repeats();
        let mut fx = Surroundings::new(state, at.index, arrived, leaving);
        let result = call(&mut machine, now, &mut fx);
        let has_completed = fx.has_completed();
        let state = self.state_mut(at.function).ok()?;
        let qp = state.qp_mut(at.handle()).ok()?;
        if qp.state == QpState::Error && !machine.is_failed() {
            // A completion queue failed.
            machine.abort(&mut Surroundings::new(
                state,
                at.index,
                Arrived::NONE,
                leaving,
            ));
        } else if machine.is_failed() && qp.state != QpState::Error {
            state.enter_error(at.index);
        } else if machine.has_send_error() && qp.state == QpState::ReadyToSend {
            qp.state = QpState::SendQueueError;
        }
        let deadline = machine.poll_timeout();
        let moved = ConnectionCounters {
            sent_bytes: leaving.len() as u64,
            received_bytes: arrived.len() as u64,
            retransmissions: machine.repeats().0 - before.0,
            rnr_naks: machine.repeats().1 - before.1,
        };
        state.connections.add(&moved);
        let own = state.qp_mut(at.handle()).ok()?.connected_mut()?;
        own.machine = Some(machine);
        own.counters.add(&moved);
        own.refusals.note(now, moved.rnr_naks, has_completed);
        let deadline = deadline.map(|deadline| own.refusals.postpone(deadline));
        let armed = own.timer.map(|key| key.deadline());
        if let Some(deadline) = deadline.filter(|at| armed.is_none_or(|armed| armed > *at)) {
            let stale = own.timer.take();
            stale.map(|key| self.timers.cancel(key));
            let key = self.timers.set(deadline, at);
            if let Some(own) = self.connected_mut(at) {
                own.timer = Some(key);
            }
        }
        self.fail_overrun(at.function);
        Some(result)
    }

    pub(in super::super) fn connected_mut(&mut self, at: QpRef) -> Option<&mut Connected> {
        let state = self.state_mut(at.function).ok()?;
        state.qp_mut(at.handle()).ok()?.connected_mut()
    }

    /// Posts a request; it leaves in the queue pair's turns.
    ///
    /// # Errors
    /// As [`request`]; the caller has checked state and sizes.
    pub(in super::super) fn post_connected(
        &mut self,
        at: QpRef,
        posted: &SendRequest<'_>,
    ) -> Result<(), HcaError> {
        let qp = self.state(at.function)?.qp(at.handle())?;
        let request = request(qp.signal_all, posted, &mut self.spare)?;
        let mut request = Some(request);
        self.with_machine(
            at,
            Arrived::NONE,
            &mut Gathered::default(),
            |machine, _, fx| {
                if let Some(request) = request.take() {
                    machine.post(request, fx);
                }
            },
        );
        if let Some(request) = request {
            // In ERR, and there never was a connection.
            use ib_transport::{Effects, Status};
            let state = self.state_mut(at.function)?;
            Surroundings::new(state, at.index, Arrived::NONE, &mut Gathered::default())
                .complete_send(request, Status::Flushed);
        }
        self.join_backlog(at);
        Ok(())
    }

    /// Makes the machine follow a transition, which has been applied to the queue pair.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if there is no path MTU.
    pub(in super::super) fn follow_transition(
        &mut self,
        at: QpRef,
        from: QpState,
        change: &QpModify,
    ) -> Result<(), HcaError> {
        let to = self.state(at.function)?.qp(at.handle())?.state;
        let Some(own) = self.connected_mut(at) else {
            return Ok(());
        };
        match (from, to) {
            (QpState::Init, QpState::ReadyToReceive) => own.listen()?,
            _ => own.configure()?,
        }
        own.announces_drain |= change.drain_event;
        let none = &mut Gathered::default();
        match (from, to) {
            (QpState::ReadyToSend, QpState::SendQueueDrain) => {
                self.with_machine(at, Arrived::NONE, none, |machine, _, fx| machine.drain(fx));
            }
            (_, QpState::ReadyToSend) => {
                own.announces_drain = false;
                self.with_machine(at, Arrived::NONE, none, |machine, _, _| machine.start());
            }
            _ => {}
        }
        self.join_backlog(at);
        Ok(())
    }

    /// Takes a connected queue pair to ERR: requests and the receive in use flush first.
    pub(in super::super) fn abort_connected(&mut self, at: QpRef) {
        self.with_machine(
            at,
            Arrived::NONE,
            &mut Gathered::default(),
            |machine, _, fx| machine.abort(fx),
        );
    }

    /// Forgets the timer of a queue pair that goes.
    pub(in super::super) fn disarm(&mut self, at: QpRef) {
        if let Some(key) = self.connected_mut(at).and_then(|own| own.timer.take()) {
            self.timers.cancel(key);
        }
    }

    /// Forgets the timers of a function that goes.
    pub(in super::super) fn disarm_all(&mut self, function: FunctionId) {
        let Ok(state) = self.state(function) else {
            return;
        };
        let keys = state.qps.iter().filter_map(|(_, qp)| qp.connected()?.timer);
        for key in keys.collect::<Vec<_>>() {
            self.timers.cancel(key);
        }
    }

    /// Carries out the timers that are due at `now`. Where functions share ports by time, a call carries out [`TIMERS`] timers at most, whose time is
    /// charged to their functions; the fabric calls again after the other nodes.
    pub(in super::super) fn fire_timers(&mut self, now: Instant) {
        let pace = self.node.pace();
        let most = if pace.is_timed() { TIMERS } else { usize::MAX };
        for _ in 0..most {
            let begun = pace.time();
            let Some((key, at)) = self.timers.pop_due(now) else {
                return;
            };
            self.fire_timer(now, key, at);
            if pace.is_timed() {
                let port = self
                    .state(at.function)
                    .and_then(|state| state.qp(at.handle()));
                if let Some(port) = port.ok().and_then(|qp| qp.port) {
                    self.owe(at.function, port, pace.since(begun));
                }
            }
        }
    }

    /// Carries out the timer of a queue pair, if it has not gone or got another since.
    fn fire_timer(&mut self, now: Instant, key: TimerKey, at: QpRef) {
        let Some(own) = self.connected_mut(at).filter(|own| own.timer == Some(key)) else {
            return;
        };
        own.timer = None;
        let has_to_wait = own.refusals.has_to_wait(now);
        if self.is_held(at.function) {
            return;
        }
        if has_to_wait {
            // The entry was that of an earlier deadline.
            return self.rearm(at);
        }
        self.with_machine(
            at,
            Arrived::NONE,
            &mut Gathered::default(),
            |machine, now, fx| {
                machine.handle_timeout(now, fx);
            },
        );
        self.join_backlog(at);
    }

    /// Checks that a packet is of the connection (IBA 9.6.1.5): service, sender if known, and the path back to the peer.
    pub(in super::super) fn check_connection(
        own: &Connected,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        if packet.bth.opcode.service() != Some(own.service) {
            return Err(DropReason::UnsupportedOpcode);
        }
        let peer = own.attributes.primary.ok_or(DropReason::QpNotReady)?;
        own.check_source(packet.source)?;
        let remote = peer.grh.map(|route| route.remote_gid);
        if packet.lrh.slid == peer.dlid && packet.grh.map(|grh| grh.sgid) == remote {
            Ok(())
        } else {
            Err(DropReason::ForeignPath)
        }
    }

    /// Hands a packet that passed the checks of its queue pair to the machine. Answers leave later.
    pub(in super::super) fn receive_connected(
        &mut self,
        at: QpRef,
        port: PortNum,
        packet: &Inbound<'_>,
    ) {
        let len = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        let transfer = Transfer::from_packet(packet.bth, &packet.extended, len);
        if !self.keep_transfer(at, port, packet, &transfer) {
            self.handle_transfer(at, &transfer, Arrived::Bytes(packet.payload));
        }
    }

    /// Hands what a packet carries to the machine.
    pub(in super::super) fn handle_transfer(
        &mut self,
        at: QpRef,
        transfer: &Transfer,
        payload: Arrived<'_>,
    ) {
        let none = &mut Gathered::default();
        self.with_machine(at, payload, none, |machine, now, fx| {
            machine.handle(now, transfer, fx);
        });
        self.join_backlog(at);
    }

    /// Sets the timer of a queue pair that was held.
    pub(in super::super) fn rearm(&mut self, at: QpRef) {
        self.with_machine(at, Arrived::NONE, &mut Gathered::default(), |_, _, _| ());
    }
}
