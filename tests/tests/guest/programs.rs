//! Acceptance: a guest and a program on libibverbs, at one service, move data to each other by LID.

use std::time::Duration;

use vhca_tests::live::{Process, Shim, wait_for};

use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest};

/// The last VF of each adapter is a program's.
const SERVED: [&str; 7] = [
    "--topology",
    "two-switch",
    "--vfs",
    "2",
    "--verbs",
    "--program-vfs",
    "1",
];

/// Time for the traffic of a pair.
const LIMIT: Duration = Duration::from_secs(120);

/// The host, as guests with QEMU's user network have it.
const HOST: &str = "10.0.2.2";

/// Boots a guest on H1-1/1 that reaches the host by TCP.
fn guest(fabric: &Fabric) -> Guest {
    let boot = Boot::new("6.1", fabric.device("H1-1", 1));
    let boot = boot.with("--netdev").with("user");
    let mut guest = boot.start(fabric.dir(), "H1-1-1");
    guest.wait_for_port();
    guest.told("ip address add 10.0.2.15/24 dev eth0 && ip link set eth0 up");
    guest
}

/// Runs a server as a program on H2-1/2, and its client in the guest.
fn pair(fabric: &Fabric, guest: &mut Guest, port: u16, program: &str) -> String {
    let command = format!("{program} -p {port}");
    let arguments: Vec<&str> = command.split(' ').collect();
    let server = &mut fabric.lab.on(Shim::Vhca, "H2-1/2", &arguments);
    let mut server = Process::start(fabric.lab.dir(), &format!("server-{port}"), server);
    // Only the client's success tells that the server listens: one that comes too early ends at once.
    let client = format!("timeout 100 {command} {HOST}");
    let told = wait_for(LIMIT, || {
        let outcome = guest.run(LIMIT, &client);
        let outcome = outcome.unwrap_or_else(|failure| panic!("{failure}"));
        match (outcome.status, server.ended()) {
            (0, _) => Some(outcome.text),
            (_, Some(ended)) => {
                let said = server.output();
                panic!(
                    "{command}: the server ends with {ended}: {said}\n{}",
                    outcome.text
                );
            }
            (_, None) => None,
        }
    });
    let told = told.unwrap_or_else(|| panic!("{command}: {}", server.output()));
    let ended = server.wait(LIMIT);
    assert!(
        ended.success(),
        "{command}: {ended}: {}\n{told}",
        server.output()
    );
    told
}

#[test]
fn a_guest_and_a_program_exchange_data_by_lid() {
    let fabric = Fabric::new(Manager::Lite, &SERVED);
    let mut guest = guest(&fabric);
    let iterations = full(300, 10_000);
    for (port, program) in (18_600..).zip(["rc", "uc", "ud", "srq"]) {
        let program = format!("ibv_{program}_pingpong -c -e -n {iterations}");
        let program = program.replace("ud_pingpong -c", "ud_pingpong");
        let told = pair(&fabric, &mut guest, port, &program);
        assert!(told.contains(&format!("{iterations} iters in")), "{told}");
    }
    for (port, program) in (18_610..).zip([
        "ib_write_bw -F -n 200",
        "ib_write_bw -F -b -n 200",
        "ib_read_bw -F -n 200",
        "ib_send_bw -F -e -n 200",
        "ib_atomic_bw -F -n 200",
    ]) {
        pair(&fabric, &mut guest, port, program);
    }
    let rows = fabric.lab.json(&["show", "programs"]);
    assert_eq!(rows["programs"].as_array().map(Vec::len), Some(4), "{rows}");
}

/// Each of them has VFs of its own.
#[test]
fn vmms_have_no_sockets_of_the_vfs_of_programs() {
    let fabric = Fabric::new(Manager::Lite, &SERVED);
    assert!(fabric.device("H1-1", 1).exists());
    assert!(!fabric.device("H1-1", 2).exists());
    let program = &mut fabric.lab.on(Shim::Vhca, "H1-1/1", &["ibv_devinfo"]);
    let output = program.output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}
