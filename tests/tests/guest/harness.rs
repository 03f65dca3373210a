//! The suite's own tools, and what they say when something is missing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::guest::{Boot, Guest, boot_script};

/// A guest without any device.
fn plain(dir: &tempfile::TempDir, boot: &Boot) -> Guest {
    boot.start(dir.path(), "plain")
}

/// What the script says when it fails.
fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_command_gives_its_output_and_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let mut guest = plain(&dir, &Boot::new("6.1", None));
    assert!(guest.told("uname -r").starts_with("6.1."));
    let outcome = guest.run(Duration::from_secs(10), "printf 'no newline'; exit 3");
    let outcome = outcome.unwrap();
    assert_eq!((outcome.text.as_str(), outcome.status), ("no newline", 3));
    // More than the guest's port and ours hold, and a job that goes on.
    guest.start("job", "sleep 1000");
    assert_eq!(guest.told("seq 20000").lines().count(), 20_000);
    assert_eq!(guest.told("jobs; pidof sleep | wc -l").trim(), "1");
}

#[test]
fn a_command_that_does_not_end_is_told_with_what_it_printed() {
    let dir = tempfile::tempdir().unwrap();
    let mut guest = plain(&dir, &Boot::new("6.1", None));
    let failure = guest
        .run(Duration::from_secs(2), "echo so far; sleep 1000")
        .unwrap_err()
        .to_string();
    for part in ["did not end within 2 s", "so far\n", "vhca-guest: up after"] {
        assert!(failure.contains(part), "no {part:?} in {failure}");
    }
}

#[test]
fn a_guest_that_dies_is_told_with_its_console() {
    let dir = tempfile::tempdir().unwrap();
    let mut guest = plain(&dir, &Boot::new("6.1", None));
    let failure = guest
        .run(
            // The kernel takes its time over a panic.
            Duration::from_secs(180),
            "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger",
        )
        .unwrap_err()
        .to_string();
    assert!(failure.contains("gone before"), "{failure}");
    assert!(failure.contains("sysrq_handle_crash"), "{failure}");
}

#[test]
fn a_guest_that_reboots_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut guest = plain(&dir, &Boot::new("6.1", None).with("--may-reboot"));
    guest.told("touch /before");
    guest.reboot();
    let after = guest.run(Duration::from_secs(10), "ls /before").unwrap();
    assert_ne!(after.status, 0);
}

#[test]
fn a_boot_that_takes_too_long_is_told_with_the_console() {
    let dir = tempfile::tempdir().unwrap();
    let boot = Boot::new("6.1", None);
    let failure = boot
        .try_start(dir.path(), "slow", Duration::from_millis(500))
        .unwrap_err()
        .to_string();
    assert!(failure.contains("the boot did not end within"), "{failure}");
}

#[test]
fn without_the_cache_the_way_to_fill_it_is_told() {
    let told = refusal(Command::new(boot_script()).env("VHCA_GUEST_CACHE", "/nonexistent"));
    assert!(told.contains("run tests/guest/prepare.sh first"), "{told}");
}

#[test]
fn an_unknown_kernel_is_refused_with_those_there_are() {
    let told = refusal(Command::new(boot_script()).args(["--kernel", "2.6"]));
    assert!(told.contains("6.1, 6.12 and cloud"), "{told}");
    let prepare = boot_script().with_file_name("prepare.sh");
    for kernel in ["2.6", "-k", "../bookworm"] {
        let told = refusal(Command::new(&prepare).arg(kernel));
        assert!(told.contains("a suite of Debian means its own"), "{told}");
    }
}

#[test]
fn a_device_without_a_server_is_refused_with_what_to_run() {
    let told = refusal(Command::new(boot_script()).args(["--vfio-user", "/nonexistent"]));
    assert!(told.contains("vhca serve --vfio-user"), "{told}");
}

/// A cache whose QEMU is a script of this line.
fn cache_with_qemu(line: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["kernel-6.1", "initramfs-6.1"] {
        fs::create_dir(dir.path().join(folder)).unwrap();
    }
    for file in ["kernel-6.1/vmlinuz", "initramfs-6.1/initrd"] {
        fs::write(dir.path().join(file), "").unwrap();
    }
    fs::create_dir_all(dir.path().join("userland/usr/bin")).unwrap();
    symlink("/bin/true", dir.path().join("userland/usr/bin/busybox")).unwrap();
    write_qemu(dir.path(), line);
    dir
}

/// Writes the script by a process of its own: one that this process had open would be busy in children of other tests.
fn write_qemu(cache: &Path, line: &str) {
    let script = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let qemu = cache.join("qemu-system-x86_64");
    let mut shell = Command::new("sh");
    let written = shell.args(["-c", script]).arg(qemu).arg(line).status();
    assert!(written.unwrap().success());
}

fn accel(cache: &Path) -> (String, String) {
    let mut command = Command::new(boot_script());
    command.arg("--accel").env("VHCA_GUEST_CACHE", cache);
    let Output {
        status,
        stdout,
        stderr,
    } = command.env_remove("VHCA_GUEST_ACCEL").output().unwrap();
    let [told, said] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(status.success(), "{said}");
    (told.trim().to_owned(), said)
}

#[test]
fn kvm_is_tried_once_a_boot_of_the_machine_and_used_if_a_guest_boots() {
    let kvm = fs::File::options().read(true).write(true).open("/dev/kvm");
    let works = "echo 'vhca-guest: exit 0'";
    let (with, without) = (cache_with_qemu(works), cache_with_qemu("exit 1"));
    if kvm.is_err() {
        // Then there is nothing to try.
        assert_eq!(accel(with.path()), ("tcg".to_owned(), String::new()));
        return;
    }
    assert_eq!(accel(with.path()), ("kvm".to_owned(), String::new()));
    let (told, said) = accel(without.path());
    assert_eq!(told, "tcg");
    assert!(said.contains("guests run under TCG"), "{said}");
    // It is not tried again until the machine was booted again.
    write_qemu(without.path(), works);
    assert_eq!(accel(without.path()), ("tcg".to_owned(), String::new()));
    fs::write(without.path().join("accel"), "another-boot tcg\n").unwrap();
    assert_eq!(accel(without.path()).0, "kvm");
}
