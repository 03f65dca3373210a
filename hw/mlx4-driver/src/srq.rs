//! Shared receive queues.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use mlx4_defs::receive::{DoorbellRecord, SrqNextSegment};
use mlx4_defs::resource::ResourceType;
use mlx4_defs::srq::SrqContext;
use mlx4_defs::wqe::{DataSegment, SEGMENT_UNIT};
use mlx4_defs::{Opcode, Pdn, Srqn};
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32, U64};

use super::buffer::{BufferKind, MappedBuffer};
use super::cq::log_page_size;
use super::error::oops;
use super::lower::{Core, low_byte};
use super::memory::Memory;
use super::ring::{Sge, last_segment};
use super::{Bus, Command, Driver, DriverError, Output};

/// Ingredients of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqSpec {
    /// Protection domain.
    pub pd: Pdn,
    /// Receives that may be outstanding.
    pub receives: u32,
    /// Segments of a receive.
    pub sges: u32,
    /// Its memory.
    pub memory: BufferKind,
}

/// A shared receive queue: its free slots are a list, whose end is where completed ones go.
#[derive(Debug)]
pub(super) struct Srq {
    srqn: Srqn,
    mapped: MappedBuffer,
    record: u64,
    memory: Memory,
    slots: u32,
    shift: u32,
    sges: usize,
    /// The slot that is posted next; the last one is never posted.
    head: u16,
    tail: u16,
    posted: u16,
    wr_ids: Vec<Option<u64>>,
}

impl Srq {
    fn last(&self) -> u16 {
        u16::try_from(self.slots - 1).unwrap_or(u16::MAX)
    }

    fn next_of(&self, slot: u16) -> u16 {
        let bytes: [u8; 16] = self.mapped.buffer.read(usize::from(slot) << self.shift);
        let next: SrqNextSegment = zerocopy::transmute!(bytes);
        // Within the queue, whatever somebody wrote there.
        next.next.get() & self.last()
    }

    fn link(&self, slot: u16, next: u16) {
        let segment = SrqNextSegment {
            next: U16::new(next),
            ..SrqNextSegment::default()
        };
        let at = usize::from(slot) << self.shift;
        self.mapped.buffer.write(at, &segment.as_bytes()[..4]);
    }

    fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), DriverError> {
        if self.head == self.tail || sges.len() > self.sges {
            return Err(DriverError::Usage("the shared receive queue is full"));
        }
        let slot = self.head;
        self.wr_ids[usize::from(slot)] = Some(wr_id);
        self.head = self.next_of(slot);
        let at = (usize::from(slot) << self.shift) + size_of::<SrqNextSegment>();
        for (index, sge) in sges.iter().enumerate() {
            let at = at + index * SEGMENT_UNIT;
            self.mapped.buffer.write(at, sge.segment().as_bytes());
        }
        if sges.len() < self.sges {
            let at = at + sges.len() * SEGMENT_UNIT;
            self.mapped.buffer.write(at, last_segment().as_bytes());
        }
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    fn ring_record(&self) {
        let mut record = DoorbellRecord::default();
        record.set_posted(self.posted);
        self.memory.write(self.record, record.as_bytes());
    }

    /// Takes a completed receive by its slot; gives its name (`mlx4_ib_free_srq_wqe`).
    pub(super) fn complete(&mut self, slot: u16) -> Result<u64, DriverError> {
        let wr_id = self
            .wr_ids
            .get_mut(usize::from(slot))
            .and_then(Option::take);
        let wr_id = wr_id.ok_or_else(|| oops(format!("slot {slot} of an SRQ was not posted")))?;
        self.link(self.tail, slot);
        self.tail = slot;
        Ok(wr_id)
    }

    /// Frees the driver's memory without a command.
    pub(super) fn abandon(self) {
        self.mapped.buffer.free();
    }
}

impl Core {
    fn create_srq(&mut self, bus: &mut dyn Bus, spec: &SrqSpec) -> Result<Srq, DriverError> {
        if spec.receives >= self.caps.max_srq_wqes || spec.sges > self.caps.max_rq_sg - 1 {
            return Err(DriverError::Usage("a shared receive queue of that size"));
        }
        let slots = (spec.receives + 1).next_power_of_two();
        let bytes = SEGMENT_UNIT + spec.sges as usize * SEGMENT_UNIT;
        let shift = bytes.next_power_of_two().max(32).ilog2();
        let mapped = self.map_buffer(bus, (slots as usize) << shift, spec.memory)?;
        let record = self.records.allocate(&self.memory);
        let last = u16::try_from(slots - 1).unwrap_or(u16::MAX);
        let mut srq = Srq {
            srqn: Srqn::default(),
            mapped,
            record,
            memory: self.memory.clone(),
            slots,
            shift,
            sges: ((1 << shift) - SEGMENT_UNIT) / SEGMENT_UNIT,
            head: 0,
            tail: last,
            posted: 0,
            wr_ids: vec![None; slots as usize],
        };
        for slot in 0..=last {
            srq.link(slot, slot.wrapping_add(1) & last);
            let at = (usize::from(slot) << shift) + SEGMENT_UNIT;
            let end = (usize::from(slot) + 1) << shift;
            for at in (at..end).step_by(size_of::<DataSegment>()) {
                srq.mapped.buffer.write(at, last_segment().as_bytes());
            }
        }
        match self.start_srq(bus, spec, &srq) {
            Ok(srqn) => {
                srq.srqn = srqn;
                Ok(srq)
            }
            Err(error) => {
                self.records.free(srq.record);
                self.unmap_buffer(bus, srq.mapped)?;
                Err(error)
            }
        }
    }

    fn start_srq(
        &mut self,
        bus: &mut dyn Bus,
        spec: &SrqSpec,
        srq: &Srq,
    ) -> Result<Srqn, DriverError> {
        let number = self.reserve_and_map(bus, ResourceType::SRQ, 0)?;
        let srqn = Srqn::from_low_bits(u32::try_from(number).unwrap_or(u32::MAX));
        let mut context = SrqContext {
            srqn,
            log_page_size: log_page_size(srq.mapped.buffer.shift()),
            mtt_base: srq.mapped.mtt.base(),
            pd: U32::new(spec.pd.0),
            doorbell_record: U64::new(srq.record),
            ..SrqContext::default()
        };
        context.set_log_entries(low_byte(srq.slots.ilog2()));
        context.set_log_stride(low_byte(srq.shift - 4));
        let command = Command::new(Opcode::SW2HW_SRQ, srqn.get()).with(&context);
        if let Err(error) = self.execute(bus, &command) {
            self.unmap_and_release(bus, ResourceType::SRQ, number)?;
            return Err(error);
        }
        Ok(srqn)
    }
}

impl Driver {
    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn create_srq(&mut self, bus: &mut dyn Bus, spec: &SrqSpec) -> Result<Srqn, DriverError> {
        let srq = self.core.create_srq(bus, spec)?;
        let srqn = srq.srqn;
        if srqn.get() >= self.core.caps.num_srqs || self.srqs.insert(srqn.get(), srq).is_some() {
            return Err(oops(format!("shared receive queue number {srqn}")));
        }
        Ok(srqn)
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn destroy_srq(&mut self, bus: &mut dyn Bus, srqn: Srqn) -> Result<(), DriverError> {
        let srq = self.srqs.remove(&srqn.get());
        let srq = srq.ok_or(DriverError::Usage("no such shared receive queue"))?;
        let command = Command::new(Opcode::HW2SW_SRQ, srqn.get()).variant(1);
        self.core.execute(bus, &command)?;
        self.core
            .unmap_and_release(bus, ResourceType::SRQ, srqn.get().into())?;
        self.core.records.free(srq.record);
        self.core.unmap_buffer(bus, srq.mapped)
    }

    /// Posts receives to a shared queue.
    ///
    /// # Errors
    /// [`DriverError::Usage`] for a full queue.
    pub fn post_srq_receives(
        &mut self,
        srqn: Srqn,
        works: &[(u64, Vec<Sge>)],
    ) -> Result<(), DriverError> {
        let srq = self.srqs.get_mut(&srqn.get());
        let srq = srq.ok_or(DriverError::Usage("no such shared receive queue"))?;
        for (wr_id, sges) in works {
            srq.post(*wr_id, sges)?;
        }
        srq.ring_record();
        Ok(())
    }

    /// Wants an event when fewer receives than that are left.
    ///
    /// # Errors
    /// Those of the command.
    pub fn arm_srq(
        &mut self,
        bus: &mut dyn Bus,
        srqn: Srqn,
        limit: u16,
    ) -> Result<(), DriverError> {
        let command = Command::new(Opcode::ARM_SRQ, srqn.get()).value(limit.into());
        self.core.execute(bus, &command).map(|_| ())
    }

    /// The limit of a shared queue, as the device has it.
    ///
    /// # Errors
    /// Those of the command.
    pub fn query_srq_limit(&mut self, bus: &mut dyn Bus, srqn: Srqn) -> Result<u16, DriverError> {
        let command = Command::new(Opcode::QUERY_SRQ, srqn.get()).giving(Output::Mailbox);
        let reply = self.core.execute(bus, &command)?;
        Ok(reply.mailbox.view::<SrqContext>().limit_watermark.get())
    }
}
