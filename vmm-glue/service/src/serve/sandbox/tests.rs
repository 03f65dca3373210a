//! A process cannot leave its sandbox, so each test runs again in a process of its own.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use rustix::fs::{AtFlags, CWD, MemfdFlags, chownat, linkat, memfd_create, renameat, symlinkat};
use tempfile::TempDir;

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

/// Enters the sandbox with a folder of sockets and a folder of trees, both below the first.
fn enter_with_folders() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (sockets, trees) = (folder.path().join("vf"), folder.path().join("sys"));
    for made in [&sockets, &trees] {
        std::fs::create_dir(made).unwrap();
    }
    let mut needs = Needs::default();
    needs.folders.add_folder_of_sockets(&sockets);
    needs.folders.add_folder_of_trees(&trees);
    enter(&needs).unwrap();
    (folder, sockets, trees)
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
    let (_folder, sockets, trees) = enter_with_folders();

    let socket = sockets.join("socket");
    UnixListener::bind(&socket).unwrap();
    std::fs::remove_file(&socket).unwrap();
    let (mut client, mut server) = UnixStream::pair().unwrap();
    client.write_all(b"x").unwrap();
    let mut byte = [0];
    server.read_exact(&mut byte).unwrap();
    std::fs::create_dir_all(trees.join("a/b")).unwrap();
    File::create(trees.join("a/b/next")).unwrap();
    linkat(
        CWD,
        trees.join("a/b/next"),
        CWD,
        trees.join("a/b/same"),
        AtFlags::empty(),
    )
    .unwrap();
    renameat(CWD, trees.join("a/b/next"), CWD, trees.join("a/b/c")).unwrap();
    std::fs::remove_dir_all(&trees).unwrap();
    let numbers = std::thread::spawn(|| (0..1 << 20).collect::<Vec<u64>>());
    assert_eq!(numbers.join().unwrap().len(), 1 << 20);
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    let elapsed = std::time::Instant::now().elapsed();
    std::thread::sleep(elapsed);
}

#[test]
fn links_are_made_in_the_folder_of_trees_alone() {
    if !is_inside() {
        return assert_passes("links_are_made_in_the_folder_of_trees_alone");
    }
    let (_folder, sockets, trees) = enter_with_folders();
    symlinkat("../a", CWD, trees.join("link")).unwrap();
    if has_landlock() {
        let elsewhere = symlinkat("../a", CWD, sockets.join("link"));
        assert_eq!(elsewhere, Err(rustix::io::Errno::ACCESS));
    }
}

#[test]
fn a_service_that_attaches_opens_sockets_and_connects() {
    if !is_inside() {
        return assert_passes("a_service_that_attaches_opens_sockets_and_connects");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut needs = Needs {
        attach: true,
        ..Needs::default()
    };
    needs.folders.add_folder_of_sockets(folder.path());
    enter(&needs).unwrap();
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, Permissions::from_mode(0o660)).unwrap();
    let no_follow = AtFlags::SYMLINK_NOFOLLOW;
    chownat(CWD, &socket, None, None, no_follow).unwrap();
    UnixStream::connect(&socket).unwrap();
}

#[test]
fn no_socket_of_others_can_be_connected_to() {
    if !is_inside() {
        return assert_ended_by("no_socket_of_others_can_be_connected_to", libc::SYS_connect);
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    enter_with_nothing();
    let _ = UnixStream::connect(&socket);
}

#[test]
fn no_file_changes_its_mode_or_owner() {
    if !is_inside() {
        let name = "no_file_changes_its_mode_or_owner";
        #[cfg(target_arch = "x86_64")]
        return assert_ended_by(name, libc::SYS_chmod);
        #[cfg(not(target_arch = "x86_64"))]
        return assert_ended_by(name, libc::SYS_fchmodat);
    }
    let folder = tempfile::tempdir().unwrap();
    enter_with_nothing();
    let _ = std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755));
}

#[test]
fn no_file_is_made_that_runs_as_its_owner() {
    if !is_inside() {
        return assert_ended_by("no_file_is_made_that_runs_as_its_owner", libc::SYS_openat);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut needs = Needs {
        attach: true,
        ..Needs::default()
    };
    needs.folders.add_folder_of_sockets(folder.path());
    enter(&needs).unwrap();
    let mut options = File::options();
    options.create(true).write(true).mode(0o4755);
    let _ = options.open(folder.path().join("file"));
}

#[test]
fn sockets_are_removed_where_nothing_else_is() {
    if !is_inside() {
        return assert_passes("sockets_are_removed_where_nothing_else_is");
    }
    let folder = tempfile::tempdir().unwrap();
    let [own, shared] = ["own", "shared"].map(|name| folder.path().join(name));
    let mut needs = Needs::default();
    for folder in [&own, &shared] {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("control.lock"), "").unwrap();
        UnixListener::bind(folder.join("control")).unwrap();
        needs.folders.add_socket(&folder.join("control"));
    }
    std::fs::create_dir(own.join("vf")).unwrap();
    needs.folders.add_folder_of_sockets(&own.join("vf"));
    std::fs::write(shared.join("precious"), "data").unwrap();
    enter(&needs).unwrap();
    std::fs::remove_file(own.join("control")).unwrap();
    if has_landlock() {
        std::fs::remove_file(shared.join("precious")).unwrap_err();
        std::fs::remove_file(shared.join("control")).unwrap_err();
    }
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
