//! Acceptance: what the diagnostic tools print of the fabric.

use std::collections::{BTreeMap, BTreeSet};
use vhca_tests::live::{Lab, OpenSm, PATIENCE, Process, Shim, wait_for};

use crate::bring_up::{FOUR_HOSTS, rows, wait_until_all_up};

const ON: &str = "H1-1";

struct Managed {
    _sm: OpenSm,
    lab: Lab,
}

impl Managed {
    fn start() -> Self {
        let lab = Lab::serve(&FOUR_HOSTS);
        let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "qos TRUE\n");
        sm.wait_for("SUBNET UP", 1);
        wait_until_all_up(&lab, 64);
        Self { _sm: sm, lab }
    }

    fn tool(&self, program: &[&str]) -> String {
        self.lab.tool(Shim::Vhca, ON, program)
    }

    /// The LIDs of nodes by their names.
    fn lids(&self) -> BTreeMap<String, u64> {
        let told = self.lab.json(&["show", "fabric"]);
        let nodes = rows(&told, "nodes").iter();
        let with_lid = nodes.filter_map(|row| Some((row["node"].as_str()?, row["lid"].as_u64()?)));
        with_lid.map(|(name, lid)| (name.to_owned(), lid)).collect()
    }
}

/// The values of the lines `Name:.....value` of a tool.
fn values<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let of_line = |line: &'t str| {
        let (key, rest) = line.trim().split_once(':')?;
        let key = key.trim_end_matches('.');
        (key.trim() == name).then(|| rest.trim_start_matches('.').trim())
    };
    text.lines().filter_map(of_line).collect()
}

#[test]
fn the_tools_see_the_fabric_as_it_is() {
    let managed = Managed::start();
    let lids = managed.lids();
    let lid = |name: &str| lids[name].to_string();

    let found = managed.tool(&["ibnetdiscover"]);
    let nodes: BTreeSet<&str> = found
        .lines()
        .filter(|line| line.starts_with("Switch") || line.starts_with("Ca"))
        .filter_map(|line| line.split('"').nth(3))
        .collect();
    let all: BTreeSet<&str> = lids.keys().map(String::as_str).collect();
    assert_eq!(nodes, all, "{found}");

    let links = managed.tool(&["iblinkinfo", "-l"]);
    let cables = 2 + 4 + 2;
    assert_eq!(links.matches("LinkUp").count(), 2 * cables, "{links}");

    let errors = managed.tool(&["ibqueryerrors"]);
    assert!(
        errors.contains("Summary: 8 nodes checked, 0 bad nodes found"),
        "{errors}"
    );

    let table = managed.tool(&["ibroute", &lid("S1")]);
    for lid in lids.values() {
        assert!(table.contains(&format!("0x{lid:04x} ")), "{table}");
    }

    let route = managed.tool(&["ibtracert", &lid("H1-1"), &lid("H2-1")]);
    assert_eq!(route.lines().count(), 5, "{route}");
    let names: Vec<&str> = route.lines().filter_map(|l| l.split('"').nth(1)).collect();
    assert_eq!(names, ["H1-1", "S1", "S2", "H2-1", "H2-1"], "{route}");

    let info = managed.tool(&["sminfo"]);
    assert!(info.contains("state 3 SMINFO_MASTER"), "{info}");
    assert!(info.contains(&format!("sm lid {} ", lid("mgmt"))), "{info}");
}

#[test]
fn smpquery_reads_every_attribute() {
    let managed = Managed::start();
    let lids = managed.lids();
    let (host, switch) = (lids["H2-1"].to_string(), lids["S1"].to_string());
    let ask = |operation: &[&str]| managed.tool(&[&["smpquery"], operation].concat());

    let info = ask(&["nodeinfo", &host]);
    assert_eq!(values(&info, "NodeType"), ["Channel Adapter"], "{info}");
    let info = ask(&["nodedesc", &host]);
    assert_eq!(values(&info, "Node Description"), ["H2-1"], "{info}");
    let info = ask(&["portinfo", &host, "1"]);
    assert_eq!(values(&info, "LinkState"), ["Active"], "{info}");
    assert_eq!(values(&info, "PhysLinkState"), ["LinkUp"], "{info}");
    assert_eq!(values(&info, "Lid"), [host.as_str()], "{info}");
    assert_eq!(values(&info, "SMLid"), [lids["mgmt"].to_string()], "{info}");
    let info = ask(&["switchinfo", &switch]);
    let top = lids.values().max().unwrap().to_string();
    assert_eq!(values(&info, "LinearFdbTop"), [top], "{info}");
    let info = ask(&["pkeys", &host, "1"]);
    assert!(info.contains("0xffff"), "{info}");
    let info = ask(&["sl2vl", &switch, "1"]);
    assert!(info.contains("# SL2VL table"), "{info}");
    let info = ask(&["vlarb", &host, "1"]);
    assert!(info.contains("# VLArbitration tables"), "{info}");
    let info = ask(&["guidinfo", &host]);
    assert!(info.contains("0x001405"), "the VFs' GUIDs: {info}");
}

#[test]
fn perfquery_reads_and_resets_counters() {
    let managed = Managed::start();
    let lids = managed.lids();
    let (host, switch) = (lids["H2-1"].to_string(), lids["S1"].to_string());
    let plain = managed.tool(&["perfquery", &host, "1"]);
    let sent: u64 = values(&plain, "PortXmitPkts")[0].parse().unwrap();
    assert!(sent > 0, "{plain}");
    let extended = managed.tool(&["perfquery", "-x", &host, "1"]);
    let wide: u64 = values(&extended, "PortXmitPkts")[0].parse().unwrap();
    assert!(wide >= sent, "{extended}");
    managed.tool(&["perfquery", "-R", &host, "1"]);
    let after = managed.tool(&["perfquery", &host, "1"]);
    let left: u64 = values(&after, "PortXmitPkts")[0].parse().unwrap();
    assert!(left < sent, "{after}");
    let all = managed.tool(&["perfquery", &switch, "255"]);
    assert!(
        values(&all, "PortXmitPkts")[0].parse::<u64>().unwrap() > 0,
        "{all}"
    );
}

#[test]
fn pings_and_port_states() {
    let managed = Managed::start();
    let lids = managed.lids();
    let mut server = managed.lab.on(Shim::Vhca, "H2-1", &["ibping", "-S"]);
    let _server = Process::start(managed.lab.dir(), "ibping", &mut server);
    let found = wait_for(PATIENCE, || {
        let target = lids["H2-1"].to_string();
        let ping = ["ibping", "-c", "3", &target];
        let output = managed.lab.on(Shim::Vhca, ON, &ping).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains("3 packets transmitted, 3 received, 0% packet loss")
            .then_some(())
    });
    assert!(found.is_some(), "no answer to ibping");
    let state = managed.tool(&["ibportstate", &lids["S1"].to_string(), "1", "query"]);
    assert_eq!(values(&state, "LinkState")[0], "Active", "{state}");
    assert!(state.contains("Peer PortInfo"), "{state}");
}
