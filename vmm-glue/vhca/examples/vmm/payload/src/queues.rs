//! A queue pair for datagrams, and its completion queues.

use core::mem::offset_of;

use ib_wire::{Lid, Mtu, QKey, Qpn};
use mlx4_defs::bar::{RESERVED_UARS, Register};
use mlx4_defs::cq::{CqContext, CqDoorbellRecord};
use mlx4_defs::cqe::{CQE_SIZE, Cqe, OwnerOpcode};
use mlx4_defs::qp::{PathMigration, QpContext, QpMailbox, QpState, ServiceType};
use mlx4_defs::receive::DoorbellRecord;
use mlx4_defs::resource::{QpReservation, ResourceOp, ResourceParam, ResourceType};
use mlx4_defs::wqe::{ControlSegment, DataSegment, DatagramSegment, SEGMENT_UNIT, WqeOpcode};
use mlx4_defs::{CounterIndex, Cqn, Opcode, Pdn, Uar};
use zerocopy::network_endian::{U32, U64};

use super::cpu;
use super::hca::Hca;

/// The doorbell page: the first behind those of the device.
const PAGE: Uar = Uar::from_low_bits(RESERVED_UARS);

/// Protection domain. There is no region in it: nothing is sent from memory, and receives have the reserved key.
const PD: Pdn = Pdn(8);

/// Slots of the queue of sends and of its completions, and bytes of a send's, log2.
const LOG_SLOTS: u8 = 7;
const LOG_STRIDE: u8 = 6;

/// Slots of the queue of receives, log2: more than there are empty datagrams in 256 KiB, which the device keeps for a VF that
/// is paused.
const LOG_RECEIVES: u8 = 12;
const RECEIVES: u32 = 1 << LOG_RECEIVES;

/// Bytes of an empty datagram: what the device writes in place of a global route.
const RECEIVED: u32 = 40;

/// The subnet manager's LID. Nobody takes the datagrams there.
const NOBODY: Lid = Lid::new(1);
const QKEY: QKey = QKey::new(0x1111);

/// A send as it lies in its slot.
#[repr(C)]
struct Send {
    control: ControlSegment,
    datagram: DatagramSegment,
}

struct CompletionQueue {
    cqn: Cqn,
    entries: u64,
    log_slots: u8,
    record: u64,
}

impl CompletionQueue {
    fn new(hca: &mut Hca, log_slots: u8) -> Self {
        let record = cpu::allocate(1);
        let (entries, mtt_base) = hca.queue_memory((CQE_SIZE as u64) << log_slots >> 12);
        let number = hca.allocate(ResourceType::CQ, ResourceOp::RESERVE_AND_MAP, 0);
        let cqn = Cqn::from_low_bits(number as u32);
        let mut context = CqContext {
            uar: PAGE,
            mtt_base,
            doorbell_record: U64::new(record),
            ..CqContext::default()
        };
        context.set_log_entries(log_slots);
        hca.send(Opcode::SW2HW_CQ, cqn.get(), context);
        Self {
            cqn,
            entries,
            log_slots,
            record,
        }
    }

    /// Takes the `nth` completion, if it is there.
    fn take(&self, nth: u32) -> Option<Cqe> {
        let slot = u64::from(nth & ((1 << self.log_slots) - 1));
        let at = self.entries + slot * CQE_SIZE as u64;
        // The device writes the owner last. What is read before it may be of the slot's last entry.
        let owner: OwnerOpcode = cpu::read(at + offset_of!(Cqe, owner_opcode) as u64);
        if owner.owner() != (nth >> self.log_slots & 1 != 0) {
            return None;
        }
        let entry: Cqe = cpu::read(at);
        assert!(!entry.owner_opcode.is_error());
        let mut record = CqDoorbellRecord::default();
        record.set_consumer_index(nth + 1);
        cpu::write(self.record, record.set_ci);
        Some(entry)
    }
}

pub(crate) struct QueuePair {
    pub(crate) qpn: Qpn,
    /// Destination of datagrams.
    pub(crate) to: (Lid, Qpn),
    sends: u64,
    receives: u64,
    posted: u32,
    completions: [CompletionQueue; 2],
    /// Address of the record of receives.
    record: u64,
}

impl QueuePair {
    /// Creates a queue pair that sends to nobody.
    pub(crate) fn new(hca: &mut Hca) -> Self {
        let completions = [LOG_SLOTS, LOG_RECEIVES].map(|slots| CompletionQueue::new(hca, slots));
        let record = cpu::allocate(1);
        // Receives are behind the sends, whose slots are larger. The pages are a power of two.
        let (sends, mtt_base) =
            hca.queue_memory(2 * ((RECEIVES as u64 * SEGMENT_UNIT as u64) >> 12));
        let mut one = QpReservation::default();
        one.set_count(1);
        let one = ResourceParam {
            low: one.word.get(),
            high: 1,
        };
        let qpn = hca.allocate(ResourceType::QP, ResourceOp::RESERVE, one.into()) as u32;
        hca.allocate(ResourceType::QP, ResourceOp::MAP_ICM, qpn.into());
        let number = Qpn::from_low_bits(qpn);
        let [send_cqn, receive_cqn] = [completions[0].cqn, completions[1].cqn];
        let queue = Self {
            qpn: number,
            to: (NOBODY, number),
            sends,
            receives: sends + (1 << LOG_SLOTS << LOG_STRIDE),
            posted: 0,
            completions,
            record,
        };
        for slot in 0..1 << LOG_SLOTS {
            let mut control = ControlSegment::default();
            control.set_owner(true);
            queue.write_slot(slot, control);
        }
        let mut mailbox = QpMailbox {
            context: QpContext {
                uar: PAGE,
                local_qpn: queue.qpn,
                send_cqn,
                receive_cqn,
                qkey: QKEY,
                mtt_base,
                doorbell_record: U64::new(record),
                ..QpContext::default()
            },
            ..QpMailbox::default()
        };
        let context = &mut mailbox.context;
        context.set_service_type(ServiceType::UD);
        context.set_path_migration(PathMigration::MIGRATED);
        context.set_pd(PD);
        context.set_mtu(Mtu::MTU_4096);
        context.set_log_max_message(13);
        context.set_log_rq_entries(LOG_RECEIVES);
        context.set_log_rq_stride(0);
        context.set_log_sq_entries(LOG_SLOTS);
        context.set_log_sq_stride(LOG_STRIDE - 4);
        context.set_reserved_lkey(true);
        context.primary_path.counter_index = CounterIndex(0xff);
        context.primary_path.sched_queue = 0x83;
        mailbox.optional.set_pkey_index(true);
        mailbox.optional.set_qkey(true);
        hca.send(Opcode::RST2INIT_QP, qpn, mailbox);
        mailbox.optional = Default::default();
        hca.send(Opcode::INIT2RTR_QP, qpn, mailbox);
        hca.send(Opcode::RTR2RTS_QP, qpn, mailbox);
        queue
    }

    /// Posts a receive in each slot. All have the same memory.
    pub(crate) fn post_receives(&self, hca: &mut Hca) {
        let receive = DataSegment {
            byte_count: U32::new(RECEIVED),
            lkey: hca.capabilities().reserved_lkey,
            address: U64::new(cpu::allocate(1)),
        };
        for slot in 0..u64::from(RECEIVES) {
            cpu::write(self.receives + slot * SEGMENT_UNIT as u64, receive);
        }
        self.note_receives(0);
    }

    /// Writes the doorbell record after so many receives were taken and posted again.
    fn note_receives(&self, taken: u32) {
        let mut record = DoorbellRecord::default();
        record.set_posted((taken + RECEIVES) as u16);
        cpu::write(self.record, record);
    }

    /// Takes the `nth` datagram, if it is there, and posts its receive again.
    pub(crate) fn take_datagram(&self, nth: u32) -> bool {
        let Some(entry) = self.completions[1].take(nth) else {
            return false;
        };
        assert!(!entry.owner_opcode.is_send() && entry.byte_count.get() == RECEIVED);
        self.note_receives(nth + 1);
        true
    }

    fn slot(&self, nth: u32) -> u64 {
        self.sends + (u64::from(nth & ((1 << LOG_SLOTS) - 1)) << LOG_STRIDE)
    }

    /// Writes a slot's control segment, the word with the owner last.
    fn write_slot(&self, nth: u32, control: ControlSegment) {
        let bytes: [u32; 4] = zerocopy::transmute!(control);
        for (word, value) in bytes.into_iter().enumerate().rev() {
            cpu::write(self.slot(nth) + 4 * word as u64, value);
        }
    }

    /// Posts an empty datagram.
    pub(crate) fn post(&mut self) {
        let mut datagram = DatagramSegment {
            remote_qpn: self.to.1,
            qkey: QKEY,
            ..DatagramSegment::default()
        };
        let [_, pd @ ..] = PD.0.to_be_bytes();
        datagram.av.pd = pd;
        datagram.av.set_port_number(1);
        datagram.av.dlid = self.to.0;
        let at = self.slot(self.posted) + SEGMENT_UNIT as u64;
        cpu::write(at, datagram);
        let mut control = ControlSegment::default();
        control.set_size((size_of::<Send>() / SEGMENT_UNIT) as u8);
        control.set_completion(ControlSegment::SIGNALED);
        control.set_opcode(WqeOpcode::SEND);
        control.set_owner(self.posted >> LOG_SLOTS & 1 != 0);
        self.write_slot(self.posted, control);
        self.posted += 1;
    }

    /// Returns the address of the doorbell, and what tells the device there that there is something to send.
    pub(crate) fn doorbell(&self, hca: &Hca) -> (u64, u32) {
        let register = Register::Send { uar: PAGE };
        let address = hca.function.bars[0] + register.offset();
        (address, (self.qpn.get() << 8).to_be())
    }

    /// Returns `true` if the device has put the queue pair into the error state.
    pub(crate) fn has_failed(&self, hca: &mut Hca) -> bool {
        let found: QpMailbox = hca.query_with(Opcode::QUERY_QP, self.qpn.get());
        found.context.state() == QpState::ERR
    }

    /// Takes the completion of the `nth` send, if it is there.
    pub(crate) fn take_completion(&self, nth: u32) -> bool {
        let Some(entry) = self.completions[0].take(nth) else {
            return false;
        };
        assert!(entry.owner_opcode.is_send());
        assert!(u32::from(entry.wqe_index.get()) == nth & 0xffff);
        true
    }
}
