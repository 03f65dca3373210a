//! Faults of a fabric that OpenSM manages, which runs on one of its hosts.

use std::fs;

use vhca_tests::live::PATIENCE;

use crate::bench::{Bench, Case, Cure, FABRIC};
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
