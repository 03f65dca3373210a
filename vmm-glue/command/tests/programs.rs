//! `vhca run` and `vhca env` as a user meets them. What programs see is tested with real ones
//! elsewhere; here something that only says hello stands in for the service, and a file for the library.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use tempfile::TempDir;
use umad_link::{Errno, Hello, HelloReply};

/// A folder with something in the places of the socket and the library.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    greeter(&dir.path().join("control.umad"));
    fs::write(dir.path().join("library.so"), "").unwrap();
    dir
}

/// A socket that greets whoever asks for adapters whose names begin with H, for as long as the test runs.
fn greeter(path: &Path) {
    let listener = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    net::listen(&listener, 8).unwrap();
    thread::spawn(move || {
        while let Ok(peer) = net::accept(&listener) {
            let mut bytes = [0; 4096];
            let (_, length) = net::recv(&peer, &mut bytes[..], RecvFlags::empty()).unwrap();
            let hello = Hello::decode(&bytes[..length]).unwrap();
            let is_known = hello.adapters.is_empty() || hello.adapters.starts_with('H');
            let result = if is_known {
                Ok(&b""[..])
            } else {
                Err(Errno::ENODEV)
            };
            let reply = HelloReply { result }.encode();
            net::send(&peer, &reply, SendFlags::NOSIGNAL).unwrap();
        }
    });
}

fn vhca(command: &str, dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vhca"))
        .arg(command)
        .arg("--control")
        .arg(dir.join("control.sock"))
        .arg("--preload")
        .arg(dir.join("library.so"))
        .args(arguments)
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_shell_that_evaluates_env_has_the_socket_beside_the_control_socket() {
    let dir = folder();
    let output = vhca("env", dir.path(), &["--node", "H-1,H-2"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // The library is no library, so nothing may be run with it.
    let script =
        text(&output.stdout) + "unset LD_PRELOAD; echo \"$VHCA_UMAD_NODE $VHCA_UMAD_SOCKET\"";
    let script = script.replace("export LD_PRELOAD", "LD_PRELOAD");
    let shell = Command::new("sh").args(["-c", &script]).output().unwrap();
    let socket = dir.path().join("control.umad");
    assert_eq!(
        text(&shell.stdout).trim_end(),
        format!("H-1,H-2 {}", socket.display())
    );
}

#[test]
fn a_service_with_its_umad_socket_elsewhere_is_found_by_its_control_socket() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("library.so"), "").unwrap();
    let elsewhere = dir.path().join("elsewhere.sock");
    let mut service = Command::new(env!("CARGO_BIN_EXE_vhca"))
        .args(["serve", "--vfs", "1", "--control"])
        .arg(dir.path().join("control.sock"))
        .arg("--umad")
        .arg(&elsewhere)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The client waits until the service answers.
    let output = vhca("run", dir.path(), &["sh", "-c", "echo $VHCA_UMAD_SOCKET"]);
    service.kill().unwrap();
    service.wait().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim_end(), elsewhere.to_str().unwrap());
}

#[test]
fn a_program_is_run_with_its_own_options_and_exit_status() {
    let dir = folder();
    let script = "echo $1 $VHCA_UMAD_NODE; exit 7";
    let output = vhca(
        "run",
        dir.path(),
        &["--node", "H-1", "--", "sh", "-c", script, "sh", "-x"],
    );
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "-x H-1\n");
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let dir = folder();
    let said = |output: &Output| {
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let message = said(&vhca("run", dir.path(), &["--node", "nosuch", "true"]));
    assert!(message.contains("no \"nosuch\""), "{message}");
    fs::remove_file(dir.path().join("library.so")).unwrap();
    let message = said(&vhca("env", dir.path(), &[]));
    assert!(message.contains("library.so"), "{message}");
    fs::write(dir.path().join("library.so"), "").unwrap();
    let socket = dir.path().join("control.umad");
    fs::remove_file(&socket).unwrap();
    let message = said(&vhca("env", dir.path(), &["--wait", "0"]));
    let absent = format!(
        "vhca: no service answers at {}; start `vhca serve`",
        socket.display()
    );
    assert!(message.starts_with(&absent), "{message}");
    assert_eq!(vhca("run", dir.path(), &[]).status.code(), Some(2));
}

#[test]
fn a_program_that_cannot_be_run_ends_with_the_status_that_shells_have() {
    let dir = folder();
    let plain = dir.path().join("plain");
    fs::write(&plain, "").unwrap();
    for (program, status, why) in [
        (
            "/nonexistent/program",
            127,
            "No such file or directory (os error 2)",
        ),
        (
            "no-such-program",
            127,
            "No such file or directory (os error 2)",
        ),
        (
            plain.to_str().unwrap(),
            126,
            "Permission denied (os error 13)",
        ),
        ("/tmp", 126, "Permission denied (os error 13)"),
    ] {
        let output = vhca("run", dir.path(), &["--", program]);
        assert_eq!(output.status.code(), Some(status), "{program}");
        let said = format!("vhca: cannot run {program}: {why}\n");
        assert_eq!(text(&output.stderr), said);
    }
}

#[test]
fn a_missing_program_is_named_with_the_package_that_has_it() {
    let dir = folder();
    let run = |program: &str, path: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_vhca"))
            .args(["run", "--control"])
            .arg(dir.path().join("control.sock"))
            .arg("--preload")
            .arg(dir.path().join("library.so"))
            .args(["--", program])
            .env("PATH", path)
            .output()
            .unwrap();
        (output.status.code(), text(&output.stderr))
    };
    // No machine has these programs of the packages.
    let said = "vhca: cannot run ibv_nothing: there is no such program; install the package ibverbs-utils\n";
    assert_eq!(
        run("ibv_nothing", "/nonexistent"),
        (Some(127), said.to_owned())
    );
    // Every machine has this one there.
    let said = "vhca: cannot run chroot: it is not in PATH; run /usr/sbin/chroot\n";
    assert_eq!(run("chroot", "/nonexistent"), (Some(127), said.to_owned()));
}

#[test]
fn a_program_waits_for_a_service_that_starts() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("library.so"), "").unwrap();
    let socket = dir.path().join("control.umad");
    let starts = thread::spawn(move || {
        thread::sleep(std::time::Duration::from_millis(300));
        greeter(&socket);
    });
    let output = vhca("run", dir.path(), &["--wait", "60", "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    starts.join().unwrap();
}

/// Writes a program without a loader that ends with status 0, with a note if there is one.
#[cfg(target_arch = "x86_64")]
fn static_program(dir: &Path, note: &[u8]) -> PathBuf {
    const BASE: u64 = 0x40_0000;
    // exit(0): xor edi, edi; mov eax, 60; syscall.
    const CODE: [u8; 9] = [0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    let code_at = 64 + 2 * 56;
    let note_at = code_at + CODE.len() as u64;
    let size = note_at + note.len() as u64;
    let segment = |kind: u32, rights: u32, at: u64, size: u64| {
        let words = [at, BASE + at, BASE + at, size, size, 0x1000];
        let words = words.map(u64::to_le_bytes).concat();
        [&kind.to_le_bytes()[..], &rights.to_le_bytes(), &words].concat()
    };
    let identity = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0";
    let kinds = [2_u16, 62, 1, 0].map(u16::to_le_bytes).concat();
    let places = [BASE + code_at, 64, 0].map(u64::to_le_bytes).concat();
    let sizes = [0_u16, 0, 64, 56, 2, 0, 0, 0]
        .map(u16::to_le_bytes)
        .concat();
    let bytes = [
        &identity[..],
        &kinds,
        &places,
        &sizes,
        &segment(1, 5, 0, size),
        &segment(4, 4, note_at, note.len() as u64),
        &CODE,
        note,
    ]
    .concat();
    let path = dir.join("static");
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_without_a_loader_is_run_after_a_line_that_it_will_not_see_the_vf() {
    let dir = folder();
    let go = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0id\0\0";
    for (note, reason) in [
        (&b""[..], "is linked statically"),
        (&go[..], "is a Go program built without cgo"),
    ] {
        let program = static_program(dir.path(), note);
        let program = program.to_str().unwrap();
        let output = vhca("run", dir.path(), &["--", program]);
        assert_eq!(output.status.code(), Some(0), "{program}");
        let said = format!(
            "vhca: {program} {reason}: it will see neither the VF nor the ports of the service\n"
        );
        assert_eq!(text(&output.stderr), said);
    }
}

#[test]
fn a_set_user_id_program_of_another_user_is_run_after_a_line_that_it_will_not_see_the_vf() {
    let dir = folder();
    let is_root = fs::metadata(dir.path()).unwrap().uid() == 0;
    let program = if is_root {
        let program = dir.path().join("set-user-id");
        fs::copy("/bin/true", &program).unwrap();
        chown(&program, Some(1), Some(1)).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
        program
    } else {
        PathBuf::from("/bin/su")
    };
    let program = program.to_str().unwrap();
    let output = vhca("run", dir.path(), &["--", program, "--version"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = format!("vhca: {program} is set-user-ID: it will see neither the VF");
    let all = text(&output.stderr);
    assert!(all.contains(&said), "{all}");
    let own = vhca("run", dir.path(), &["--", "true"]);
    assert!(!text(&own.stderr).contains("will see neither"));
}

#[test]
fn the_name_of_the_device_reaches_the_program_and_a_wrong_one_is_refused() {
    let dir = folder();
    let script = "echo $VHCA_UMAD_DEVICE";
    let arguments = ["--device", "mlx5_0", "--", "sh", "-c", script];
    let output = vhca("run", dir.path(), &arguments);
    assert_eq!(text(&output.stdout), "mlx5_0\n");
    let output = vhca("run", dir.path(), &["--device", "vhca0", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(
        said.starts_with("vhca: \"vhca0\" is no name for the device: "),
        "{said}"
    );
}
