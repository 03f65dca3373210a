//! Tables of ports and switches that a stranger's SMPs overwrote, ports that are alike, and what a sweep mends: a service in
//! virtual time under the embedded subnet manager.

use emulated_hca::{Endpoint, HcaConfig, LinkConfig};
use ib_endpoint::{MadAddress, Message, Registration, RetryPolicy};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{
    DirectedRouteSmp, GuidInfo, LinearForwardingTable, MulticastForwardingTable, PKeyTable,
    SmpAttribute,
};
use ib_wire::{PKey, PortNum};
use serde_json::Value;
use vhca_control::{GuestAction, VfChange};
use vhca_service::serve::{
    Lab, MemberKind, Options, PartitionSpec, SaWatch, Service, SubnetOptions, TopologySpec,
};
use vhca_tests::virtual_service::pass;

use crate::report::{Report, Row};

/// Time within which the SA is asked twice.
const ASKED: Duration = Duration::from_secs(22);

/// The broadcast group of IPoIB in the default partition.
const BROADCAST: &str = "ff12:401b:ffff::ffff:ffff";

fn serve(options: Options) -> Service {
    let options = Options {
        topology: TopologySpec::ThreeSwitch,
        vfs: 3,
        guests: true,
        ..options
    };
    let mut service = Service::in_virtual_time(Lab::build(&options, 1).unwrap());
    service.add_way_in(SaWatch::new(Instant::ZERO));
    let action = GuestAction::Join {
        mgid: BROADCAST.to_owned(),
    };
    pass(&mut service, Duration::from_secs(5));
    for vf in ["host-a/1", "host-b/1"] {
        let vf = [service.lab().inventory.vf(vf, None).unwrap()];
        service.lab_mut().guests_do(&vf, &action).unwrap();
    }
    pass(&mut service, Duration::from_secs(17));
    service
}

fn port(service: &Service, node: &str, port: u8) -> Endpoint {
    service.lab().inventory.node(node).unwrap().port(port)
}

/// Sets an attribute of a node by an SMP of a program on that node.
fn overwrite<A: SmpAttribute + Copy>(service: &mut Service, at: Endpoint, modifier: u32, to: &A) {
    let world = service.lab_mut().world_mut();
    world.open_qp0(at).unwrap();
    let now = world.now();
    let smi = world.port_agents_mut(at).unwrap().smi.unwrap();
    let agent = smi.register(Registration::sender().apart()).unwrap();
    let class = MgmtClass::SUBN_DIRECTED_ROUTE;
    let mut mad = Mad::new(MadHeader::new(class, Method::SET, A::ID));
    mad.header.attribute_modifier = modifier.into();
    *mad.view_mut::<DirectedRouteSmp>().attribute_mut() = *to;
    let policy = RetryPolicy::new(Duration::from_millis(100), 0);
    let (directed, message) = (MadAddress::directed(), Message::single(mad));
    smi.send_request(now, agent, directed, message, policy)
        .unwrap();
    pass(service, Duration::from_millis(10));
}

/// Returns code, evidence and remedy, as `vhca why` has them.
fn why(service: &Service, names: &[&str]) -> (&'static str, Vec<String>, String) {
    let lab = service.lab();
    if let [vf] = names {
        let vf = lab.inventory.vf(vf, None).unwrap();
        let found = lab.why(&vf, PortNum(1));
        return (found.code, found.seen, found.next);
    }
    let found = lab.why_pair([names[0], names[1]], None).unwrap();
    let json: Value = serde_json::to_value(&found).unwrap();
    let first = &json["reasons"][0];
    let next = first["next"].as_str().unwrap_or_default().to_owned();
    (found.verdict, vec![first["seen"].to_string()], next)
}

/// A fault that a sweep mends.
fn case(report: &Report, names: &[&str], fault: &str, code: &'static str, make: fn(&mut Service)) {
    let mut service = serve(Options::default());
    let before = why(&service, names).0;
    make(&mut service);
    pass(&mut service, ASKED);
    let (told, seen, next) = why(&service, names);
    let is_sweep = next == "vhca sm sweep";
    if is_sweep {
        service.lab_mut().sweep().unwrap();
        pass(&mut service, ASKED);
    }
    let then = why(&service, names).0;
    report.add(Row {
        fault: fault.to_owned(),
        code,
        told: format!("{told}; {seen:?}"),
        remedy: next.clone(),
        worked: match (before, told == code, is_sweep, then) {
            ("ok", true, true, "ok") => Ok("after a sweep".to_owned()),
            _ => Err(format!(
                "before {before}, then {told}: {seen:?} {next}, and at last {then}"
            )),
        },
    });
}

pub(crate) fn run(report: &Report) {
    let pair = &["host-a/1", "host-b/1"][..];
    let one = &["host-a/1"][..];
    case(
        report,
        pair,
        "linear table of a switch overwritten",
        "no_route",
        |service| {
            let table = LinearForwardingTable {
                ports: [PortNum(1); 64],
            };
            let at = port(service, "S3", 0);
            overwrite(service, at, 0, &table);
        },
    );
    case(
        report,
        one,
        "linear table of the host's switch emptied",
        "sa_unreachable",
        |service| {
            let table = LinearForwardingTable {
                ports: [LinearForwardingTable::DROP; 64],
            };
            let at = port(service, "S1", 0);
            overwrite(service, at, 0, &table);
        },
    );
    case(
        report,
        pair,
        "multicast table of a switch emptied",
        "no_multicast_route",
        |service| {
            let at = port(service, "S1", 0);
            overwrite(service, at, 0, &MulticastForwardingTable::default());
        },
    );
    case(
        report,
        one,
        "P_Key table of the host's port emptied",
        "pkey_missing",
        |service| {
            let at = port(service, "host-a", 1);
            overwrite(service, at, 0, &PKeyTable::default());
        },
    );
    case(
        report,
        one,
        "P_Key table of the SM's port emptied",
        "pkey_missing",
        |service| {
            let at = port(service, "mgmt", 1);
            overwrite(service, at, 0, &PKeyTable::default());
        },
    );
    case(
        report,
        one,
        "aliases of VFs erased from the port's GUID table",
        "waiting_for_hardware",
        |service| {
            let at = port(service, "host-a", 1);
            overwrite(service, at, 0, &GuidInfo::default());
        },
    );
    twin(report);
    limited(report);
}

/// Two VFs that are limited members of one partition, and in no other.
fn limited(report: &Report) {
    let partition = PartitionSpec {
        pkey: PKey::new(0x8005),
        ipoib: false,
        members: [("ALL".to_owned(), MemberKind::Limited)].into(),
    };
    let mut service = serve(Options {
        subnet: SubnetOptions {
            partitions: vec![partition],
            ..SubnetOptions::default()
        },
        ..Options::default()
    });
    let names = ["host-a/1", "host-b/1"];
    let before = why(&service, &names).0;
    for name in names {
        let vf = service.lab().inventory.vf(name, None).unwrap();
        let table = VfChange::Pkeys(vec!["0x0005".to_owned()]);
        service.lab_mut().set_vf(&vf, PortNum(1), &table).unwrap();
    }
    pass(&mut service, Duration::from_secs(1));
    let (told, seen, next) = why(&service, &names);
    for command in next.split(" # ").next().unwrap_or_default().split(" && ") {
        let words: Vec<&str> = command.split(' ').collect();
        let ["vhca", "set", "vf", name, "pkeys", keys @ ..] = &words[..] else {
            continue;
        };
        let vf = service.lab().inventory.vf(name, None).unwrap();
        let table = VfChange::Pkeys(keys.iter().map(ToString::to_string).collect());
        service.lab_mut().set_vf(&vf, PortNum(1), &table).unwrap();
    }
    pass(&mut service, Duration::from_secs(1));
    let then = why(&service, &names).0;
    report.add(Row {
        fault: "two VFs that are limited members of their only partition".to_owned(),
        code: "no_common_partition",
        told: format!("{told}; {seen:?}"),
        remedy: next.clone(),
        worked: match (before, told, then) {
            ("ok", "no_common_partition", "ok") => Ok("at once".to_owned()),
            _ => Err(format!("{before}, {told} {seen:?} {next}, then {then}")),
        },
    });
}

/// An adapter with the GUIDs of another, as where two services of one topology are joined.
fn twin(report: &Report) {
    let mut service = serve(Options::default());
    let (host, switch) = (port(&service, "host-a", 1), port(&service, "S1", 0).node);
    let fabric = service.lab_mut().world_mut().fabric_mut();
    let guid = fabric.node(host.node).unwrap().node_guid;
    let twin = fabric.add_hca(&HcaConfig::new(guid, "twin"));
    let link = fabric.connect(twin.port(1), switch.port(5), LinkConfig::default());
    link.unwrap();
    pass(&mut service, ASKED);
    let (told, seen, next) = why(&service, &["host-a/1"]);
    service.lab_mut().set_link("S1/5", None, false).unwrap();
    pass(&mut service, ASKED);
    let then = why(&service, &["host-a/1"]).0;
    report.add(Row {
        fault: "a second adapter with the host's GUIDs".to_owned(),
        code: "duplicate_guid",
        told: format!("{told}; {seen:?}"),
        remedy: next.clone(),
        worked: match (told, then) {
            ("duplicate_guid", "ok") => Ok("when the fabrics were parted".to_owned()),
            _ => Err(format!("{told} {seen:?} {next}, then {then}")),
        },
    });
}
