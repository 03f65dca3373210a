//! Acceptance: a guest and a program on libibverbs find each other by the RDMA CM, by addresses of one network.

use std::time::Duration;

use vhca_tests::live::{Process, Shim, wait_for};

use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest};

/// The last VF of each adapter is a program's.
const SERVED: [&str; 9] = [
    "--topology",
    "two-switch",
    "--vfs",
    "2",
    "--verbs",
    "--program-vfs",
    "1",
    "--verbs-network",
    "10.77.0.0/16",
];

/// Time for a pair of programs.
const LIMIT: Duration = Duration::from_secs(120);

/// Host and VF of the program, and its address.
const PROGRAM: (&str, &str) = ("H2-1/2", "10.77.3.2");

/// Address of the guest's IPoIB interface.
const GUEST: &str = "10.77.250.1";

fn program(fabric: &Fabric, name: &str, command: &str) -> Process {
    let arguments: Vec<&str> = command.split(' ').collect();
    let command = &mut fabric.lab.on(Shim::Vhca, PROGRAM.0, &arguments);
    Process::start(fabric.lab.dir(), name, command)
}

/// A server that is a program, and its client in the guest.
fn guest_asks(fabric: &Fabric, guest: &mut Guest, name: &str, server: &str, client: &str) {
    let mut serving = program(fabric, name, server);
    let client = format!("timeout 100 {client} {}", PROGRAM.1);
    // Only the client's success shows that the server listens: one that comes too early ends at once.
    let outcome = wait_for(LIMIT, || {
        let outcome = guest.run(LIMIT, &client);
        let outcome = outcome.unwrap_or_else(|failure| panic!("{failure}"));
        (outcome.status == 0 || serving.ended().is_some()).then_some(outcome)
    });
    let outcome = outcome.unwrap_or_else(|| panic!("{client}: {}", serving.output()));
    let said = serving.output();
    let drops = fabric.lab.told(&["show", "drops"]);
    assert_eq!(
        outcome.status, 0,
        "{client}: {}\n{said}\n{drops}",
        outcome.text
    );
    let ended = serving.wait(LIMIT);
    assert!(ended.success(), "{server}: {ended}: {}", serving.output());
}

/// A server in the guest, and its client that is a program.
fn program_asks(fabric: &Fabric, guest: &mut Guest, name: &str, server: &str, client: &str) {
    guest.start(name, server);
    let client = format!("{client} {GUEST}");
    let mut round = 0;
    let succeeded = wait_for(LIMIT, || {
        round += 1;
        let mut client = program(fabric, &format!("{name}-{round}"), &client);
        client.wait(LIMIT).success().then_some(())
    });
    assert!(succeeded.is_some(), "{client}");
}

#[test]
fn a_guest_and_a_program_meet_by_the_rdma_cm() {
    let fabric = Fabric::new(Manager::Lite, &SERVED);
    let mut guest = Boot::new("6.1", fabric.device("H1-1", 1)).start(fabric.dir(), "H1-1-1");
    guest.wait_for_port();
    guest.told(&format!(
        "ip address add {GUEST}/16 dev ib0 && ip link set ib0 up"
    ));
    let up = |state: &str| state.trim() == "up";
    guest.wait_until(LIMIT, "cat /sys/class/net/ib0/operstate", up);

    let count = full(20, 1000);
    let server = format!("rping -s -C {count}");
    let client = format!("rping -c -C {count} -a");
    guest_asks(&fabric, &mut guest, "rping", &server, &client);
    program_asks(&fabric, &mut guest, "rping-back", &server, &client);
    let bandwidth = "ib_write_bw -R -F -n 200";
    guest_asks(&fabric, &mut guest, "write", bandwidth, bandwidth);
    program_asks(&fabric, &mut guest, "write-back", bandwidth, bandwidth);
    guest_asks(&fabric, &mut guest, "udaddy", "udaddy", "udaddy -s");
    program_asks(&fabric, &mut guest, "udaddy-back", "udaddy", "udaddy -s");

    // The guest has the hardware address of the program's VF by ARP.
    let neighbour = guest.told(&format!("ip neigh show {} dev ib0", PROGRAM.1));
    assert!(neighbour.contains("lladdr"), "{neighbour}");
}
