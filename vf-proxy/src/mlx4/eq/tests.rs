use emulated_hca::{Adapters, Fabric, HcaConfig};
use hca_api::FunctionId;
use ib_wire::Guid;
use mlx4_defs::MttIndex;
use mlx4_defs::eqe::CommandEvent;
use mlx4_defs::mtt::{MttBase, MttEntry};
use proptest::prelude::*;
use zerocopy::FromBytes;

use super::super::capability::CQ_QUOTA;
use super::*;

const EQN: Eqn = Eqn(7);
const OTHER: Eqn = Eqn(8);
const VECTOR: u16 = 3;
/// The smallest queue of the driver has two entries; four show the second pass soon.
const LOG_ENTRIES: u8 = 2;
const ENTRIES: u32 = 1 << LOG_ENTRIES;

/// A step of the device or of the driver.
#[derive(Clone, Copy, Debug)]
enum Step {
    Post,
    /// The driver takes so many of the entries that it has.
    Take {
        count: u32,
        arm: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Post),
        1 => (0..ENTRIES, any::<bool>()).prop_map(|(count, arm)| Step::Take { count, arm }),
    ]
}

/// The driver's side, which reads entries as it does: by their owner bit.
struct Driver {
    page: u64,
    taken: u32,
    state: EqState,
    posted: u16,
    seen: u16,
}

impl Driver {
    /// Whether it is woken by what it has now to take.
    fn is_woken(&mut self) -> bool {
        if self.state == EqState::ARMED {
            self.state = EqState::FIRED;
            return true;
        }
        self.state == EqState::ALWAYS_ARMED
    }

    fn next(&self, hca: &dyn Hca) -> Option<Eqe> {
        let slot = u64::from(self.taken % ENTRIES);
        let mut bytes = [0; EQE_SIZE];
        hca.dma_read(self.page + slot * EQE_SIZE as u64, &mut bytes)
            .unwrap();
        let eqe = Eqe::read_from_bytes(&bytes).unwrap();
        (eqe.owner() == (self.taken & ENTRIES != 0)).then_some(eqe)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the driver does, it finds every event, in order, and is woken if and only if it armed and
    /// there is something; one whose queue is always armed, by each new entry, and when it arms. What does not
    /// fit waits until it took some.
    #[test]
    fn a_driver_finds_every_event_and_is_woken_when_it_armed(
        steps in proptest::collection::vec(step(), 1..60),
        state in prop_oneof![Just(EqState::ARMED), Just(EqState::FIRED), Just(EqState::ALWAYS_ARMED)],
    ) {
        let mut fabric = Fabric::new(1);
        let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
        let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
        let page = hca.allocate_dma(8192).unwrap().addr.next_multiple_of(4096);
        let mut mtts = Mtts::new(4);
        let first = mtts.alloc(0).unwrap();
        mtts.write(first, &[MttEntry::new(page)]).unwrap();
        let mut context = EqContext {
            vector: 3,
            mtt_base: MttBase::from_entry(first),
            ..EqContext::default()
        };
        context.set_state(state);
        context.set_log_entries(LOG_ENTRIES);
        let mut eqs = Eqs::default();
        let (eq, mut fill) = eqs.create(&mut mtts, EQN, &context).unwrap();
        prop_assert!(fill.step(&mut hca).unwrap());
        eqs.finish(eq);
        let events = EventMask::default().with(EventType::CMD);
        eqs.map(EQN, events, false).unwrap();
        let mut driver = Driver { page, taken: 0, state, posted: 0, seen: 0 };
        for step in steps {
            let written = u32::from(driver.posted - driver.seen).min(ENTRIES);
            let woken = match step {
                Step::Post => {
                    let woken = eqs.post(&mut hca, EQN, Eqe::command(driver.posted));
                    driver.posted += 1;
                    let fits = written < ENTRIES;
                    prop_assert_eq!(woken.is_some(), fits && driver.is_woken());
                    prop_assert_eq!(eqs.has_room(EventType::CMD), written + 1 < ENTRIES);
                    woken
                }
                Step::Take { count, arm } => {
                    let waited = u32::from(driver.posted - driver.seen) > ENTRIES;
                    let count = count.min(written);
                    for _ in 0..count {
                        let eqe = driver.next(&hca).unwrap();
                        prop_assert_eq!(eqe.view::<CommandEvent>().token.get(), driver.seen);
                        driver.taken += 1;
                        driver.seen += 1;
                    }
                    let doorbell = EqDoorbell::new(driver.taken, arm);
                    let woken = eqs.doorbell(&mut hca, EQN, doorbell);
                    if arm && driver.state == EqState::FIRED {
                        driver.state = EqState::ARMED;
                    }
                    let left = driver.posted != driver.seen;
                    let is_due = left && (arm || waited && count > 0);
                    prop_assert_eq!(woken.is_some(), is_due && driver.is_woken());
                    woken
                }
            };
            prop_assert_eq!(eqs.lost(), 0);
            if let Some(vector) = woken {
                prop_assert_eq!(vector, VECTOR);
            }
            prop_assert_eq!(driver.next(&hca).is_some(), driver.posted != driver.seen);
        }
    }
}

#[test]
fn numbers_and_sizes_that_no_queue_has_are_refused() {
    let mut mtts = Mtts::new(4);
    let mut eqs = Eqs::default();
    let mut context = EqContext::default();
    for eqn in [0, FIRST_EQN - 1, MAX_EQS, u32::MAX] {
        let refused = eqs.create(&mut mtts, Eqn(eqn), &context);
        assert_eq!(refused.err(), Some(Status::BAD_INDEX), "{eqn}");
    }
    let refused = eqs.create(&mut mtts, EQN, &context);
    assert_eq!(refused.err(), Some(Status::BAD_PARAM), "no pages");
    context.set_log_entries(31);
    let refused = eqs.create(&mut mtts, EQN, &context);
    assert_eq!(refused.err(), Some(Status::BAD_PARAM), "too large");
    let first = mtts.alloc(0).unwrap();
    mtts.write(first, &[MttEntry::new(0x1000)]).unwrap();
    let mut within = context_at(first);
    assert!(eqs.create(&mut mtts, EQN, &within).is_ok());
    within.page_offset.set(1);
    let refused = eqs.create(&mut mtts, EQN, &within);
    assert_eq!(
        refused.err(),
        Some(Status::BAD_PARAM),
        "not at a page's begin"
    );
    assert_eq!(
        eqs.map(EQN, EventMask(u64::MAX), false),
        Err(Status::BAD_RESOURCE)
    );
    assert_eq!(eqs.destroy(&mut mtts, EQN), Err(Status::BAD_RESOURCE));
}

/// Creates a queue in the page of an MTT entry.
fn context_at(entry: MttIndex) -> EqContext {
    let mut context = EqContext::default();
    context.set_log_entries(LOG_ENTRIES);
    context.mtt_base = MttBase::from_entry(entry);
    context
}

#[test]
fn an_events_queue_is_the_one_that_it_was_assigned_to_last() {
    let mut mtts = Mtts::new(4);
    let first = mtts.alloc(0).unwrap();
    mtts.write(first, &[MttEntry::new(0x1000)]).unwrap();
    let mut eqs = Eqs::default();
    for eqn in [EQN, OTHER] {
        let (new, _) = eqs.create(&mut mtts, eqn, &context_at(first)).unwrap();
        eqs.finish(new);
    }
    let (event, events) = (3, EventMask(1 << 3));
    let other = EventMask(1 << 4);
    eqs.map(EQN, events, false).unwrap();
    eqs.map(OTHER, other, false).unwrap();
    eqs.map(OTHER, events, true).unwrap();
    assert_eq!(eqs.assigned[event], Some(EQN), "not that one's to give up");
    eqs.destroy(&mut mtts, EQN).unwrap();
    assert_eq!(eqs.assigned[event], None);
    assert_eq!(eqs.assigned[4], Some(OTHER), "another queue's");
    eqs.map(OTHER, other, true).unwrap();
    assert_eq!(eqs.assigned[4], None);
}

fn a_page(hca: &mut dyn Hca) -> u64 {
    let dma = hca.allocate_dma(8192).unwrap();
    dma.addr.next_multiple_of(4096)
}

/// Creates an adapter, and a queue of four entries at `address`.
fn with_queue_at(address: impl FnOnce(&mut dyn Hca) -> u64, test: impl FnOnce(&mut dyn Hca, Eqs)) {
    let mut fabric = Fabric::new(1);
    let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
    let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
    let page = address(&mut hca);
    let mut mtts = Mtts::new(4);
    let first = mtts.alloc(0).unwrap();
    mtts.write(first, &[MttEntry::new(page)]).unwrap();
    let mut eqs = Eqs::default();
    let (new, _) = eqs.create(&mut mtts, EQN, &context_at(first)).unwrap();
    eqs.finish(new);
    test(&mut hca, eqs);
}

#[test]
fn events_beyond_what_a_full_queue_keeps_are_counted() {
    with_queue_at(a_page, |hca, mut eqs| {
        let most = ENTRIES + CQ_QUOTA + 0x80;
        for cqn in 0..most + 3 {
            eqs.post(hca, EQN, Eqe::completion(Cqn::from_low_bits(cqn)));
        }
        assert_eq!(eqs.lost(), 3);
    });
}

#[test]
fn events_for_which_there_is_no_memory_are_counted() {
    with_queue_at(
        |_| 1 << 40,
        |hca, mut eqs| {
            for token in 0..3 {
                assert_eq!(eqs.post(hca, EQN, Eqe::command(token)), None);
            }
            assert_eq!(eqs.lost(), 3);
        },
    );
}

#[test]
fn a_completion_queue_that_is_gone_is_not_told_of_when_there_is_room() {
    with_queue_at(a_page, |hca, mut eqs| {
        for token in 0..4 {
            eqs.post(hca, EQN, Eqe::command(token));
        }
        for cqn in [5, 6] {
            eqs.post(hca, EQN, Eqe::completion(Cqn::from_low_bits(cqn)));
        }
        eqs.forget_completions(Cqn::from_low_bits(5));
        eqs.doorbell(hca, EQN, EqDoorbell::new(4, false));
        assert_eq!(eqs.queues[&EQN].producer, 5, "one entry more, of the other");
    });
}
