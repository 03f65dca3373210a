//! Acceptance: a running guest takes VFs that the monitor adds, and gives them back by itself. While its VMM is stopped,
//! that is their fault.

use serde_json::{Value, json};
use vhca_tests::live::{PATIENCE, wait_for};

use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest, LOAD};
use crate::qmp::Qmp;

/// Waits until the ports of so many adapters are active.
fn wait_for_ports(guest: &mut Guest, adapters: usize) {
    let states = "cat /sys/class/infiniband/*/ports/1/state || dmesg | tail -n 30";
    guest.wait_until(PATIENCE, states, |states| {
        states
            .lines()
            .filter(|line| line.contains("ACTIVE"))
            .count()
            == adapters
    });
}

/// Waits until `vhca show vfs` has this fault for H1-1's VF, or none.
fn wait_for_fault(fabric: &Fabric, fault: &str) {
    let mut last = Value::Null;
    let found = wait_for(PATIENCE, || {
        last = fabric.rows("vfs", "H1-1")[0]["fault"].clone();
        (last.as_str().unwrap_or_default() == fault).then_some(())
    });
    assert!(found.is_some(), "the fault stays {last}");
}

#[test]
fn vfs_that_are_added_to_a_running_guest_carry_traffic_and_come_back_after_a_removal() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", "1"]);
    let socket = fabric.dir().join("hotplug.qmp");
    let boot = Boot::new("6.1", None).with("--slots").with("2");
    let boot = boot.with("--qmp").with(&socket);
    let mut guest = boot.start(fabric.dir(), "hotplug");
    let mut monitor = Qmp::connect(&socket);
    for (slot, host) in [("slot1", "H1-1"), ("slot2", "H2-1")] {
        let device = json!({
            "driver": "vfio-user-pci",
            "id": host,
            "bus": slot,
            "socket": { "type": "unix", "path": fabric.device(host, 1) },
        });
        monitor.run("device_add", &device);
    }
    let devices = "lspci -n | grep -c 15b3:1004 || true";
    guest.wait_until(PATIENCE, devices, |count| count.trim() == "2");
    guest.told(LOAD);
    wait_for_ports(&mut guest, 2);
    guest.start("server", "ibv_ud_pingpong -d mlx4_0 -n 100");
    guest.wait_until(PATIENCE, "ss -ltn", |sockets| sockets.contains(":18515"));
    let pong = guest.told("ibv_ud_pingpong -d mlx4_1 -n 100 localhost");
    assert!(pong.contains("100 iters"), "{pong}");

    // What stands in for `device_del`, which ends QEMU 11.1.
    let remove = "echo 1 >$(readlink -f /sys/class/infiniband/mlx4_1/device)/remove";
    guest.told(remove);
    wait_for_ports(&mut guest, 1);
    guest.told("echo 1 >/sys/bus/pci/rescan");
    wait_for_ports(&mut guest, 2);

    monitor.run("stop", &json!({}));
    for state in ["down", "up"] {
        fabric.lab.told(&["set", "link", "H1-1/1", state]);
    }
    wait_for_fault(&fabric, "guest_not_responding");
    monitor.run("cont", &json!({}));
    wait_for_fault(&fabric, "");
    wait_for_ports(&mut guest, 2);
}
