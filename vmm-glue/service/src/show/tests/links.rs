//! Fabrics whose links are as they should be, and as they should not.

use emulated_hca::{HcaConfig, LinkConfig, LinkId, LinkState, PortConfig, SwitchConfig};
use ib_wire::smp::{LinkSpeed, LinkSpeedExt, LinkWidth};
use subnet_lite::SubnetConfig;

use super::*;
use vhca::world::World;

/// Two adapters at a switch with a port to spare.
struct Net {
    world: World,
    hosts: [NodeId; 2],
    links: [LinkId; 2],
}

impl Net {
    /// Cables the first adapter with this. The second one runs a subnet manager if there is to be one.
    fn new(cable: LinkConfig, is_managed: bool) -> Self {
        let mut fabric = Fabric::new(1);
        let hosts = [(0x1000, "host-a"), (0x2000, "host-b")].map(|(guid, name)| {
            fabric.add_hca(&HcaConfig {
                ports: 1,
                ..HcaConfig::new(Guid::new(guid), name)
            })
        });
        let switch = fabric.add_switch(&SwitchConfig::new(Guid::new(0x3000), "leaf", 3));
        let links = [(0, cable), (1, LinkConfig::default())].map(|(place, cable): (u8, _)| {
            let host = hosts[usize::from(place)];
            let link = fabric.connect(host.port(1), switch.port(place + 1), cable);
            link.unwrap()
        });
        let mut world = World::new(fabric, 1);
        let manager = hosts.map(|host| world.add_host(host).unwrap())[1];
        if is_managed {
            let config = SubnetConfig::default();
            world.start_manager(manager.port(1), config).unwrap();
        }
        world.run_for(Duration::from_secs(1));
        Self {
            world,
            hosts,
            links,
        }
    }

    fn shown(&self, subject: Subject, format: Format, filter: Filter) -> String {
        let scene = Scene {
            pfs: &[],
            vmms: NO_VMMS,
            fabric: self.world.fabric(),
            service: &ServiceFacts::default(),
            now: NOW,
        };
        let reply = written(&scene, page(&scene, subject, filter));
        printed(&reply, format, false, filter.problems)
    }

    fn json(&self, subject: Subject, filter: Filter) -> Value {
        serde_json::from_str(&self.shown(subject, Format::Json, filter)).unwrap()
    }

    /// The problems of all ports, and of all links.
    fn problems(&self) -> [Vec<(String, u64, String)>; 2] {
        let only = Filter {
            problems: true,
            ..Filter::default()
        };
        [(Subject::Ports, "ports"), (Subject::Fabric, "links")].map(|(subject, table)| {
            let json = self.json(subject, only);
            let rows = json[table].as_array().unwrap().iter();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            rows.map(|row| {
                let port = row["port"].as_u64().unwrap();
                (text(&row["node"]), port, text(&row["problem"]))
            })
            .collect()
        })
    }
}

#[test]
fn ports_and_links_show_state_width_and_speed_as_iblinkinfo_does() {
    let net = Net::new(LinkConfig::default(), true);
    let all = Filter::default();
    let fabric = "\
NODE    KIND    GUID                LID  PORTS  LINKS-UP  ACTIVE  PROBLEMS
host-a  ca      0x0000000000001000  2    1      1         1       0
host-b  ca      0x0000000000002000  1    1      1         1       0
leaf    switch  0x0000000000003000  3    3      2         2       0

NODE    PORT  STATE   PHYSICAL  WIDTH  SPEED         PEER  PEER-PORT  PROBLEM  FAULTS
host-a  1     Active  LinkUp    4X     14.0625 Gbps  leaf  1          -        -
host-b  1     Active  LinkUp    4X     14.0625 Gbps  leaf  2          -        -
";
    assert_eq!(net.shown(Subject::Fabric, Format::Text, all), fabric);
    let ports = "\
NODE    PORT  GUID                LID  MTU   STATE   PHYSICAL  WIDTH  SPEED         PROBLEM
host-a  1     0x0000000000001001  2    4096  Active  LinkUp    4X     14.0625 Gbps  -
host-b  1     0x0000000000002001  1    4096  Active  LinkUp    4X     14.0625 Gbps  -
leaf    0     0x0000000000003000  3    4096  Active  LinkUp    -      -             -
leaf    1     0x0000000000003000  -    4096  Active  LinkUp    4X     14.0625 Gbps  -
leaf    2     0x0000000000003000  -    4096  Active  LinkUp    4X     14.0625 Gbps  -
leaf    3     0x0000000000003000  -    4096  Down    Polling   -      -             -

HOST  PORT  UP  VFS  TIDS  CM-IDS  MCAST-GROUPS  MCAST-MEMBERS  SUBSCRIPTIONS  PATH-CACHE  QUEUED  SA-REQUESTS
";
    assert_eq!(net.shown(Subject::Ports, Format::Text, all), ports);
    let of_a = Filter {
        node: Some(net.hosts[0]),
        ..all
    };
    let fabric = net.json(Subject::Fabric, of_a);
    let [nodes, links] = ["nodes", "links"].map(|table| fabric[table].as_array().unwrap());
    assert_eq!((nodes.len(), links.len()), (1, 1));
    assert_eq!(
        (&links[0]["peer"], &links[0]["peer_state"]),
        (&"leaf".into(), &"Active".into())
    );
    assert_eq!(net.problems(), [vec![], vec![]]);
    let problems = Filter {
        problems: true,
        ..all
    };
    let none = net.shown(Subject::Fabric, Format::Text, problems);
    assert_eq!(none, "no problems\n");
}

#[test]
fn a_link_that_is_not_as_it_could_be_is_a_problem_and_says_which() {
    let cable = LinkConfig::default();
    let narrow = LinkConfig {
        widths: LinkWidth::X1,
        ..cable
    };
    let slow = LinkConfig {
        speeds: LinkSpeed::from_low_bits(3),
        extended_speeds: LinkSpeedExt::NONE,
        ..cable
    };
    for (cable, is_managed, problem, shown) in [
        (narrow, true, "narrow", ("1X", "14.0625 Gbps")),
        (slow, true, "slow", ("4X", "5.0 Gbps")),
    ] {
        let net = Net::new(cable, is_managed);
        let row = |node: &str, port| (node.to_owned(), port, problem.to_owned());
        let links = vec![row("host-a", 1)];
        assert_eq!(
            net.problems(),
            [vec![row("host-a", 1), row("leaf", 1)], links]
        );
        let link = &net.json(Subject::Fabric, Filter::default())["links"][0];
        assert_eq!(
            (&link["width"], &link["speed"]),
            (&shown.0.into(), &shown.1.into())
        );
    }
    let unmanaged = Net::new(cable, false);
    let [ports, links] = unmanaged.problems();
    assert_eq!((ports.len(), links.len()), (4, 2));
    assert!(ports.iter().all(|(.., problem)| problem == "not_active"));
    let mut pulled = Net::new(cable, true);
    pulled
        .world
        .fabric_mut()
        .set_link(pulled.links[0], LinkState::Down);
    pulled.world.run_for(Duration::from_secs(1));
    let [ports, links] = pulled.problems();
    let down = |row: &(String, u64, String)| row.2 == "link_down";
    assert!(ports.len() == 2 && ports.iter().all(down), "{ports:?}");
    assert!(links.len() == 1 && links.iter().all(down), "{links:?}");
}

#[test]
fn where_a_fabric_ends_only_the_near_half_of_the_link_is_known() {
    let mut fabric = Fabric::new(1);
    let host = fabric.add_hca(&HcaConfig::new(Guid::new(0x1000), "host"));
    let gateway = fabric.add_gateway("ibsim:sim", PortConfig::default());
    let link = fabric.connect(host.port(1), gateway.port(1), LinkConfig::default());
    link.unwrap();
    while fabric.poll(Instant::ZERO) {}
    let scene = Scene {
        pfs: &[],
        vmms: NO_VMMS,
        fabric: &fabric,
        service: &ServiceFacts::default(),
        now: NOW,
    };
    let all = Filter::default();
    let fabric = "\
NODE       KIND     GUID                LID  PORTS  LINKS-UP  ACTIVE  PROBLEMS
host       ca       0x0000000000001000  -    2      1         0       2
ibsim:sim  gateway  -                   -    1      1         0       0

NODE  PORT  STATE       PHYSICAL  WIDTH  SPEED  PEER       PEER-PORT  PROBLEM     FAULTS
host  1     Initialize  LinkUp    -      -      ibsim:sim  1          not_active  -
";
    let reply = written(&scene, page(&scene, Subject::Fabric, all));
    assert_eq!(printed(&reply, Format::Text, false, false), fabric);
}
