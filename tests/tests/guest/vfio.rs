//! Acceptance: `vhca vfio` drives two VFs in a guest with an IOMMU.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vhca_tests::live::{PATIENCE, binary};

use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest};
use crate::ip::{address, bring_up};

/// Time for the traffic of a pair.
const LIMIT: Duration = Duration::from_secs(300);

/// Makes a folder of files for a guest: programs, each with the loader and the libraries of this machine.
pub(crate) fn files(dir: &Path, programs: &[&Path]) -> PathBuf {
    let root = dir.join("files");
    let (bin, own) = (root.join("usr/local/bin"), root.join("usr/local/vhca"));
    for folder in [&bin, &own] {
        fs::create_dir_all(folder).unwrap();
    }
    for program in programs {
        let name = program.file_name().unwrap().to_str().unwrap();
        fs::copy(program, own.join(name)).unwrap();
        let listed = Command::new("ldd").arg(program).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let libraries = listed
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        for library in libraries {
            let name = Path::new(library).file_name().unwrap();
            fs::copy(library, own.join(name)).unwrap();
        }
        let script = bin.join(name);
        let line = format!("exec $own/ld-linux-x86-64.so.2 --library-path $own $own/{name} \"$@\"");
        fs::write(&script, format!("#!/bin/sh\nown=/usr/local/vhca\n{line}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    }
    root
}

/// Boots a guest with an IOMMU on both VFs of a host, with the program and without drivers.
fn guest(kernel: &'static str, fabric: &Fabric, host: &str) -> Guest {
    let mut boot = Boot::new(kernel, None).with("--iommu");
    boot.devices = [1, 2].map(|vf| fabric.device(host, vf)).into();
    boot = boot.with("--append").with("vhca.load=no");
    boot = boot.with("--memory").with("1024").with("--add");
    let boot = boot.with(files(fabric.dir(), &[binary()]));
    boot.start(fabric.dir(), host)
}

/// Returns the PCI addresses of a guest's VFs.
fn addresses(guest: &mut Guest) -> Vec<String> {
    let told = guest.told("lspci -D -d 15b3:1004");
    let lines = told.lines().filter_map(|line| line.split(' ').next());
    lines.map(str::to_owned).collect()
}

/// Returns what the program says of a function that VFIO does not give.
fn refusal(guest: &mut Guest, address: &str) -> String {
    let outcome = guest.run(PATIENCE, &format!("vhca vfio {address} tour"));
    let outcome = outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(outcome.status, 2, "{}", outcome.text);
    assert_eq!(outcome.text.lines().count(), 1, "{}", outcome.text);
    outcome.text
}

/// Binds a VF to vfio-pci by the commands that `vhca vfio` prints.
fn give_to_vfio(guest: &mut Guest, address: &str) {
    let said = refusal(guest, address);
    assert!(
        said.contains("bound to no driver, not to vfio-pci"),
        "{said}"
    );
    let (_, commands) = said.trim().split_once("as root, ").expect("commands");
    guest.told(commands);
}

/// Binds a VF to mlx4_core again, and waits until its port is active.
fn give_back(guest: &mut Guest, address: &str) {
    let device = format!("/sys/bus/pci/devices/{address}");
    guest.told(&format!(
        "echo >{device}/driver_override; echo {address} >{device}/driver/unbind; modprobe -a mlx4_core mlx4_ib ib_uverbs; \
         echo {address} >/sys/bus/pci/drivers_probe"
    ));
    guest.wait_for_port();
}

/// Kills the `vhca vfio` that was started last, and waits until the next one has the VF: the kernel resets it in between.
fn kill(guest: &mut Guest, vf: &str) {
    guest.told("kill -9 $(cat /tmp/pid)");
    let tour = format!("vhca vfio {vf} tour 2>&1");
    guest.wait_until(PATIENCE, &tour, |told| told.contains("disconnected"));
}

/// Starts the program, which waits for a peer then. Its process id is in /tmp/pid.
fn wait_for_peer(guest: &mut Guest, command: &str) -> String {
    let program = format!("sh -c 'echo $$ >/tmp/pid; exec vhca vfio {command}'");
    guest.start("waiting", &program);
    guest.wait_until(PATIENCE, "cat /tmp/waiting", |log| log.contains("waiting"))
}

/// Connects two VFs of the guest.
fn a_connection_moves_data(guest: &mut Guest, [first, second]: [&str; 2]) {
    let log = wait_for_peer(guest, &format!("{second} connect"));
    let gid = log
        .split("GID ")
        .nth(1)
        .and_then(|rest| rest.split(',').next());
    let gid = gid.expect("the port in the first line");
    let told = guest.told(&format!("vhca vfio {first} connect {gid}"));
    let bytes = "1048576 bytes written to the peer and read back";
    assert!(told.contains(bytes), "{told}");
    guest.wait_until(PATIENCE, "cat /tmp/waiting", |log| {
        log.contains("disconnected")
    });
}

#[test]
fn a_program_drives_vfs_by_vfio_and_gives_them_back_however_it_ends() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", "2"]);
    let mut guest = guest("6.1", &fabric, "H1-1");

    // What is in the way is told with the commands that help.
    let vfs = addresses(&mut guest);
    let [first, second] = &vfs[..] else {
        panic!("{vfs:?}")
    };
    for vf in [first, second] {
        give_to_vfio(&mut guest, vf);
    }

    let told = guest.told_within(LIMIT, &format!("vhca vfio {first} tour"));
    for part in [
        "path to GID",
        "and received it",
        "1000 received",
        "read back",
        "disconnected",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    a_connection_moves_data(&mut guest, [first, second]);

    // Killed, it leaves the VF free as soon as the kernel has reset that.
    wait_for_peer(&mut guest, &format!("{first} connect"));
    let said = refusal(&mut guest, first);
    assert!(said.contains("in use by another process"), "{said}");
    kill(&mut guest, first);
    give_back(&mut guest, first);
}

/// Exchanges datagrams between `vhca vfio ping` in one guest and `ibv_ud_pingpong` in another.
fn datagrams_bounce_off_a_stock_guest(kernel: &'static str) {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", "2"]);
    let mut guests = [
        guest(kernel, &fabric, "H1-1"),
        fabric.booted(kernel, "H2-1", 1),
    ];
    let vfs = addresses(&mut guests[0]);
    give_to_vfio(&mut guests[0], &vfs[0]);
    // By the other VF both guests have addresses.
    guests[0].told("modprobe -a mlx4_core mlx4_ib ib_uverbs ib_ipoib");
    guests[0].wait_for_port();
    bring_up(&mut guests);
    let [program, stock] = &mut guests;
    let vf = &vfs[0];
    let iterations = full(1000, 10_000);
    wait_for_peer(program, &format!("{vf} ping -n {iterations}"));
    let bounce = |iterations: u32| format!("ibv_ud_pingpong -n {iterations} {}", address(0));
    let told = stock.told_within(LIMIT, &bounce(iterations));
    assert!(told.contains(&format!("{iterations} iters in")), "{told}");
    let received = format!("{iterations} received");
    program.wait_until(PATIENCE, "cat /tmp/waiting", |log| log.contains(&received));
    // It still gives the VF back.
    let is_there = "test -d /proc/$(cat /tmp/pid) || echo ended";
    program.wait_until(PATIENCE, is_there, |said| said.contains("ended"));

    // Killed amid datagrams, it leaves the VF free as well.
    wait_for_peer(program, &format!("{vf} ping -n 1000000"));
    stock.start("bouncing", &bounce(1_000_000));
    let counter = "cat /sys/class/infiniband/mlx4_0/ports/1/counters/port_rcv_packets";
    let before: u64 = stock.told(counter).trim().parse().unwrap();
    let is_amid = |now: &str| now.trim().parse().is_ok_and(|now: u64| now > before + 200);
    stock.wait_until(PATIENCE, counter, is_amid);
    kill(program, vf);
    stock.told("kill $(pidof ibv_ud_pingpong)");
    give_back(program, vf);
}

#[test]
fn datagrams_of_a_program_bounce_off_a_stock_guest_until_it_is_killed() {
    datagrams_bounce_off_a_stock_guest("6.1");
}

#[test]
fn with_linux_6_12_they_do_so_as_well() {
    if full(0, 1) == 0 {
        return eprintln!("not run without VHCA_GUEST_FULL=1");
    }
    datagrams_bounce_off_a_stock_guest("6.12");
}
