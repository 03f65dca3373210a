use hca_api::{HostMemory, LKey};
use mlx4_defs::wqe::INVALID_LKEY;
use proptest::prelude::*;
use zerocopy::network_endian::{U16, U32, U64};

use super::super::super::capability::RESERVED_LKEY;
use super::*;

const WHOLE: LKey = LKey(0x8000_0300);
const LOG_ENTRIES: u8 = 3;
const ENTRIES: u16 = 1 << LOG_ENTRIES;
const LOG_STRIDE: u8 = 6;
const STRIDE: u64 = 1 << LOG_STRIDE;

/// A queue in memory, behind which stands its doorbell record.
struct Ring {
    memory: HostMemory,
    base: u64,
    posted: u16,
}

impl Ring {
    fn new() -> Self {
        let mut memory = HostMemory::new();
        let base = memory
            .allocate(3 * 4096)
            .unwrap()
            .addr
            .next_multiple_of(4096);
        Self {
            memory,
            base,
            posted: 0,
        }
    }

    fn slots(&self) -> Slots {
        Slots {
            buffer: PagedBuffer::new(vec![self.base], 12).unwrap(),
            offset: 0,
            log_entries: LOG_ENTRIES,
            log_stride: LOG_STRIDE,
            doorbell_record: self.base + 4096,
        }
    }

    fn write(&mut self, slot: u16, offset: u64, bytes: &[u8]) {
        let at = self.base + u64::from(slot) * STRIDE + offset;
        self.memory.write(at, bytes).unwrap();
    }

    fn ring(&mut self, posted: u16) {
        self.posted = posted;
        let mut record = DoorbellRecord::default();
        record.set_posted(posted);
        self.memory
            .write(self.base + 4096, record.as_bytes())
            .unwrap();
    }
}

fn segment(addr: u64, len: u32, lkey: u32) -> DataSegment {
    DataSegment {
        byte_count: U32::new(len),
        lkey: U32::new(lkey),
        address: U64::new(addr),
    }
}

fn end() -> DataSegment {
    segment(0, 0, INVALID_LKEY)
}

fn kernel() -> LocalKeys {
    LocalKeys {
        whole_space: Some(WHOLE),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Post(u16),
    Pull(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..6_u16).prop_map(Step::Post),
        (0..6_u16).prop_map(Step::Pull)
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Receives are taken in the order of posting, at the place where they stand, from any start of
    /// the count.
    #[test]
    fn receives_come_in_the_order_of_posting(start: u16, steps in steps()) {
        let mut ring = Ring::new();
        let mut queue = ReceiveQueue::new(ring.slots(), kernel(), 7 << 32);
        (queue.taken, ring.posted) = (start, start);
        ring.ring(start);
        for step in steps {
            match step {
                Step::Post(count) => for _ in 0..count {
                    if ring.posted.wrapping_sub(queue.taken) < ENTRIES {
                        let posted = ring.posted;
                        let list = [segment(u64::from(posted), 9, RESERVED_LKEY), end()];
                        ring.write(posted % ENTRIES, 0, list.as_bytes());
                        ring.ring(posted.wrapping_add(1));
                    }
                },
                Step::Pull(count) => for _ in 0..count {
                    let waiting = ring.posted.wrapping_sub(queue.taken);
                    prop_assert_eq!(queue.pending(&ring.memory), usize::from(waiting));
                    let expected = (waiting != 0).then_some(queue.taken);
                    let mut scatter = Vec::new();
                    let name = queue.pull(&ring.memory, &mut scatter);
                    prop_assert_eq!(name, expected.map(|index| 7 << 32 | u64::from(index)));
                    let list: Vec<_> = expected
                        .map(|index| Sge { addr: index.into(), len: 9, lkey: WHOLE })
                        .into_iter()
                        .collect();
                    prop_assert_eq!(scatter, list);
                },
            }
        }
    }

    /// A shared queue is a chain: slots are free in the order in which they complete, which can be any.
    #[test]
    fn a_shared_queue_is_taken_along_its_chain(steps in steps(), order in any::<prop::sample::Index>()) {
        let mut ring = Ring::new();
        let mut queue = SharedReceiveQueue::new(ring.slots(), SharedKeys::new());
        // The driver's list of free slots; its last one is never posted.
        let mut free: Vec<u16> = (0..ENTRIES).collect();
        for pair in free.windows(2) {
            let next = SrqNextSegment { next: U16::new(pair[1]), ..SrqNextSegment::default() };
            ring.write(pair[0], 0, next.as_bytes());
        }
        let (mut posted, mut taken) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Post(count) => for _ in 0..count {
                    if free.len() > 1 {
                        let slot = free.remove(0);
                        ring.write(slot, 16, [segment(slot.into(), 1, 1 << 8), end()].as_bytes());
                        posted.push(slot);
                        ring.ring(ring.posted.wrapping_add(1));
                    }
                },
                Step::Pull(count) => for _ in 0..count {
                    prop_assert_eq!(queue.pending(&ring.memory), posted.len());
                    let mut scatter = Vec::new();
                    let slot = queue.pull(&ring.memory, &mut scatter);
                    let expected = (!posted.is_empty()).then(|| posted.remove(0));
                    prop_assert_eq!(slot, expected.map(u64::from));
                    let Some(slot) = expected else { continue };
                    prop_assert_eq!(scatter[0].addr, u64::from(slot));
                    taken.push(slot);
                    // Some receive completes, and its slot is linked behind the last free one.
                    let slot = taken.swap_remove(order.index(taken.len()));
                    let last = *free.last().unwrap();
                    let next = SrqNextSegment { next: U16::new(slot), ..SrqNextSegment::default() };
                    ring.write(last, 0, next.as_bytes());
                    free.push(slot);
                },
            }
        }
    }

    /// Whatever stands in the queue and its record, a receive is taken for each that is counted, and
    /// no key comes out that the guest cannot have.
    #[test]
    fn any_bytes_are_receives(bytes in prop::collection::vec(any::<u8>(), 512), record: u32, shared: bool) {
        let mut ring = Ring::new();
        ring.write(0, 0, &bytes);
        ring.memory.write(ring.base + 4096, &record.to_be_bytes()).unwrap();
        let mut source: Box<dyn PulledReceives> = if shared {
            Box::new(SharedReceiveQueue::new(ring.slots(), SharedKeys::new()))
        } else {
            Box::new(ReceiveQueue::new(ring.slots(), LocalKeys::default(), 0))
        };
        let posted = record & 0xffff;
        for _ in 0..posted.min(100) {
            let mut scatter = Vec::new();
            prop_assert!(source.pull(&ring.memory, &mut scatter).is_some());
            prop_assert!(scatter.len() <= 4);
            prop_assert!(scatter.iter().all(|sge| sge.lkey.0 <= RESERVED_LKEY));
        }
        prop_assert_eq!(source.pending(&ring.memory), posted.saturating_sub(100) as usize);
    }
}

#[test]
fn a_list_ends_at_its_mark_or_with_its_slot() {
    let mut ring = Ring::new();
    let mut queue = ReceiveQueue::new(ring.slots(), kernel(), 0);
    let one = segment(1, 8, 1 << 8);
    ring.write(0, 0, [one, end(), one, one].as_bytes());
    ring.write(1, 0, [one; 4].as_bytes());
    // No bytes at all are not the mark.
    ring.write(
        2,
        0,
        [segment(1, 0, 1 << 8 | 1), one, end(), one].as_bytes(),
    );
    ring.ring(3);
    for expected in [1, 4, 2] {
        let mut scatter = Vec::new();
        queue.pull(&ring.memory, &mut scatter).unwrap();
        assert_eq!(scatter.len(), expected);
    }
}

#[test]
fn a_queue_that_is_not_memory_gives_receives_that_fail_and_a_record_that_is_not_none() {
    let mut ring = Ring::new();
    let nowhere = Slots {
        buffer: PagedBuffer::new(vec![1 << 50], 12).unwrap(),
        ..ring.slots()
    };
    ring.ring(1);
    let mut queue = ReceiveQueue::new(nowhere, kernel(), 0);
    let mut scatter = Vec::new();
    assert_eq!(queue.pull(&ring.memory, &mut scatter), Some(0));
    assert_eq!(scatter, [LocalKeys::NOWHERE]);
    let mut unrecorded = ReceiveQueue::new(
        Slots {
            doorbell_record: 1 << 50,
            ..ring.slots()
        },
        kernel(),
        0,
    );
    assert_eq!(unrecorded.pull(&ring.memory, &mut scatter), None);
}

#[test]
fn a_list_is_read_no_further_than_the_chunk_with_its_end() {
    let mut ring = Ring::new();
    // The second half of the slot is not memory.
    let slots = Slots {
        buffer: PagedBuffer::new(vec![ring.base, 1 << 50], 12).unwrap(),
        offset: 4096 - 64,
        log_stride: 7,
        ..ring.slots()
    };
    let one = segment(1, 8, 1 << 8);
    let pulled = kernel().sge(&one);
    for (list, expected) in [
        ([one, one, end(), one], vec![pulled; 2]),
        ([one; 4], vec![LocalKeys::NOWHERE]),
    ] {
        let at = ring.base + 4096 - 64;
        ring.memory.write(at, list.as_bytes()).unwrap();
        ring.ring(1);
        let mut queue = ReceiveQueue::new(slots.clone(), kernel(), 0);
        let mut scatter = Vec::new();
        assert_eq!(queue.pull(&ring.memory, &mut scatter), Some(0));
        assert_eq!(scatter, expected);
    }
}
