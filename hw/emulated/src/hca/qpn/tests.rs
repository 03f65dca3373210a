use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const VF: FunctionId = FunctionId(1);

fn table(virtual_functions: u16, seed: u64) -> QpnTable {
    QpnTable::new(virtual_functions, Secret::from(seed))
}

fn qp(index: u32) -> QpRef {
    QpRef {
        function: VF,
        index,
    }
}

#[test]
fn a_number_leads_to_its_queue_pair_until_it_is_taken_back() {
    let mut table = table(126, 1);
    let qpn = table.assign(qp(7), None).unwrap();
    assert_eq!(table.get(qpn), Some(qp(7)));
    table.unassign(qpn);
    assert_eq!(table.get(qpn), None);
    assert_eq!(table.get(Qpn::GSI), None);
    assert_eq!(table.get(Qpn::MULTICAST), None);
}

#[test]
fn a_number_rests_while_others_are_given_out() {
    for seed in 0..20 {
        let mut random = Secret::from(seed).numbers();
        let mut range = QpnRange::new(64..64 + QpnRange::REST + 20);
        let first = range.assign(qp(0), &mut random).unwrap();
        range.unassign(first);
        for _ in 0..QpnRange::REST - 1 {
            let next = range.assign(qp(0), &mut random).unwrap();
            assert_ne!(next, first);
            range.unassign(next);
        }
    }
}

#[test]
fn numbers_that_rest_are_given_out_when_there_are_no_others() {
    let mut random = Secret::from(1).numbers();
    let mut range = QpnRange::new(64..72);
    for _ in 0..3 {
        let first = range.reserve(VF, 8, 8, &mut random).unwrap();
        assert_eq!(first.get(), 64);
        assert_eq!(range.assign(qp(0), &mut random), None);
        assert_eq!(range.release(VF, first, 8), Ok(()));
    }
}

#[test]
fn reserved_numbers_are_aligned_and_belong_to_the_function_that_reserved_them() {
    let mut table = table(126, 1);
    table.assign(qp(0), None).unwrap();
    let first = table.reserve(VF, 4, 64).unwrap();
    assert_eq!(first.get() % 64, 0);
    let stranger = QpRef {
        function: FunctionId(2),
        index: 0,
    };
    assert_eq!(
        table.assign(stranger, Some(first)),
        Err(HcaError::InvalidParameter)
    );
    assert_eq!(table.assign(qp(1), Some(first)), Ok(first));
    assert_eq!(table.release(VF, first, 4), Err(HcaError::InUse));
    table.unassign(first);
    assert_eq!(
        table.release(FunctionId(2), first, 4),
        Err(HcaError::InvalidParameter)
    );
    assert_eq!(table.release(VF, first, 4), Ok(()));
    assert_eq!(
        table.release(VF, first, 4),
        Err(HcaError::InvalidParameter),
        "not set aside any more"
    );
}

#[test]
fn a_full_table_finds_runs_among_what_was_released() {
    let mut table = table(126, 1);
    let runs = u32::try_from(QpnTable::FIRST_OWN - QpnTable::FIRST_RUN).unwrap();
    let first = table.reserve(VF, runs, 1).unwrap();
    let singles = u32::try_from(QpnTable::FIRST_RUN - QpnTable::FIRST).unwrap();
    table.reserve(VF, singles, 1).unwrap();
    let share = u32::try_from(QpnTable::share(126)).unwrap();
    let own = table.reserve(VF, share, share).unwrap();
    assert_eq!(
        table.assign(qp(0), None),
        Err(HcaError::InsufficientResources)
    );
    let hole = first.wrapping_add(0x1000);
    table.release(VF, hole, 8).unwrap();
    assert_eq!(
        table.reserve(VF, 16, 1),
        Err(HcaError::InsufficientResources)
    );
    assert_eq!(table.reserve(VF, 8, 8), Ok(hole));
    assert_eq!(table.release(VF, own, share), Ok(()));
    table.release_all(VF);
    assert!(table.reserve(VF, 16, 16).is_ok());
    assert_eq!(table.reserve(VF, 1, 3), Err(HcaError::InvalidParameter));
}

/// Other functions, however many numbers they hold, leave each function numbers of its own.
#[test]
fn nobody_can_take_or_fragment_the_last_numbers_of_a_function() {
    for virtual_functions in [1, 126, 1024] {
        let mut table = table(virtual_functions, 1);
        let hostile = FunctionId(virtual_functions);
        let quiet = FunctionId(1);
        // One number of each run of 128 spoils it.
        while table.reserve(hostile, 1, 128).is_ok() {}
        for function in [FunctionId::PF, quiet] {
            if function == hostile {
                continue;
            }
            let first = table.reserve(function, 128, 128).unwrap();
            assert_eq!(first.get() % 128, 0);
            let at = QpRef { function, index: 3 };
            assert_eq!(table.assign(at, Some(first)), Ok(first));
            assert_eq!(table.get(first), Some(at));
            assert_eq!(
                table.release(hostile, first, 1),
                Err(HcaError::InvalidParameter)
            );
            assert!(table.assign(at, None).is_ok());
        }
    }
}

/// The numbers of an adapter's first 64 queue pairs.
fn first_numbers(seed: u64) -> Vec<u32> {
    let mut table = table(126, seed);
    let numbers = (0..64).map(|index| table.assign(qp(index), None).unwrap().get());
    numbers.collect()
}

#[test]
fn numbers_are_spread_and_follow_from_the_secret() {
    let numbers = first_numbers(1);
    assert_eq!(numbers, first_numbers(1));
    let others: BTreeSet<u32> = first_numbers(2).into_iter().collect();
    let common = numbers.iter().filter(|number| others.contains(number));
    assert!(
        common.count() < 4,
        "the numbers of another secret are others"
    );
    let steps: BTreeSet<u32> = numbers
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    assert!(steps.len() > 60, "no number follows from the one before");
    assert!(numbers.iter().any(|number| *number > 1 << 17));
}

/// Runs have places of their own, which many single numbers do not spoil.
#[test]
fn single_numbers_leave_room_for_runs() {
    let mut table = table(126, 1);
    for index in 0..1 << 15 {
        table.assign(qp(index), None).unwrap();
    }
    let stranger = FunctionId(2);
    let runs: BTreeSet<u32> = (0..32)
        .map(|_| table.reserve(stranger, 4096, 4096).unwrap().get())
        .collect();
    assert_eq!(runs.len(), 32);
    assert!(
        runs.iter()
            .all(|first| first % 4096 == 0 && *first < 1 << 19)
    );
}

#[derive(Clone, Debug)]
enum Step {
    Assign,
    Unassign(prop::sample::Index),
    Reserve { count: usize, align_log2: u32 },
    Release(prop::sample::Index),
    ReleaseAll,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Assign),
        3 => any::<prop::sample::Index>().prop_map(Step::Unassign),
        4 => (1..20_usize, 0..5_u32)
            .prop_map(|(count, align_log2)| Step::Reserve { count, align_log2 }),
        3 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => Just(Step::ReleaseAll),
    ]
}

const FIRST: usize = 67;
const END: usize = 67 + 150;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The model is the set of numbers that are out. A request is refused only if no place fits.
    #[test]
    fn numbers_are_unique_aligned_and_within_bounds(
        seed: u64,
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut random = Secret::from(seed).numbers();
        let mut range = QpnRange::new(FIRST..END);
        let mut out: BTreeSet<usize> = BTreeSet::new();
        let mut singles: Vec<Qpn> = Vec::new();
        let mut runs: Vec<(Qpn, usize)> = Vec::new();
        for step in steps {
            match step {
                Step::Assign => {
                    let given = range.assign(qp(9), &mut random);
                    prop_assert_eq!(given.is_some(), out.len() < END - FIRST);
                    let Some(qpn) = given else { continue };
                    prop_assert!((FIRST..END).contains(&(qpn.get() as usize)));
                    prop_assert!(out.insert(qpn.get() as usize), "{} is out", qpn);
                    prop_assert_eq!(range.slot(qpn), Some(Slot::Used { qp: qp(9), reserved: false }));
                    singles.push(qpn);
                }
                Step::Unassign(which) if !singles.is_empty() => {
                    let qpn = singles.swap_remove(which.index(singles.len()));
                    prop_assert!(!range.unassign(qpn));
                    out.remove(&(qpn.get() as usize));
                }
                Step::Reserve { count, align_log2 } => {
                    let align = 1 << align_log2;
                    let given = range.reserve(VF, count, align, &mut random);
                    let fits = (FIRST..=END - count).any(|first| {
                        first % align == 0 && out.range(first..first + count).next().is_none()
                    });
                    prop_assert_eq!(given.is_some(), fits);
                    let Some(first) = given else { continue };
                    let start = first.get() as usize;
                    prop_assert_eq!(start % align, 0);
                    prop_assert!(FIRST <= start && start + count <= END);
                    for number in start..start + count {
                        prop_assert!(out.insert(number), "{} is out", number);
                    }
                    runs.push((first, count));
                }
                Step::Release(which) if !runs.is_empty() => {
                    let (first, count) = runs.swap_remove(which.index(runs.len()));
                    prop_assert_eq!(range.release(VF, first, count), Ok(()));
                    let start = first.get() as usize;
                    out.retain(|number| !(start..start + count).contains(number));
                }
                Step::ReleaseAll => {
                    range.release_all(VF);
                    out.clear();
                    singles.clear();
                    runs.clear();
                }
                Step::Unassign(_) | Step::Release(_) => {}
            }
        }
    }
}
