//! VMMs in processes of their own, with VFs of one service or with worlds that trunks join to its fabric: the example `vmm`, whose
//! guests go on their tour together. Without KVM nothing is tested here.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use vhca_tests::cargo::leave_package;
use vhca_tests::effort::full;
use vhca_tests::live::{Lab, Machines, PATIENCE, Process};

/// Time for the tour of two guests on a busy machine, and for the build of their program.
const TOUR: Duration = Duration::from_secs(240);

/// Exit status of an example that cannot be tried here.
const NOT_RUN: i32 = 77;

/// Returns the example, which Cargo builds before it runs the tests of the workspace.
fn example() -> Option<PathBuf> {
    let tests = std::env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples/vmm");
    if !example.exists() {
        eprintln!("not tested: {} is not built", example.display());
        return None;
    }
    let usage = Command::new(&example).arg("none").output().unwrap();
    if usage.status.code() == Some(NOT_RUN) {
        eprintln!("not tested: there is no KVM");
        return None;
    }
    Some(example)
}

/// Starts two VMMs whose guests go on the tour by these ways, in one folder.
fn pair(folder: &Path, mut commands: [Command; 2], ways: [[&str; 2]; 2]) -> [Process; 2] {
    let mut number = 0;
    commands.each_mut().map(|command| {
        number += 1;
        leave_package(command);
        let command = command.arg("tour").args(ways[number - 1]);
        let command = command.args(["--with", "meet"]);
        Process::start(folder, &format!("vmm-{number}"), command)
    })
}

/// Waits until both have seen all of it.
fn wait_for_both(vmms: &mut [Process; 2]) {
    for vmm in vmms {
        let status = vmm.wait(TOUR);
        assert!(status.success(), "{status}: {}", vmm.output());
        assert!(vmm.output().contains("the driver unbinds"));
    }
}

/// Returns the processes that have VFs in the table of a service.
fn users(shown: &Value) -> Vec<u64> {
    let rows = shown["vmms"].as_array().unwrap();
    rows.iter().filter_map(|row| row["pid"].as_u64()).collect()
}

fn rounds() -> usize {
    full(1, 20)
}

#[test]
fn vmms_with_vfs_of_one_service_go_on_the_tour_and_one_that_is_killed_frees_its_vf() {
    let Some(example) = example() else { return };
    let folder = TempDir::new().unwrap();
    let vfs = folder.path().join("vfs");
    let lab = Lab::serve(&["--vfs", "1", "--vfio-user", vfs.to_str().unwrap()]);
    let sockets = ["H1-1", "H2-1"].map(|host| vfs.join(format!("{host}-vf1.sock")));
    let ways = sockets
        .each_ref()
        .map(|socket| ["--remote", socket.to_str().unwrap()]);
    let start = || {
        let commands = [Command::new(&example), Command::new(&example)];
        let vmms = pair(folder.path(), commands, ways);
        let pids = vmms.each_ref().map(|vmm| u64::from(vmm.id()));
        lab.wait_until(&["show", "vfs"], |shown| users(shown) == pids);
        vmms
    };
    for _ in 0..rounds() {
        wait_for_both(&mut start());
    }
    let [first, mut other] = start();
    first.signal("KILL");
    assert!(!other.wait(TOUR).success());
    lab.wait_until(&["show", "vfs"], |shown| users(shown).is_empty());
}

#[test]
fn vmms_whose_worlds_are_hosts_of_a_services_fabric_by_shared_memory_go_on_the_tour() {
    let Some(example) = example() else { return };
    let folder = TempDir::new().unwrap();
    let address = format!("vhost:{}", folder.path().join("trunk").display());
    let mut lab = Lab::serve(&["--trunk", &format!("S1=listen:{address}")]);
    for _ in 0..rounds() {
        let commands = [Command::new(&example), Command::new(&example)];
        let ways = [["--trunk", &address]; 2];
        wait_for_both(&mut pair(folder.path(), commands, ways));
    }
    let service = lab.service();
    service.wait_for_line("taken for a host", PATIENCE);
    service.wait_for_line("down: the connection ended", PATIENCE);
}

#[test]
fn vmms_on_two_machines_whose_worlds_are_hosts_of_a_services_fabric_go_on_the_tour() {
    let Some(example) = example() else { return };
    let machines = match Machines::new() {
        Ok(machines) => machines,
        Err(reason) => return eprintln!("not tested: {reason}"),
    };
    let folder = TempDir::new().unwrap();
    let trunks = ["S1=listen:tcp:[::]:18601", "S2=listen:tcp:[::]:18602"];
    let trunks = trunks.map(|trunk| ["--trunk", trunk]).concat();
    let _lab = Lab::serve_at(&machines, 0, &trunks);
    let ways = [18_601, 18_602].map(|port| format!("tcp:{}:{port}", Machines::address(0)));
    let ways = ways.each_ref().map(|way| ["--trunk", way]);
    for _ in 0..rounds() {
        let commands = [0, 1].map(|side| machines.on(side, example.to_str().unwrap()));
        wait_for_both(&mut pair(folder.path(), commands, ways));
    }
}
