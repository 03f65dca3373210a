//! Acceptance: all VFs of a host ask for all paths at once.

use vhca_tests::live::{Lab, OpenSm, Shim};

use crate::bring_up::{rows, wait_until_all_up};

const VFS: u64 = 126;
const EACH: u64 = 1000;
const DESTINATIONS: u64 = 200;

/// MADs of the SA's class that VFs have sent out by the port.
fn sa_requests(lab: &Lab) -> u64 {
    let told = lab.json(&["show", "counters"]);
    let sent = rows(&told, "counters")
        .iter()
        .filter(|row| row["vf"] != "pf" && row["class"] == "sa" && row["verdict"] == "to_wire");
    sent.map(|row| row["count"].as_u64().unwrap()).sum()
}

#[test]
fn a_boot_storm_asks_the_sa_for_no_path_twice() {
    let lab = Lab::serve(&[
        "--topology",
        "fat-tree:12:201",
        "--manager",
        "host-0",
        "--pf",
        "host-1",
        "--vfs",
        "126",
        "--guests",
        "--sm",
        "none",
    ]);
    let sm = OpenSm::start(&lab, Shim::Vhca, "host-0", "");
    sm.wait_for("SUBNET UP", 1);
    wait_until_all_up(&lab, 126);

    let before = sa_requests(&lab);
    let told = lab.json(&[
        "guest",
        "all",
        "paths",
        "--count",
        "1000",
        "--destinations",
        "200",
    ]);
    let guests = rows(&told, "guests");
    assert_eq!(guests.len() as u64, VFS);
    let answered: u64 = guests
        .iter()
        .map(|row| row["answered"].as_u64().unwrap())
        .sum();
    assert_eq!(answered, VFS * EACH, "{guests:#?}");
    let longest = guests.iter().map(|row| row["took_ms"].as_f64().unwrap());
    let longest = longest.fold(0.0, f64::max);
    let asked = sa_requests(&lab) - before;
    println!(
        "{} queries of {VFS} VFs to {DESTINATIONS} destinations: all answered in {longest:.0} ms; \
         the SA was asked {asked} times",
        VFS * EACH
    );
    assert!(
        asked <= VFS * DESTINATIONS,
        "the SA was asked {asked} times"
    );
    assert_eq!(sm.errors(), Vec::<String>::new());
}
