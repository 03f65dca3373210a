//! Acceptance: a driver under which its VF was reset notices by itself, and has its port again.

use serde_json::json;
use vhca_tests::live::PATIENCE;

use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest};
use crate::qmp::Qmp;

/// The folder of the VF's PCI function in the guest.
const DEVICE: &str = "/sys/bus/pci/devices/0000:00:01.0";

fn uptime(guest: &mut Guest) -> f64 {
    let told = guest.told("cut -d' ' -f1 /proc/uptime");
    told.trim().parse().unwrap()
}

/// Waits until the driver has started anew, and its port is active.
fn recovers(guest: &mut Guest, since: f64) {
    let log = "dmesg | grep mlx4";
    let told = guest.wait_until(PATIENCE, log, |log| {
        log.contains("mlx4_restart_one was ended")
    });
    assert!(told.contains("mlx4_restart_one was ended, ret=0"), "{told}");
    assert!(
        told.contains("Internal error detected on the communication channel"),
        "{told}"
    );
    guest.wait_for_port();
    // The driver looks every five seconds, and is loaded anew then, which takes one or two on an idle machine.
    let took = uptime(guest) - since;
    println!("the port was active again after {took:.1} s of the guest");
    guest.told("ibstat | grep -q Active");
}

/// Resets the VF under the driver, looks at it, and waits until the driver has its port again.
pub(crate) fn reset(guest: &mut Guest, look: impl FnOnce()) {
    let since = uptime(guest);
    guest.told(&format!("dmesg -c >/dev/null; echo 1 >{DEVICE}/reset"));
    look();
    recovers(guest, since);
}

fn code(fabric: &Fabric) -> String {
    let told = fabric.lab.ask(&["why", "host-1/1", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    told["code"].as_str().unwrap().to_owned()
}

#[test]
fn a_driver_under_which_the_function_is_reset_has_its_port_again() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "single", "--vfs", "1"]);
    let mut guest = fabric.guest("6.1", "host-1", 1);
    for _ in 0..2 {
        reset(&mut guest, || {
            let found = code(&fabric);
            assert!(
                ["driver_lost_track", "ok"].contains(&found.as_str()),
                "{found}"
            );
        });
        assert_eq!(code(&fabric), "ok");
    }
}

/// Saves a guest to a file, ends it, and continues it in another QEMU.
fn save_and_restore(guest: Guest, boot: &Boot, fabric: &Fabric) -> Guest {
    let dir = fabric.dir();
    let file = dir.join("state");
    let mut monitor = Qmp::connect(&dir.join("saved.qmp"));
    monitor.run("stop", &json!({}));
    monitor.save(&file);
    drop(guest);
    let boot = boot.clone().with("--incoming").with(&file);
    let boot = boot.with("--qmp").with(dir.join("restored.qmp"));
    let guest = boot.resume(dir, "restored");
    let mut monitor = Qmp::connect(&dir.join("restored.qmp"));
    monitor.wait_for("query-status", "status", "paused");
    monitor.run("cont", &json!({}));
    guest
}

/// QEMU 11.1 saves nothing of a vfio-user device, not even where the guest put its registers: the test writes that
/// back, as a hook in the guest can. All else is up to the driver.
#[test]
fn a_guest_that_was_saved_and_restored_has_its_port_again() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "single", "--vfs", "1"]);
    let boot = Boot::new("6.1", fabric.device("host-1", 1));
    let monitored = boot
        .clone()
        .with("--qmp")
        .with(fabric.dir().join("saved.qmp"));
    let mut guest = monitored.start(fabric.dir(), "saved");
    guest.wait_for_port();
    guest.told(&format!(
        "dmesg -c >/dev/null; head -c 64 {DEVICE}/config >/tmp/config"
    ));
    let mut guest = save_and_restore(guest, &boot, &fabric);
    let since = uptime(&mut guest);
    let part = |start: u32, length: u32| {
        format!(
            "dd if=/tmp/config of={DEVICE}/config bs=1 skip={start} seek={start} count={length} conv=notrunc 2>/dev/null"
        )
    };
    // Base addresses first, then the command register.
    guest.told(&format!("{} && {}", part(16, 24), part(4, 2)));
    recovers(&mut guest, since);
    assert_eq!(code(&fabric), "ok");
}
