//! Acceptance: stock kernels bind to a VF and find its port active, under either subnet manager.

use crate::fabric::{Fabric, Manager};
use crate::guest::{Boot, Guest};

/// What mlx4_core and mlx4_ib say at the level of a warning of every virtual function there is.
const USUAL: [&str; 7] = [
    "Detected virtual function - running in slave mode",
    "Sending reset",
    "Sending vhcr0",
    "HCA minimum page size:4096",
    "Timestamping is not supported in slave mode",
    "mlx4_ib: multi-function enabled",
    "mlx4_ib: operating in qp1 tunnel mode",
];

/// What else Linux says of an adapter at that level or worse, and of itself if something is wrong.
fn complaints(guest: &mut Guest) -> Vec<String> {
    let log = guest.told("dmesg -r");
    let bad = |line: &&str| {
        let level = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        let level: u32 = level.map_or(0, |(level, _)| level.parse().unwrap_or(0)) & 7;
        let of_adapter = ["mlx4", "infiniband", "ib0", "ib_"];
        let fault = [
            "WARNING:",
            "BUG:",
            "Oops",
            "Call Trace",
            "blocked for more than",
        ];
        let usual = USUAL.iter().any(|usual| line.ends_with(usual));
        (level <= 4 && !usual && of_adapter.iter().any(|name| line.contains(name)))
            || fault.iter().any(|word| line.contains(word))
    };
    log.lines().filter(bad).map(str::to_owned).collect()
}

/// The value of a line `name: value`, the first of that name.
fn value(text: &str, name: &str) -> String {
    let lines = text.lines().filter_map(|line| line.trim().split_once(':'));
    let mut values = lines.filter(|(key, _)| *key == name);
    let (_, value) = values
        .next()
        .unwrap_or_else(|| panic!("no {name} in\n{text}"));
    value.trim().to_owned()
}

fn binds_and_comes_up(kernel: &'static str, manager: Manager) {
    let fabric = Fabric::new(manager, &["--topology", "single", "--vfs", "2"]);
    let mut guest = fabric.booted(kernel, "host-1", 1);
    assert_eq!(complaints(&mut guest), Vec::<String>::new());

    let vf = &fabric.rows("vfs", "host-1")[0];
    let port = &fabric.rows("ports", "host-1")[0];
    let info = guest.told("ibv_devinfo -v");
    assert!(value(&info, "state").starts_with("PORT_ACTIVE"), "{info}");
    assert_eq!(value(&info, "link_layer"), "InfiniBand");
    assert_eq!(value(&info, "port_lid"), port["lid"].to_string());
    assert_eq!(value(&info, "sm_lid"), port["sm_lid"].to_string());

    let stat = guest.told("ibstat");
    assert_eq!(value(&stat, "State"), "Active");
    assert_eq!(value(&stat, "Physical state"), "LinkUp");
    assert_eq!(value(&stat, "Base lid"), port["lid"].to_string());
    assert_eq!(value(&stat, "SM lid"), port["sm_lid"].to_string());
    assert_eq!(value(&stat, "Port GUID"), vf["guid"].as_str().unwrap());
    assert_eq!(complaints(&mut guest), Vec::<String>::new());
}

#[test]
fn linux_6_1_comes_up_under_the_embedded_manager() {
    binds_and_comes_up("6.1", Manager::Lite);
}

#[test]
fn linux_6_12_comes_up_under_the_embedded_manager() {
    binds_and_comes_up("6.12", Manager::Lite);
}

#[test]
fn linux_for_clouds_comes_up_under_the_embedded_manager() {
    binds_and_comes_up("cloud", Manager::Lite);
}

#[test]
fn linux_6_1_comes_up_under_opensm() {
    binds_and_comes_up("6.1", Manager::OpenSm);
}

#[test]
fn linux_6_12_comes_up_under_opensm() {
    binds_and_comes_up("6.12", Manager::OpenSm);
}

#[test]
fn linux_for_clouds_comes_up_under_opensm() {
    binds_and_comes_up("cloud", Manager::OpenSm);
}

#[test]
fn a_guest_of_two_processors_has_completions_on_both() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "single", "--vfs", "1"]);
    let boot = Boot::new("6.1", fabric.device("host-1", 1));
    let boot = boot.with("--cpus").with("2");
    let mut guest = boot.start(fabric.dir(), "two");
    guest.wait_for_port();
    assert_eq!(guest.told("nproc").trim(), "2");
    // One vector is for events of the device.
    assert_eq!(guest.told("grep -c mlx4 /proc/interrupts").trim(), "3");
    assert_eq!(complaints(&mut guest), Vec::<String>::new());
}
