//! Runs of packets between connected queue pairs: how they leave, and how whole ones arrive.
//!
//! The first packet that a queue pair sends shows whether its peer is reached without anything on the way that could
//! treat packets unlike: then the following runs are longer than a packet. One that has to be cut shows the contrary.

use hca_api::{QpHandle, QpState};
use ib_transport::{PsnOrder, Transfer};
use ib_wire::PortNum;
use ib_wire::packet::{Bth, Lrh, TransportService};

use super::super::address::{SentBy, address};
use super::super::egress::Leaving;
use super::super::inbound::Inbound;
use super::super::memory::{Arrived, Gathered, Piece};
use super::super::qpn::QpRef;
use super::super::{Device, DropReason};
use super::Way;
use crate::{Frame, Lanes, PacketRun, PacketTemplate};

/// Packets of a run that goes whole, at most: with the largest path MTU 64 KiB.
const LONGEST: u32 = 16;

/// Buffers of payload that are kept for runs to come.
const SPARE_BUFFERS: usize = 64;

impl Device {
    /// Sends the next packets of a connected queue pair, `most` at most. Returns their number, and the bytes of their payload. A local
    /// request that was carried out counts as a packet.
    pub(in super::super) fn transmit_connected(&mut self, at: QpRef, most: u32) -> (u32, u64) {
        let mut budget = 1;
        let mut payload = Gathered::in_buffer(self.payloads.pop().unwrap_or_default());
        if let Some(own) = self.connected_mut(at).filter(|own| own.way == Way::Whole) {
            budget = LONGEST.min(most);
            // An unreliable one reports a send as complete before it has arrived.
            payload.allow_to_stay(own.is_copied && own.service == TransportService::Rc);
        }
        let polled = self.with_machine(at, Arrived::NONE, &mut payload, |machine, now, fx| {
            (machine.poll_transmit(now, budget, fx), fx.executed())
        });
        let (mut payload, pieces) = payload.into_parts();
        if !pieces.is_empty() {
            self.keep_payload(core::mem::take(&mut payload));
        }
        let (transfer, executed) = polled.unwrap_or_default();
        let Some(transfer) = transfer else {
            self.keep_payload(payload);
            return (executed, 0);
        };
        match self.run(at, transfer, payload) {
            Ok((port, run)) => self.send_run(at, port, run, pieces),
            Err((port, reason)) => {
                for _ in 0..transfer.packets() {
                    self.node.count_drop(port, at.function, reason);
                }
            }
        }
        let packets = transfer.packets().saturating_add(executed);
        (packets, transfer.payload_len().into())
    }

    fn keep_payload(&mut self, payload: Vec<u8>) {
        if payload.capacity() != 0 && self.payloads.len() < SPARE_BUFFERS {
            self.payloads.push(payload);
        }
    }

    /// Addresses a transfer. One that cannot leave is lost, as on a link.
    fn run(
        &self,
        at: QpRef,
        transfer: Transfer,
        payload: Vec<u8>,
    ) -> Result<(PortNum, PacketRun), (PortNum, DropReason)> {
        const GONE: (PortNum, DropReason) = (PortNum(0), DropReason::NoQp);

        let state = self.state(at.function).map_err(|_| GONE)?;
        let qp = state.qp(QpHandle(at.index)).map_err(|_| GONE)?;
        let own = qp.connected().ok_or(GONE)?;
        let vector = own.attributes.primary.ok_or(GONE)?;
        let number = vector.port;
        let addressed = address(&self.node, state, qp, &vector, SentBy::Connection)
            .map_err(|reason| (number, reason))?;
        let mut lrh = Lrh {
            dlid: vector.dlid,
            slid: addressed.slid,
            ..Lrh::default()
        };
        lrh.set_vl(addressed.vl);
        lrh.set_sl(vector.sl);
        let mut bth = Bth {
            pkey: addressed.pkey,
            dest_qp: own.attributes.dest_qpn,
            ..Bth::default()
        };
        bth.set_migrated(true);
        let template = PacketTemplate {
            source: Some(addressed.source),
            service: own.service,
            pmtu: own.path_mtu().map_err(|_| GONE)?,
            lrh,
            grh: addressed.grh,
            bth,
        };
        Ok((number, PacketRun::new(template, transfer, payload)))
    }

    /// Sends a run out by a port, or to a queue pair of this device.
    fn send_run(&mut self, at: QpRef, port: PortNum, run: PacketRun, pieces: Vec<Piece>) {
        let own = self.node.port(port);
        if !own.is_some_and(|own| own.owns_lid(run.template().lrh.dlid)) {
            if let Some(egress) = self.egress_mut(port) {
                egress.push(Leaving::Run {
                    from: at,
                    run,
                    pieces,
                });
            }
            return;
        }
        self.delivered = self.delivered.saturating_add(run.transfer().packets());
        let is_taken = self.sends_runs && self.take_own_run(at, port, &run, &pieces);
        let is_other = self.peer(&run).is_some_and(|to| to.function != at.function);
        self.note_way(at, is_taken, is_other);
        if is_taken {
            return self.keep_payload(run.into_payload());
        }
        let source = run.template().source;
        let Some(mut run) = self.with_bytes(at, port, run, &pieces) else {
            return;
        };
        loop {
            if let Some((headers, payload)) = run.first()
                && let Ok(packet) = Inbound::of(&run.packet(&headers, payload), source)
            {
                self.deliver_unicast(port, &packet);
            }
            if !run.advance() {
                return self.keep_payload(run.into_payload());
            }
        }
    }

    /// Takes a run of another queue pair of this device, as [`Self::take_run`].
    fn take_own_run(
        &mut self,
        from: QpRef,
        port: PortNum,
        run: &PacketRun,
        pieces: &[Piece],
    ) -> bool {
        if pieces.is_empty() {
            return self.take_run(port, run, Arrived::Bytes(run.payload()));
        }
        // Another function's memory is read while the peer's is written.
        let slot = usize::from(from.function.0);
        let Some(sender) = self.functions.get_mut(slot).and_then(Option::take) else {
            return false;
        };
        let arrived = sender.memory.in_place(pieces);
        let is_taken = arrived.is_some_and(|arrived| self.take_run(port, run, arrived));
        self.functions[slot] = Some(sender);
        is_taken
    }

    /// Returns the queue pair of this device that a run is for.
    fn peer(&self, run: &PacketRun) -> Option<QpRef> {
        self.qpns.get(run.template().bth.dest_qp)
    }

    /// Copies the payload of a run out of the sender's memory, for frames. Returns `None` if the sender unmapped it: then the run is lost,
    /// and the queue pair finds out when it sends it again.
    fn with_bytes(
        &mut self,
        from: QpRef,
        port: PortNum,
        mut run: PacketRun,
        pieces: &[Piece],
    ) -> Option<PacketRun> {
        if pieces.is_empty() {
            return Some(run);
        }
        let memory = self.state(from.function).ok().map(|state| &state.memory);
        let bytes = memory.and_then(|memory| memory.read_pieces(pieces).ok());
        let Some(bytes) = bytes else {
            for _ in 0..run.transfer().packets() {
                self.node
                    .count_drop(port, from.function, DropReason::SendFailed);
            }
            return None;
        };
        run.set_payload(bytes);
        Some(run)
    }

    fn note_way(&mut self, at: QpRef, is_whole: bool, is_copied: bool) {
        if let Some(own) = self.connected_mut(at) {
            own.way = if is_whole { Way::Whole } else { Way::Packets };
            own.is_copied = is_copied;
        }
    }

    /// Returns the next frame that leaves by a port, of those on some lanes.
    pub(in super::super) fn next_frame(&mut self, port: PortNum, lanes: Lanes) -> Option<Frame> {
        loop {
            match self.egress_mut(port)?.pop(lanes)? {
                Leaving::Frame(frame) => return Some(frame),
                Leaving::Run { from, run, pieces } => {
                    let Some(mut run) = self.with_bytes(from, port, run, &pieces) else {
                        continue;
                    };
                    let frame = run.frame(&mut self.frames);
                    self.note_way(from, false, false);
                    if run.advance() {
                        self.egress_mut(port)?.put_back(from, run);
                    } else {
                        self.keep_payload(run.into_payload());
                    }
                    if frame.is_some() {
                        return frame;
                    }
                }
            }
        }
    }

    /// Takes the run off that leaves next by a port, because it has arrived. Returns its sender.
    pub(in super::super) fn forget_front_run(&mut self, port: PortNum) -> Option<QpRef> {
        let Leaving::Run { from, run, .. } = self.egress_mut(port)?.pop(Lanes::ALL)? else {
            return None;
        };
        self.note_way(from, true, true);
        self.keep_payload(run.into_payload());
        Some(from)
    }

    /// Takes the run off that leaves next by a port, with its payload, because a gateway has room for it. Returns `None` if it is lost.
    pub(in super::super) fn take_out_run(&mut self, port: PortNum) -> Option<PacketRun> {
        let Leaving::Run { from, run, pieces } = self.egress_mut(port)?.pop(Lanes::ALL)? else {
            return None;
        };
        self.note_way(from, true, true);
        self.with_bytes(from, port, run, &pieces)
    }

    /// Takes a run that arrived whole, if its queue pair takes each of its packets. Returns `false` if it does not, and
    /// nothing was done.
    pub(in super::super) fn take_run(
        &mut self,
        port: PortNum,
        run: &PacketRun,
        payload: Arrived<'_>,
    ) -> bool {
        let Some((headers, first)) = run.first() else {
            return false;
        };
        let frame = run.packet(&headers, first);
        let Ok(packet) = Inbound::of(&frame, run.template().source) else {
            return false;
        };
        let Some(to) = self.peer(run) else {
            return false;
        };
        let own = self.node.port(port);
        let is_addressed = own.is_some_and(|own| own.owns_lid(packet.dlid()));
        if !is_addressed || self.is_held(to.function) || self.admit(port, &packet, to).is_err() {
            return false;
        }
        let Some(own) = self.connected_mut(to) else {
            return false;
        };
        // Either end cuts packets by its own path MTU.
        if own.path_mtu() != Ok(run.template().pmtu)
            || Self::check_connection(own, &packet).is_err()
        {
            return false;
        }
        self.handle_transfer(to, run.transfer(), payload);
        self.count_behind_refused(port, to, run);
        true
    }

    /// Counts the packets of a run behind the one that took its queue pair to ERR, which takes none any more.
    fn count_behind_refused(&mut self, port: PortNum, at: QpRef, run: &PacketRun) {
        let Transfer::Request(requests) = run.transfer() else {
            return;
        };
        let Ok(state) = self.state_mut(at.function) else {
            return;
        };
        let qp = state.qp_mut(at.handle()).ok();
        let Some(qp) = qp.filter(|qp| qp.state == QpState::Error) else {
            return;
        };
        let Some(own) = qp.connected_mut() else {
            return;
        };
        let taken = u32::try_from(own.psns().1.since(requests.psn)).unwrap_or(0) + 1;
        let behind = requests.packets.saturating_sub(taken);
        let bytes = requests
            .len
            .saturating_sub(taken * run.template().pmtu.bytes());
        own.counters.received_bytes -= u64::from(bytes);
        state.connections.received_bytes -= u64::from(bytes);
        for _ in 0..behind {
            self.node
                .count_drop(port, at.function, DropReason::QpNotReady);
        }
    }
}

#[cfg(test)]
impl Device {
    /// Sends packets that the machine of a connected queue pair would not make.
    pub(crate) fn forge(
        &mut self,
        at: (hca_api::FunctionId, QpHandle),
        forged: Transfer,
        payload: Vec<u8>,
    ) {
        let at = QpRef::new(at.0, at.1);
        if let Ok((port, run)) = self.run(at, forged, payload) {
            self.send_run(at, port, run, Vec::new());
        }
    }
}
