//! Acceptance: a service on a port of soft RoCE names each obstacle in one line, with the next step.

use std::path::Path;

use vhca_tests::live::{PATIENCE, binary};

use crate::guest::{Boot, Guest, Outcome};
use crate::vfio::files;

/// A service with a VF that has data, which the sandbox does not allow on RoCE. It starts itself anew, so no loader stands before it.
const SERVE: &str =
    "/usr/local/vhca/vhca serve --vfs 1 --guests --no-sandbox --control /tmp/control --attach";

/// Drops the right to lock memory beyond the limit.
const UNPRIVILEGED: &str = "setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock";

/// Boots a guest with soft RoCE on its network card, and addresses for the port and a VF.
fn guest(dir: &Path) -> Guest {
    let programs = [binary(), Path::new("/usr/bin/setpriv")];
    let boot = Boot::new("6.1", None)
        .with("--netdev")
        .with("user")
        .with("--append")
        .with("vhca.load=no")
        .with("--memory")
        .with("1280")
        .with("--add")
        .with(files(dir, &programs));
    let mut guest = boot.start(dir, "roce");
    guest.told("modprobe -a virtio_pci virtio_net rdma_rxe ib_umad ib_uverbs");
    guest.told("ip link set eth0 mtu 4200 up");
    for address in [11, 12] {
        guest.told(&format!("ip address add 10.9.0.{address}/24 dev eth0"));
    }
    guest.told("rdma link add rxe0 type rxe netdev eth0");
    guest
}

/// Runs a command to its end.
fn run(guest: &mut Guest, command: &str) -> Outcome {
    let outcome = guest.run(PATIENCE, command);
    outcome.unwrap_or_else(|failure| panic!("{failure}"))
}

/// Checks that a service ends at its start with this status, and that its only line has these words.
fn ends(guest: &mut Guest, command: &str, status: i32, words: &str) {
    let outcome = run(guest, &format!("{command} 2>&1"));
    let own = outcome
        .text
        .lines()
        .filter(|line| !line.starts_with("receiver: "));
    let own: Vec<&str> = own.collect();
    assert!(
        matches!(own[..], [line] if line.contains(words)),
        "{command}: {own:?}"
    );
    assert_eq!(outcome.status, status, "{command}: {}", outcome.text);
}

/// Starts a service, and a shell that writes its exit status to the end of its log.
fn start(guest: &mut Guest, log: &str, attach: &str) {
    let command = format!("sh -c '{SERVE} {attach}; echo ended with $?'");
    guest.start(log, &command);
    let up = format!("vhca show vfs --control /tmp/control --wait-up 20 || cat /tmp/{log}");
    guest.wait_until(PATIENCE, &up, |rows| rows.contains("yes"));
}

/// Waits for the end of a service. Returns its log.
fn ended(guest: &mut Guest, log: &str) -> String {
    let read = format!("cat /tmp/{log}");
    guest.wait_until(PATIENCE, &read, |log| log.contains("ended with"))
}

/// Stops a service. Returns its log.
fn stop(guest: &mut Guest, log: &str) -> String {
    guest.told("vhca stop --control /tmp/control");
    ended(guest, log)
}

#[test]
fn a_service_on_soft_roce_names_each_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let mut guest = guest(dir.path());
    let serve = |port: &str| format!("{SERVE} linux:{port}");
    let on_port = serve("rxe0/1");
    ends(
        &mut guest,
        &serve("rxe7/1"),
        2,
        "no RDMA device rxe7 here: the devices are rxe0",
    );
    ends(&mut guest, &serve("rxe0/2"), 2, "rxe0 has no port 2");
    let other_user = format!("setpriv --reuid 1000 --clear-groups {on_port}");
    ends(&mut guest, &other_user, 2, "may be opened by root only");
    let locked = format!("{UNPRIVILEGED} sh -c \"ulimit -l 64; {on_port}\"");
    ends(
        &mut guest,
        &locked,
        1,
        "cannot start vf:1 of rxe0: the service may lock 64 KiB of memory for data of VFs: ulimit -l",
    );

    guest.told("modprobe ib_cm");
    ends(
        &mut guest,
        &on_port,
        2,
        "modprobe -r ib_ipoib rdma_ucm rdma_cm ib_cm; or serve without CM",
    );
    start(&mut guest, "without-cm", "linux:rxe0/1,no-cm");
    stop(&mut guest, "without-cm");
    guest.told("modprobe -r ib_cm");

    let library = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    guest.told(&format!("mv {library} /tmp/library"));
    ends(&mut guest, &on_port, 2, "data needs libibverbs");
    let mads_alone = format!("sh -c '{SERVE} linux:rxe0/1; echo ended with $?'");
    guest.start("mads-alone", &mads_alone.replace("--guests", ""));
    guest.wait_until(PATIENCE, "cat /tmp/mads-alone", |log| log.contains("ready"));
    let log = stop(&mut guest, "mads-alone");
    assert!(log.contains("have no data: data needs libibverbs"), "{log}");
    guest.told(&format!("mv /tmp/library {library}"));

    start(&mut guest, "serves", "linux:rxe0/1");
    let second = on_port.replace("/tmp/control", "/tmp/second");
    ends(&mut guest, &second, 2, "are taken");
    guest.told("ip link set eth0 down");
    let why = "vhca why 1 --control /tmp/control";
    let diagnosis = guest.wait_until(PATIENCE, why, |text| text.contains("port_disabled"));
    assert!(
        diagnosis.contains("ip link set its netdev up"),
        "{diagnosis}"
    );
    guest.told("ip link set eth0 up");
    guest.wait_until(PATIENCE, why, |text| text.contains("up, ok"));
    guest.told("rdma link del rxe0");
    let log = guest.wait_until(PATIENCE, "cat /tmp/serves", |log| {
        log.contains("ended with")
    });
    assert!(log.contains("the adapter rxe0 is gone"), "{log}");
    assert!(log.contains("ended with 1"), "{log}");
}
