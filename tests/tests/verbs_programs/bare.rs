//! Programs on the adapters of bare nodes, which are one device for umad, verbs and netlink.

use vhca_tests::live::{Lab, PATIENCE, Process, Shim};

use super::pair::Pair;
use super::wait_until_up;

/// Two bare nodes, and two whose VFs are for programs.
fn lab() -> Lab {
    let lab = Lab::serve(&["--verbs", "--vfs", "1", "--bare", "H1-1,H2-1"]);
    wait_until_up(&lab);
    lab
}

/// Returns what follows a name in a text.
fn value<'t>(text: &'t str, name: &str) -> &'t str {
    let mut lines = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(name));
    let value = lines
        .next()
        .unwrap_or_else(|| panic!("no {name} in {text}"));
    value.trim()
}

#[test]
fn the_adapter_of_a_bare_node_is_one_device_for_umad_verbs_and_netlink() {
    let lab = lab();
    let tool = |program: &[&str]| lab.tool(Shim::Vhca, "H1-1", program);
    let listed = tool(&["ls", "/sys/class/infiniband", "/sys/class/infiniband_verbs"]);
    let names: Vec<_> = listed
        .split_whitespace()
        .filter(|word| !word.starts_with('/'))
        .collect();
    assert_eq!(names, ["vhca0", "abi_version", "uverbs0"], "{listed}");
    let (umad, verbs) = (tool(&["ibstat"]), tool(&["ibv_devinfo", "-v"]));
    let (netlink, link) = (tool(&["rdma", "dev"]), tool(&["rdma", "link"]));
    assert!(umad.contains("CA 'vhca0'"), "{umad}");
    assert_eq!(value(&verbs, "hca_id:"), "vhca0");
    assert!(netlink.contains("vhca0: node_type ca"), "{netlink}");
    assert!(
        link.contains("link vhca0/1") && link.contains("state ACTIVE"),
        "{link}"
    );
    let guid = value(&umad, "Node GUID: 0x");
    assert_eq!(value(&verbs, "node_guid:").replace(':', ""), guid);
    let mut of_netlink = netlink
        .split_whitespace()
        .skip_while(|word| *word != "node_guid");
    assert_eq!(of_netlink.nth(1).unwrap().replace(':', ""), guid);
    assert_eq!(value(&verbs, "port_lid:"), value(&umad, "Base lid:"));
    let gid = tool(&["cat", "/sys/class/infiniband/vhca0/ports/1/gids/0"]);
    assert_eq!(
        value(&verbs, "GID[  0]:").split(',').next(),
        Some(gid.trim())
    );
}

#[test]
fn stock_programs_exchange_data_between_bare_nodes_and_with_a_vf() {
    let lab = lab();
    for nodes in [["H1-1", "H2-1"], ["H1-2/1", "H2-1"], ["H1-1", "H2-2/1"]] {
        for program in [
            &["ibv_rc_pingpong", "-n", "100"][..],
            &["ibv_uc_pingpong", "-n", "100"],
            &["ibv_ud_pingpong", "-n", "100"],
            &["ib_write_bw", "-n", "100"],
            &["ib_read_bw", "-n", "100"],
            &["ib_atomic_bw", "-n", "100"],
        ] {
            Pair::between(&lab, nodes, program).succeeds();
        }
    }
    // Objects of a program that is killed are destroyed, and programs on umad go on.
    let mut killed = Process::start(
        lab.dir(),
        "killed",
        &mut lab.on(
            Shim::Vhca,
            "H1-1",
            &["stdbuf", "-oL", "ibv_rc_pingpong", "-p", "18499"],
        ),
    );
    killed.wait_for_line("local address", PATIENCE);
    let taken = lab
        .on(Shim::Vhca, "H1-1", &["ibv_rc_pingpong"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(said.contains("H1-1 is taken by process"), "{said}");
    killed.signal("KILL");
    killed.wait(PATIENCE);
    Pair::between(&lab, ["H1-1", "H2-1"], &["ibv_rc_pingpong", "-n", "10"]).succeeds();
    lab.tool(Shim::Vhca, "H1-1", &["saquery", "NR"]);
}
