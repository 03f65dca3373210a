//! What `vhca show` tells of guests while they talk.

use std::collections::BTreeSet;

use serde_json::Value;
use vhca_tests::live::{PATIENCE, Packets};

use crate::fabric::Fabric;
use crate::guest::Guest;
use crate::ip::address;

/// A guest's memory, but for what firmware takes: see boot.sh.
const MEMORY: u64 = 500 << 20;

/// A VF: the name of its host, and its number.
type Vf<'h> = (&'h str, u16);

fn lid(fabric: &Fabric, host: &str) -> u64 {
    fabric.rows("ports", host)[0]["lid"].as_u64().unwrap()
}

/// The VFs are up, have sent and got MADs, and their guests' memory is shared.
pub(crate) fn of_vfs(fabric: &Fabric, guests: &[Guest], vfs: &[Vf<'_>]) {
    for ((host, vf), guest) in vfs.iter().zip(guests) {
        let rows = fabric.rows("vfs", host);
        let row = rows.iter().find(|row| row["vf"] == *vf).unwrap();
        assert_eq!((&row["active"], &row["up"]), (&true.into(), &true.into()));
        assert_eq!(row["reason"], "up");
        // Two groups at least: those of all, and of all hosts.
        assert!(row["groups"]["live"].as_u64() >= Some(2), "{row}");
        for count in ["sent", "delivered"] {
            assert!(row[count].as_u64() > Some(0), "{row}");
        }
        let vmm = fabric.vmm(host, *vf);
        assert_eq!((&vmm["attached"], &vmm["vmms"]), (&true.into(), &1.into()));
        assert_eq!(vmm["pid"], guest.process.id());
        assert!(vmm["shared_bytes"].as_u64() >= Some(MEMORY), "{vmm}");
        assert_eq!(vmm["unshared_bytes"], 0, "{vmm}");
        assert!(vmm["vectors"].as_u64() >= Some(2), "{vmm}");
    }
}

/// Each port is in the broadcast group once, for all of its guests, for which it asked the SA once.
pub(crate) fn of_groups(fabric: &Fabric, packets: &Packets, vfs: &[Vf<'_>]) {
    for (host, _) in vfs {
        let told = fabric.lab.json(&["show", "mcast", "--host", host]);
        let groups = told["groups"].as_array().unwrap().iter();
        let is_broadcast = |group: &&Value| group["mgid"].as_str().unwrap().ends_with(":ffff:ffff");
        let groups: Vec<_> = groups.filter(is_broadcast).collect();
        let [group] = groups[..] else {
            panic!("{groups:#?}");
        };
        assert_eq!(group["joined"], serde_json::json!(["full"]));
        assert_eq!(
            (&group["waiting"], &group["under_way"]),
            (&0.into(), &Value::Null)
        );
        let members = group["members"].as_array().unwrap().iter();
        let members: BTreeSet<_> = members
            .map(|member| {
                assert_eq!(member["state"], "full");
                member["vf"].as_u64()
            })
            .collect();
        let own = vfs.iter().filter(|(other, _)| other == host);
        assert_eq!(members, own.map(|(_, vf)| Some(u64::from(*vf))).collect());
        let joins = packets.broadcast_joins(lid(fabric, host));
        assert_eq!(joins.len(), 1, "{joins:?}");
        assert_eq!(group["sa_joins"], 1, "{group}");
        println!("{host}: one join on the wire for {} members", members.len());
    }
}

/// A row of a table that holds, sooner or later.
fn row(fabric: &Fabric, table: &str, (host, vf): Vf<'_>, holds: impl Fn(&Value) -> bool) -> Value {
    let is_it = |row: &&Value| row["vf"] == vf && holds(row);
    let found = |told: &Value| {
        let rows = told[table].as_array().unwrap().iter();
        rows.into_iter().find(is_it).cloned()
    };
    let told = fabric
        .lab
        .wait_until(&["show", table, "--host", host], |told| {
            found(told).is_some()
        });
    found(&told).unwrap()
}

/// Questions to the SA are transactions of the VF that asks, and resolutions of services are exchanges of both.
pub(crate) fn of_exchanges(fabric: &Fabric, guests: &mut [Guest; 2], vfs: [Vf<'_>; 2]) {
    let until_enough =
        |command: &str| format!("sh -c 'until [ -e /tmp/enough ]; do {command}; done; echo ended'");
    let [first, second] = guests;
    first.start("asks", &until_enough("saquery -p"));
    second.start("listens", &until_enough("timeout 20 udaddy"));
    let resolve = format!("timeout 20 udaddy -s {}", address(1));
    first.start("resolves", &until_enough(&resolve));

    // The guest's kernel asks for single paths, too.
    let is_table = |row: &Value| row["attribute"] == "0x0035" && row["method"] == "GET_TABLE";
    let query = row(fabric, "tids", vfs[0], is_table);
    assert_eq!(query["class"], "SUBN_ADM", "{query}");
    let sm = &fabric.rows("ports", vfs[0].0)[0]["sm_lid"];
    assert_eq!((&query["lid"], &query["qpn"]), (sm, &1.into()));
    assert_ne!(query["tid"], query["wire_tid"]);
    for (own, other) in [(vfs[0], vfs[1]), (vfs[1], vfs[0])] {
        let exchange = row(fabric, "cm", own, |row| row["kind"] == "sidr");
        assert_eq!(exchange["lid"], lid(fabric, other.0), "{exchange}");
        let gid = row(fabric, "guids", other, |_| true)["gid"].clone();
        assert_eq!(exchange["gid"], gid, "{exchange}");
    }

    for (guest, log) in [(0, "asks"), (0, "resolves"), (1, "listens")] {
        guests[guest].told("touch /tmp/enough");
        let ended = |log: &str| log.ends_with("ended\n");
        guests[guest].wait_until(PATIENCE, &format!("tail -n 1 /tmp/{log}"), ended);
    }
}
