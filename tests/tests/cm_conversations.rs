//! Acceptance 4 of the ground: random conversations over a channel that loses, delays, reorders
//! and duplicates end in the same state at both sides, or in a timeout that the message fields
//! explain, and leave nothing behind.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use ib_wire::{Gid, Guid, Lid, SubnetPrefix};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use vhca_tests::conversation::{
    Driver, Ending, Kind, LossyChannel, NodeAddress, Plan, Totals, Weather,
};

/// Conversations that run at once; each batch has its own seed, managers and channel.
const BATCH: usize = 100;

fn nodes() -> Vec<NodeAddress> {
    (1..=4)
        .map(|n: u16| {
            let guid = Guid::new(0x0002_c903_0000_0000 + u64::from(n));
            NodeAddress {
                ca_guid: guid,
                lid: Lid::new(n),
                gid: Gid::from_parts(SubnetPrefix::DEFAULT, guid),
            }
        })
        .collect()
}

fn weather(loss: f64, duplication: f64) -> Weather {
    Weather {
        loss,
        duplication,
        min_delay: Duration::from_micros(10),
        max_delay: Duration::from_millis(4),
    }
}

fn batch(seed: u64, weather: Weather, adjust: fn(Plan) -> Plan) -> Totals {
    let nodes = nodes();
    let channel = LossyChannel::new(seed, weather, &nodes);
    let mut driver = Driver::new(seed, &nodes, channel);
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..BATCH {
        let plan = Plan::roll(&mut dice, nodes.len(), Duration::from_millis(500));
        driver.add(adjust(plan));
    }
    driver.run(1_000_000);
    driver.finish()
}

/// What came of all batches together.
#[derive(Default)]
struct Sum {
    endings: BTreeMap<(Kind, Ending, Ending), usize>,
    migrations: u64,
    unanswered_laps: u64,
}

impl Sum {
    /// Conversations of which `wanted` holds.
    fn count(&self, wanted: impl Fn(Kind, Ending, Ending) -> bool) -> usize {
        self.endings
            .iter()
            .filter(|((kind, a, b), _)| wanted(*kind, *a, *b))
            .map(|(_, count)| count)
            .sum()
    }

    fn timed_out(&self) -> usize {
        self.count(|_, a, b| a == Ending::TimedOut || b == Ending::TimedOut)
    }

    fn closed(&self, kind: Kind) -> usize {
        self.count(|k, a, b| k == kind && a == Ending::Closed && b == Ending::Closed)
    }
}

fn run(seeds: Range<u64>, weather: Weather, adjust: fn(Plan) -> Plan) -> Sum {
    let mut sum = Sum::default();
    for seed in seeds {
        let totals = batch(seed, weather, adjust);
        assert!(
            totals.violations.is_empty(),
            "seed {seed}: {:#?}",
            totals.violations
        );
        for (ending, count) in totals.endings {
            *sum.endings.entry(ending).or_insert(0) += count;
        }
        sum.migrations += totals.migrations;
        sum.unanswered_laps += totals.unanswered_laps;
    }
    sum
}

#[test]
fn conversations_over_a_lossy_channel_end_alike_or_in_explained_timeouts() {
    let sum = run(0..600, weather(0.1, 0.1), |plan| plan);
    // Every kind of ending has been there.
    assert!(sum.closed(Kind::ClientServer) > 10_000);
    assert!(sum.closed(Kind::PeerToPeer) > 1_000);
    assert!(sum.migrations > 5_000);
    assert!(sum.timed_out() > 1_000);
    assert!(sum.count(|_, a, b| a == Ending::Abandoned && b == Ending::Refused) > 1_000);
    assert!(sum.count(|_, a, b| a == Ending::Refused && b == Ending::Refused) > 5_000);
    assert!(sum.count(|_, a, _| matches!(a, Ending::Resolved(_))) > 5_000);
    assert!(sum.count(|kind, a, _| kind == Kind::NoListener && a == Ending::Refused) > 1_000);
}

#[test]
fn conversations_over_a_channel_that_loses_every_third_mad_end_alike_or_in_explained_timeouts() {
    let sum = run(1000..1200, weather(0.33, 0.2), |plan| plan);
    assert!(sum.timed_out() > 2_000);
    assert!(sum.closed(Kind::ClientServer) > 1_000);
}

#[test]
fn patient_users_of_a_lossy_channel_never_see_a_timeout() {
    let sum = run(2000..2200, weather(0.2, 0.2), Plan::patient);
    assert_eq!(sum.timed_out(), 0, "{:#?}", sum.endings);
    assert_eq!(sum.unanswered_laps, 0);
    assert!(sum.closed(Kind::ClientServer) > 5_000);
    assert!(sum.closed(Kind::PeerToPeer) > 500);
}

#[test]
fn the_same_seed_gives_the_same_conversations() {
    let run = |seed| {
        let totals = batch(seed, weather(0.2, 0.2), |plan| plan);
        (totals.endings, totals.mads, totals.elapsed)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
