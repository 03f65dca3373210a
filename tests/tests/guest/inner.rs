//! Acceptance: guests on the VFs of a service in front of a Linux HCA, here a bare node's of another service.

use vhca_tests::live::{Lab, OpenSm, Shim};

use crate::guest::Boot;

/// Under an OpenSM of the outer fabric, which writes the VFs' GUIDs to the bare node's port.
#[test]
fn a_guest_in_front_of_a_linux_hca_has_a_port_and_asks_the_outer_sa() {
    let outer = Lab::serve(&["--bare", "H1-1", "--vfs", "1", "--sm", "none"]);
    let _opensm = OpenSm::start(&outer, Shim::Vhca, "mgmt", "");
    let sockets = tempfile::tempdir().unwrap();
    let folder = sockets.path().to_str().unwrap();
    let attached = ["--attach", "linux:vhca0/1", "--vfs", "2", "--no-sandbox"];
    let inner = Lab::serve_on(
        &outer,
        "H1-1",
        &[&attached[..], &["--vfio-user", folder]].concat(),
    );
    inner.told(&["show", "vfs", "--wait-up"]);

    let boot = Boot::new("6.1", sockets.path().join("vhca0-vf1.sock"));
    let mut guest = boot.wake(sockets.path(), "inner");
    guest.wait_for_port();
    let shown = guest.told("ibstat mlx4_0 1");
    assert!(shown.contains("State: Active"), "{shown}");
    let guid = shown
        .lines()
        .find_map(|line| line.trim().strip_prefix("Port GUID: "));
    let vfs = inner.told(&["show", "vfs"]);
    assert!(vfs.contains(guid.unwrap()), "{guid:?} in {vfs}");
    let nodes = guest.told("saquery NR");
    for name in ["H1-1", "H2-2", "mgmt", "S2"] {
        assert!(nodes.contains(name), "{name} in {nodes}");
    }
    let path = guest.told("saquery PR");
    assert!(path.contains("PathRecord dump"), "{path}");
}
