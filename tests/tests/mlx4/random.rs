//! Random sequences of a driver's operations against a model of what programs hear.

use std::collections::VecDeque;

use ib_vtime::Duration;
use ib_wire::PortNum;
use mlx4_defs::cq::ArmCommand;
use mlx4_defs::cqe::Syndrome;
use mlx4_defs::qp::QpState;
use proptest::prelude::*;
use vhca_tests::mlx4_driver::{
    Bench, BufferKind, Bus, Driver, DriverError, Owner, StrayAccesses, Talker, TalkerSpec,
};

use super::bench;

/// Talkers at a time.
const TALKERS: usize = 5;

/// Sends and receives of each.
const DEPTH: u32 = 8;

/// What is done next. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Operation {
    Open { kernel: bool, shared: bool },
    Close(usize),
    Say { from: usize, to: usize, len: usize },
    Hear(usize),
    Break(usize),
    Revive(usize),
    Resize { of: usize, entries: u32 },
    Arm { of: usize, solicited: bool },
}

fn operation() -> impl Strategy<Value = Operation> {
    let of = 0..TALKERS;
    prop_oneof![
        2 => (any::<bool>(), any::<bool>())
            .prop_map(|(kernel, shared)| Operation::Open { kernel, shared }),
        1 => of.clone().prop_map(Operation::Close),
        8 => (of.clone(), of.clone(), 0..2048_usize)
            .prop_map(|(from, to, len)| Operation::Say { from, to, len }),
        4 => of.clone().prop_map(Operation::Hear),
        1 => of.clone().prop_map(Operation::Break),
        2 => of.clone().prop_map(Operation::Revive),
        1 => (of.clone(), DEPTH..200)
            .prop_map(|(of, entries)| Operation::Resize { of, entries }),
        1 => (of, any::<bool>()).prop_map(|(of, solicited)| Operation::Arm { of, solicited }),
    ]
}

/// A talker, and what is known of it.
struct Known {
    talker: Talker,
    shared: bool,
    broken: bool,
    /// Receives that are posted.
    posted: usize,
    /// Messages that arrived and were not heard yet.
    arrived: VecDeque<Vec<u8>>,
    /// Requests that ended with an error and were not taken yet.
    flushed: usize,
    /// Sends that are under way, as far as the talker knows.
    sends: usize,
}

struct Scene {
    bench: Bench,
    driver: Driver,
    known: Vec<Known>,
    said: u8,
}

impl Scene {
    fn apply(&mut self, operation: &Operation) {
        let count = self.known.len();
        match *operation {
            Operation::Open { kernel, shared } => self.open(kernel, shared),
            _ if count == 0 => {}
            Operation::Close(of) => {
                let known = self.known.swap_remove(of % count);
                let closed = known.talker.close(&mut self.driver, &mut self.bench);
                assert_eq!(closed, Ok(()));
            }
            Operation::Say { from, to, len } => self.say(from % count, to % count, len),
            Operation::Hear(of) => self.hear(of % count),
            Operation::Break(of) => self.break_it(of % count),
            Operation::Revive(of) => self.revive(of % count),
            Operation::Resize { of, entries } => {
                let cqn = self.known[of % count].talker.recv_cq;
                let memory = BufferKind::User {
                    shift: 12 + entries % 2,
                };
                let resized = self.driver.resize_cq(&mut self.bench, cqn, entries, memory);
                assert_eq!(resized, Ok(()));
            }
            Operation::Arm { of, solicited } => {
                let cqn = self.known[of % count].talker.recv_cq;
                let command = if solicited {
                    ArmCommand::SOLICITED
                } else {
                    ArmCommand::NEXT
                };
                let armed = self.driver.arm_cq(&mut self.bench, cqn, command);
                assert_eq!(armed, Ok(()));
            }
        }
        self.pass_time();
    }

    /// Lets so much time pass that the device looked at the receives of broken queue pairs.
    fn pass_time(&mut self) {
        let end = self.bench.now() + Duration::from_millis(300);
        while self.bench.now() < end {
            let left = end - self.bench.now();
            self.bench.wait(left);
            assert_eq!(self.driver.serve(&mut self.bench), Ok(()));
        }
    }

    fn open(&mut self, kernel: bool, shared: bool) {
        if self.known.len() == TALKERS {
            return;
        }
        let spec = TalkerSpec {
            owner: if kernel { Owner::Kernel } else { Owner::User },
            shared,
            sends: DEPTH,
            receives: DEPTH,
            ..TalkerSpec::default()
        };
        let talker = Talker::open(&mut self.driver, &mut self.bench, &spec).unwrap();
        self.known.push(Known {
            talker,
            shared,
            broken: false,
            posted: DEPTH as usize,
            arrived: VecDeque::new(),
            flushed: 0,
            sends: 0,
        });
    }

    fn say(&mut self, from: usize, to: usize, len: usize) {
        self.said = self.said.wrapping_add(1);
        let message: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0] ^ self.said).collect();
        let lid = self.driver.port(PortNum(1)).info.lid;
        let address = self.known[to].talker.address(lid);
        let sender = &mut self.known[from];
        let way = sender.talker.way_to(address);
        let said = sender
            .talker
            .say(&mut self.driver, &mut self.bench, &way, &message);
        if sender.sends == DEPTH as usize {
            // The talker took its completed sends to make room: all are, by now.
            sender.sends = 0;
        }
        sender.sends += 1;
        assert_eq!(said, Ok(()));
        if sender.broken {
            sender.flushed += 1;
            return;
        }
        let receiver = &mut self.known[to];
        if !receiver.broken && receiver.posted > 0 {
            receiver.posted -= 1;
            receiver.arrived.push_back(message);
        }
    }

    fn hear(&mut self, of: usize) {
        let known = &mut self.known[of];
        let heard = known.talker.hear(&mut self.driver).unwrap();
        let heard: Vec<Vec<u8>> = heard.into_iter().map(|heard| heard.bytes).collect();
        let expected: Vec<Vec<u8>> = known.arrived.drain(..).collect();
        known.talker.take_sent(&mut self.driver).unwrap();
        known.sends = 0;
        assert_eq!(heard, expected);
        let failed: Vec<Syndrome> = known.talker.failed.drain(..).map(|(_, why)| why).collect();
        assert_eq!(failed, vec![Syndrome::FLUSHED; known.flushed]);
        known.flushed = 0;
        // What was heard is posted again; in a queue pair that is broken it is flushed at once.
        if known.broken && !known.shared {
            known.flushed = expected.len();
        } else {
            known.posted += expected.len();
        }
    }

    fn break_it(&mut self, of: usize) {
        let known = &mut self.known[of];
        let broken = self.driver.to_error(&mut self.bench, known.talker.qpn);
        assert_eq!(broken, Ok(()));
        if !known.broken && !known.shared {
            known.flushed += known.posted;
            known.posted = 0;
        }
        known.broken = true;
    }

    fn revive(&mut self, of: usize) {
        let known = &mut self.known[of];
        let qpn = known.talker.qpn;
        let context = self.driver.query_qp(&mut self.bench, qpn).unwrap();
        let expected = if known.broken {
            QpState::ERR
        } else {
            QpState::RTS
        };
        assert_eq!(context.state(), expected);
        self.driver.reset_qp(&mut self.bench, qpn).unwrap();
        let revived = known.talker.bring_up(&mut self.driver, &mut self.bench);
        assert_eq!(revived, Ok(()));
        known.broken = false;
        // Completions that were not taken went with the reset.
        known.arrived.clear();
        known.flushed = 0;
        known.talker.failed.clear();
        known.sends = 0;
        if !known.shared {
            known.posted = DEPTH as usize;
        }
    }
}

fn run(operations: &[Operation]) -> Result<(), DriverError> {
    let (mut bench, memory) = bench(1);
    let driver = Driver::probe(&mut bench, memory.clone())?;
    let before = bench.owned();
    let mut scene = Scene {
        bench,
        driver,
        known: Vec::new(),
        said: 0,
    };
    for operation in operations {
        scene.apply(operation);
    }
    let Scene {
        mut bench,
        mut driver,
        known,
        ..
    } = scene;
    for known in known {
        known.talker.close(&mut driver, &mut bench)?;
    }
    let after = bench.owned();
    assert_eq!(
        (after.qps, after.cqs, after.srqs),
        (before.qps, before.cqs, before.srqs)
    );
    assert_eq!(after.mrs, before.mrs);
    driver.remove(&mut bench)?;
    assert_eq!(bench.owned(), hca_api::ResourceCounts::default());
    assert_eq!(memory.allocated_pages(), 0);
    assert_eq!(memory.stray_accesses(), StrayAccesses::default());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn programs_hear_what_a_model_says(operations in prop::collection::vec(operation(), 1..120)) {
        run(&operations).unwrap();
    }
}
