//! The device in `/sys` and `/dev`, as programs see it that use no verbs.

mod recorded;

use std::fs;
use std::path::Path;

use vhca_tests::live::{Lab, PATIENCE, Process, Shim, wait_for};

use super::lab;

/// Folder of the VF's PCI function.
const FUNCTION: &str = "/sys/devices/pci7ca0:00/7ca0:00:00.1";

/// Returns the output of a shell's script on a VF.
fn script(lab: &Lab, node: &str, script: &str) -> String {
    lab.tool(Shim::Vhca, node, &["bash", "-c", script])
}

#[test]
fn shell_tools_find_the_device_by_every_kind_of_path() {
    let lab = lab();
    let state = "4: ACTIVE";
    for (line, expected) in [
        ("cat /sys/class/infiniband/vhca1/ports/1/state", state),
        (
            "cat /sys/class/infiniband/vhca1/../../infiniband/vhca1/ports/1/state",
            state,
        ),
        ("cd /sys/class/infiniband && cat vhca1/ports/1/state", state),
        ("cd /sys/class && cat infiniband/vhca1/ports/1/state", state),
        (
            "cd / && cat sys/class/infiniband/vhca1/ports/1/state",
            state,
        ),
        (
            "cd /sys/class/infiniband/vhca1/ports/1 && cat ../../device/class",
            "0x020700",
        ),
        ("cd -P /sys/class/infiniband/vhca1/device && pwd", FUNCTION),
        ("realpath /sys/class/infiniband/vhca1/../..", FUNCTION),
        (
            "readlink -f /sys/class/infiniband_verbs/uverbs0/device",
            FUNCTION,
        ),
        ("cat /sys/class/infiniband_verbs/uverbs0/ibdev", "vhca1"),
        ("cat /sys/class/infiniband/vhca1/device/numa_node", "0"),
        (
            "cat /sys/class/infiniband/vhca1/ports/1/gid_attrs/types/0",
            "IB/RoCE v1",
        ),
        (
            "stat -c %F:%t:%T /dev/infiniband/uverbs0",
            "character special file:e7:c0",
        ),
        ("stat -c %t:%T /dev/infiniband/rdma_cm", "a:7a"),
        ("ls /sys/class | grep -c '^infiniband'", "3"),
        (
            "find /sys/class -maxdepth 1 -name 'infiniband*' | wc -l",
            "3",
        ),
        ("ls /dev | grep infiniband", "infiniband"),
        (
            "echo /sys/class/infiniband/*",
            "/sys/class/infiniband/vhca0 /sys/class/infiniband/vhca1",
        ),
        (
            "test -r /dev/infiniband/uverbs0 && test -w /dev/infiniband/rdma_cm && echo ok",
            "ok",
        ),
        ("test -d /sys/class/infiniband/../net/lo && echo ok", "ok"),
        (
            "cat /sys/class/infiniband/vhca7/node_guid 2>&1 | grep -c 'No such file'",
            "1",
        ),
    ] {
        let found = script(&lab, "H1-1/2", line);
        assert_eq!(found.trim(), expected, "{line}");
    }
    let listed = script(
        &lab,
        "H1-1/2",
        "ls -lR /sys/class/infiniband/ /dev/infiniband 2>&1",
    );
    assert!(!listed.contains("cannot"), "{listed}");
    let read = script(
        &lab,
        "H1-1/2",
        &format!("find {FUNCTION}/ -type f -exec cat {{}} + 2>&1"),
    );
    assert!(!read.contains("cat:"), "{read}");
    let free = lab.json(&["show", "programs"]);
    let rows = free["programs"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["pid"].is_null()), "{free}");
}

#[test]
fn python_and_ibstat_find_the_device() {
    let lab = lab();
    let program = "import os, glob\n\
        print(os.path.realpath('/sys/class/infiniband/vhca1/../..'))\n\
        print(sorted(os.listdir('/sys/class/infiniband')))\n\
        print(sorted(glob.glob('/sys/class/infiniband_verbs/uverbs*')))\n\
        os.chdir('/sys/class/infiniband/vhca1/ports')\n\
        print(os.getcwd())\n\
        print(open('1/link_layer').read().strip())\n\
        root = os.open('/', os.O_RDONLY)\n\
        fd = os.open('sys/class/infiniband/vhca1/node_type', os.O_RDONLY, dir_fd=root)\n\
        print(os.read(fd, 100))";
    let found = lab.tool(Shim::Vhca, "H1-1/1", &["python3", "-c", program]);
    let expected = format!(
        "{FUNCTION}\n['vhca0', 'vhca1']\n['/sys/class/infiniband_verbs/uverbs0']\n\
         {FUNCTION}/infiniband/vhca1/ports\nInfiniBand\nb'1: CA\\n'"
    );
    assert_eq!(found.trim(), expected);
    let program = "import ctypes\n\
        found = []\n\
        visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int))(\n\
        \x20   lambda path, status, kind, position: found.append(path[position[0]:].decode()) or 0)\n\
        print(ctypes.CDLL(None).nftw(b'/sys/class/infiniband/vhca1/ports/1/pkeys', visit, 8, 0), sorted(found)[-1], len(found) > 1)";
    let walked = lab.tool(Shim::Vhca, "H1-1/1", &["python3", "-c", program]);
    assert_eq!(walked.trim(), "0 pkeys True");
    let stat = lab.tool(Shim::Vhca, "H1-1/1", &["ibstat", "vhca1"]);
    assert!(
        stat.contains("CA type: vhca") && stat.contains("State: Active"),
        "{stat}"
    );
}

/// Programs that make their own system calls read the files of the folder.
#[test]
fn files_in_the_folder_follow_the_device() {
    let lab = lab();
    let said = lab.told(&["env", "--node", "H1-1/1"]);
    let folder = said
        .lines()
        .find_map(|line| line.strip_prefix("export VHCA_SYSFS='"));
    let folder = folder.unwrap().trim_end_matches('\'');
    let state = Path::new(folder).join("sys/class/infiniband/vhca1/ports/1/state");
    let reads = |wanted: &str| {
        let found = wait_for(PATIENCE, || {
            let text = fs::read_to_string(&state).ok()?;
            (text == format!("{wanted}\n")).then_some(())
        });
        assert!(found.is_some(), "{wanted} is not in {}", state.display());
    };
    reads("4: ACTIVE");
    lab.told(&["set", "link", "H1-1/1", "down"]);
    reads("1: DOWN");
    lab.told(&["set", "link", "H1-1/1", "up"]);
    reads("4: ACTIVE");
    assert!(fs::read_link(Path::new(folder).join("sys/class/infiniband/vhca1")).is_ok());
}

/// iproute2 shows the objects of the program on the VF that it names, and takes no VF.
#[test]
fn rdma_shows_the_objects_and_counters_of_a_program() {
    let lab = lab();
    let server = &mut lab.on(Shim::Vhca, "H1-1/1", &["ibv_rc_pingpong", "-p", "19999"]);
    let server = Process::start(lab.dir(), "server", server);
    let found = wait_for(PATIENCE, || {
        let shown = lab.tool(Shim::Vhca, "H1-1/1", &["rdma", "resource", "show", "qp"]);
        shown.contains("type RC state INIT").then_some(shown)
    });
    let shown = found.unwrap_or_else(|| panic!("no queue pair: {}", server.output()));
    assert!(shown.contains("link vhca1/1"), "{shown}");
    assert!(shown.contains(&format!("pid {}", server.id())), "{shown}");
    let rdma = |arguments: &[&str]| {
        let program = [&["rdma"], arguments].concat();
        lab.tool(Shim::Vhca, "H1-1/1", &program)
    };
    let all = rdma(&["resource"]);
    for count in ["pd 1", "cq 1", "qp 1", "mr 1", "ctx 1"] {
        assert!(all.contains(count), "{count} is not in {all}");
    }
    assert!(rdma(&["resource", "show", "cq"]).contains("cqe "));
    let counters = rdma(&["statistic", "show", "link"]);
    assert!(counters.contains("sent_bytes 0"), "{counters}");
    let programs = lab.json(&["show", "programs"]);
    let rows = programs["programs"].as_array().unwrap();
    let holders = rows.iter().filter(|row| !row["pid"].is_null());
    assert_eq!(holders.count(), 1, "{programs}");
}
