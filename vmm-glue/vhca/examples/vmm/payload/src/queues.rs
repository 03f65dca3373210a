//! A queue pair that sends datagrams, and its completion queue.

use ib_wire::{Lid, Mtu, QKey, Qpn};
use mlx4_defs::bar::{RESERVED_UARS, Register};
use mlx4_defs::cq::{CqContext, CqDoorbellRecord};
use mlx4_defs::cqe::{CQE_SIZE, Cqe};
use mlx4_defs::qp::{PathMigration, QpContext, QpMailbox, QpState, ServiceType};
use mlx4_defs::resource::{QpReservation, ResourceOp, ResourceParam, ResourceType};
use mlx4_defs::wqe::{ControlSegment, DatagramSegment, SEGMENT_UNIT, WqeOpcode};
use mlx4_defs::{CounterIndex, Cqn, Opcode, Pdn, Uar};
use zerocopy::network_endian::U64;

use crate::cpu;
use crate::hca::Hca;

/// The doorbell page: the first behind those of the device.
const PAGE: Uar = Uar::from_low_bits(RESERVED_UARS);

/// Protection domain. Nothing is sent from memory, so there is no region in it.
const PD: Pdn = Pdn(8);

/// Slots of both queues, and bytes of a send's, log2.
const LOG_SLOTS: u8 = 7;
const LOG_STRIDE: u8 = 6;

/// The subnet manager's LID. Nobody takes the datagrams there.
const TO: Lid = Lid::new(1);
const QKEY: QKey = QKey::new(0x1111);

/// A send as it lies in its slot.
#[repr(C)]
struct Send {
    control: ControlSegment,
    datagram: DatagramSegment,
}

pub(crate) struct SendQueue {
    qpn: Qpn,
    sends: u64,
    posted: u32,
    completions: u64,
    record: u64,
}

impl SendQueue {
    pub(crate) fn new(hca: &mut Hca) -> Self {
        let record = cpu::allocate(1);
        let (completions, mtt_base) = hca.queue_memory((CQE_SIZE as u64) << LOG_SLOTS >> 12);
        let number = hca.allocate(ResourceType::CQ, ResourceOp::RESERVE_AND_MAP, 0);
        let cqn = Cqn::from_low_bits(number as u32);
        let mut context = CqContext {
            uar: PAGE,
            mtt_base,
            doorbell_record: U64::new(record),
            ..CqContext::default()
        };
        context.set_log_entries(LOG_SLOTS);
        hca.send(Opcode::SW2HW_CQ, cqn.get(), context);
        // Behind the sends is one receive, to which nothing comes.
        let (sends, mtt_base) = hca.queue_memory(2 << LOG_SLOTS << LOG_STRIDE >> 12);
        let mut one = QpReservation::default();
        one.set_count(1);
        let one = ResourceParam {
            low: one.word.get(),
            high: 1,
        };
        let qpn = hca.allocate(ResourceType::QP, ResourceOp::RESERVE, one.into()) as u32;
        hca.allocate(ResourceType::QP, ResourceOp::MAP_ICM, qpn.into());
        let mut queue = Self {
            qpn: Qpn::from_low_bits(qpn),
            sends,
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
                send_cqn: cqn,
                receive_cqn: cqn,
                qkey: QKEY,
                mtt_base,
                doorbell_record: U64::new(record + 64),
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
        queue.posted = 0;
        queue
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
            remote_qpn: self.qpn,
            qkey: QKEY,
            ..DatagramSegment::default()
        };
        let [_, pd @ ..] = PD.0.to_be_bytes();
        datagram.av.pd = pd;
        datagram.av.set_port_number(1);
        datagram.av.dlid = TO;
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
        let slot = u64::from(nth & ((1 << LOG_SLOTS) - 1));
        let entry: Cqe = cpu::read(self.completions + slot * CQE_SIZE as u64);
        if entry.owner_opcode.owner() != (nth >> LOG_SLOTS & 1 != 0) {
            return false;
        }
        assert!(entry.owner_opcode.is_send() && !entry.owner_opcode.is_error());
        assert!(u32::from(entry.wqe_index.get()) == nth & 0xffff);
        let mut record = CqDoorbellRecord::default();
        record.set_consumer_index(nth + 1);
        cpu::write(self.record, record.set_ci);
        true
    }
}
