//! A host's software on hca-linux, on bare nodes: its ports are those of umad and sysfs.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use vhca_tests::effort::is_full;
use vhca_tests::live::{self, Shim};

use crate::bare::two_bare;
use crate::line;
use crate::service::Served;

const PROGRAM: &str = env!("CARGO_BIN_EXE_linux_port");

/// A PF context, and the software of hosts on its VFs.
const PF: &str = env!("CARGO_BIN_EXE_linux_pf");

/// The SA gives the VFs their GUIDs, and the subnet manager writes them to the tables of the nodes' own ports.
#[test]
fn vfs_of_pf_contexts_on_two_bare_nodes_have_guids_and_exchange_messages_with_equal_ids() {
    let served = two_bare();
    exchange(&served, ["host-1", "host-2"], "40");
    if is_full() {
        for nodes in [["host-1", "host-2"], ["host-2", "host-1"]] {
            exchange(&served, nodes, "1000");
        }
    }
}

/// Each of four VFs of the first node asks one of the second node so many times.
fn exchange(served: &Served, [asks, answers]: [&str; 2], exchanges: &str) {
    let mut answering = served
        .on(answers, PF)
        .args(["vhca0", "1", "4", "answer", exchanges])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(answering.stdout.take().unwrap()).lines();
    let gids: Vec<String> = lines
        .by_ref()
        .take(4)
        .map(|line| line.unwrap().rsplit_once(' ').unwrap().1.to_owned())
        .collect();
    let mut asking = vec!["vhca0", "1", "4", "ask", exchanges];
    asking.extend(gids.iter().map(String::as_str));
    let told = served.told(asks, PF, &asking);
    let outcomes: Vec<_> = told.lines().skip(4).collect();
    let expected =
        [1, 2, 3, 4].map(|vf| format!("vf:{vf}: path true, nodes 6, answers {exchanges}"));
    assert_eq!(outcomes, expected, "{told}");
    let said = lines.next().unwrap().unwrap();
    assert_eq!(said, format!("answered {exchanges} each"));
    let all = "cat /sys/class/infiniband/vhca0/ports/1/gids/*";
    let table = served.told(answers, "sh", &["-c", all]);
    let shown = gids.iter().filter(|gid| {
        let groups: Vec<String> = gid
            .rsplit(':')
            .take(4)
            .map(|group| format!("{group:0>4}"))
            .collect();
        let interface: Vec<&str> = groups.iter().rev().map(String::as_str).collect();
        table.contains(&interface.join(":"))
    });
    assert_eq!(shown.count(), 4, "{table}");
    answering.kill().unwrap();
    answering.wait().unwrap();
}

#[test]
fn a_port_that_cannot_be_opened_is_refused_with_the_next_step() {
    let served = two_bare();
    let mut holder = served
        .on("host-2", PROGRAM)
        .args(["vhca0", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    lines.take(1).for_each(drop);
    for (node, device, port, refusal) in [
        ("host-1", "mlx4_0", "1", "the devices are vhca0"),
        ("host-1", "vhca0", "2", "vhca0 has no port 2"),
        ("host-2", "vhca0", "1", "fuser -v /dev/infiniband/umad0"),
    ] {
        let mut program = served.on(node, PROGRAM);
        let output = program.args([device, port]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(refusal), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
}

/// The program opened the files of sysfs once, as it does before a sandbox.
#[test]
fn changes_of_the_port_are_seen_in_files_that_are_open() {
    let served = two_bare();
    let switch = served.told("S1", "ibstat", &[]);
    let lid = line(&switch, "Base lid: ");
    let info = served.told("host-1", "smpquery", &["-D", "nodeinfo", "0,1"]);
    let port = line(&info, "LocalPort:").trim_start_matches('.');
    let mut watching = served
        .on("host-1", PROGRAM)
        .args(["vhca0", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut until = |state: &str| assert!(lines.any(|line| line.unwrap() == state), "{state}");
    until("ACTIVE");
    served.told("host-3", "ibportstate", &[lid, port, "disable"]);
    until("DOWN");
    served.told("host-3", "ibportstate", &[lid, port, "enable"]);
    until("ACTIVE");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

/// Options of a service that is attached to a bare node's port. Each look at sysfs is a connection to the outer service, which the
/// sandbox forbids.
const ATTACHED: [&str; 6] = [
    "--attach",
    "linux:vhca0/1",
    "--vfs",
    "4",
    "--guests",
    "--no-sandbox",
];

/// A group of guests of different services.
const GROUP: &str = "ff12::1";

/// Returns the port GUIDs of all VFs of a service, once all are up.
fn guids_of_vfs_that_are_up(service: &live::Lab) -> BTreeSet<String> {
    let shown = service.told(&["show", "vfs", "--wait-up"]);
    let rows = shown.lines().filter(|line| line.starts_with("vhca0"));
    let guids = rows.filter_map(|row| row.split_whitespace().nth(3));
    let guids: BTreeSet<_> = guids.map(str::to_owned).collect();
    assert_eq!(guids.len(), 4, "{shown}");
    guids
}

#[test]
fn services_on_two_bare_nodes_give_their_vfs_guids_of_the_outer_subnet() {
    let outer = live::Lab::serve(&["--bare", "H1-1,H2-1", "--vfs", "2", "--verbs"]);
    let inner = live::Lab::serve_on(&outer, "H1-1", &ATTACHED);
    let mut other = live::Lab::serve_on(&outer, "H2-1", &ATTACHED);
    let [guids, others] = [&inner, &other].map(guids_of_vfs_that_are_up);
    assert!(guids.is_disjoint(&others), "{guids:?} {others:?}");
    let fabric = inner.told(&["show", "fabric"]);
    let row = fabric.lines().find(|line| line.starts_with("vhca0"));
    let words: Vec<_> = row.unwrap().split_whitespace().take(3).collect();
    assert_eq!(words, ["vhca0", "linux", "0x0002c90300000300"], "{fabric}");

    for service in [&inner, &other] {
        service.told(&["guest", "all", "join", GROUP]);
    }
    for (sender, receiver, text) in [(&inner, &other, "one"), (&other, &inner, "two")] {
        sender.told(&["guest", "1", "send", GROUP, text]);
        receiver.wait_until(&["guest", "all", "status"], |status| {
            let guests = status["guests"].as_array();
            guests.is_some_and(|guests| guests.iter().all(|guest| guest["last"] == text))
        });
    }

    let (down, up) = (
        ["set", "link", "H1-1/1", "down"],
        ["set", "link", "H1-1/1", "up"],
    );
    for (change, code) in [(down, "link_down"), (up, "ok")] {
        outer.told(&change);
        let is_so = || {
            let why = inner.ask(&["why", "1", "--json"]);
            let why: serde_json::Value = serde_json::from_slice(&why.stdout).unwrap();
            (why["code"] == code).then_some(())
        };
        live::wait_for(live::PATIENCE, is_so).unwrap_or_else(|| panic!("never {code}"));
    }

    let binary = live::binary().to_string_lossy();
    let second = [&[&*binary, "serve"], &ATTACHED[..]].concat();
    let second = outer.on(Shim::Vhca, "H1-1", &second).output().unwrap();
    let error = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(2), "{error}");
    assert!(error.contains("fuser -v /dev/infiniband/umad0"), "{error}");

    other.service().signal("KILL");
    let again = live::Lab::serve_on(&outer, "H2-1", &ATTACHED);
    assert!(guids.is_disjoint(&guids_of_vfs_that_are_up(&again)));
}
