//! Acceptance: IPoIB interfaces of a partition in guests.

use std::fs;
use std::time::Duration;

use crate::fabric::{Fabric, Manager};
use crate::guest::Guest;
use crate::ip::{number_before, services_resolve};

/// For an interface to come up.
const SOON: Duration = Duration::from_secs(60);

/// Partitions as OpenSM's manual page configures them, each with its broadcast group.
const OPENSMS: &str = "Default=0x7fff, ipoib : ALL=full, ALL_SWITCHES=full, SELF=full ;
Blue=0x0001, ipoib : ALL=full ;
";

/// The same partitions for vhca's own subnet manager.
const OWN: &str = "[[partition]]
pkey = 0x7fff
ipoib = true
members = { ALL = 'full', SELF = 'full' }
[[partition]]
pkey = 0x0001
ipoib = true
members = { ALL = 'full' }
";

/// The addresses of the guests within the partition.
const ADDRESSES: [&str; 2] = ["10.9.1.1", "10.9.1.2"];

/// Fabric of two hosts behind different switches.
const ARGUMENTS: [&str; 4] = ["--topology", "two-switch", "--vfs", "2"];

/// Makes the interface of a partition in a guest.
fn add_child(guest: &mut Guest, pkey: &str, address: &str) {
    guest.told(&format!("echo {pkey} > /sys/class/net/ib0/create_child"));
    let name = format!("ib0.{}", &pkey[2..]);
    guest.told(&format!(
        "ip address add {address}/24 dev {name} && ip link set {name} up"
    ));
}

#[test]
fn guests_talk_in_a_partition_of_opensms_and_not_in_one_that_their_vf_is_not_in() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("partitions.conf");
    fs::write(&file, OPENSMS).unwrap();
    let config = format!("partition_config_file {}\n", file.display());
    talk_in_a_partition(&Fabric::configured(
        "mgmt",
        Manager::OpenSm,
        &ARGUMENTS,
        &config,
    ));
}

#[test]
fn guests_talk_in_a_partition_of_the_embedded_manager() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vhca.toml");
    fs::write(&file, OWN).unwrap();
    let file = file.to_str().expect("a temporary folder in UTF-8");
    let arguments = [&ARGUMENTS[..], &["--config", file]].concat();
    talk_in_a_partition(&Fabric::new(Manager::Lite, &arguments));
}

/// Pings and resolves services between two hosts by interfaces of a partition, and sees that one of a partition that the
/// VF is not in does not come up.
fn talk_in_a_partition(fabric: &Fabric) {
    for vf in ["H1-1/1", "H2-1/1"] {
        fabric
            .lab
            .told(&["set", "vf", vf, "pkeys", "0xffff", "0x8001"]);
    }
    let mut guests = fabric.guests("6.1", [("H1-1", 1), ("H2-1", 1)]);
    for (guest, address) in guests.iter_mut().zip(ADDRESSES) {
        let pkey = "cat /sys/class/infiniband/mlx4_0/ports/1/pkeys/1";
        guest.wait_until(SOON, pkey, |pkey| pkey.trim() == "0x8001");
        guest.told("ip link set ib0 up");
        add_child(guest, "0x8001", address);
    }
    for guest in &mut guests {
        let state = "cat /sys/class/net/ib0.8001/operstate";
        guest.wait_until(SOON, state, |state| state.trim() == "up");
    }
    let [first, second] = &mut guests;
    let told = first.told(&format!("ping -c 20 -i 0.1 {}", ADDRESSES[1]));
    assert_eq!(number_before(&told, "received"), 20, "{told}");
    services_resolve(first, second, ADDRESSES);
    // The broadcast group of IPv4 (RFC 4391) has the P_Key in its MGID.
    let groups = fabric
        .lab
        .told(&["show", "mcast", "--host", "H1-1", "--json"]);
    assert!(groups.contains("ff12:401b:8001:"), "{groups}");

    add_child(first, "0x8002", "10.9.2.1");
    let told = first.told("cat /sys/class/net/ib0.8002/operstate");
    assert_ne!(told.trim(), "up");
}
