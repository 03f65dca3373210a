//! Examples of programs that hold VFs, in virtual time.

#[path = "../examples/block_target.rs"]
#[expect(dead_code, reason = "the example's main prints what a test compares")]
mod block_target;
#[path = "../examples/scatter_list.rs"]
#[expect(dead_code, reason = "the example's main prints what a test compares")]
mod scatter_list;

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

/// By keys two requests of two entries: pages that follow each other are one. One region holds the list, as no page inside is in part.
#[test]
fn a_scatter_list_is_written_by_keys_and_by_registrations() {
    let log = scatter_list::write_lists(3).unwrap();
    let counts = log.lines().map(|line| line.split(':').next().unwrap());
    let expected = ["2 requests, 0 regions", "3 requests, 1 regions"];
    assert_eq!(counts.collect::<Vec<_>>(), expected);
    assert_eq!(scatter_list::write_lists(3).unwrap(), log);
}
