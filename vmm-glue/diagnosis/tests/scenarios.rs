//! Diagnoses of snapshots that are made by hand, without a service.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where a snapshot has not what the test put into it"
)]

use hca_api::{PhysicalState, PortState};
use ib_vtime::{Duration, Instant};
use ib_wire::smp::{LinkSpeed, LinkWidth, SmState};
use ib_wire::{Guid, Lid, MKey, PKey, PortNum};
use pf_context::guids::{GuidState, GuidView, GuidWish};
use pf_context::{PortReason, VfPKeyEntry};
use vhca_diagnosis::{
    Diagnosis, Dropped, Extent, Faults, KNOWN_FAULTS, Node, NodeKind, Offer, PKeyTable, Pf, PfPort,
    Port, PortAt, Rates, Snapshot, Stall, Subnet, Trunk, Vf, VfPort, Way, why,
};

const GUID: Guid = Guid::new(0x0202);
const SM_GUID: Guid = Guid::new(0x0303);

/// Seconds at which the snapshots are taken.
const NOW: u64 = 100;

const fn second(second: u64) -> Instant {
    Instant::from_nanos(second * 1_000_000_000)
}

const fn at(node: usize, port: u8) -> PortAt {
    PortAt {
        node,
        port: PortNum(port),
    }
}

/// The nodes of the snapshots: the host with VFs, the host of the subnet manager, and the switch between them.
const HOST: PortAt = at(0, 1);
const SM: PortAt = at(1, 1);
const SWITCH: usize = 2;

fn port(number: u8, lid: u16) -> Port {
    Port {
        number: PortNum(number),
        state: PortState::Active,
        physical_state: PhysicalState::LinkUp,
        lid: Lid::new(lid),
        sm_lid: Lid::new(2),
        rates: Rates {
            widths: LinkWidth(LinkWidth::X1.0 | LinkWidth::X4.0),
            width: LinkWidth::X4,
            speeds: LinkSpeed::SDR,
            speed: LinkSpeed::SDR,
            ..Rates::default()
        },
        ..Port::default()
    }
}

fn node(name: &str, kind: NodeKind, ports: Vec<Port>) -> Node {
    let name = name.to_owned();
    Node { name, kind, ports }
}

/// A subnet of two hosts and a switch, in which all is well.
fn subnet() -> Subnet {
    let mut subnet = Subnet::default();
    subnet.add(node("host-a", NodeKind::Adapter, vec![port(1, 1)]));
    let mut manager = port(1, 2);
    (manager.is_sm, manager.guid) = (true, SM_GUID);
    subnet.add(node("mgmt", NodeKind::Adapter, vec![manager]));
    let ports = vec![port(0, 3), port(1, 0), port(2, 0)];
    subnet.add(node("S 1", NodeKind::Switch, ports));
    subnet.connect([HOST, at(SWITCH, 1)]);
    subnet.connect([SM, at(SWITCH, 2)]);
    subnet.management = Some(SM.node);
    for at in [HOST, SM] {
        subnet.partitions.insert(at, vec![PKey::DEFAULT_FULL]);
    }
    subnet
}

fn vf_port(reason: PortReason) -> VfPort {
    let guid = GuidView {
        wish: GuidWish::SmAssigned,
        granted: Some(GUID),
        hardware: GUID,
        state: GuidState::InHardware(GUID),
        declines: 0,
    };
    let mut port = VfPort::new(reason, guid);
    port.since = Some(Duration::from_secs(9));
    let usage = &mut port.usage;
    for table in [
        &mut usage.tids,
        &mut usage.sa_requests,
        &mut usage.cm_ids,
        &mut usage.cm_pending,
        &mut usage.groups,
        &mut usage.joins,
        &mut usage.subscriptions,
        &mut usage.subscribing,
    ] {
        table.limit = 8;
    }
    port
}

/// A snapshot of that subnet, with VF 3 of `host-a`.
fn snapshot(reason: PortReason) -> Snapshot {
    let vf = Vf {
        ports: [(PortNum(1), vf_port(reason))].into(),
        ..Vf::default()
    };
    let pf = Pf {
        host: "host-a".to_owned(),
        node: HOST.node,
        ports: vec![PfPort {
            sa_answers: Some(true),
            ..PfPort::default()
        }],
        vfs: [(3, vf)].into(),
        ..Pf::default()
    };
    Snapshot {
        taken: second(NOW),
        subnet: subnet(),
        pfs: vec![pf],
    }
}

fn vf(of: &mut Snapshot) -> &mut Vf {
    of.pfs[0].vfs.get_mut(&3).unwrap()
}

fn row(of: &mut Snapshot) -> &mut VfPort {
    vf(of).ports.get_mut(&PortNum(1)).unwrap()
}

/// Takes the link of a port down.
fn unplug(subnet: &mut Subnet, end: PortAt) {
    for end in [end, subnet.peer(end).unwrap()] {
        let port = subnet.port_mut(end).unwrap();
        port.physical_state = PhysicalState::Polling;
        port.state = PortState::Down;
    }
}

/// Returns the diagnosis of VF 3, which has to be among the faults of all VFs, too.
#[track_caller]
fn found(snapshot: &Snapshot, code: &str) -> Diagnosis {
    let found = why(snapshot, "host-a", 3, PortNum(1));
    assert_eq!(found.code, code, "{found}");
    assert!(!found.summary.is_empty() && !found.next.is_empty());
    let all = Faults::of(snapshot, None);
    assert_eq!(all.vfs, 1);
    let expected: Vec<_> = (code != "ok").then_some(&found).into_iter().collect();
    assert_eq!(all.faults.iter().collect::<Vec<_>>(), expected);
    found
}

#[test]
fn a_healthy_vf_has_no_fault() {
    let found = found(&snapshot(PortReason::Up), "ok");
    assert_eq!(
        found.to_string(),
        "host-a/3 port 1: up, ok, up for 9.0 s\n  what:  the port is up\n  next:  nothing"
    );
}

#[test]
fn a_vf_a_port_and_a_host_that_do_not_exist() {
    let snapshot = snapshot(PortReason::Up);
    let code = |host, vf, port| why(&snapshot, host, vf, PortNum(port)).code;
    assert_eq!(code("host-a", 4, 1), "no_such_vf");
    assert_eq!(code("host-a", 3, 2), "no_such_port");
    assert_eq!(code("host-a", 3, 0), "no_such_port");
    assert_eq!(code("host-b", 3, 1), "no_such_port");
}

#[test]
fn a_link_that_is_down_names_both_ends_and_the_command_that_mends_it() {
    let mut snapshot = snapshot(PortReason::PhysicalDown);
    unplug(&mut snapshot.subnet, HOST);
    let found = found(&snapshot, "link_down");
    assert!(!found.up);
    assert_eq!(
        found.seen,
        ["host-a/1 is Polling", "its link leads to S 1/1"]
    );
    assert_eq!(found.next, "vhca set link host-a/1 up");
}

#[test]
fn a_disabled_switch_port_is_enabled_on_the_switch() {
    let mut snapshot = snapshot(PortReason::PhysicalDown);
    unplug(&mut snapshot.subnet, HOST);
    let far = snapshot.subnet.port_mut(at(SWITCH, 1)).unwrap();
    far.physical_state = PhysicalState::Disabled;
    assert_eq!(
        found(&snapshot, "port_disabled").next,
        "vhca run --node 'S 1' -- ibportstate -D 0 1 enable"
    );
}

#[test]
fn a_link_that_went_down_ten_times_flaps_whether_up_or_down() {
    let mut snapshot = snapshot(PortReason::Up);
    snapshot.pfs[0].ports[0].losses = 9;
    found(&snapshot, "ok");
    snapshot.pfs[0].ports[0].losses = 10;
    assert!(found(&snapshot, "link_flapping").up);
    row(&mut snapshot).reason = PortReason::PhysicalDown;
    unplug(&mut snapshot.subnet, HOST);
    assert_eq!(
        found(&snapshot, "link_flapping").next,
        "vhca set link host-a/1 up"
    );
}

/// Returns a snapshot in which the link of the host's port is up and no subnet manager has configured the port.
fn unmanaged() -> Snapshot {
    let mut snapshot = snapshot(PortReason::PhysicalDown);
    let port = snapshot.subnet.port_mut(HOST).unwrap();
    (port.state, port.lid, port.sm_lid) = (PortState::Init, Lid::NONE, Lid::NONE);
    snapshot
}

#[test]
fn without_a_subnet_manager_one_is_started_on_the_management_host() {
    let mut snapshot = unmanaged();
    snapshot.subnet.port_mut(SM).unwrap().is_sm = false;
    let found = found(&snapshot, "no_sm");
    assert!(found.next.contains("--node mgmt -- opensm -f"), "{found}");
    assert_eq!(found.seen[0], "host-a/1 is Init, its LID is 0");
}

#[test]
fn a_trunk_that_is_down_is_why_no_subnet_manager_is_there() {
    let mut snapshot = unmanaged();
    snapshot.subnet.port_mut(SM).unwrap().is_sm = false;
    let mut trunk = |peer: Result<&str, &str>, refused_smps| {
        let trunk = Trunk {
            way: "tcp:spine:18600".to_owned(),
            peer: peer.map(str::to_owned).map_err(str::to_owned),
            is_guarded: false,
            round_trip: None,
            refused_smps,
        };
        snapshot.subnet.trunks.insert(at(SWITCH, 2), trunk);
        found(&snapshot, "no_sm")
    };
    let down = trunk(Err("down: nothing came from the other end"), 0);
    let seen = "trunk S 1/2 (tcp:spine:18600): down: nothing came from the other end";
    assert!(down.seen.contains(&seen.to_owned()), "{down}");
    let refusing = trunk(Ok("spine"), 7);
    let seen = "trunk S 1/2 refused 7 SMPs of spine, which it takes for a host";
    assert!(refusing.seen.contains(&seen.to_owned()), "{refusing}");
    assert!(refusing.next.ends_with("peer=fabric"), "{refusing}");
    let up = trunk(Ok("spine"), 0);
    assert!(
        up.next.starts_with("see the subnet manager of spine"),
        "{up}"
    );
}

#[test]
fn a_trunk_to_a_site_that_is_down_or_slow_is_a_fault_of_ports_that_are_up() {
    let mut snapshot = snapshot(PortReason::Up);
    let mut trunk = |peer: Result<&str, &str>, is_guarded, round_trip| {
        let trunk = Trunk {
            way: "tcp:spine:18600".to_owned(),
            peer: peer.map(str::to_owned).map_err(str::to_owned),
            is_guarded,
            round_trip: Some(Duration::from_millis(round_trip)),
            refused_smps: 0,
        };
        snapshot.subnet.trunks.insert(at(SWITCH, 2), trunk);
        why(&snapshot, "host-a", 3, PortNum(1)).code
    };
    let gone = Err("down: nothing came from the other end");
    assert_eq!(trunk(gone, false, 0), "trunk_down");
    assert_eq!(trunk(gone, true, 0), "ok");
    assert_eq!(trunk(Ok("spine"), false, 67), "ok");
    assert_eq!(trunk(Ok("spine"), false, 68), "trunk_slow");
}

#[test]
fn a_subnet_manager_that_does_nothing_is_woken() {
    let mut snapshot = unmanaged();
    snapshot.subnet.managers.insert(SM, 77);
    // It may not have noticed the port yet, unless it does not answer.
    assert!(
        found(&snapshot, "no_sm")
            .next
            .starts_with("wait ten seconds")
    );
    snapshot.subnet.sm_answers.insert(SM, None);
    assert!(found(&snapshot, "no_sm").next.starts_with("kill -CONT 77 "));
    snapshot.subnet.sm_answers.clear();
    row(&mut snapshot).since = Some(Duration::from_secs(13));
    assert!(found(&snapshot, "no_sm").next.starts_with("kill -CONT 77 "));
    snapshot.subnet.port_mut(HOST).unwrap().lid = Lid::new(1);
    found(&snapshot, "port_not_active");
}

#[test]
fn a_subnet_manager_beyond_a_link_that_is_down_is_named() {
    let mut snapshot = unmanaged();
    unplug(&mut snapshot.subnet, SM);
    let found = found(&snapshot, "no_sm");
    assert!(
        found
            .seen
            .contains(&"the subnet manager on mgmt/1 is beyond it".to_owned())
    );
    // The end on the side of the port.
    assert_eq!(found.next, "vhca set link 'S 1/2' up");
}

#[test]
fn smps_refused_for_their_m_key_within_the_last_minute_are_the_fault() {
    let mut snapshot = unmanaged();
    let subnet = &mut snapshot.subnet;
    for at in [HOST, SM, at(SWITCH, 0)] {
        subnet.port_mut(at).unwrap().m_key = MKey::new(0x77);
    }
    let last = second(NOW - 60);
    let refused = Some(Dropped { packets: 5, last });
    subnet.port_mut(HOST).unwrap().refused_smps = refused;
    let seen = found(&snapshot, "foreign_m_key").seen;
    assert!(seen[1].starts_with("5 SMPs with another M_Key"), "{seen:?}");
    snapshot.taken += Duration::from_secs(1);
    found(&snapshot, "no_sm");
    // A key that most other ports do not have is a fault at any time.
    snapshot.subnet.port_mut(HOST).unwrap().m_key = MKey::new(0x78);
    let found = found(&snapshot, "foreign_m_key");
    assert!(found.next.ends_with("-y 0x78 -D 0 1 mkey 0x77"), "{found}");
}

#[test]
fn a_narrow_link_is_repaired_by_the_service_if_it_made_it_narrow() {
    let mut snapshot = snapshot(PortReason::Up);
    snapshot.subnet.port_mut(HOST).unwrap().rates.width = LinkWidth::X1;
    let seen = "the link of host-a/1 has 1X, both ends support 4X";
    let by_port = found(&snapshot, "link_narrow");
    assert_eq!(by_port.seen, [seen]);
    assert!(by_port.next.contains("ibportstate"), "{by_port}");
    snapshot.pfs[0].ports[0].is_impaired = true;
    assert_eq!(
        found(&snapshot, "link_narrow").next,
        "vhca clear link host-a/1"
    );
}

#[test]
fn a_p_key_that_the_port_does_not_have() {
    let mut snapshot = snapshot(PortReason::Up);
    let wanted = [PKey::DEFAULT_FULL, PKey::new(0x8001)];
    row(&mut snapshot).pkeys = Some(PKeyTable {
        wanted: wanted.map(|key| Some(VfPKeyEntry::Value(key))).into(),
        keys: vec![(0, PKey::DEFAULT_FULL), (1, PKey::INVALID)],
    });
    let missing = found(&snapshot, "pkey_missing");
    let seen = "index 1 is for 0x8001, which the port does not have";
    assert_eq!(missing.seen, [seen]);
    row(&mut snapshot).pkeys = Some(PKeyTable::default());
    found(&snapshot, "no_pkey");
    // An empty table of the physical port leaves nothing.
    row(&mut snapshot).pkeys = None;
    snapshot.subnet.partitions.insert(HOST, Vec::new());
    found(&snapshot, "pkey_missing");
}

#[test]
fn two_limited_members_do_not_talk() {
    let mut snapshot = snapshot(PortReason::Up);
    for at in [HOST, SM] {
        let keys = vec![PKey::DEFAULT_LIMITED];
        snapshot.subnet.partitions.insert(at, keys);
    }
    found(&snapshot, "sa_unreachable");
}

#[test]
fn packets_to_the_sa_that_end_at_a_link_name_the_link() {
    let mut snapshot = silent();
    let ends = [HOST, SM];
    let (hops, end) = (vec![[HOST, at(SWITCH, 1)]], at(SWITCH, 0));
    snapshot.subnet.ways.insert(ends, Way { hops, end });
    let lost = found(&snapshot, "sa_unreachable");
    assert_eq!(lost.seen, ["packets from host-a/1 to mgmt/1 end at S 1/0"]);
    unplug(&mut snapshot.subnet, SM);
    let cut = found(&snapshot, "sa_unreachable");
    assert_eq!(cut.next, "vhca set link mgmt/1 up");
}

/// Returns a snapshot in which the SA does not answer, and the SM's port does.
fn silent() -> Snapshot {
    let mut snapshot = snapshot(PortReason::Up);
    let port = &mut snapshot.pfs[0].ports[0];
    (port.sa_answers, port.sm_port_answers) = (Some(false), Some(true));
    snapshot
}

#[test]
fn a_manager_is_woken_only_if_its_port_answers_and_it_does_not() {
    let mut snapshot = silent();
    snapshot.subnet.managers.insert(SM, 77);
    let woken = |snapshot: &Snapshot| found(snapshot, "sa_not_answering").next;
    assert!(woken(&snapshot).starts_with("kill -CONT 77 "));
    snapshot.subnet.sm_answers.insert(SM, None);
    assert!(woken(&snapshot).starts_with("kill -CONT 77 "));
    let inactive = Some(SmState::NOT_ACTIVE);
    snapshot.subnet.sm_answers.insert(SM, inactive);
    assert!(woken(&snapshot).contains("sm_inactive FALSE"));
    // A route is no answer.
    let way = |hops: [[PortAt; 2]; 2], end| Way {
        hops: hops.into(),
        end,
    };
    let there = [[HOST, at(SWITCH, 1)], [at(SWITCH, 2), SM]];
    let back = [[SM, at(SWITCH, 2)], [at(SWITCH, 1), HOST]];
    snapshot.subnet.ways.insert([HOST, SM], way(there, SM));
    snapshot.subnet.ways.insert([SM, HOST], way(back, HOST));
    snapshot.pfs[0].ports[0].sm_port_answers = Some(false);
    let lost = found(&snapshot, "sa_unreachable");
    assert_eq!(lost.next, "vhca show drops --problems");
    // Packets that arrive at another port have a route, too.
    snapshot
        .subnet
        .ways
        .insert([HOST, SM], way(there, at(SWITCH, 0)));
    snapshot.subnet.embedded = Some(SM);
    let astray = found(&snapshot, "sa_unreachable");
    assert_eq!(
        astray.seen,
        ["packets from host-a/1 to mgmt/1 end at S 1/0"]
    );
    assert_eq!(astray.next, "vhca sm sweep");
}

#[test]
fn planned_faults_come_before_what_follows_from_them() {
    let mut snapshot = silent();
    snapshot.pfs[0].ports[0].sm_port_answers = Some(false);
    snapshot.subnet.planned.insert(1, "loss=100%".to_owned());
    let faulty = found(&snapshot, "link_faulty");
    assert_eq!(faulty.seen, ["the link of mgmt/1 has loss=100%"]);
    assert_eq!(faulty.next, "vhca clear link mgmt/1");
    let codes: Vec<_> = faulty.reasons.iter().map(|reason| reason.code()).collect();
    assert_eq!(codes, ["link_faulty", "sa_unreachable"]);
    assert!(
        faulty.to_string().contains("\n  also:  sa_unreachable: "),
        "{faulty}"
    );
    // A port that no manager has configured.
    let mut unmanaged = unmanaged();
    unmanaged.subnet.planned.insert(0, "delay=2s".to_owned());
    assert!(!found(&unmanaged, "link_faulty").up);
}

#[test]
fn ten_errors_of_a_link_are_a_fault_and_nine_are_not() {
    let mut snapshot = snapshot(PortReason::Up);
    snapshot.pfs[0].ports[0].errors = 9;
    found(&snapshot, "ok");
    snapshot.pfs[0].ports[0].errors = 10;
    let errors = found(&snapshot, "link_errors");
    assert!(
        errors.next.starts_with("vhca clear link host-a/1 # "),
        "{errors}"
    );
}

#[test]
fn two_ports_with_one_lid_or_one_guid() {
    let mut snapshot = silent();
    let subnet = &mut snapshot.subnet;
    subnet.embedded = Some(SM);
    subnet.port_mut(at(SWITCH, 0)).unwrap().lid = Lid::new(1);
    let shared = found(&snapshot, "duplicate_lid");
    assert_eq!(shared.seen, ["LID 1 is that of host-a/1 and S 1/0"]);
    assert_eq!(shared.next, "vhca sm sweep");
    snapshot.subnet.port_mut(at(SWITCH, 0)).unwrap().lid = Lid::new(2);
    assert!(
        found(&snapshot, "duplicate_lid")
            .summary
            .ends_with("of the port's SM")
    );
    snapshot.subnet.port_mut(at(SWITCH, 0)).unwrap().guid = GUID;
    snapshot.subnet.port_mut(HOST).unwrap().guid = GUID;
    found(&snapshot, "duplicate_guid");
}

#[test]
fn a_port_without_any_p_key_has_the_manager_sweep() {
    let mut snapshot = silent();
    snapshot.subnet.embedded = Some(SM);
    for emptied in [SM, HOST] {
        let keys = vec![PKey::INVALID];
        snapshot.subnet.partitions.insert(emptied, keys);
        let missing = found(&snapshot, "pkey_missing");
        assert_eq!(missing.next, "vhca sm sweep");
    }
}

#[test]
fn a_full_table_counts_open_transactions_only() {
    let mut snapshot = snapshot(PortReason::Up);
    row(&mut snapshot).usage.tids.live = 8;
    found(&snapshot, "ok");
    row(&mut snapshot).open_transactions = 8;
    assert_eq!(found(&snapshot, "quota_reached").seen[0], "8 of 8 tids");
}

#[test]
fn a_vf_that_no_vmm_has_and_a_stand_of_the_service_for_the_last() {
    let mut snapshot = snapshot(PortReason::Up);
    let vf = vf(&mut snapshot);
    vf.offer = Some(Offer {
        vmms: 1,
        ..Offer::default()
    });
    vf.stall = Some(Stall {
        work: "a message of process 7 of user 0".to_owned(),
        ended: second(NOW - 5),
    });
    let found = found(&snapshot, "no_vmm");
    assert_eq!(found.seen[0], "1 had it so far, 0 were turned away");
    assert!(found.seen[1].starts_with("5 s ago the service stood still for a message"));
}

/// A snapshot of the adapter alone: nothing behind its port is known.
fn alone(reason: PortReason) -> Snapshot {
    let mut snapshot = snapshot(reason);
    let subnet = &mut snapshot.subnet;
    subnet.extent = Extent::Adapters;
    subnet.nodes.truncate(1);
    subnet.port_mut(HOST).unwrap().link = None;
    subnet.links.clear();
    subnet.partitions.remove(&SM);
    subnet.management = None;
    snapshot
}

#[test]
fn of_an_adapter_without_a_known_fabric_a_diagnosis_claims_nothing_about_the_fabric() {
    found(&alone(PortReason::Up), "ok");
    let mut silent = alone(PortReason::Up);
    silent.pfs[0].ports[0].sa_answers = Some(false);
    let seen = found(&silent, "sa_not_answering").seen;
    assert_eq!(seen[0], "the SA is at LID 2");
    let mut down = alone(PortReason::PhysicalDown);
    found(&down, "port_not_active");
    let port = down.subnet.port_mut(HOST).unwrap();
    port.lid = Lid::NONE;
    found(&down, "no_sm");
    let port = down.subnet.port_mut(HOST).unwrap();
    port.physical_state = PhysicalState::Polling;
    let unplugged = found(&down, "link_down");
    assert_eq!(unplugged.seen, ["host-a/1 is Polling"]);
    assert!(!unplugged.next.contains("vhca set link"), "{unplugged}");
    let port = down.subnet.port_mut(HOST).unwrap();
    port.physical_state = PhysicalState::Disabled;
    found(&down, "port_disabled");
}

#[test]
fn a_diagnosis_passes_through_json_and_a_code_of_a_newer_service_is_unknown() {
    let mut snapshot = snapshot(PortReason::PhysicalDown);
    unplug(&mut snapshot.subnet, HOST);
    let faults = Faults::of(&snapshot, None);
    let text = serde_json::to_string(&faults).unwrap();
    assert!(text.starts_with(
        "{\"vfs\":1,\"faults\":[{\"host\":\"host-a\",\"vf\":3,\"port\":1,\"up\":false,\"code\":\"link_down\",\"summary\":"
    ));
    assert_eq!(serde_json::from_str::<Faults>(&text).unwrap(), faults);
    let unknown = text.replace("link_down", "link_bent");
    assert!(KNOWN_FAULTS.iter().all(|known| known.code != "link_bent"));
    let read = serde_json::from_str::<Faults>(&unknown).unwrap();
    assert_eq!(read.faults[0].code, "unknown");
    assert_eq!(read.faults[0].summary, faults.faults[0].summary);
}
