//! `vhca replay`, driven over a pipe by somebody who knows the format and what must hold, and nothing
//! of the mux: random conversations of VFs that are clones of one another with peers on the wire.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod mads;
mod plan;
mod session;
mod world;

use vhca_tests::golden::{Form, assert_unchanged};

use world::World;

#[test]
fn two_clones_hold_random_conversations_and_leave_nothing() {
    for seed in 0..6 {
        let mut world = World::new(seed, 2);
        world.run(300, 20, 0);
        let tally = world.end();
        assert_eq!(tally.conversations, 300);
        assert!(tally.mads > 1_500, "{tally:?}");
    }
}

#[test]
fn sixty_four_clones_hold_random_conversations_and_leave_nothing() {
    let mut world = World::new(77, 64);
    world.run(1_000, 200, 0);
    assert_eq!(world.end().conversations, 1_000);
}

#[test]
fn a_reset_in_the_middle_of_conversations_cuts_the_vfs_own_and_no_other() {
    let mut world = World::new(5, 4);
    world.run(600, 40, 15);
    assert_eq!(world.end().conversations, 600);
}

/// Each script answers what the mux printed before, so a wire id that changes is seen in all that follows.
#[test]
fn three_scripts_print_what_is_kept_of_them() {
    for (name, seed, vfs, conversations, at_once, resets) in [
        ("replay-two-clones", 1, 2, 60, 20, 0),
        ("replay-sixty-four-clones", 77, 64, 120, 60, 0),
        ("replay-resets", 5, 4, 80, 20, 15),
    ] {
        let mut world = World::new(seed, vfs);
        world.run(conversations, at_once, resets);
        let (tally, transcript) = world.end_with_transcript();
        assert_eq!(tally.conversations, conversations);
        assert_unchanged(name, Form::Digests, &transcript);
    }
}
