//! `vhca replay`, driven over a pipe by somebody who knows the format and what must hold, and nothing
//! of the mux: random conversations of VFs that are clones of one another with peers on the wire.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod mads;
mod plan;
mod session;
mod world;

use world::World;

#[test]
fn two_clones_hold_random_conversations_and_leave_nothing() {
    for seed in 0..6 {
        let mut world = World::new(seed, 2);
        world.run(300, 20);
        let tally = world.end();
        assert_eq!(tally.conversations, 300);
        assert!(tally.mads > 1_500, "{tally:?}");
    }
}

#[test]
fn sixty_four_clones_hold_random_conversations_and_leave_nothing() {
    let mut world = World::new(77, 64);
    world.run(1_000, 200);
    assert_eq!(world.end().conversations, 1_000);
}
