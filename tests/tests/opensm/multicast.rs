//! Acceptance: a group of all VFs is one membership of each port.

use serde_json::Value;
use vhca_tests::live::{Lab, OpenSm, PATIENCE, Shim, wait_for};

use crate::bring_up::{FOUR_HOSTS, rows, wait_until_all_up};

const MGID: &str = "ff12:4242::1";

/// The broadcast group of IPoIB in the default partition.
const BROADCAST: &str = "ff12:401b:ffff::ffff:ffff";

/// How many datagrams each guest has received, by host and VF.
fn received(lab: &Lab) -> Vec<(String, u64, u64)> {
    let told = lab.json(&["guest", "all", "status"]);
    let row = |row: &Value| {
        let host = row["host"].as_str().unwrap().to_owned();
        (
            host,
            row["vf"].as_u64().unwrap(),
            row["received"].as_u64().unwrap(),
        )
    };
    rows(&told, "guests").iter().map(row).collect()
}

/// The ports that are members of the group, as the SA tells it.
fn members(lab: &Lab) -> usize {
    let table = lab.tool(Shim::Vhca, "mgmt", &["saquery", "-m", "--smkey", "1"]);
    let mut in_group = false;
    let mut members = 0;
    for line in table.lines() {
        if let Some((name, value)) = line.trim().split_once("..") {
            let value = value.trim_start_matches('.');
            if name == "MGID" {
                in_group = value == MGID;
            } else if name == "PortGid" && in_group {
                members += 1;
            }
        }
    }
    members
}

#[test]
fn sixty_four_members_are_four_memberships_and_get_each_others_datagrams() {
    let lab = Lab::serve(&[&FOUR_HOSTS[..], &["--guests"]].concat());
    let sm = OpenSm::start(&lab, Shim::Vhca, "mgmt", "");
    sm.wait_for("SUBNET UP", 1);
    wait_until_all_up(&lab, 64);

    lab.told(&["guest", "all", "join", MGID]);
    let groups = lab.json(&["show", "mcast"]);
    let groups = rows(&groups, "groups");
    assert_eq!(groups.len(), 4, "{groups:#?}");
    assert_eq!(members(&lab), 4);

    // OpenSM writes the multicast tables after it answered; then all hear the first guest.
    let all_but_sender = |heard: &[(String, u64, u64)]| {
        let others = heard
            .iter()
            .filter(|(host, vf, _)| (host.as_str(), *vf) != ("H1-1", 1));
        others.clone().count() == 63 && others.clone().all(|(_, _, n)| *n > 0)
    };
    let reached = wait_for(PATIENCE, || {
        lab.told(&["guest", "H1-1/1", "send", MGID, "to all"]);
        all_but_sender(&received(&lab)).then_some(())
    });
    assert!(reached.is_some(), "{:?}", received(&lab));

    let tables = lab.tool(Shim::Vhca, "mgmt", &["saquery", "MFTR"]);
    assert!(
        tables.matches("dump:").count() >= 2,
        "one of each switch: {tables}"
    );

    // Those who left hear nothing more, on the same host and on a host without members.
    lab.told(&["guest", "H1-2/all", "leave", MGID]);
    lab.told(&["guest", "H2-1/3", "leave", MGID]);
    let left = |host: &str, vf: u64| host == "H1-2" || (host, vf) == ("H2-1", 3);
    let gone = wait_for(PATIENCE, || (members(&lab) == 3).then_some(()));
    assert!(
        gone.is_some(),
        "the last to leave takes the port out of the group"
    );
    let before = received(&lab);
    lab.told(&["guest", "H2-2/16", "send", MGID, "to those who stayed"]);
    let arrived = wait_for(PATIENCE, || {
        let now = received(&lab);
        let mut pairs = before.iter().zip(&now);
        let all = pairs.all(|((host, vf, then), (_, _, now))| {
            let sender = (host.as_str(), *vf) == ("H2-2", 16);
            left(host, *vf) || sender || *now == then + 1
        });
        all.then_some(now)
    });
    let now = arrived.expect("all members hear it");
    for ((host, vf, then), (_, _, now)) in before.iter().zip(&now) {
        if left(host, *vf) {
            assert_eq!(then, now, "{host}/{vf} has left");
        }
    }

    // OpenSM has the broadcast group of IPoIB, with a Q_Key that guests did not choose.
    let before = received(&lab);
    lab.told(&["guest", "all", "join", BROADCAST]);
    let reached = wait_for(PATIENCE, || {
        lab.told(&["guest", "H1-1/1", "send", BROADCAST, "to all"]);
        let now = received(&lab);
        let mut pairs = before.iter().zip(&now);
        pairs.all(|(then, now)| now.2 > then.2).then_some(())
    });
    assert!(reached.is_some(), "{:?}", received(&lab));
    assert_eq!(sm.errors(), Vec::<String>::new());
}
