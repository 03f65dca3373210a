//! LMCs that were said of ports, and the LIDs that may answer then.

use super::*;

const fn lmc(bits: u8) -> Lmc {
    Lmc::from_low_bits(bits)
}

/// Returns the LIDs from 1 to 0x20 from which an answer to a request to `asked` is accepted.
fn answering(lmcs: &SubnetLmcs, asked: u16) -> std::vec::Vec<u16> {
    let may = |from: &u16| lmcs.may_answer(Lid::new(asked), Lid::new(*from));
    (1..0x20).filter(may).collect()
}

#[test]
fn a_port_of_which_nothing_was_said_has_the_lmc_of_ours() {
    let mut lmcs = SubnetLmcs::default();
    assert_eq!(answering(&lmcs, 7), [7]);
    lmcs.set_own(lmc(2));
    assert_eq!(answering(&lmcs, 7), [4, 7]);
    assert_eq!(answering(&lmcs, 8), [8]);
    assert!(lmcs.are_one_ports(Lid::new(5), Lid::new(7)));
    assert!(!lmcs.are_one_ports(Lid::new(7), Lid::new(8)));
}

#[test]
fn what_was_said_of_a_port_holds_for_its_lids_alone() {
    let mut lmcs = SubnetLmcs::default();
    lmcs.learn(Lid::new(8), lmc(2));
    assert_eq!(answering(&lmcs, 11), [8, 11]);
    assert_eq!(answering(&lmcs, 12), [12]);
    assert_eq!(answering(&lmcs, 7), [7]);
    lmcs.set_own(lmc(1));
    assert_eq!(
        (lmcs.of(Lid::new(10)), lmcs.of(Lid::new(14))),
        (lmc(2), lmc(1))
    );
    lmcs.learn(Lid::new(14), lmc(0));
    assert_eq!(answering(&lmcs, 15), [14, 15]);
    lmcs.learn(Lid::new(15), lmc(0));
    assert_eq!(answering(&lmcs, 15), [15]);
    lmcs.forget();
    assert_eq!(lmcs.of(Lid::new(10)), lmc(1));
}

#[test]
fn what_is_said_later_replaces_what_it_overlaps() {
    let mut lmcs = SubnetLmcs::default();
    lmcs.learn(Lid::new(9), lmc(0));
    lmcs.learn(Lid::new(12), lmc(2));
    lmcs.learn(Lid::new(8), lmc(2));
    assert_eq!(answering(&lmcs, 9), [8, 9]);
    assert_eq!(lmcs.said.len(), 2);
    lmcs.learn(Lid::new(8), lmc(3));
    assert_eq!(answering(&lmcs, 13), [8, 13]);
    lmcs.learn(Lid::new(14), lmc(1));
    assert_eq!(answering(&lmcs, 13), [13]);
    assert_eq!(lmcs.said.len(), 1);
}

#[test]
fn a_range_that_no_port_can_have_is_ignored() {
    let mut lmcs = SubnetLmcs::default();
    for (base, bits) in [(0, 7), (9, 1), (12, 3), (0xc000, 0), (0xffff, 0)] {
        lmcs.learn(Lid::new(base), lmc(bits));
    }
    assert!(lmcs.said.is_empty());
    lmcs.learn(Lid::new(0xbf80), lmc(7));
    assert_eq!(lmcs.of(Lid::new(0xbfff)), lmc(7));
    assert_eq!(lmcs.of(Lid::new(0xc000)), lmc(0));
}
