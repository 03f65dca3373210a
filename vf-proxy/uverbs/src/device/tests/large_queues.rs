//! Completion queues of millions of entries.

use hca_api::{Completion, CompletionOp};
use verbs_link::abi::device::QueryDeviceAnswer;
use verbs_link::abi::ring::CONSUMER_INDEX;

use super::*;
use crate::testing::HeapRings;

/// Most entries of a queue, as programs see the limit.
const MAX_CQE: u32 = 4_194_303;

fn create(process: &mut Process, cqe: u32, channel: i32) -> (u32, u32, MappedRing) {
    let create = CreateCq {
        user_handle: 7.into(),
        cqe: cqe.into(),
        comp_channel: channel.into(),
        ..CreateCq::default()
    };
    let (cq, ring): (CreateCqAnswer, RxeCqAnswer) = process.ask(command::CREATE_CQ, &create);
    (cq.cq_handle.get(), cq.cqe.get(), ring.ring)
}

/// Adds completions of consecutive requests.
fn complete(process: &mut Process, cq: u32, requests: core::ops::Range<u64>) {
    for wr_id in requests {
        let completion = Completion {
            wr_id,
            op: CompletionOp::Recv,
            qpn: Qpn::from_low_bits(77),
            byte_len: 4,
            ..Completion::BLANK
        };
        process.device.push(cq, &completion);
    }
}

/// Reads, as a program does, all completions that are in a ring. Returns the names of their requests.
fn read_all(rings: &HeapRings, ring: MappedRing) -> Vec<u64> {
    let at = ring.offset.get();
    let mask = rings.load(at + verbs_link::abi::ring::INDEX_MASK);
    let mut index = rings.load(at + CONSUMER_INDEX);
    let mut read = Vec::new();
    while index != rings.load(at + PRODUCER_INDEX) {
        let mut element = CompletionElement::default();
        rings.read(
            at + RING_HEADER + u64::from(index) * 64,
            element.as_mut_bytes(),
        );
        read.push(element.wr_id.get());
        index = index.wrapping_add(1) & mask;
    }
    rings.store(at + CONSUMER_INDEX, index);
    read
}

#[test]
fn queues_of_the_most_entries_cost_little_until_the_budget_refuses() {
    let budget = Budget::new(256 << 10, None);
    let mut process = Process::with_budget(budget, 256 << 20);
    let (device, ()): (QueryDeviceAnswer, ()) = process.ask(command::QUERY_DEVICE, &0_u64);
    assert_eq!(device.max_cqe.get(), MAX_CQE);
    let query = CreateCq {
        cqe: (MAX_CQE + 1).into(),
        comp_channel: (-1).into(),
        ..CreateCq::default()
    };
    let beyond = process.command(command::CREATE_CQ, &query, 16);
    assert_eq!(beyond, Err(Errno::EINVAL));
    let query = CreateCq {
        cqe: MAX_CQE.into(),
        ..query
    };
    let mut queues = 0_u64;
    while let Ok(reply) = process.command(command::CREATE_CQ, &query, 24) {
        let (answer, _) = CreateCqAnswer::read_from_prefix(&reply.answer).unwrap();
        assert_eq!(answer.cqe.get(), MAX_CQE);
        queues += 1;
        // The one page of each holds the indices.
        assert_eq!(process.rings.resident(), queues * 4096);
    }
    assert!((40..64).contains(&queues), "{queues} queues");
    assert!(process.budget.used() <= 256 << 10);
}

#[test]
fn completions_beyond_the_ring_wait_and_come_in_order() {
    const COUNT: u64 = 100_000;

    let mut process = Process::with_budget(Budget::new(64 << 20, None), 8 << 20);
    let (cq, cqe, ring) = create(&mut process, 200_000, -1);
    assert_eq!(cqe, 262_143);
    let empty = process.budget.used();
    complete(&mut process, cq, 0..COUNT);
    let held = process.budget.used() - empty;
    assert!((COUNT * 48..COUNT * 64).contains(&held), "{held} bytes");
    let rings = process.rings.clone();
    let mut read = Vec::new();
    let mut turns = 0_u64;
    while read.len() < 99_000 {
        read.extend(read_all(&rings, ring));
        turns += 1;
        // The next look at the queue is some milliseconds later.
        let now = Instant::from_millis(turns * 20);
        process.with(|device, hca| while device.take_turn(now, hca, &mut || false) {});
    }
    assert!(turns < 6, "{turns} turns");
    complete(&mut process, cq, COUNT..COUNT + 10);
    read.extend(read_all(&rings, ring));
    assert!(read.iter().copied().eq(0..COUNT + 10));
    // What the service held is free again, and nothing is to be looked at.
    assert!(process.budget.used() - empty <= 2 << 20);
    assert_eq!(process.device.poll_timeout(), None);
}

#[test]
fn a_program_that_waits_is_woken_by_completions_that_find_room() {
    let mut process = Process::with_budget(Budget::new(64 << 20, None), 8 << 20);
    let (channel, ()): (CreateCompChannelAnswer, ()) =
        process.ask(command::CREATE_COMP_CHANNEL, &0_u64);
    let channel = i32::try_from(channel.fd.get()).unwrap();
    let (cq, _, ring) = create(&mut process, 100_000, channel);
    complete(&mut process, cq, 0..40_000);
    assert!(process.device.poll_event().is_none());
    let rings = process.rings.clone();
    assert_eq!(read_all(&rings, ring).len(), 32_767);
    let notify = ReqNotifyCq {
        cq_handle: cq.into(),
        ..ReqNotifyCq::default()
    };
    process.command(command::REQ_NOTIFY_CQ, &notify, 0).unwrap();
    assert!(process.device.poll_event().is_some());
    assert_eq!(read_all(&rings, ring).len(), 40_000 - 32_767);
}

#[test]
fn a_queue_fails_at_its_entries_and_not_at_those_of_its_ring() {
    let mut process = Process::with_budget(Budget::new(64 << 20, None), 8 << 20);
    let (cq, cqe, _) = create(&mut process, 40_000, -1);
    assert_eq!(cqe, 65_535);
    complete(&mut process, cq, 0..cqe.into());
    assert!(process.device.poll_event().is_none());
    complete(&mut process, cq, 0..1);
    assert!(process.device.poll_event().is_some(), "it overran");
    let resize = ResizeCq {
        cq_handle: cq.into(),
        cqe: 65_000.into(),
        ..ResizeCq::default()
    };
    let refused = process.command(command::RESIZE_CQ, &resize, 16);
    assert_eq!(refused, Err(Errno::EINVAL));
}
