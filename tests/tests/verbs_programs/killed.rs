//! Programs that come and go by the hundred, and are killed amid their work.

use std::fs;
use std::ops::RangeFrom;
use std::time::{Duration, Instant};

use vhca_tests::effort::full;
use vhca_tests::live::{Lab, PATIENCE, Process, Shim, wait_for};

use super::wait_until_up;

/// VFs of each of the four hosts.
const VFS: usize = 32;
/// TCP ports of the programs, which no other test uses, and none of which is left open by a connection.
const PORTS: RangeFrom<u16> = 31_000..;
/// Kilobytes by which the service's memory may differ between rounds: freed memory that its allocator keeps.
const SLACK: u64 = 8 << 10;

/// Returns the service's resident memory in kilobytes, and the number of its descriptors.
fn resources(lab: &mut Lab) -> (u64, usize) {
    let process = format!("/proc/{}", lab.service().id());
    let status = fs::read_to_string(format!("{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = line.unwrap().split_whitespace().next().unwrap();
    let descriptors = fs::read_dir(format!("{process}/fd")).unwrap().count();
    (memory.parse().unwrap(), descriptors)
}

/// Waits until so many VFs have a process with a queue pair.
fn wait_until_taken(lab: &Lab, expected: usize) {
    lab.wait_until(&["show", "programs"], |shown| {
        let programs = shown["programs"].as_array().unwrap();
        let taken = programs.iter().filter(|row| !row["pid"].is_null());
        if expected == 0 {
            return taken.count() == 0;
        }
        let working = taken.filter(|row| row["qps"].as_u64() > Some(0));
        working.count() == expected
    });
}

/// Rounds of 128 processes; with `VHCA_FULL=1` for ten minutes.
#[test]
fn the_service_keeps_nothing_of_programs_that_are_killed() {
    let mut lab = Lab::serve(&["--verbs", "--vfs", &VFS.to_string()]);
    wait_until_up(&lab);
    let rows = lab.json(&["show", "vfs"]);
    let nodes = rows["vfs"].as_array().unwrap().iter();
    let nodes: Vec<String> = nodes
        .map(|row| format!("{}/{}", row["host"].as_str().unwrap(), row["vf"]))
        .collect();
    assert_eq!(nodes.len(), 4 * VFS, "{rows}");
    let span = Duration::from_secs(full(5, 600));
    let (started, mut first, mut rounds) = (Instant::now(), None, 0);
    while rounds < 3 || started.elapsed() < span {
        let programs: Vec<Process> = nodes
            .iter()
            .zip(PORTS)
            .map(|(node, port)| {
                let port = port.to_string();
                let words = ["ibv_rc_pingpong", "-e", "-p", &port];
                Process::start(lab.dir(), "killed", &mut lab.on(Shim::Vhca, node, &words))
            })
            .collect();
        wait_until_taken(&lab, nodes.len());
        // With SIGKILL, all at once.
        drop(programs);
        wait_until_taken(&lab, 0);
        rounds += 1;
        if first.is_none() {
            first = Some(resources(&mut lab));
            continue;
        }
        let (memory, descriptors) = first.unwrap();
        let flat = wait_for(PATIENCE, || {
            let now = resources(&mut lab);
            (now.0 <= memory + SLACK && now.1 <= descriptors).then_some(())
        });
        let now = resources(&mut lab);
        assert!(
            flat.is_some(),
            "after {rounds} rounds {now:?}, and {first:?} after the first"
        );
    }
    eprintln!(
        "{rounds} rounds: kB and descriptors {:?}, {first:?} after the first",
        resources(&mut lab)
    );
}
