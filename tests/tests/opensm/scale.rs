//! Acceptance: OpenSM brings up a thousand hosts. What that costs the server is printed here, and recorded
//! in BENCHMARKS.md.

use std::fs;
use std::time::{Duration, Instant};

use vhca_tests::live::{Lab, OpenSm, Shim};

/// The time that a process has been on a processor, of its first thread.
fn processor_time(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("a running process");
    let nanoseconds = text.split_whitespace().next().expect("a number");
    Duration::from_nanos(nanoseconds.parse().expect("a number"))
}

#[test]
fn a_thousand_hosts_come_up() {
    let mut lab = Lab::serve(&[
        "--topology",
        "fat-tree:16:1000",
        "--vfs",
        "0",
        "--sm",
        "none",
    ]);
    let server = lab.service().id();
    let before = processor_time(server);
    let began = Instant::now();
    let sm = OpenSm::start(&lab, Shim::Vhca, "host-0", "");
    sm.wait_for("SUBNET UP", 1);
    let (wall, ours) = (began.elapsed(), processor_time(server) - before);
    let share = ours.as_secs_f64() / wall.as_secs_f64();
    println!(
        "1000 hosts and 320 switches up {wall:.2?} after OpenSM's start; the server computed for \
         {ours:.2?}, {:.0} % of it",
        share * 100.0
    );
    assert_eq!(sm.errors(), Vec::<String>::new());
}
