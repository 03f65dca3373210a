use hca_api::{CompletionStatus, ResourceCounts, SendOp};

use super::*;
use crate::native::tests::loopback::{OK, Program, START, rights};

#[test]
fn regions_are_lent_in_turn_under_a_key_that_changes_with_each_use() {
    let mut program = Program::new();
    let pool = program.on(|port, hca| RegistrationPool::allocate(port, hca, 2, 4, rights()));
    let mut pool = pool.unwrap();
    let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
    assert!(pool.take().is_none());
    let keys = [first.key(), second.key()];
    assert_ne!(keys[0].0 >> 8, keys[1].0 >> 8);
    pool.give_back(second);
    pool.give_back(first);
    for use_count in 1..=256_u32 {
        let again = [pool.take().unwrap(), pool.take().unwrap()];
        for (taken, before) in again.iter().zip([keys[1], keys[0]]) {
            assert_eq!(taken.key().0 & !0xff, before.0 & !0xff);
            assert_eq!(taken.key().0 & 0xff, use_count & 0xff);
        }
        again.into_iter().for_each(|taken| pool.give_back(taken));
    }
    program.on(|port, hca| pool.deallocate(port, hca));
    assert_eq!(program.close(), ResourceCounts::default());
}

#[test]
fn a_discarded_region_loses_its_key_and_is_replaced() {
    let mut program = Program::new();
    let pool = program.on(|port, hca| RegistrationPool::allocate(port, hca, 1, 1, rights()));
    let mut pool = pool.unwrap();
    let taken = pool.take().unwrap();
    let (key, variant) = (taken.key(), taken.variant());
    let pages = [program.memory.addr() & !0xfff];
    let range = (START & !0xfff, 4096);
    let region = *taken.region();
    let given = region.registration(variant, range, &pages, rights());
    program.post(0, SendOp::FastRegister(given), &[]);
    assert_eq!(program.statuses(0), [OK]);
    pool.discard(taken);
    assert!(pool.take().is_none());
    program.on(|port, hca| pool.renew(port, hca)).unwrap();
    assert_eq!(program.write_by(key), [CompletionStatus::RemoteAccess]);
    assert_ne!(pool.take().unwrap().key().0 >> 8, key.0 >> 8);
}

#[test]
fn a_pool_that_is_more_than_the_vf_may_own_leaves_nothing_behind() {
    let mut program = Program::new();
    let refused = program.on(|port, hca| RegistrationPool::allocate(port, hca, 101, 1, rights()));
    assert!(refused.is_err());
    let pool = program.on(|port, hca| RegistrationPool::allocate(port, hca, 30, 1, rights()));
    assert_eq!(pool.unwrap().idle(), 30);
}
