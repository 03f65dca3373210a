//! Acceptance: both ports of a VF work in a guest.

use vhca_tests::live::PATIENCE;

use crate::fabric::{Fabric, Manager};
use crate::guest::Boot;

#[test]
fn both_ports_of_vfs_are_active_in_a_guest_and_the_second_one_carries_traffic() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "three-switch", "--vfs", "1"]);
    let mut boot = Boot::new("6.1", fabric.device("host-a", 1));
    boot.devices.push(fabric.device("host-b", 1));
    let mut guest = boot.start(fabric.dir(), "two-ports");
    let states = "cat /sys/class/infiniband/*/ports/*/state";
    guest.wait_until(PATIENCE, states, |states| {
        states
            .lines()
            .filter(|line| line.contains("ACTIVE"))
            .count()
            == 4
    });

    let info = guest.told("ibv_devinfo");
    let lines = |text| {
        info.lines()
            .filter(|line| line.trim().starts_with(text))
            .count()
    };
    assert_eq!(lines("hca_id:"), 2, "{info}");
    assert_eq!(lines("port:"), 4, "{info}");
    assert_eq!(
        lines("state:"),
        info.matches("PORT_ACTIVE").count(),
        "{info}"
    );
    for (device, host) in [("mlx4_0", "host-a"), ("mlx4_1", "host-b")] {
        let ports = fabric.rows("vfs", host);
        let guids = ports.iter().map(|row| row["guid"].as_str().unwrap());
        let shown = guest.told(&format!(
            "for port in 1 2; do ibstat {device} $port | sed -n 's/.*Port GUID: //p'; done"
        ));
        assert!(shown.lines().eq(guids), "{shown}");
    }

    guest.start("server", "ibv_ud_pingpong -d mlx4_0 -i 2 -n 100");
    guest.wait_until(PATIENCE, "ss -ltn", |sockets| sockets.contains(":18515"));
    let pong = guest.told("ibv_ud_pingpong -d mlx4_1 -i 2 -n 100 localhost");
    assert!(pong.contains("100 iters"), "{pong}");
}
