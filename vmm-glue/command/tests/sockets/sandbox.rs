//! The sandbox of the real service, and what goes on in it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vfio_user::Client;
use vm_memory::FileOffset;
use vm_memory::mmap::MmapRegion;

use crate::serving::Serve;

const MEMORY: usize = 1 << 20;

fn memfd() -> OwnedFd {
    let fd = memfd_create("vhca-guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, MEMORY as u64).unwrap();
    fd
}

/// A VMM with this memory.
fn attach(serve: &Serve, memory: &OwnedFd) -> Client {
    let mut client = Client::new(&serve.socket()).unwrap();
    client
        .dma_map(0, 0, MEMORY as u64, memory.as_raw_fd())
        .unwrap();
    client
}

/// A line of a file about the service's process.
fn line_of(serve: &Serve, file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(serve.proc(file)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().to_owned()
}

fn wait_until(serve: &Serve, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        let log = std::fs::read_to_string(serve.folder.path().join("log"));
        assert!(begun.elapsed() < Duration::from_secs(60), "{log:?}");
    }
}

#[test]
fn the_service_is_confined_unless_it_is_told_not_to_be() {
    let serve = Serve::start(1);
    assert_eq!(line_of(&serve, "status", "Seccomp:"), "2");
    assert_eq!(line_of(&serve, "status", "NoNewPrivs:"), "1");
    let free = Serve::start_with(1, &["--no-sandbox"]);
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let seccomp = line_of(&free, "status", "Seccomp:");
    assert!(own.contains(&format!("Seccomp:\t{seccomp}\n")), "{own}");
}

#[test]
fn a_vmm_that_does_not_share_its_memory_is_found_out_by_a_confined_service() {
    let serve = Serve::start(1);
    let memory = memfd();
    let file = FileOffset::new(memory.try_clone().unwrap().into(), 0);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let _private = MmapRegion::<()>::build(Some(file), MEMORY, rights, libc::MAP_PRIVATE).unwrap();
    let _client = attach(&serve, &memory);
    let log = serve.folder.path().join("log");
    wait_until(&serve, || {
        let log = std::fs::read_to_string(&log).unwrap();
        log.contains("does not share its guest's memory")
    });
}

#[test]
fn a_guests_memory_is_left_out_of_core_files() {
    let serve = Serve::start(1);
    let _client = attach(&serve, &memfd());
    let smaps = std::fs::read_to_string(serve.proc("smaps")).unwrap();
    let (_, mapping) = smaps.split_once("/memfd:vhca-guest").unwrap();
    let (_, flags) = mapping.split_once("VmFlags:").unwrap();
    let (flags, _) = flags.split_once('\n').unwrap();
    assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
}

#[test]
fn a_confined_service_watches_the_memory_files_of_vfs_with_a_limit() {
    let serve = Serve::start_with(1, &["--guest-memory", "1"]);
    for _ in 0..3 {
        let mut client = attach(&serve, &memfd());
        let mut ids = [0; 4];
        client.region_read(7, 0, &mut ids).unwrap();
        assert_eq!(ids, [0xb3, 0x15, 0x04, 0x10]);
    }
}
