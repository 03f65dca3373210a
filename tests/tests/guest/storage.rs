//! Acceptance: the kernel's storage over RDMA and RDS between two guests, by the commands of the document, with equal bytes
//! and nothing left of it.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::time::Duration;

use vhca_tests::live::{PATIENCE, wait_for};

use crate::documents::block;
use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest};
use crate::ip::{address, bring_up};

const DOCUMENT: &str = "vmm-glue/vfio-user/docs/storage.md";

const SERVED: [&str; 4] = ["--topology", "two-switch", "--vfs", "1"];

const INITIATOR: (&str, u16) = ("H1-1", 1);
const TARGET: (&str, u16) = ("H2-1", 1);

/// Bytes of the target's disk.
const DISK: u64 = 1 << 30;

/// For megabytes by RDMA in translated guests on a busy machine.
const LONG: Duration = Duration::from_secs(500);

/// The time without the link.
const CUT: Duration = Duration::from_secs(20);

/// A protocol of the kernel: the first commands of its blocks in the document, and where the initiator finds the disk.
#[derive(Clone, Copy, Debug)]
struct Protocol {
    name: &'static str,
    serve: &'static str,
    attach: &'static str,
    detach: &'static str,
    place: &'static str,
}

const NVME: Protocol = Protocol {
    name: "nvme",
    serve: "storage-target nvme",
    attach: "modprobe nvme-rdma",
    detach: "nvme disconnect",
    place: "/dev/nvme0n1",
};

const ISER: Protocol = Protocol {
    name: "iser",
    serve: "storage-target iser",
    attach: "modprobe -a ib_iser",
    detach: "iscsiadm -m node -T iqn.2026-01.example:vhca -p 10.9.0.2 --logout",
    place: "/dev/sda",
};

const SRP: Protocol = Protocol {
    name: "srp",
    serve: "storage-target srp",
    attach: "modprobe -a ib_srp",
    detach: "for port in",
    place: "/dev/sda",
};

const NFS: Protocol = Protocol {
    name: "nfs",
    serve: "mke2fs",
    attach: "modprobe -a nfsv4",
    detach: "umount /mnt",
    place: "/mnt/data",
};

const PROTOCOLS: [Protocol; 4] = [NVME, ISER, SRP, NFS];

/// Runs a block of the document in a guest, with a variable set, and returns what it prints. A module is removed as soon as
/// it is not in use: the kernel ends connections in the background.
fn run(guest: &mut Guest, first: &str, variable: &str) -> String {
    let told = block(DOCUMENT, first).into_iter().map(|command| {
        let command = match command.strip_prefix("modprobe -r") {
            Some(modules) => format!("until modprobe -r {modules}; do sleep 0.2; done 2>/dev/null"),
            None => format!("{variable}; {command}"),
        };
        guest.told_within(PATIENCE, &command)
    });
    told.collect()
}

/// Two guests with addresses, the target's with a disk.
struct Pair {
    kernel: &'static str,
    fabric: Fabric,
    initiator: Guest,
    target: Guest,
}

impl Pair {
    fn new(kernel: &'static str, disks: [Option<PathBuf>; 2]) -> Self {
        let fabric = Fabric::new(Manager::Lite, &SERVED);
        let disk = fabric.dir().join("disk");
        let file = OpenOptions::new().write(true).create_new(true).open(&disk);
        file.unwrap().set_len(DISK).unwrap();
        let vfs = [(INITIATOR, None), (TARGET, Some(disk))];
        let fabric_of_boots = &fabric;
        let mut guests: [Guest; 2] = std::thread::scope(|scope| {
            let mut more = disks.into_iter();
            let boots = vfs.map(|((host, vf), disk)| {
                let disks = [disk, more.next().flatten()];
                scope.spawn(move || boot(fabric_of_boots, kernel, (host, vf), disks))
            });
            boots.map(|boot| {
                boot.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        });
        bring_up(&mut guests);
        let [mut initiator, target] = guests;
        initiator.told_within(PATIENCE, &format!("ping -q -c 3 -W 10 {}", address(1)));
        Self {
            kernel,
            fabric,
            initiator,
            target,
        }
    }

    /// Starts the target's service of its disk, and returns the address that it prints.
    fn serve(&mut self, protocol: Protocol) -> String {
        let gid = self
            .initiator
            .told("cat /sys/class/infiniband/mlx4_0/ports/1/gids/0");
        let guid = &gid.trim().replace(':', "")[16..];
        let told = run(&mut self.target, protocol.serve, &format!("GUID={guid}"));
        told.lines().last().expect("an address").to_owned()
    }

    fn attach(&mut self, protocol: Protocol) {
        let address = self.serve(protocol);
        run(
            &mut self.initiator,
            protocol.attach,
            &format!("ADDRESS='{address}'"),
        );
        if protocol.name != "nfs" {
            let place = protocol.place;
            let there = format!("until [ -b {place} ]; do sleep 0.1; done");
            self.initiator.told_within(PATIENCE, &there);
        }
    }

    /// Kills the target and boots it again, on the same VF and disk, and has it serve again.
    fn restart_target(&mut self, protocol: Protocol) {
        self.target.process.signal("KILL");
        self.target.process.wait(PATIENCE);
        let disk = self.fabric.dir().join("disk");
        self.target = boot(&self.fabric, self.kernel, TARGET, [Some(disk), None]);
        let up = format!(
            "ip address add {}/24 dev ib0 && ip link set ib0 up",
            address(1)
        );
        self.target.told(&up);
        self.target
            .wait_until(PATIENCE, "cat /sys/class/net/ib0/operstate", |state| {
                state.trim() == "up"
            });
        self.serve(protocol);
    }

    fn set_link(&self, state: &str) {
        let set = self.fabric.lab.ask(&["set", "link", "H1-1/1", state]);
        assert!(set.status.success(), "{set:?}");
    }

    /// Starts to write, waits until the write is under way, and returns.
    fn start_to_write(&mut self, protocol: Protocol) {
        self.initiator
            .start("write", &format!("({})", write(protocol)));
        self.initiator.told("sleep 1");
    }

    /// Waits for the write's end, and looks at the bytes.
    fn has_written(&mut self, protocol: Protocol) {
        let initiator = &mut self.initiator;
        initiator.told_within(LONG, "while pidof dd; do sleep 0.2; done");
        let log = initiator.told("cat /tmp/write");
        let told = initiator.told_within(LONG, &compare(protocol));
        assert_eq!(told, "equal\n", "{protocol:?}: {log}");
    }

    /// Takes the protocol away at both ends.
    fn detach(&mut self, protocol: Protocol) {
        run(&mut self.initiator, protocol.detach, ":");
        self.target
            .told_within(PATIENCE, &format!("storage-target stop {}", protocol.name));
        if protocol.name == "nfs" {
            self.target.told("umount /srv");
        }
    }

    /// Returns what each guest's kernel has of RDMA, but for completion queues: its core keeps shared ones for the next
    /// user (`ib_cq_pool_get`).
    fn objects(&mut self) -> [String; 2] {
        let show = "rdma resource show | sed 's/ cq [0-9]*//'";
        [&mut self.initiator, &mut self.target].map(|guest| guest.told(show))
    }
}

fn boot(
    fabric: &Fabric,
    kernel: &'static str,
    (host, vf): (&str, u16),
    disks: [Option<PathBuf>; 2],
) -> Guest {
    let mut boot = Boot::new(kernel, fabric.device(host, vf)).with("--storage");
    for disk in disks.into_iter().flatten() {
        boot = boot.with("--disk").with(disk);
    }
    let mut guest = boot.start(fabric.dir(), host);
    guest.wait_for_port();
    guest
}

/// A command that writes `/tmp/data` to the disk, past all caches.
fn write(protocol: Protocol) -> String {
    let place = protocol.place;
    format!("dd if=/tmp/data of={place} bs=1M conv=fsync && echo 3 >/proc/sys/vm/drop_caches")
}

/// A command that prints whether the disk has what `/tmp/data` has.
fn compare(protocol: Protocol) -> String {
    let place = protocol.place;
    format!("head -c $(stat -c %s /tmp/data) {place} | cmp - /tmp/data && echo equal")
}

fn fill(guest: &mut Guest, mebibytes: u32) {
    let fill = format!("dd if=/dev/urandom of=/tmp/data bs=1M count={mebibytes}");
    guest.told_within(LONG, &fill);
}

/// Bytes go there and back by each protocol, one after the other, and nothing is left of them.
fn bytes_go_there_and_back(kernel: &'static str, mebibytes: u32) {
    let mut pair = Pair::new(kernel, [None, None]);
    fill(&mut pair.initiator, mebibytes);
    let before = pair.objects();
    for protocol in PROTOCOLS {
        pair.attach(protocol);
        pair.initiator.told_within(LONG, &write(protocol));
        let told = pair.initiator.told_within(LONG, &compare(protocol));
        assert_eq!(told, "equal\n", "{protocol:?}");
        pair.detach(protocol);
        let gone = wait_for(PATIENCE, || (pair.objects() == before).then_some(()));
        assert!(
            gone.is_some(),
            "{protocol:?}: {before:?}, now {:?}",
            pair.objects()
        );
    }
}

#[test]
fn storage_moves_bytes_there_and_back_between_guests_with_6_1() {
    bytes_go_there_and_back("6.1", full(16, 256));
}

#[test]
fn storage_moves_bytes_there_and_back_between_guests_with_6_12() {
    bytes_go_there_and_back("6.12", 16);
}

/// The link of the initiator's host goes amid a write and comes back; the target's QEMU is killed amid another, and a new
/// one serves the same disk; then the link loses packets, and blocks have their checksums.
#[test]
fn storage_outlives_a_cut_link_a_killed_target_and_lost_packets() {
    let mut pair = Pair::new("6.1", [None, None]);
    fill(&mut pair.initiator, full(32, 256));
    let all = full(0, 1) != 0;
    for &protocol in if all { &PROTOCOLS[..] } else { &[NVME] } {
        pair.attach(protocol);
        if protocol.name == "srp" {
            pair.initiator.told(
                "for port in /sys/class/srp_remote_ports/port-*; do echo 60 >$port/fast_io_fail_tmo; done",
            );
        }
        pair.start_to_write(protocol);
        pair.set_link("down");
        std::thread::sleep(CUT);
        pair.set_link("up");
        pair.has_written(protocol);
        // A server of NFS would format its disk.
        if protocol.name != "nfs" {
            pair.start_to_write(protocol);
            pair.restart_target(protocol);
            pair.has_written(protocol);
        }
        for (size, loss) in [("4k", "loss=0%"), ("1m", "loss=1%")] {
            pair.set_link(loss);
            let told = pair.initiator.told_within(LONG, &fio(protocol, size));
            assert!(told.contains("err= 0"), "{protocol:?}, {size}: {told}");
        }
        pair.set_link("loss=0%");
        pair.detach(protocol);
    }
}

/// A command that writes blocks with checksums at random places, and reads them back.
fn fio(protocol: Protocol, size: &str) -> String {
    let (place, seconds) = (protocol.place, full(3, 120));
    format!(
        "fio --name=blocks --filename={place} --rw=randwrite --bs={size} --size=16m --direct=1 --verify=crc32c \
         --verify_backlog=16 --verify_fatal=1 --time_based --runtime={seconds}"
    )
}

/// A program on RDS sockets in both guests: datagrams of all lengths arrive once and in order.
#[test]
fn rds_carries_datagrams_both_ways_in_order() {
    let dir = tempfile::tempdir().unwrap();
    // A disk has whole sectors.
    let disks = [0, 1].map(|number| {
        let mut program = fs::read(env!("CARGO_BIN_EXE_rds_datagrams")).unwrap();
        program.resize(program.len().next_multiple_of(512), 0);
        let disk = dir.path().join(number.to_string());
        fs::write(&disk, program).unwrap();
        Some(disk)
    });
    let mut pair = Pair::new("6.1", disks);
    let count = full(250, 12_500);
    for (guest, disk, own, peer) in [
        (&mut pair.initiator, "vda", 0, 1),
        (&mut pair.target, "vdb", 1, 0),
    ] {
        run(guest, "modprobe rds_rdma", ":");
        guest.told(&format!(
            "cat /dev/{disk} >/tmp/rds && chmod +x /tmp/rds && mkfifo /tmp/go"
        ));
        let program = format!("exec /tmp/rds {} {} {count}", address(own), address(peer));
        guest.start("rds.log", &format!("sh -c '{program} <>/tmp/go'"));
    }
    for guest in [&mut pair.initiator, &mut pair.target] {
        guest.wait_until(PATIENCE, "cat /tmp/rds.log", |log| log == "bound\n");
    }
    for guest in [&mut pair.initiator, &mut pair.target] {
        guest.told("echo >/tmp/go");
    }
    let done = format!("bound\n8 sockets, {count} datagrams each way: all in order, none lost\n");
    for guest in [&mut pair.initiator, &mut pair.target] {
        let ended = |log: &str| log == done || log.contains("rds-datagrams:");
        let log = guest.wait_until(LONG, "cat /tmp/rds.log", ended);
        assert_eq!(log, done);
    }
    for guest in [&mut pair.initiator, &mut pair.target] {
        guest.told("killall rds");
    }
}
