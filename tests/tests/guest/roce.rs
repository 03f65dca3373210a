//! Acceptance: PF contexts on soft RoCE of stock kernels, in two guests whose network cards are on one wire.

use std::path::Path;
use std::time::Duration;

use crate::effort::full;
use crate::guest::{Boot, Guest};
use crate::vfio::files;

/// Time for data by soft RoCE, which moves some MiB a second.
const LIMIT: Duration = Duration::from_secs(240);

/// The exchange of data, which takes one VF.
const DATA: &str = env!("CARGO_BIN_EXE_linux_data");

/// Exchanges by the CM, between two VFs of each guest.
const PF: &str = env!("CARGO_BIN_EXE_linux_pf");

/// Boots a guest with a kernel and soft RoCE on its network card, and an address for the port and each of two VFs.
fn guest(dir: &Path, kernel: &'static str, name: &str, place: u32, is_server: &str) -> Guest {
    let wire = dir.join("wire");
    let backend = format!(
        "stream,addr.type=unix,addr.path={},server={is_server}",
        wire.display()
    );
    let boot = Boot::new(kernel, None).with("--netdev").with(backend);
    let boot = boot.with("--append").with("vhca.load=no");
    let boot = boot.with("--memory").with("1280");
    let boot = boot
        .with("--add")
        .with(files(&dir.join(name), &[DATA, PF].map(Path::new)));
    let mut guest = boot.start(dir, name);
    guest.told("modprobe -a virtio_pci virtio_net rdma_rxe ib_umad ib_uverbs");
    guest.told("ip link set eth0 mtu 9000 up");
    for address in place..place + 3 {
        guest.told(&format!("ip address add 10.9.0.{address}/24 dev eth0"));
    }
    guest.told("rdma link add rxe0 type rxe netdev eth0");
    guest
}

#[test]
fn vfs_on_soft_roce_of_two_guests_have_addresses_and_exchange_mads_and_data() {
    let dir = tempfile::tempdir().unwrap();
    let newer = full("6.1", "6.12");
    let mut answering = guest(dir.path(), newer, "answering", 11, "on");
    let mut asking = guest(dir.path(), "6.1", "asking", 21, "off");
    asking.told_within(LIMIT, "until ping -q -c 1 -W 1 10.9.0.11; do :; done");

    let exchanges = full(40, 1000);
    let answer = format!("sh -c 'echo $$ >/tmp/pid; exec linux_pf rxe0 1 2 answer {exchanges}'");
    answering.start("answers", &answer);
    answering.wait_until(LIMIT, "cat /tmp/answers", |log| log.lines().count() == 2);
    let told = asking.told_within(
        LIMIT,
        &format!("linux_pf rxe0 1 2 ask {exchanges} ::ffff:10.9.0.12 ::ffff:10.9.0.13"),
    );
    let expected = format!(
        "\
vf:1: ::ffff:10.9.0.22
vf:2: ::ffff:10.9.0.23
vf:1: path true, nodes 0, answers {exchanges}
vf:2: path true, nodes 0, answers {exchanges}
"
    );
    assert_eq!(told, expected);
    answering.wait_until(LIMIT, "cat /tmp/answers", |log| {
        log.contains(&format!("answered {exchanges} each"))
    });
    answering.told("kill $(cat /tmp/pid) && while kill -0 $(cat /tmp/pid); do :; done");

    // The guests have no file in common.
    for (guest, role) in [(&mut answering, "answer"), (&mut asking, "ask")] {
        guest.start(
            "data",
            &format!("linux_data rxe0 1 {role} /tmp/own /tmp/peer"),
        );
    }
    let own = |guest: &mut Guest| {
        guest.wait_until(LIMIT, "[ -s /tmp/own ] && cat /tmp/own", |text| {
            text.ends_with('\n')
        })
    };
    let (one, two) = (own(&mut answering), own(&mut asking));
    for (guest, peer) in [(&mut answering, two), (&mut asking, one)] {
        guest.told(&format!(
            "echo '{}' >/tmp/peer.new && mv /tmp/peer.new /tmp/peer",
            peer.trim()
        ));
    }
    let done = |log: &str| log.contains("destroyed: (true, true), true");
    let asked = asking.wait_until(LIMIT, "cat /tmp/data", done);
    let answered = answering.wait_until(LIMIT, "cat /tmp/data", done);
    assert!(asked.contains("6 messages, writes and reads"), "{asked}");
    assert!(answered.contains("written: true"), "{answered}");
}
