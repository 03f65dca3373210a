//! Acceptance: full and limited members of partitions, as OpenSM's manual page configures them, with
//! enforcement by the switches and without.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use vhca_tests::live::{Lab, OpenSm, PATIENCE, Shim, wait_for};

use crate::bring_up::{FOUR_HOSTS, rows, wait_until_all_up};

const MGID: &str = "ff12:4242::2";
/// The manual's first example: nobody but the subnet manager's port is a full member.
const MANUALS: &str = "Default=0x7fff, ipoib : ALL, SELF=full ;\n";

/// Four hosts of sixteen guests each under an OpenSM with these partitions and options, once all VFs
/// are up.
fn start(partitions: impl FnOnce(&Lab) -> String, options: &str) -> (Lab, OpenSm) {
    let lab = Lab::serve(&[&FOUR_HOSTS[..], &["--guests"]].concat());
    let file = lab.dir().join("partitions.conf");
    fs::write(&file, partitions(&lab)).unwrap();
    let config = format!("partition_config_file {}\n{options}", file.display());
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", &config);
    sm.wait_for("SUBNET UP", 1);
    wait_until_all_up(&lab, 64);
    (lab, sm)
}

/// The GUID of a host's port.
fn guid(lab: &Lab, host: &str) -> String {
    let told = lab.json(&["show", "ports", "--host", host]);
    rows(&told, "ports")[0]["guid"].as_str().unwrap().to_owned()
}

/// The P_Keys of a VF.
fn pkeys(lab: &Lab, host: &str, vf: u64) -> Vec<String> {
    let told = lab.json(&["show", "pkeys", "--host", host]);
    let of_vf = rows(&told, "pkeys").iter().filter(|row| row["vf"] == vf);
    let keys = of_vf.filter(|row| row["physical_index"] != Value::Null);
    keys.map(|row| row["pkey"].as_str().unwrap().to_owned())
        .collect()
}

/// The channel adapters that a program on a host sees, by their descriptions: those that share a
/// partition with the host, of which one is a full member. A guest there has a path to the manager's.
fn sees(lab: &Lab, host: &str) -> BTreeSet<String> {
    let text = lab.tool(Shim::Vhca, host, &["saquery", "NR"]);
    let field = |record: &str, name: &str| {
        let mut lines = record.lines();
        let value = lines.find_map(|line| line.trim().strip_prefix(name));
        value.unwrap().trim_start_matches('.').to_owned()
    };
    let records: Vec<&str> = text.split("dump:").skip(1).collect();
    let manager = records.iter().find(|record| record.contains("..mgmt\n"));
    let guid = field(manager.expect("the manager's"), "port_guid");
    let digits: Vec<char> = guid.trim_start_matches("0x").chars().collect();
    let groups: Vec<String> = digits
        .chunks(4)
        .map(|chunk| chunk.iter().collect())
        .collect();
    let gid = format!("fe80::{}", groups.join(":"));
    lab.told(&["guest", &format!("{host}/1"), "query", &gid]);
    let adapters = records
        .iter()
        .filter(|record| field(record, "node_type").contains("Channel"));
    adapters
        .map(|record| field(record, "NodeDescription"))
        .collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// The guests, by host and VF, that hear what another one sends to the group.
fn hear(lab: &Lab, mgid: &str, sender: &str, listeners: &[(&str, u64)]) -> Vec<bool> {
    let received = || -> Vec<u64> {
        let told = lab.json(&["guest", "all", "status"]);
        let of = |&(host, vf): &(&str, u64)| {
            let mut rows = rows(&told, "guests").iter();
            let row = rows.find(|row| row["host"] == *host && row["vf"] == vf);
            row.unwrap()["received"].as_u64().unwrap()
        };
        listeners.iter().map(of).collect()
    };
    let before = received();
    lab.told(&["guest", sender, "send", mgid, "who hears this?"]);
    let now = received();
    before
        .iter()
        .zip(&now)
        .map(|(then, now)| now > then)
        .collect()
}

/// Waits until a sender is heard by these listeners, and by no other.
fn wait_until_heard(
    lab: &Lab,
    mgid: &str,
    sender: &str,
    listeners: &[(&str, u64)],
    expected: &[bool],
) {
    let mut heard = Vec::new();
    let found = wait_for(PATIENCE, || {
        heard = hear(lab, mgid, sender, listeners);
        let wrong = heard
            .iter()
            .zip(expected)
            .any(|(heard, may)| *heard && !may);
        assert!(!wrong, "{sender} is heard by {heard:?} of {listeners:?}");
        (heard == expected).then_some(())
    });
    assert!(
        found.is_some(),
        "{sender} is heard by {heard:?} of {listeners:?}"
    );
}

/// Nobody told the manager of a packet in a wrong partition.
fn assert_quiet(sm: &OpenSm) {
    assert_eq!(sm.errors(), Vec::<String>::new());
    let log = sm.log();
    let traps = log
        .lines()
        .filter(|line| line.contains("num:257") || line.contains("num:259"));
    assert_eq!(traps.collect::<Vec<_>>(), Vec::<&str>::new());
}

fn limited_members_come_up(enforcement: &str) {
    let (lab, sm) = start(
        |_| MANUALS.to_owned(),
        &format!("part_enforce {enforcement}\n"),
    );
    for vf in [1, 16] {
        assert_eq!(pkeys(&lab, "H1-1", vf), ["0x7fff"]);
    }
    assert_eq!(sees(&lab, "H1-1"), names(&["H1-1", "mgmt"]));
    lab.told(&["guest", "H1-1/1", "join", MGID]);
    lab.told(&["guest", "H2-1/1", "join", MGID]);
    assert_quiet(&sm);
    let ports = lab.json(&["show", "counters"]);
    let is_mismatch = |row: &&Value| row.to_string().contains("pkey_mismatch");
    let mismatches: Vec<_> = rows(&ports, "counters")
        .iter()
        .filter(is_mismatch)
        .collect();
    assert!(mismatches.is_empty(), "{mismatches:#?}");
}

#[test]
fn limited_members_of_the_default_partition_come_up_with_enforcement_both_ways() {
    limited_members_come_up("both");
}

#[test]
fn limited_members_of_the_default_partition_come_up_with_enforcement_inward() {
    limited_members_come_up("in");
}

#[test]
fn limited_members_of_the_default_partition_come_up_with_enforcement_outward() {
    limited_members_come_up("out");
}

#[test]
fn limited_members_of_the_default_partition_come_up_without_enforcement() {
    limited_members_come_up("off");
}

#[test]
fn limited_vfs_reach_full_ones_and_not_each_other() {
    for enforcement in ["both", "off"] {
        let partitions = |lab: &Lab| {
            let full = guid(lab, "H2-1");
            format!("Default=0x7fff, ipoib : ALL, SELF=full, {full}=full ;\n")
        };
        let (lab, _sm) = start(partitions, &format!("part_enforce {enforcement}\n"));
        assert_eq!(pkeys(&lab, "H2-1", 1), ["0xffff"]);
        assert_eq!(sees(&lab, "H1-1"), names(&["H1-1", "H2-1", "mgmt"]));
        let all = ["H1-1", "H1-2", "H2-1", "H2-2", "mgmt", "mgmt-2"];
        assert_eq!(sees(&lab, "H2-1"), names(&all));
        lab.told(&["guest", "all", "join", MGID]);
        let listeners = [("H1-1", 2), ("H1-2", 1), ("H2-1", 2), ("H2-2", 1)];
        wait_until_heard(&lab, MGID, "H2-1/1", &listeners, &[true; 4]);
        wait_until_heard(
            &lab,
            MGID,
            "H1-1/1",
            &listeners,
            &[false, false, true, false],
        );
        wait_until_heard(&lab, MGID, "H2-1/1", &listeners, &[true; 4]);
    }
}

#[test]
fn a_vf_in_several_partitions_is_in_each_what_its_port_is() {
    let partitions = |lab: &Lab| {
        let [server, one, other] = ["H2-1", "H1-1", "H1-2"].map(|host| guid(lab, host));
        format!(
            "{MANUALS}\
             Storage=0x0123, ipoib : {server}=full, {one}, {other}=limited, SELF=full ;\n\
             Backup=0x0200, defmember=full : {server}, {one} ;\n"
        )
    };
    let (lab, sm) = start(partitions, "");
    let wanted = ["0xffff", "0x8123", "0x8200"];
    for (host, expected, seen) in [
        (
            "H2-1",
            &["0x7fff", "0x8123", "0x8200"][..],
            &["H1-1", "H1-2", "H2-1", "mgmt"][..],
        ),
        (
            "H1-1",
            &["0x7fff", "0x0123", "0x8200"],
            &["H1-1", "H2-1", "mgmt"],
        ),
        ("H1-2", &["0x7fff", "0x0123"], &["H1-2", "H2-1", "mgmt"]),
        ("H2-2", &["0x7fff"], &["H2-2", "mgmt"]),
    ] {
        let vf = format!("{host}/1");
        lab.told(&[&["set", "vf", &vf, "pkeys"], &wanted[..]].concat());
        assert_eq!(pkeys(&lab, host, 1), expected, "{host}");
        assert_eq!(sees(&lab, host), names(seen), "{host}");
    }
    assert_quiet(&sm);

    // A group is in the partition of the first key of the VF that makes it.
    let (storage, backup) = ("ff12:4242::123", "ff12:4242::200");
    for (mgid, keys, vfs) in [
        (
            storage,
            ["0x8123", "0xffff"],
            &["H2-1/2", "H1-1/2", "H1-2/2"][..],
        ),
        (backup, ["0x8200", "0xffff"], &["H2-1/3", "H1-1/3"]),
    ] {
        for vf in vfs {
            lab.told(&["set", "vf", vf, "pkeys", keys[0], keys[1]]);
            lab.told(&["guest", vf, "join", mgid]);
        }
    }
    let listeners = [
        ("H2-1", 2),
        ("H1-1", 2),
        ("H1-2", 2),
        ("H2-1", 3),
        ("H1-1", 3),
        ("H2-2", 2),
    ];
    for (mgid, sender, expected) in [
        (storage, "H2-1/2", [true, true, true, false, false, false]),
        (storage, "H1-1/2", [true, false, false, false, false, false]),
        (backup, "H2-1/3", [false, false, false, true, true, false]),
        (backup, "H1-1/3", [false, false, false, true, true, false]),
    ] {
        wait_until_heard(&lab, mgid, sender, &listeners, &expected);
    }
}

#[test]
fn vfs_of_a_port_with_both_memberships_have_the_one_that_they_were_given() {
    let partitions = |lab: &Lab| {
        let both = guid(lab, "H1-1");
        format!("Default=0x7fff, ipoib : ALL, SELF=full, {both}=both ;\n")
    };
    let (lab, sm) = start(partitions, "allow_both_pkeys TRUE\n");
    // OpenSM leaves the first place of a limited member's table empty then.
    lab.told(&["set", "vf", "all", "pkeys", "0xffff"]);
    lab.told(&["set", "vf", "H1-1/1", "pkeys", "0x7fff"]);
    assert_eq!(pkeys(&lab, "H1-1", 1), ["0x7fff"]);
    assert_eq!(pkeys(&lab, "H1-1", 2), ["0xffff"]);
    assert_eq!(pkeys(&lab, "H2-1", 1), ["0x7fff"]);
    assert!(sees(&lab, "H1-1").contains("H2-1"));
    // A program that asks under the port's first key, as saquery does, has none on the others then.
    let asked = lab.on(Shim::Vhca, "H1-2", &["saquery", "NR"]).output();
    assert!(!asked.unwrap().status.success());
    assert!(
        lab.told(&["show", "counters", "--host", "H1-2"])
            .contains("no_pkey")
    );
    assert_quiet(&sm);
    lab.told(&["guest", "all", "join", MGID]);
    let listeners = [("H1-1", 1), ("H1-1", 2), ("H2-1", 1)];
    wait_until_heard(&lab, MGID, "H1-1/2", &listeners, &[true; 3]);
    wait_until_heard(&lab, MGID, "H1-1/1", &listeners, &[false, true, false]);
}
