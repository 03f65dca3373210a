//! A guest with queues: what the driver has of them on its side.

use emulated_hca::{Adapters, EndNode};
use hca_api::{PortState, VirtualPort};
use ib_wire::{Lid, Mtu, PKeyIndex, PortNum, QKey, Qpn};
use mlx4_defs::cq::{ArmCommand, CqContext, CqDoorbell};
use mlx4_defs::cqe::{CQE_SIZE, Cqe, CqeOpcode, ErrorCqe, Syndrome};
use mlx4_defs::qp::{QpContext, QpMailbox, QpState, ServiceType};
use mlx4_defs::receive::DoorbellRecord;
use mlx4_defs::wqe::{
    ControlSegment, DataSegment, DatagramSegment, INVALID_LKEY, InlineHeader, SendDoorbell,
    WqeOpcode,
};
use mlx4_defs::{Cqn, MttIndex, Pdn};

use super::super::capability::RESERVED_LKEY;
use super::*;

pub(super) const PORT: PortNum = PortNum(1);
pub(super) const QKEY: QKey = QKey::new(0x1234);
pub(super) const LID: u16 = 5;
pub(super) const EQN: u32 = 4;
/// The UAR of every queue.
pub(super) const UAR: u32 = 130;
/// Bytes of the GRH space of a datagram.
pub(super) const GRH: usize = 40;
const UAR_BASE: u64 = UAR as u64 * 4096;
/// Entries of a completion queue.
pub(super) const CQ_ENTRIES: u32 = 64;
/// Requests of each work queue: 32.
pub(super) const LOG_WORK: u8 = 5;
/// Log2 of the bytes of a send.
const LOG_SEND: u8 = 7;
/// Log2 of the bytes of a receive.
const LOG_RECEIVE: u8 = 5;

impl Guest {
    /// A guest on an active port that has an event queue, which gets all events.
    pub(super) fn online() -> Self {
        Self::new().go_online()
    }

    pub(super) fn go_online(self) -> Self {
        let mut guest = self;
        guest.start();
        let node = guest.fabric.device_mut(guest.node).unwrap().node_mut();
        let port = node.port_mut(PORT).unwrap();
        port.state = PortState::Active;
        port.lid = Lid::new(LID);
        port.neighbor_mtu = Mtu::MTU_2048;
        let mut pf = guest.fabric.hca(guest.node, FunctionId::PF).unwrap();
        let view = VirtualPort {
            state: PortState::Active,
            pkeys: vec![Some(PKeyIndex(0))],
            smi_enabled: false,
        };
        pf.set_virtual_port(VF, PORT, view).unwrap();
        guest.make_event_queue(EQN);
        let input = Input {
            param: u64::MAX,
            modifier: EQN,
            ..Input::default()
        };
        assert_eq!(guest.command(Opcode::MAP_EQ, input).0, Status::OK);
        guest.settle();
        guest
    }

    /// Moves what happened at the adapter to the function, and lets it go on until nothing is left.
    pub(super) fn settle(&mut self) {
        self.settle_at(NOW);
    }

    pub(super) fn settle_at(&mut self, now: Instant) {
        loop {
            let moved = self.fabric.poll(now);
            let mut hca = self.fabric.hca(self.node, VF).unwrap();
            let mut did = false;
            while let Some(event) = hca.poll_event() {
                self.function.handle_hca_event(now, &mut hca, &event);
                did = true;
            }
            if !(self.function.poll(now, &mut hca) || did || moved) {
                return;
            }
        }
    }

    pub(super) fn ok(&mut self, opcode: Opcode, input: Input) {
        assert_eq!(self.command(opcode, input).0, Status::OK, "{opcode:?}");
    }

    /// Makes a completion queue of [`CQ_ENTRIES`] in a page; its doorbell record is behind the ring.
    pub(super) fn make_cq(&mut self, page: u64) -> DriverCq {
        self.make_cq_on(page, UAR)
    }

    /// As [`Guest::make_cq`], armed by the doorbell of a UAR.
    pub(super) fn make_cq_on(&mut self, page: u64, uar: u32) -> DriverCq {
        let op = ResourceOp::RESERVE_AND_MAP;
        let (status, cqn) = self.allocate(ResourceType::CQ, op, 0);
        assert_eq!(status, Status::OK);
        let cq = DriverCq {
            cqn: u32::try_from(cqn).unwrap(),
            ring: self.page(page),
            record: self.page(page) + 4000,
            taken: 0,
            entries: CQ_ENTRIES,
        };
        self.write(cq.record, &[0; 8]);
        let mtt = self.map_pages(page, 0);
        let mut context = cq.context(mtt);
        context.uar = Uar::from_low_bits(uar);
        let mut input = self.put(&context);
        input.modifier = cq.cqn;
        self.ok(Opcode::SW2HW_CQ, input);
        cq
    }

    pub(super) fn reserve_qpn(&mut self) -> u32 {
        let (status, qpn) = self.allocate(ResourceType::QP, ResourceOp::RESERVE, 1 << 32 | 1);
        assert_eq!(status, Status::OK);
        u32::try_from(qpn).unwrap()
    }

    /// Makes a datagram queue pair and takes it to "ready to send". Its queues are in a page and
    /// the next.
    pub(super) fn make_qp(&mut self, page: u64, cq: &DriverCq) -> DriverQp {
        let qpn = self.reserve_qpn();
        self.make_qp_with(page, cq, qpn, |_| {})
    }

    pub(super) fn make_qp_with(
        &mut self,
        page: u64,
        cq: &DriverCq,
        qpn: u32,
        change: impl FnOnce(&mut QpContext),
    ) -> DriverQp {
        let qp = self.prepare_qp(page, qpn);
        let mut context = self.context(&qp, cq);
        change(&mut context);
        for (opcode, optional) in TO_SEND {
            self.ok_transition(opcode, qp.qpn, &context, optional);
        }
        qp
    }

    /// A queue pair that has a context, and is in reset.
    pub(super) fn prepare_qp(&mut self, page: u64, qpn: u32) -> DriverQp {
        let (status, _) = self.allocate(ResourceType::QP, ResourceOp::MAP_ICM, qpn.into());
        assert_eq!(status, Status::OK);
        let mut qp = DriverQp {
            qpn,
            buffer: self.page(page),
            mtt: self.map_pages(page, 1),
            record: self.page(page) + 8192 - 8,
            sends: 0,
            receives: 0,
            log_send: LOG_SEND,
            log_sends: LOG_WORK,
        };
        self.forget_posted(&mut qp);
        qp
    }

    /// What the driver does with the queues before it takes a queue pair out of reset.
    pub(super) fn forget_posted(&mut self, qp: &mut DriverQp) {
        (qp.sends, qp.receives) = (0, 0);
        self.write(qp.record, &[0; 4]);
        for slot in 0..1 << qp.log_sends {
            self.write(qp.send_slot(slot), &[0x80]);
        }
    }

    pub(super) fn context(&mut self, qp: &DriverQp, cq: &DriverCq) -> QpContext {
        let mut context = QpContext {
            uar: Uar::from_low_bits(UAR),
            send_cqn: Cqn::from_low_bits(cq.cqn),
            receive_cqn: Cqn::from_low_bits(cq.cqn),
            qkey: QKEY,
            mtt_base: MttBase::from_entry(MttIndex(qp.mtt)),
            doorbell_record: U64::new(qp.record),
            ..QpContext::default()
        };
        context.set_service_type(ServiceType::UD);
        context.set_pd(Pdn(3));
        context.set_reserved_lkey(true);
        context.set_log_sq_entries(LOG_WORK);
        context.set_log_sq_stride(LOG_SEND - 4);
        context.set_log_rq_entries(LOG_WORK);
        context.set_log_rq_stride(LOG_RECEIVE - 4);
        context.primary_path.sched_queue = 0x83;
        context
    }

    pub(super) fn transition(
        &mut self,
        opcode: Opcode,
        qpn: u32,
        context: &QpContext,
        optional: u32,
    ) -> Status {
        let mut mailbox = QpMailbox {
            context: *context,
            ..QpMailbox::default()
        };
        mailbox.optional.word.set(optional);
        let mut input = self.put(&mailbox);
        input.modifier = qpn;
        self.command(opcode, input).0
    }

    pub(super) fn ok_transition(
        &mut self,
        opcode: Opcode,
        qpn: u32,
        context: &QpContext,
        optional: u32,
    ) {
        let status = self.transition(opcode, qpn, context, optional);
        assert_eq!(status, Status::OK, "{opcode:?}");
    }

    pub(super) fn change_state(&mut self, opcode: Opcode, qp: &DriverQp) {
        self.ok_transition(opcode, qp.qpn, &QpContext::default(), 0);
    }

    pub(super) fn reset_qp(&mut self, qp: &DriverQp) {
        let input = Input {
            modifier: qp.qpn,
            variant: 2,
            ..Input::default()
        };
        self.ok(Opcode::TO_RST_QP, input);
    }

    pub(super) fn query_qp(&mut self, qp: &DriverQp) -> QpContext {
        let input = Input {
            modifier: qp.qpn,
            ..Input::default()
        };
        self.ok(Opcode::QUERY_QP, input);
        let outbox = self.outbox();
        self.read_layout::<QpMailbox>(outbox).context
    }

    pub(super) fn state(&mut self, qp: &DriverQp) -> QpState {
        self.query_qp(qp).state()
    }

    /// Posts a send: everything behind the control segment is `segments`.
    pub(super) fn post_send(
        &mut self,
        qp: &mut DriverQp,
        mut control: ControlSegment,
        segments: &[u8],
    ) {
        let at = qp.send_slot(qp.sends);
        control.set_owner(qp.sends & 1 << qp.log_sends != 0);
        let size = (16 + segments.len()).div_ceil(16);
        control.set_size(u8::try_from(size).unwrap());
        self.write(at + 16, segments);
        self.write(at + 4, &control.as_bytes()[4..]);
        self.write(at, &control.as_bytes()[..4]);
        qp.sends += 1;
    }

    pub(super) fn ring(&mut self, qp: &DriverQp) {
        let doorbell = SendDoorbell {
            qpn: Qpn::from_low_bits(qp.qpn),
            reserved: 0,
        };
        self.write_bar(2, UAR_BASE + 0x14, doorbell.as_bytes());
    }

    /// Sends bytes of the request itself to a queue pair on this port.
    pub(super) fn send_inline(&mut self, qp: &mut DriverQp, to: u32, bytes: &[u8]) {
        let mut segments = datagram(to).as_bytes().to_vec();
        segments.extend(inline(bytes));
        self.post_send(qp, control(WqeOpcode::SEND), &segments);
        self.ring(qp);
    }

    /// Posts a receive into the guest's memory, with the reserved key.
    pub(super) fn receive(&mut self, qp: &mut DriverQp, addr: u64, len: u32) {
        let list = [data(addr, len, RESERVED_LKEY), data(0, 0, INVALID_LKEY)];
        self.receive_list(qp, &list);
    }

    pub(super) fn receive_list(&mut self, qp: &mut DriverQp, list: &[DataSegment]) {
        let at = qp.receive_slot(qp.receives);
        self.write(at, list.as_bytes());
        qp.receives += 1;
        let mut record = DoorbellRecord::default();
        record.set_posted(u16::try_from(qp.receives & 0xffff).unwrap());
        self.write(qp.record, record.as_bytes());
    }

    /// Takes the next completion, if there is one.
    pub(super) fn poll_cq(&mut self, cq: &mut DriverCq) -> Option<Cqe> {
        let at = cq.ring + u64::from(cq.taken % cq.entries) * CQE_SIZE as u64;
        let cqe: Cqe = zerocopy::transmute!(self.read::<CQE_SIZE>(at));
        if cqe.owner_opcode.owner() != (cq.taken & cq.entries != 0) {
            return None;
        }
        cq.taken += 1;
        self.write(cq.record, &(cq.taken & 0xff_ffff).to_be_bytes());
        Some(cqe)
    }

    pub(super) fn poll_all(&mut self, cq: &mut DriverCq) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poll_cq(cq)).collect()
    }

    /// The only completion that waits.
    pub(super) fn poll_one(&mut self, cq: &mut DriverCq) -> Cqe {
        let all = self.poll_all(cq);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }

    pub(super) fn arm(&mut self, cq: &DriverCq, command: ArmCommand) {
        let cqn = Cqn::from_low_bits(cq.cqn);
        let doorbell = CqDoorbell::new(cqn, command, 1, cq.taken & 0xff_ffff);
        self.write_bar(2, UAR_BASE + 0x20, doorbell.as_bytes());
    }

    /// Events from the given one on, of the event queue.
    pub(super) fn eqes_from(&mut self, first: u64) -> Vec<Eqe> {
        (first..128)
            .map(|index| self.eqe(index))
            .take_while(|eqe| !eqe.owner())
            .collect()
    }
}

/// `RST2INIT` to `RTR2RTS`, with the optional fields that the driver gives.
pub(super) const TO_SEND: [(Opcode, u32); 3] = [
    (Opcode::RST2INIT_QP, 1 << 4 | 1 << 5),
    (Opcode::INIT2RTR_QP, 0),
    (Opcode::RTR2RTS_QP, 0),
];

/// A completion queue on the driver's side.
pub(super) struct DriverCq {
    pub(super) cqn: u32,
    pub(super) ring: u64,
    pub(super) record: u64,
    pub(super) taken: u32,
    pub(super) entries: u32,
}

impl DriverCq {
    pub(super) fn context(&self, mtt: u64) -> CqContext {
        let mut context = CqContext {
            uar: Uar::from_low_bits(UAR),
            comp_eqn: u8::try_from(EQN).unwrap(),
            mtt_base: MttBase::from_entry(MttIndex(mtt)),
            doorbell_record: U64::new(self.record),
            ..CqContext::default()
        };
        context.set_log_entries(u8::try_from(self.entries.ilog2()).unwrap());
        context
    }
}

/// A queue pair on the driver's side.
pub(super) struct DriverQp {
    pub(super) qpn: u32,
    pub(super) buffer: u64,
    pub(super) mtt: u64,
    pub(super) record: u64,
    pub(super) sends: u32,
    pub(super) receives: u32,
    /// Log2 of the bytes of a send.
    pub(super) log_send: u8,
    /// Log2 of the number of sends.
    pub(super) log_sends: u8,
}

impl DriverQp {
    pub(super) fn send_slot(&self, index: u32) -> u64 {
        self.buffer + (u64::from(index % (1 << self.log_sends)) << self.log_send)
    }

    pub(super) fn receive_slot(&self, index: u32) -> u64 {
        // The send queue has the longer stride and comes first.
        let behind = 1_u64 << (self.log_sends + self.log_send);
        self.buffer + behind + (u64::from(index % (1 << LOG_WORK)) << LOG_RECEIVE)
    }
}

pub(super) fn control(opcode: WqeOpcode) -> ControlSegment {
    let mut control = ControlSegment::default();
    control.set_opcode(opcode);
    control.set_completion(ControlSegment::SIGNALED);
    control
}

/// To a queue pair of this port.
pub(super) fn datagram(qpn: u32) -> DatagramSegment {
    let mut segment = DatagramSegment {
        remote_qpn: Qpn::from_low_bits(qpn),
        qkey: QKEY,
        ..DatagramSegment::default()
    };
    segment.av.set_port_number(PORT.0);
    segment.av.dlid = Lid::new(LID);
    segment
}

pub(super) fn data(addr: u64, len: u32, lkey: u32) -> DataSegment {
    DataSegment {
        byte_count: U32::new(len),
        lkey: U32::new(lkey),
        address: U64::new(addr),
    }
}

/// A header and bytes, up to the next header.
pub(super) fn inline(bytes: &[u8]) -> Vec<u8> {
    let header = InlineHeader::new(u16::try_from(bytes.len()).unwrap());
    let mut segment = [header.as_bytes(), bytes].concat();
    segment.resize(segment.len().next_multiple_of(16), 0);
    segment
}

pub(super) fn syndrome(cqe: &Cqe) -> Option<Syndrome> {
    let error: ErrorCqe = zerocopy::transmute!(*cqe);
    (cqe.owner_opcode.opcode() == CqeOpcode::ERROR.get()).then_some(error.syndrome)
}
