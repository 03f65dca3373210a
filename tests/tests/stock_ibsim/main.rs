//! PF contexts on a fabric that nobody here wrote: a stock `ibsim` under a stock OpenSM.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod guests;
mod simulator;

use std::time::Duration;

use guests::Hosts;
use simulator::Simulator;

const GRANTED: &str = "waiting_for_hardware";
const REFUSED: &str = "the fabric's SMA refuses GUIDs";

/// How long a subnet manager is away until the service, which asks for it twice a second, has missed it.
const MISSED: Duration = Duration::from_secs(2);

#[test]
fn guids_are_granted_by_opensm_and_refused_by_ibsim_and_the_vfs_ports_say_so() {
    let mut simulator = Simulator::start();
    let attach = [simulator.attach("H-A,H-B")];
    let mut hosts = Hosts::start(&attach, 3, false);
    hosts.wait("the reason in words", |rows| {
        rows.len() == 6
            && rows
                .iter()
                .all(|row| !row.up && (row.reason, row.detail) == (GRANTED, Some(REFUSED)))
    });
    for host in ["H-A", "H-B"] {
        let granted = hosts.granted(&mut simulator, host);
        assert_eq!(granted.len(), 3, "{granted:?}");
    }
}

#[test]
fn vfs_of_two_hosts_connect_and_join_and_live_through_restarts() {
    let mut simulator = Simulator::start();
    let attach = [simulator.attach("H-A,H-B")];
    let mut hosts = Hosts::start(&attach, 2, true);
    hosts.wait_up(4);
    let guids = hosts.guids();
    for host in ["H-A", "H-B"] {
        let of_host: Vec<_> = guids.iter().filter(|(of, _)| of == host).collect();
        let granted = hosts.granted(&mut simulator, host);
        let shown: Vec<_> = of_host.iter().map(|(_, guid)| *guid).collect();
        assert_eq!(granted, shown);
    }
    hosts.connect(("H-A", 1), ("H-B", 2));
    hosts.connect(("H-B", 1), ("H-A", 2));

    for host in ["H-A", "H-B"] {
        hosts.join(host, 1);
        let joined = hosts.sa_requests(host);
        hosts.join(host, 2);
        assert_eq!(
            hosts.sa_requests(host),
            joined,
            "the second is no news for the SA"
        );
    }
    assert_eq!(hosts.members(&mut simulator), 2, "one for each port");

    // A subnet manager that starts anew knows nothing of groups and GUIDs. A simulated port cannot be told to register
    // again, so the manager is away for long enough to be missed.
    simulator.stop_opensm();
    hosts.go_on(MISSED);
    simulator.start_opensm();
    hosts.wait_until("the members again", &mut simulator, |hosts, simulator| {
        hosts.members(simulator) == 2
    });
    hosts.wait_until("the GUIDs again", &mut simulator, |hosts, simulator| {
        let mut again = Vec::new();
        for host in ["H-A", "H-B"] {
            let granted = hosts.granted(simulator, host);
            again.extend(granted.into_iter().map(|guid| (host.to_owned(), guid)));
        }
        again == guids
    });
    hosts.wait_up(4);
    hosts.connect(("H-A", 1), ("H-B", 2));

    simulator.kill();
    hosts.wait("ports down", |rows| {
        rows.iter()
            .all(|row| !row.up && row.reason == "physical_down")
    });
    let told = hosts.announcements().join("\n");
    for node in ["H-A", "H-B"] {
        let gone = format!("/{node}: the simulator is not there; trying again");
        assert!(told.contains(&gone), "{told}");
    }
    simulator.start_ibsim();
    simulator.start_opensm();
    hosts.wait_up(4);
    hosts.wait_until("the members again", &mut simulator, |hosts, simulator| {
        hosts.members(simulator) == 2
    });
    hosts.connect(("H-B", 1), ("H-A", 1));
}

#[test]
fn where_the_sma_takes_guids_opensm_writes_them_and_the_vfs_come_up() {
    let simulator = Simulator::start_ours();
    let attach = [simulator.attach("H1-1,H2-2")];
    let mut hosts = Hosts::start(&attach, 3, false);
    // No connection: those ports have hosts of their own, whose connection managers take requests.
    hosts.wait_up(6);
}

#[test]
fn by_udp_it_is_the_same() {
    let mut simulator = Simulator::start_udp();
    let attach = [simulator.attach("H-A"), simulator.attach("H-B")];
    let mut hosts = Hosts::start(&attach, 1, true);
    hosts.wait_up(2);
    hosts.connect(("H-A", 1), ("H-B", 1));
    assert_eq!(hosts.granted(&mut simulator, "H-A").len(), 1);
}

#[test]
fn a_node_that_is_unknown_or_the_subnet_managers_is_refused_in_words() {
    let simulator = Simulator::start();
    // The subnet manager is there when it has brought this one up.
    let mut witness = Hosts::start(&[simulator.attach("H-A")], 0, false);
    witness.wait_port("H-A");
    let attach = [simulator.attach("H-X"), simulator.attach("H-SM")];
    let mut hosts = Hosts::start(&attach, 1, false);
    hosts.wait_told(2);
    let told = hosts.announcements();
    for (node, told) in ["H-X", "H-SM"].into_iter().zip(told) {
        let refused = format!("/{node}: the simulator refuses: no such node");
        assert!(told.contains(&refused), "{told}");
    }
}
