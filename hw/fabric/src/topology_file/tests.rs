//! Files as people and `ibnetdiscover` write them, broken ones, and any plan there and back.

use ib_wire::smp::{LinkSpeed, LinkSpeedExt, LinkWidth};
use ib_wire::{Guid, PortNum};
use proptest::prelude::*;

use super::*;
use crate::fabric::tests::Probe;
use crate::{HcaConfig, PlannedPort, SwitchConfig};

const SMALL: &str = "\
# two switches, three hosts
switchguid=0x100
Switch\t8 \"left\"  # the left one
[1]\t\"a\"[1]
[2]\t\"b\"[1] w=1 s=1 e=0
[7]\t\"right\"[8]

Switch 4 \"right\"
[8] \"left\"[7]
";

/// As `SMALL`, but right, with the hosts.
fn small() -> String {
    SMALL.replace("Switch 4", "Switch 8")
        + "\
[3] \"a\"[2]

caguid=0x200
vendid=0x8f1
Hca 2 \"a\"
[1] \"left\"[1]
[2] \"right\"[3]

Hca 1 \"b\" # \"the host b\"
[1] \"left\"
"
}

fn problem(text: &str) -> String {
    TopologyFile::parse("net", text).unwrap_err().to_string()
}

#[test]
fn a_net_file_becomes_a_plan_whose_links_come_up() {
    // A missing port number means 1, which is not where "b" is.
    assert_eq!(
        problem(&small()),
        "net:5: port 1 of \"b\" does not lead back here"
    );
    let text = small() + "\n";
    let text = text.replace("[1] \"left\"\n", "[1] \"left\"[2] w=3\n");
    let file = TopologyFile::parse("net", &text).unwrap();
    let names: Vec<_> = file
        .nodes
        .iter()
        .map(|(name, at)| (name.as_str(), *at))
        .collect();
    assert_eq!(
        names,
        [
            ("left", PlannedNode::Switch(0)),
            ("right", PlannedNode::Switch(1)),
            ("a", PlannedNode::Hca(0)),
            ("b", PlannedNode::Hca(1)),
        ]
    );
    let plan = &file.topology;
    let switches = plan
        .switches
        .iter()
        .map(|s| (s.node_guid.get(), s.description.as_str()));
    assert_eq!(
        switches.collect::<Vec<_>>(),
        [(0x100, "the left one"), (0x101, "right")]
    );
    let hcas = plan
        .hcas
        .iter()
        .map(|h| (h.node_guid.get(), h.ports, h.vendor_id));
    assert_eq!(
        hcas.collect::<Vec<_>>(),
        [(0x200, 2, 0x8f1), (0x203, 1, 0x2c9)]
    );
    assert_eq!(plan.hcas[1].description, "the host b");

    let (fabric, built) = plan.build::<Probe>(1);
    assert_eq!(built.links.len(), 4);
    let b = fabric.port(built.hcas[1].port(1)).unwrap();
    assert_eq!(b.guid, Guid::new(0x204));
    assert_eq!(
        (b.width_active, b.speed_active),
        (LinkWidth::X1, LinkSpeed::SDR)
    );
    assert_eq!(b.extended_speed_active, LinkSpeedExt::NONE);
    let right = fabric.port(built.switches[1].port(3)).unwrap();
    assert_eq!(right.extended_speed_active, LinkSpeedExt::FDR);
    assert_eq!(
        fabric
            .peer(built.hcas[0].port(2))
            .map(|end| (end.node, end.port)),
        Some((built.switches[1], PortNum(3)))
    );
}

#[test]
fn a_dump_of_a_fabric_keeps_guids_and_rates() {
    let dump = "\
#
# Topology file: generated on Sat Nov 21 19:00:00 2026
#
# Initiated from node 0002c90300000200 port 0002c90300000200

vendid=0x2c9
devid=0xd2f0
sysimgguid=0x2c90300000100
switchguid=0x2c90300000100(2c90300000100)
Switch\t41 \"S-0002c90300000100\"\t\t# \"Quantum \\\"x\\\" mgmt\" enhanced port 0 lid 6 lmc 0
[41]\t\"H-0002c90300000200\"[1](2c90300000200) \t\t# \"mlx5_0\" lid 4 4xHDR
[40]\t\"H-0002c90300000300\"[1](2c90300000301) \t\t# \"mlx4_0\" lid 5 4xFDR10

Non-Chassis Nodes

vendid=0x2c9
devid=0x101b
sysimgguid=0x2c90300000200
caguid=0x2c90300000200
Ca\t1 \"H-0002c90300000200\"\t\t# \"mlx5_0\"
[1](2c90300000200) \t\"S-0002c90300000100\"[41]\t\t# lid 4 lmc 0 \"Quantum \\\"x\\\" mgmt\" lid 6 4xHDR

vendid=0x2c9
devid=0x1003
caguid=0x2c90300000300
Ca\t2 \"H-0002c90300000300\"\t\t# \"mlx4_0\"
[1](2c90300000301) \t\"S-0002c90300000100\"[40]\t\t# lid 5 lmc 0 \"Quantum\" lid 6 4xFDR10 s=4 w=2 v=4
";
    let file = TopologyFile::parse("dump", dump).unwrap();
    let plan = &file.topology;
    assert!(plan.switches[0].enhanced_port0);
    assert_eq!(
        (plan.switches[0].device_id, plan.switches[0].ports),
        (0xd2f0, 41)
    );
    let (fabric, built) = plan.build::<Probe>(1);
    let hdr = fabric.port(built.hcas[0].port(1)).unwrap();
    assert_eq!(hdr.guid, Guid::new(0x2_c903_0000_0200));
    assert_eq!(
        (hdr.width_active, hdr.extended_speed_active),
        (LinkWidth::X4, LinkSpeedExt::HDR)
    );
    let qdr = fabric.port(built.hcas[1].port(1)).unwrap();
    assert_eq!(
        (qdr.speed_active, qdr.extended_speed_active),
        (LinkSpeed::QDR, LinkSpeedExt::NONE)
    );
}

#[test]
fn faults_of_a_file_are_told_with_line_and_reason() {
    for (text, reason) in [
        ("", "net: no nodes"),
        ("# nothing\n", "net: no nodes"),
        ("[1] \"a\"[1]", "net:1: a port without a node"),
        (
            "Hca 1 \"a\"\nHca 1 \"a\"",
            "net:2: node \"a\" is there already",
        ),
        (
            "Hca 1 \"a\"\n[2] \"a\"[1]",
            "net:2: a port from 1 to 1 is wanted, not \"2\"",
        ),
        ("Hca 1 \"a\"\n[1] \"b\"[1]", "net:2: there is no node \"b\""),
        (
            "Hca 1 \"a\"\n[1] \"a\"[1]",
            "net:2: port 1 of \"a\" does not lead back here",
        ),
        (SMALL, "net:9: a port from 1 to 4 is wanted, not \"8\""),
        (
            "Hca 2 \"a\"\n[1] \"b\"[1]\n[1] \"b\"[1]\n",
            "net:3: port 1 is there already",
        ),
        (
            "Hca 1 \"a\"\n[1] \"b\"[2]\nHca 1 \"b\"\n[1] \"a\"[1]\n",
            "net:2: node \"b\" has no port 2",
        ),
        (
            "Hca 1 \"a\"\n[1] \"b\"[1] w=1\nHca 1 \"b\"\n[1] \"a\"[1] w=2\n",
            "net:2: port 1 of \"b\" has no width in common with this one",
        ),
        (
            "Hca 1 \"a\"\n[1] \"b\"[1] s=1\nHca 1 \"b\"\n[1] \"a\"[1] s=4\n",
            "net:2: port 1 of \"b\" has no speed in common with this one",
        ),
        (
            "caguid=9\nHca 1 \"a\"\ncaguid=9\nHca 1 \"b\"\n",
            "net:4: GUID 0x0000000000000009 of \"b\" is also that of \"a\"",
        ),
        (
            "caguid=9\nHca 2 \"a\"\ncaguid=10\nHca 2 \"b\"\n",
            "net:4: GUID 0x000000000000000b of \"b\" is also that of \"a\"",
        ),
        ("Switch 8 \"a\"\nSwich", "net:2: \"Swich\" is no statement"),
        (
            "include \"other\"",
            "net:1: cannot include \"other\": there is no place to find it",
        ),
    ] {
        assert_eq!(problem(text), reason, "{text}");
    }
}

fn with_files(files: &[(&str, &str)]) -> Result<TopologyFile, TopologyError> {
    let find = |name: &str| {
        let (name, text) = files.iter().find(|(file, _)| *file == name)?;
        Some(SourceText {
            name: (*name).to_owned(),
            text: (*text).to_owned(),
        })
    };
    let first = find("net").unwrap();
    TopologyFile::parse_with(first, |name, _| {
        find(name).ok_or_else(|| "no such file".to_owned())
    })
}

#[test]
fn included_files_come_where_they_are_included() {
    let switch = "Switch 8 \"s\"\n[1] \"a\"[1]\n";
    let file = with_files(&[
        (
            "net",
            "include \"switches\"\n[2] \"b\"[1]\ninclude \"hosts\"\n",
        ),
        ("switches", switch),
        (
            "hosts",
            "Hca 1 \"a\"\n[1] \"s\"[1]\nHca 1 \"b\"\n[1] \"s\"[2]\n",
        ),
    ]);
    assert_eq!(file.unwrap().topology.links.len(), 2);

    let error = with_files(&[
        ("net", "\ninclude \"x\"\n"),
        ("x", "Hca 1 \"a\"\nHca \"b\"\n"),
    ]);
    assert_eq!(
        error.unwrap_err().to_string(),
        "x:2: a number of ports from 1 to 2 is wanted, not \"\" (included from net:2)"
    );
}

#[test]
fn files_that_include_one_another_end_with_an_error() {
    let cycle = with_files(&[("net", "include \"x\"\n"), ("x", "include \"net\"\n")]);
    assert_eq!(
        cycle.unwrap_err().to_string(),
        "x:1: \"net\" includes itself (included from net:1)"
    );
    let mut depth = 0;
    let source = SourceText {
        name: "0".to_owned(),
        text: "include \"next\"\n".to_owned(),
    };
    let deep = TopologyFile::parse_with(source, |_, _| {
        depth += 1;
        Ok(SourceText {
            name: depth.to_string(),
            text: "include \"next\"\n".to_owned(),
        })
    });
    let problem = deep.unwrap_err().problem;
    assert_eq!(
        problem,
        TopologyProblem::TooMany("9 files that include one another")
    );
    let many = "include \"empty\"\n".repeat(2000);
    let error = with_files(&[("net", &many), ("empty", "")]).unwrap_err();
    assert_eq!(error.to_string(), "net:1001: more than 1000 included files");
}

#[test]
fn a_file_with_more_ports_than_are_emulated_is_refused_before_they_are_made() {
    let text: String = (0..3000).map(|n| format!("Switch 127 \"{n}\"\n")).collect();
    assert_eq!(problem(&text), "net:2049: more than 262144 ports");
}

#[test]
fn the_two_switch_file_is_the_plan_of_that_name() {
    let text = include_str!("../../../../tests/topologies/two-switch.net");
    let body: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .fold(String::new(), |body, line| body + line + "\n");
    assert_eq!(body, Topology::two_switches_with_management().to_net_file());
}

#[test]
fn the_plans_of_well_known_shapes_come_back_from_their_files() {
    for plan in [
        Topology::two_switches(3),
        Topology::two_switches_with_management(),
        Topology::three_switches(),
        Topology::fat_tree(4, 16),
    ] {
        let again = TopologyFile::parse("again", &plan.to_net_file())
            .unwrap()
            .topology;
        assert_same(&plan, &again);
    }
}

/// Compares what a file can hold of two plans.
fn assert_same(plan: &Topology, again: &Topology) {
    assert_eq!(again.to_net_file(), plan.to_net_file());
    let sorted = |plan: &Topology| {
        let ends = plan.links.iter().map(|(a, b)| (*a.min(b), *a.max(b)));
        let mut links: Vec<_> = ends.collect();
        links.sort_unstable();
        links
    };
    assert_eq!(sorted(again), sorted(plan));
    assert_eq!(again.switches, plan.switches);
    // A file says the GUIDs of ports that have a link, also of those that follow from the node's.
    let said = |plan: &Topology| -> Vec<HcaConfig> {
        let mut hcas = plan.hcas.clone();
        for hca in &mut hcas {
            hca.port_guids.clear();
        }
        hcas
    };
    let port_guids = |plan: &Topology| -> Vec<Guid> {
        let links = sorted(plan);
        let ends = links.iter().flat_map(|(a, b)| [*a, *b]);
        ends.filter_map(|end| match end {
            PlannedPort::Hca(at, port) => Some(plan.hcas[at].port_guid(port)),
            PlannedPort::Switch(..) => None,
        })
        .collect()
    };
    assert_eq!(port_guids(again), port_guids(plan));
    assert_eq!(said(again), said(plan));
    for (port, config) in &plan.ports {
        assert_eq!(again.ports.get(port), Some(config));
    }
}

/// Any plan: nodes with ports of their own, and links between ports that are free.
fn any_plan() -> impl Strategy<Value = Topology> {
    let hca = (1_u8..=2, any::<u16>(), "[ -~]{0,20}", any::<bool>());
    let switch = (1_u8..=40, any::<u16>(), "[ -~]{0,20}", any::<bool>());
    let links = prop::collection::vec((any::<prop::sample::Index>(), 1_u8..32, 1_u8..8), 0..30);
    (
        prop::collection::vec(hca, 1..8),
        prop::collection::vec(switch, 0..5),
        links,
    )
        .prop_map(|(hcas, switches, links)| {
            let mut plan = Topology::default();
            for (ports, device, text, own_guid) in hcas {
                let at = plan.add_hca(text.trim(), ports);
                plan.hcas[at].device_id = device;
                if own_guid {
                    plan.hcas[at].port_guids = vec![plan.hcas[at].node_guid];
                }
            }
            for (ports, device, text, enhanced) in switches {
                let at = plan.add_switch(text.trim(), ports);
                plan.switches[at].device_id = device;
                plan.switches[at].enhanced_port0 = enhanced;
            }
            let mut free: Vec<PlannedPort> = Vec::new();
            for (at, hca) in plan.hcas.iter().enumerate() {
                free.extend((1..=hca.ports).map(|port| PlannedPort::Hca(at, port)));
            }
            for (at, switch) in plan.switches.iter().enumerate() {
                free.extend((1..=switch.ports).map(|port| PlannedPort::Switch(at, port)));
            }
            for (index, widths, speeds) in links {
                if free.len() < 2 {
                    break;
                }
                let a = free.swap_remove(index.index(free.len()));
                let b = free.swap_remove(index.index(free.len()));
                plan.connect(a, b);
                let config = crate::PortConfig {
                    widths: LinkWidth(widths),
                    speeds: LinkSpeed::from_low_bits(speeds),
                    ..crate::PortConfig::default()
                };
                plan.ports.insert(a, config);
                plan.ports.insert(b, config);
            }
            plan.ports
                .retain(|_, config| *config != crate::PortConfig::default());
            plan
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_plan_comes_back_from_its_file(mut plan in any_plan()) {
        for hca in &mut plan.hcas {
            if hca.description.is_empty() {
                hca.description = format!("H-{:016x}", hca.node_guid.get());
            }
        }
        for switch in &mut plan.switches {
            if switch.description.is_empty() {
                switch.description = format!("S-{:016x}", switch.node_guid.get());
            }
        }
        let again = TopologyFile::parse("again", &plan.to_net_file()).unwrap().topology;
        assert_same(&plan, &again);
    }

    #[test]
    fn any_lines_give_a_plan_or_an_error_in_one_of_them(
        lines in prop::collection::vec(
            prop_oneof![
                Just("Switch 8 \"s\"".to_owned()),
                Just("Hca 2 \"h\" # \"x\" lid 1".to_owned()),
                "\\[[0-9]{0,3}\\](\\([0-9a-f]{0,18}\\))? ?\"[sh]\"(\\[[0-9]{1,3}\\])?( [wse]=[0-9]{1,2})?",
                "(switchguid|caguid|vendid|devid|width|speed|extspeed)[=+](0x)?[0-9a-f]{0,17}",
                "[ -~]{0,40}",
                any::<String>(),
            ],
            0..20,
        ),
    ) {
        let text = lines.join("\n");
        if let Err(error) = TopologyFile::parse("net", &text) {
            prop_assert!(error.line <= text.lines().count());
            prop_assert!(!error.problem.to_string().is_empty());
        }
    }
}

#[test]
fn a_switch_with_as_many_ports_as_numbers_comes_back_from_its_file() {
    let mut plan = Topology::default();
    plan.switches
        .push(SwitchConfig::new(Guid::new(0x10), "wide", 254));
    let host = plan.add_hca("host", 1);
    plan.connect(PlannedPort::Hca(host, 1), PlannedPort::Switch(0, 254));
    let again = TopologyFile::parse("net", &plan.to_net_file()).unwrap();
    let (fabric, built) = again.topology.build::<Probe>(1);
    let node = fabric.node(built.switches[0]).unwrap();
    assert_eq!(node.port_count(), 254);
    assert_eq!(
        fabric.peer(built.hcas[0].port(1)).map(|end| end.port),
        Some(PortNum(254))
    );
}
