//! UCX, and Open MPI on it.

use vhca_tests::live::mpi::{DEVICE, TRANSPORTS, exchange_between};

use crate::lab;
use crate::pair::Pair;

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
    exchange_between(&["H1-1", "H1-2", "H2-1", "H2-2"].map(|node| (&lab, node)));
}
