//! Conformance of the transaction ids and of RMPP through them: statements 43 to 58 and 181 to 190,
//! and a model of the whole table.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod progress;
mod sequences;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppMad, RmppStatus, RmppType};
use ib_wire::{Gid, Guid, Lid, Lmc, Qpn, SubnetPrefix, Tid};
use mad_mux::steering::Owner;
use mad_mux::tid::{Peer, TidConfig, TidMap, TransactionState};
use vf_tunnel::{DropReason, VfId};

const SA: Peer = Peer {
    lid: Lid::new(1),
    qpn: Qpn::GSI,
    gid: Gid::NONE,
};

fn vf(n: u16) -> Owner {
    Owner::Vf(VfId::new(n).unwrap())
}

fn at(lid: u16) -> Peer {
    Peer {
        lid: Lid::new(lid),
        ..SA
    }
}

fn secs(n: u64) -> Instant {
    Instant::from_millis(n * 1000)
}

fn request(method: Method, tid: u64) -> Mad {
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_ADM,
        method,
        AttributeId::PATH_RECORD,
    ));
    mad.header.tid = Tid::new(tid);
    mad
}

fn get(tid: u64) -> Mad {
    request(Method::GET, tid)
}

fn answer_to(sent: &Mad) -> Mad {
    let mut mad = *sent;
    mad.header.method = sent.header.method.response();
    mad
}

fn with_rmpp(mut mad: Mad, rmpp: RmppHeader) -> Mad {
    mad.view_mut::<RmppMad>().rmpp = rmpp;
    mad
}

fn data(mad: Mad, segment: u32) -> Mad {
    with_rmpp(mad, RmppHeader::data(segment, 220, RmppFlags::default()))
}

fn ack(mad: Mad, segment: u32) -> Mad {
    with_rmpp(mad, RmppHeader::ack(segment, segment + 64))
}

fn map() -> TidMap {
    TidMap::new(TidConfig::default(), 7)
}

/// Sends at time zero and gives what went out.
fn send(map: &mut TidMap, owner: Owner, mad: Mad, to: &Peer) -> Mad {
    send_at(map, Instant::ZERO, owner, mad, to)
}

fn send_at(map: &mut TidMap, now: Instant, owner: Owner, mut mad: Mad, to: &Peer) -> Mad {
    map.egress(now, owner, &mut mad, to).unwrap();
    mad
}

fn receive(
    map: &mut TidMap,
    now: Instant,
    mut mad: Mad,
    from: &Peer,
) -> Result<(Owner, u64), DropReason> {
    let owner = map.ingress(now, &mut mad, from)?;
    Ok((owner, mad.header.tid.get()))
}

#[test]
fn c043_a_tid_of_all_ones_comes_back() {
    let mut map = map();
    let sent = send(&mut map, vf(1), get(u64::MAX), &SA);
    assert_eq!(
        receive(&mut map, Instant::ZERO, answer_to(&sent), &SA),
        Ok((vf(1), u64::MAX))
    );
}

#[test]
fn c044_every_msb_passes_and_comes_back_bit_exact() {
    let mut map = map();
    for msb in 0..=255_u64 {
        let tid = msb << 56 | 0x1234;
        let sent = send(&mut map, vf(1), get(tid), &SA);
        assert!(sent.header.tid.get() <= u64::from(u32::MAX));
        assert_eq!(
            receive(&mut map, Instant::ZERO, answer_to(&sent), &SA),
            Ok((vf(1), tid))
        );
    }
}

#[test]
fn c045_equal_tids_of_two_vfs_are_two_transactions() {
    let mut map = map();
    let first = send(&mut map, vf(1), get(5), &SA);
    let second = send(&mut map, vf(2), get(5), &SA);
    assert_ne!(first.header.tid, second.header.tid);
    assert_eq!(
        receive(&mut map, Instant::ZERO, answer_to(&second), &SA),
        Ok((vf(2), 5))
    );
    assert_eq!(
        receive(&mut map, Instant::ZERO, answer_to(&first), &SA),
        Ok((vf(1), 5))
    );
}

#[test]
fn c046_a_retransmission_has_the_same_wire_tid() {
    let mut map = map();
    let first = send(&mut map, vf(1), get(5), &SA);
    let again = send_at(&mut map, secs(3), vf(1), get(5), &SA);
    assert_eq!(first.header.tid, again.header.tid);
    assert_eq!(map.len(), 1);
}

#[test]
fn c046_another_question_under_the_same_tid_gets_its_own_answer() {
    let mut map = map();
    let first = send(&mut map, vf(1), get(5), &SA);
    receive(&mut map, secs(1), answer_to(&first), &SA).unwrap();
    let mut other = request(Method::GET_TABLE, 5);
    other.header.attribute_id = AttributeId::NODE_RECORD;
    let second = send_at(&mut map, secs(2), vf(1), other, &SA);
    assert_eq!(
        receive(&mut map, secs(3), answer_to(&second), &SA),
        Ok((vf(1), 5))
    );
    assert_eq!(
        receive(&mut map, secs(3), answer_to(&first), &SA),
        Err(DropReason::AnswerMismatch)
    );
    assert_eq!(map.len(), 1);
}

#[test]
fn c047_one_tid_to_two_destinations_is_two_transactions() {
    let mut map = map();
    let first = send(&mut map, vf(1), get(5), &at(1));
    let second = send(&mut map, vf(1), get(5), &at(0x102));
    assert_ne!(first.header.tid, second.header.tid);
    let mixed = receive(&mut map, Instant::ZERO, answer_to(&first), &at(0x102));
    assert_eq!(mixed, Err(DropReason::WrongPeer));
}

#[test]
fn c048_an_unknown_or_expired_wire_tid_is_dropped() {
    let mut map = map();
    let sent = send(&mut map, vf(1), get(5), &SA);
    for tid in [
        0,
        1,
        sent.header.tid.get() ^ 1,
        sent.header.tid.get() | 1 << 32,
        u64::MAX,
    ] {
        let mut forged = answer_to(&sent);
        forged.header.tid = Tid::new(tid);
        assert_eq!(
            receive(&mut map, Instant::ZERO, forged, &SA),
            Err(DropReason::UnknownTid)
        );
    }
    assert_eq!(
        receive(&mut map, secs(61), answer_to(&sent), &SA),
        Err(DropReason::UnknownTid)
    );
    assert!(map.is_empty());
}

#[test]
fn c049_an_answer_from_elsewhere_is_dropped() {
    let mut map = map();
    let gid = Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(9));
    let asked = Peer { gid, ..at(4) };
    let sent = send(&mut map, vf(1), get(5), &asked);
    for from in [
        at(0x205),
        Peer {
            qpn: Qpn::from_low_bits(2),
            ..asked
        },
    ] {
        let result = receive(&mut map, Instant::ZERO, answer_to(&sent), &from);
        assert_eq!(result, Err(DropReason::WrongPeer));
    }
    let by_gid = Peer { gid, ..at(0x205) };
    assert!(receive(&mut map, Instant::ZERO, answer_to(&sent), &by_gid).is_ok());
}

#[test]
fn c049_an_answer_may_come_from_the_base_lid_of_the_port_that_was_asked() {
    let accepted = |map: &mut TidMap, asked: u16| -> Vec<u16> {
        let sent = send(map, vf(1), get(5), &at(asked));
        let mut answered = |lid: &u16| {
            let got = receive(map, Instant::ZERO, answer_to(&sent), &at(*lid));
            assert!(
                [Ok((vf(1), 5)), Err(DropReason::WrongPeer)].contains(&got),
                "{got:?}"
            );
            got.is_ok()
        };
        (0x100..0x280).filter(|lid| answered(lid)).collect()
    };
    let mut map = map();
    assert_eq!(accepted(&mut map, 0x187), [0x187]);
    // The port's own LMC, where nothing is known of the one that was asked.
    map.lmcs_mut().set_own(Lmc::from_low_bits(2));
    assert_eq!(accepted(&mut map, 0x187), [0x184, 0x187]);
    assert_eq!(accepted(&mut map, 0x184), [0x184]);
    // One that has more LIDs, and one that has fewer.
    map.lmcs_mut().learn(Lid::new(0x180), Lmc::from_low_bits(3));
    map.lmcs_mut().learn(Lid::new(0x189), Lmc::from_low_bits(0));
    assert_eq!(accepted(&mut map, 0x187), [0x180, 0x187]);
    assert_eq!(accepted(&mut map, 0x189), [0x189]);
    assert_eq!(accepted(&mut map, 0x18a), [0x188, 0x18a]);
}

#[test]
fn c050_an_answer_of_another_class_method_or_attribute_is_dropped() {
    let mut map = map();
    let sent = send(&mut map, vf(1), get(5), &SA);
    let change: [fn(&mut MadHeader); 3] = [
        |header| header.mgmt_class = MgmtClass::DEV_MGT,
        |header| header.method = Method::GET_TABLE_RESP,
        |header| header.attribute_id = AttributeId::NODE_RECORD,
    ];
    for change in change {
        let mut answer = answer_to(&sent);
        change(&mut answer.header);
        let result = receive(&mut map, Instant::ZERO, answer, &SA);
        assert_eq!(result, Err(DropReason::AnswerMismatch));
    }
}

#[test]
fn c050_a_trace_may_come_as_a_table_of_traces() {
    let mut map = map();
    let sent = send(&mut map, vf(1), request(Method::GET_TRACE_TABLE, 5), &SA);
    let mut answer = answer_to(&sent);
    answer.header.attribute_id = AttributeId::TRACE_RECORD;
    answer.header.method = Method::GET_TABLE_RESP;
    assert!(receive(&mut map, Instant::ZERO, answer, &SA).is_ok());
    answer.header.attribute_id = AttributeId::NODE_RECORD;
    assert_eq!(
        receive(&mut map, Instant::ZERO, answer, &SA),
        Err(DropReason::AnswerMismatch)
    );
}

#[test]
fn c051_c052_a_duplicate_answer_is_delivered_for_15_seconds_and_then_to_nobody() {
    let mut map = map();
    let sent = send(&mut map, vf(1), get(5), &SA);
    for now in [0, 10, 20] {
        assert_eq!(
            receive(&mut map, secs(now), answer_to(&sent), &SA),
            Ok((vf(1), 5))
        );
    }
    assert_eq!(
        receive(&mut map, secs(36), answer_to(&sent), &SA),
        Err(DropReason::UnknownTid)
    );
    for n in 0..1000 {
        let next = send_at(&mut map, secs(36), vf(2), get(n), &SA);
        assert_ne!(next.header.tid, sent.header.tid);
    }
}

#[test]
fn c053_a_vf_with_its_quota_open_is_refused_more_and_others_are_not() {
    let mut map = TidMap::new(
        TidConfig {
            per_vf: 10,
            ..TidConfig::default()
        },
        7,
    );
    for tid in 0..10 {
        send(&mut map, vf(1), get(tid), &SA);
    }
    let refused = map.egress(Instant::ZERO, vf(1), &mut get(10), &SA);
    assert_eq!(refused, Err(DropReason::TidQuota));
    assert!(
        map.egress(Instant::ZERO, vf(1), &mut get(3), &SA).is_ok(),
        "a retransmission"
    );
    send(&mut map, vf(2), get(10), &SA);
    assert_eq!((map.usage(vf(1)).live, map.usage(vf(2)).live), (10, 1));
}

#[test]
fn c053_at_the_quota_the_oldest_answered_makes_place() {
    let config = TidConfig {
        per_vf: 3,
        ..TidConfig::default()
    };
    let mut map = TidMap::new(config, 7);
    let sent: Vec<Mad> = (0..3)
        .map(|tid| send(&mut map, vf(1), get(tid), &SA))
        .collect();
    // Answered in another order than they were asked, and one of them twice.
    for (at, tid) in [(1, 1), (2, 0), (3, 1)] {
        receive(&mut map, secs(at), answer_to(&sent[tid]), &SA).unwrap();
    }
    let known = |map: &mut TidMap| {
        let sent = sent
            .iter()
            .map(|mad| receive(map, secs(3), answer_to(mad), &SA).is_ok());
        sent.collect::<Vec<_>>()
    };
    send_at(&mut map, secs(3), vf(1), get(10), &SA);
    assert_eq!(known(&mut map.clone()), [false, true, true]);
    send_at(&mut map, secs(3), vf(1), get(11), &SA);
    assert_eq!(known(&mut map.clone()), [false, false, true]);
    let refused = map.egress(secs(3), vf(1), &mut get(12), &SA);
    assert_eq!(refused, Err(DropReason::TidQuota));
    assert_eq!(map.usage(vf(1)).live, 3);
}

#[test]
fn c053_five_thousand_requests_that_are_answered_within_a_second_all_pass() {
    let mut map = map();
    for tid in 0..5000 {
        let now = Instant::from_millis(tid / 5);
        let sent = send_at(&mut map, now, vf(1), get(tid), &SA);
        let answered = receive(&mut map, now, answer_to(&sent), &SA);
        assert_eq!(answered, Ok((vf(1), tid)));
    }
    assert_eq!(map.usage(vf(1)).live, TidConfig::default().per_vf);
}

#[test]
fn c053_five_thousand_tables_that_came_whole_within_a_second_all_pass() {
    let mut map = map();
    for tid in 0..5000 {
        let table = request(Method::GET_TABLE, tid);
        let sent = send(&mut map, vf(1), table, &SA);
        let flags = RmppFlags::FIRST.union(RmppFlags::LAST);
        let whole = with_rmpp(answer_to(&sent), RmppHeader::data(1, 20, flags));
        receive(&mut map, Instant::ZERO, whole, &SA).unwrap();
        send(&mut map, vf(1), ack(table, 1), &SA);
    }
}

#[test]
fn a_transfer_whose_last_segment_came_first_goes_on() {
    let mut map = map();
    let sent = send(&mut map, vf(1), request(Method::GET_TABLE, 9), &SA);
    let last = with_rmpp(answer_to(&sent), RmppHeader::data(3, 20, RmppFlags::LAST));
    receive(&mut map, Instant::ZERO, last, &SA).unwrap();
    receive(&mut map, secs(1), data(answer_to(&sent), 2), &SA).unwrap();
    assert!(receive(&mut map, secs(40), last, &SA).is_ok());
}

#[test]
fn requests_repeated_after_their_answers_wait_within_the_sa_quota() {
    let config = TidConfig {
        sa_per_vf: 2,
        ..TidConfig::default()
    };
    let mut map = TidMap::new(config, 1);
    for tid in 1..=4 {
        let sent = send(&mut map, vf(1), get(tid), &SA);
        receive(&mut map, secs(0), answer_to(&sent), &SA).unwrap();
    }
    let mut repeat = |tid| {
        let mut mad = get(tid);
        map.egress(secs(0), vf(1), &mut mad, &SA).map(drop)
    };
    assert_eq!([repeat(1), repeat(2)], [Ok(()), Ok(())]);
    assert_eq!(repeat(3), Err(DropReason::SaQuota));
    // What waits already may be repeated as often as anybody likes.
    assert_eq!(repeat(2), Ok(()));
    assert_eq!(map.usage(vf(1)).waiting_for_sa, 2);
}

#[test]
fn c054_the_pfs_own_requests_share_the_space_and_cannot_collide() {
    let mut map = map();
    let mut seen = BTreeSet::new();
    for tid in 0..500 {
        assert!(seen.insert(send(&mut map, Owner::Pf, get(tid), &SA).header.tid));
        assert!(seen.insert(send(&mut map, vf(1), get(tid), &SA).header.tid));
    }
    let steps: BTreeSet<u64> = seen
        .iter()
        .zip(seen.iter().skip(1))
        .map(|(a, b)| b.get() - a.get())
        .collect();
    assert!(steps.len() > 900, "wire TIDs stand at irregular distances");
}

#[test]
fn c055_c056_answers_and_messages_without_answer_are_not_mapped() {
    for method in [
        Method::REPORT_RESP,
        Method::GET_RESP,
        Method::SEND,
        Method::TRAP_REPRESS,
    ] {
        assert!(!TidMap::is_mapped(method), "{method}");
    }
    for method in [
        Method::GET,
        Method::SET,
        Method::GET_TABLE,
        Method::GET_MULTI,
        Method::DELETE,
    ] {
        assert!(TidMap::is_mapped(method), "{method}");
    }
}

#[test]
fn c057_1024_vfs_get_their_own_answers() {
    let mut map = map();
    let sent: Vec<Mad> = (1..=1024)
        .map(|n| send(&mut map, vf(n), get(1), &SA))
        .collect();
    for (n, sent) in (1..=1024).zip(&sent) {
        assert_eq!(
            receive(&mut map, Instant::ZERO, answer_to(sent), &SA),
            Ok((vf(n), 1))
        );
    }
}

#[test]
fn c058_a_wire_tid_of_another_vf_is_an_opaque_guest_tid() {
    let mut map = map();
    let first = send(&mut map, vf(1), get(5), &SA);
    let observed = first.header.tid.get();
    let second = send(&mut map, vf(2), get(observed), &SA);
    assert_ne!(second.header.tid, first.header.tid);
    let answer = receive(&mut map, Instant::ZERO, answer_to(&second), &SA);
    assert_eq!(answer, Ok((vf(2), observed)));
}

#[test]
fn c180_equal_tids_of_two_vfs_run_two_tables_of_100_segments() {
    let mut map = map();
    let tables: Vec<Mad> = (1..=2)
        .map(|n| send(&mut map, vf(n), request(Method::GET_TABLE, 9), &SA))
        .collect();
    for segment in 1..=100 {
        for (n, sent) in (1..=2).zip(&tables) {
            let got = receive(&mut map, Instant::ZERO, data(answer_to(sent), segment), &SA);
            assert_eq!(got, Ok((vf(n), 9)));
            let acked = ack(request(Method::GET_TABLE, 9), segment);
            assert_eq!(
                send(&mut map, vf(n), acked, &SA).header.tid,
                sent.header.tid
            );
        }
    }
    assert_eq!(map.len(), 2);
}

#[test]
fn c181_an_ack_uses_the_transfers_tid_and_makes_nothing() {
    let mut map = map();
    let sent = send(&mut map, vf(1), request(Method::GET_TABLE, 9), &SA);
    let acked = send(&mut map, vf(1), ack(request(Method::GET_TABLE, 9), 1), &SA);
    assert_eq!(acked.header.tid, sent.header.tid);
    assert_eq!(map.len(), 1);
}

#[test]
fn c182_abort_and_stop_pass_and_the_transaction_ends_after_15_seconds() {
    for kind in [RmppType::ABORT, RmppType::STOP] {
        let mut map = map();
        let sent = send(&mut map, vf(1), request(Method::GET_TABLE, 9), &SA);
        receive(&mut map, Instant::ZERO, data(answer_to(&sent), 1), &SA).unwrap();
        let end = with_rmpp(
            request(Method::GET_TABLE, 9),
            RmppHeader::end(kind, RmppStatus::UNSPECIFIED),
        );
        assert_eq!(send(&mut map, vf(1), end, &SA).header.tid, sent.header.tid);
        map.expire(secs(14));
        assert_eq!(map.len(), 1);
        map.expire(secs(16));
        assert!(map.is_empty());
    }
}

#[test]
fn c183_an_ack_of_no_transfer_is_dropped() {
    let mut map = map();
    let mut stray = ack(request(Method::GET_TABLE, 9), 1);
    let result = map.egress(Instant::ZERO, vf(1), &mut stray, &SA);
    assert_eq!(result, Err(DropReason::UnknownTransfer));
    assert!(map.is_empty());
}

#[test]
fn c184_a_transfer_survives_a_pause_of_39_seconds_and_not_of_46() {
    let mut map = map();
    let sent = send(&mut map, vf(1), request(Method::GET_TABLE, 9), &SA);
    receive(&mut map, Instant::ZERO, data(answer_to(&sent), 1), &SA).unwrap();
    assert!(receive(&mut map, secs(39), data(answer_to(&sent), 2), &SA).is_ok());
    let late = receive(&mut map, secs(39 + 46), data(answer_to(&sent), 3), &SA);
    assert_eq!(late, Err(DropReason::UnknownTid));
}

#[test]
fn c185_a_last_segment_sent_again_reaches_the_guest() {
    let mut map = map();
    let sent = send(&mut map, vf(1), request(Method::GET_TABLE, 9), &SA);
    let last = with_rmpp(answer_to(&sent), RmppHeader::data(3, 20, RmppFlags::LAST));
    receive(&mut map, Instant::ZERO, last, &SA).unwrap();
    send(&mut map, vf(1), ack(request(Method::GET_TABLE, 9), 3), &SA);
    assert_eq!(receive(&mut map, secs(10), last, &SA), Ok((vf(1), 9)));
}

#[test]
fn c186_a_dual_sided_get_multi_keeps_one_tid_for_all_its_packets() {
    let mut map = map();
    let multi = |segment| {
        let mut mad = request(Method::GET_MULTI, 9);
        mad.header.attribute_id = AttributeId::MULTI_PATH_RECORD;
        data(mad, segment)
    };
    let first = send(&mut map, vf(1), multi(1), &SA);
    let acked = ack(answer_to(&first), 1);
    assert_eq!(receive(&mut map, Instant::ZERO, acked, &SA), Ok((vf(1), 9)));
    assert_eq!(
        send(&mut map, vf(1), multi(2), &SA).header.tid,
        first.header.tid
    );
    let turn = send(&mut map, vf(1), ack(multi(0), 0), &SA);
    assert_eq!(turn.header.tid, first.header.tid);
    let mut paths = data(answer_to(&first), 1);
    paths.header.attribute_id = AttributeId::PATH_RECORD;
    assert_eq!(receive(&mut map, Instant::ZERO, paths, &SA), Ok((vf(1), 9)));
    assert_eq!(map.len(), 1);
}

#[test]
fn c190_a_reset_forgets_the_vfs_transactions_and_names_its_cut_transfers() {
    let mut map = map();
    let table = send(&mut map, vf(1), request(Method::GET_TABLE, 9), &SA);
    receive(&mut map, Instant::ZERO, data(answer_to(&table), 1), &SA).unwrap();
    let single = send(&mut map, vf(1), get(10), &SA);
    let other = send(&mut map, vf(2), get(10), &SA);
    let cut = map.reset(Instant::ZERO, VfId::new(1).unwrap());
    assert_eq!(cut.len(), 1);
    assert_eq!(cut[0].tid.0, table.header.tid);
    for gone in [table, single] {
        let result = receive(&mut map, Instant::ZERO, answer_to(&gone), &SA);
        assert_eq!(result, Err(DropReason::UnknownTid));
    }
    assert!(receive(&mut map, Instant::ZERO, answer_to(&other), &SA).is_ok());
}

#[test]
fn c193_random_requests_stay_within_the_quota_in_bytes() {
    let mut map = TidMap::new(TidConfig::default(), 7);
    let mut refused = 0;
    for n in 0..100_000_u64 {
        let tid = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let to = at(u16::try_from(n % 1000 + 1).unwrap());
        refused += u32::from(
            map.egress(Instant::ZERO, vf(1), &mut get(tid), &to)
                .is_err(),
        );
    }
    assert_eq!(refused, 100_000 - TidConfig::default().sa_per_vf);
    assert!(map.bytes() <= 128 * 1024, "{}", map.bytes());
}

#[test]
fn c203_sa_requests_without_answer_are_limited_and_answers_make_room() {
    let mut map = TidMap::new(
        TidConfig {
            sa_per_vf: 2,
            ..TidConfig::default()
        },
        7,
    );
    let first = send(&mut map, vf(1), get(1), &SA);
    send(&mut map, vf(1), get(2), &SA);
    let refused = map.egress(Instant::ZERO, vf(1), &mut get(3), &SA);
    assert_eq!(refused, Err(DropReason::SaQuota));
    receive(&mut map, Instant::ZERO, answer_to(&first), &SA).unwrap();
    send(&mut map, vf(1), get(3), &SA);
}

#[test]
fn a_live_transaction_costs_at_most_64_bytes() {
    let config = TidConfig {
        per_vf: 200_000,
        sa_per_vf: 200_000,
    };
    let mut map = TidMap::new(config, 7);
    // As many as fit a vector without slack, so that the figure is the cost and not the growth.
    let live = 1 << 17;
    let (mut bytes, mut moves) = (0, 0);
    for tid in 0..live {
        send(&mut map, vf(1), get(tid), &SA);
        moves += u32::from(map.bytes() != bytes);
        bytes = map.bytes();
    }
    let each = bytes as u64 / live;
    assert!((56..=64).contains(&each), "{each} bytes each");
    // Slots grow by a sixteenth and the index by an eighth.
    assert!(moves < 250, "{moves} times larger");
}

#[test]
fn a_transaction_shows_what_it_is_and_how_long_it_rests() {
    let mut map = map();
    let sent = send(&mut map, vf(1), request(Method::GET_TABLE, 9), &SA);
    let shown = |map: &TidMap, now| map.transactions(now).next().expect("one");
    let open = shown(&map, secs(3));
    assert_eq!((open.owner, open.tid.0.get()), (vf(1), 9));
    assert_eq!((open.wire_tid.0, open.peer), (sent.header.tid, SA));
    assert_eq!(open.class, MgmtClass::SUBN_ADM);
    assert_eq!(open.method, Method::GET_TABLE);
    assert_eq!(open.attribute, sent.header.attribute_id);
    assert_eq!(open.state, TransactionState::Open);
    let step = Duration::from_millis(2);
    assert!(open.idle > Duration::from_secs(3) - step && open.idle <= Duration::from_secs(3));

    receive(&mut map, secs(3), data(answer_to(&sent), 1), &SA).unwrap();
    let transfer = shown(&map, secs(4));
    assert_eq!(transfer.state, TransactionState::Transfer);
    assert!(transfer.idle > Duration::from_secs(1) - step);
    assert!(transfer.idle < Duration::from_secs(1) + step);

    receive(&mut map, secs(4), answer_to(&sent), &SA).unwrap();
    assert_eq!(shown(&map, secs(4)).state, TransactionState::Answered);
    map.expire(secs(20));
    assert_eq!(map.transactions(secs(20)).count(), 0);
}
