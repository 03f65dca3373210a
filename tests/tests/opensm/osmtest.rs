//! Acceptance: the SA as OpenSM's own tester, `osmtest`, wants it: the embedded one, and OpenSM's, which the PF's mux of a host
//! with VFs stands before.

use std::process::Output;

use vhca_tests::live::{Lab, OpenSm, Shim};

use crate::bring_up::{FOUR_HOSTS, wait_until_all_up};

/// The flows of osmtest on a fabric with VFs, after the one that makes the inventory which others compare with.
const FLOWS: [&str; 7] = ["c", "m", "s", "e", "t", "q", "f"];

/// Those on one without. That of the inventory takes a path of an alias GUID for a wrong one, of OpenSM's SA as well.
const FLOWS_WITHOUT_VFS: [&str; 2] = ["c", "v"];

/// A host with VFs, and one without.
const HOSTS: [&str; 2] = ["H1-1", "mgmt"];

fn osmtest(lab: &Lab, host: &str, arguments: &[&str]) -> Output {
    let file = |name: &str| lab.dir().join(format!("{host}.{name}"));
    let mut command = lab.on(Shim::Vhca, host, &["osmtest"]);
    command.args(arguments);
    command.arg("-i").arg(file("inventory"));
    command.arg("-l").arg(file("osmtest.log"));
    command.output().expect("osmtest runs")
}

fn passes_from_all_hosts(lab: &Lab, flows: &[&str]) {
    for host in &HOSTS {
        for flow in flows {
            // The multicast flow takes the mode in which it leaves nothing of before untouched: "compliance of all fields".
            let arguments: &[&str] = match *flow {
                "m" => &["-f", "m", "-M", "2"],
                // It takes half a minute.
                "f" if *host != HOSTS[0] => continue,
                "f" => &["-f", "f", "-s", "4"],
                "t" => &["-f", "t", "-w", "1"],
                flow => &["-f", flow],
            };
            let output = osmtest(lab, host, arguments);
            let said = String::from_utf8_lossy(&output.stdout);
            println!("{host}: osmtest {arguments:?}: {}", output.status);
            let log = lab.dir().join(format!("{host}.osmtest.log"));
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            assert!(
                output.status.success() && said.contains("PASS"),
                "{host}: osmtest {arguments:?}: {}\n{said}{last:#?}",
                output.status,
            );
        }
    }
}

#[test]
fn osmtest_passes_with_opensm() {
    let lab = Lab::serve(&FOUR_HOSTS);
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "qos TRUE\n");
    sm.wait_for("SUBNET UP", 1);
    wait_until_all_up(&lab, 64);
    passes_from_all_hosts(&lab, &FLOWS);
}

#[test]
fn osmtest_passes_with_the_embedded_manager() {
    let lab = Lab::serve(&["--topology", "two-switch", "--vfs", "16", "--guests"]);
    wait_until_all_up(&lab, 64);
    passes_from_all_hosts(&lab, &FLOWS);
}

#[test]
fn osmtest_finds_the_inventory_as_it_is() {
    let without_vfs = ["--topology", "two-switch", "--vfs", "0"];
    let lab = Lab::serve(&[&without_vfs[..], &["--sm", "none"]].concat());
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "qos TRUE\n");
    sm.wait_for("SUBNET UP", 1);
    passes_from_all_hosts(&lab, &FLOWS_WITHOUT_VFS);
    drop(sm);
    let lab = Lab::serve(&without_vfs);
    lab.wait_until(&["show", "ports"], |shown| {
        let ports = shown["ports"].as_array().expect("a table").iter();
        let mut active = ports.filter(|port| port["state"] == "Active");
        HOSTS
            .iter()
            .all(|host| active.any(|port| port["node"] == *host))
    });
    passes_from_all_hosts(&lab, &FLOWS_WITHOUT_VFS);
}
