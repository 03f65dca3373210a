use mlx4_defs::mtt::MttEntry;

use super::*;

const INDEX: MptIndex = MptIndex::from_low_bits(5);

/// Creates a region of `pages` pages of 4 KiB whose entries begin at `first` in the MTT.
fn paged(MttIndex(first): MttIndex, pages: u64) -> MptEntry {
    let mut entry = MptEntry::default();
    entry.set_region(true);
    entry.set_memory_key(INDEX.get() << 8);
    entry.set_status(STATUS_VALID);
    entry.entity_size.set(12);
    entry.length.set(pages << 12);
    entry.mtt_addr.set(first * MTT_ENTRY_SIZE);
    entry
}

#[test]
fn a_region_is_all_of_memory_only_if_it_says_so_in_both() {
    let mtts = Mtts::new(4);
    for (start, length, is_whole) in [
        (0, u64::MAX, true),
        (0, 4096, false),
        (4096, u64::MAX, false),
    ] {
        let mut entry = paged(MttIndex(0), 0);
        entry.set_physical(true);
        entry.start.set(start);
        entry.length.set(length);
        let region = NewRegion::new(&mtts, INDEX, &entry).unwrap();
        assert_eq!(matches!(region.source, Source::Whole), is_whole);
    }
}

#[test]
fn pages_are_looked_up_in_steps_and_all_of_them() {
    const PAGES: u64 = 10_000;

    let mut mtts = Mtts::new(14);
    let first = mtts.alloc(14).unwrap();
    let entries: Vec<MttEntry> = (1..=PAGES).map(|n| MttEntry::new(n << 12)).collect();
    mtts.write(first, &entries).unwrap();
    let mut region = NewRegion::new(&mtts, INDEX, &paged(first, PAGES)).unwrap();
    let steps = (1..10).find(|_| region.look_up(&mtts).unwrap());
    assert_eq!(steps, Some(3));
    let Source::Pages { found, .. } = &region.source else {
        panic!("a region of pages");
    };
    let expected = (1..=PAGES).map(|n| n << 12);
    assert!(found.iter().copied().eq(expected));
}

#[test]
fn an_entry_that_was_given_back_is_forgotten() {
    let mut mpts = Mpts::default();
    mpts.written.insert(INDEX, paged(MttIndex(0), 1));
    assert_eq!(mpts.query(INDEX), paged(MttIndex(0), 1));
    mpts.forget(INDEX);
    assert_eq!(mpts.query(INDEX), MptEntry::default());
}
