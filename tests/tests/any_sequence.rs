//! Any sequence of operations on each machine of a PF: proptest's bytes through the bodies of the fuzz
//! targets, so that a machine has one model for both.
//!
//! A failure prints an input: add it to `tests/fuzz/corpus` with the fix.

use proptest::prelude::any;
use proptest::test_runner::{Config, TestCaseResult, TestError, TestRunner};
use vhca_tests::fuzz_targets::run;

/// Runs a target on inputs of up to `longest` bytes.
fn check(target: &str, cases: u32, longest: usize) {
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    };
    let input = proptest::collection::vec(any::<u8>(), 0..longest);
    let body = |data: Vec<u8>| -> TestCaseResult {
        run(target, &data);
        Ok(())
    };
    match TestRunner::new(config).run(&input, body) {
        Ok(()) => {}
        Err(TestError::Fail(reason, data)) => panic!("{target}: {reason}, with {data:02x?}"),
        Err(error) => panic!("{target}: {error}"),
    }
}

#[test]
fn each_address_that_is_looked_up_is_found_or_not_once() {
    check("arp", 2_000, 400);
}

#[test]
fn what_reaches_a_vf_is_its_own_and_every_frame_has_a_verdict() {
    check("port_mux", 4_000, 800);
}

#[test]
fn when_all_is_quiet_the_sa_holds_the_memberships_of_the_members() {
    check("mcast", 4_096, 400);
}

#[test]
fn when_all_is_quiet_the_sa_holds_the_subscriptions_of_the_members() {
    check("notices", 4_096, 400);
}

#[test]
fn no_interleaving_misleads_a_cm_message_or_leaves_state() {
    check("cm_paravirt", 1_000, 1_200);
}

#[test]
fn when_all_is_quiet_the_sa_the_hardware_and_the_vfs_agree_with_the_wishes_for_guids() {
    check("guids", 4_000, 600);
}
