//! UCX, and Open MPI on it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use vhca_tests::live::{Process, Shim};

use crate::lab;
use crate::pair::Pair;

/// Transports of verbs alone, so that nothing goes by TCP or shared memory.
const TRANSPORTS: &str = "UCX_TLS=rc_v,ud_v,self";
const DEVICE: &str = "UCX_NET_DEVICES=vhca1:1";

/// Time for the exchanges.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn ucx_moves_data_by_messages_puts_gets_and_atomics() {
    let lab = lab();
    for (test, size) in [
        ("tag_lat", "8"),
        ("tag_bw", "1048576"),
        ("ucp_put_bw", "65536"),
        ("ucp_get", "65536"),
        ("ucp_fadd", "8"),
        ("ucp_cswap", "8"),
    ] {
        let perftest = ["ucx_perftest", "-t", test, "-s", size, "-n", "100"];
        let program = [&["env", TRANSPORTS, DEVICE][..], &perftest].concat();
        Pair::of(&lab, &program).succeeds();
    }
}

#[test]
fn open_mpi_exchanges_between_four_nodes() {
    let lab = lab();
    let exchange =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs_programs/mpi/exchange.py");
    let program = ["/usr/bin/python3", exchange.to_str().unwrap()];
    let mut mpirun = Command::new("mpirun");
    mpirun
        .args(["--allow-run-as-root", "--oversubscribe"])
        .args(["--mca", "pml", "ucx", "--mca", "btl", "self"])
        .args(["-x", TRANSPORTS, "-x", DEVICE]);
    for node in ["H1-1", "H1-2", "H2-1", "H2-2"] {
        let rank = lab.on(Shim::Vhca, node, &program);
        mpirun.args(["-np", "1"]).arg(rank.get_program());
        mpirun.args(rank.get_args()).arg(":");
    }
    let mut exchange = Process::start(lab.dir(), "mpirun", &mut mpirun);
    let ended = exchange.wait(LIMIT);
    let told = exchange.output();
    assert!(ended.success(), "{ended}: {told}");
    assert!(told.contains("4 ranks done"), "{told}");
}
