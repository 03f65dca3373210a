use std::collections::VecDeque;

use emulated_hca::{Adapters, Fabric, HcaConfig};
use hca_api::{Cause, FunctionId};
use ib_wire::{Guid, Qpn};
use mlx4_defs::cqe::{Cqe, CqeOpcode, OwnerOpcode, Syndrome};
use mlx4_defs::mtt::{MttBase, MttEntry};
use mlx4_defs::{Cqn, MttIndex};
use proptest::prelude::*;
use zerocopy::network_endian::{U16, U64};

use super::*;

const UAR: Uar = Uar::from_low_bits(130);
/// Bytes from one buffer to the next: two pages.
const APART: u64 = 8192;

/// The driver's side, as `mlx4_ib` has it: the ring and the index of the next entry.
struct Driver {
    ring: u64,
    entries: u32,
    taken: u32,
    record: u64,
}

impl Driver {
    fn entry(&self, hca: &dyn Hca, index: u32) -> Cqe {
        let mut bytes = [0; CQE_SIZE];
        let at = self.ring + u64::from(index % self.entries) * CQE_SIZE as u64;
        hca.dma_read(at, &mut bytes).unwrap();
        zerocopy::transmute!(bytes)
    }

    /// Takes the next entry that is the driver's.
    fn take(&mut self, hca: &mut dyn Hca) -> Option<Cqe> {
        let cqe = self.entry(hca, self.taken);
        if cqe.owner_opcode.owner() != (self.taken & self.entries != 0) {
            return None;
        }
        self.taken += 1;
        hca.dma_write(self.record, &self.taken.to_be_bytes())
            .unwrap();
        Some(cqe)
    }

    /// Moves what waits to the new ring, as `mlx4_ib_cq_resize_copy_cqes` does: an entry later.
    fn follow(&mut self, hca: &mut dyn Hca, ring: u64, entries: u32) {
        let mut index = self.taken;
        loop {
            let mut cqe = self.entry(hca, index);
            if cqe.owner_opcode.opcode() == CqeOpcode::RESIZE.get() {
                break;
            }
            index += 1;
            cqe.owner_opcode = cqe.owner_opcode.with_owner(index & entries != 0);
            let to = ring + u64::from(index % entries) * CQE_SIZE as u64;
            hca.dma_write(to, cqe.as_bytes()).unwrap();
        }
        self.taken += 1;
        (self.ring, self.entries) = (ring, entries);
        hca.dma_write(self.record, &self.taken.to_be_bytes())
            .unwrap();
    }
}

/// An adapter, the pages of two buffers, and a translation table that names them.
struct Scene {
    fabric: Fabric,
    node: emulated_hca::NodeId,
    mtts: Mtts,
    base: u64,
    first: MttIndex,
}

impl Scene {
    fn new() -> Self {
        let mut fabric = Fabric::new(1);
        let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
        let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
        let base = hca
            .allocate_dma(8 * 4096)
            .unwrap()
            .addr
            .next_multiple_of(4096);
        let mut mtts = Mtts::new(4);
        let first = mtts.alloc(2).unwrap();
        let entries = [0, 1, 2, 3].map(|page| MttEntry::new(base + page * 4096));
        mtts.write(first, &entries).unwrap();
        Self {
            fabric,
            node,
            mtts,
            base,
            first,
        }
    }

    fn record(&self) -> u64 {
        self.base + 5 * 4096
    }

    fn context(&self, buffer: u64, log_entries: u8) -> CqContext {
        let mut context = CqContext {
            uar: UAR,
            mtt_base: MttBase::from_entry(MttIndex(self.first.0 + buffer * 2)),
            doorbell_record: U64::new(self.record()),
            ..CqContext::default()
        };
        context.set_log_entries(log_entries);
        context
    }

    fn open(&mut self, log_entries: u8) -> (Cq, Driver) {
        let context = self.context(0, log_entries);
        let mut hca = self.fabric.hca(self.node, FunctionId::PF).unwrap();
        let cq = Cq::new(&mut hca, &mut self.mtts, &context).unwrap();
        while !cq.fill().step(&mut hca).unwrap() {}
        let driver = Driver {
            ring: self.base,
            entries: 1 << log_entries,
            taken: 0,
            record: self.record(),
        };
        (cq, driver)
    }
}

fn entry(index: u16, solicited: bool) -> Entry {
    Entry {
        cqe: Cqe {
            wqe_index: U16::new(index),
            owner_opcode: OwnerOpcode::receive(CqeOpcode::RECV_SEND),
            ..Cqe::default()
        },
        solicited,
    }
}

fn arm(cq: &mut Cq, driver: &Driver, command: ArmCommand) -> bool {
    let doorbell = CqDoorbell::new(Cqn::from_low_bits(1), command, 0, driver.taken & INDEX_MASK);
    cq.arm(UAR, &doorbell) == Rung::Missed
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        count: u16,
        solicited: bool,
    },
    Take(u32),
    /// To so many entries (a logarithm), while so many come and as many are taken.
    Resize(u8, u16),
    Arm(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..12_u16, any::<bool>()).prop_map(|(count, solicited)| Step::Write { count, solicited }),
        4 => (0..12_u32).prop_map(Step::Take),
        1 => (3..8_u8, 0..40_u16).prop_map(|(log, meanwhile)| Step::Resize(log, meanwhile)),
        2 => any::<bool>().prop_map(Step::Arm),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// What is written is taken, in order, through any number of turns and buffers; the driver is woken
    /// once for what it armed for; a full queue fails and keeps what it has.
    #[test]
    fn a_ring_is_a_bounded_fifo_that_can_be_resized(steps in prop::collection::vec(step(), 1..80)) {
        let mut scene = Scene::new();
        let (mut cq, mut driver) = scene.open(3);
        let mut model = VecDeque::new();
        let (mut next, mut buffer, mut failed) = (0_u16, 0, false);
        let mut armed = None;
        for step in steps {
            match step {
                Step::Write { count, solicited } => for _ in 0..count {
                    let mut hca = scene.fabric.hca(scene.node, FunctionId::PF).unwrap();
                    let full = model.len() == driver.entries as usize;
                    let due = armed.is_some_and(|any| any || solicited);
                    let expected = match (failed, full, due) {
                        (true, _, _) => Written::Lost,
                        (_, true, _) => Written::Overrun,
                        (_, _, true) => Written::There(Event::Due),
                        _ => Written::There(Event::None),
                    };
                    prop_assert_eq!(cq.write(&mut hca, &entry(next, solicited)), expected);
                    failed |= full;
                    if !failed {
                        model.push_back((next, solicited));
                        next += 1;
                        armed = armed.filter(|_| !due);
                    }
                },
                Step::Take(most) => for _ in 0..most {
                    let mut hca = scene.fabric.hca(scene.node, FunctionId::PF).unwrap();
                    let taken = driver.take(&mut hca).map(|cqe| cqe.wqe_index.get());
                    prop_assert_eq!(taken, model.pop_front().map(|(index, _)| index));
                },
                Step::Resize(log_entries, meanwhile) => {
                    let context = scene.context(1 - buffer, log_entries);
                    let mut hca = scene.fabric.hca(scene.node, FunctionId::PF).unwrap();
                    let room = driver.entries.min(1 << log_entries) as usize;
                    let begun = cq.resize(&hca, &mut scene.mtts, &context);
                    prop_assert_eq!(begun.is_ok(), !failed && model.len() < room);
                    if let Ok((ring, mut fill)) = begun {
                        for _ in 0..meanwhile {
                            cq.write(&mut hca, &entry(next, false));
                            model.push_back((next, false));
                            armed = armed.filter(|any| !any);
                            let taken = driver.take(&mut hca).map(|cqe| cqe.wqe_index.get());
                            prop_assert_eq!(taken, model.pop_front().map(|(index, _)| index));
                            next += 1;
                        }
                        while !fill.step(&mut hca).unwrap() {}
                        cq.move_to(&mut hca, &mut scene.mtts, ring).unwrap();
                        buffer = 1 - buffer;
                        driver.follow(&mut hca, scene.base + buffer * APART, 1 << log_entries);
                    }
                }
                Step::Arm(any) => {
                    let missed = model.iter().any(|(_, solicited)| any || *solicited);
                    let command = if any { ArmCommand::NEXT } else { ArmCommand::SOLICITED };
                    prop_assert_eq!(arm(&mut cq, &driver, command), missed);
                    armed = (!missed).then_some(any);
                }
            }
        }
    }
}

#[test]
fn the_entries_of_a_new_queue_are_the_devices() {
    let mut scene = Scene::new();
    let (_cq, mut driver) = scene.open(7);
    let mut hca = scene.fabric.hca(scene.node, FunctionId::PF).unwrap();
    assert_eq!(driver.take(&mut hca), None);
    assert_eq!(
        driver.entry(&hca, 127).as_bytes(),
        [HARDWARE_OWNED; CQE_SIZE]
    );
}

#[test]
fn a_solicited_entry_still_waits_after_a_resize() {
    let mut scene = Scene::new();
    let (mut cq, mut driver) = scene.open(3);
    let context = scene.context(1, 3);
    let mut hca = scene.fabric.hca(scene.node, FunctionId::PF).unwrap();
    assert_eq!(
        cq.write(&mut hca, &entry(0, false)),
        Written::There(Event::None)
    );
    assert_eq!(
        cq.write(&mut hca, &entry(1, true)),
        Written::There(Event::None)
    );
    let (ring, mut fill) = cq.resize(&hca, &mut scene.mtts, &context).unwrap();
    while !fill.step(&mut hca).unwrap() {}
    cq.move_to(&mut hca, &mut scene.mtts, ring).unwrap();
    driver.follow(&mut hca, scene.base + APART, 8);
    driver.take(&mut hca).unwrap();
    assert!(arm(&mut cq, &driver, ArmCommand::SOLICITED));
    driver.take(&mut hca).unwrap();
    assert!(!arm(&mut cq, &driver, ArmCommand::SOLICITED));
}

#[test]
fn an_error_wakes_a_driver_that_waits_for_solicited_entries() {
    let mut scene = Scene::new();
    let (mut cq, driver) = scene.open(3);
    assert!(!arm(&mut cq, &driver, ArmCommand::SOLICITED));
    let mut hca = scene.fabric.hca(scene.node, FunctionId::PF).unwrap();
    let failed = Entry::failed(Qpn::GSI, true, 0, Syndrome::FLUSHED, Cause::None);
    assert_eq!(
        cq.write(&mut hca, &entry(0, false)),
        Written::There(Event::None)
    );
    assert_eq!(cq.write(&mut hca, &failed), Written::There(Event::Due));
}

#[test]
fn a_doorbell_in_another_page_arms_nothing() {
    let mut scene = Scene::new();
    let (mut cq, driver) = scene.open(3);
    let mut hca = scene.fabric.hca(scene.node, FunctionId::PF).unwrap();
    cq.write(&mut hca, &entry(0, false));
    let doorbell = CqDoorbell::new(Cqn::from_low_bits(1), ArmCommand::NEXT, 0, driver.taken);
    assert_eq!(cq.arm(Uar::from_low_bits(131), &doorbell), Rung::Ignored);
    assert_eq!(cq.arm(UAR, &doorbell), Rung::Missed);
}

#[test]
fn a_consumer_index_that_cannot_be_is_an_overrun() {
    let mut scene = Scene::new();
    let (mut cq, driver) = scene.open(3);
    let mut hca = scene.fabric.hca(scene.node, FunctionId::PF).unwrap();
    hca.dma_write(driver.record, &[0, 0xff, 0, 0]).unwrap();
    let written: Vec<_> = (0..9)
        .map(|n| cq.write(&mut hca, &entry(n, false)))
        .collect();
    assert_eq!(written[..8], [Written::There(Event::None); 8]);
    assert_eq!(written[8], Written::Overrun);
}

#[test]
fn a_ring_that_is_not_memory_fails_once() {
    let mut scene = Scene::new();
    let first = scene.mtts.alloc(0).unwrap();
    scene.mtts.write(first, &[MttEntry::new(1 << 50)]).unwrap();
    let mut context = scene.context(0, 3);
    context.mtt_base = MttBase::from_entry(first);
    let mut hca = scene.fabric.hca(scene.node, FunctionId::PF).unwrap();
    let mut cq = Cq::new(&mut hca, &mut scene.mtts, &context).unwrap();
    assert!(cq.fill().step(&mut hca).is_err());
    assert_eq!(cq.write(&mut hca, &entry(0, false)), Written::Fault);
    assert_eq!(cq.write(&mut hca, &entry(0, false)), Written::Lost);
}
