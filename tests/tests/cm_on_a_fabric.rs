//! Acceptance 4 of the ground, on real queue pairs: 100,000 random conversations between the QP1s of
//! an emulated fabric whose links lose, damage, repeat, delay and reorder.

use std::time::Duration;

use emulated_hca::FaultCounters;
use hca_api::ResourceCounts;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use vhca_tests::conversation::{Driver, Ending, FabricChannel, Plan};

/// Conversations that run at once; each batch has a fabric of its own.
const BATCH: usize = 500;
const BATCHES: u64 = 200;

/// What came of a batch.
#[derive(Default)]
struct Came {
    conversations: usize,
    timed_out: usize,
    faults: FaultCounters,
}

fn batch(seed: u64) -> Came {
    let channel = FabricChannel::new(seed);
    let nodes = channel.nodes();
    let mut driver = Driver::new(seed, &nodes, channel);
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..BATCH {
        driver.add(Plan::roll(
            &mut dice,
            nodes.len(),
            Duration::from_millis(500),
        ));
    }
    driver.run(10_000_000);
    let totals = driver.finish();
    assert!(
        totals.violations.is_empty(),
        "seed {seed}: {:#?}",
        totals.violations
    );
    let channel = driver.into_channel();
    let faults = channel.faults();
    for left in channel.close() {
        assert_eq!(
            left,
            ResourceCounts::default(),
            "seed {seed}: something was left over"
        );
    }
    let endings = totals.endings.iter();
    Came {
        conversations: endings.clone().map(|(_, count)| count).sum(),
        timed_out: endings
            .filter(|((_, a, b), _)| [*a, *b].contains(&Ending::TimedOut))
            .map(|(_, count)| count)
            .sum(),
        faults,
    }
}

#[test]
fn conversations_on_a_faulty_fabric_end_alike_or_in_explained_timeouts() {
    let mut sum = Came::default();
    for seed in 0..BATCHES {
        let came = batch(seed);
        sum.conversations += came.conversations;
        sum.timed_out += came.timed_out;
        sum.faults.dropped += came.faults.dropped;
        sum.faults.duplicated += came.faults.duplicated;
        sum.faults.reordered += came.faults.reordered;
        sum.faults.delayed += came.faults.delayed;
        sum.faults.corrupted += came.faults.corrupted;
    }
    println!(
        "{} conversations, {} with a timeout; {:?}",
        sum.conversations, sum.timed_out, sum.faults
    );
    assert!(sum.conversations >= 100_000);
    assert!(sum.timed_out < sum.conversations / 10);
    let FaultCounters {
        dropped,
        duplicated,
        reordered,
        delayed,
        corrupted,
        ..
    } = sum.faults;
    for struck in [dropped, duplicated, reordered, delayed, corrupted] {
        assert!(struck > 5_000);
    }
}
