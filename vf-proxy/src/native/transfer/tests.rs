#![expect(
    clippy::cast_possible_truncation,
    reason = "lists of the model are within 64 KiB"
)]

use std::cell::RefCell;

use hca_api::CompletionOp;
use proptest::prelude::*;

use super::*;
use crate::native::tests::loopback::{OK, Program};

const PAGE: u64 = 4096;
/// Bytes of the memory that local lists lie in, and of the peer's.
const HALF: u64 = 1 << 15;
/// Lengths and addresses of the model are multiples of this.
const UNIT: u64 = 512;

const LIMITS: TransferLimits = TransferLimits {
    max_sge: 4,
    max_wr: 64,
    max_message: 1 << 30,
};

fn buffer((addr, len): (u64, u64)) -> DmaBuffer {
    let len = usize::try_from(len).unwrap();
    DmaBuffer { addr, len }
}

impl Program {
    fn pool(&mut self, count: usize, max_pages: u32) -> RegistrationPool {
        let access = AccessFlags::LOCAL_WRITE;
        self.on(|port, hca| RegistrationPool::allocate(port, hca, count, max_pages, access))
            .unwrap()
    }

    /// Carries a transfer out, and returns the completions.
    fn run(&mut self, transfer: &mut Transfer) -> Vec<Completion> {
        let mut all = Vec::new();
        while transfer.state() == TransferState::ToPost {
            self.on_qp(0, |qp, hca| transfer.post(hca, qp)).unwrap();
            let done = self.completions(0);
            assert!(done.iter().all(|done| transfer.handle_completion(done)));
            all.extend(done);
        }
        all
    }

    fn fill(&mut self, salt: u64) -> Vec<u8> {
        let bytes = (0..2 * HALF).map(|at| (at.wrapping_mul(salt | 1) >> 3) as u8);
        let bytes: Vec<u8> = bytes.collect();
        let memory = self.memory;
        self.on(|_, hca| memory.write(hca, 0, &bytes)).unwrap();
        bytes
    }

    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 2 * HALF as usize];
        let memory = self.memory;
        self.on(|_, hca| memory.read(hca, 0, &mut bytes)).unwrap();
        bytes
    }
}

/// The units of a list, by their addresses.
fn units(list: &[(u64, u64)]) -> Vec<u64> {
    let of = |&(addr, len): &(u64, u64)| (addr..addr + len).step_by(UNIT as usize);
    list.iter().flat_map(of).collect()
}

/// Returns the least number of parts into which `count` units can be cut, if `is_part` says which units in a row may be one.
fn fewest(count: usize, mut is_part: impl FnMut(usize, usize) -> bool) -> usize {
    let mut best = vec![0];
    for end in 1..=count {
        let starts = (0..end).rev().take_while(|start| is_part(*start, end));
        let least = starts.map(|start| best[start]).min().unwrap();
        best.push(least + 1);
    }
    best[count]
}

/// Returns the least number of regions for units.
fn fewest_regions(units: &[u64], max_pages: u64) -> usize {
    fewest(units.len(), |start, end| {
        let part = &units[start..end];
        let joins = |pair: &[u64]| {
            let ends_page = (pair[0] + UNIT).is_multiple_of(PAGE);
            let same_page = pair[0] / PAGE == pair[1] / PAGE;
            (ends_page && pair[1].is_multiple_of(PAGE)) || (same_page && pair[0] + UNIT == pair[1])
        };
        let first_pages = part
            .windows(2)
            .filter(|pair| pair[1].is_multiple_of(PAGE))
            .count();
        part.windows(2).all(joins) && (first_pages as u64) < max_pages
    })
}

/// Returns the least number of requests for units, of which two are in one entry if they follow each other under one key.
fn fewest_requests(keyed: &[(u64, u32)], limits: &TransferLimits) -> usize {
    let least = fewest(keyed.len(), |start, end| {
        let part = &keyed[start..end];
        let is_break = |pair: &&[(u64, u32)]| pair[0] != (pair[1].0.wrapping_sub(UNIT), pair[1].1);
        let entries = part.windows(2).filter(is_break).count() + 1;
        entries <= limits.max_sge as usize && part.len() as u64 * UNIT <= limits.max_message.into()
    });
    least.max(1)
}

/// A list of pieces of the local half, some of which follow each other.
fn lists() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let pages = (0..HALF / PAGE, 0..=2 * PAGE / UNIT).prop_map(|(page, len)| (page * PAGE, len));
    let whole = (0..HALF / PAGE, 1..=2_u64).prop_map(|(page, count)| {
        let at = page * PAGE;
        (at, count * PAGE / UNIT)
    });
    let any = (0..HALF / UNIT, 0..20_u64).prop_map(|(unit, len)| (unit * UNIT, len));
    let piece = (prop_oneof![pages, whole, any], prop::bool::ANY);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| {
        let mut end = 0;
        let pieces = pieces.into_iter().map(|((addr, len), follows)| {
            let addr = if follows { end % HALF } else { addr };
            let len = (len * UNIT).min(HALF - addr);
            end = addr + len;
            (addr, len)
        });
        // A read may not write a byte twice, or the order would matter.
        let mut taken = std::collections::BTreeSet::new();
        let pieces = pieces.filter(|piece| {
            let units = units(&[*piece]);
            let free = units.iter().all(|unit| !taken.contains(unit));
            if free {
                taken.extend(units);
            }
            free
        });
        pieces.collect()
    })
}

/// What a case of the model is made of.
#[derive(Clone, Debug)]
struct Case {
    list: Vec<(u64, u64)>,
    limits: TransferLimits,
    max_pages: u32,
    is_keyed: bool,
    is_read: bool,
    salt: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let limits = (1..=4_u32, 1..=8_u32, 1..=24_u64);
    let limits = limits.prop_map(|(max_sge, max_wr, units)| TransferLimits {
        max_sge,
        max_wr,
        max_message: u32::try_from(units * UNIT).unwrap(),
    });
    let ways = any::<(bool, bool, u64)>();
    (lists(), limits, 1..=MOST_PAGES, ways).prop_map(|(list, limits, max_pages, ways)| Case {
        list,
        limits,
        max_pages,
        is_keyed: ways.0,
        is_read: ways.1,
        salt: ways.2,
    })
}

/// Pages of a region of the model, at most.
const MOST_PAGES: u32 = 4;

/// Carries out a case, and compares bytes with a copy of the memory, and regions and requests with the least that any cuts need.
fn check(program: &mut Program, pools: &mut [RegistrationPool], case: &Case) {
    let mut model = program.fill(case.salt);
    let base = program.memory.addr();
    let local = |&(addr, len): &(u64, u64)| buffer((base + addr, len));
    let memory: Vec<_> = case.list.iter().map(local).collect();
    let (remote, lkey) = (program.memory.remote(HALF as u32), program.memory.lkey());
    let entry = |&(addr, len): &(u64, u64)| Sge {
        addr: base + addr,
        len: len as u32,
        lkey,
    };
    let sges: Vec<_> = case.list.iter().map(entry).collect();
    let pool = &mut pools[case.max_pages as usize - 1];
    let idle = pool.idle();
    let source = match case.is_keyed {
        true => LocalMemory::Keyed(&sges),
        false => LocalMemory::Unregistered(&memory, pool),
    };
    let make = if case.is_read {
        Transfer::read
    } else {
        Transfer::write
    };
    let mut transfer = make(7, source, remote, &case.limits).unwrap();

    let units = units(&case.list);
    let keys: Vec<(u64, u32)> = match case.is_keyed {
        true => units.iter().map(|unit| (*unit, lkey.0)).collect(),
        false => {
            let of = |(place, (_, run)): (u32, &(PooledRegion, Run))| {
                let addrs = (run.iova..run.iova + run.len).step_by(UNIT as usize);
                addrs.map(|addr| (addr, place)).collect::<Vec<_>>()
            };
            (0..).zip(&transfer.regions).flat_map(of).collect()
        }
    };
    let regions = match case.is_keyed {
        true => 0,
        false => fewest_regions(&units, case.max_pages.into()),
    };
    assert_eq!(transfer.registrations(), regions);
    let requests = fewest_requests(&keys, &case.limits) + 2 * regions;
    assert_eq!(transfer.requests(), requests);

    let done = program.run(&mut transfer);
    assert_eq!(transfer.state(), TransferState::Done);
    let batches = requests.div_ceil(case.limits.max_wr as usize);
    assert_eq!(
        done.len(),
        batches,
        "the last request of each batch completes"
    );
    transfer.release(pool);
    assert_eq!(pool.idle(), idle);

    let local = case.list.iter().flat_map(|(addr, len)| *addr..addr + len);
    for (there, here) in (HALF..).zip(local) {
        let (to, from) = if case.is_read {
            (here, there)
        } else {
            (there, here)
        };
        model[to as usize] = model[from as usize];
    }
    assert!(program.bytes() == model);
}

#[test]
fn ten_thousand_random_lists_are_carried_by_the_fewest_regions_and_requests() {
    let mut program = Program::signalling(false);
    let mut pools: Vec<_> = (1..=MOST_PAGES)
        .map(|pages| program.pool(20, pages))
        .collect();
    let scene = RefCell::new((&mut program, &mut pools));
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(10_000)
    };
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let ran = runner.run(&cases(), |case| {
        let (program, pools) = &mut *scene.borrow_mut();
        check(program, pools, &case);
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn entries_at_odd_addresses_are_joined_where_they_follow_each_other_under_one_key() {
    let entry = |addr, len, key| (addr, len, LKey(key));
    let list = [
        entry(1, 3, 1),
        entry(4, 5, 1),
        entry(9, 1, 2),
        entry(11, 0, 2),
        entry(10, 2, 2),
    ];
    let limits = TransferLimits {
        max_sge: 1,
        ..LIMITS
    };
    let all = chunks(list.into_iter(), 100, &limits).unwrap();
    let all: Vec<_> = all
        .iter()
        .map(|chunk| (chunk.remote_addr, chunk.sges[0].addr, chunk.sges[0].len))
        .collect();
    assert_eq!(all, [(100, 1, 8), (108, 9, 3)]);
    let memory = [(0x1ffd, 3), (0x4000, 0x1001), (0x5001, 5), (0x8000, 1)].map(buffer);
    let runs = runs(&memory, 9).unwrap();
    let runs: Vec<_> = runs
        .into_iter()
        .map(|run| (run.iova, run.len, run.pages))
        .collect();
    let first = (0xffd, 3 + 0x1006, vec![0x1000, 0x4000, 0x5000]);
    assert_eq!(runs, [first, (0, 1, vec![0x8000])]);
}

#[test]
fn a_list_longer_than_messages_and_addresses_may_be_is_cut_or_refused() {
    let key = LKey(1);
    let three_gib = chunks([(0, 3 << 30, key)].into_iter(), 8, &LIMITS).unwrap();
    let addrs: Vec<_> = three_gib.iter().map(|chunk| chunk.remote_addr).collect();
    assert_eq!(addrs, [8, 8 + (1 << 30), 8 + (2 << 30)]);
    let remote = |addr| RemoteAddress {
        addr,
        rkey: hca_api::RKey(1),
    };
    let sge = |addr| Sge {
        addr,
        len: 16,
        lkey: key,
    };
    let write = |name, sge, remote| {
        Transfer::write(name, LocalMemory::Keyed(&[sge]), remote, &LIMITS).err()
    };
    let beyond = Some(TransferError::OutOfRange);
    assert_eq!(write(0, sge(0), remote(u64::MAX - 8)), beyond);
    assert_eq!(write(0, sge(u64::MAX - 8), remote(0)), beyond);
    assert_eq!(
        write(STEP, sge(0), remote(0)),
        Some(TransferError::InvalidName)
    );
    assert_eq!(runs(&[buffer((u64::MAX - 8, 16))], 1).err(), beyond);
}

#[test]
fn a_pool_with_too_few_regions_lends_none() {
    let mut program = Program::new();
    let mut pool = program.pool(1, 1);
    let memory = [buffer((program.memory.addr(), 8192))];
    let local = LocalMemory::Unregistered(&memory, &mut pool);
    let refused = Transfer::write(1, local, program.memory.remote(0), &LIMITS);
    let few = TransferError::NoRegions { needed: 2, idle: 1 };
    assert_eq!(refused.err(), Some(few));
    assert_eq!(pool.idle(), 1);
}

/// The status is that of the request that failed, also where it was not signalled; regions come back with other keys.
#[test]
fn a_transfer_that_fails_says_why_and_its_regions_are_renewed() {
    let mut program = Program::signalling(false);
    let mut pool = program.pool(2, 1);
    let memory = [buffer((program.memory.addr(), 8192))];
    let local = LocalMemory::Unregistered(&memory, &mut pool);
    let remote = RemoteAddress {
        addr: program.memory.addr(),
        rkey: hca_api::RKey(1),
    };
    let mut transfer = Transfer::write(3, local, remote, &LIMITS).unwrap();
    assert_eq!(transfer.requests(), 5);
    let done = program.run(&mut transfer);
    let statuses: Vec<_> = done.iter().map(|done| (done.op, done.status)).collect();
    let refused = CompletionStatus::RemoteAccess;
    assert_eq!(statuses[0], (CompletionOp::RdmaWrite, refused));
    assert_eq!(transfer.state(), TransferState::Failed(refused));
    assert!(
        done[1..]
            .iter()
            .all(|done| done.status == CompletionStatus::Flushed)
    );
    transfer.release(&mut pool);
    assert_eq!(pool.idle(), 0);
    program.on(|port, hca| pool.renew(port, hca)).unwrap();
    assert_eq!(pool.idle(), 2);
}

/// A queue pair that signals everything, and a send queue that others fill.
#[test]
fn a_transfer_goes_on_when_the_queue_has_room() {
    let mut program = Program::new();
    for _ in 0..63 {
        program.post(0, SendOp::RdmaWrite(program.memory.remote(0)), &[]);
    }
    let sges = [program.memory.sge(0, 8), program.memory.sge(16, 8)];
    let limits = TransferLimits {
        max_sge: 1,
        ..program.on_qp(0, |qp, _| qp.transfer_limits())
    };
    let (local, remote) = (LocalMemory::Keyed(&sges), program.memory.remote(64));
    let mut transfer = Transfer::read(2, local, remote, &limits).unwrap();
    let posted = program.on_qp(0, |qp, hca| transfer.post(hca, qp));
    assert_eq!(posted, Err(HcaError::QueueFull));
    assert_eq!(transfer.state(), TransferState::ToPost);
    let mut others = 0;
    for _ in 0..2 {
        for done in program.completions(0) {
            assert_eq!(done.status, OK);
            others += usize::from(!transfer.handle_completion(&done));
        }
        program.on_qp(0, |qp, hca| transfer.post(hca, qp)).unwrap();
    }
    assert_eq!((others, transfer.state()), (63, TransferState::Done));
}
