//! Acceptance: a kernel that another one started, without the firmware's resets between them, has the VF's port.

use std::time::Duration;

use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest};

/// For packing an initramfs, or loading a kernel.
const WORK: Duration = Duration::from_secs(120);

/// Packs the guest's files into an initramfs, and loads the kernel that it runs for later.
fn load(guest: &mut Guest, arguments: &str) {
    let pack =
        "cd / && find . -xdev ! -path './boot/*' ! -path './tmp/*' | cpio -o -H newc >/tmp/initrd";
    guest.told_within(WORK, pack);
    let load = format!("kexec -s --initrd=/tmp/initrd {arguments} /boot/vmlinuz");
    guest.told_within(WORK, &load);
}

/// Checks that the guest's driver has started once since the kernel did, and that the port is active.
fn has_its_port(guest: &mut Guest) {
    guest.wait_for_port();
    let resets = guest.told("dmesg | grep -c 'mlx4_core.*Sending reset'");
    assert_eq!(resets.trim(), "1");
    guest.told("ibstat | grep -q Active");
}

#[test]
fn a_kernel_started_by_kexec_binds_to_the_vf_again() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "single", "--vfs", "1"]);
    let mut guest = fabric.booted("6.1", "host-1", 1);
    load(&mut guest, "-l --append=\"$(cat /proc/cmdline) second\"");
    guest.restart_by("kexec -e");
    guest.told("grep -qw second /proc/cmdline");
    has_its_port(&mut guest);
}

/// Nothing shuts the first driver down: its queues are there until the second one resets the VF.
#[test]
fn the_kernel_that_saves_a_crashed_one_binds_to_the_vf() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "single", "--vfs", "1"]);
    let boot = Boot::new("6.1", fabric.device("host-1", 1));
    let boot = boot.with("--memory").with("1024");
    let boot = boot.with("--append").with("crashkernel=256M");
    let mut guest = boot.start(fabric.dir(), "crashing");
    guest.wait_for_port();
    let parameters = "sed 's/crashkernel=[^ ]*//' /proc/cmdline";
    load(
        &mut guest,
        &format!("-p --append=\"$({parameters}) nr_cpus=1 reset_devices\""),
    );
    guest.restart_by("sh -c 'echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger'");
    guest.told("test -s /proc/vmcore");
    has_its_port(&mut guest);
}
