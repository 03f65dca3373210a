//! Acceptance: what `saquery` reads, in tables of any length.

use std::collections::BTreeSet;
use vhca_tests::live::{Lab, OpenSm, Shim};

use crate::bring_up::{FOUR_HOSTS, wait_until_all_up};

/// Enough end ports for more than 500 pairs: 16 hosts and 20 switches.
const MANY_PORTS: [&str; 6] = ["--topology", "fat-tree:4:16", "--vfs", "0", "--sm", "none"];

/// The records of a table as `saquery` dumps it: each by its lines.
fn records(text: &str) -> Vec<Vec<String>> {
    let mut records: Vec<Vec<String>> = Vec::new();
    for line in text.lines() {
        if line.contains("dump:") {
            records.push(Vec::new());
        } else if let Some(record) = records.last_mut() {
            record.push(line.trim().to_owned());
        }
    }
    records
}

/// A field of a record, by the name before its dots.
fn field<'r>(record: &'r [String], name: &str) -> &'r str {
    let mut values = record.iter().filter_map(|line| line.strip_prefix(name));
    let value = values
        .next()
        .unwrap_or_else(|| panic!("no {name} in {record:?}"));
    value.trim_start_matches('.').trim()
}

#[test]
fn every_record_can_be_read() {
    let lab = Lab::serve(&FOUR_HOSTS);
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "qos TRUE\n");
    sm.wait_for("SUBNET UP", 1);
    wait_until_all_up(&lab, 64);
    let count = |of: &[&str]| records(&lab.tool(Shim::Vhca, "H1-1", of)).len();
    for (name, at_least) in [
        ("NR", 7),
        ("PIR", 23),
        ("PR", 49),
        ("LR", 14),
        ("SL2VL", 7),
        ("VLAR", 7),
        ("LFTR", 2),
        ("MCMR", 1),
        ("GIR", 8),
        ("SMIR", 1),
        ("SWIR", 2),
    ] {
        let found = count(&["saquery", name]);
        assert!(found >= at_least, "{found} records of {name}");
    }
    // P_Key tables are for those who know the SM_Key.
    let keys = count(&["saquery", "--smkey", "1", "PKTR"]);
    assert!(keys >= 5, "{keys} P_Key tables");
    let info = lab.tool(Shim::Vhca, "H1-1", &["saquery", "CPI"]);
    assert!(info.contains("Capability mask"), "{info}");
}

#[test]
fn a_table_of_more_than_500_paths_arrives_whole() {
    let lab = Lab::serve(&MANY_PORTS);
    let manager = "host-0";
    let sm = OpenSm::start(&lab, Shim::Vhca, manager, "");
    sm.wait_for("SUBNET UP", 1);
    let text = lab.tool(Shim::Vhca, manager, &["saquery", "PR"]);
    let paths = records(&text);
    let pairs: BTreeSet<(String, String)> = paths
        .iter()
        .map(|path| {
            (
                field(path, "slid").to_owned(),
                field(path, "dlid").to_owned(),
            )
        })
        .collect();
    assert_eq!(pairs.len(), paths.len(), "each pair once");
    let ports = 16 + 20;
    assert_eq!(paths.len(), ports * ports);
    // What the SA says of a pair by itself is what stood in the table.
    for path in paths.iter().step_by(97) {
        let (from, to) = (field(path, "slid"), field(path, "dlid"));
        let ask = ["saquery", "PR", "--slid", from, "--dlid", to];
        let alone = lab.tool(Shim::Vhca, manager, &ask);
        assert_eq!(
            records(&alone),
            std::slice::from_ref(path),
            "{from} to {to}"
        );
    }
}
