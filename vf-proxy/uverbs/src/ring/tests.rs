use hca_api::HostMemory;
use verbs_link::Budget;
use zerocopy::FromZeros;

use super::*;
use crate::RingMemory;
use crate::testing::HeapRings;

/// Returns the pages of some memory, charged to a budget.
fn pages(rings: &Arc<HeapRings>, budget: &Budget) -> Arc<RingPages> {
    Arc::new(RingPages::new(rings.clone(), budget))
}

fn completion(wr_id: u64) -> CompletionElement {
    CompletionElement {
        wr_id: wr_id.into(),
        ..CompletionElement::default()
    }
}

fn ring(entries: u32) -> (Arc<HeapRings>, Ring) {
    let rings = HeapRings::new(1 << 16);
    let pages = pages(&rings, &Budget::default());
    let ring = Ring::new(&pages, &mut Extents::new(1 << 16), entries, 48).unwrap();
    (rings, ring)
}

#[test]
fn a_ring_tells_the_program_its_shape_and_trusts_its_own() {
    let (rings, ring) = ring(5);
    assert_eq!(ring.capacity(), 7);
    assert_eq!(rings.load(LOG2_ELEMENT_SIZE), 6);
    assert_eq!(rings.load(INDEX_MASK), 7);
    rings.store(INDEX_MASK, u32::MAX);
    rings.store(PRODUCER_INDEX, 0xffff_fffb);
    assert_eq!(ring.producer(), 3);
    assert_eq!(ring.place().size.get(), 384 + 8 * 64);
}

#[test]
fn a_ring_of_completions_is_full_with_one_place_left() {
    let (rings, ring) = ring(3);
    let mut ring = CompletionRing::new(ring);
    for wr_id in 0..3 {
        assert!(ring.push(&completion(wr_id)));
    }
    assert!(!ring.push(&completion(3)));
    rings.store(CONSUMER_INDEX, 2);
    assert_eq!(ring.waiting(), 1);
    assert!(ring.push(&completion(3)) && ring.push(&completion(4)));
    assert!(!ring.push(&completion(5)));
}

#[test]
fn an_index_beyond_the_last_completion_means_that_all_are_taken() {
    let (rings, ring) = ring(3);
    let mut ring = CompletionRing::new(ring);
    assert!(ring.push(&completion(0)));
    rings.store(CONSUMER_INDEX, 2);
    assert_eq!(ring.waiting(), 0);
    // The first of these is where the index points, so it counts as taken, too.
    for wr_id in 1..5 {
        assert!(ring.push(&completion(wr_id)), "{wr_id}");
    }
    assert!(!ring.push(&completion(5)));
}

#[test]
fn completions_move_to_a_larger_ring_in_order() {
    let rings = HeapRings::new(1 << 16);
    let pages = pages(&rings, &Budget::default());
    let mut extents = Extents::new(1 << 16);
    let mut make = |entries| Ring::new(&pages, &mut extents, entries, 48).unwrap();
    let mut ring = CompletionRing::new(make(3));
    for wr_id in 0..3 {
        ring.push(&completion(wr_id));
    }
    rings.store(CONSUMER_INDEX, 1);
    let new = make(100);
    let place = new.place().offset.get();
    ring.move_to(new);
    assert_eq!(ring.waiting(), 2);
    let mut first = CompletionElement::new_zeroed();
    rings.read(place + RING_HEADER, first.as_mut_bytes());
    assert_eq!(first.wr_id.get(), 1);
}

#[test]
fn receives_are_taken_once_with_no_more_entries_than_the_queue_was_made_for() {
    let rings = HeapRings::new(1 << 16);
    let pages = pages(&rings, &Budget::default());
    let ring = Ring::new(&pages, &mut Extents::new(1 << 16), 3, receive_element(2)).unwrap();
    let ring = Arc::new(ReceiveRing::new(ring, 2));
    let request = ReceiveElement {
        wr_id: 7.into(),
        num_sge: u32::MAX.into(),
        ..ReceiveElement::default()
    };
    rings.write(RING_HEADER, request.as_bytes());
    rings.store(PRODUCER_INDEX, 1);
    let mut source = ReceiveSource(ring.clone());
    let mut scatter = Vec::new();
    assert_eq!(source.pending(&HostMemory::new()), 1);
    assert_eq!(source.pull(&HostMemory::new(), &mut scatter), Some(7));
    assert_eq!(scatter.len(), 2);
    assert_eq!(rings.load(CONSUMER_INDEX), 1);
    assert_eq!(source.pull(&HostMemory::new(), &mut scatter), None);
    rings.store(PRODUCER_INDEX, 3);
    ring.drop_waiting();
    assert_eq!(source.pending(&HostMemory::new()), 0);
}

#[test]
fn memory_that_is_used_up_gives_no_ring() {
    let memory = pages(&HeapRings::new(1 << 13), &Budget::default());
    let mut extents = Extents::new(1 << 13);
    assert!(Ring::new(&memory, &mut extents, 1000, 64).is_none());
    let ring = Ring::new(&memory, &mut extents, 10, 64).unwrap();
    ring.give_back(&mut extents);
    assert!(Ring::new(&memory, &mut extents, u32::MAX, 64).is_none());
    assert!(Ring::new(&memory, &mut extents, 1, MAX_ELEMENT + 1).is_none());
}

#[test]
fn a_ring_counts_by_the_pages_that_exist_and_not_by_its_size() {
    let rings = HeapRings::new(1 << 24);
    let budget = Budget::new(8 * PAGE, None);
    let pages = pages(&rings, &budget);
    let mut extents = Extents::new(1 << 24);
    let mut make = || Ring::new(&pages, &mut extents, 1 << 14, 64);
    let ring = make().unwrap();
    assert!(ring.bytes() > 1 << 20);
    assert_eq!(budget.used(), PAGE);
    // Pages that the program touches count with the next ring.
    rings.write(2 * PAGE, &[1; 4 * 4096]);
    assert_eq!(budget.used(), PAGE);
    let other = make().unwrap();
    assert_eq!(budget.used(), 6 * PAGE);
    rings.write(8 * PAGE, &[1; 2 * 4096]);
    assert!(make().is_none(), "8 pages exist, and a ring has one more");
    assert_eq!(budget.used(), 6 * PAGE);
    other.give_back(&mut extents);
    assert_eq!(budget.used(), 7 * PAGE);
    ring.give_back(&mut extents);
    assert_eq!((budget.used(), rings.resident()), (0, 0));
}

#[test]
fn pages_that_the_device_fills_count_once_and_not_beyond_the_budget() {
    let rings = HeapRings::new(1 << 20);
    let budget = Budget::new(3 * PAGE, None);
    let pages = pages(&rings, &budget);
    let mut extents = Extents::new(1 << 20);
    let ring = Ring::new(&pages, &mut extents, 1000, 64).unwrap();
    let mut ring = CompletionRing::new(ring);
    let pushed = (0..1000).take_while(|wr_id| ring.push(&completion(*wr_id)));
    assert_eq!(pushed.count(), (3 * 4096 - 384) / 64);
    assert_eq!((budget.used(), rings.resident()), (3 * PAGE, 3 * PAGE));
    let other = budget.charge(1);
    assert!(other.is_none());
    ring.ring().give_back(&mut extents);
    assert_eq!(budget.used(), 0);
}
