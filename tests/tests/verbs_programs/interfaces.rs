//! The IP interface of a VF, as programs see it that list interfaces.

use vhca_tests::live::{Lab, PATIENCE, Process, Shim, wait_for};

use super::wait_until_up;

/// The program, which prints what each way to ask finds.
const PROGRAM: &str = include_str!("interfaces.py");

fn found(lab: &Lab, node: &str) -> String {
    lab.tool(Shim::Vhca, node, &["python3", "-c", PROGRAM])
}

/// Returns `true` once the VF answers ARP: the interface runs then.
fn is_running(lab: &Lab, node: &str) -> bool {
    found(lab, node).contains("flags 0x1043")
}

#[test]
fn programs_see_an_interface_with_the_address_of_their_vf() {
    let lab = Lab::serve(&["--verbs", "--verbs-network", "10.77.0.0/16"]);
    wait_until_up(&lab);
    let runs = wait_for(PATIENCE, || is_running(&lab, "H1-1/2").then_some(()));
    assert!(runs.is_some(), "the VF does not join its broadcast group");
    let listed = "\
getifaddrs lo
getifaddrs vhca1 0x11043 hardware of 20 bytes none none
getifaddrs vhca1 0x11043 10.77.1.2 255.255.0.0 10.77.255.255
behind the others: True
";
    let asked = "\
if_nameindex True True
addresses 10.77.1.2 255.255.0.0 10.77.255.255
of lo 127.0.0.1 True
of no interface 19
mtu 2044 2044 True
hardware 32
flags 0x1043
list True ['10.77.1.2']
counted True
index 2147483647 vhca1 vhca1 True
";
    assert_eq!(found(&lab, "H1-1/2"), [listed, listed, asked].concat());
    let other = found(&lab, "H2-1/1");
    assert!(other.contains("addresses 10.77.3.1 255.255.0.0"), "{other}");
    // A process that asks for its interface takes no VF.
    let program =
        "import signal, socket\nprint(socket.if_nameindex()[-1][1], flush=True)\nsignal.pause()";
    let mut command = lab.on(Shim::Vhca, "H1-1/2", &["python3", "-c", program]);
    let mut process = Process::start(lab.dir(), "asks", &mut command);
    process.wait_for_line("vhca1", PATIENCE);
    let shown = lab.json(&["show", "programs"]);
    let rows = shown["programs"].as_array();
    assert!(
        rows.is_some_and(|rows| rows.iter().all(|row| row["pid"].is_null())),
        "{shown}"
    );
}

#[test]
fn without_a_network_of_their_own_vfs_have_no_interface() {
    let lab = Lab::serve(&["--verbs"]);
    wait_until_up(&lab);
    let expected = "\
getifaddrs lo
behind the others: True
getifaddrs lo
behind the others: True
if_nameindex True False
addresses 19 19 19
of lo 127.0.0.1 True
of no interface 19
mtu 19 19 True
hardware 19
flags 19
list True []
counted True
no index
";
    assert_eq!(found(&lab, "H1-1/2"), expected);
}
