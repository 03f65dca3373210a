//! Examples of programs that hold VFs, in virtual time.

#[path = "../examples/block_target.rs"]
#[expect(dead_code, reason = "the example's main prints what a test compares")]
mod block_target;

#[test]
fn a_block_target_serves_two_clients_over_links_that_lose_packets_and_alike_from_one_seed() {
    let log = block_target::serve(7).unwrap();
    let writes = log.lines().filter(|line| line.contains(" write "));
    let reads = log.lines().filter(|line| line.contains(" read "));
    assert_eq!((writes.count(), reads.count()), (12, 12));
    assert!(log.lines().all(|line| line.contains(" Done, ")));
    assert_eq!(block_target::serve(7).unwrap(), log);
    assert_ne!(block_target::serve(8).unwrap(), log);
}
