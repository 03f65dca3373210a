//! The send side: from a work request to a packet, or to a queue pair of this device.

use core::time::Duration;

use hca_api::{
    Cause, Completion, CompletionStatus, FunctionId, HcaError, Payload, QpHandle, QpKind, QpState,
    SendFlags, SendOp, SendRequest, SpecialQp, UdAddress,
};
use hca_functions::total_len;
use ib_wire::packet::{MAX_PAYLOAD, TransportFrame, UdFrame};
use ib_wire::{PKey, PortNum, Psn, QKey, Qpn, Sl, Vl};

use super::address::{SentBy, address};
use super::backlog::PACKET_COST;
use super::egress::Leaving;
use super::function::{FLUSHED, FunctionState};
use super::inbound::Inbound;
use super::memory::Gathered;
use super::qp::{Qp, Side};
use super::qpn::QpRef;
use super::receive::Arrival;
use super::work_queue::{OwnedPayload, SendWork, Target, WaitingSend};
use super::{Device, EGRESS_DEPTH};
use crate::{DropReason, Pace};

/// Outcome of the turn of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// Packets of its connection.
    packets: u32,
    /// Bytes that it is charged for, but for [`PACKET_COST`] of those packets.
    bytes: u64,
    /// The queue pair may have more to send.
    has_more: bool,
}

impl Sent {
    fn cost(self) -> u64 {
        let packets = u64::from(self.packets) * PACKET_COST;
        self.bytes.saturating_add(packets)
    }
}

/// Packets of connections that are sent at a time.
const TURN: u32 = 16;

impl Device {
    pub(super) fn post_send(
        &mut self,
        function: FunctionId,
        handle: QpHandle,
        request: &SendRequest<'_>,
    ) -> Result<(), HcaError> {
        let state = self.state(function)?;
        let qp = state.qp(handle)?;
        qp.check_send(request)?;
        if qp.connected().is_some() {
            return self.post_connected(QpRef::new(function, handle), request);
        }
        let work = SendWork {
            wr_id: request.wr_id,
            immediate: match request.op {
                SendOp::SendImmediate(data) => Some(data),
                _ => None,
            },
            flags: request.flags,
            target: target(state, qp, request)?,
        };
        let at = QpRef::new(function, handle);
        if matches!(qp.state, QpState::SendQueueError | QpState::Error) {
            self.state_mut(function)?
                .complete_failed(at.index, Side::Send, work.wr_id, FLUSHED);
        } else if self.must_wait(qp) {
            self.queue_send(at, work, request.payload);
        } else {
            self.send(at, &work, request.payload);
        }
        self.fail_overrun(function);
        Ok(())
    }

    /// Whether a new send of a queue pair has to wait: behind others, for the queue to leave the
    /// drained state, or for room in the port's egress.
    fn must_wait(&self, qp: &Qp) -> bool {
        let egress_full = || {
            let egress = qp.port.and_then(|p| self.egress.get(p.index() - 1));
            egress.is_some_and(|egress| egress.len() >= EGRESS_DEPTH)
        };
        !qp.sends.is_empty()
            || qp.state == QpState::SendQueueDrain
            || (!qp.is_tunnelled() && egress_full())
    }

    fn queue_send(&mut self, at: QpRef, work: SendWork, payload: Payload<'_>) {
        let payload = OwnedPayload::new(payload, &mut self.spare);
        let Ok(qp) = self
            .state_mut(at.function)
            .and_then(|state| state.qp_mut(at.handle()))
        else {
            return;
        };
        qp.sends.push_back(WaitingSend { work, payload });
        self.join_backlog(at);
    }

    /// Puts a queue pair that can send and has waiting sends among those that are served.
    pub(super) fn join_backlog(&mut self, at: QpRef) {
        let Ok(qp) = self
            .state_mut(at.function)
            .and_then(|state| state.qp_mut(at.handle()))
        else {
            return;
        };
        if qp.in_backlog || !qp.has_work() {
            return;
        }
        let Some(port) = qp.port else {
            return;
        };
        qp.in_backlog = true;
        let sent_until = qp.sent_until;
        if let Some(egress) = self.egress_mut(port) {
            egress.backlog.push(at, sent_until);
        }
    }

    /// Takes a queue pair that is destroyed from among those that are served, at whichever port it had when it joined them.
    pub(super) fn leave_backlog(&mut self, at: QpRef) {
        for egress in &mut self.egress {
            egress.backlog.remove(at);
        }
    }

    /// Sends what waits while the port's egress has room: of the queue pair whose turn it is a datagram, or a packet or a whole
    /// run of its connection. After [`TURN`] packets of connections others are served first, since those for this device itself fill no
    /// egress.
    ///
    /// Where functions share the port by time, the node's turn has a number of packets, datagrams included, and one queue pair's
    /// at a time wait in the egress: who comes meanwhile is served before the rest.
    pub(super) fn serve_backlog(&mut self, port: PortNum) {
        let pace = self.node.pace();
        let depth = if pace.is_timed() { 1 } else { EGRESS_DEPTH };
        let mut turn = TURN.min(self.node.packets_left());
        let mut begun = pace.time();
        if let Some(egress) = self.egress_mut(port) {
            egress.interrupted = turn == 0 && egress.len() < depth && !egress.backlog.is_empty();
        }
        while turn > 0
            && let Some(next) = self
                .egress_mut(port)
                .filter(|egress| egress.len() < depth)
                .and_then(|egress| egress.backlog.begin())
        {
            let at = next.at;
            let mut sent = self.serve_queue_pair(at, turn);
            let bytes = sent.cost();
            let mut cost = bytes;
            if pace.is_timed() {
                // That of a datagram is 1, and an empty turn takes time as well.
                sent.packets = sent.packets.max(1);
                let end = pace.time();
                cost = self.note_spent(at.function, Pace::between(begun, end));
                begun = end;
            }
            self.node.count_moved(sent.packets);
            let Some(egress) = self.egress_mut(port) else {
                return;
            };
            let end = egress.backlog.end(next, bytes, cost);
            if sent.has_more {
                if let Ok(state) = self.state_mut(at.function)
                    && let Ok(qp) = state.qp_mut(at.handle())
                {
                    qp.sent_until = end;
                }
                self.join_backlog(at);
            }
            turn = turn.saturating_sub(sent.packets);
            if turn == 0 {
                if let Some(egress) = self.egress_mut(port) {
                    egress.interrupted = !egress.backlog.is_empty();
                }
                return;
            }
        }
    }

    /// Notes time that the device spent for a function, for [`Device::take_spent`]. Returns what the time costs a share of a port.
    pub(super) fn note_spent(&mut self, function: FunctionId, spent: Duration) -> u64 {
        *self.spent.entry(function).or_default() += spent;
        u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Charges a function for work outside of its turns at a port.
    pub(super) fn owe(&mut self, function: FunctionId, port: PortNum, spent: Duration) {
        let cost = self.note_spent(function, spent);
        if let Some(egress) = self.egress_mut(port) {
            egress.backlog.owe(function, cost);
        }
    }

    /// Sends a datagram of a queue pair, or at most `most` packets of its connection.
    fn serve_queue_pair(&mut self, at: QpRef, most: u32) -> Sent {
        let is_held = self.is_held(at.function);
        let Ok(qp) = self
            .state_mut(at.function)
            .and_then(|state| state.qp_mut(at.handle()))
        else {
            return Sent::default();
        };
        qp.in_backlog = false;
        if is_held {
            return Sent::default();
        }
        if qp.connected().is_some() {
            let (packets, bytes) = self.transmit_connected(at, most);
            return Sent {
                packets,
                bytes,
                has_more: packets > 0,
            };
        }
        if qp.state != QpState::ReadyToSend {
            return Sent::default();
        }
        let mut bytes = 0;
        if let Some(WaitingSend { work, payload }) = qp.sends.pop_front() {
            let (given, sges) = payload.split();
            bytes = PACKET_COST + given.len() as u64 + total_len(sges);
            self.send(at, &work, payload.as_payload());
            payload.give_back(&mut self.spare);
            self.fail_overrun(at.function);
        }
        Sent {
            // A datagram fills the egress, or is a call of its receiver: no turn ends by it.
            packets: 0,
            bytes,
            has_more: true,
        }
    }

    /// Carries out one send request and completes it.
    fn send(&mut self, at: QpRef, work: &SendWork, payload: Payload<'_>) {
        let mut staging = core::mem::take(&mut self.staging);
        staging.clear();
        let result = self.send_message(at, work, payload, &mut staging);
        self.staging = staging;
        if result.is_err() {
            self.count_unsent(at, DropReason::SendFailed);
        }
        let Ok(state) = self.state_mut(at.function) else {
            return;
        };
        match result {
            Ok(bytes) => complete_sent(state, at.index, work, bytes),
            Err(failure) => {
                // A datagram queue pair stops sending; it goes on receiving (IBA 10.3.1.6).
                if let Ok(qp) = state.qp_mut(at.handle()) {
                    qp.state = QpState::SendQueueError;
                }
                state.complete_failed(at.index, Side::Send, work.wr_id, failure);
                state.flush_sends(at.index);
            }
        }
    }

    /// Counts a message of a queue pair that became no packet.
    fn count_unsent(&mut self, at: QpRef, reason: DropReason) {
        let port = self
            .state(at.function)
            .ok()
            .and_then(|state| state.qp(at.handle()).ok()?.port);
        if let Some(port) = port {
            self.node.count_drop(port, at.function, reason);
        }
    }

    fn send_message(
        &mut self,
        at: QpRef,
        work: &SendWork,
        payload: Payload<'_>,
        staging: &mut Gathered,
    ) -> Result<u32, (CompletionStatus, Cause)> {
        const GONE: (CompletionStatus, Cause) =
            (CompletionStatus::LocalQpOperation, Cause::BadRequest);
        const TOO_LONG: (CompletionStatus, Cause) = (CompletionStatus::LocalLength, Cause::TooLong);

        let state = self.state(at.function).map_err(|_| GONE)?;
        let qp = state.qp(at.handle()).map_err(|_| GONE)?;
        let len = match payload {
            Payload::Gather(sges) => total_len(sges),
            Payload::Inline(bytes) => bytes.len() as u64,
            Payload::Headed(head, sges) => head.len() as u64 + total_len(sges),
        };
        if len > self.message_limit(qp) as u64 {
            return Err(TOO_LONG);
        }
        let bytes = match payload {
            Payload::Inline(bytes) => bytes,
            Payload::Gather(sges) | Payload::Headed(_, sges) => {
                if let Payload::Headed(head, _) = payload {
                    staging.extend(head);
                }
                state
                    .memory
                    .gather(qp.pd, sges, staging)
                    .map_err(|fault| (CompletionStatus::LocalProtection, fault.0))?;
                staging.bytes()
            }
        };
        match work.target {
            Target::TunnelPeer => self.send_through_tunnel(at, work, bytes),
            Target::Address { vector, .. } => {
                if let Err(reason) = self.send_datagram(at, work, bytes) {
                    self.node.count_drop(vector.port, at.function, reason);
                }
            }
            Target::ForeignHandle => {
                return Err((CompletionStatus::LocalQpOperation, Cause::BadAddress));
            }
        }
        u32::try_from(len).map_err(|_| TOO_LONG)
    }

    /// The longest message of a queue pair (IBA 9.8.1: a datagram is one packet).
    fn message_limit(&self, qp: &Qp) -> usize {
        if qp.is_tunnelled() {
            return MAX_PAYLOAD;
        }
        qp.port
            .and_then(|port| self.node.port(port)?.neighbor_mtu.bytes())
            .unwrap_or(0)
    }

    fn send_through_tunnel(&mut self, at: QpRef, work: &SendWork, payload: &[u8]) {
        match self.tunnel_peer(at) {
            Ok((peer, from, port)) => {
                self.copy_tunnelled(port, from, peer, payload);
                let arrival = Arrival::through_tunnel(port, from, work, payload);
                self.deposit(peer, &arrival);
            }
            Err(reason) => self.count_unsent(at, reason),
        }
    }

    /// Keeps a copy of what passes a tunnel, while somebody watches: as the packet that it would be on
    /// a wire. Copies that nobody takes are bounded.
    fn copy_tunnelled(&mut self, port: PortNum, from: Qpn, to: QpRef, payload: &[u8]) {
        const MOST: usize = 1 << 16;

        let Some(copies) = &self.tunnelled else {
            return;
        };
        let to = self.state(to.function).and_then(|s| s.qp(to.handle()));
        let (Ok(to), Some(lid)) = (to, self.node.port(port).map(|own| own.lid)) else {
            return;
        };
        if copies.len() >= MOST {
            return;
        }
        let frame = UdFrame {
            vl: Vl::default(),
            sl: Sl::default(),
            slid: lid,
            dlid: lid,
            grh: None,
            pkey: PKey::DEFAULT_FULL,
            dest_qp: to.numbers.real,
            src_qp: from,
            qkey: TUNNEL_QKEY,
            psn: Psn::default(),
            solicited: false,
            immediate: None,
            payload,
        };
        if let (Ok(frame), Some(copies)) = (
            self.frames.write(&frame.transport(&frame.extended())),
            &mut self.tunnelled,
        ) {
            copies.push_back((port, frame));
        }
    }

    /// Builds the packet of a send and routes it. What makes a packet undeliverable is a reason to
    /// drop it, not an error of the request.
    fn send_datagram(
        &mut self,
        at: QpRef,
        work: &SendWork,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        const GONE: DropReason = DropReason::NoQp;

        let Target::Address {
            vector,
            qpn,
            qkey,
            pkey_index,
        } = work.target
        else {
            return Err(GONE);
        };
        let state = self.state(at.function).map_err(|_| GONE)?;
        let qp = state.qp(at.handle()).map_err(|_| GONE)?;
        let special = match qp.kind {
            QpKind::Special { special, .. } => Some(special),
            _ => None,
        };
        let smp = special == Some(SpecialQp::Smi);
        let kind = if smp {
            SentBy::Smi
        } else {
            SentBy::Datagrams(pkey_index)
        };
        let addressed = address(&self.node, state, qp, &vector, kind)?;
        let own_qkey = if special == Some(SpecialQp::Gsi) {
            QKey::GSI
        } else {
            qp.qkey
        };
        let frame = UdFrame {
            vl: addressed.vl,
            sl: vector.sl,
            slid: addressed.slid,
            dlid: vector.dlid,
            grh: addressed.grh,
            pkey: addressed.pkey,
            dest_qp: qpn,
            src_qp: qp.numbers.real,
            qkey: match qkey {
                _ if smp => QKey::SMI,
                key if key.is_privileged() => own_qkey,
                key => key,
            },
            psn: qp.sq_psn,
            solicited: work.flags.contains(SendFlags::SOLICITED),
            immediate: work.immediate.map(u32::to_be_bytes),
            payload,
        };
        if let Ok(qp) = self
            .state_mut(at.function)
            .and_then(|state| state.qp_mut(at.handle()))
        {
            qp.sq_psn = qp.sq_psn.wrapping_add(1);
        }
        self.route(vector.port, &frame.transport(&frame.extended()), Some(at))
    }

    /// Sends a packet where its LID says: into this device, out by the port, or both. The loop of
    /// subnet management packets to the own LID is the fabric's, whose agent comes first.
    pub(super) fn route(
        &mut self,
        port: PortNum,
        frame: &TransportFrame<'_>,
        from: Option<QpRef>,
    ) -> Result<(), DropReason> {
        let dlid = frame.lrh.dlid;
        let own = self.node.port(port).is_some_and(|p| p.owns_lid(dlid));
        if frame.lrh.vl() == Vl::MANAGEMENT {
            self.put_on_wire(port, frame);
        } else if own {
            self.delivered = self.delivered.saturating_add(1);
            self.deliver_unicast(port, &Inbound::of(frame, None)?);
        } else if dlid.is_multicast() && frame.bth.dest_qp == Qpn::MULTICAST {
            self.put_on_wire(port, frame);
            self.deliver_multicast(port, &Inbound::of(frame, None)?, from);
        } else if dlid.is_unicast() {
            self.put_on_wire(port, frame);
        } else {
            return Err(DropReason::BadDestinationLid);
        }
        Ok(())
    }

    fn put_on_wire(&mut self, port: PortNum, frame: &TransportFrame<'_>) {
        // The payload was checked against the MTU, so there is a packet.
        if let (Ok(frame), Some(egress)) = (self.frames.write(frame), self.egress_mut(port)) {
            egress.push(Leaving::Frame(frame));
        }
    }
}

/// The Q_Key that copies of tunnelled messages show: a controlled one (IBA 10.2.5). The tunnel itself
/// has none.
const TUNNEL_QKEY: QKey = QKey::new(0x8000_0000);

fn complete_sent(state: &mut FunctionState, index: u32, work: &SendWork, bytes: u32) {
    let Ok(qp) = state.qp(QpHandle(index)) else {
        return;
    };
    if !qp.signal_all && !work.flags.contains(SendFlags::SIGNALED) {
        return;
    }
    let completion = Completion {
        wr_id: work.wr_id,
        qpn: qp.numbers.external,
        byte_len: bytes,
        ..Completion::BLANK
    };
    state.complete(index, Side::Send, completion);
}

/// Finds out where a request goes.
fn target(state: &FunctionState, qp: &Qp, request: &SendRequest<'_>) -> Result<Target, HcaError> {
    if qp.is_tunnelled() {
        return Ok(Target::TunnelPeer);
    }
    let destination = request.destination.ok_or(HcaError::InvalidParameter)?;
    let special = matches!(qp.kind, QpKind::Special { .. });
    let to_smi = destination.qpn == Qpn::SMI;
    let from_smi = qp.numbers.real == Qpn::SMI;
    if (destination.pkey_index.is_some() && !special) || (from_smi && !to_smi) {
        return Err(HcaError::InvalidParameter);
    }
    let vector = match destination.address {
        UdAddress::Vector(vector) => vector,
        UdAddress::Handle(handle) => {
            let av = state
                .avs
                .get(handle.0 as usize)
                .ok_or(HcaError::InvalidHandle)?;
            if av.pd != qp.pd {
                return Ok(Target::ForeignHandle);
            }
            av.vector
        }
    };
    if Some(vector.port) != qp.port {
        return Err(HcaError::InvalidPort);
    }
    Ok(Target::Address {
        vector,
        qpn: destination.qpn,
        qkey: destination.qkey,
        pkey_index: destination.pkey_index.unwrap_or(qp.pkey_index),
    })
}
