use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use emulated_hca::LinkState;
use ib_vtime::Duration;
use ib_wire::{GidIndex, PortNum};
use vhca_control::{Right, VfChange};

use super::*;
use vhca::watch::{EventSet, Ready};
use vhca::{Driven, RunEnd, Runner};

const LONG: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options {
        topology: TopologySpec::ThreeSwitch,
        vfs: 3,
        ..Options::default()
    }
}

/// Runs in virtual time until the condition holds; whether it came to hold.
fn run_until(service: &mut Service, mut condition: impl FnMut(&Service) -> bool) -> bool {
    let mut now = service.lab().world().now();
    let end = now + LONG;
    while now < end {
        service.poll(now);
        if condition(service) {
            return true;
        }
        now = service.poll_timeout().map_or(end, |next| next.max(now));
    }
    false
}

/// Runs in virtual time for so long.
pub(super) fn pass(service: &mut Service, time: Duration) {
    let mut now = service.lab().world().now();
    let end = now + time;
    while now < end {
        service.poll(now);
        now = service
            .poll_timeout()
            .map_or(end, |next| next.max(now).min(end));
    }
    service.poll(end);
}

fn all_vfs_up(service: &Service) -> bool {
    use pf_context::inspect::Inspect;
    let world = service.lab().world();
    let mut hosts = service.lab().inventory.pf_hosts();
    hosts.all(|host| {
        let mut rows = Inspect::vfs(world.context(host.id), world.now());
        rows.all(|row| row.up)
    })
}

/// Says what it reads, and ends the service at the end of the file.
#[derive(Debug)]
struct Echo(Option<UnixStream>);

impl WayIn for Echo {
    fn start(&mut self, turn: &mut Turn<'_>) {
        let socket = self.0.as_ref().unwrap();
        turn.watches.add(socket, EventSet::IN);
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, ready: Ready) {
        assert!(ready.events.contains(EventSet::IN));
        let socket = self.0.as_mut().unwrap();
        let mut bytes = [0; 64];
        match socket.read(&mut bytes).unwrap() {
            0 => {
                turn.watches.remove(self.0.take().unwrap());
                turn.stop();
            }
            length => socket.write_all(&bytes[..length]).unwrap(),
        }
    }

    fn flush(&mut self, _turn: &mut Turn<'_>) {}
}

#[test]
fn a_way_in_is_called_when_its_descriptor_is_ready_and_can_end_the_service() {
    let mut service = Service::new(Lab::build(&options(), 1).unwrap());
    let (mut outside, inside) = UnixStream::pair().unwrap();
    inside.set_nonblocking(true).unwrap();
    service.add_way_in(Echo(Some(inside)));
    let mut runner = Runner::new(service).unwrap();
    outside.write_all(b"anybody there?").unwrap();
    let client = std::thread::spawn(move || {
        let mut answer = [0; 14];
        outside.read_exact(&mut answer).unwrap();
        answer
    });
    let end = runner.run_until(LONG, |service| service.stopped().is_some());
    assert_eq!(end.unwrap(), RunEnd::Reached);
    assert_eq!(&client.join().unwrap(), b"anybody there?");
    assert_eq!(runner.driven().unwrap().stopped(), Some(true));
}

#[test]
fn all_vfs_come_up_and_give_their_guids_back_at_the_end() {
    let mut service = Service::in_virtual_time(Lab::build(&options(), 1).unwrap());
    assert!(run_until(&mut service, all_vfs_up));
    let manager = service.lab().inventory.host("mgmt").unwrap().id;
    let aliases = |service: &Service| {
        let world = service.lab().world();
        let node = world
            .host(service.lab().inventory.host("host-a").unwrap().id)
            .node();
        let port = world.fabric().port(node.port(1)).unwrap();
        let indices = (1..=3).map(GidIndex);
        let guids = indices.filter_map(|index| port.guid_at(index));
        guids.filter(|guid| !guid.is_none()).count()
    };
    assert_eq!(aliases(&service), 3);
    service.stop();
    assert!(run_until(&mut service, |service| service
        .stopped()
        .is_some()));
    assert_eq!(service.stopped(), Some(true));
    assert!(service.lab().world().manager(manager).is_some());
    assert_eq!(aliases(&service), 0);
}

#[test]
fn without_the_sa_the_end_comes_in_time_anyway() {
    let mut service = Service::in_virtual_time(Lab::build(&options(), 1).unwrap());
    assert!(run_until(&mut service, all_vfs_up));
    let mgmt = service.lab().inventory.node("mgmt").unwrap().port(1);
    let fabric = service.lab_mut().world_mut().fabric_mut();
    let link = fabric.link_at(mgmt).unwrap();
    fabric.set_link(link, LinkState::Down);
    service.stop();
    let begun = service.lab().world().now();
    assert!(run_until(&mut service, |service| service
        .stopped()
        .is_some()));
    assert_eq!(service.stopped(), Some(false));
    assert!(service.lab().world().now() <= begun + Duration::from_secs(3));
}

#[test]
fn hosts_play_the_parts_that_the_options_give_them() {
    let pfs = |options: &Options| -> Vec<String> {
        let lab = Lab::build(options, 1).unwrap();
        lab.inventory
            .pf_hosts()
            .map(|host| host.name.clone())
            .collect()
    };
    assert_eq!(pfs(&options()), ["host-a", "host-b"]);
    let pf = vec!["host-b".to_owned()];
    assert_eq!(pfs(&Options { pf, ..options() }), ["host-b"]);
    assert!(
        pfs(&Options {
            vfs: 0,
            ..options()
        })
        .is_empty()
    );
    let manager = Some("host-a".to_owned());
    assert_eq!(
        pfs(&Options {
            manager,
            ..options()
        }),
        ["host-b"]
    );
    let topology = TopologySpec::TwoSwitch;
    let four = pfs(&Options {
        topology,
        ..options()
    });
    assert_eq!(four, ["H1-1", "H1-2", "H2-1", "H2-2"]);
}

#[test]
fn a_name_that_no_adapter_has_is_refused_with_those_that_exist() {
    let options = Options {
        pf: vec!["host-z".to_owned()],
        ..options()
    };
    let error = Lab::build(&options, 1).unwrap_err().to_string();
    assert!(
        error.contains("host-z") && error.contains("mgmt, host-a, host-b"),
        "{error}"
    );
}

#[test]
fn nodes_are_found_by_description_and_by_guid() {
    let lab = Lab::build(&options(), 1).unwrap();
    let by_name = lab.inventory.node("S2").unwrap();
    let guid = lab.world().fabric().node(by_name).unwrap().node_guid;
    assert_eq!(lab.inventory.node(&guid.to_string()), Some(by_name));
    assert_eq!(lab.inventory.node("S9"), None);
}

#[test]
fn more_vfs_than_an_adapter_has_are_refused_with_how_many_it_has() {
    let options = Options {
        vfs: 255,
        ..options()
    };
    let error = Lab::build(&options, 1).unwrap_err().to_string();
    assert_eq!(error, "host-a has 254 VFs at most, not 255");
}

#[test]
fn each_of_254_vfs_of_a_two_port_adapter_gets_a_guid_on_each_port() {
    use pf_context::inspect::Inspect;
    let options = Options {
        vfs: 254,
        ..options()
    };
    let mut service = Service::in_virtual_time(Lab::build(&options, 1).unwrap());
    assert!(run_until(&mut service, all_vfs_up));
    let lab = service.lab();
    let mut guids: Vec<_> = lab
        .inventory
        .pf_hosts()
        .flat_map(|host| Inspect::vfs(lab.world().context(host.id), lab.world().now()))
        .map(|row| row.guid)
        .collect();
    assert!(guids.iter().all(Option::is_some));
    guids.sort_unstable();
    guids.dedup();
    assert_eq!(guids.len(), 2 * 2 * 254);
}

#[test]
fn smps_are_for_vfs_of_a_service_that_was_started_for_that() {
    for begun in [Vec::new(), vec![Right::Smi]] {
        let options = Options {
            rights: begun.clone(),
            ..options()
        };
        let mut lab = Lab::build(&options, 1).unwrap();
        let vf = lab.inventory.vf("host-a/1", None).unwrap();
        let change = VfChange::Rights(vec![Right::Smi]);
        let set = lab.set_vf(&vf, PortNum(1), &change);
        assert_eq!(set.is_ok(), !begun.is_empty());
        if let Err(refusal) = set {
            assert_eq!(refusal.code, "smi_not_available");
            assert!(refusal.message.contains("--rights smi"));
        }
        let change = VfChange::Rights(vec![Right::Vendor]);
        assert_eq!(lab.set_vf(&vf, PortNum(1), &change), Ok(()));
    }
}

#[test]
fn a_place_beyond_the_ports_table_of_pkeys_is_refused() {
    let mut lab = Lab::build(&options(), 1).unwrap();
    let vf = lab.inventory.vf("host-a/1", None).unwrap();
    let mut set = |index: &str| {
        let change = VfChange::Pkeys(vec![format!("index:{index}")]);
        lab.set_vf(&vf, PortNum(1), &change)
    };
    assert_eq!(set("127"), Ok(()));
    let refusal = set("128").unwrap_err();
    assert_eq!(refusal.code, "bad_pkey");
    assert!(
        refusal.message.contains("128 P_Keys"),
        "{}",
        refusal.message
    );
}
