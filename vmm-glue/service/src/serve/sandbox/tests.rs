//! A process cannot leave its sandbox, so each test runs again in a process of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;

const INSIDE: &str = "VHCA_SANDBOX_TEST";

/// Whether this is the process that is to be confined.
fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs a test of this module again, in another process.
fn run_inside(name: &str) -> Output {
    let path = format!("serve::sandbox::tests::{name}");
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &path, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .unwrap()
}

fn assert_passes(name: &str) {
    let output = run_inside(name);
    assert!(output.status.success(), "{output:?}");
}

/// The process is ended, with a line that names the call.
fn assert_ended_by(name: &str, call: libc::c_long) {
    let output = run_inside(name);
    let said = String::from_utf8_lossy(&output.stderr);
    let line = format!("vhca: ended by its sandbox: system call {call} of ");
    assert!(said.contains(&line), "{output:?}");
    assert_eq!(output.status.code(), Some(128 + libc::SIGSYS));
}

fn enter_with_nothing() {
    enter(&Needs::default()).unwrap();
}

/// Whether the kernel confines files.
fn has_landlock() -> bool {
    File::open("/etc/passwd").is_err()
}

#[test]
fn what_the_service_does_goes_on_in_the_sandbox() {
    if !is_inside() {
        return assert_passes("what_the_service_does_goes_on_in_the_sandbox");
    }
    let folder = tempfile::tempdir().unwrap();
    let (sockets, trees) = (folder.path().join("vf"), folder.path().join("sys"));
    for made in [&sockets, &trees] {
        std::fs::create_dir(made).unwrap();
    }
    let mut needs = Needs::default();
    needs.folders.add_folder_of_sockets(&sockets);
    needs.folders.add_folder_of_trees(&trees);
    enter(&needs).unwrap();

    let socket = sockets.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut client = UnixStream::connect(&socket).unwrap();
    client.write_all(b"x").unwrap();
    let mut byte = [0];
    listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
    std::fs::remove_file(&socket).unwrap();
    std::fs::create_dir_all(trees.join("a/b")).unwrap();
    File::create(trees.join("a/b/c")).unwrap();
    std::fs::remove_dir_all(&trees).unwrap();
    let numbers = std::thread::spawn(|| (0..1 << 20).collect::<Vec<u64>>());
    assert_eq!(numbers.join().unwrap().len(), 1 << 20);
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    let elapsed = std::time::Instant::now().elapsed();
    std::thread::sleep(elapsed);
}

#[test]
fn no_program_can_be_started() {
    if !is_inside() {
        return assert_ended_by("no_program_can_be_started", libc::SYS_execve);
    }
    use std::os::unix::process::CommandExt;

    enter_with_nothing();
    let _ = Command::new("/bin/true").exec();
}

#[test]
fn no_process_can_be_started() {
    if !is_inside() {
        let output = run_inside("no_process_can_be_started");
        // A C library blocks all signals while it starts a process, so the kernel ends this one without a word.
        let ended = output.status.signal() == Some(libc::SIGSYS);
        let told = output.status.code() == Some(128 + libc::SIGSYS);
        assert!(ended || told, "{output:?}");
        return;
    }
    enter_with_nothing();
    let _ = Command::new("/bin/true").env_clear().spawn();
}

#[test]
fn no_memory_becomes_executable() {
    if !is_inside() {
        return assert_ended_by("no_memory_becomes_executable", libc::SYS_mmap);
    }
    enter_with_nothing();
    let rights = libc::PROT_READ | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let _ = vm_memory::mmap::MmapRegion::<()>::build(None, 4096, rights, flags);
}

#[test]
fn no_network_can_be_reached() {
    if !is_inside() {
        return assert_ended_by("no_network_can_be_reached", libc::SYS_socket);
    }
    enter_with_nothing();
    let _ = UdpSocket::bind("127.0.0.1:0");
}

#[test]
fn with_udp_there_is_no_tcp_where_the_kernel_can_tell() {
    if !is_inside() {
        return assert_passes("with_udp_there_is_no_tcp_where_the_kernel_can_tell");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    enter(&Needs {
        udp: true,
        ..Needs::default()
    })
    .unwrap();
    UdpSocket::bind("127.0.0.1:0").unwrap();
    // Landlock has known TCP since its fourth version, files since its first.
    if has_landlock() && TcpListener::bind("127.0.0.1:0").is_ok() {
        let numbers = release
            .split('.')
            .map_while(|part| part.parse::<u32>().ok());
        assert!(numbers.lt([6, 7]), "{release}");
    }
}

#[test]
fn no_file_but_its_own_can_be_reached() {
    if !is_inside() {
        return assert_passes("no_file_but_its_own_can_be_reached");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "x").unwrap();
    enter_with_nothing();
    if !has_landlock() {
        return;
    }
    let refused = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    };
    refused(File::open(&path).map(|_| ()));
    refused(std::fs::write(folder.path().join("new"), ""));
    refused(std::fs::remove_file(&path));
    refused(File::open("/proc/1/maps").map(|_| ()));
}
