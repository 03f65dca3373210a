//! Acceptance: a switch with as many ports as the standard has numbers for is used whole.

use std::fmt::Write;
use std::fs;

use vhca_tests::live::{Lab, OpenSm, PATIENCE, Shim, wait_for};

use crate::bring_up::{rows, wait_until_all_up};

const MGID: &str = "ff12:4242::1";

/// Ports of the switch at which masks of 64 and of 128 bits begin and end, and the last.
const PORTS: [u8; 7] = [1, 63, 64, 127, 128, 253, 254];

#[test]
fn hosts_at_all_ends_of_a_switch_of_254_ports_come_up_and_hear_each_other() {
    let hosts = PORTS.map(|port| (port, format!("H{port}")));
    let mut switch = "Switch 254 \"wide\"\n[2] \"mgmt\"[1]\n".to_owned();
    let mut net = "Hca 1 \"mgmt\"\n[1] \"wide\"[2]\n".to_owned();
    for (port, host) in &hosts {
        writeln!(switch, "[{port}] \"{host}\"[1]").unwrap();
        writeln!(net, "\nHca 1 \"{host}\"\n[1] \"wide\"[{port}]").unwrap();
    }
    net.insert_str(0, &format!("{switch}\n"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wide.net");
    fs::write(&file, net).unwrap();
    let file = file.to_str().unwrap();
    let lab = Lab::serve(&["--topology", file, "--vfs", "1", "--sm", "none", "--guests"]);
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "");
    sm.wait_for("SUBNET UP", 1);
    wait_until_all_up(&lab, PORTS.len());

    let found = lab.tool(Shim::Vhca, "mgmt", &["ibnetdiscover"]);
    for port in PORTS {
        let line = format!("[{port}]\t\"H-");
        assert!(found.contains(&line), "nobody at port {port}: {found}");
    }

    lab.told(&["guest", "all", "join", MGID]);
    let heard = || {
        let told = lab.json(&["guest", "all", "status"]);
        let hearing = rows(&told, "guests").iter();
        let others = hearing.filter(|row| row["host"] != "H254");
        let hearing = others.filter(|row| row["received"].as_u64().unwrap() > 0);
        hearing.count()
    };
    // OpenSM writes the multicast tables after it answered; then all hear the one at the last port.
    let reached = wait_for(PATIENCE, || {
        lab.told(&["guest", "H254/1", "send", MGID, "to all"]);
        (heard() == PORTS.len() - 1).then_some(())
    });
    assert!(reached.is_some(), "only {} hear it", heard());
    assert_eq!(sm.errors(), Vec::<String>::new());
}
