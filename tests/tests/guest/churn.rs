//! Acceptance: drivers, guests and the service come and go, and nobody else notices.

use std::fs;

use vhca_tests::live::{PATIENCE, wait_for};

use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest};
use crate::ip::{address, bring_up, number_before};
use crate::pings;

/// How much memory the service may come to use between the first round and the last: what the allocator keeps.
const SLACK_KIB: u64 = 16 * 1024;

/// Takes the driver out of the kernel and puts it back.
const RELOAD: &str =
    "modprobe -r mlx4_ib && modprobe -r mlx4_core && modprobe mlx4_core && modprobe mlx4_ib";

/// The resident memory of a process.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    number_before(status.split("VmRSS:").nth(1).unwrap(), "kB")
}

/// What the service holds for a VF.
pub(crate) fn held(fabric: &Fabric, host: &str, vf: u16) -> Vec<String> {
    let rows = fabric.rows("vfs", host);
    let row = rows.iter().find(|row| row["vf"] == vf).unwrap();
    let columns = ["cm_ids", "cm_pending", "groups", "subscriptions", "queued"];
    columns
        .map(|column| format!("{column} {}", row[column]))
        .into()
}

pub(crate) fn reload(guest: &mut Guest) {
    guest.told(RELOAD);
    guest.wait_for_port();
}

#[test]
fn a_guest_comes_and_goes_in_every_way_and_others_lose_no_ping() {
    let mut fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", "2"]);
    let restless = Boot::new("6.1", fabric.device("H1-1", 1)).with("--may-reboot");
    let mut calm = fabric.guests("6.1", [("H1-1", 2), ("H2-1", 1)]);
    bring_up(&mut calm);
    pings::start(&mut calm[0], &address(1));

    let mut guest = restless.start(fabric.dir(), "restless");
    guest.wait_for_port();
    reload(&mut guest);
    let service = fabric.lab.service().id();
    let before = (held(&fabric, "H1-1", 1), resident_kib(service));

    for _ in 0..full(3, 50) {
        reload(&mut guest);
    }
    guest.reboot();
    guest.wait_for_port();
    for _ in 0..full(3, 50) {
        guest.process.signal("KILL");
        guest.process.wait(PATIENCE);
        guest = restless.start(fabric.dir(), "restless");
        guest.wait_for_port();
    }

    reload(&mut guest);
    let after = (held(&fabric, "H1-1", 1), resident_kib(service));
    println!(
        "held by the VF {:?}, then {:?}; resident {} KiB, then {} KiB",
        before.0, after.0, before.1, after.1
    );
    assert_eq!(after.0, before.0);
    assert!(
        after.1 < before.1 + SLACK_KIB,
        "{} KiB, then {} KiB",
        before.1,
        after.1
    );

    let pings = pings::end(&mut calm[0]);
    assert!(pings.sent > 100 && pings.lost() == 0, "{pings:?}");
}

#[test]
fn a_service_that_was_killed_is_told_by_qemu_and_the_next_one_serves_the_next_guest() {
    let mut fabric = Fabric::new(Manager::Lite, &["--topology", "single", "--vfs", "1"]);
    let guest = fabric.guest("6.1", "host-1", 1);
    fabric.lab.service().signal("KILL");
    fabric.restart();
    // QEMU does not connect again: its guest has lost the device for good.
    let told = wait_for(PATIENCE, || {
        guest.process.output().contains("EOF").then_some(())
    });
    assert!(told.is_some(), "{}", guest.process.output());
    drop(guest);
    fabric.guest("6.1", "host-1", 1);
}
