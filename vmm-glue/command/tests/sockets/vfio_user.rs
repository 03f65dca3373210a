//! VFs for VMMs as a user meets them: the real service, clients that come and go, and what is left of them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use serde_json::Value;
use vfio_user::Client;

use crate::serving::{Serve, vhca};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A service that VMMs come to and go from.
struct Visited(Serve);

impl Visited {
    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = vhca();
        command.args(arguments);
        command.env("VHCA_CONTROL", self.0.folder.path().join("control.sock"));
        command.output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ask(arguments);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What is shown of the first VF.
    fn vmm(&self) -> Value {
        self.json(&["show", "vfs", "--json"])["vmms"][0].clone()
    }

    fn wait_until(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let vmm = self.vmm();
            if is_so(&vmm) {
                return vmm;
            }
            assert!(begun.elapsed() < LIMIT, "{vmm}");
        }
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(self.0.proc("fd")).unwrap().count()
    }

    /// Memory mappings.
    fn mappings(&self) -> usize {
        std::fs::read_to_string(self.0.proc("maps"))
            .unwrap()
            .lines()
            .count()
    }

    /// Resident memory in KiB.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(self.0.proc("status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

fn memfd(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

const MEMORY: u64 = 64 << 20;

/// A client as a VMM is: it has read what the device is, shared its memory, and set its interrupts.
fn attach(socket: &Path) -> (Client, OwnedFd) {
    use rustix::event::{EventfdFlags, eventfd};

    let mut client = Client::new(socket).unwrap();
    let memory = memfd(MEMORY);
    client.dma_map(0, 0, MEMORY, memory.as_raw_fd()).unwrap();
    let signals: Vec<OwnedFd> = (0..33)
        .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
        .collect();
    let raw: Vec<_> = signals.iter().map(AsRawFd::as_raw_fd).collect();
    client.set_irqs(2, 1 << 2 | 1 << 5, 0, 33, &raw).unwrap();
    (client, memory)
}

#[test]
fn a_client_finds_a_connectx_3_vf() {
    let serve = Visited(Serve::start(2));
    let (mut client, _memory) = attach(&serve.0.socket());
    let mut ids = [0; 4];
    client.region_read(7, 0, &mut ids).unwrap();
    assert_eq!(ids, [0xb3, 0x15, 0x04, 0x10]);
    assert_eq!(client.region(2).unwrap().size, 8 << 20);
    let vmm = serve.wait_until(|vmm| vmm["attached"] == true);
    assert_eq!(vmm["pid"], std::process::id());
    assert_eq!(vmm["shared_bytes"], MEMORY);
    assert_eq!(vmm["vectors"], 33);
}

#[test]
fn fifty_vmms_one_after_another_leave_nothing_behind() {
    let serve = Visited(Serve::start(2));
    let socket = serve.0.socket();
    let come_and_go = |times: u64| {
        for _ in 0..times {
            let before = serve.vmm()["vmms"].as_u64().unwrap();
            let (mut client, _memory) = attach(&socket);
            client.region_write(7, 4, &[6, 0]).unwrap();
            client.region_write(2, 0, &[0x80, 0, 0, 0]).unwrap();
            drop(client);
            serve.wait_until(|vmm| vmm["attached"] == false && vmm["vmms"] == before + 1);
        }
    };
    come_and_go(5);
    let before = (serve.descriptors(), serve.mappings());
    let resident = serve.resident();
    come_and_go(50);
    let vmm = serve.vmm();
    assert_eq!(
        (&vmm["vmms"], &vmm["shared_bytes"]),
        (&55.into(), &0.into())
    );
    // The connection of who asked last may not be closed yet, then or now.
    let begun = Instant::now();
    while serve.descriptors() > before.0
        || serve.mappings() > before.1 + 4
        || serve.resident() >= resident + 2048
    {
        assert!(begun.elapsed() < LIMIT, "{before:?}, {resident} KiB");
    }
}

/// Starts a service that the host lets have no asynchronous I/O, as a container's seccomp profile or a full
/// `fs.aio-max-nr` does.
fn start_without_aio() -> Visited {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    let refused = SeccompAction::Errno(Errno::AGAIN.raw_os_error().unsigned_abs());
    let rules = [(libc::SYS_io_setup, Vec::new())].into();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    let start = move || {
        apply_filter(&program).unwrap();
        Visited(Serve::start(2))
    };
    std::thread::spawn(start).join().unwrap()
}

#[test]
fn a_vmm_is_turned_away_where_its_interrupts_could_not_be_signalled_without_waiting() {
    let serve = start_without_aio();
    let Err(refused) = Client::new(&serve.0.socket()) else {
        panic!("it was let in");
    };
    drop(refused);
    let mut socket = UnixStream::connect(serve.0.socket()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    // VERSION 0.0 without capabilities.
    socket
        .write_all(b"\x01\0\x01\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")
        .unwrap();
    let mut reply = [0; 16];
    socket.read_exact(&mut reply).unwrap();
    assert_eq!(i32::from(reply[12]), Errno::AGAIN.raw_os_error());
    let vmm = serve.wait_until(|vmm| vmm["refused"] == 2);
    assert_eq!((&vmm["attached"], &vmm["vmms"]), (&false.into(), &0.into()));
    let log = std::fs::read_to_string(serve.0.folder.path().join("log")).unwrap();
    assert!(log.contains("fs.aio-max-nr"), "{log}");
}

#[test]
fn a_vmm_that_has_its_full_eventfd_wait_stops_nobody() {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{OFlags, fcntl_setfl};

    const TRIGGER: u32 = 1 << 0 | 1 << 5;
    let serve = Visited(Serve::start(2));
    let mut client = Client::new(&serve.0.socket()).unwrap();
    let signal = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let by_eventfd = 1 << 2 | 1 << 5;
    client
        .set_irqs(2, by_eventfd, 0, 1, &[signal.as_raw_fd()])
        .unwrap();
    rustix::io::write(&signal, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fcntl_setfl(&signal, OFlags::empty()).unwrap();
    for _ in 0..3 {
        client.set_irqs(2, TRIGGER, 0, 1, &[]).unwrap();
    }
    let mut ids = [0; 4];
    client.region_read(7, 0, &mut ids).unwrap();
    assert_eq!(ids, [0xb3, 0x15, 0x04, 0x10]);
}

#[test]
fn what_qemu_is_to_be_given_names_the_socket_and_shares_memory() {
    let serve = Visited(Serve::start(2));
    let host = serve.0.ready["vfio_user"][0]["host"].as_str().unwrap();
    for name in [format!("{host}/1"), format!("{host}/vf1")] {
        let json = serve.json(&["qemu-args", &name, "--memory", "256", "--json"]);
        let args: Vec<&str> = json["args"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(Value::as_str)
            .collect();
        assert!(args.contains(&"memory-backend-memfd,id=ram,size=256M,share=on"));
        let device: Value = serde_json::from_str(args.last().unwrap()).unwrap();
        assert_eq!(device["driver"], "vfio-user-pci");
        assert_eq!(device["socket"]["path"], serve.0.socket().to_str().unwrap());
    }
    let none = serve.ask(&["qemu-args", &format!("{host}/9")]);
    let said = String::from_utf8(none.stderr).unwrap();
    assert!(!none.status.success());
    let no_such = format!("{host} has no VF 9, it has 2: ");
    assert!(said.contains(&no_such) && said.contains("--vfs"), "{said}");
    let begun = Instant::now();
    while serve.json(&["why", &format!("{host}/1"), "--json"])["code"] != "no_vmm" {
        assert!(begun.elapsed() < LIMIT);
    }
}

#[test]
fn garbage_at_all_sockets_at_once_hurts_nobody() {
    let serve = Visited(Serve::start(2));
    let offered = serve.0.ready["vfio_user"].as_array().unwrap().clone();
    let (own, others) = offered.split_first().unwrap();
    let (mut client, _memory) = attach(Path::new(own["socket"].as_str().unwrap()));
    let descriptors = serve.descriptors();
    let mut noise = vec![0; 1 << 16];
    File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut noise)
        .unwrap();
    for part in noise.chunks(1 << 10) {
        for other in others {
            let path = other["socket"].as_str().unwrap();
            let mut socket = UnixStream::connect(path).unwrap();
            // It may be cut off before it has said all.
            let _ = socket.write_all(part);
        }
        let mut bytes = [0; 4];
        client.region_read(7, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [0xb3, 0x15, 0x04, 0x10]);
    }
    let begun = Instant::now();
    while serve.descriptors() > descriptors {
        assert!(begun.elapsed() < LIMIT);
    }
    let shown = serve.json(&["show", "vfs", "--json"]);
    let attached = shown["vmms"].as_array().unwrap().iter();
    assert_eq!(attached.filter(|vmm| vmm["attached"] == true).count(), 1);
}

#[test]
fn guests_of_its_own_and_vmms_exclude_each_other() {
    let output = vhca()
        .args(["serve", "--guests", "--vfio-user", "/tmp/x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("vhca.toml");
    std::fs::write(&file, "guests = true\nvfio_user = \"/tmp/x\"\n").unwrap();
    let output = vhca().arg("serve").arg("--config").arg(&file).output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("guests"),
        "{said}"
    );
}
