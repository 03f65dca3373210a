//! Queues from their making to their end: who holds whom, what fails, and what is shared.

use mlx4_defs::cqe::Syndrome;
use mlx4_defs::eqe::{CQ_OVERRUN, CqErrorEvent, NumberEvent};
use mlx4_defs::qp::{QpContext, QpState, ServiceType};
use mlx4_defs::query::{QueryDevCap, dev_cap_flags};
use mlx4_defs::receive::{DoorbellRecord, SrqNextSegment};
use mlx4_defs::srq::SrqContext;
use mlx4_defs::wqe::{INVALID_LKEY, WqeOpcode};
use mlx4_defs::{MttIndex, Srqn};

use super::super::capability::RESERVED_LKEY;
use super::queue_scene::*;
use super::*;

const IN: u64 = 44;
/// Log2 of the bytes of a shared receive.
const LOG_SHARED: u8 = 6;

/// A shared receive queue of 16 on the driver's side, which posts each slot once.
struct DriverSrq {
    srqn: u32,
    at: u64,
    record: u64,
    posted: u16,
}

impl Guest {
    fn make_srq(&mut self, page: u64) -> DriverSrq {
        let op = ResourceOp::RESERVE_AND_MAP;
        let (status, srqn) = self.allocate(ResourceType::SRQ, op, 0);
        assert_eq!(status, Status::OK);
        let srq = DriverSrq {
            srqn: u32::try_from(srqn).unwrap(),
            at: self.page(page),
            record: self.page(page) + 4000,
            posted: 0,
        };
        self.write(srq.record, &[0; 4]);
        let mut context = SrqContext {
            srqn: Srqn::from_low_bits(srq.srqn),
            mtt_base: MttBase::from_entry(MttIndex(self.map_pages(page, 0))),
            pd: U32::new(3),
            doorbell_record: U64::new(srq.record),
            ..SrqContext::default()
        };
        context.set_log_entries(4);
        context.set_log_stride(LOG_SHARED - 4);
        let mut input = self.put(&context);
        input.modifier = srq.srqn;
        self.ok(Opcode::SW2HW_SRQ, input);
        srq
    }

    fn post_shared(&mut self, srq: &mut DriverSrq, addr: u64, lkey: u32) {
        let at = srq.at + (u64::from(srq.posted) << LOG_SHARED);
        let next = SrqNextSegment {
            next: U16::new(srq.posted + 1),
            ..SrqNextSegment::default()
        };
        self.write(at, next.as_bytes());
        let list = [data(addr, 256, lkey), data(0, 0, INVALID_LKEY)];
        self.write(at + 16, list.as_bytes());
        srq.posted += 1;
        let mut record = DoorbellRecord::default();
        record.set_posted(srq.posted);
        self.write(srq.record, record.as_bytes());
    }

    fn events_of(&mut self, kind: EventType) -> Vec<Eqe> {
        let all = self.eqes_from(0);
        all.into_iter()
            .filter(|eqe| eqe.event_type == kind)
            .collect()
    }

    fn end(&mut self, opcode: Opcode, number: u32) -> Status {
        let input = Input {
            modifier: number,
            variant: 1,
            ..Input::default()
        };
        self.command(opcode, input).0
    }
}

fn shared(context: &mut QpContext, srq: &DriverSrq) {
    context.set_has_srq(true);
    context.srqn = Srqn::from_low_bits(srq.srqn);
    // What the driver leaves there.
    context.rq_size_stride = 0xfc;
}

/// Two queue pairs take from one queue; its limit is told once; its slots are in the completions.
#[test]
fn a_shared_queue_serves_its_queue_pairs_and_tells_when_it_runs_low() {
    let mut guest = Guest::online();
    let mut cq = guest.make_cq(10);
    let mut srq = guest.make_srq(20);
    let sender = guest.make_qp(16, &cq);
    let mut sender = sender;
    let numbers = [guest.reserve_qpn(), guest.reserve_qpn()];
    let members: Vec<_> = [(12, numbers[0]), (24, numbers[1])]
        .map(|(page, qpn)| guest.make_qp_with(page, &cq, qpn, |context| shared(context, &srq)))
        .into();
    let into = guest.page(IN);
    for _ in 0..4 {
        guest.post_shared(&mut srq, into, RESERVED_LKEY);
    }
    let limit = Input {
        param: 3,
        modifier: srq.srqn,
        ..Input::default()
    };
    guest.ok(Opcode::ARM_SRQ, limit);
    for (slot, member) in [0, 1, 0].into_iter().enumerate() {
        let member = &members[member];
        guest.send_inline(&mut sender, member.qpn, b"x");
        let all = guest.poll_all(&mut cq);
        let received = all.iter().find(|cqe| !cqe.owner_opcode.is_send()).unwrap();
        assert_eq!(received.qpn.get(), member.qpn);
        assert_eq!(usize::from(received.wqe_index.get()), slot);
    }
    guest.settle();
    let told = guest.events_of(EventType::SRQ_LIMIT);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].view::<NumberEvent>().get(), srq.srqn);
    guest.ok(Opcode::QUERY_SRQ, limit);
    let outbox = guest.outbox();
    assert_eq!(
        guest
            .read_layout::<SrqContext>(outbox)
            .limit_watermark
            .get(),
        0
    );
    // One is left, fewer than the limit says.
    guest.ok(Opcode::ARM_SRQ, limit);
    guest.settle();
    assert_eq!(guest.events_of(EventType::SRQ_LIMIT).len(), 2);

    assert_eq!(
        guest.end(Opcode::HW2SW_SRQ, srq.srqn),
        Status::RESOURCE_BUSY
    );
    guest.change_state(Opcode::TO_ERR_QP, &members[0]);
    guest.settle();
    let last = guest.events_of(EventType::SRQ_QP_LAST_WQE);
    assert_eq!(last.len(), 1);
    assert_eq!(last[0].view::<NumberEvent>().get(), members[0].qpn);
    for qp in &members {
        guest.reset_qp(qp);
    }
    guest.reset_qp(&sender);
    assert_eq!(guest.end(Opcode::HW2SW_SRQ, srq.srqn), Status::OK);
    assert_eq!(guest.end(Opcode::HW2SW_CQ, cq.cqn), Status::OK);
    let owned = guest.owned();
    assert_eq!((owned.qps, owned.cqs, owned.srqs, owned.pds), (0, 0, 0, 0));
}

/// A queue that a process of the guest takes from cannot name the guest's memory, even if a queue pair of
/// the kernel does, too.
#[test]
fn the_reserved_key_in_a_shared_queue_is_for_a_kernel_alone() {
    let mut guest = Guest::online();
    let mut cq = guest.make_cq(10);
    let mut srq = guest.make_srq(20);
    let mut sender = guest.make_qp(16, &cq);
    let numbers = [guest.reserve_qpn(), guest.reserve_qpn()];
    let kernel = guest.make_qp_with(12, &cq, numbers[0], |context| shared(context, &srq));
    let user = guest.make_qp_with(24, &cq, numbers[1], |context| {
        shared(context, &srq);
        context.set_reserved_lkey(false);
    });
    let into = guest.page(IN);
    for member in [&kernel, &user] {
        guest.post_shared(&mut srq, into, RESERVED_LKEY);
        guest.send_inline(&mut sender, member.qpn, b"x");
        let all = guest.poll_all(&mut cq);
        let received = all.iter().find(|cqe| !cqe.owner_opcode.is_send()).unwrap();
        assert_eq!(syndrome(received), Some(Syndrome::LOCAL_PROTECTION));
        assert_eq!(guest.state(member), QpState::ERR);
    }
}

/// A driver that does not take its completions loses the queue and what completes there, and is told.
#[test]
fn an_overrun_fails_the_queue_and_its_queue_pairs() {
    let mut guest = Guest::online();
    let cq = guest.make_cq(10);
    let mut left = guest.make_qp(12, &cq);
    let right = guest.make_qp(16, &cq);
    for sent in 0..=CQ_ENTRIES {
        assert_eq!(guest.eqes_from(0), [], "{sent}");
        let to = datagram(right.qpn);
        guest.post_send(&mut left, control(WqeOpcode::SEND), to.as_bytes());
        guest.ring(&left);
        guest.settle();
    }
    let failed = guest.events_of(EventType::CQ_ERROR);
    assert_eq!(failed.len(), 1);
    let data = failed[0].view::<CqErrorEvent>();
    assert_eq!((data.cqn.get(), data.syndrome), (cq.cqn, CQ_OVERRUN));
    assert_eq!(guest.events_of(EventType::WQ_CATAS_ERROR).len(), 2);
    for qp in [&left, &right] {
        assert_eq!(guest.state(qp), QpState::ERR);
    }
    assert_eq!(guest.end(Opcode::HW2SW_CQ, cq.cqn), Status::RESOURCE_BUSY);
    for qp in [&left, &right] {
        guest.reset_qp(qp);
    }
    assert_eq!(guest.end(Opcode::HW2SW_CQ, cq.cqn), Status::OK);
}

/// What a context asks for that the function does not have is refused, and nothing is left of it.
#[test]
fn contexts_that_cannot_be_are_refused_and_leave_nothing() {
    let mut guest = Guest::online();
    let cq = guest.make_cq(10);
    let qpn = guest.reserve_qpn();
    let qp = guest.prepare_qp(12, qpn);
    let good = guest.context(&qp, &cq);
    type Change = fn(&mut QpContext);
    let changes: [(Change, Status); 7] = [
        (|c| c.rate_limit = U16::new(1), Status::BAD_OP),
        (|c| c.set_inline_receive(true), Status::BAD_PARAM),
        (|c| c.set_page_offset(1), Status::BAD_PARAM),
        (|c| c.set_log_sq_entries(15), Status::BAD_PARAM),
        (|c| c.set_has_srq(true), Status::BAD_PARAM),
        (|c| c.log_page_size.0 = 0x3f, Status::BAD_PARAM),
        (
            |c| c.send_cqn = mlx4_defs::Cqn::from_low_bits(0xff_ffff),
            Status::BAD_PARAM,
        ),
    ];
    for (change, status) in changes {
        let mut context = good;
        change(&mut context);
        assert_eq!(
            guest.transition(Opcode::RST2INIT_QP, qpn, &context, 0),
            status
        );
        let owned = guest.owned();
        assert_eq!((owned.qps, owned.pds, owned.mrs), (0, 0, 0));
    }
    let early = guest.transition(Opcode::INIT2RTR_QP, qpn, &good, 0);
    assert_eq!(early, Status::BAD_RES_STATE);
    guest.ok_transition(Opcode::RST2INIT_QP, qpn, &good, 0);
}

/// The adapter has windows; the PF of a real one hides them from VFs.
#[test]
fn t065_windows_are_not_shown() {
    let mut guest = Guest::online();
    guest.ok(Opcode::QUERY_DEV_CAP, Input::default());
    let outbox = guest.outbox();
    let shown = guest.read_layout::<QueryDevCap>(outbox);
    assert_eq!(shown.flags() & dev_cap_flags::MEMORY_WINDOW, 0);
    let memory = shown.memory_flags;
    assert!(!memory.windows_2() && !memory.windows_2b() && memory.fast_register());
}

#[test]
fn t072_xrc_is_neither_shown_nor_served() {
    let mut guest = Guest::online();
    guest.ok(Opcode::QUERY_DEV_CAP, Input::default());
    let outbox = guest.outbox();
    let shown = guest.read_layout::<QueryDevCap>(outbox).flags();
    assert_eq!(shown & dev_cap_flags::XRC, 0);
    assert_eq!(shown & dev_cap_flags::RC, dev_cap_flags::RC);
    let (status, _) = guest.allocate(ResourceType::XRCD, ResourceOp::RESERVE, 0);
    assert_eq!(status, Status::BAD_PARAM);
    let cq = guest.make_cq(10);
    let qpn = guest.reserve_qpn();
    let qp = guest.prepare_qp(12, qpn);
    let mut context = guest.context(&qp, &cq);
    context.set_service_type(ServiceType::XRC);
    let made = guest.transition(Opcode::RST2INIT_QP, qpn, &context, 0);
    assert_eq!((made, guest.owned().qps), (Status::BAD_PARAM, 0));
}
