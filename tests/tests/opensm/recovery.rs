//! Acceptance: what becomes of VFs when the subnet changes under them.

use std::fs;
use std::time::Instant;

use serde_json::Value;
use vhca_tests::live::{Lab, OpenSm, PATIENCE, Shim, wait_for};

use crate::bring_up::{rows, wait_until_all_up};

const MGID: &str = "ff12:4242::2";

/// Four hosts of eight VFs, and two without any: for a manager and one that stands by.
const FOUR_HOSTS: [&str; 7] = [
    "--topology",
    "two-switch",
    "--vfs",
    "8",
    "--guests",
    "--sm",
    "none",
];
const STANDBY: &str = "mgmt-2";
const VFS: usize = 32;
const HOSTS: usize = 4;

/// Requests to the SA that a host may need to have everything again: two blocks of GUIDs, a group,
/// and each of them once more.
const REQUESTS_OF_A_HOST: u64 = 8;

fn start() -> (Lab, OpenSm) {
    let lab = Lab::serve(&FOUR_HOSTS);
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "");
    sm.wait_for("SUBNET UP", 1);
    wait_until_all_up(&lab, VFS);
    lab.told(&["guest", "all", "join", MGID]);
    wait_for_members(&lab, STANDBY);
    (lab, sm)
}

/// Waits until the port of each host is a member of the group, as the SA tells it.
fn wait_for_members(lab: &Lab, on: &str) {
    let found = wait_for(PATIENCE, || {
        let ask = ["saquery", "-m", "--smkey", "1"];
        let table = lab.on(Shim::Vhca, on, &ask).output().unwrap();
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        let groups = table
            .matches(&format!("MGID....................{MGID}"))
            .count();
        (groups == HOSTS).then_some(())
    });
    assert!(found.is_some(), "the group has not all of its members");
}

/// The GUIDs of all VFs, in their order.
fn guids(lab: &Lab) -> Vec<Value> {
    let told = lab.json(&["show", "vfs"]);
    rows(&told, "vfs")
        .iter()
        .map(|row| row["guid"].clone())
        .collect()
}

/// MADs of the SA's class that the hosts and their VFs have sent.
fn sa_requests(lab: &Lab) -> u64 {
    let told = lab.json(&["show", "counters"]);
    let sent = rows(&told, "counters").iter();
    let sent = sent.filter(|row| row["class"] == "sa" && row["verdict"] == "to_wire");
    sent.map(|row| row["count"].as_u64().unwrap()).sum()
}

/// Returns `true` once a datagram of one guest reaches all the others, however often it has to send.
fn group_works(lab: &Lab) -> bool {
    let received = || -> Vec<u64> {
        let told = lab.json(&["guest", "all", "status"]);
        let guests = rows(&told, "guests").iter();
        guests
            .map(|row| row["received"].as_u64().unwrap())
            .collect()
    };
    let before = received();
    let heard = |now: &[u64]| {
        before
            .iter()
            .zip(now)
            .filter(|(then, now)| now > then)
            .count()
    };
    wait_for(PATIENCE, || {
        lab.told(&["guest", "H1-1/1", "send", MGID, "still there?"]);
        (heard(&received()) >= VFS - 1).then_some(())
    })
    .is_some()
}

#[test]
fn a_killed_manager_and_a_new_one_leave_everything_as_it_was() {
    let (lab, mut sm) = start();
    let before = guids(&lab);
    sm.process.signal("KILL");
    sm.process.wait(PATIENCE);
    assert!(group_works(&lab), "the fabric works without a manager");

    let requests = sa_requests(&lab);
    let began = Instant::now();
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "");
    sm.wait_for("SUBNET UP", 1);
    wait_for_members(&lab, STANDBY);
    let took = began.elapsed();
    let all_there = lab.tool(Shim::Vhca, "mgmt", &["saquery", "GIR"]);
    for guid in &before {
        assert!(
            all_there.contains(guid.as_str().unwrap()),
            "{guid} at the new SA"
        );
    }
    assert_eq!(guids(&lab), before, "every VF kept its GUID");
    let requests = sa_requests(&lab) - requests;
    println!("served again after {took:.1?} from the start of OpenSM; {requests} SA requests");
    assert!(
        requests <= REQUESTS_OF_A_HOST * HOSTS as u64,
        "{requests} SA requests"
    );
    assert!(group_works(&lab));
    assert_eq!(sm.errors(), Vec::<String>::new());
}

#[test]
fn a_standby_takes_over_from_a_manager_that_ends() {
    let (lab, mut sm) = start();
    let before = guids(&lab);
    let patient = "sminfo_polling_timeout 500\npolling_retry_number 2\n";
    let standby = OpenSm::start(&lab, Shim::Vhca, STANDBY, patient);
    standby.wait_for("Entering STANDBY state", 1);
    let requests = sa_requests(&lab);
    let began = Instant::now();
    sm.process.signal("TERM");
    sm.process.wait(PATIENCE);
    standby.wait_for("SUBNET UP", 1);
    wait_for_members(&lab, STANDBY);
    let took = began.elapsed();
    assert_eq!(guids(&lab), before, "every VF kept its GUID");
    let requests = sa_requests(&lab) - requests;
    println!("the standby serves after {took:.1?}; {requests} SA requests");
    assert!(
        requests <= REQUESTS_OF_A_HOST * HOSTS as u64,
        "{requests} SA requests"
    );
    assert!(group_works(&lab));
}

#[test]
fn a_cable_that_comes_back_brings_its_vfs_back() {
    let (lab, sm) = start();
    let before = guids(&lab);
    lab.told(&["set", "link", "H1-1/1", "down"]);
    lab.wait_until(&["show", "vfs", "--host", "H1-1"], |told| {
        let mut rows = rows(told, "vfs").iter();
        rows.all(|row| row["up"] == false && row["reason"] == "physical_down")
    });
    // OpenSM hears of it by a trap, and sweeps.
    sm.wait_for("SUBNET UP", 2);
    let began = Instant::now();
    let sweeps = sm.count("SUBNET UP");
    lab.told(&["set", "link", "H1-1/1", "up"]);
    sm.wait_for("SUBNET UP", sweeps + 1);
    wait_until_all_up(&lab, VFS);
    wait_for_members(&lab, STANDBY);
    println!("the VFs of the host are back after {:.1?}", began.elapsed());
    assert_eq!(guids(&lab), before, "every VF kept its GUID");
    assert!(group_works(&lab));
}

#[test]
fn a_partition_that_is_taken_away_is_gone_from_the_vf_that_had_it() {
    let lab = Lab::serve(&FOUR_HOSTS);
    let partitions = lab.dir().join("partitions.conf");
    let everybody = "Default=0x7fff, ipoib : ALL=full, SELF=full;\n";
    let secret = "Secret=0x0123 : 0x0002c90300000301=full;\n";
    fs::write(&partitions, format!("{everybody}{secret}")).unwrap();
    let config = format!("partition_config_file {}\n", partitions.display());
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", &config);
    sm.wait_for("SUBNET UP", 1);
    wait_until_all_up(&lab, VFS);

    lab.told(&["set", "vf", "H1-1/1", "pkeys", "0xffff", "0x8123"]);
    let has_it = |told: &Value| {
        let mut rows = rows(told, "pkeys").iter();
        rows.any(|row| row["vf"] == 1 && row["pkey"] == "0x8123")
    };
    lab.wait_until(&["show", "pkeys", "--host", "H1-1"], has_it);

    let began = Instant::now();
    fs::write(&partitions, everybody).unwrap();
    let pid = sm.process.id().to_string();
    let told = std::process::Command::new("kill")
        .args(["-HUP", &pid])
        .status();
    assert!(told.unwrap().success());
    lab.wait_until(&["show", "pkeys", "--host", "H1-1"], |told| !has_it(told));
    println!("the partition is gone after {:.1?}", began.elapsed());
    let why = lab.ask(&["why", "H1-1/1", "--json"]);
    assert_eq!(why.status.code(), Some(1), "something is wrong");
    let why: Value = serde_json::from_slice(&why.stdout).unwrap();
    assert_eq!(why["code"], "pkey_missing", "{why:#}");
}
