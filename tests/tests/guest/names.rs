//! Acceptance: a guest and a program on libibverbs find each other by the RDMA CM, by addresses of one network.

use std::time::Duration;

use vhca_tests::live::{Process, Shim, wait_for};

use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::Guest;
use crate::trunks::Sites;

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

/// Time for a pair of programs.
const LIMIT: Duration = Duration::from_secs(120);

/// Host and VF of the program.
const PROGRAM: &str = "H2-1/2";

/// Address of the guest's IPoIB interface.
const GUEST: &str = "10.77.250.1";

/// The VF of a program.
#[derive(Clone, Copy)]
struct Side<'f> {
    fabric: &'f Fabric,
    address: &'static str,
}

impl Side<'_> {
    fn start(self, name: &str, command: &str) -> Process {
        let arguments: Vec<&str> = command.split(' ').collect();
        let command = &mut self.fabric.lab.on(Shim::Vhca, PROGRAM, &arguments);
        Process::start(self.fabric.lab.dir(), name, command)
    }
}

/// A server that is a program, and its client in the guest.
fn guest_asks(program: Side<'_>, guest: &mut Guest, name: &str, server: &str, client: &str) {
    let mut serving = program.start(name, server);
    let client = format!("timeout 100 {client} {}", program.address);
    // Only the client's success shows that the server listens: one that comes too early ends at once.
    let outcome = wait_for(LIMIT, || {
        let outcome = guest.run(LIMIT, &client);
        let outcome = outcome.unwrap_or_else(|failure| panic!("{failure}"));
        (outcome.status == 0 || serving.ended().is_some()).then_some(outcome)
    });
    let outcome = outcome.unwrap_or_else(|| panic!("{client}: {}", serving.output()));
    let said = serving.output();
    let drops = program.fabric.lab.told(&["show", "drops"]);
    assert_eq!(
        outcome.status, 0,
        "{client}: {}\n{said}\n{drops}",
        outcome.text
    );
    let ended = serving.wait(LIMIT);
    assert!(ended.success(), "{server}: {ended}: {}", serving.output());
}

/// A server in the guest, and its client that is a program.
fn program_asks(program: Side<'_>, guest: &mut Guest, name: &str, server: &str, client: &str) {
    guest.start(name, server);
    let client = format!("{client} {GUEST}");
    let mut round = 0;
    let succeeded = wait_for(LIMIT, || {
        round += 1;
        let mut client = program.start(&format!("{name}-{round}"), &client);
        client.wait(LIMIT).success().then_some(())
    });
    assert!(succeeded.is_some(), "{client}");
}

/// A guest of a service and a program ask each other.
fn meet(fabric: &Fabric, program: Side<'_>) {
    let mut guest = fabric.guest("6.1", "H1-1", 1);
    guest.told(&format!(
        "ip address add {GUEST}/16 dev ib0 && ip link set ib0 up"
    ));
    let up = |state: &str| state.trim() == "up";
    guest.wait_until(LIMIT, "cat /sys/class/net/ib0/operstate", up);

    let count = full(20, 1000);
    let server = format!("rping -s -C {count}");
    let client = format!("rping -c -C {count} -a");
    guest_asks(program, &mut guest, "rping", &server, &client);
    program_asks(program, &mut guest, "rping-back", &server, &client);
    let bandwidth = "ib_write_bw -R -F -n 200";
    guest_asks(program, &mut guest, "write", bandwidth, bandwidth);
    program_asks(program, &mut guest, "write-back", bandwidth, bandwidth);
    guest_asks(program, &mut guest, "udaddy", "udaddy", "udaddy -s");
    program_asks(program, &mut guest, "udaddy-back", "udaddy", "udaddy -s");

    // The guest has the hardware address of the program's VF by ARP.
    let neighbour = guest.told(&format!("ip neigh show {} dev ib0", program.address));
    assert!(neighbour.contains("lladdr"), "{neighbour}");
}

#[test]
fn a_guest_and_a_program_meet_by_the_rdma_cm() {
    let network = ["--verbs-network", "10.77.0.0/16"];
    let fabric = Fabric::new(Manager::Lite, &[&SERVED[..], &network].concat());
    let program = Side {
        fabric: &fabric,
        address: "10.77.3.2",
    };
    meet(&fabric, program);
}

#[test]
fn a_guest_and_a_program_of_another_service_meet_across_a_trunk() {
    let networks = ["10.77.0.0/16", "10.77.100.0/16"].map(|net| ["--verbs-network", net]);
    let sites = Sites::new(&SERVED, networks.each_ref().map(|network| &network[..]));
    let program = Side {
        fabric: &sites.south,
        address: "10.77.103.2",
    };
    meet(&sites.north, program);
}
