//! Who may connect to a service: the real binary, and clients of other users.
//!
//! Other users take root; without it, what the service itself can do is tested.

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ibsim_link::codec::{CONTROL_SIZE, Connect, Control, ControlKind, SocketName};
use rustix::process::{Gid, Uid, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use zerocopy::IntoBytes;

use crate::serving::{Serve, vhca};

/// Users and a group that no file on the machine is of.
const VM_1: u32 = 64_001;
const VM_2: u32 = 64_002;
const OPERATORS: u32 = 64_010;

/// Does something as another user with one group, on a thread of its own, which alone changes its user.
fn as_user<T: Send>(uid: u32, gid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// A folder that others can pass through.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    folder
}

fn serve(arguments: &[String]) -> Serve {
    let folder = open_folder();
    let mut command = Serve::command(vhca(), folder.path(), 2);
    command.args(arguments);
    Serve::spawn(command, folder)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o777
}

fn sockets(serve: &Serve) -> Vec<PathBuf> {
    let offered = serve.ready["vfio_user"].as_array().unwrap().iter();
    offered
        .map(|offered| PathBuf::from(offered["socket"].as_str().unwrap()))
        .collect()
}

fn log(serve: &Serve) -> String {
    std::fs::read_to_string(serve.folder.path().join("log")).unwrap()
}

fn wait_for_log(serve: &Serve, text: &str) {
    let begun = Instant::now();
    while !log(serve).contains(text) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", log(serve));
    }
}

/// Starts a service whose options are wrong for its fabric or machine, and returns what it said.
fn refusal(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Serve::command(vhca(), folder.path(), 1);
    let output = command.args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn sockets_are_the_services_own_users_unless_others_are_named() {
    let serve = serve(&[]);
    for socket in sockets(&serve) {
        assert_eq!(mode(&socket), 0o600);
        assert_eq!(std::fs::metadata(&socket).unwrap().uid(), getuid().as_raw());
        if getuid().is_root() {
            let connected = as_user(VM_1, VM_1, || UnixStream::connect(&socket));
            let error = connected.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
    }
    let folder = serve.folder.path();
    assert_eq!(mode(&folder.join("vfs")), 0o700);
    assert_eq!(mode(&folder.join("control.sock")), 0o600);
    assert_eq!(mode(&folder.join("control.umad")), 0o600);
}

#[test]
fn each_vm_has_a_user_of_its_own_who_reaches_its_vf_and_no_other() {
    if !getuid().is_root() {
        let said = refusal(&["--access", "host-1/1=root"]);
        assert!(said.contains("CAP_CHOWN"), "{said}");
        return;
    }
    let serve = serve(&[
        format!("--access=host-1/1={VM_1}"),
        format!("--access=host-1/2={VM_2}::0600"),
    ]);
    let sockets = sockets(&serve);
    for (user, own) in [(VM_1, 0), (VM_2, 1)] {
        for (place, socket) in sockets.iter().enumerate() {
            let connected = as_user(user, user, || UnixStream::connect(socket));
            assert_eq!(connected.is_ok(), place == own, "{user}: {socket:?}");
        }
        let control = serve.folder.path().join("control.sock");
        let connected = as_user(user, user, || UnixStream::connect(control));
        assert!(connected.is_err(), "the control socket is not for VMMs");
        let listed = as_user(user, user, || {
            std::fs::read_dir(serve.folder.path().join("vfs")).map(|_| ())
        });
        assert!(listed.is_err(), "nobody learns of others' VFs");
    }
}

#[test]
fn a_group_operates_the_service_and_reaches_no_vf() {
    if !getuid().is_root() {
        return;
    }
    let serve = serve(&[
        format!("--access=control=:{OPERATORS}"),
        format!("--access=umad=:{OPERATORS}"),
    ]);
    let folder = serve.folder.path();
    for name in ["control.sock", "control.umad"] {
        let path = folder.join(name);
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o777), (OPERATORS, 0o660));
    }
    assert_eq!(mode(&folder.join("control.umad.sys")), 0o750);
    let control = folder.join("control.sock");
    let ask = || {
        use std::io::{BufRead, BufReader, Write};

        let mut stream = UnixStream::connect(&control)?;
        stream.write_all(b"{\"v\":2,\"request\":{\"metrics\":{}}}\n")?;
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply)?;
        Ok::<_, io::Error>(reply)
    };
    assert!(as_user(VM_1, OPERATORS, ask).unwrap().contains("\"ok\""));
    assert!(as_user(VM_1, VM_1, ask).is_err());
    for socket in sockets(&serve) {
        assert!(as_user(VM_1, OPERATORS, || UnixStream::connect(&socket)).is_err());
    }
}

#[test]
fn a_folder_that_keeps_those_out_who_may_connect_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let mut command = Serve::command(vhca(), folder.path(), 1);
    command.args(["--access", "all=::0666"]);
    let serve = Serve::spawn(command, folder);
    let closed = format!("{} is closed to them", serve.folder.path().display());
    wait_for_log(&serve, &closed);
    let vfs = serve.folder.path().join("vfs");
    assert_eq!(mode(&vfs), 0o711);
    assert_eq!(mode(&sockets(&serve)[0]), 0o666);
}

#[test]
fn access_to_what_is_not_there_is_refused_at_the_start() {
    let said = refusal(&["--access", "host-9/1=root"]);
    assert!(said.contains("host-9/1"), "{said}");
    let said = refusal(&["--access", "control=:no-such-group"]);
    assert!(said.contains("no group \"no-such-group\""), "{said}");
    let said = refusal(&["--ibsim-user", "no-such-user"]);
    assert!(said.contains("no user \"no-such-user\""), "{said}");
}

/// A service that is started with sockets as a service manager passes them.
fn with_passed(names: &str, pid: &str, sockets: [UnixListener; 2], folder: &Path) -> Command {
    let [first, second] = sockets;
    let serve = Serve::command(vhca(), folder, 2);
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!(
            "exec 3<&0 4<&2 2>\"$0\" 0</dev/null; LISTEN_PID={pid} exec \"$@\""
        ))
        .arg(folder.join("log"))
        .arg(serve.get_program())
        .args(serve.get_args())
        .env("LISTEN_FDS", "2")
        .env("LISTEN_FDNAMES", names)
        .stdin(OwnedFd::from(first))
        .stderr(OwnedFd::from(second))
        .stdout(Stdio::piped());
    command
}

#[test]
fn sockets_of_the_service_manager_are_used_and_left_to_it() {
    use std::io::{BufRead, BufReader};

    let folder = tempfile::tempdir().unwrap();
    let bind = |name| UnixListener::bind(folder.path().join(name)).unwrap();
    let passed = [bind("passed-control"), bind("passed-vf")];
    let mut command = with_passed("control:host-1/2", "$$", passed, folder.path());
    let mut child = command.spawn().unwrap();
    // With it go this process's copies of the sockets.
    drop(command);
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let control = folder.path().join("passed-control");
    assert_eq!(ready["control"], control.to_str().unwrap());
    let vf = folder.path().join("passed-vf");
    assert_eq!(ready["vfio_user"][1]["socket"], vf.to_str().unwrap());
    let first = ready["vfio_user"][0]["socket"].as_str().unwrap();
    assert!(first.contains("vfs/"), "{first}");

    let client = vfio_user::Client::new(&vf).unwrap();
    assert_eq!(client.region(2).unwrap().size, 8 << 20);
    let stop = vhca().arg("stop").arg("--control").arg(&control).status();
    assert!(stop.unwrap().success());
    assert!(child.wait().unwrap().success());
    assert!(
        vf.exists() && control.exists(),
        "they are not the service's"
    );
    assert!(!folder.path().join("control.sock").exists());
}

#[test]
fn sockets_that_were_passed_to_another_process_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let bind = |name| UnixListener::bind(folder.path().join(name)).unwrap();
    let sockets = [bind("a"), bind("b")];
    let mut command = with_passed("control:host-1/2", "1", sockets, folder.path());
    let serve = Serve::adopt(command.spawn().unwrap(), folder);
    let control = serve.folder.path().join("control.sock");
    assert_eq!(serve.ready["control"], control.to_str().unwrap());
}

#[test]
fn a_socket_that_was_passed_for_nothing_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let bind =
        |name: String| UnixListener::bind(folder.path().join(name.replace('/', "-"))).unwrap();
    for (names, status, why) in [
        ("control:door", 1, "FileDescriptorName="),
        ("control:control", 1, "twice"),
        ("control:all", 1, "one VF only"),
        ("control:host-9/1", 2, "no VF of that name"),
        ("control:umad", 1, "ListenSequentialPacket="),
    ] {
        let sockets = [bind(format!("{names}-1")), bind(format!("{names}-2"))];
        let mut command = with_passed(names, "$$", sockets, folder.path());
        assert_eq!(command.status().unwrap().code(), Some(status));
        let said = std::fs::read_to_string(folder.path().join("log")).unwrap();
        assert!(said.contains(why), "{names}: {said}");
    }
}

/// Asks an ibsim server to attach to a host, and tells what kind of an answer comes.
fn attach(base: &str, id: u32) -> ControlKind {
    let address = |name: SocketName| SocketAddr::from_abstract_name(name.bytes(base)).unwrap();
    let control = UnixDatagram::bind_addr(&address(SocketName::ClientControl(id))).unwrap();
    let _data = UnixDatagram::bind_addr(&address(SocketName::ClientData(id))).unwrap();
    let server = address(SocketName::ServerControl);
    control.connect_addr(&server).unwrap();
    let mut connect: Connect = Control::new(ControlKind::CONNECT, 0, &[0_u8; 44]).data();
    connect.set_node_name(b"host-1");
    connect.id = id.into();
    let request = Control::new(ControlKind::CONNECT, 0, &connect);
    control.send(request.as_bytes()).unwrap();
    let limit = Duration::from_secs(60);
    control.set_read_timeout(Some(limit)).unwrap();
    let mut reply = [0; CONTROL_SIZE];
    control.recv(&mut reply).unwrap();
    Control::parse(&reply).unwrap().kind
}

#[test]
fn programs_of_other_users_do_not_attach_by_ibsims_sockets() {
    let base = format!("vhca-access-{}", std::process::id());
    let mut arguments = vec![format!("--ibsim={base}")];
    if !getuid().is_root() {
        let _serve = serve(&arguments);
        assert_eq!(attach(&base, 1), ControlKind::CONNECT);
        return;
    }
    arguments.push(format!("--ibsim-user={VM_2}"));
    let serve = serve(&arguments);
    let of_stranger = as_user(VM_1, VM_1, || attach(&base, 1));
    assert_eq!(of_stranger, ControlKind::ERROR);
    wait_for_log(&serve, "--ibsim-user 64001");
    assert_eq!(
        as_user(VM_2, VM_2, || attach(&base, 2)),
        ControlKind::CONNECT
    );
    assert_eq!(attach(&base, 3), ControlKind::CONNECT);
}

#[test]
fn that_udp_lets_everybody_in_is_told_at_the_start() {
    // Below those that the system hands out.
    let port = 20_000 + std::process::id() % 10_000;
    let serve = serve(&[format!("--ibsim-udp={port}")]);
    wait_for_log(&serve, "every user of this host");
}
