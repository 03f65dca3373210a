use std::os::fd::{AsFd, OwnedFd};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use zerocopy::little_endian::{U32, U64};

use super::*;

const PAGE: u64 = 4096;

fn memfd(flags: MemfdFlags, len: u64) -> OwnedFd {
    let fd = memfd_create("guest", flags | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

/// A file that can be sealed, as QEMU makes it.
fn sealable(len: u64) -> OwnedFd {
    memfd(MemfdFlags::ALLOW_SEALING, len)
}

/// One that cannot, as Cloud Hypervisor makes it.
fn unsealable(len: u64) -> OwnedFd {
    memfd(MemfdFlags::empty(), len)
}

fn range(address: u64, size: u64, offset: u64) -> DmaMap {
    DmaMap {
        argsz: U32::new(32),
        flags: U32::new((DmaMapFlags::READ | DmaMapFlags::WRITE).bits()),
        offset: U64::new(offset),
        address: U64::new(address),
        size: U64::new(size),
    }
}

fn duplicate(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().unwrap()
}

fn file_bytes(fd: &OwnedFd, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rustix::io::pread(fd.as_fd(), &mut bytes, offset).unwrap();
    bytes
}

fn is_fault<T>(result: Result<T, DmaFault>) -> bool {
    result.is_err()
}

#[test]
fn what_is_written_is_in_the_file_at_the_ranges_offset() {
    for file in [sealable(4 * PAGE), unsealable(4 * PAGE)] {
        let mut memory = GuestMemory::default();
        let map = range(0x10_0000, 2 * PAGE, PAGE);
        memory.map(&map, Some(duplicate(&file).into())).unwrap();
        let bytes: Vec<u8> = (0..100).collect();
        memory.write(0x10_0003, &bytes).unwrap();
        assert_eq!(file_bytes(&file, PAGE + 3, 100), bytes);
        let mut read = vec![0; 100];
        memory.read(0x10_0003, &mut read).unwrap();
        assert_eq!(read, bytes);
    }
}

#[test]
fn an_access_goes_across_ranges_that_adjoin_and_no_further() {
    let file = sealable(4 * PAGE);
    let mut memory = GuestMemory::default();
    // The other way round in the file.
    let first = range(0, PAGE, PAGE);
    memory.map(&first, Some(duplicate(&file).into())).unwrap();
    let second = range(PAGE, PAGE, 0);
    memory.map(&second, Some(duplicate(&file).into())).unwrap();
    memory.write(PAGE - 4, b"adjacent").unwrap();
    assert_eq!(file_bytes(&file, 2 * PAGE - 4, 4), b"adja");
    assert_eq!(file_bytes(&file, 0, 4), b"cent");
    assert!(is_fault(memory.write(2 * PAGE - 4, &[0; 5])));
    assert!(is_fault(memory.read(2 * PAGE, &mut [0])));
    assert!(is_fault(memory.read(u64::MAX, &mut [0; 2])));
    assert!(memory.read(7 * PAGE, &mut []).is_ok());
}

#[test]
fn a_range_at_the_end_of_all_addresses_is_reached_to_its_last_byte() {
    let mut memory = GuestMemory::default();
    let map = range(u64::MAX - PAGE + 1, PAGE, 0);
    memory.map(&map, Some(sealable(PAGE).into())).unwrap();
    memory.write(u64::MAX - 7, &[7; 8]).unwrap();
    assert!(is_fault(memory.write(u64::MAX - 6, &[7; 8])));
    memory.unmap(u64::MAX - PAGE + 1, PAGE).unwrap();
    assert!(is_fault(memory.read(u64::MAX, &mut [0])));
}

#[test]
fn rights_are_those_of_the_range() {
    let mut memory = GuestMemory::default();
    let read_only = DmaMap {
        flags: U32::new(DmaMapFlags::READ.bits()),
        ..range(0, PAGE, 0)
    };
    memory.map(&read_only, Some(sealable(PAGE).into())).unwrap();
    assert!(memory.read(0, &mut [0]).is_ok());
    assert!(is_fault(memory.write(0, &[0])));
    assert!(is_fault(memory.update_u64(0, &mut |old| old + 1)));
    let write_only = DmaMap {
        flags: U32::new(DmaMapFlags::WRITE.bits()),
        ..range(PAGE, PAGE, 0)
    };
    memory
        .map(&write_only, Some(sealable(PAGE).into()))
        .unwrap();
    assert!(is_fault(memory.read(PAGE, &mut [0])));
    assert!(memory.write(PAGE, &[0]).is_ok());
}

#[test]
fn a_file_opened_for_reading_serves_ranges_that_are_only_read() {
    let file = sealable(PAGE);
    rustix::io::pwrite(&file, b"ROM", 0).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let reader = || OwnedFd::from(std::fs::File::open(&path).unwrap());
    let memory = GuestMemory::default();
    let refused = memory.map(&range(0, PAGE, 0), Some(reader().into()));
    assert_eq!(refused, Err(Errno::ACCESS));
    let read_only = DmaMap {
        flags: U32::new(DmaMapFlags::READ.bits()),
        ..range(0, PAGE, 0)
    };
    memory.map(&read_only, Some(reader().into())).unwrap();
    let mut bytes = [0; 3];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"ROM");
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    let memory = GuestMemory::default();
    let map = |range: DmaMap, len: u64| memory.map(&range, Some(sealable(len).into()));
    assert_eq!(map(range(0, 0, 0), PAGE), Err(Errno::INVAL), "empty");
    let wraps = range(u64::MAX - PAGE + 1, 2 * PAGE, 0);
    assert_eq!(map(wraps, 4 * PAGE), Err(Errno::INVAL));
    assert_eq!(map(range(0, 2 * PAGE, 0), PAGE), Err(Errno::INVAL), "end");
    let behind = range(0, PAGE, u64::MAX);
    assert_eq!(map(behind, PAGE), Err(Errno::INVAL));
    assert_eq!(map(range(0, PAGE, 0), 0), Err(Errno::INVAL), "no bytes");
    for flags in [0, 4, 7] {
        let odd = DmaMap {
            flags: U32::new(flags),
            ..range(0, PAGE, 0)
        };
        assert_eq!(map(odd, PAGE), Err(Errno::INVAL), "rights {flags}");
    }
    map(range(PAGE, PAGE, 0), PAGE).unwrap();
    for (address, size) in [
        (PAGE, PAGE),
        (0, PAGE + 1),
        (2 * PAGE - 1, 1),
        (0, 8 * PAGE),
    ] {
        let overlapping = map(range(address, size, 0), 8 * PAGE);
        assert_eq!(overlapping, Err(Errno::EXIST), "{address:#x}");
    }
    assert_eq!(memory.statistics().ranges, 1);
}

#[test]
fn ranges_are_taken_away_whole() {
    let memory = GuestMemory::default();
    for page in [0, 1, 3] {
        let map = range(page * PAGE, PAGE, 0);
        memory.map(&map, Some(sealable(PAGE).into())).unwrap();
    }
    assert_eq!(memory.unmap(0, PAGE + 1), Err(Errno::INVAL));
    assert_eq!(memory.unmap(1, PAGE), Err(Errno::INVAL));
    assert_eq!(memory.unmap(2 * PAGE, PAGE), Ok(0), "nothing is there");
    assert_eq!(memory.unmap(0, 0), Err(Errno::INVAL));
    assert_eq!(memory.unmap(u64::MAX, 2), Err(Errno::INVAL));
    assert_eq!(memory.unmap(0, 3 * PAGE), Ok(2 * PAGE));
    assert_eq!(memory.statistics().ranges, 1);
    assert_eq!(memory.unmap_all(), PAGE);
    assert_eq!(memory.statistics(), MemoryStatistics::default());
}

#[test]
fn what_a_file_lacks_of_its_mapping_faults_until_it_is_there_again() {
    for file in [sealable(16 * PAGE), unsealable(16 * PAGE)] {
        let mut memory = GuestMemory::default();
        let map = range(0, 16 * PAGE, 0);
        memory.map(&map, Some(duplicate(&file).into())).unwrap();
        memory.write(3 * PAGE, &[1; 64]).unwrap();
        ftruncate(&file, 2 * PAGE).unwrap();
        for _ in 0..3 {
            assert!(is_fault(memory.write(3 * PAGE, &[1; 64])));
            assert!(is_fault(memory.read(3 * PAGE, &mut [0; 64])));
            assert!(is_fault(memory.update_u64(3 * PAGE, &mut |old| old + 1)));
            assert!(is_fault(memory.read(2 * PAGE - 1, &mut [0; 2])));
            assert!(is_fault(memory.write(PAGE - 5, &[9; 11 * 4096])));
            assert!(memory.write(2 * PAGE - 64, &[2; 64]).is_ok());
        }
        ftruncate(&file, 16 * PAGE).unwrap();
        memory.write(3 * PAGE, &[3; 64]).unwrap();
        assert_eq!(file_bytes(&file, 3 * PAGE, 64), [3; 64]);
        let mut bytes = [9; 64];
        memory.read(12 * PAGE, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 64], "what was written to no page is nowhere");
    }
}

#[test]
fn huge_pages_that_run_out_are_a_fault_and_nothing_else() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::CLOEXEC;
    let Ok(file) = memfd_create("guest", flags) else {
        eprintln!("this kernel has no huge pages");
        return;
    };
    let huge = u64::try_from(rustix::fs::fstat(&file).unwrap().st_blksize).unwrap();
    ftruncate(&file, 2 * huge).unwrap();
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
    let mut memory = GuestMemory::default();
    let map = range(0, 2 * huge, 0);
    memory.map(&map, Some(duplicate(&file).into())).unwrap();
    let mut outcomes = Vec::new();
    for at in [0, 5 * PAGE, huge - 8, huge - 4000, huge + 9 * PAGE] {
        // On a machine that has huge pages they are written, on others not.
        let is_written = memory.write(at, &[7; 8000]).is_ok();
        let is_updated = memory.update_u64(at & !7, &mut |old| old + 1).is_ok();
        outcomes.push((is_written, is_updated));
    }
    let has_none = rustix::fs::fstat(&file).unwrap().st_blocks == 0;
    assert_eq!(has_none, outcomes.iter().all(|one| *one == (false, false)));
    let map = range(4 * huge, PAGE, 0);
    memory.map(&map, Some(sealable(PAGE).into())).unwrap();
    memory.write(4 * huge, &[7; 64]).unwrap();
}

/// Bytes that a file has pages for.
fn pages_of(file: &OwnedFd) -> u64 {
    512 * u64::try_from(rustix::fs::fstat(file).unwrap().st_blocks).unwrap()
}

#[test]
fn holes_are_read_without_a_page_and_written_up_to_what_may_be_touched() {
    const SIZE: u64 = 64 << 30;
    const MOST: u64 = 1 << 20;
    let file = sealable(SIZE);
    let mut memory = GuestMemory::new(MemoryLimit::Bytes(MOST));
    let map = range(0, SIZE, 0);
    memory.map(&map, Some(duplicate(&file).into())).unwrap();
    for at in (0..SIZE).step_by(1 << 21) {
        let mut bytes = [9; 64];
        memory.read(at + PAGE - 32, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 64]);
    }
    assert_eq!((pages_of(&file), memory.statistics().touched), (0, 0));
    let written = (0..SIZE)
        .step_by(1 << 21)
        .filter(|at| memory.write(*at, &[1; 64]).is_ok());
    assert_eq!(written.count() as u64, MOST / PAGE);
    assert_eq!(pages_of(&file), MOST);
    let statistics = memory.statistics();
    assert_eq!((statistics.touched, statistics.most), (MOST, Some(MOST)));
    assert_eq!(statistics.refused, SIZE / (1 << 21) - MOST / PAGE);
    assert!(is_fault(memory.update_u64(PAGE, &mut |old| old + 1)));
    memory.write(8, &[2; 64]).unwrap();
    memory.read(SIZE - 64, &mut [0; 64]).unwrap();
    assert_eq!(pages_of(&file), MOST);
}

#[test]
fn pages_that_a_vmm_takes_away_again_do_not_make_room_for_more() {
    use rustix::fs::{FallocateFlags, fallocate};

    let file = sealable(64 * PAGE);
    let mut memory = GuestMemory::new(MemoryLimit::Bytes(4 * PAGE));
    memory
        .map(&range(0, 64 * PAGE, 0), Some(duplicate(&file).into()))
        .unwrap();
    let away = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let mut touched = 0;
    for page in 0..64 {
        // The VMM has the page before the device does.
        rustix::io::pwrite(&file, &[1; 64], page * PAGE).unwrap();
        memory.read(page * PAGE, &mut [0; 64]).unwrap();
        touched += u64::from(memory.write(page * PAGE, &[2; 64]).is_ok());
        fallocate(&file, away, page * PAGE, PAGE).unwrap();
    }
    assert_eq!(touched, 4);
    for page in 0..64 {
        memory.read(page * PAGE, &mut [0; 64]).unwrap();
    }
    assert!(pages_of(&file) <= 4 * PAGE, "{}", pages_of(&file));
    memory.clear();
    assert_eq!(memory.statistics().touched, 4 * PAGE, "the VMM kept them");
    drop(file);
    assert_eq!(memory.statistics().touched, 0);
}

#[test]
fn what_a_vmm_left_behind_counts_until_nobody_has_it_any_more() {
    let mut memory = GuestMemory::new(MemoryLimit::Bytes(4 * PAGE));
    let mut visit = |file: &OwnedFd| {
        let map = range(0, 8 * PAGE, 0);
        memory.map(&map, Some(duplicate(file).into())).unwrap();
        let written = (0..8).filter(|page| memory.write(page * PAGE, &[1; 64]).is_ok());
        let written = written.count();
        memory.clear();
        written
    };
    let first = sealable(8 * PAGE);
    assert_eq!(visit(&first), 4);
    let second = sealable(8 * PAGE);
    assert_eq!(visit(&second), 0, "the one before kept what was touched");
    drop(first);
    assert_eq!(visit(&second), 4);
    drop(second);
    for _ in 0..2 * MAX_FILES {
        assert_eq!(visit(&sealable(8 * PAGE)), 4);
    }
}

#[test]
fn memory_with_many_pages_counts_until_it_is_given_back_and_is_then() {
    const SIZE: u64 = 64 << 20;
    let mut memory = GuestMemory::default();
    let file = sealable(SIZE);
    let map = range(0, SIZE, 0);
    memory.map(&map, Some(duplicate(&file).into())).unwrap();
    let bytes = vec![7; 1 << 20];
    for at in (0..SIZE).step_by(bytes.len()) {
        memory.write(at, &bytes).unwrap();
    }
    memory.clear();
    // Whatever is left of it takes no more than its share, and harms no new mapping of the same file.
    memory.map(&map, Some(duplicate(&file).into())).unwrap();
    let mut read = vec![0; 1 << 20];
    memory.read(SIZE / 2, &mut read).unwrap();
    assert_eq!(read, bytes);
    let begun = std::time::Instant::now();
    while memory.releasing() > 0 {
        assert!(begun.elapsed().as_secs() < 60);
        std::thread::yield_now();
    }
    assert_eq!(pages_of(&file), SIZE);
}

#[test]
fn vfs_without_a_limit_of_their_own_leave_something_of_their_pool_to_others() {
    let pool = Arc::new(MemoryPool::new(16 * PAGE));
    let touch = |memory: &mut GuestMemory| {
        let map = range(0, 64 * PAGE, 0);
        memory.map(&map, Some(sealable(64 * PAGE).into())).unwrap();
        let written = (0..64).filter(|page| memory.write(page * PAGE, &[1; 64]).is_ok());
        written.count()
    };
    let [mut first, mut second] =
        [(); 2].map(|()| GuestMemory::new(MemoryLimit::Pool(pool.clone())));
    assert_eq!((touch(&mut first), touch(&mut second)), (8, 4));
    first.clear();
    assert_eq!(first.statistics().touched, 0);
    assert_eq!(first.statistics().most, Some(6 * PAGE));
}

#[test]
fn a_file_that_grew_is_mapped_anew() {
    let file = sealable(PAGE);
    let mut memory = GuestMemory::default();
    let map = range(0, PAGE, 0);
    memory.map(&map, Some(duplicate(&file).into())).unwrap();
    ftruncate(&file, 2 * PAGE).unwrap();
    let more = range(PAGE, PAGE, PAGE);
    memory.map(&more, Some(duplicate(&file).into())).unwrap();
    memory.write(PAGE - 4, b"adjacent").unwrap();
    assert_eq!(file_bytes(&file, PAGE - 4, 8), b"adjacent");
}

#[test]
fn a_file_that_grows_again_and_again_takes_no_more_address_space_than_others() {
    let memory = GuestMemory::default();
    let file = unsealable(PAGE);
    for page in 0..MAX_FILES as u64 {
        ftruncate(&file, (page + 1) * PAGE).unwrap();
        let map = range(page * PAGE, PAGE, page * PAGE);
        memory.map(&map, Some(duplicate(&file).into())).unwrap();
    }
    let last = MAX_FILES as u64;
    ftruncate(&file, (last + 1) * PAGE).unwrap();
    let one_more = range(last * PAGE, PAGE, last * PAGE);
    let refused = memory.map(&one_more, Some(duplicate(&file).into()));
    assert_eq!(refused, Err(Errno::NOMEM));
    memory.unmap_all();
    memory
        .map(&one_more, Some(duplicate(&file).into()))
        .unwrap();
    memory.unmap_all();
    ftruncate(&file, MAX_BYTES + PAGE).unwrap();
    let refused = memory.map(&range(0, MAX_BYTES + PAGE, 0), Some(file.into()));
    assert_eq!(refused, Err(Errno::NOMEM));
}

#[test]
fn a_value_is_updated_at_a_multiple_of_eight() {
    for file in [sealable(PAGE), unsealable(PAGE)] {
        let mut memory = GuestMemory::default();
        memory
            .map(&range(PAGE, PAGE, 0), Some(file.into()))
            .unwrap();
        assert_eq!(memory.update_u64(PAGE + 8, &mut |old| old + 5), Ok(0));
        assert_eq!(memory.update_u64(PAGE + 8, &mut |old| old), Ok(5));
        assert!(is_fault(memory.update_u64(PAGE + 4, &mut |old| old)));
        assert!(is_fault(memory.update_u64(2 * PAGE, &mut |old| old)));
    }
}

#[test]
fn a_range_without_a_file_is_reached_by_whoever_can() {
    #[derive(Debug)]
    struct Echo;
    impl RemoteMemory for Echo {
        fn read(&mut self, address: u64, buf: &mut [u8]) -> bool {
            buf.fill(address.to_le_bytes()[1]);
            true
        }
        fn write(&mut self, address: u64, _: &[u8]) -> bool {
            address < PAGE
        }
    }

    let mut memory = GuestMemory::default();
    memory.map(&range(0, 2 * PAGE, 0), None).unwrap();
    assert!(is_fault(memory.read(0x300, &mut [0])));
    memory.set_remote(Some(Box::new(Echo)));
    let mut bytes = [0; 2];
    memory.read(0x300, &mut bytes).unwrap();
    assert_eq!(bytes, [3, 3]);
    assert!(memory.write(0, &[0]).is_ok());
    assert!(is_fault(memory.write(PAGE, &[0])));
    assert_eq!(
        memory.update_u64(0x100, &mut |old| old),
        Ok(0x0101_0101_0101_0101)
    );
    assert_eq!(memory.statistics().remote, 2 * PAGE);
}

#[test]
fn a_file_on_which_a_fault_could_wait_is_not_mapped() {
    let file = OwnedFd::from(std::fs::File::open("/proc/self/status").unwrap());
    let memory = GuestMemory::default();
    memory.map(&range(0, PAGE, 0), Some(file.into())).unwrap();
    assert_eq!(memory.statistics().remote, PAGE);
}

#[test]
fn files_and_ranges_are_limited_and_come_free_with_their_ranges() {
    let memory = GuestMemory::default();
    for page in 0..MAX_FILES as u64 {
        let map = range(page * PAGE, PAGE, 0);
        memory.map(&map, Some(sealable(PAGE).into())).unwrap();
    }
    let one_more = range(1 << 40, PAGE, 0);
    let refused = memory.map(&one_more, Some(sealable(PAGE).into()));
    assert_eq!(refused, Err(Errno::NOMEM));
    memory.unmap(0, PAGE).unwrap();
    memory.release_unused();
    memory.map(&one_more, Some(sealable(PAGE).into())).unwrap();
    memory.clear();
    let file = sealable(PAGE);
    for page in 0..MAX_RANGES as u64 {
        let map = range(page * PAGE, PAGE, 0);
        memory.map(&map, Some(duplicate(&file).into())).unwrap();
    }
    let refused = memory.map(&one_more, Some(file.into()));
    assert_eq!(refused, Err(Errno::NOMEM));
}

/// What can be done to a memory of sixteen pages, and to the model of it.
#[derive(Clone, Debug)]
enum Step {
    Map {
        page: u64,
        pages: u64,
        file: usize,
        from: u64,
    },
    Unmap {
        page: u64,
        pages: u64,
    },
    Write {
        at: u64,
        len: usize,
        value: u8,
    },
    Read {
        at: u64,
        len: usize,
    },
}

const PAGES: u64 = 16;

fn steps() -> impl Strategy<Value = Step> {
    let span = PAGES * PAGE;
    prop_oneof![
        (0..PAGES, 1..5_u64, 0..3_usize, 0..8_u64).prop_map(|(page, pages, file, from)| {
            Step::Map {
                page,
                pages,
                file,
                from,
            }
        }),
        (0..PAGES, 1..6_u64).prop_map(|(page, pages)| Step::Unmap { page, pages }),
        (0..span, 1..9000_usize, any::<u8>()).prop_map(|(at, len, value)| Step::Write {
            at,
            len,
            value
        }),
        (0..span, 1..9000_usize).prop_map(|(at, len)| Step::Read { at, len }),
    ]
}

/// For each page the file and the page of it that is there, and what the files hold.
#[derive(Default)]
struct Model {
    pages: BTreeMap<u64, (usize, u64)>,
    ranges: BTreeMap<u64, u64>,
    files: [Vec<u8>; 3],
}

impl Model {
    fn place(&self, at: u64) -> Option<(usize, usize)> {
        let (file, page) = self.pages.get(&(at / PAGE))?;
        let offset = usize::try_from(page * PAGE + at % PAGE).ok()?;
        Some((*file, offset))
    }

    fn map(&mut self, page: u64, pages: u64, file: usize, from: u64) -> bool {
        if (page..page + pages).any(|page| self.pages.contains_key(&page)) {
            return false;
        }
        for nth in 0..pages {
            self.pages.insert(page + nth, (file, from + nth));
        }
        self.ranges.insert(page, pages);
        true
    }

    /// How many pages are taken away.
    fn unmap(&mut self, page: u64, pages: u64) -> Option<u64> {
        let end = page + pages;
        let touched = self.ranges.iter();
        let touched: Vec<(u64, u64)> = touched
            .map(|(at, len)| (*at, *len))
            .filter(|(at, len)| *at < end && at + len > page)
            .collect();
        let whole = |(at, len): &(u64, u64)| *at >= page && at + len <= end;
        if !touched.iter().all(whole) {
            return None;
        }
        let unmapped = touched.iter().map(|(_, len)| len).sum();
        for (at, len) in touched {
            self.ranges.remove(&at);
            (at..at + len).for_each(|page| {
                self.pages.remove(&page);
            });
        }
        Some(unmapped)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn memory_is_as_a_page_table_over_its_files(steps in prop::collection::vec(steps(), 1..60)) {
        let files = [sealable(12 * PAGE), unsealable(12 * PAGE), sealable(12 * PAGE)];
        let mut memory = GuestMemory::default();
        let mut model = Model::default();
        model.files.fill(vec![0; 12 * 4096]);
        for step in steps {
            match step {
                Step::Map { page, pages, file, from } => {
                    let map = range(page * PAGE, pages * PAGE, from * PAGE);
                    let mapped = memory.map(&map, Some(duplicate(&files[file]).into()));
                    prop_assert_eq!(mapped.is_ok(), model.map(page, pages, file, from));
                }
                Step::Unmap { page, pages } => {
                    let unmapped = memory.unmap(page * PAGE, pages * PAGE);
                    let expected = model.unmap(page, pages).map(|pages| pages * PAGE);
                    prop_assert_eq!(unmapped.ok(), expected);
                    memory.release_unused();
                }
                Step::Write { at, len, value } => {
                    let written = memory.write(at, &vec![value; len]);
                    let places: Option<Vec<_>> =
                        (at..at + len as u64).map(|at| model.place(at)).collect();
                    prop_assert_eq!(written.is_ok(), places.is_some());
                    // Of a write that faults a part is there: up to the page that is not.
                    for place in (at..at + len as u64).map_while(|at| model.place(at)).collect::<Vec<_>>() {
                        model.files[place.0][place.1] = value;
                    }
                }
                Step::Read { at, len } => {
                    let mut bytes = vec![0; len];
                    let read = memory.read(at, &mut bytes);
                    let expected: Option<Vec<u8>> = (at..at + len as u64)
                        .map(|at| model.place(at).map(|(file, offset)| model.files[file][offset]))
                        .collect();
                    prop_assert_eq!(read.ok().map(|()| bytes), expected);
                }
            }
        }
        for (file, expected) in files.iter().zip(&model.files) {
            prop_assert_eq!(&file_bytes(file, 0, expected.len()), expected);
        }
    }
}
