//! The receive side: from a packet, or a send of this device, into a receive buffer.

use hca_api::{
    Cause, Completion, CompletionFlags, CompletionStatus, FunctionId, GlobalRoute, LocalMad,
    Privileges, QpHandle, QpKind, SourceAddress, SpecialQp,
};
use hca_functions::total_len;
use ib_wire::mad::{MAD_SIZE, Mad};
use ib_wire::packet::{Grh, UdFrame};
use ib_wire::{Gid, GidIndex, PKeyIndex, PortNum, QKey, Qpn, Sl, Vl};
use zerocopy::{FromBytes, IntoBytes};

use super::address::passes_data;
use super::function::FunctionState;
use super::inbound::Inbound;
use super::memory::Arrived;
use super::qp::Side;
use super::qpn::QpRef;
use super::work_queue::SendWork;
use super::{Device, EGRESS_DEPTH};
use crate::{BadKey, DropReason, Frame, WrongKey, pma};

/// Bytes at the start of a datagram's receive buffer that hold the GRH (IBA 11.4.1.2).
const GRH_SPACE: usize = size_of::<Grh>();
const NO_GRH: [u8; GRH_SPACE] = [0; GRH_SPACE];

/// A message that passed all checks.
#[derive(Debug)]
pub(super) struct Arrival<'a> {
    pub(super) grh: Option<&'a Grh>,
    pub(super) source: SourceAddress,
    pub(super) immediate: Option<u32>,
    pub(super) flags: CompletionFlags,
    pub(super) payload: &'a [u8],
}

impl<'a> Arrival<'a> {
    /// A message from the other end of a tunnel.
    pub(super) fn through_tunnel(
        port: PortNum,
        from: Qpn,
        work: &SendWork,
        payload: &'a [u8],
    ) -> Self {
        let solicited = work.flags.contains(hca_api::SendFlags::SOLICITED);
        Self {
            grh: None,
            source: SourceAddress {
                port,
                slid: ib_wire::Lid::NONE,
                src_qpn: from,
                sl: Sl::default(),
                dlid_path_bits: 0,
                pkey_index: PKeyIndex(0),
                grh: None,
            },
            immediate: work.immediate,
            flags: flags(solicited, work.immediate.is_some()),
            payload,
        }
    }
}

fn flags(solicited: bool, immediate: bool) -> CompletionFlags {
    let mut flags = CompletionFlags::empty();
    flags.set(CompletionFlags::SOLICITED, solicited);
    flags.set(CompletionFlags::IMMEDIATE, immediate);
    flags
}

impl Device {
    /// Takes a packet from the wire. The fabric has checked its VCRC.
    pub(super) fn receive_frame(&mut self, port: PortNum, mut frame: Frame) {
        if !frame.icrc_matches() {
            return self.node.count_drop(port, None, DropReason::BadIcrc);
        }
        match Inbound::parse(&frame) {
            Ok(packet) => self.receive_packet(port, &packet),
            Err(reason) => self.node.count_drop(port, None, reason),
        }
        self.frames.take_back(frame);
    }

    fn receive_packet(&mut self, port: PortNum, packet: &Inbound<'_>) {
        let smp = packet.bth.dest_qp == Qpn::SMI;
        let Some(own) = self.node.port(port) else {
            return;
        };
        if !packet.is_served() {
            let reason = DropReason::UnsupportedOpcode;
            self.node.count_drop(port, None, reason);
        } else if packet.dlid().is_multicast() {
            self.deliver_multicast(port, packet, None);
        } else if own.owns_lid(packet.dlid()) || smp {
            // Which LIDs an SMP may have, the fabric has checked when it routed it here.
            self.deliver_unicast(port, packet);
        } else {
            self.node.count_drop(port, None, DropReason::ForeignLid);
        }
    }

    /// Delivers a packet that is addressed to this port.
    pub(super) fn deliver_unicast(&mut self, port: PortNum, packet: &Inbound<'_>) {
        let smp = packet.bth.dest_qp == Qpn::SMI;
        let special = smp || packet.bth.dest_qp == Qpn::GSI;
        let to = self.qpns.get(packet.bth.dest_qp);
        let function = match to {
            _ if special => Some(FunctionId::PF),
            to => to.map(|to| to.function),
        };
        let result = if smp != (packet.lrh.vl() == Vl::MANAGEMENT) {
            Err(DropReason::WrongLane)
        } else if special && packet.datagram().is_err() {
            Err(DropReason::UnsupportedOpcode)
        } else if special && packet.payload.len() != MAD_SIZE {
            // A packet too long for its receive would stop the queue pair on which all depends.
            Err(DropReason::NotAMad)
        } else if smp {
            self.deliver_special(port, SpecialQp::Smi, packet, PKeyIndex(0))
        } else if packet.bth.dest_qp == Qpn::GSI {
            self.deliver_gmp(port, packet)
        } else {
            to.ok_or(DropReason::NoQp)
                .and_then(|to| self.deliver_to_qp(port, packet, to))
        };
        if let Err(reason) = result {
            self.node.count_drop(port, function, reason);
            self.report_wrong_key(port, packet, reason);
            self.note_foreign_peer(function, packet, reason);
        }
    }

    /// Delivers a multicast packet to the attached queue pairs (IBA 10.5.1). Keys that do not match
    /// are not reported: other members of the group may well have the right ones.
    pub(super) fn deliver_multicast(
        &mut self,
        port: PortNum,
        packet: &Inbound<'_>,
        from: Option<QpRef>,
    ) {
        let Some(grh) = packet.grh else {
            return self
                .node
                .count_drop(port, None, DropReason::MulticastWithoutGrh);
        };
        if packet.bth.dest_qp != Qpn::MULTICAST || packet.lrh.vl() == Vl::MANAGEMENT {
            return self.node.count_drop(port, None, DropReason::NoQp);
        }
        let mut next = 0;
        while let Some((at, to)) = self.groups.next(grh.dgid, packet.dlid(), next) {
            next = at + 1;
            if from == Some(to) && self.blocks_own_multicast(to) {
                continue;
            }
            if let Err(reason) = self.deliver_to_qp(port, packet, to) {
                self.node.count_drop(port, to.function, reason);
            }
        }
        // The sender's own copy is a by-product; without local members nothing is lost.
        if next == 0 && from.is_none() {
            self.node.count_drop(port, None, DropReason::NotAttached);
        }
    }

    fn blocks_own_multicast(&self, qp: QpRef) -> bool {
        self.state(qp.function)
            .and_then(|state| state.qp(qp.handle()))
            .is_ok_and(|qp| qp.block_multicast_loopback)
    }

    /// Checks a packet against the queue pair that it is for (IBA 9.6.1). Returns which of the function's GIDs it is for.
    pub(super) fn admit(
        &self,
        port: PortNum,
        packet: &Inbound<'_>,
        to: QpRef,
    ) -> Result<GidIndex, DropReason> {
        let state = self.state(to.function).map_err(|_| DropReason::NoQp)?;
        let qp = state
            .qp(to.handle())
            .ok()
            .filter(|qp| matches!(qp.kind, QpKind::Ud | QpKind::Rc | QpKind::Uc))
            .filter(|qp| qp.port.is_none_or(|own| own == port))
            .ok_or(DropReason::NoQp)?;
        if qp.connected().is_some() && packet.datagram().is_ok() {
            return Err(DropReason::NoQp);
        }
        if !qp.can_receive() {
            return Err(DropReason::QpNotReady);
        }
        if !passes_data(&self.node, state, port) {
            return Err(DropReason::PortNotActive);
        }
        let sgid_index = self.local_gid(state, port, packet)?;
        let own_pkey = state
            .physical_pkey(port, qp.pkey_index)
            .and_then(|index| self.node.port(port)?.pkey(index));
        if !own_pkey.is_some_and(|own| own.matches(packet.bth.pkey)) {
            return Err(DropReason::BadPKey);
        }
        Ok(sgid_index)
    }

    /// Hands a packet to the transport of the queue pair that it is for, if it passes the checks.
    fn deliver_to_qp(
        &mut self,
        port: PortNum,
        packet: &Inbound<'_>,
        to: QpRef,
    ) -> Result<(), DropReason> {
        let sgid_index = self.admit(port, packet, to)?;
        let state = self.state(to.function).map_err(|_| DropReason::NoQp)?;
        let qp = state.qp(to.handle()).map_err(|_| DropReason::NoQp)?;
        if let Some(own) = qp.connected() {
            Self::check_connection(own, packet)?;
            self.receive_connected(to, port, packet);
            return Ok(());
        }
        if qp.qkey != packet.datagram()?.qkey {
            return Err(DropReason::BadQKey);
        }
        let arrival = self.arrival(port, packet, qp.pkey_index, sgid_index);
        self.deposit(to, &arrival);
        Ok(())
    }

    /// Delivers a packet to QP1: to the device's agents first, then to software (IBA 13.5.1). The
    /// agents speak for the port; what is addressed to another of its GIDs, a VF's, is software's
    /// alone.
    fn deliver_gmp(&mut self, port: PortNum, packet: &Inbound<'_>) -> Result<(), DropReason> {
        let own = self.node.port(port).ok_or(DropReason::NoQp)?;
        let gid_index = match &packet.grh {
            Some(grh) => own.gid_index(grh.dgid).ok_or(DropReason::ForeignGid)?,
            None => GidIndex(0),
        };
        let pkey_index = own
            .matching_pkey(packet.bth.pkey)
            .ok_or(DropReason::BadPKey)?;
        if packet.datagram()?.qkey != QKey::GSI {
            return Err(DropReason::BadQKey);
        }
        if gid_index == GidIndex(0)
            && let Ok(mad) = Mad::ref_from_bytes(packet.payload)
        {
            match pma::process(&mut self.node, port, mad) {
                LocalMad::Reply(reply) => {
                    return self.reply_from_agent(port, packet, pkey_index, &reply);
                }
                LocalMad::Consumed => return Ok(()),
                LocalMad::NotHandled => {}
            }
        }
        self.deliver_special(port, SpecialQp::Gsi, packet, pkey_index)
    }

    /// Sends an agent's answer back to where the request came from (IBA 13.5.4).
    fn reply_from_agent(
        &mut self,
        port: PortNum,
        request: &Inbound<'_>,
        pkey_index: PKeyIndex,
        reply: &Mad,
    ) -> Result<(), DropReason> {
        let own = self.node.port(port).ok_or(DropReason::NoQp)?;
        let vl = Some(own.vl_for_sl(request.lrh.sl()))
            .filter(|vl| *vl != Vl::MANAGEMENT)
            .ok_or(DropReason::NoDataLane)?;
        let full = self
            .egress
            .get(port.index() - 1)
            .is_none_or(|egress| egress.len() >= 2 * EGRESS_DEPTH);
        if full {
            return Err(DropReason::EgressFull);
        }
        let frame = UdFrame {
            vl,
            sl: request.lrh.sl(),
            slid: request.lrh.dlid,
            dlid: request.lrh.slid,
            grh: request.grh.map(Grh::back),
            pkey: own.pkey(pkey_index).unwrap_or_default(),
            dest_qp: request.datagram()?.src_qp,
            src_qp: Qpn::GSI,
            qkey: QKey::GSI,
            psn: ib_wire::Psn::default(),
            solicited: false,
            immediate: None,
            payload: reply.as_bytes(),
        };
        self.route(port, &frame.transport(&frame.extended()), None)
    }

    /// Delivers a packet to the software on QP0 or QP1.
    fn deliver_special(
        &mut self,
        port: PortNum,
        special: SpecialQp,
        packet: &Inbound<'_>,
        pkey_index: PKeyIndex,
    ) -> Result<(), DropReason> {
        let state = self.state(FunctionId::PF).map_err(|_| DropReason::NoQp)?;
        let index = state
            .port(port)
            .and_then(|own| own.special(special))
            .ok_or(DropReason::NoQp)?;
        let ready = state.qp(QpHandle(index)).is_ok_and(|qp| qp.can_receive());
        if !ready {
            return Err(DropReason::QpNotReady);
        }
        let sgid_index = self.local_gid(state, port, packet)?;
        let arrival = self.arrival(port, packet, pkey_index, sgid_index);
        let to = QpRef {
            function: FunctionId::PF,
            index,
        };
        self.deposit(to, &arrival);
        Ok(())
    }

    /// Which of the function's GIDs a packet is for; entry 0 for multicast and without a GRH.
    fn local_gid(
        &self,
        state: &FunctionState,
        port: PortNum,
        packet: &Inbound<'_>,
    ) -> Result<GidIndex, DropReason> {
        let Some(dgid) = packet
            .grh
            .map(|grh| grh.dgid)
            .filter(|gid: &Gid| !gid.is_multicast())
        else {
            return Ok(GidIndex(0));
        };
        let index = self
            .node
            .port(port)
            .and_then(|own| own.gid_index(dgid))
            .ok_or(DropReason::ForeignGid)?;
        if state.has(Privileges::ANY_SOURCE) {
            Ok(index)
        } else if index.0 == state.id.0 {
            Ok(GidIndex(0))
        } else {
            Err(DropReason::ForeignGid)
        }
    }

    fn arrival<'a>(
        &self,
        port: PortNum,
        packet: &Inbound<'a>,
        pkey_index: PKeyIndex,
        sgid_index: GidIndex,
    ) -> Arrival<'a> {
        let multicast = packet.dlid().is_multicast();
        let path_mask = match self.node.port(port) {
            Some(own) if !multicast => own.lmc.mask(),
            _ => 0,
        };
        let immediate = packet.extended.immediate.map(|header| header.data);
        let mut flags = flags(packet.bth.solicited(), immediate.is_some());
        flags.set(CompletionFlags::GRH, packet.grh.is_some());
        flags.set(CompletionFlags::MULTICAST, multicast);
        Arrival {
            grh: packet.grh,
            source: SourceAddress {
                port,
                slid: packet.lrh.slid,
                src_qpn: packet
                    .extended
                    .deth
                    .map_or_else(Qpn::default, |deth| deth.src_qp),
                sl: packet.lrh.sl(),
                // An LMC is at most 7, so the bits fit.
                dlid_path_bits: packet.dlid().get().to_be_bytes()[1] & path_mask.to_be_bytes()[1],
                pkey_index,
                grh: packet.grh.map(|grh| GlobalRoute {
                    remote_gid: grh.sgid,
                    sgid_index,
                    flow_label: grh.flow_label(),
                    hop_limit: grh.hop_limit,
                    traffic_class: grh.traffic_class(),
                }),
            },
            immediate: immediate.map(u32::from_be_bytes),
            flags,
            payload: packet.payload,
        }
    }

    /// Puts a message into the next receive of a queue pair. Without one it is dropped; for a held function it waits.
    pub(super) fn deposit(&mut self, to: QpRef, arrival: &Arrival<'_>) {
        if self.keep_datagram(to, arrival) {
            return;
        }
        let Ok(state) = self.state_mut(to.function) else {
            return;
        };
        let port = arrival.source.port;
        let Some(receive) = state.take_receive(to.index) else {
            self.count_lost_mad(to);
            return self
                .node
                .count_drop(port, to.function, DropReason::NoReceive);
        };
        let Ok(qp) = state.qp(to.handle()) else {
            return;
        };
        let (pd, queue) = match qp.srq.map(|srq| state.srq(srq)) {
            Some(Ok(srq)) => (srq.pd, &srq.queue),
            _ => (qp.pd, &qp.receives),
        };
        let usual = queue.region;
        let mut region = usual;
        let qpn = qp.numbers.external;
        let from_guest = matches!(qp.kind, QpKind::Tunnel { .. });
        let len = GRH_SPACE + arrival.payload.len();
        let head = arrival.grh.map_or(&NO_GRH[..], IntoBytes::as_bytes);
        // Written before the message is, whose stores wait for far memory and hold up those behind them.
        let completion = Completion {
            wr_id: receive.wr_id,
            op: Side::Receive.op(),
            qpn,
            // A message is at most 4096 bytes.
            byte_len: u32::try_from(len).unwrap_or(u32::MAX),
            immediate: arrival.immediate.unwrap_or(0),
            flags: arrival.flags,
            source: Some(arrival.source),
            ..Completion::BLANK
        };
        let scatter = receive.scatter.as_slice();
        let stored = if total_len(scatter) < len as u64 {
            Err((CompletionStatus::LocalLength, Cause::ReceiveTooShort))
        } else {
            let parts = [head, arrival.payload].map(Arrived::Bytes);
            let stored = state.memory.scatter(pd, scatter, &parts, &mut region);
            stored.map_err(|fault| (CompletionStatus::LocalProtection, fault.0))
        };
        if region != usual {
            state.note_region(to.index, region);
        }
        if let Err(failure) = stored {
            state.complete_failed(to.index, Side::Receive, receive.wr_id, failure);
            // A guest chooses how long a message is, and shall not stop the physical function's end.
            if !(from_guest && failure.0 == CompletionStatus::LocalLength) {
                state.enter_error(to.index);
            }
            self.fail_overrun(to.function);
            return self
                .node
                .count_drop(port, to.function, DropReason::ReceiveFailed);
        }
        if !state.complete(to.index, Side::Receive, completion) {
            self.fail_overrun(to.function);
            self.node
                .count_drop(port, to.function, DropReason::NoCompletion);
        }
    }

    /// Counts a MAD for which the port's QP0 or QP1 had no receive, where performance management shows it.
    fn count_lost_mad(&mut self, to: QpRef) {
        let kind = self
            .state(to.function)
            .and_then(|state| state.qp(to.handle()))
            .map(|qp| qp.kind);
        let Ok(QpKind::Special { special, port }) = kind else {
            return;
        };
        let Some(port) = self.node.port_mut(port) else {
            return;
        };
        match special {
            SpecialQp::Smi => port.counters.vl15_dropped += 1,
            SpecialQp::Gsi => port.counters.qp1_dropped += 1,
        }
    }

    /// Reports a wrong key, if that is why a packet was not delivered (IBA 9.6.1.1).
    fn report_wrong_key(&mut self, port: PortNum, packet: &Inbound<'_>, reason: DropReason) {
        let key = match reason {
            DropReason::BadPKey => WrongKey::PKey(packet.bth.pkey),
            DropReason::BadQKey => WrongKey::QKey(
                packet
                    .extended
                    .deth
                    .map_or_else(QKey::default, |deth| deth.qkey),
            ),
            _ => return,
        };
        self.node.report_bad_key(
            port,
            &BadKey {
                key,
                slid: packet.lrh.slid,
                dlid: packet.dlid(),
                sl: packet.lrh.sl(),
                src_qpn: packet
                    .extended
                    .deth
                    .map_or_else(Qpn::default, |deth| deth.src_qp),
                dest_qpn: packet.bth.dest_qp,
                gids: packet.grh.map(|grh| (grh.sgid, grh.dgid)),
            },
        );
    }

    /// Records the sender of a packet that was dropped as `ForeignPeer`.
    fn note_foreign_peer(
        &mut self,
        to: Option<FunctionId>,
        packet: &Inbound<'_>,
        reason: DropReason,
    ) {
        if let (DropReason::ForeignPeer, Some(to), Some(source)) = (reason, to, packet.source) {
            let now = self.node.now();
            let slid = packet.lrh.slid;
            self.foreign_peers.count(now, to, slid, source.function);
        }
    }
}
