//! A short siege, in real time. `cargo run --release -p vhca-tests --bin siege` is the long one.

use std::path::PathBuf;
use std::time::Duration;

use vhca_tests::siege::{Attack, Figures, SiegePlan, heading};

/// Far more than is promised, since tests share the machine; far less than one message of a VMM without bounds takes.
fn bound(burning: &Figures) -> Duration {
    Duration::from_millis(250).max(10 * burning.p99)
}

#[test]
fn no_vmm_keeps_others_from_being_served() {
    let plan = SiegePlan {
        attacks: vec![Attack::EventQueues, Attack::Regions, Attack::Datagrams],
        counts: vec![1, 4],
        length: Duration::from_secs(2),
        program: PathBuf::from(env!("CARGO_BIN_EXE_siege")),
    };
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
    let slow = siege.figures.iter().filter(|figures| figures.p50 > typical);
    let slow: Vec<String> = slow.map(Figures::line).collect();
    assert!(slow.is_empty(), "{slow:#?}");
}
