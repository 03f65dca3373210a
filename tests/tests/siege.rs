//! A short siege, in real time. `cargo run --release -p vhca-tests --bin siege` is the long one.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vhca_tests::live::MemoryCgroup;
use vhca_tests::siege::{Attack, Bound, Figures, Setting, SiegePlan, heading};

/// Far more than is promised, since tests share the machine; far less than one message of a VMM without bounds takes.
fn bound(calm: Option<&Figures>) -> Bound {
    let calm = calm.map_or(Duration::ZERO, |calm| calm.p99);
    Bound {
        p99: Duration::from_millis(250).max(10 * calm),
        max: Duration::from_secs(5),
        stalled: 1.0,
    }
}

/// Held by the siege that is going on: each takes the whole machine.
static SIEGE: Mutex<()> = Mutex::new(());

fn keeps_its_promises(attacks: Vec<Attack>, counts: Vec<usize>, length: Duration) {
    let plan = SiegePlan {
        attacks,
        counts,
        length,
        memory: None,
        program: PathBuf::from(env!("CARGO_BIN_EXE_siege")),
    };
    let _alone = SIEGE.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{}", heading());
    let siege = plan.carry_out(|figures| println!("{}", figures.line()));
    let siege = siege.expect("the victims are served");
    let missed: Vec<String> = siege
        .missed(bound)
        .map(|(figures, bound)| format!("{} above {bound:?}", figures.line()))
        .collect();
    assert!(missed.is_empty(), "{missed:#?}");
    // Where one attacks, half of all waits are short on any machine.
    let typical = Duration::from_millis(40);
    let by_one = |figures: &&Figures| matches!(figures.setting, Setting::Attacked(_, 1));
    let figures = siege.figures.iter().filter(by_one);
    let slow = figures.filter(|figures| figures.p50 > typical);
    let slow: Vec<String> = slow.map(Figures::line).collect();
    assert!(slow.is_empty(), "{slow:#?}");
}

#[test]
fn no_vmm_keeps_others_from_being_served() {
    let attacks = vec![
        Attack::EventQueues,
        Attack::Regions,
        Attack::Datagrams,
        Attack::Tables,
        Attack::SlowAnswers,
    ];
    keeps_its_promises(attacks, vec![1, 4], Duration::from_secs(2));
    // Its rounds are seconds apart.
    keeps_its_promises(vec![Attack::Unmap], vec![1], Duration::from_secs(8));
}

#[test]
fn no_number_of_connections_keeps_others_from_being_served() {
    let attacks = vec![Attack::Rnr, Attack::Writes];
    keeps_its_promises(attacks, vec![1], Duration::from_secs(2));
}

#[test]
fn nothing_that_a_client_passes_or_watches_keeps_others_from_being_served() {
    let attacks = vec![
        Attack::PutBack,
        Attack::Linger,
        Attack::Descriptors,
        Attack::RefusedMemory,
        Attack::Watchers,
    ];
    keeps_its_promises(attacks, vec![1], Duration::from_secs(2));
}

#[test]
fn no_other_end_of_a_trunk_keeps_guests_from_being_served() {
    let attacks = vec![Attack::TrunkRecords, Attack::TrunkFlaps, Attack::TrunkRings];
    keeps_its_promises(attacks, vec![1], Duration::from_secs(2));
}

#[test]
fn a_service_with_512_mib_lives_beside_16_attackers_of_each_kind() {
    const MEMORY: u64 = 512 << 20;

    if let Err(error) = MemoryCgroup::new(MEMORY / 2) {
        println!("skipped: no control group for memory: {error}");
        return;
    }
    let plan = SiegePlan {
        attacks: vec![
            Attack::PutBack,
            Attack::Linger,
            Attack::Descriptors,
            Attack::Watchers,
            Attack::Programs,
        ],
        counts: vec![16],
        length: Duration::from_secs(2),
        memory: Some(MEMORY),
        program: PathBuf::from(env!("CARGO_BIN_EXE_siege")),
    };
    let _alone = SIEGE.lock().unwrap_or_else(PoisonError::into_inner);
    // It fails where the service ends.
    let siege = plan.carry_out(|figures| println!("{}", figures.line()));
    let siege = siege.expect("the service lives");
    assert!(siege.memory.is_none_or(|most| most <= MEMORY));
}
