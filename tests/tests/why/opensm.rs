//! Faults of a fabric that OpenSM manages, which runs on one of its hosts.

use std::fs;

use serde_json::Value;
use vhca_tests::live::{PATIENCE, wait_for};

use crate::bench::{Bench, Case, Cure, FABRIC, LIMIT};
use crate::report::Report;

const SERVE: &[&str] = &["--vfs", "2", "--guests", "--sm", "none"];

const START: &str = "vhca run --node 'mgmt HCA-1' -- opensm ";

/// What a signal does to the OpenSM that was started last.
fn signal(bench: &Bench<'_>, signal: &str) {
    bench.programs.last().expect("an OpenSM").signal(signal);
}

/// Starts OpenSM with a file of partitions.
fn start_with_partitions(bench: &mut Bench<'_>, partitions: &str) {
    fs::write(bench.path().join("partitions"), partitions).unwrap();
    bench.launch(&format!(
        "OSM_CACHE_DIR=. OSM_TMP_DIR=. {START} -f opensm.log -P partitions -s 2"
    ));
}

/// Gives OpenSM other partitions.
fn partitions(bench: &Bench<'_>, partitions: &str) {
    fs::write(bench.path().join("partitions"), partitions).unwrap();
    signal(bench, "HUP");
}

pub(crate) fn run(report: &Report) {
    let mut bench = Bench::serve(report, &[FABRIC, SERVE].concat());
    bench.case(Case {
        fault: "no subnet manager",
        vf: "node1 HCA-1/1",
        code: "no_sm",
        next: START,
        cure: Cure::Command,
    });
    bench.wait_until_ok("node2 HCA-2/2");
    by_order(&mut bench);
    stopped(&mut bench);
    for (fault, how) in [
        ("OpenSM killed with SIGKILL", "KILL"),
        ("OpenSM ended by SIGTERM", "TERM"),
    ] {
        signal(&bench, how);
        bench.case(Case {
            fault,
            vf: "node2 HCA-2/1",
            code: "sa_not_answering",
            next: START,
            cure: Cure::Command,
        });
    }
    signal(&bench, "TERM");
    bench.programs.last_mut().unwrap().wait(PATIENCE);
    in_partitions(&mut bench);
    lids_changed_by_hand(&mut bench);
    standby(&mut bench);
    unknown_m_key(&mut bench);
    two_subnets(report);
    inactive(report);
}

/// Faults that the service makes by order, and ports that are alike.
fn by_order(bench: &mut Bench<'_>) {
    for (fault, command, code, next) in [
        (
            "all packets lost on the host's link by order, under OpenSM",
            "vhca set link 'node1 HCA-1/1' loss=100%",
            "link_faulty",
            "vhca clear link 'node1 HCA-1/1'",
        ),
        (
            "half of the packets lost on the host's link by order, under OpenSM",
            "vhca set link 'node1 HCA-1/1' loss=50%",
            "link_faulty",
            "vhca clear link 'node1 HCA-1/1'",
        ),
        (
            "packets late at OpenSM by order",
            "vhca set link 'mgmt HCA-1/1' delay=2s",
            "link_faulty",
            "vhca clear link 'mgmt HCA-1/1'",
        ),
        (
            "all packets damaged on the host's link by order, under OpenSM",
            "vhca set link 'node1 HCA-1/1' corrupt=100%",
            "link_faulty",
            "vhca clear link 'node1 HCA-1/1'",
        ),
        (
            "symbol errors of a link, under OpenSM",
            "vhca set link 'node1 HCA-1/1' symbol_errors=5000",
            "link_errors",
            "vhca clear link 'node1 HCA-1/1'",
        ),
        (
            "LID of a host's port set by hand to that of another, under OpenSM",
            crate::embedded::ONE_LID,
            "duplicate_lid",
            "kill -HUP ",
        ),
    ] {
        bench.run(command);
        bench.case(Case {
            fault,
            vf: "node1 HCA-1/1",
            code,
            next,
            cure: Cure::Command,
        });
    }
}

/// An OpenSM that manages nothing until it is started otherwise.
fn inactive(report: &Report) {
    let mut bench = Bench::serve(report, &[FABRIC, SERVE].concat());
    fs::write(bench.path().join("inactive"), "sm_inactive TRUE\n").unwrap();
    let start =
        "OSM_CACHE_DIR=. OSM_TMP_DIR=. vhca run --node 'mgmt HCA-1' -- opensm -f opensm.log -s 2";
    bench.launch(&format!("{start} -F inactive"));
    let is_known = || {
        bench
            .try_run("vhca show sm")
            .contains("mgmt HCA-1")
            .then_some(())
    };
    assert!(wait_for(PATIENCE, is_known).is_some());
    bench.case(Case {
        fault: "OpenSM that was started with sm_inactive TRUE",
        vf: "node1 HCA-1/1",
        code: "no_sm",
        next: "sm_inactive TRUE",
        cure: Cure::Words(&mut |bench| {
            signal(bench, "TERM");
            bench.programs.last_mut().unwrap().wait(PATIENCE);
            bench.launch(start);
        }),
    });
}

/// LIDs that somebody changes while OpenSM runs.
fn lids_changed_by_hand(bench: &mut Bench<'_>) {
    for (fault, node, what, lid) in [
        (
            "SM's LID changed by hand at a host's port, under OpenSM",
            "node1 HCA-1",
            "smlid",
            98,
        ),
        (
            "LID of OpenSM's port changed by hand",
            "mgmt HCA-1",
            "lid",
            99,
        ),
    ] {
        bench.run(&format!(
            "vhca run --node '{node}' -- ibportstate -D 0 1 {what} {lid}"
        ));
        bench.case(Case {
            fault,
            vf: "node1 HCA-1/1",
            code: "sa_not_answering",
            next: &format!("vhca run --node '{node}' -- ibportstate -C vhca0 -P 1 -D 0 1 {what} "),
            cure: Cure::Command,
        });
    }
}

/// An OpenSM that another one is to follow.
fn standby(bench: &mut Bench<'_>) {
    let cache = bench.path().join("standby");
    fs::create_dir(&cache).unwrap();
    fs::write(
        cache.join("conf"),
        "sminfo_polling_timeout 2000\npolling_retry_number 4\n",
    )
    .unwrap();
    bench.launch(
        "OSM_CACHE_DIR=standby OSM_TMP_DIR=standby vhca run --node 'node2 HCA-2' -- opensm -F standby/conf -f standby.log -p 0 -s 2",
    );
    let is_standby = || {
        let log = fs::read_to_string(bench.path().join("standby.log")).ok()?;
        log.contains("STANDBY").then_some(())
    };
    wait_for(LIMIT, is_standby).expect("the second OpenSM stands by");
    let master = bench.programs.len() - 2;
    bench.programs[master].signal("KILL");
    bench.case(Case {
        fault: "master OpenSM killed while another stands by",
        vf: "node1 HCA-1/1",
        code: "sa_not_answering",
        next: "wait a minute: the subnet manager on node2 HCA-2/1 takes over",
        cure: Cure::Words(&mut |_| {}),
    });
    signal(bench, "TERM");
    bench.programs.last_mut().unwrap().wait(PATIENCE);
}

/// An OpenSM that has left its M_Key at all ports, and one that has none.
fn unknown_m_key(bench: &mut Bench<'_>) {
    for (folder, key) in [
        ("guarded", "m_key 0x1234567\nm_key_protection_level 2\n"),
        ("keyless", ""),
    ] {
        let cache = bench.path().join(folder);
        fs::create_dir(&cache).unwrap();
        fs::write(cache.join("conf"), key).unwrap();
    }
    let start = |bench: &mut Bench<'_>, folder: &str| {
        bench.launch(&format!(
            "OSM_CACHE_DIR={folder} OSM_TMP_DIR={folder} {START} -F {folder}/conf -f {folder}.log -s 2"
        ));
    };
    start(bench, "guarded");
    bench.wait_until_ok("node1 HCA-1/1");
    signal(bench, "KILL");
    start(bench, "keyless");
    bench.case(Case {
        fault: "M_Key of an OpenSM that was killed, at all ports",
        vf: "node1 HCA-1/1",
        code: "foreign_m_key",
        next: "mkey 0",
        cure: Cure::Command,
    });
}

/// An OpenSM on one port of an adapter whose ports are in two subnets.
fn two_subnets(report: &Report) {
    const NET: &str = r#"
Switch 8 "left"
[1] "node1 HCA-1"[1]
[2] "mgmt HCA-1"[1]

Switch 8 "right"
[1] "node1 HCA-1"[2]
[2] "mgmt HCA-1"[2]

Hca 2 "mgmt HCA-1"
[1] "left"[2]
[2] "right"[2]

Hca 2 "node1 HCA-1"
[1] "left"[1]
[2] "right"[1]
"#;
    let mut bench = Bench::new(report);
    fs::write(bench.path().join("fabric"), NET).unwrap();
    bench.restart(&[FABRIC, SERVE].concat());
    bench.run("vhca set link 'mgmt HCA-1/2' down");
    let guid = port_guid(&bench, "mgmt HCA-1", 2);
    bench.launch(&format!(
        "OSM_CACHE_DIR=. OSM_TMP_DIR=. {START} -g {guid} -f opensm-2.log -s 2"
    ));
    let is_sm = || {
        let told = bench.why("node1 HCA-1/1 --port 2");
        let seen = told["seen"].to_string();
        seen.contains("the subnet manager on mgmt HCA-1/2")
            .then_some(())
    };
    wait_for(LIMIT, is_sm).expect("OpenSM runs");
    bench.case(Case {
        fault: "OpenSM on an unplugged port of an adapter",
        vf: "node1 HCA-1/1 --port 2",
        code: "no_sm",
        next: "vhca set link right/2 up",
        cure: Cure::Command,
    });
    let guid = port_guid(&bench, "mgmt HCA-1", 1);
    bench.case(Case {
        fault: "OpenSM in the other subnet of a two-port adapter",
        vf: "node1 HCA-1/1",
        code: "no_sm",
        next: &format!("{START}-g {guid} "),
        cure: Cure::Command,
    });
}

/// The GUID of a port.
fn port_guid(bench: &Bench<'_>, node: &str, port: u64) -> String {
    let shown: Value = serde_json::from_str(&bench.run("vhca show ports --json")).unwrap();
    let mut rows = shown["ports"].as_array().unwrap().iter();
    let row = rows.find(|row| row["node"] == node && row["port"] == port);
    row.unwrap()["guid"].as_str().unwrap().to_owned()
}

/// An OpenSM that is stopped, and goes on.
fn stopped(bench: &mut Bench<'_>) {
    signal(bench, "STOP");
    bench.case(Case {
        fault: "OpenSM stopped by SIGSTOP",
        vf: "node1 HCA-1/1",
        code: "sa_not_answering",
        next: "kill -CONT",
        cure: Cure::Command,
    });
    signal(bench, "STOP");
    bench.run("vhca set vf 'node1 HCA-1/2' port_guid 0x1122334455667788");
    bench.case(Case {
        fault: "another GUID wanted of an OpenSM that is stopped",
        vf: "node1 HCA-1/2",
        code: "sa_not_answering",
        next: "kill -CONT",
        cure: Cure::Command,
    });
    signal(bench, "STOP");
    bench.run(
        "vhca set vf 'node1 HCA-2/2' port_guid none && vhca set vf 'node1 HCA-2/2' port_guid sm",
    );
    bench.case(Case {
        fault: "first GUID wanted of an OpenSM that is stopped",
        vf: "node1 HCA-2/2",
        code: "sa_not_answering",
        next: "kill -CONT",
        cure: Cure::Command,
    });
    signal(bench, "STOP");
    bench.run("vhca set link 'node1 HCA-1/1' down && vhca set link 'node1 HCA-1/1' up");
    bench.case(Case {
        fault: "link that comes back while OpenSM is stopped",
        vf: "node1 HCA-1/1",
        code: "port_not_active",
        next: "kill -CONT",
        cure: Cure::Command,
    });
    bench.run("vhca set link 'mgmt HCA-1/1' down");
    bench.case(Case {
        fault: "OpenSM's cable plugged out",
        vf: "node2 HCA-1/1",
        code: "sa_unreachable",
        next: "vhca set link 'mgmt HCA-1/1' up",
        cure: Cure::Command,
    });
}

/// Partitions that OpenSM gives and takes.
fn in_partitions(bench: &mut Bench<'_>) {
    const EVERYBODY: &str = "Default=0x7fff, ipoib : ALL=full, SELF=full;\n";
    const SECRET: &str = "Secret=0x0123 : ALL=full;\n";
    start_with_partitions(bench, &format!("{EVERYBODY}{SECRET}"));
    bench.wait_until_ok("node1 HCA-1/1");
    let pkeys = "vhca set vf 'node1 HCA-1/1' pkeys 0xffff 0x8123";
    bench.run(pkeys);
    partitions(bench, EVERYBODY);
    bench.case(Case {
        fault: "partition taken away by OpenSM",
        vf: "node1 HCA-1/1",
        code: "pkey_missing",
        next: "vhca set vf 'node1 HCA-1/1' pkeys index:0",
        cure: Cure::Command,
    });
    let host = port_guid(bench, "node1 HCA-1", 1);
    partitions(bench, &format!("{EVERYBODY}Hidden=0x0321 : {host}=full;\n"));
    bench.run("vhca set vf 'node1 HCA-1/1' pkeys 0x8321");
    bench.case(Case {
        fault: "VF only in a partition that OpenSM's port is not in",
        vf: "node1 HCA-1/1",
        code: "sa_unreachable",
        next: "vhca set vf 'node1 HCA-1/1' pkeys 0xffff 0x8321",
        cure: Cure::Command,
    });
    bench.run("vhca set vf 'node1 HCA-1/1' pkeys index:0");
    partitions(
        bench,
        "Default=0x7fff, ipoib : ALL=limited, SELF=limited;\n",
    );
    bench.case(Case {
        fault: "host and SM limited members of one partition",
        vf: "node1 HCA-1/1",
        code: "sa_unreachable",
        next: "a full member",
        cure: Cure::Words(&mut |bench| partitions(bench, EVERYBODY)),
    });
}
