//! Mistakes of a user with a real QEMU, and what is said of them.

use std::time::Duration;

use serde_json::Value;
use vhca_tests::live::{PATIENCE, wait_for};

use crate::fabric::{Fabric, Manager};
use crate::guest::Boot;

/// Linux' mlx4 driver gives a command of a VF up after 60 s (`MLX4_CMD_TIME_CLASS_A`) and a reset after 10 more
/// (`MLX4_COMM_TIME`). A guest's first commands can pass before its memory is missed.
const GIVES_UP: Duration = Duration::from_secs(180);

const FABRIC: [&str; 4] = ["--topology", "single", "--vfs", "1"];

/// Why the VF is as it is. The command fails if something is missing.
fn why(fabric: &Fabric) -> Value {
    let output = fabric.lab.ask(&["why", "host-1/1", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_second_qemu_on_a_taken_socket_is_told_and_the_first_goes_on() {
    let fabric = Fabric::new(Manager::Lite, &FABRIC);
    let mut guest = fabric.guest("6.1", "host-1", 1);
    let second = Boot::new("6.1", fabric.device("host-1", 1));
    let failure = second
        .try_start(fabric.dir(), "second", Duration::from_secs(60))
        .unwrap_err()
        .to_string();
    let said = "host-1-vf1.sock: version reply: Device or resource busy";
    assert!(failure.contains(said), "{failure}");
    let vmm = fabric.vmm("host-1", 1);
    assert_eq!(vmm["refused"], 1);
    assert_eq!(vmm["pid"], guest.process.id());
    assert_eq!(why(&fabric)["code"], "ok");
    guest.told("ibstat | grep Active");
}

#[test]
fn a_guest_whose_memory_is_not_shared_is_told_of() {
    let fabric = Fabric::new(Manager::Lite, &FABRIC);
    let boot = Boot::new("6.1", fabric.device("host-1", 1)).with("--private-memory");
    let boot = boot.with("--append").with("vhca.load=no");
    let mut guest = boot.start(fabric.dir(), "private");
    // QEMU may be giving its memory anew just now.
    let vmm = wait_for(PATIENCE, || {
        let vmm = fabric.vmm("host-1", 1);
        let has_all = vmm["unshared_bytes"].as_u64() > Some(500 << 20);
        (has_all && why(&fabric)["code"] == "memory_not_shared").then_some(vmm)
    });
    let vmm = vmm.ok_or_else(|| why(&fabric)).unwrap();
    assert_eq!(vmm["shared_bytes"], 0, "{vmm}");

    let log = guest.told_within(GIVES_UP, "modprobe mlx4_core; dmesg | grep mlx4");
    assert!(log.contains("failed with error"), "{log}");
    let why = why(&fabric);
    assert_eq!(why["code"], "memory_not_shared", "{why}");
    assert!(why["next"].as_str().unwrap().contains("share=on"), "{why}");
}
