//! Open MPI on UCX.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Lab, Process, Shim};

/// Transports of verbs alone, so that nothing goes by TCP or shared memory.
pub const TRANSPORTS: &str = "UCX_TLS=rc_v,ud_v,self";

/// The device of a VF.
pub const DEVICE: &str = "UCX_NET_DEVICES=vhca1:1";

/// Time for the exchanges.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `mpirun` with one rank for each pair of a service and a node, whose VF the rank uses. The ranks exchange messages by verbs.
///
/// # Panics
/// If an exchange fails.
pub fn exchange_between(ranks: &[(&Lab, &str)]) {
    let [(first, _), ..] = ranks else { return };
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let exchange = tests.join("verbs_programs/mpi/exchange.py");
    let program = ["/usr/bin/python3", &exchange.to_string_lossy()];
    let mut mpirun = Command::new("mpirun");
    mpirun
        .args(["--allow-run-as-root", "--oversubscribe"])
        .args(["--mca", "pml", "ucx", "--mca", "btl", "self"])
        .args(["-x", TRANSPORTS, "-x", DEVICE]);
    for (lab, node) in ranks {
        let rank = lab.on(Shim::Vhca, node, &program);
        mpirun.args(["-np", "1"]).arg(rank.get_program());
        mpirun.args(rank.get_args()).arg(":");
    }
    let mut exchange = Process::start(first.dir(), "mpirun", &mut mpirun);
    let ended = exchange.wait(LIMIT);
    let said = exchange.output();
    assert!(ended.success(), "{ended}: {said}");
    let all = format!("{} ranks done", ranks.len());
    assert!(said.contains(&all), "{said}");
}
