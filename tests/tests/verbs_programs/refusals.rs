//! Programs that ask for a device and get none, and the line that says why.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use vhca_tests::live::{Lab, PATIENCE, Process, Shim, binary, wait_for};

use crate::lab;

/// Start of the line.
const LINE: &str = "vhca: no RDMA device: ";

/// Returns the reasons that a command prints.
fn reasons(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let reasons = text.lines().filter_map(|line| line.strip_prefix(LINE));
    reasons.map(str::to_owned).collect()
}

fn on(lab: &Lab, node: &str, program: &[&str]) -> Vec<String> {
    reasons(&mut lab.on(Shim::Vhca, node, program))
}

/// Returns a program with the library by the environment alone: `vhca run` waits for a service, and knows its nodes.
fn by_environment(lab: &Lab, node: &str, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", binary().with_file_name("libvhca_umad.so"));
    command.env("VHCA_UMAD_SOCKET", lab.dir().join("umad"));
    command.env("VHCA_UMAD_NODE", node);
    command
}

/// Starts a program that waits on a VF.
fn holder(lab: &Lab, vf: &str) -> Process {
    let name = vf.replace('/', "-");
    let command = &mut lab.on(Shim::Vhca, vf, &["stdbuf", "-oL", "ibv_asyncwatch"]);
    let mut holder = Process::start(lab.dir(), &name, command);
    holder.wait_for_line("async event FD", PATIENCE);
    holder
}

#[test]
fn a_program_without_a_vf_names_the_processes_that_have_them() {
    let lab = Lab::serve(&["--verbs", "--vfs", "2"]);
    let first = holder(&lab, "H1-1/1");
    let taken = format!("H1-1/1 is taken by process {}", first.id());
    assert_eq!(on(&lab, "H1-1/1", &["ibv_devinfo"]), [taken]);
    let _second = holder(&lab, "H1-1/2");
    let all = "all 2 VFs for programs of H1-1 are taken; vhca show programs lists their processes";
    assert_eq!(on(&lab, "H1-1", &["ibv_devinfo"]), [all]);
    let mut quiet = lab.on(Shim::Vhca, "H1-1", &["ibv_devinfo"]);
    assert_eq!(reasons(quiet.env("VHCA_QUIET", "1")), [""; 0]);
    // Neither asks for a device of verbs.
    let looks = "test -e /dev/infiniband/uverbs0; ls /sys/class/infiniband; stat /sys/class/infiniband_verbs";
    assert_eq!(on(&lab, "H1-1", &["sh", "-c", looks]), [""; 0]);
    assert_eq!(on(&lab, "H1-1", &["ibstat", "-l"]), [""; 0]);
}

#[test]
fn a_node_without_such_a_vf_is_named() {
    let lab = Lab::serve(&["--verbs", "--vfs", "1"]);
    let no_vf = "H1-1/9 is no VF for programs; vhca show programs lists those";
    assert_eq!(on(&lab, "H1-1/9", &["ibv_devices"]), [no_vf]);
    let no_node = "the service has no \"nosuch\"; vhca show fabric lists its nodes";
    for program in ["ibv_devices", "ibstat"] {
        let said = reasons(&mut by_environment(&lab, "nosuch", program));
        assert_eq!(said, [no_node], "{program}");
    }
}

#[test]
fn a_vf_of_vmms_is_refused_to_programs_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let vmms = folder.path().to_str().unwrap();
    let arguments = [
        "--verbs",
        "--vfio-user",
        vmms,
        "--vfs",
        "2",
        "--program-vfs",
        "1",
    ];
    let lab = Lab::serve(&arguments);
    let for_vmms = "H1-1/1 is no VF for programs, but for VMMs; vhca show programs lists those";
    assert_eq!(on(&lab, "H1-1/1", &["ibv_devices"]), [for_vmms]);
}

#[test]
fn a_service_without_verbs_is_named_to_programs_of_verbs_alone() {
    let lab = Lab::serve(&["--vfs", "1"]);
    let without = format!(
        "the service at {} runs without --verbs",
        lab.dir().join("umad").display()
    );
    assert_eq!(on(&lab, "H1-1", &["ibv_devices"]), [without]);
    assert_eq!(on(&lab, "H1-1", &["ibstat", "-l"]), [""; 0]);
}

#[test]
fn a_socket_that_the_user_may_not_use_is_named_with_the_user() {
    let lab = Lab::serve(&["--verbs", "--vfs", "1"]);
    let socket = lab.dir().join("umad.verbs");
    fs::set_permissions(&socket, Permissions::from_mode(0o000)).unwrap();
    let uid = fs::metadata(lab.dir()).unwrap().uid();
    // Root may use it all the same, but for its capabilities.
    let without = [
        "setpriv",
        "--inh-caps=-all",
        "--bounding-set=-all",
        "ibv_devices",
    ];
    let program = if uid == 0 {
        &without[..]
    } else {
        &without[3..]
    };
    let denied = format!(
        "{}: permission denied (uid {uid}; see --access)",
        socket.display()
    );
    assert_eq!(on(&lab, "H1-1", program), [denied]);
}

#[test]
fn a_service_that_is_gone_is_named_with_its_socket() {
    let mut lab = Lab::serve(&["--verbs", "--vfs", "1"]);
    lab.service().signal("KILL");
    lab.service().wait(PATIENCE);
    let (socket, verbs) = (lab.dir().join("umad"), lab.dir().join("umad.verbs"));
    let silent = format!("no vhca service answers at {}", verbs.display());
    let said = reasons(&mut by_environment(&lab, "H1-1", "ibv_devices"));
    assert_eq!(said, [silent]);
    fs::remove_file(&verbs).unwrap();
    fs::remove_file(&socket).unwrap();
    let absent = format!(
        "no vhca service answers at {}, which does not exist",
        socket.display()
    );
    let said = reasons(&mut by_environment(&lab, "H1-1", "ibv_devices"));
    assert_eq!(said, [absent]);
}

#[test]
fn a_program_without_proc_is_named_the_file_that_it_lacks() {
    // Containers may forbid it.
    let namespaces = Command::new("unshare").args(["-Urm", "true"]).status();
    if !namespaces.is_ok_and(|status| status.success()) {
        eprintln!("not run: a program without /proc, since user namespaces are forbidden here");
        return;
    }
    let lab = Lab::serve(&["--verbs", "--vfs", "1"]);
    let script = "mount -t tmpfs none /proc && exec ibv_devices";
    let said = on(&lab, "H1-1", &["unshare", "-Urm", "sh", "-c", script]);
    let lacks = "cannot open /proc/self/mem: No such file or directory (os error 2)";
    assert_eq!(said, [lacks]);
}

#[test]
fn a_program_that_closes_all_descriptors_is_named_that() {
    let lab = Lab::serve(&["--verbs", "--vfs", "1"]);
    let script = "
import ctypes, os
verbs, count = ctypes.CDLL('libibverbs.so.1'), ctypes.c_int()
verbs.ibv_get_device_list.restype = ctypes.c_void_p
verbs.ibv_get_device_list(ctypes.byref(count))
assert count.value == 1
os.closerange(3, 4096)
verbs.ibv_get_device_list(ctypes.byref(count))
assert count.value == 0, count.value
";
    let said = on(&lab, "H1-1", &["/usr/bin/python3", "-c", script]);
    let closed = "the program closed the descriptor of its connection to the service";
    assert_eq!(said, [closed]);
}

#[test]
fn a_device_has_the_name_that_the_user_wants() {
    let lab = lab();
    let mut command = Command::new(binary());
    command.args(["run", "--device", "mlx5_0", "--node", "H1-1/1", "--socket"]);
    command.arg(lab.dir().join("umad"));
    let output = command.args(["--", "ibv_devinfo"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("hca_id:\tmlx5_0"), "{text}");
    assert!(text.contains("PORT_ACTIVE (4)"), "{text}");
}

/// Compiles a program of C. `None` if there is no compiler, or without what the options need.
fn compiled(lab: &Lab, source: &str, options: &[&str]) -> Option<PathBuf> {
    let (file, program) = (lab.dir().join("program.c"), lab.dir().join("program"));
    fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg(&file).arg("-o").arg(&program).args(options);
    let status = compiler.output().ok()?.status;
    status.success().then_some(program)
}

#[test]
fn a_program_with_address_sanitizer_starts() {
    let lab = lab();
    let source = "#include <stdio.h>\nint main(void) { puts(\"runs\"); return 0; }\n";
    let Some(program) = compiled(&lab, source, &["-fsanitize=address"]) else {
        eprintln!("not run: a program with AddressSanitizer, which the compiler does not have");
        return;
    };
    let program = program.to_str().unwrap();
    assert_eq!(lab.tool(Shim::Vhca, "H1-1/1", &[program]), "runs\n");
}

#[test]
fn a_vf_that_is_free_again_is_refused_no_longer() {
    let lab = Lab::serve(&["--verbs", "--vfs", "1"]);
    let mut first = holder(&lab, "H1-1/1");
    assert_eq!(on(&lab, "H1-1/1", &["ibv_devices"]).len(), 1);
    first.signal("TERM");
    first.wait(PATIENCE);
    let free = wait_for(PATIENCE, || {
        on(&lab, "H1-1/1", &["ibv_devices"])
            .is_empty()
            .then_some(())
    });
    assert!(free.is_some(), "the VF is free again");
}
