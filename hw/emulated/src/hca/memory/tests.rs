//! Tests of regions.

use hca_api::{HostMemory, MwType};
use proptest::prelude::*;

use super::super::LIMITS;
use super::*;
use ib_vtime::SplitMix64;

const PD: PdHandle = PdHandle(1);
const PAGE: u64 = 4096;

/// A function's memory with one page-aligned buffer.
fn memory(len: usize) -> (Memory, u64) {
    let mut space = HostMemory::new();
    let buffer = space.allocate(len).unwrap();
    assert_eq!(buffer.addr % PAGE, 0);
    (Memory::new(Box::new(space), Secret::from(1)), buffer.addr)
}

fn spec(kind: MrKind<'_>) -> MrSpec<'_> {
    MrSpec {
        pd: PD,
        kind,
        access: AccessFlags::LOCAL_WRITE,
        key: None,
    }
}

fn sge(addr: u64, len: u32, keys: &MrKeys) -> Sge {
    Sge {
        addr,
        len,
        lkey: keys.lkey,
    }
}

fn read(memory: &Memory, pd: PdHandle, sge: Sge) -> Result<Vec<u8>, ProtectionFault> {
    let mut out = Gathered::default();
    let gathered = memory.gather(pd, &[sge], &mut out);
    gathered.map(|()| out.into_buffer())
}

fn scatter(memory: &mut Memory, sges: &[Sge], parts: &[&[u8]]) -> Result<(), ProtectionFault> {
    let parts: Vec<_> = parts.iter().copied().map(Arrived::Bytes).collect();
    memory.scatter(PD, sges, &parts, &mut MrHandle(0))
}

/// IBA 11.2.8.3: pages need not be in order; the region counts from its own first address.
#[test]
fn a_physical_region_translates_page_by_page() {
    let (mut memory, base) = memory(3 * 4096);
    for page in 0..3 {
        memory
            .space_mut()
            .write(base + page * PAGE, &[u8::try_from(page).unwrap(); 4096])
            .unwrap();
    }
    let pages = Arc::new(vec![base + 2 * PAGE, base]);
    let keys = memory
        .register(
            &spec(MrKind::Physical {
                pages: &pages,
                page_shift: 12,
                iova: 0x1_0000,
                first_offset: 4090,
                len: 100,
            }),
            &LIMITS,
        )
        .unwrap();
    let bytes = read(&memory, PD, sge(0x1_0000, 10, &keys)).unwrap();
    assert_eq!(bytes, [2, 2, 2, 2, 2, 2, 0, 0, 0, 0]);
    assert_eq!(
        read(&memory, PD, sge(0x1_0000, 101, &keys)),
        Err(ProtectionFault(Cause::OutOfBounds))
    );
    assert_eq!(
        read(&memory, PD, sge(0xffff, 1, &keys)),
        Err(ProtectionFault(Cause::OutOfBounds))
    );
}

/// IBA 10.6.3: key, protection domain and rights.
#[test]
fn a_region_serves_its_own_protection_domain_with_its_own_rights() {
    let (mut memory, base) = memory(4096);
    let read_only = MrSpec {
        access: AccessFlags::empty(),
        ..spec(MrKind::Virtual {
            addr: base,
            len: 4096,
        })
    };
    let keys = memory.register(&read_only, &LIMITS).unwrap();
    let at = sge(base, 4, &keys);
    assert_eq!(read(&memory, PD, at), Ok(vec![0; 4]));
    assert_eq!(
        read(&memory, PdHandle(2), at),
        Err(ProtectionFault(Cause::OtherPd))
    );
    assert_eq!(
        scatter(&mut memory, &[at], &[b"abcd"]),
        Err(ProtectionFault(Cause::NoRight))
    );
    memory.deregister(keys.handle).unwrap();
    assert_eq!(
        read(&memory, PD, at),
        Err(ProtectionFault(Cause::NoSuchKey))
    );
}

/// The key of `ib_srp` without fast registration. Real adapters take such regions; for programs the kernel refuses them.
#[test]
fn peers_may_have_the_right_to_write_that_the_owner_lacks() {
    let (mut memory, base) = memory(4096);
    let access = AccessFlags::REMOTE_WRITE;
    let keys = MrSpec {
        access,
        ..spec(MrKind::Virtual {
            addr: base,
            len: 4096,
        })
    };
    let keys = memory.register(&keys, &LIMITS).unwrap();
    let remote = memory.look_up_remote((PD, QpHandle(0)), keys.rkey.0, Some((base, 4)), access);
    memory
        .place(remote.unwrap(), base, Arrived::Bytes(b"abcd"))
        .unwrap();
    let own = sge(base, 4, &keys);
    assert_eq!(read(&memory, PD, own), Ok(b"abcd".to_vec()));
    let written = scatter(&mut memory, &[own], &[b"efgh"]);
    assert_eq!(written, Err(ProtectionFault(Cause::NoRight)));
}

/// IBA 11.2.8.2: lengths, pages and keys must make sense.
#[test]
fn senseless_registrations_are_refused() {
    let (mut memory, base) = memory(8192);
    let whole = MrKind::Virtual {
        addr: base,
        len: 4096,
    };
    let physical = |pages, page_shift, first_offset, len| {
        spec(MrKind::Physical {
            pages,
            page_shift,
            iova: 0,
            first_offset,
            len,
        })
    };
    let [aligned, skewed, none] = [vec![base], vec![base + 8], vec![]].map(Arc::new);
    let refused = [
        spec(MrKind::Virtual { addr: base, len: 0 }),
        spec(MrKind::Virtual {
            addr: u64::MAX,
            len: 2,
        }),
        physical(&aligned, 11, 0, 1),
        physical(&aligned, 12, 4096, 1),
        physical(&aligned, 12, 1, 4096),
        physical(&skewed, 12, 0, 1),
        physical(&none, 12, 0, 1),
        spec(MrKind::FastRegister { max_pages: 0 }),
    ];
    for spec in &refused {
        let result = memory.register(spec, &LIMITS);
        assert_eq!(result, Err(HcaError::InvalidParameter), "{spec:?}");
    }
    let outside = spec(MrKind::Virtual {
        addr: base + 8191,
        len: 2,
    });
    assert!(matches!(
        memory.register(&outside, &LIMITS),
        Err(HcaError::Dma(_))
    ));
    let mut keyed = MrSpec {
        key: Some(5),
        ..spec(whole)
    };
    assert_eq!(memory.register(&keyed, &LIMITS).unwrap().lkey, LKey(5));
    assert_eq!(
        memory.register(&keyed, &LIMITS),
        Err(HcaError::InvalidParameter)
    );
    keyed.key = Some(6);
    assert_eq!(memory.register(&keyed, &LIMITS).unwrap().rkey, RKey(6));
    assert_eq!(memory.keys.len(), memory.region_count(), "no key leaked");
}

/// IBA 11.2.8.8: a shared region is the same memory under another address and outlives the first.
#[test]
fn a_shared_region_outlives_the_region_it_was_made_from() {
    let (mut memory, base) = memory(4096);
    let first = memory
        .register(
            &spec(MrKind::Virtual {
                addr: base,
                len: 64,
            }),
            &LIMITS,
        )
        .unwrap();
    let shared = spec(MrKind::Shared {
        of: first.handle,
        iova: 0x100,
    });
    let second = memory.register(&shared, &LIMITS).unwrap();
    memory.deregister(first.handle).unwrap();
    memory
        .scatter(
            PD,
            &[sge(0x102, 2, &second)],
            &[Arrived::Bytes(b"hi")],
            &mut MrHandle(0),
        )
        .unwrap();
    let mut bytes = [0; 4];
    memory.space().read(base + 1, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0hi\0");
}

/// IBA 11.2.8.5: a region keeps its handle, and its old key ends.
#[test]
fn reregistering_replaces_key_and_bounds_or_changes_nothing() {
    let (mut memory, base) = memory(4096);
    let at = |addr, len| spec(MrKind::Virtual { addr, len });
    let old = memory.register(&at(base, 16), &LIMITS).unwrap();
    assert!(
        memory
            .reregister(old.handle, &at(base, 0), &LIMITS)
            .is_err()
    );
    assert!(read(&memory, PD, sge(base, 16, &old)).is_ok());
    let new = memory
        .reregister(old.handle, &at(base + 16, 16), &LIMITS)
        .unwrap();
    assert_eq!(new.handle, old.handle);
    assert_eq!(
        read(&memory, PD, sge(base, 16, &old)),
        Err(ProtectionFault(Cause::NoSuchKey))
    );
    assert!(read(&memory, PD, sge(base + 16, 16, &new)).is_ok());
}

#[test]
fn the_whole_space_a_window_and_an_empty_region_each_answer_to_their_keys() {
    let (mut memory, base) = memory(4096);
    let all = memory.register(&spec(MrKind::WholeSpace), &LIMITS).unwrap();
    let zero_based = MrSpec {
        access: AccessFlags::ZERO_BASED,
        ..spec(MrKind::Virtual {
            addr: base,
            len: 16,
        })
    };
    let zero = memory.register(&zero_based, &LIMITS).unwrap();
    let empty = memory
        .register(&spec(MrKind::FastRegister { max_pages: 4 }), &LIMITS)
        .unwrap();
    let window = memory.alloc_window(PD, MwType::Type2).unwrap();
    assert!(read(&memory, PD, sge(base + 4095, 1, &all)).is_ok());
    assert!(read(&memory, PD, sge(u64::MAX, 2, &all)).is_err());
    assert!(read(&memory, PD, sge(base + 4096, 1, &all)).is_err());
    assert!(read(&memory, PD, sge(15, 1, &zero)).is_ok());
    assert!(read(&memory, PD, sge(0, 1, &empty)).is_err());
    let by_window = Sge {
        addr: base,
        len: 1,
        lkey: LKey(window.rkey.0),
    };
    assert!(read(&memory, PD, by_window).is_err());
    assert_eq!(memory.dealloc_window(window.handle), Ok(PD));
    assert!(memory.dealloc_window(window.handle).is_err());
}

/// Which region was named last only says where to look first: rights and bounds are those of the key.
#[test]
fn the_usual_region_opens_nothing_that_its_key_does_not() {
    let (mut memory, base) = memory(2 * 4096);
    let part = |addr| spec(MrKind::Virtual { addr, len: 100 });
    let first = memory.register(&part(base), &LIMITS).unwrap();
    let second = memory.register(&part(base + 200), &LIMITS).unwrap();
    let mut usual = first.handle;
    let mut write = |memory: &mut Memory, pd, sge| {
        let written = memory.scatter(pd, &[sge], &[Arrived::Bytes(b"x")], &mut usual);
        (written, usual)
    };
    let there = sge(base + 200, 1, &second);
    assert_eq!(write(&mut memory, PD, there), (Ok(()), second.handle));
    let beyond = sge(base, 1, &second);
    assert_eq!(
        write(&mut memory, PD, beyond).0,
        Err(ProtectionFault(Cause::OutOfBounds)),
        "the first one's"
    );
    assert!(write(&mut memory, PdHandle(PD.0 + 1), there).0.is_err());
    memory.deregister(second.handle).unwrap();
    assert!(write(&mut memory, PD, there).0.is_err());
    // Another one in its place, with another key.
    let third = memory.register(&part(base + 200), &LIMITS).unwrap();
    assert_eq!(third.handle, second.handle);
    assert!(write(&mut memory, PD, there).0.is_err());
    let there = sge(base + 200, 1, &third);
    assert_eq!(write(&mut memory, PD, there), (Ok(()), third.handle));
}

proptest! {
    /// Scattering bytes and gathering them again is the identity, whatever the lists and the pages.
    #[test]
    fn what_is_scattered_is_gathered_again(
        lens in prop::collection::vec(0_u32..700, 1..6),
        order in Just(vec![0_u64, 1, 2, 3]).prop_shuffle(),
        first_offset in 0_u64..4096,
        seed: u64,
    ) {
        let (mut memory, base) = memory(4 * 4096);
        let pages: Vec<u64> = order.iter().map(|page| base + page * PAGE).collect();
        let pages = Arc::new(pages);
        let keys = memory.register(&spec(MrKind::Physical {
            pages: &pages, page_shift: 12, iova: 7, first_offset, len: 3 * PAGE,
        }), &LIMITS).unwrap();
        let mut next = 7;
        let sges: Vec<Sge> = lens.iter().map(|len| {
            let sge = sge(next, *len, &keys);
            next += u64::from(*len);
            sge
        }).collect();
        let total = usize::try_from(hca_functions::total_len(&sges)).unwrap();
        let mut random = SplitMix64::new(seed);
        let bytes: Vec<u8> = (0..total).map(|_| random.next().to_le_bytes()[0]).collect();
        let (head, tail) = bytes.split_at(total / 3);
        scatter(&mut memory, &sges, &[head, tail]).unwrap();
        let mut out = Gathered::default();
        memory.gather(PD, &sges, &mut out).unwrap();
        prop_assert_eq!(out.bytes(), bytes);
    }

    /// A copy from pieces stores the same bytes as a gathered message, at each place and with each cut.
    #[test]
    fn what_stays_in_place_is_copied_as_if_it_was_gathered(
        lens in prop::collection::vec(0_u32..700, 1..6),
        cuts in prop::array::uniform3(any::<prop::sample::Index>()),
        order in Just(vec![0_u64, 1, 2, 3]).prop_shuffle(),
    ) {
        let (mut source, base) = memory(4 * 4096);
        let bytes: Vec<u8> = (0..4 * 4096_u32).map(|n| (n % 251) as u8).collect();
        source.space_mut().write(base, &bytes).unwrap();
        let pages = Arc::new(order.iter().map(|page| base + page * PAGE).collect());
        let keys = source.register(&spec(MrKind::Physical {
            pages: &pages, page_shift: 12, iova: 7, first_offset: 3000, len: 3 * PAGE,
        }), &LIMITS).unwrap();
        let sges: Vec<Sge> = lens.iter().map(|len| sge(7 + u64::from(*len), *len, &keys)).collect();
        let total = usize::try_from(hca_functions::total_len(&sges)).unwrap();
        let mut cuts = cuts.map(|cut| cut.index(total + 1));
        cuts.sort_unstable();
        let range = cuts[0] as u64..cuts[2] as u64;

        let (mut gathered, mut found) = (Gathered::default(), Gathered::default());
        source.gather_range(PD, &sges, &range, &mut gathered).unwrap();
        prop_assert!(source.find_range(PD, &sges, &range, &mut found).unwrap());
        prop_assert_eq!(found.len(), gathered.len());
        let (_, pieces) = found.into_parts();
        prop_assert_eq!(source.read_pieces(&pieces).unwrap(), gathered.bytes());

        let (mut target, base) = memory(4 * 4096);
        let to = target.register(&spec(MrKind::Virtual { addr: base, len: 4 * 4096 }), &LIMITS).unwrap();
        let arrived = source.in_place(&pieces).unwrap();
        let (first, second) = arrived.split_at_checked(cuts[1] - cuts[0]).unwrap();
        let list = [sge(base, 100, &to), sge(base + 100, 8000, &to)];
        target.scatter(PD, &list, &[first, second], &mut MrHandle(0)).unwrap();
        let mut copied = vec![0; gathered.len()];
        target.space().read(base, &mut copied).unwrap();
        prop_assert_eq!(copied, gathered.bytes());
    }

    /// Hostile addresses, lengths and keys are refused or served within the region, never a panic.
    #[test]
    fn wild_requests_never_reach_outside_the_region(addr: u64, len: u32, key: u32, own: bool) {
        let (mut memory, base) = memory(2 * 4096);
        let keys = memory.register(
            &spec(MrKind::Virtual { addr: base + 100, len: 5000 }), &LIMITS,
        ).unwrap();
        let wild = Sge { addr, len: len % 9000, lkey: if own { keys.lkey } else { LKey(key) } };
        let near = Sge { addr: base.wrapping_add(addr % 9000), ..wild };
        for sge in [wild, near] {
            let inside = sge.lkey == keys.lkey
                && sge.addr >= base + 100
                && sge.addr.checked_add(u64::from(sge.len)).is_some_and(|end| end <= base + 5100);
            prop_assert_eq!(read(&memory, PD, sge).is_ok(), inside || sge.len == 0);
            let bytes = vec![1; sge.len as usize];
            prop_assert_eq!(scatter(&mut memory, &[sge], &[&bytes]).is_ok(), inside || sge.len == 0);
        }
        let mut edge = [0; 100];
        memory.space().read(base, &mut edge).unwrap();
        prop_assert_eq!(edge, [0; 100]);
    }
}

/// The bytes are not read once their registration has ended, or another has taken its place.
#[test]
fn what_stays_in_place_goes_with_its_registration_and_its_memory() {
    let (mut memory, base) = memory(8192);
    let region = MrKind::Virtual {
        addr: base,
        len: 8192,
    };
    let keys = memory.register(&spec(region.clone()), &LIMITS).unwrap();
    let find = |memory: &Memory, len| {
        let mut found = Gathered::default();
        let sges = [sge(base, len, &keys)];
        let is_found = memory.find_range(PD, &sges, &(0..len.into()), &mut found);
        is_found.map(|is_found| is_found.then(|| found.into_parts().1))
    };
    assert!(find(&memory, 8193).is_err());
    let pieces = find(&memory, 8192).unwrap().unwrap();
    assert!(memory.in_place(&pieces).is_some());
    memory.set_open(false);
    assert!(memory.in_place(&pieces).is_none() && memory.read_pieces(&pieces).is_err());
    assert!(matches!(find(&memory, 8192), Ok(None)));
    memory.set_open(true);
    memory
        .reregister(keys.handle, &spec(region), &LIMITS)
        .unwrap();
    assert!(memory.in_place(&pieces).is_none() && memory.read_pieces(&pieces).is_err());
    memory.deregister(keys.handle).unwrap();
    assert!(memory.in_place(&pieces).is_none() && memory.read_pieces(&pieces).is_err());
}

/// Registrations are the function's, whether or not it may use them now.
#[test]
fn a_function_that_may_not_reach_its_memory_finds_none() {
    let (mut memory, base) = memory(4096);
    let region = MrKind::Virtual {
        addr: base,
        len: 4096,
    };
    let keys = memory.register(&spec(region), &LIMITS).unwrap();
    memory.set_open(false);
    assert!(memory.space().read(base, &mut [0]).is_err());
    assert!(memory.space_mut().write(base, &[1]).is_err());
    assert!(memory.space_mut().update_u64(base, &mut |old| old).is_err());
    assert!(read(&memory, PD, sge(base, 4, &keys)).is_err());
    memory.reset();
    assert!(
        memory.space().read(base, &mut [0]).is_err(),
        "after a reset"
    );
    memory.set_open(true);
    assert_eq!(memory.space_mut().update_u64(base, &mut |_| 7), Ok(0));
}
