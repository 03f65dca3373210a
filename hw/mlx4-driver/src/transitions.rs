//! Operations on queue pairs: states, groups, requests.

use alloc::vec;
use alloc::vec::Vec;

use ib_wire::{Gid, Lid, Mtu, PortNum, Psn, QKey, Qpn, Sl};
use mlx4_defs::Opcode;
use mlx4_defs::bar::Register;
use mlx4_defs::qp::{
    AttachModifier, MulticastGroup, QpContext, QpMailbox, QpModifier, QpState,
    TO_RST_WITHOUT_OUTPUT,
};
use mlx4_defs::wqe::ControlSegment;
use zerocopy::FromBytes;

use super::comm::UAR_BAR;
use super::qp::{Qp, QpUse};
use super::ring::{Ring, Sge};
use super::work::SendWork;
use super::{Bus, Command, Driver, DriverError, Output};

/// The attributes of a datagram queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramAttributes {
    /// The port.
    pub port: PortNum,
    /// P_Key index.
    pub pkey_index: u8,
    /// Q_Key.
    pub qkey: QKey,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// LID of its port.
    pub lid: Lid,
    /// GID of its port, by which packets have a GRH; VFs share their LID.
    pub gid: Option<Gid>,
    /// Its queue pair.
    pub qpn: Qpn,
    /// First PSN that it sends.
    pub psn: Psn,
}

/// Code of the RNR NAK timer of connected queue pairs: 10 us.
const RNR_TIMER: u8 = 1;

/// Log2 of the reads and atomics that a connected queue pair has under way, and serves.
const LOG_DEPTH: u8 = 4;

impl Driver {
    fn counter(&self, port: PortNum) -> Option<u32> {
        *self.core.counters.get(port.index().checked_sub(1)?)?
    }

    fn transition(
        &mut self,
        bus: &mut dyn Bus,
        opcode: Opcode,
        qpn: Qpn,
        fill: impl FnOnce(&mut QpMailbox, &Qp),
    ) -> Result<(), DriverError> {
        let port = self.qp_mut(qpn)?.port;
        let counter = self.counter(port);
        let qp = self.qp_mut(qpn)?;
        let mut mailbox = QpMailbox {
            context: qp.context(counter),
            ..QpMailbox::default()
        };
        fill(&mut mailbox, qp);
        let command = Command::new(opcode, qpn.get()).with(&mailbox);
        self.core.execute(bus, &command).map(|_| ())
    }

    /// Brings a datagram or special queue pair from reset to ready to send.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn bring_up(
        &mut self,
        bus: &mut dyn Bus,
        qpn: Qpn,
        attributes: &DatagramAttributes,
    ) -> Result<(), DriverError> {
        self.to_init(bus, qpn, attributes)?;
        self.to_rtr(bus, qpn)?;
        self.to_rts(bus, qpn)
    }

    /// Reset to initialised.
    ///
    /// # Errors
    /// Those of the command.
    pub fn to_init(
        &mut self,
        bus: &mut dyn Bus,
        qpn: Qpn,
        attributes: &DatagramAttributes,
    ) -> Result<(), DriverError> {
        let qp = self.qp_mut(qpn)?;
        qp.port = attributes.port;
        qp.sends.stamp_all(&qp.mapped.buffer);
        self.transition(bus, Opcode::RST2INIT_QP, qpn, |mailbox, qp| {
            mailbox.optional.set_pkey_index(true);
            let context = &mut mailbox.context;
            context.primary_path.set_pkey_index(attributes.pkey_index);
            match qp.spec.purpose {
                QpUse::Reliable | QpUse::Unreliable => {
                    mailbox.optional.set_remote_read(true);
                    mailbox.optional.set_remote_write(true);
                    mailbox.optional.set_remote_atomic(true);
                    context.set_remote_read(true);
                    context.set_remote_write(true);
                    context.set_remote_atomic(true);
                }
                QpUse::Datagram | QpUse::Smi(_) | QpUse::Gsi(_) => {
                    mailbox.optional.set_qkey(true);
                    context.qkey = attributes.qkey;
                }
            }
            if qp.tunnel.is_some() {
                context.primary_path.disable_pkey_check = 0x40;
            }
        })?;
        self.set_state(qpn, QpState::INIT)
    }

    /// Initialised to ready to receive.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn to_rtr(&mut self, bus: &mut dyn Bus, qpn: Qpn) -> Result<(), DriverError> {
        let port = self.qp_mut(qpn)?.port;
        let counts = self.counter(port).is_some();
        self.transition(bus, Opcode::INIT2RTR_QP, qpn, |mailbox, qp| {
            let path = &mut mailbox.context.primary_path;
            path.sched_queue = 0x83;
            path.set_port_bit(port == PortNum(2));
            if qp.tunnel.is_some() {
                path.flags = 0x80;
            }
            mailbox.optional.set_counter_index(counts);
        })?;
        self.set_state(qpn, QpState::RTR)?;
        if matches!(self.qp_mut(qpn)?.spec.purpose, QpUse::Smi(_)) {
            // The kernel only warns when these fail.
            let init = Command::new(Opcode::INIT_PORT, u32::from(port.0));
            self.core.execute(bus, &init)?;
            let query = Command::new(Opcode::QUERY_HCA, 0).giving(Output::Mailbox);
            self.core.execute(bus, &query)?;
        }
        Ok(())
    }

    /// Initialised to ready to receive, of a connected queue pair.
    ///
    /// # Errors
    /// Those of the command.
    pub fn connect_rtr(
        &mut self,
        bus: &mut dyn Bus,
        qpn: Qpn,
        peer: &Peer,
    ) -> Result<(), DriverError> {
        let port = self.qp_mut(qpn)?.port;
        self.transition(bus, Opcode::INIT2RTR_QP, qpn, |mailbox, _| {
            mailbox.optional.set_primary_path(true);
            mailbox.optional.set_sched_queue(true);
            mailbox.optional.set_rnr_timer(true);
            mailbox.optional.set_responder_depth(true);
            let context = &mut mailbox.context;
            context.set_mtu(Mtu::MTU_1024);
            context.remote_qpn = peer.qpn;
            context.next_receive_psn = peer.psn;
            context.set_min_rnr_timer(RNR_TIMER);
            context.set_log_responder_depth(LOG_DEPTH);
            let path = &mut context.primary_path;
            path.dlid = peer.lid;
            path.sched_queue = 0x83;
            path.set_port_bit(port == PortNum(2));
            path.set_sl(Sl::default());
            if let Some(gid) = peer.gid {
                path.set_grh(true);
                path.dgid = gid;
                path.hop_limit = 1;
            }
        })?;
        self.set_state(qpn, QpState::RTR)
    }

    /// Ready to receive to ready to send, of a connected queue pair, which first sends `psn`.
    ///
    /// # Errors
    /// Those of the command.
    pub fn connect_rts(
        &mut self,
        bus: &mut dyn Bus,
        qpn: Qpn,
        psn: Psn,
    ) -> Result<(), DriverError> {
        self.transition(bus, Opcode::RTR2RTS_QP, qpn, |mailbox, _| {
            mailbox.optional.set_ack_timeout(true);
            mailbox.optional.set_retry_count(true);
            mailbox.optional.set_rnr_retry(true);
            mailbox.optional.set_initiator_depth(true);
            let context = &mut mailbox.context;
            context.next_send_psn = psn;
            context.set_log_initiator_depth(LOG_DEPTH);
            context.set_retry_count(7);
            context.set_rnr_retry(7);
            context.primary_path.set_ack_timeout(14);
        })?;
        self.set_state(qpn, QpState::RTS)
    }

    /// Ready to receive to ready to send.
    ///
    /// # Errors
    /// Those of the command.
    pub fn to_rts(&mut self, bus: &mut dyn Bus, qpn: Qpn) -> Result<(), DriverError> {
        self.transition(bus, Opcode::RTR2RTS_QP, qpn, |_, _| {})?;
        self.set_state(qpn, QpState::RTS)
    }

    /// Sets the Q_Key of a queue pair that is ready to send.
    ///
    /// # Errors
    /// Those of the command.
    pub fn set_qkey(&mut self, bus: &mut dyn Bus, qpn: Qpn, qkey: QKey) -> Result<(), DriverError> {
        self.transition(bus, Opcode::RTS2RTS_QP, qpn, |mailbox, _| {
            mailbox.optional.set_qkey(true);
            mailbox.context.qkey = qkey;
        })
    }

    /// Drains the send queue, or goes on with it.
    ///
    /// # Errors
    /// Those of the command.
    pub fn set_drained(
        &mut self,
        bus: &mut dyn Bus,
        qpn: Qpn,
        drained: bool,
    ) -> Result<(), DriverError> {
        let (opcode, state) = if drained {
            (Opcode::RTS2SQD_QP, QpState::SQD)
        } else {
            (Opcode::SQD2RTS_QP, QpState::RTS)
        };
        let mailbox = QpMailbox {
            context: self.qp_mut(qpn)?.context(None),
            ..QpMailbox::default()
        };
        let mut modifier = QpModifier {
            qpn,
            ..QpModifier::default()
        };
        modifier.set_drained_event(drained);
        let modifier: [u8; 4] = zerocopy::transmute!(modifier);
        let command = Command::new(opcode, u32::from_be_bytes(modifier)).with(&mailbox);
        self.core.execute(bus, &command)?;
        self.set_state(qpn, state)
    }

    /// Any state to error.
    ///
    /// # Errors
    /// Those of the command.
    pub fn to_error(&mut self, bus: &mut dyn Bus, qpn: Qpn) -> Result<(), DriverError> {
        self.transition(bus, Opcode::TO_ERR_QP, qpn, |_, _| {})?;
        self.set_state(qpn, QpState::ERR)
    }

    /// Any state to reset: nothing of the queue pair completes any more.
    ///
    /// # Errors
    /// Those of the command.
    pub fn reset_qp(&mut self, bus: &mut dyn Bus, qpn: Qpn) -> Result<(), DriverError> {
        let qp = self.qp_mut(qpn)?;
        let (purpose, port) = (qp.spec.purpose, qp.port);
        if qp.state == QpState::RST {
            return Ok(());
        }
        if matches!(purpose, QpUse::Smi(_)) {
            self.core.close_port(bus, u32::from(port.0))?;
        }
        let command = Command::new(Opcode::TO_RST_QP, qpn.get()).variant(TO_RST_WITHOUT_OUTPUT);
        self.core.execute(bus, &command)?;
        self.clean_cqs(qpn)?;
        let memory = self.core.memory.clone();
        self.qp_mut(qpn)?.reset_rings(&memory);
        self.set_state(qpn, QpState::RST)
    }

    /// Drops the completions of a queue pair that wait in its queues.
    fn clean_cqs(&mut self, qpn: Qpn) -> Result<(), DriverError> {
        let qp = self.qp_mut(qpn)?;
        let (send, receive, srqn) = (qp.cq_of(true), qp.cq_of(false), qp.srqn());
        let mut queues = vec![receive];
        if send != receive {
            queues.push(send);
        }
        for cqn in queues {
            let Some(cq) = self.cqs.get_mut(&cqn.get()) else {
                continue;
            };
            let slots = cq.clean(qpn);
            if let Some(srq) = srqn.and_then(|srqn| self.srqs.get_mut(&srqn.get())) {
                for slot in slots {
                    srq.complete(slot)?;
                }
            }
        }
        Ok(())
    }

    fn set_state(&mut self, qpn: Qpn, state: QpState) -> Result<(), DriverError> {
        self.qp_mut(qpn)?.state = state;
        Ok(())
    }

    /// Asks the device for a queue pair's context.
    ///
    /// # Errors
    /// Those of the command.
    pub fn query_qp(&mut self, bus: &mut dyn Bus, qpn: Qpn) -> Result<QpContext, DriverError> {
        let command = Command::new(Opcode::QUERY_QP, qpn.get()).giving(Output::Mailbox);
        let reply = self.core.execute(bus, &command)?;
        let context = reply.mailbox.view::<QpMailbox>().context;
        self.set_state(qpn, context.state())?;
        Ok(context)
    }

    /// Attaches a queue pair to a multicast group, or detaches it.
    ///
    /// # Errors
    /// Those of the command.
    pub fn set_attached(
        &mut self,
        bus: &mut dyn Bus,
        qpn: Qpn,
        mgid: Gid,
        attached: bool,
        block_loopback: bool,
    ) -> Result<(), DriverError> {
        let mut modifier = AttachModifier {
            qpn,
            ..AttachModifier::default()
        };
        modifier.set_block_loopback(attached && block_loopback);
        let modifier: [u8; 4] = zerocopy::transmute!(modifier);
        let command = Command::new(Opcode::QP_ATTACH, u32::from_be_bytes(modifier))
            .variant(u8::from(attached))
            .with(&MulticastGroup { mgid });
        self.core.execute(bus, &command).map(|_| ())
    }

    /// Writes sends into slots, without telling the device.
    ///
    /// # Errors
    /// [`DriverError::Usage`] for a full queue, or a request that has no room.
    pub fn write_sends(&mut self, qpn: Qpn, works: &[SendWork]) -> Result<(), DriverError> {
        for work in works {
            self.write_changed(qpn, work, |_| {})?;
        }
        Ok(())
    }

    /// Writes a send into a slot after its bytes were changed: no driver does that. The owner's bit is
    /// right all the same.
    ///
    /// # Errors
    /// As [`Self::write_sends`].
    pub fn write_changed(
        &mut self,
        qpn: Qpn,
        work: &SendWork,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<(), DriverError> {
        let qp = self.qp_mut(qpn)?;
        let mut bytes = work.encode(qp.tunnel, 1 << qp.sends.shift)?;
        change(&mut bytes);
        let (at, index) = qp.sends.post(work.wr_id)?;
        let control = bytes.first_chunk_mut::<16>();
        let control = control.and_then(|bytes| ControlSegment::mut_from_bytes(bytes).ok());
        let control = control.ok_or(DriverError::Usage("a request has a control segment"))?;
        control.set_owner(index & qp.sends.slots != 0);
        if qp.spec.signal_all {
            control.set_completion(ControlSegment::SIGNALED);
        }
        // The word with the owner's bit is last.
        qp.mapped.buffer.write(at + 8, &bytes[8..]);
        qp.mapped.buffer.write(at, &bytes[..8]);
        let spare = Ring::spare(qp.sends.shift);
        qp.sends.stamp(&qp.mapped.buffer, index.wrapping_add(spare));
        Ok(())
    }

    /// Overwrites bytes of a send queue, at an offset that is taken modulo its size: no driver does that.
    pub fn overwrite_sends(&mut self, qpn: Qpn, offset: usize, bytes: &[u8]) {
        let Ok(qp) = self.qp_mut(qpn) else {
            return;
        };
        let last = qp.sends.bytes().saturating_sub(bytes.len());
        let at = qp.sends.slot(0) + offset % (last + 1);
        qp.mapped.buffer.write(at, bytes);
    }

    /// Rings the doorbell of a send queue.
    ///
    /// # Errors
    /// [`DriverError::Usage`] if there is no such queue pair.
    pub fn ring(&mut self, bus: &mut dyn Bus, qpn: Qpn) -> Result<(), DriverError> {
        let uar = self.qp_mut(qpn)?.spec.uar;
        bus.write_be32(UAR_BAR, Register::Send { uar }.offset(), qpn.get() << 8);
        Ok(())
    }

    /// Posts sends.
    ///
    /// # Errors
    /// As [`Self::write_sends`].
    pub fn post_sends(
        &mut self,
        bus: &mut dyn Bus,
        qpn: Qpn,
        works: &[SendWork],
    ) -> Result<(), DriverError> {
        self.write_sends(qpn, works)?;
        self.ring(bus, qpn)
    }

    /// Posts receives: each has a name and where it goes.
    ///
    /// # Errors
    /// [`DriverError::Usage`] for a full queue.
    pub fn post_receives(
        &mut self,
        qpn: Qpn,
        works: &[(u64, Vec<Sge>)],
    ) -> Result<(), DriverError> {
        let memory = self.core.memory.clone();
        let qp = self.qp_mut(qpn)?;
        let Some(record) = qp.record else {
            return Err(DriverError::Usage("the queue pair has a shared queue"));
        };
        for (wr_id, sges) in works {
            let (at, index) = qp.receives.post(*wr_id)?;
            let slot = (index & (qp.receives.slots - 1)) as usize;
            let segments = qp.receive_segments(slot, sges);
            qp.receives.write_receive(&qp.mapped.buffer, at, &segments);
        }
        qp.receives.ring_record(&memory, record);
        Ok(())
    }
}
