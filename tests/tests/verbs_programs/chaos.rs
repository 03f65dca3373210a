//! Joins, tools and connections while packets of the manager's link are late, lost and repeated. Which packets are struck follows
//! from the seed that a link's faults have.

use vhca_tests::live::{Lab, Shim};

use crate::pair::Pair;
use crate::wait_until_up;

/// Faults of the manager's link, one after the other.
const FAULTS: [&[&str]; 4] = [
    &["delay=20ms"],
    &["loss=5%"],
    &["duplicate=20%"],
    &["delay=5ms", "loss=3%", "duplicate=10%"],
];

/// Times that a tool is started at most where packets are lost: osmtest and saquery give a question up after some hundred
/// milliseconds.
const ATTEMPTS: usize = 5;

/// Starts a tool on a host with VFs until it succeeds.
fn succeeds(lab: &Lab, faults: &[&str], program: &[&str]) {
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let output = lab.on(Shim::Vhca, "H1-1", program).output().unwrap();
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() && !said.contains("FAIL") {
            return;
        }
    }
    panic!("{program:?} with {faults:?}: {said}");
}

#[test]
fn joins_and_tools_pass_while_the_managers_link_is_faulty() {
    let lab = Lab::serve(&["--vfs", "8", "--guests"]);
    wait_until_up(&lab);
    for (number, faults) in FAULTS.iter().enumerate() {
        lab.told(&[&["set", "link", "mgmt/1"][..], faults].concat());
        let group = format!("ff12::15:{number}");
        for mgid in [group.as_str(), "ff12:401b:ffff::ffff:ffff"] {
            for verb in ["join", "leave", "join"] {
                lab.told(&["guest", "all", verb, mgid]);
            }
        }
        // A loss between a leave and the join behind it is no fault of the group.
        if !faults.iter().any(|fault| fault.starts_with("loss")) {
            succeeds(&lab, faults, &["osmtest", "-f", "m", "-M", "2"]);
        }
        succeeds(&lab, faults, &["saquery", "-N"]);
        lab.told(&["clear", "link", "mgmt/1"]);
        wait_until_up(&lab);
        assert_eq!(
            lab.json(&["show", "mcast"])["groups"]
                .as_array()
                .unwrap()
                .len(),
            4 * (number + 2)
        );
    }
    lab.wait_until(&["show", "vfs"], |shown| {
        let rows = shown["vfs"].as_array().unwrap();
        rows.iter().all(|row| row["fault"].is_null())
    });
}

#[test]
fn programs_connect_by_the_rdma_cm_while_the_managers_link_is_faulty() {
    let lab = Lab::serve(&["--verbs"]);
    wait_until_up(&lab);
    for faults in FAULTS {
        lab.told(&[&["set", "link", "mgmt/1"][..], faults].concat());
        let server = ["rping", "-s", "-C", "20"];
        let client = ["rping", "-c", "-a", "127.77.1.1", "-C", "20"];
        Pair::by_rdma_cm(&lab, &server, &client).succeeds();
    }
}
