//! Hostile guests beside well-behaved ones. Longer runs, with other seeds:
//! `cargo run --release -p vhca-tests --example hostile_guests -- --seconds 600 --seed 2`.

use vhca_tests::mlx4_driver::hostile::{Choices, HostileGuest, Siege, SiegePlan};

use super::{bench, function};

#[test]
fn sixteen_guests_do_not_notice_two_hostile_ones() {
    let plan = SiegePlan {
        victims: 8,
        attackers: 1,
        seed: 1,
    };
    let mut siege = Siege::new(&plan, |_| function()).unwrap();
    for _ in 0..200 {
        siege.round(20).unwrap();
    }
    let depth = siege.depth();
    println!("{depth:?}");
    assert!(depth.probes > 2 && depth.talkers > 10 && depth.accepted > 50);
    assert!(depth.connections > 50 && depth.messages > 10);
    siege.end().unwrap();
}

#[test]
fn a_hostile_guest_alone_ends_no_device() {
    for seed in 0..8 {
        let (mut bench, memory) = bench(2);
        let mut hostile = HostileGuest::new(memory);
        let mut choices = Choices::seeded(seed);
        for _ in 0..2_000 {
            hostile.step(&mut bench, &mut choices);
        }
        println!("seed {seed}: {:?}", hostile.depth);
        assert!(hostile.depth.probes > 0);
    }
}
