use mlx4_defs::Pdn;
use mlx4_defs::mpt::{MptEntry, STATUS_FREE, STATUS_VALID};
use mlx4_defs::mtt::MTT_ENTRY_SIZE;

use super::*;

/// An entry whose number is mapped, and the entry of a region without pages in it.
pub(super) fn mapped(guest: &mut Guest) -> (u32, MptEntry) {
    let (_, index) = guest.allocate(ResourceType::MPT, ResourceOp::RESERVE, 0);
    let (status, _) = guest.allocate(ResourceType::MPT, ResourceOp::MAP_ICM, index);
    assert_eq!(status, Status::OK);
    let index = u32::try_from(index).unwrap();
    let mut entry = MptEntry::default();
    entry.set_status(STATUS_VALID);
    entry.set_region(true);
    entry.set_local_read(true);
    entry.set_local_write(true);
    entry.set_pd(Pdn(0x1_0003));
    entry.set_memory_key(index << 8);
    (index, entry)
}

/// The same, with two of the guest's pages and a region across their border.
fn paged(guest: &mut Guest) -> (u32, MptEntry) {
    let (index, mut entry) = mapped(guest);
    let first = guest.map_pages(8, 1);
    entry.mtt_addr.set(first * MTT_ENTRY_SIZE);
    entry.entity_size.set(12);
    entry.start.set(0x7fff_0f00);
    entry.length.set(0x200);
    (index, entry)
}

pub(super) fn create(guest: &mut Guest, index: u32, entry: &MptEntry) -> Status {
    let mut input = guest.put(entry);
    input.modifier = index;
    guest.command(Opcode::SW2HW_MPT, input).0
}

pub(super) fn destroy(guest: &mut Guest, index: u32) -> Status {
    let input = Input {
        modifier: index,
        variant: 1,
        ..Input::default()
    };
    guest.command(Opcode::HW2SW_MPT, input).0
}

#[test]
fn a_region_of_pages_is_registered_under_the_guests_key_and_leaves_nothing_behind() {
    let mut guest = Guest::probed();
    let (index, entry) = paged(&mut guest);
    assert_eq!(create(&mut guest, index, &entry), Status::OK);
    assert_eq!(create(&mut guest, index, &entry), Status::BAD_RES_STATE);
    let owned = guest.owned();
    assert_eq!((owned.mrs, owned.pds), (1, 1));
    let free_mtts = (ResourceType::MTT, ResourceOp::RESERVE_AND_MAP);
    let first = entry.mtt_addr.get() / MTT_ENTRY_SIZE;
    assert_eq!(
        guest.free(free_mtts.0, free_mtts.1, first | 1 << 32),
        Status::RESOURCE_BUSY
    );
    assert_eq!(
        guest.free(ResourceType::MPT, ResourceOp::MAP_ICM, index.into()),
        Status::RESOURCE_BUSY
    );
    assert_eq!(destroy(&mut guest, index), Status::OK);
    assert_eq!(destroy(&mut guest, index), Status::BAD_RES_STATE);
    assert_eq!(guest.owned(), ResourceCounts::default());
    assert_eq!(
        guest.free(free_mtts.0, free_mtts.1, first | 1 << 32),
        Status::OK
    );
    assert_eq!(
        guest.free(ResourceType::MPT, ResourceOp::MAP_ICM, index.into()),
        Status::OK
    );
    assert_eq!(
        guest.free(ResourceType::MPT, ResourceOp::RESERVE, index.into()),
        Status::OK
    );
}

#[test]
fn a_region_reads_back_as_it_was_written_once_the_driver_has_it() {
    let mut guest = Guest::probed();
    let (index, entry) = paged(&mut guest);
    assert_eq!(create(&mut guest, index, &entry), Status::OK);
    let query = Input {
        modifier: index,
        ..Input::default()
    };
    assert_eq!(
        guest.command(Opcode::QUERY_MPT, query).0,
        Status::BAD_RES_STATE
    );
    assert_eq!(destroy(&mut guest, index), Status::OK);
    assert_eq!(guest.command(Opcode::QUERY_MPT, query).0, Status::OK);
    let at = guest.outbox();
    assert_eq!(guest.read_layout::<MptEntry>(at), entry);
    assert_eq!(create(&mut guest, index, &entry), Status::OK);
}

#[test]
fn a_region_of_the_whole_memory_needs_no_pages() {
    let mut guest = Guest::probed();
    let (index, mut entry) = mapped(&mut guest);
    entry.set_physical(true);
    entry.length.set(u64::MAX);
    assert_eq!(create(&mut guest, index, &entry), Status::OK);
    assert_eq!(destroy(&mut guest, index), Status::OK);
    assert_eq!(guest.owned(), ResourceCounts::default());
}

#[test]
fn a_region_for_fast_registration_holds_its_pages() {
    let mut guest = Guest::probed();
    let (index, mut entry) = paged(&mut guest);
    entry.set_status(STATUS_FREE);
    entry.set_fast_register(true);
    entry.mtt_size.set(2);
    entry.start.set(0);
    entry.length.set(0);
    entry.entity_size.set(0);
    assert_eq!(create(&mut guest, index, &entry), Status::OK);
    let first = entry.mtt_addr.get() / MTT_ENTRY_SIZE;
    let op = ResourceOp::RESERVE_AND_MAP;
    assert_eq!(
        guest.free(ResourceType::MTT, op, first | 1 << 32),
        Status::RESOURCE_BUSY
    );
    // The driver takes an entry back that no registration filled, and reads it as it was.
    assert_eq!(destroy(&mut guest, index), Status::OK);
    assert_eq!(guest.owned(), ResourceCounts::default());
    let query = Input {
        modifier: index,
        ..Input::default()
    };
    assert_eq!(guest.command(Opcode::QUERY_MPT, query).0, Status::OK);
    let at = guest.outbox();
    assert_eq!(guest.read_layout::<MptEntry>(at), entry);
    for (what, spoil, status) in [
        (
            "windows",
            (|entry| entry.set_bind(true)) as Spoil,
            Status::BAD_OP,
        ),
        (
            "no registration",
            |entry| entry.set_fast_register(false),
            Status::BAD_PARAM,
        ),
        (
            "pages that are not the guest's",
            |entry| entry.mtt_size.set(3),
            Status::BAD_PARAM,
        ),
        ("no pages", |entry| entry.mtt_size.set(0), Status::BAD_PARAM),
        (
            "more pages than any list has",
            |entry| entry.mtt_size.set(u32::MAX),
            Status::BAD_PARAM,
        ),
    ] {
        let mut bad = entry;
        spoil(&mut bad);
        assert_eq!(create(&mut guest, index, &bad), status, "{what}");
        assert_eq!(guest.owned(), ResourceCounts::default(), "{what}");
    }
}

/// What makes a good region bad.
type Spoil = fn(&mut MptEntry);

#[test]
fn regions_that_make_no_sense_are_refused_and_leave_nothing_behind() {
    let spoils: &[(&str, Spoil)] = &[
        ("a window", |entry| entry.set_region(false)),
        ("another's key", |entry| entry.set_memory_key(0x1234_5600)),
        ("an unknown status", |entry| entry.set_status(5)),
        ("small pages", |entry| entry.entity_size.set(11)),
        ("enormous pages", |entry| entry.entity_size.set(0x8000_000c)),
        ("more bytes than pages", |entry| entry.length.set(0x4000)),
        ("no bytes", |entry| entry.length.set(0)),
        ("all bytes", |entry| entry.length.set(u64::MAX)),
        ("an end beyond all addresses", |entry| {
            entry.start.set(u64::MAX - 0xff);
        }),
        ("pages that are not the guest's", |entry| {
            entry.mtt_addr.set(1 << 40);
        }),
    ];
    let mut guest = Guest::probed();
    let (index, entry) = paged(&mut guest);
    for (what, spoil) in spoils {
        let mut bad = entry;
        spoil(&mut bad);
        assert_eq!(create(&mut guest, index, &bad), Status::BAD_PARAM, "{what}");
        assert_eq!(guest.owned(), ResourceCounts::default(), "{what}");
    }
    assert_eq!(create(&mut guest, index, &entry), Status::OK);
}

/// `ib_srp` with `never_register=Y`: its key is for the target alone.
#[test]
fn a_region_that_peers_alone_may_write_is_made() {
    let mut guest = Guest::probed();
    let (index, mut entry) = paged(&mut guest);
    entry.set_local_write(false);
    entry.set_remote_write(true);
    entry.set_remote_read(true);
    assert_eq!(create(&mut guest, index, &entry), Status::OK);
}

#[test]
fn a_number_that_is_not_mapped_has_no_region() {
    let mut guest = Guest::probed();
    let (index, entry) = paged(&mut guest);
    assert_eq!(create(&mut guest, index + 1, &entry), Status::BAD_RESOURCE);
    assert_eq!(destroy(&mut guest, index + 1), Status::BAD_RESOURCE);
    assert_eq!(destroy(&mut guest, index), Status::BAD_RES_STATE);
}
