//! Datagrams from a queue pair of the guest to another.

use hca_api::{LocalMad, MadView};
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{GuidInfo, LidRoutedSmp, SmpAttribute};
use ib_wire::{Gid, Lid};
use mlx4_defs::cq::{ArmCommand, CqContext, MODIFY_MODERATION};
use mlx4_defs::cqe::Syndrome;
use mlx4_defs::qp::{AttachModifier, MulticastGroup, QpContext, QpState};
use mlx4_defs::wqe::{ControlSegment, WqeOpcode};

use super::super::capability::RESERVED_LKEY;
use super::super::queues::MAX_ATTACHMENTS;
use super::queue_scene::*;
use super::*;

const OUT: u64 = 40;
const IN: u64 = 44;

/// A guest with a completion queue, and two queue pairs that complete there.
fn pair() -> (Guest, DriverCq, DriverQp, DriverQp) {
    let mut guest = Guest::online();
    let cq = guest.make_cq(10);
    let left = guest.make_qp(12, &cq);
    let right = guest.make_qp(16, &cq);
    (guest, cq, left, right)
}

/// A request that is not signalled makes no entry, and the driver learns of it by the count in the next.
#[test]
fn only_signalled_requests_are_told_and_the_count_runs_on() {
    let (mut guest, mut cq, mut left, right) = pair();
    for round in 0..70_000_u32 {
        let mut quiet = control(WqeOpcode::SEND);
        let told = round % 16 == 15;
        quiet.set_completion(if told { ControlSegment::SIGNALED } else { 0 });
        guest.post_send(&mut left, quiet, datagram(right.qpn).as_bytes());
        guest.ring(&left);
        if told {
            let cqe = guest.poll_one(&mut cq);
            assert_eq!(u32::from(cqe.wqe_index.get()), round & 0xffff);
        }
    }
    assert!(guest.poll_cq(&mut cq).is_none());
}

/// Requests that were posted before a doorbell are carried out once, whatever the number of doorbells.
#[test]
fn one_doorbell_is_for_all_that_is_posted_and_another_for_nothing() {
    let (mut guest, mut cq, mut left, mut right) = pair();
    let into = guest.page(IN);
    for _ in 0..20 {
        guest.receive(&mut right, into, 512);
        guest.post_send(
            &mut left,
            control(WqeOpcode::SEND),
            datagram(right.qpn).as_bytes(),
        );
    }
    guest.ring(&left);
    guest.ring(&left);
    assert_eq!(guest.poll_all(&mut cq).len(), 40);
    guest.ring(&left);
    assert!(guest.poll_cq(&mut cq).is_none());
}

/// The reserved key is for the guest's kernel: another queue pair that uses it fails as with any wrong key.
#[test]
fn a_process_of_the_guest_cannot_use_the_reserved_key() {
    let mut guest = Guest::online();
    let mut cq = guest.make_cq(10);
    let out = guest.page(OUT);
    let (_, qpn) = guest.allocate(ResourceType::QP, ResourceOp::RESERVE, 1 << 32 | 1);
    let qpn = u32::try_from(qpn).unwrap();
    let mut user = guest.make_qp_with(12, &cq, qpn, |context| context.set_reserved_lkey(false));
    for lkey in [RESERVED_LKEY, 0x8000_0300] {
        let mut segments = datagram(qpn).as_bytes().to_vec();
        segments.extend(data(out, 8, lkey).as_bytes());
        guest.post_send(&mut user, control(WqeOpcode::SEND), &segments);
        guest.ring(&user);
        let cqe = guest.poll_one(&mut cq);
        assert_eq!(
            syndrome(&cqe),
            Some(Syndrome::LOCAL_PROTECTION),
            "0x{lkey:x}"
        );
        assert_eq!(guest.state(&user), QpState::SQER);
        guest.change_state(Opcode::SQERR2RTS_QP, &user);
    }
    guest.receive(&mut user, out, 64);
    guest.send_inline(&mut user, qpn, b"x");
    let all = guest.poll_all(&mut cq);
    assert!(
        all.iter()
            .any(|cqe| syndrome(cqe) == Some(Syndrome::LOCAL_PROTECTION))
    );
    assert_eq!(guest.state(&user), QpState::ERR);
}

/// A request that makes no sense fails in its place, and what comes after it is flushed.
#[test]
fn a_senseless_request_fails_after_those_before_it_and_the_rest_is_flushed() {
    let (mut guest, mut cq, mut left, right) = pair();
    let to = datagram(right.qpn);
    guest.post_send(&mut left, control(WqeOpcode::SEND), to.as_bytes());
    guest.post_send(&mut left, control(WqeOpcode::RDMA_READ), to.as_bytes());
    guest.post_send(&mut left, control(WqeOpcode::SEND), to.as_bytes());
    guest.ring(&left);
    guest.settle();
    let told: Vec<_> = guest
        .poll_all(&mut cq)
        .iter()
        .map(|cqe| (cqe.wqe_index.get(), syndrome(cqe)))
        .collect();
    let expected = [
        (0, None),
        (1, Some(Syndrome::LOCAL_QP_OP)),
        (2, Some(Syndrome::FLUSHED)),
    ];
    assert_eq!(told, expected);
    assert_eq!(guest.state(&left), QpState::SQER);
    guest.change_state(Opcode::SQERR2RTS_QP, &left);
    guest.post_send(&mut left, control(WqeOpcode::SEND), to.as_bytes());
    guest.ring(&left);
    assert_eq!(syndrome(&guest.poll_one(&mut cq)), None);
}

/// A driver drains: it moves to the error state and posts one more request on either queue; that nobody
/// tells of the receive does not matter.
#[test]
fn what_is_posted_in_error_is_flushed_too() {
    let (mut guest, mut cq, mut left, _) = pair();
    let into = guest.page(IN);
    guest.receive(&mut left, into, 512);
    guest.receive(&mut left, into, 512);
    guest.change_state(Opcode::TO_ERR_QP, &left);
    let flushed = |guest: &mut Guest, cq: &mut DriverCq| {
        let all = guest.poll_all(cq);
        assert!(
            all.iter()
                .all(|cqe| syndrome(cqe) == Some(Syndrome::FLUSHED))
        );
        all.iter()
            .map(|cqe| cqe.owner_opcode.is_send())
            .collect::<Vec<_>>()
    };
    assert_eq!(flushed(&mut guest, &mut cq), [false, false]);
    guest.post_send(&mut left, control(WqeOpcode::SEND), datagram(1).as_bytes());
    guest.ring(&left);
    assert_eq!(flushed(&mut guest, &mut cq), [true]);
    guest.settle();
    guest.receive(&mut left, into, 512);
    let due = guest.function.poll_timeout().unwrap();
    guest.settle_at(due);
    assert_eq!(flushed(&mut guest, &mut cq), [false]);
    assert_eq!(guest.state(&left), QpState::ERR);
    guest.reset_qp(&left);
    guest.receive(&mut left, into, 512);
    guest.settle_at(due + ib_vtime::Duration::from_secs(1));
    assert!(
        guest.poll_cq(&mut cq).is_none(),
        "in reset nothing completes"
    );
    assert_eq!(guest.function.poll_timeout(), None);
}

/// A queue pair can be reset and used again; what was posted before is forgotten.
#[test]
fn a_queue_pair_begins_anew_after_a_reset() {
    let (mut guest, mut cq, mut left, mut right) = pair();
    let into = guest.page(IN);
    guest.post_send(
        &mut left,
        control(WqeOpcode::SEND),
        datagram(right.qpn).as_bytes(),
    );
    guest.ring(&left);
    guest.poll_one(&mut cq);
    let context = guest.context(&left, &cq);
    guest.reset_qp(&left);
    guest.reset_qp(&left);
    guest.forget_posted(&mut left);
    for (opcode, optional) in TO_SEND {
        guest.ok_transition(opcode, left.qpn, &context, optional);
    }
    guest.receive(&mut right, into, 64);
    guest.send_inline(&mut left, right.qpn, b"again");
    assert_eq!(guest.poll_all(&mut cq).len(), 2);
    assert_eq!(guest.read::<5>(into + 40), *b"again");
}

/// A group of IPoIB.
fn group(low: u32) -> Gid {
    let mut mgid = Gid([
        0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    mgid.0[12..].copy_from_slice(&low.to_be_bytes());
    mgid
}

impl Guest {
    fn attach(&mut self, qpn: u32, mgid: Gid, attach: u8, block: bool) -> Status {
        let mut modifier = AttachModifier {
            qpn: ib_wire::Qpn::from_low_bits(qpn),
            ..AttachModifier::default()
        };
        modifier.set_block_loopback(block);
        let mut input = self.put(&MulticastGroup { mgid });
        input.modifier = u32::from_be_bytes(zerocopy::transmute!(modifier));
        input.variant = attach;
        self.command(Opcode::QP_ATTACH, input).0
    }
}

/// Groups stay with a queue pair in reset, where the adapter does not count them.
#[test]
fn attachments_of_all_queue_pairs_together_are_bounded() {
    let (mut guest, cq, left, right) = pair();
    let most = u32::try_from(MAX_ATTACHMENTS).unwrap();
    assert_eq!(guest.attach(left.qpn, group(most), 1, false), Status::OK);
    guest.reset_qp(&right);
    for low in 1..most {
        assert_eq!(guest.attach(right.qpn, group(low), 1, false), Status::OK);
    }
    for qpn in [left.qpn, right.qpn] {
        let more = guest.attach(qpn, group(0), 1, false);
        assert_eq!(more, Status::EXCEED_LIM);
    }
    let again = guest.attach(left.qpn, group(most), 1, true);
    assert_eq!(again, Status::OK, "it is no new one");
    assert_eq!(guest.attach(right.qpn, group(1), 0, false), Status::OK);
    assert_eq!(guest.attach(left.qpn, group(0), 1, false), Status::OK);
    let context = guest.context(&right, &cq);
    let refused = guest.transition(Opcode::RST2INIT_QP, right.qpn, &context, 0);
    assert_eq!(refused, Status::EXCEED_LIM, "more than the adapter's quota");
}

/// A group's packets come to whoever is attached, with their GRH, also after a reset; a sender can be
/// excepted.
#[test]
fn a_group_is_for_those_who_are_attached() {
    let mgid = group(0xffff_ffff);
    let (mut guest, mut cq, mut left, mut right) = pair();
    let into = guest.page(IN);
    let modify = |guest: &mut Guest, qp: &DriverQp, attach: u8, block: bool| {
        guest.attach(qp.qpn, mgid, attach, block)
    };
    assert_eq!(modify(&mut guest, &right, 0, false), Status::BAD_PARAM);
    assert_eq!(modify(&mut guest, &left, 1, true), Status::OK);
    assert_eq!(modify(&mut guest, &right, 1, false), Status::OK);
    assert_eq!(modify(&mut guest, &right, 1, false), Status::OK);

    let context = guest.context(&right, &cq);
    guest.reset_qp(&right);
    guest.forget_posted(&mut right);
    for (opcode, optional) in TO_SEND {
        guest.ok_transition(opcode, right.qpn, &context, optional);
    }
    give_gid(&mut guest);
    for qp in [&mut left, &mut right] {
        guest.receive(qp, into, 512);
    }
    let mut to = datagram(0xff_ffff);
    to.av.dlid = Lid::new(0xc001);
    to.av.set_grh(true);
    to.av.dgid = mgid;
    guest.post_send(&mut left, control(WqeOpcode::SEND), to.as_bytes());
    guest.ring(&left);
    let all = guest.poll_all(&mut cq);
    let received: Vec<_> = all
        .iter()
        .filter(|cqe| !cqe.owner_opcode.is_send())
        .collect();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].qpn.get(), right.qpn);
    assert!(received[0].grh());
    assert_eq!(guest.read::<16>(into + 24), mgid.0);

    assert_eq!(modify(&mut guest, &right, 0, false), Status::OK);
    guest.post_send(&mut left, control(WqeOpcode::SEND), to.as_bytes());
    guest.ring(&left);
    assert!(guest.poll_one(&mut cq).owner_opcode.is_send());
    for qp in [left, right] {
        guest.reset_qp(&qp);
    }
    assert_eq!(guest.owned().qps, 0);
}

/// The VF's GID, as a subnet manager writes it.
fn give_gid(guest: &mut Guest) {
    let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, GuidInfo::ID);
    let mut pf = guest.fabric.hca(guest.node, FunctionId::PF).unwrap();
    let mut ask = |mad: &Mad| match pf.process_local_mad(PORT, MadView::Host, mad) {
        Ok(LocalMad::Reply(reply)) => reply,
        other => panic!("{other:?}"),
    };
    let mut mad = ask(&Mad::new(header));
    mad.header.method = Method::SET;
    let table: &mut GuidInfo = mad.view_mut::<LidRoutedSmp>().attribute_mut();
    table.guids[usize::from(VF.0)] = Guid::new(0x77);
    ask(&mad);
}

/// The port stands in the second transition; the P_Key index is the function's own.
#[test]
fn a_context_is_merged_and_told_as_it_was_given() {
    let (mut guest, cq, left, _) = pair();
    let context = guest.query_qp(&left);
    assert_eq!(context.state(), QpState::RTS);
    assert_eq!((context.qkey, context.local_qpn.get()), (QKEY, left.qpn));
    assert_eq!(context.send_cqn.get(), cq.cqn);
    let fresh = QpContext {
        qkey: ib_wire::QKey::new(0x99),
        ..QpContext::default()
    };
    guest.ok_transition(Opcode::RTS2RTS_QP, left.qpn, &fresh, 0);
    assert_eq!(guest.query_qp(&left).qkey, QKEY);
    guest.ok_transition(Opcode::RTS2RTS_QP, left.qpn, &fresh, 1 << 5);
    assert_eq!(guest.query_qp(&left).qkey, fresh.qkey);
    let again = guest.transition(Opcode::RTR2RTS_QP, left.qpn, &fresh, 0);
    assert_eq!(again, Status::BAD_QP_STATE);
    guest.change_state(Opcode::RTS2SQD_QP, &left);
    assert_eq!(guest.state(&left), QpState::SQD);
    guest.change_state(Opcode::SQD2RTS_QP, &left);
}

/// The counts of what was carried out and what was filled are the device's to tell.
#[test]
fn a_queue_pair_tells_how_far_it_is() {
    let (mut guest, _, mut left, mut right) = pair();
    let into = guest.page(IN);
    for _ in 0..3 {
        guest.receive(&mut right, into, 64);
    }
    for _ in 0..2 {
        guest.send_inline(&mut left, right.qpn, b"x");
    }
    let (sender, receiver) = (guest.query_qp(&left), guest.query_qp(&right));
    let counts = |context: &QpContext| {
        let (sent, received) = (context.sq_wqe_counter, context.rq_wqe_counter);
        (sent.get(), received.get())
    };
    assert_eq!((counts(&sender), counts(&receiver)), ((2, 0), (0, 2)));
}

/// A moderated queue wakes the driver when enough has come, or after a while.
#[test]
fn a_moderated_queue_wakes_the_driver_later() {
    let (mut guest, mut cq, mut left, right) = pair();
    let moderate = |guest: &mut Guest, cq: &DriverCq, count: u16, micros: u16| {
        let context = CqContext {
            max_count: U16::new(count),
            period: U16::new(micros),
            ..CqContext::default()
        };
        let mut input = guest.put(&context);
        (input.modifier, input.variant) = (cq.cqn, MODIFY_MODERATION);
        guest.ok(Opcode::MODIFY_CQ, input);
    };
    let later = |micros: u64| NOW + ib_vtime::Duration::from_micros(micros);
    moderate(&mut guest, &cq, 3, 10);
    guest.arm(&cq, ArmCommand::NEXT);
    for told in [0, 0, 1, 1] {
        guest.send_inline(&mut left, right.qpn, b"x");
        guest.settle();
        assert_eq!(guest.eqes_from(0).len(), told);
    }
    guest.poll_all(&mut cq);

    guest.arm(&cq, ArmCommand::NEXT);
    guest.send_inline(&mut left, right.qpn, b"x");
    guest.settle();
    assert_eq!(guest.function.poll_timeout(), Some(later(10)));
    guest.settle_at(later(9));
    assert_eq!(guest.eqes_from(1), []);
    guest.settle_at(later(10));
    assert_eq!(guest.eqes_from(1).len(), 1);
    assert_eq!(guest.function.poll_timeout(), None);
    guest.poll_all(&mut cq);

    guest.arm(&cq, ArmCommand::NEXT);
    guest.send_inline(&mut left, right.qpn, b"x");
    guest.arm(&cq, ArmCommand::NEXT);
    assert_eq!(
        guest.eqes_from(2).len(),
        1,
        "it has not taken one when it arms"
    );
    guest.settle_at(later(100));
    assert_eq!(guest.eqes_from(3), []);
    guest.poll_all(&mut cq);

    guest.arm(&cq, ArmCommand::NEXT);
    guest.send_inline(&mut left, right.qpn, b"x");
    assert_eq!(guest.eqes_from(3), []);
    moderate(&mut guest, &cq, 0, 10);
    assert_eq!(guest.eqes_from(3).len(), 1, "no more");
    guest.poll_all(&mut cq);
    guest.arm(&cq, ArmCommand::NEXT);
    guest.send_inline(&mut left, right.qpn, b"x");
    assert_eq!(guest.eqes_from(4).len(), 1);
}
