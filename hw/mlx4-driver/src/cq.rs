//! Completion queues.

use alloc::format;
use alloc::vec::Vec;

use ib_wire::{Lid, Qpn, Sl};
use mlx4_defs::bar::Register;
use mlx4_defs::cq::{ArmCommand, CqContext, CqDoorbell, CqDoorbellRecord, MODIFY_RESIZE};
use mlx4_defs::cqe::{CQE_SIZE, Cqe, CqeOpcode, ErrorCqe, Syndrome};
use mlx4_defs::resource::ResourceType;
use mlx4_defs::{Cqn, LogPageSize, Opcode, Uar};
use zerocopy::IntoBytes;
use zerocopy::network_endian::U64;

use super::buffer::{BufferKind, MappedBuffer};
use super::comm::UAR_BAR;
use super::error::oops;
use super::lower::{Core, low_byte};
use super::memory::Memory;
use super::{Bus, Command, Driver, DriverError};

/// Ingredients of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqSpec {
    /// Completions that it can hold, at least.
    pub entries: u32,
    /// Completion vector of its events.
    pub vector: usize,
    /// The UAR that it is armed through.
    pub uar: Uar,
    /// Its memory.
    pub memory: BufferKind,
}

/// Source of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The sending queue pair.
    pub qpn: Qpn,
    /// The sending port.
    pub slid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Low bits of the DLID by which it came.
    pub path_bits: u8,
    /// `true` if it had a GRH.
    pub grh: bool,
    /// Index of its P_Key.
    pub pkey_index: u16,
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The request's name.
    pub wr_id: u64,
    /// The device's number of the queue pair.
    pub qpn: Qpn,
    /// Error with which it ended, if any.
    pub error: Option<Syndrome>,
    /// `true` for a send.
    pub is_send: bool,
    /// The opcode in the entry.
    pub opcode: u8,
    /// Bytes that arrived.
    pub byte_len: u32,
    /// Immediate data, of a receive that has some.
    pub immediate: Option<[u8; 4]>,
    /// Source of a received datagram.
    pub source: Source,
}

/// An entry that the driver has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenCqe(pub(super) Cqe);

impl TakenCqe {
    /// The error, if it is one.
    pub(super) fn error(&self) -> Option<Syndrome> {
        let is_error = self.0.owner_opcode.is_error();
        let error: ErrorCqe = zerocopy::transmute!(self.0);
        is_error.then_some(error.syndrome)
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) cqn: Cqn,
    entries: u32,
    mapped: MappedBuffer,
    record: u64,
    uar: Uar,
    memory: Memory,
    consumer: u32,
    arm_serial: u8,
    /// Completion events so far.
    pub(super) notified: u64,
}

impl Cq {
    fn entry(&self, index: u32) -> Cqe {
        let slot = (index & (self.entries - 1)) as usize;
        let bytes: [u8; CQE_SIZE] = self.mapped.buffer.read(slot * CQE_SIZE);
        zerocopy::transmute!(bytes)
    }

    /// Returns the next entry, if it is the driver's.
    fn next(&self) -> Option<Cqe> {
        let cqe = self.entry(self.consumer);
        let is_its = cqe.owner_opcode.owner() == (self.consumer & self.entries != 0);
        is_its.then_some(cqe)
    }

    /// Takes the next entry, if it is the driver's.
    pub(super) fn take(&mut self) -> Option<TakenCqe> {
        let cqe = self.next()?;
        self.consumer = self.consumer.wrapping_add(1);
        Some(TakenCqe(cqe))
    }

    /// Frees the driver's memory without a command.
    pub(super) fn abandon(self) {
        self.mapped.buffer.free();
    }

    /// Writes the consumer index for the device.
    pub(super) fn set_consumer(&self) {
        let mut record = CqDoorbellRecord::default();
        record.set_consumer_index(self.consumer);
        self.memory.write(self.record, record.set_ci.as_bytes());
    }

    /// Takes a completion event (`mlx4_cq_completion`).
    pub(super) const fn handle_event(&mut self) {
        self.arm_serial = self.arm_serial.wrapping_add(1);
        self.notified += 1;
    }

    /// Wants an event (`mlx4_cq_arm`).
    fn arm(&self, bus: &mut dyn Bus, command: ArmCommand) {
        let (serial, consumer) = (self.arm_serial & 3, self.consumer);
        let mut record = CqDoorbellRecord::default();
        record.set_arm_serial(serial);
        record.set_arm_command(command);
        record.set_arm_consumer_index(consumer);
        self.memory.write(self.record + 4, record.arm.as_bytes());
        let doorbell = CqDoorbell::new(self.cqn, command, serial, consumer);
        let register = Register::Cq {
            uar: self.uar,
            second: false,
        };
        bus.bar_write(UAR_BAR, register.offset(), doorbell.as_bytes());
    }

    /// Drops the entries of a queue pair; gives the slots of their receives
    /// (`__mlx4_ib_cq_clean`).
    pub(super) fn clean(&mut self, qpn: Qpn) -> Vec<u16> {
        let mut end = self.consumer;
        while self.entry(end).owner_opcode.owner() == (end & self.entries != 0)
            && end.wrapping_sub(self.consumer) < self.entries - 1
        {
            end = end.wrapping_add(1);
        }
        let mut dropped = 0;
        let mut slots = Vec::new();
        while end != self.consumer {
            end = end.wrapping_sub(1);
            let mut cqe = self.entry(end);
            if cqe.qpn == qpn {
                if !cqe.owner_opcode.is_send() {
                    slots.push(cqe.wqe_index.get());
                }
                dropped += 1;
            } else if dropped > 0 {
                let to = end.wrapping_add(dropped);
                cqe.owner_opcode = cqe.owner_opcode.with_owner(to & self.entries != 0);
                let slot = (to & (self.entries - 1)) as usize;
                self.mapped.buffer.write(slot * CQE_SIZE, cqe.as_bytes());
            }
        }
        self.consumer = self.consumer.wrapping_add(dropped);
        if dropped > 0 {
            self.set_consumer();
        }
        slots
    }

    /// Goes on in a new buffer: the entries that the driver has not taken are copied, one place
    /// further since the mark of the change counts too (`mlx4_ib_cq_resize_copy_cqes`).
    fn move_to(&mut self, mapped: MappedBuffer, entries: u32) -> Result<MappedBuffer, DriverError> {
        let mut index = self.consumer;
        for _ in 0..=self.entries {
            let mut cqe = self.entry(index);
            if cqe.owner_opcode.opcode() == CqeOpcode::RESIZE.get() {
                self.consumer = self.consumer.wrapping_add(1);
                self.entries = entries;
                return Ok(core::mem::replace(&mut self.mapped, mapped));
            }
            index = index.wrapping_add(1);
            cqe.owner_opcode = cqe.owner_opcode.with_owner(index & entries != 0);
            let slot = (index & (entries - 1)) as usize;
            mapped.buffer.write(slot * CQE_SIZE, cqe.as_bytes());
        }
        Err(oops("a resized completion queue has no RESIZE entry"))
    }
}

impl Core {
    /// Makes a completion queue (`mlx4_cq_alloc`).
    pub(super) fn create_cq(
        &mut self,
        bus: &mut dyn Bus,
        spec: &CqSpec,
    ) -> Result<Cq, DriverError> {
        if spec.entries == 0 || spec.entries > self.caps.max_cqes {
            return Err(DriverError::Usage("a completion queue of that size"));
        }
        let entries = (spec.entries + 1).next_power_of_two();
        let mapped = self.map_buffer(bus, entries as usize * CQE_SIZE, spec.memory)?;
        let record = self.records.allocate(&self.memory);
        match self.start_cq(bus, spec, entries, &mapped, record) {
            Ok(cqn) => Ok(Cq {
                cqn,
                entries,
                mapped,
                record,
                uar: spec.uar,
                memory: self.memory.clone(),
                consumer: 0,
                arm_serial: 1,
                notified: 0,
            }),
            Err(error) => {
                self.records.free(record);
                self.unmap_buffer(bus, mapped)?;
                Err(error)
            }
        }
    }

    fn start_cq(
        &mut self,
        bus: &mut dyn Bus,
        spec: &CqSpec,
        entries: u32,
        mapped: &MappedBuffer,
        record: u64,
    ) -> Result<Cqn, DriverError> {
        let number = self.reserve_and_map(bus, ResourceType::CQ, 0)?;
        let cqn = Cqn::from_low_bits(u32::try_from(number).unwrap_or(u32::MAX));
        let mut context = CqContext {
            uar: spec.uar,
            comp_eqn: self.completion_eqn(spec.vector),
            log_page_size: log_page_size(mapped.buffer.shift()),
            mtt_base: mapped.mtt.base(),
            doorbell_record: U64::new(record),
            ..CqContext::default()
        };
        context.set_log_entries(low_byte(entries.ilog2()));
        let command = Command::new(Opcode::SW2HW_CQ, cqn.get()).with(&context);
        if let Err(error) = self.execute(bus, &command) {
            self.unmap_and_release(bus, ResourceType::CQ, number)?;
            return Err(error);
        }
        Ok(cqn)
    }

    fn destroy_cq(&mut self, bus: &mut dyn Bus, cq: Cq) -> Result<(), DriverError> {
        self.execute(
            bus,
            &Command::new(Opcode::HW2SW_CQ, cq.cqn.get()).variant(1),
        )?;
        self.unmap_and_release(bus, ResourceType::CQ, cq.cqn.get().into())?;
        self.records.free(cq.record);
        self.unmap_buffer(bus, cq.mapped)
    }

    fn resize_cq(
        &mut self,
        bus: &mut dyn Bus,
        cq: &mut Cq,
        entries: u32,
        kind: BufferKind,
    ) -> Result<(), DriverError> {
        let entries = (entries + 1).next_power_of_two();
        let mapped = self.map_buffer(bus, entries as usize * CQE_SIZE, kind)?;
        let mut context = CqContext {
            log_page_size: log_page_size(mapped.buffer.shift()),
            mtt_base: mapped.mtt.base(),
            ..CqContext::default()
        };
        context.set_log_entries(low_byte(entries.ilog2()));
        let command = Command::new(Opcode::MODIFY_CQ, cq.cqn.get()).with(&context);
        if let Err(error) = self.execute(bus, &command.variant(MODIFY_RESIZE)) {
            self.unmap_buffer(bus, mapped)?;
            return Err(error);
        }
        let old = cq.move_to(mapped, entries)?;
        self.unmap_buffer(bus, old)
    }
}

/// The size of a buffer's blocks, as contexts have it.
pub(super) fn log_page_size(shift: u32) -> LogPageSize {
    LogPageSize::from_shift(shift).unwrap_or_default()
}

impl Driver {
    /// Makes a completion queue.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn create_cq(&mut self, bus: &mut dyn Bus, spec: &CqSpec) -> Result<Cqn, DriverError> {
        let cq = self.core.create_cq(bus, spec)?;
        let cqn = cq.cqn;
        if cqn.get() >= self.core.caps.num_cqs || self.cqs.insert(cqn.get(), cq).is_some() {
            return Err(oops(format!("completion queue number {cqn}")));
        }
        Ok(cqn)
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn destroy_cq(&mut self, bus: &mut dyn Bus, cqn: Cqn) -> Result<(), DriverError> {
        let cq = self.cqs.remove(&cqn.get());
        let cq = cq.ok_or(DriverError::Usage("no such completion queue"))?;
        self.core.destroy_cq(bus, cq)
    }

    /// Resizes a completion queue.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn resize_cq(
        &mut self,
        bus: &mut dyn Bus,
        cqn: Cqn,
        entries: u32,
        memory: BufferKind,
    ) -> Result<(), DriverError> {
        let cq = self.cqs.get_mut(&cqn.get());
        let cq = cq.ok_or(DriverError::Usage("no such completion queue"))?;
        self.core.resize_cq(bus, cq, entries, memory)
    }

    /// Wants an event for the next completion, or the next solicited one.
    ///
    /// # Errors
    /// [`DriverError::Usage`] if there is no such queue.
    pub fn arm_cq(
        &mut self,
        bus: &mut dyn Bus,
        cqn: Cqn,
        command: ArmCommand,
    ) -> Result<(), DriverError> {
        let cq = self.cqs.get(&cqn.get());
        cq.ok_or(DriverError::Usage("no such completion queue"))?
            .arm(bus, command);
        Ok(())
    }

    /// Completion events of a queue so far.
    #[must_use]
    pub fn notifications(&self, cqn: Cqn) -> u64 {
        self.cqs.get(&cqn.get()).map_or(0, |cq| cq.notified)
    }

    /// Takes up to so many completions.
    ///
    /// # Errors
    /// [`DriverError::Oops`] for an entry at which the kernel would crash.
    pub fn poll_cq(
        &mut self,
        cqn: Cqn,
        at_most: usize,
    ) -> Result<Vec<WorkCompletion>, DriverError> {
        let cq = self.cqs.get(&cqn.get());
        let cq = cq.ok_or(DriverError::Usage("no such completion queue"))?;
        let mut done = Vec::new();
        if cq.next().is_none() {
            return Ok(done);
        }
        let Some(mut cq) = self.cqs.remove(&cqn.get()) else {
            return Ok(done);
        };
        let mut failed = None;
        while done.len() < at_most {
            let Some(cqe) = cq.take() else { break };
            match self.complete(cqn, &cqe) {
                Ok(completion) => done.push(completion),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if !done.is_empty() {
            cq.set_consumer();
        }
        self.cqs.insert(cqn.get(), cq);
        failed.map_or(Ok(done), Err)
    }

    /// Parses an entry (`mlx4_ib_poll_one`).
    fn complete(&mut self, cqn: Cqn, cqe: &TakenCqe) -> Result<WorkCompletion, DriverError> {
        let entry = &cqe.0;
        if entry.owner_opcode.opcode() == CqeOpcode::RESIZE.get() {
            return Err(oops("a RESIZE entry that nobody asked for"));
        }
        let qp = self.qps.get_mut(&entry.qpn.get());
        let qp = qp.ok_or_else(|| oops(format!("a completion of unknown QP {}", entry.qpn)))?;
        let is_send = entry.owner_opcode.is_send();
        if qp.cq_of(is_send) != cqn {
            return Err(oops(format!(
                "a completion of {} in another queue",
                entry.qpn
            )));
        }
        let (wr_id, slot) = if is_send {
            (qp.complete_send(entry.wqe_index.get())?, 0)
        } else if let Some(srqn) = qp.srqn() {
            let srq = self.srqs.get_mut(&srqn.get());
            let srq = srq.ok_or_else(|| oops("a completion of an unknown SRQ"))?;
            (srq.complete(entry.wqe_index.get())?, 0)
        } else {
            qp.complete_receive()?
        };
        let mut completion = WorkCompletion {
            wr_id,
            qpn: entry.qpn,
            error: cqe.error(),
            is_send,
            opcode: entry.owner_opcode.opcode(),
            byte_len: entry.byte_count.get(),
            immediate: None,
            source: Source::default(),
        };
        if completion.error.is_some() || is_send {
            return Ok(completion);
        }
        let opcode = CqeOpcode::new(completion.opcode);
        let with_immediate = [CqeOpcode::RECV_SEND_IMM, CqeOpcode::RECV_RDMA_WRITE_IMM];
        completion.immediate = with_immediate.contains(&opcode).then_some(entry.immediate);
        if let Some(source) = qp.tunnelled_source(slot) {
            completion.source = source?;
            return Ok(completion);
        }
        let [.., pkey_index] = entry.immediate;
        completion.source = Source {
            qpn: entry.remote_qpn,
            slid: entry.slid,
            sl: entry.sl(),
            path_bits: entry.path_bits(),
            grh: entry.grh(),
            pkey_index: if completion.immediate.is_none() {
                u16::from(pkey_index & 0x7f)
            } else {
                0
            },
        };
        Ok(completion)
    }
}

/// The bytes of an entry as its layout.
#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    #[test]
    fn an_error_entry_shows_its_syndrome() {
        let mut bytes = [0; CQE_SIZE];
        bytes[0x1b] = 5;
        bytes[0x1f] = 0x40 | 0x1e;
        let cqe = TakenCqe(Cqe::read_from_bytes(&bytes).unwrap());
        assert_eq!(cqe.error(), Some(Syndrome::FLUSHED));
    }
}
