use proptest::prelude::*;

use super::*;

fn entries(count: u64) -> Vec<MttEntry> {
    (1..=count).map(|n| MttEntry::new(n << 12)).collect()
}

fn after(first: MttIndex, entries: u64) -> MttIndex {
    MttIndex(first.0 + entries)
}

#[test]
fn pages_are_those_that_were_written() {
    let mut mtts = Mtts::new(10);
    let first = mtts.alloc(2).unwrap();
    mtts.write(after(first, 1), &entries(3)).unwrap();
    assert_eq!(
        mtts.pages(after(first, 1), 3),
        Ok(vec![0x1000, 0x2000, 0x3000])
    );
    assert_eq!(mtts.pages(first, 4), Err(Status::BAD_PARAM), "not present");
}

#[test]
fn ranges_are_limited_however_many_entries_are_left() {
    let mut mtts = Mtts::new(20);
    let first = mtts.alloc(0).unwrap();
    for _ in 1..MAX_RANGES {
        mtts.alloc(0).unwrap();
    }
    assert_eq!(mtts.alloc(0), Err(Status::EXCEED_LIM));
    mtts.free(first, 0).unwrap();
    mtts.alloc(0).unwrap();
}

#[test]
fn entries_outside_a_range_are_refused() {
    let mut mtts = Mtts::new(10);
    assert_eq!(mtts.write(MttIndex(0), &entries(1)), Err(Status::BAD_PARAM));
    let first = mtts.alloc(2).unwrap();
    assert_eq!(mtts.write(first, &entries(5)), Err(Status::BAD_PARAM));
    assert_eq!(
        mtts.write(after(first, 4), &entries(1)),
        Err(Status::BAD_PARAM)
    );
    assert_eq!(
        mtts.write(MttIndex(u64::MAX), &entries(1)),
        Err(Status::BAD_PARAM)
    );
    assert_eq!(mtts.pages(first, usize::MAX), Err(Status::BAD_PARAM));
    assert_eq!(
        mtts.pages(first, 1),
        Err(Status::BAD_PARAM),
        "never written"
    );
}

#[test]
fn a_pinned_range_is_busy_until_every_pin_is_gone() {
    let mut mtts = Mtts::new(10);
    let first = mtts.alloc(3).unwrap();
    let pins = [mtts.pin(first).unwrap(), mtts.pin(after(first, 7)).unwrap()];
    assert_eq!(mtts.pin(after(first, 8)), Err(Status::BAD_PARAM));
    for pin in pins {
        assert_eq!(mtts.free(first, 3), Err(Status::RESOURCE_BUSY));
        mtts.unpin(pin);
    }
    assert_eq!(mtts.free(first, 3), Ok(()));
}

#[test]
fn all_pins_together_hold_no_more_than_the_table_has() {
    let mut mtts = Mtts::new(4);
    let first = mtts.alloc(3).unwrap();
    let other = mtts.alloc(0).unwrap();
    let pins = [mtts.pin(first).unwrap(), mtts.pin(first).unwrap()];
    assert_eq!(mtts.pin(first), Err(Status::EXCEED_LIM));
    assert_eq!(mtts.pin(other), Err(Status::EXCEED_LIM));
    pins.into_iter().for_each(|pin| mtts.unpin(pin));
    assert!(mtts.pin(other).is_ok());
}

#[test]
fn what_is_unpinned_can_be_pinned_again_and_no_more() {
    let mut mtts = Mtts::new(4);
    let first = mtts.alloc(2).unwrap();
    let mut pins: Vec<MttPin> = (0..4).map(|_| mtts.pin(first).unwrap()).collect();
    for _ in 0..2 {
        assert_eq!(mtts.pin(first), Err(Status::EXCEED_LIM));
        mtts.unpin(pins.pop().unwrap());
        pins.push(mtts.pin(first).unwrap());
    }
}

#[test]
fn a_range_holds_what_it_was_given_for() {
    let mut mtts = Mtts::new(10);
    let first = mtts.alloc(2).unwrap();
    assert_eq!(mtts.check(first, 4), Ok(()));
    assert_eq!(mtts.check(after(first, 3), 1), Ok(()));
    for (first, count) in [
        (first, 5),
        (after(first, 3), 2),
        (after(first, 4), 1),
        (MttIndex(u64::MAX), 1),
    ] {
        assert_eq!(mtts.check(first, count), Err(Status::BAD_PARAM));
    }
}

#[test]
fn a_range_is_taken_back_only_as_it_was_given() {
    let mut mtts = Mtts::new(10);
    let first = mtts.alloc(3).unwrap();
    assert_eq!(mtts.free(first, 2), Err(Status::BAD_PARAM));
    assert_eq!(mtts.free(after(first, 1), 3), Err(Status::BAD_PARAM));
    assert_eq!(mtts.free(first, 3), Ok(()));
    assert_eq!(mtts.free(first, 3), Err(Status::BAD_PARAM));
    assert_eq!(mtts.alloc(11), Err(Status::EXCEED_LIM));
    assert_eq!(mtts.alloc(255), Err(Status::EXCEED_LIM));
    assert!(mtts.alloc(10).is_ok(), "halves were put together again");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The model knows only which entries are taken.
    #[test]
    fn ranges_never_overlap_and_nothing_is_lost(
        steps in proptest::collection::vec((any::<bool>(), 0..7_u8, any::<prop::sample::Index>()), 1..80)
    ) {
        const LOG: u8 = 6;
        let mut mtts = Mtts::new(LOG);
        let mut taken = [false; 1 << LOG];
        let mut given: Vec<(MttIndex, u8)> = Vec::new();
        for (alloc, order, which) in steps {
            if alloc {
                let size = 1_usize << order;
                let fits = taken.chunks_exact(size).any(|block| !block.contains(&true));
                let result = mtts.alloc(order);
                prop_assert_eq!(result.is_ok(), fits);
                if let Ok(first) = result {
                    let at = usize::try_from(first.0).unwrap();
                    prop_assert_eq!(at % size, 0);
                    prop_assert!(!taken[at..at + size].contains(&true));
                    taken[at..at + size].fill(true);
                    given.push((first, order));
                }
            } else if !given.is_empty() {
                let (first, order) = given.swap_remove(which.index(given.len()));
                prop_assert_eq!(mtts.free(first, order), Ok(()));
                taken[usize::try_from(first.0).unwrap()..][..1 << order].fill(false);
            }
        }
    }
}
