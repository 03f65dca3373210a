//! Acceptance: OpenSM brings the fabric up, and every VF gets a GUID from it.

use std::collections::BTreeSet;

use serde_json::Value;
use vhca_tests::live::{Lab, OpenSm, Shim};

/// Four hosts of sixteen VFs, and two management hosts.
pub(crate) const FOUR_HOSTS: [&str; 6] =
    ["--topology", "two-switch", "--vfs", "16", "--sm", "none"];

/// The rows of a table.
pub(crate) fn rows<'v>(told: &'v Value, table: &str) -> &'v [Value] {
    told[table].as_array().expect("a table")
}

/// Waits until the ports of all VFs are up, and gives their GUIDs.
pub(crate) fn wait_until_all_up(lab: &Lab, vfs: usize) -> BTreeSet<String> {
    let told = lab.wait_until(&["show", "vfs"], |told| {
        let rows = rows(told, "vfs");
        rows.len() == vfs && rows.iter().all(|row| row["up"] == true)
    });
    let guids = rows(&told, "vfs").iter().map(|row| &row["guid"]);
    guids
        .map(|guid| guid.as_str().unwrap().to_owned())
        .collect()
}

fn sixteen_vfs_of_each_of_four_hosts_come_up(shim: Shim) {
    let lab = Lab::serve(&FOUR_HOSTS);
    let told = lab.json(&["show", "vfs"]);
    let reasons = rows(&told, "vfs").iter().map(|row| &row["reason"]);
    assert!(reasons.clone().all(|reason| reason == "physical_down"));
    assert_eq!(reasons.len(), 64);

    let sm = OpenSm::start(&lab, shim, "mgmt", "");
    sm.wait_for("SUBNET UP", 1);
    let guids = wait_until_all_up(&lab, 64);
    assert_eq!(guids.len(), 64, "each has a GUID of its own");
    let from_opensm = |guid: &String| guid.starts_with("0x001405");
    assert!(guids.iter().all(from_opensm), "{guids:?}");
    assert_eq!(sm.errors(), Vec::<String>::new());
}

#[test]
fn sixty_four_vfs_come_up_under_opensm() {
    sixteen_vfs_of_each_of_four_hosts_come_up(Shim::Vhca);
}

#[test]
fn both_ports_of_254_vfs_of_two_hosts_come_up_under_opensm() {
    let lab = Lab::serve(&["--topology", "three-switch", "--vfs", "254", "--sm", "none"]);
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "");
    sm.wait_for("SUBNET UP", 1);
    let guids = wait_until_all_up(&lab, 2 * 2 * 254);
    assert_eq!(guids.len(), 2 * 2 * 254, "each has a GUID of its own");
    assert_eq!(sm.errors(), Vec::<String>::new());
}

#[test]
fn sixty_four_vfs_come_up_under_opensm_with_the_simulators_own_preload() {
    sixteen_vfs_of_each_of_four_hosts_come_up(Shim::Umad2sim);
}
