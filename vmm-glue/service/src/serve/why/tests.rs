//! Each fault is made, and named.

use emulated_hca::{HcaConfig, LinkConfig};
use ib_vtime::Duration;
use ib_wire::PortNum;
use pf_context::inspect::Inspect;
use vhca_control::{FaultySpeed, FaultyWidth, GuestAction, LinkFaults, VfChange, VfState};
use vhca_diagnosis::{Diagnosis, KNOWN_FAULTS, KnownFault, PairDiagnosis};

use crate::serve::lab::Lab;
use crate::serve::options::{GuidPolicy, Options, Quotas, SmChoice};
use crate::serve::service::Service;
use crate::serve::tests::pass;
use crate::serve::topology::TopologySpec;

fn options() -> Options {
    Options {
        topology: TopologySpec::ThreeSwitch,
        vfs: 3,
        guests: true,
        ..Options::default()
    }
}

fn serve(options: &Options) -> Service {
    let mut service = Service::in_virtual_time(Lab::build(options, 1).unwrap());
    pass(&mut service, Duration::from_secs(5));
    service
}

/// Has the SA asked, as the control socket does, and returns the diagnosis.
fn why(service: &mut Service, vf: &str) -> Diagnosis {
    let host = service.lab().inventory.vf(vf, None).unwrap().host;
    let ports = service.lab().ports_of([host].into());
    service.lab_mut().ask_sa(&ports);
    while service.lab().is_asking_sa(&ports) {
        pass(service, Duration::from_millis(10));
    }
    let lab = service.lab();
    let found = lab.why(&lab.inventory.vf(vf, None).unwrap(), PortNum(1));
    assert!(
        !found.summary.is_empty() && !found.next.is_empty(),
        "{found:?}"
    );
    found
}

fn set(service: &mut Service, vf: &str, change: &VfChange) {
    let vf = service.lab().inventory.vf(vf, None).unwrap();
    service.lab_mut().set_vf(&vf, PortNum(1), change).unwrap();
}

fn guid(text: &str) -> VfChange {
    VfChange::PortGuid(text.into())
}

fn limits(rate: u32, burst: u32) -> VfChange {
    VfChange::Limits {
        rate: Some(rate),
        burst: Some(burst),
        queue: None,
        weight: None,
    }
}

#[test]
fn a_vf_that_is_up_has_no_fault() {
    let mut service = serve(&options());
    let found = why(&mut service, "host-a/1");
    assert_eq!((found.code, found.up), ("ok", true));
    assert!(found.since_ms.is_some_and(|since| since > 1_000));
    assert!(
        found
            .to_string()
            .starts_with("host-a/1 port 1: up, ok, up for ")
    );
}

#[test]
fn a_vf_or_port_that_does_not_exist() {
    let mut service = serve(&options());
    let found = why(&mut service, "host-a/9");
    assert_eq!((found.code, found.up), ("no_such_vf", false));
    assert_eq!(found.seen, ["it has 3 VFs"]);
    let lab = service.lab();
    let vf = lab.inventory.vf("host-a/1", None).unwrap();
    assert_eq!(lab.why(&vf, PortNum(7)).code, "no_such_port");
    assert_eq!(lab.why(&vf, PortNum(0)).code, "no_such_port");
}

#[test]
fn the_administrators_will() {
    let mut service = serve(&options());
    set(&mut service, "host-a/1", &VfChange::State(VfState::Disable));
    pass(&mut service, Duration::from_secs(3));
    let found = why(&mut service, "host-a/1");
    assert_eq!(found.code, "admin_down");
    assert!((3_000..3_100).contains(&found.since_ms.unwrap()));
    assert!(found.next.contains("vhca set vf host-a/1 state auto"));
    assert_eq!(why(&mut service, "host-a/2").code, "ok");
    set(&mut service, "host-a/1", &VfChange::State(VfState::Auto));
    pass(&mut service, Duration::from_millis(10));
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
}

#[test]
fn a_link_that_is_down() {
    let mut service = serve(&options());
    service.lab_mut().set_link("host-a/1", None, false).unwrap();
    pass(&mut service, Duration::from_millis(10));
    let found = why(&mut service, "host-a/1");
    assert_eq!(found.code, "link_down");
    assert!(
        found.seen.iter().any(|seen| seen.contains("S1/2")),
        "{found}"
    );
    assert_eq!(why(&mut service, "host-b/1").code, "ok");
    service
        .lab_mut()
        .set_link("host-a", Some("S1"), true)
        .unwrap();
    pass(&mut service, Duration::from_secs(30));
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
}

#[test]
fn a_link_that_goes_down_again_and_again() {
    let mut service = serve(&options());
    let flap = |service: &mut Service, times: u32| {
        for _ in 0..times {
            for up in [false, true] {
                service.lab_mut().set_link("host-a/1", None, up).unwrap();
                pass(service, Duration::from_millis(500));
            }
        }
    };
    flap(&mut service, 9);
    pass(&mut service, Duration::from_secs(2));
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
    flap(&mut service, 2);
    let found = why(&mut service, "host-a/1");
    assert_eq!(found.code, "link_flapping", "{found}");
    assert_eq!(
        found.seen,
        ["the link of host-a/1 went down 11 times in the last minute"]
    );
    assert_eq!(why(&mut service, "host-b/1").code, "ok");
    // The remedy of one that is down is to plug it in, whatever took it down.
    service.lab_mut().set_link("host-a/1", None, false).unwrap();
    pass(&mut service, Duration::from_millis(10));
    let found = why(&mut service, "host-a/1");
    assert_eq!((found.code, found.up), ("link_flapping", false), "{found}");
    assert_eq!(found.next, "vhca set link host-a/1 up");
    service.lab_mut().set_link("host-a/1", None, true).unwrap();
    pass(&mut service, Duration::from_secs(60));
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
}

#[test]
fn a_link_below_what_both_its_ends_support() {
    let mut service = serve(&options());
    for (width, speed, code, than, seen) in [
        (Some(FaultyWidth::X1), None, "link_narrow", "narrower", 1),
        (None, Some(FaultySpeed::Sdr), "link_slow", "slower", 1),
        (
            Some(FaultyWidth::X1),
            Some(FaultySpeed::Sdr),
            "link_narrow",
            "narrower and slower",
            2,
        ),
    ] {
        let faults = LinkFaults {
            width,
            speed,
            ..LinkFaults::default()
        };
        let set = |service: &mut Service, faults| {
            let lab = service.lab_mut();
            lab.set_link_faults("host-a/1", None, faults).unwrap();
            pass(service, Duration::from_secs(5));
        };
        set(&mut service, faults);
        let found = why(&mut service, "host-a/1");
        assert_eq!((found.code, found.up), (code, true), "{found}");
        let summary = format!("the link is {than} than both its ends support");
        assert_eq!((found.summary, found.seen.len()), (summary, seen));
        assert_eq!(found.next, "vhca clear link host-a/1");
        assert_eq!(why(&mut service, "host-b/1").code, "ok");
        set(&mut service, LinkFaults::default());
        assert_eq!(why(&mut service, "host-a/1").code, "ok");
    }
}

#[test]
fn a_port_without_a_cable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("net");
    let net =
        "Switch 8 \"s\"\n[1] \"mgmt\"[1]\n\nHca 1 \"mgmt\"\n[1] \"s\"[1]\n\nHca 1 \"alone\"\n";
    std::fs::write(&path, net).unwrap();
    let mut service = serve(&Options {
        topology: TopologySpec::File(path),
        ..options()
    });
    assert_eq!(why(&mut service, "1").code, "no_cable");
}

#[test]
fn no_subnet_manager_at_all() {
    let mut service = serve(&Options {
        sm: SmChoice::None,
        ..options()
    });
    let found = why(&mut service, "host-b/2");
    assert_eq!(found.code, "no_sm");
    assert!(found.seen.iter().any(|seen| seen.contains("its LID is 0")));
}

#[test]
fn a_port_that_its_manager_does_not_activate() {
    let mut service = serve(&options());
    let manager = service.lab().inventory.host("mgmt").unwrap().id;
    service.lab_mut().world_mut().stop_manager(manager).unwrap();
    for up in [false, true] {
        service.lab_mut().set_link("host-a/1", None, up).unwrap();
        pass(&mut service, Duration::from_secs(1));
    }
    let found = why(&mut service, "host-a/1");
    assert_eq!(found.code, "port_not_active");
    assert!(found.seen[0].contains("Init"), "{found}");
}

#[test]
fn nobody_wants_a_guid() {
    let mut service = serve(&Options {
        guids: GuidPolicy::None,
        ..options()
    });
    assert_eq!(why(&mut service, "host-a/1").code, "no_guid_requested");
}

#[test]
fn a_guid_that_can_never_be_the_vfs() {
    let mut service = serve(&Options {
        guids: GuidPolicy::None,
        ..options()
    });
    set(&mut service, "host-a/1", &guid("0x1122334455667788"));
    let vf = service.lab().inventory.vf("host-a/2", None).unwrap();
    let refused = service
        .lab_mut()
        .set_vf(&vf, PortNum(1), &guid("0x1122334455667788"))
        .unwrap_err();
    assert_eq!(refused.code, "guid_refused");
    assert!(refused.message.contains("vf:1"), "{}", refused.message);
    let found = why(&mut service, "host-a/2");
    assert_eq!(found.code, "guid_refused");
    set(&mut service, "host-a/2", &guid("sm"));
    pass(&mut service, Duration::from_secs(5));
    assert_eq!(why(&mut service, "host-a/2").code, "ok");
}

#[test]
fn the_sa_does_not_answer() {
    let mut service = serve(&Options {
        guids: GuidPolicy::None,
        ..options()
    });
    service.lab_mut().set_link("mgmt/1", None, false).unwrap();
    pass(&mut service, Duration::from_millis(10));
    set(&mut service, "host-a/1", &guid("sm"));
    pass(&mut service, Duration::from_millis(500));
    let found = why(&mut service, "host-a/1");
    assert_eq!((found.code, found.up), ("sa_unreachable", false), "{found}");
    assert_eq!(found.next, "vhca set link mgmt/1 up");
}

#[test]
fn the_sa_declines_a_guid_that_another_port_has() {
    let mut service = serve(&options());
    set(&mut service, "host-a/1", &guid("0x1122334455667788"));
    pass(&mut service, Duration::from_secs(1));
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
    set(&mut service, "host-b/1", &guid("0x1122334455667788"));
    pass(&mut service, Duration::from_secs(1));
    let found = why(&mut service, "host-b/1");
    assert_eq!(
        (found.code, found.up),
        ("guid_not_granted", true),
        "{found}"
    );

    let mut service = serve(&Options {
        guids: GuidPolicy::None,
        ..options()
    });
    for vf in ["host-a/1", "host-b/1"] {
        set(&mut service, vf, &guid("0x1122334455667788"));
        pass(&mut service, Duration::from_secs(1));
    }
    let found = why(&mut service, "host-b/1");
    assert_eq!((found.code, found.up), ("guid_declined", false), "{found}");
    assert!(
        found
            .seen
            .iter()
            .any(|seen| seen.contains("asked again in"))
    );
}

#[test]
fn a_guid_that_nobody_writes_to_the_hardware() {
    let mut service = serve(&Options {
        guids: GuidPolicy::Hardware,
        ..options()
    });
    assert_eq!(why(&mut service, "host-a/1").code, "waiting_for_hardware");
}

#[test]
fn a_partition_that_the_port_is_not_in() {
    let mut service = serve(&options());
    let pkeys = VfChange::Pkeys(vec!["0xffff".into(), "0x8001".into()]);
    set(&mut service, "host-a/1", &pkeys);
    pass(&mut service, Duration::from_millis(10));
    let found = why(&mut service, "host-a/1");
    assert_eq!((found.code, found.up), ("pkey_missing", true));
    assert!(found.seen[0].contains("index 1 is for 0x8001"), "{found}");
    set(
        &mut service,
        "host-a/1",
        &VfChange::Pkeys(vec!["index:0".into()]),
    );
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
}

/// Has a guest ask so many questions at once.
fn ask(service: &mut Service, vf: &str, questions: u16) {
    let vfs = service.lab().inventory.vfs(vf, None).unwrap();
    for number in 1..=questions {
        let dgid = format!("fe80::{number:x}");
        let action = GuestAction::Query { dgid };
        service.lab_mut().guests_do(&vfs, &action).unwrap();
    }
    pass(service, Duration::from_millis(100));
}

#[test]
fn more_questions_than_a_vf_may_have_open() {
    let mut service = serve(&Options {
        quotas: Quotas {
            sa_requests: Some(8),
            ..Quotas::default()
        },
        ..options()
    });
    service.lab_mut().set_link("mgmt/1", None, false).unwrap();
    pass(&mut service, Duration::from_millis(10));
    ask(&mut service, "host-a/1", 20);
    let lab = service.lab();
    let known = |vf| lab.why(&lab.inventory.vf(vf, None).unwrap(), PortNum(1));
    let found = known("host-a/1");
    assert_eq!(found.code, "quota_reached", "{found}");
    assert!(found.summary.contains("sa_requests"), "{found}");
    assert_eq!(known("host-a/2").code, "ok");
    // That the SA cannot be reached, which the quota is used up for, is for all VFs.
    let found = why(&mut service, "host-a/1");
    assert_eq!((found.code, found.up), ("sa_unreachable", true), "{found}");
    let lab = service.lab();
    let faults = lab.faults(None, None);
    assert_eq!((faults.vfs, faults.faults.len()), (6, 6), "{faults}");
}

#[test]
fn answered_questions_make_room_and_count_for_no_quota() {
    let mut service = serve(&Options {
        quotas: Quotas {
            tids: Some(8),
            ..Quotas::default()
        },
        ..options()
    });
    let live = |service: &Service| {
        let lab = service.lab();
        let context = lab
            .world()
            .context(lab.inventory.host("host-a").unwrap().id);
        let mut rows = Inspect::vfs(context, lab.world().now());
        rows.find(|row| row.vf.get() == 1).unwrap().usage.tids.live
    };
    ask(&mut service, "host-a/1", 20);
    assert_eq!(live(&service), 8);
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
    service.lab_mut().set_link("mgmt/1", None, false).unwrap();
    pass(&mut service, Duration::from_millis(10));
    ask(&mut service, "host-a/1", 20);
    assert_eq!(live(&service), 8);
    let lab = service.lab();
    let found = lab.why(&lab.inventory.vf("host-a/1", None).unwrap(), PortNum(1));
    assert_eq!(found.code, "quota_reached", "{found}");
    assert_eq!(found.seen[0], "8 of 8 tids");
}

#[test]
fn more_packets_than_a_guest_has_receives() {
    let mut service = serve(&options());
    let everybody = service.lab().inventory.vfs("host-a/all", None).unwrap();
    let mgid = "ff12::15:1".to_owned();
    let join = GuestAction::Join { mgid: mgid.clone() };
    service.lab_mut().guests_do(&everybody, &join).unwrap();
    pass(&mut service, Duration::from_millis(100));
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
    // Each guest has room for 16 sends and for 16 receives.
    for _ in 0..16 {
        let to = mgid.clone();
        let send = GuestAction::Send {
            to,
            text: "hello".into(),
        };
        service.lab_mut().guests_do(&everybody, &send).unwrap();
    }
    pass(&mut service, Duration::from_millis(100));
    let found = why(&mut service, "host-a/1");
    assert_eq!(found.code, "no_receives", "{found}");
    assert!(found.seen[0].starts_with("32 packets"), "{found}");
    assert_eq!(why(&mut service, "host-b/1").code, "ok");
    pass(&mut service, Duration::from_secs(61));
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
}

#[test]
fn more_mads_than_a_vf_may_send() {
    let mut service = serve(&options());
    set(&mut service, "host-a/1", &limits(1, 1));
    ask(&mut service, "host-a/1", 20);
    let found = why(&mut service, "host-a/1");
    assert_eq!(found.code, "rate_limited", "{found}");
    set(&mut service, "host-a/1", &limits(0, 1));
    pass(&mut service, Duration::from_secs(1));
    assert_eq!(why(&mut service, "host-a/1").code, "ok");
}

#[test]
fn the_page_of_the_service_has_the_same_codes_with_the_same_words() {
    let page = include_str!("../../../docs/serve.md");
    let (_, codes) = page.split_once("## What `vhca why` can say").unwrap();
    let (codes, _) = codes.split_once("\n#").unwrap();
    let rows = codes.lines().filter(|line| line.starts_with("| `"));
    let known = KNOWN_FAULTS.iter().map(
        |KnownFault {
             code,
             port,
             meaning,
         }| { format!("| `{code}` | {port} | {meaning} |") },
    );
    assert_eq!(rows.collect::<Vec<_>>(), known.collect::<Vec<_>>());
}

#[test]
fn faults_that_the_service_makes_by_order_are_the_cause() {
    let mut service = serve(&options());
    let all = LinkFaults {
        loss: 1_000_000,
        ..LinkFaults::default()
    };
    let late = LinkFaults {
        delay_ns: 2_000_000_000,
        ..LinkFaults::default()
    };
    let corrupt = LinkFaults {
        corrupt: 1_000_000,
        ..LinkFaults::default()
    };
    let half = LinkFaults {
        loss: 500_000,
        ..LinkFaults::default()
    };
    for (a, b, faults) in [
        ("host-a/1", None, all),
        ("host-a/1", None, corrupt),
        ("host-a/1", None, half),
        ("mgmt/1", None, all),
        ("mgmt/1", None, late),
    ] {
        service.lab_mut().set_link_faults(a, b, faults).unwrap();
        let found = why(&mut service, "host-a/1");
        assert_eq!(found.code, "link_faulty", "{found}");
        let cleared = LinkFaults::default();
        service.lab_mut().set_link_faults(a, b, cleared).unwrap();
        pass(&mut service, Duration::from_secs(12));
        assert_eq!(why(&mut service, "host-a/1").code, "ok");
    }
}

#[test]
fn symbol_errors_are_a_fault_for_ten_minutes_or_until_the_link_is_cleared() {
    let mut service = serve(&options());
    let errors = LinkFaults {
        symbol_errors: 5,
        ..LinkFaults::default()
    };
    let count = |service: &mut Service, faults| {
        service
            .lab_mut()
            .set_link_faults("host-a/1", None, faults)
            .unwrap();
        why(service, "host-a/2").code
    };
    // Both ends count them.
    assert_eq!(count(&mut service, errors), "link_errors");
    assert_eq!(count(&mut service, LinkFaults::default()), "ok");
    assert_eq!(count(&mut service, errors), "link_errors");
    pass(&mut service, Duration::from_secs(601));
    assert_eq!(why(&mut service, "host-a/2").code, "ok");
}

/// Adds an adapter with the GUIDs of another, at a switch's free port.
#[test]
fn a_second_adapter_with_the_guids_of_one() {
    let mut service = serve(&options());
    let node = |service: &Service, name: &str| service.lab().inventory.node(name).unwrap();
    let (host, switch) = (node(&service, "host-a"), node(&service, "S1"));
    let fabric = service.lab_mut().world_mut().fabric_mut();
    let guid = fabric.node(host).unwrap().node_guid;
    let twin = fabric.add_hca(&HcaConfig::new(guid, "twin"));
    let ports = fabric.node(switch).unwrap().port_count();
    let mut free = (1..=ports).filter(|port| fabric.peer(switch.port(*port)).is_none());
    let free = switch.port(free.next().unwrap());
    fabric
        .connect(twin.port(1), free, LinkConfig::default())
        .unwrap();
    pass(&mut service, Duration::from_secs(1));
    let found = why(&mut service, "host-a/1");
    assert_eq!(found.code, "duplicate_guid", "{found}");
}

fn pair(service: &mut Service, a: &str, b: &str) -> PairDiagnosis {
    let hosts = service
        .lab()
        .inventory
        .pf_hosts()
        .map(|host| host.id)
        .collect();
    let ports = service.lab().ports_of(hosts);
    service.lab_mut().ask_sa(&ports);
    while service.lab().is_asking_sa(&ports) {
        pass(service, Duration::from_millis(10));
    }
    service.lab().why_pair([a, b], None).unwrap()
}

#[test]
fn two_vfs_that_can_talk_and_the_ways_between_them() {
    let mut service = serve(&options());
    let found = pair(&mut service, "host-a/1", "host-b/2");
    assert_eq!(found.verdict, "ok", "{found}");
    assert_eq!(
        found.path,
        ["host-a/1", "S1/2", "S1/8", "S3/8", "S3/1", "host-b/1"]
    );
    assert_eq!(
        found.path_back,
        ["host-b/1", "S3/1", "S3/8", "S1/8", "S1/2", "host-a/1"]
    );
    let near = pair(&mut service, "host-a/1", "host-a/2");
    assert_eq!(
        (near.verdict, near.path),
        ("ok", vec!["host-a/1".to_owned()])
    );
    // The management host has no VFs.
    let port = pair(&mut service, "host-a/1", "mgmt/1");
    assert_eq!((port.verdict, port.to.as_str()), ("ok", "mgmt/1"));
    let lab = service.lab();
    for wrong in ["host-a/9", "mgmt/7", "nowhere/1", "mgmt/x"] {
        assert!(lab.why_pair(["host-a/1", wrong], None).is_err(), "{wrong}");
    }
}

#[test]
fn two_vfs_that_cannot_talk() {
    let mut service = serve(&options());
    let verdict = |service: &mut Service| pair(service, "host-a/1", "host-b/1").verdict;
    set(&mut service, "host-b/1", &VfChange::State(VfState::Disable));
    assert_eq!(verdict(&mut service), "admin_down");
    set(&mut service, "host-b/1", &VfChange::State(VfState::Auto));
    pass(&mut service, Duration::from_secs(1));
    set(
        &mut service,
        "host-b/1",
        &VfChange::Pkeys(vec!["-".to_owned()]),
    );
    assert_eq!(verdict(&mut service), "no_pkey");
    set(
        &mut service,
        "host-b/1",
        &VfChange::Pkeys(vec!["index:0".to_owned()]),
    );
    assert_eq!(verdict(&mut service), "ok");
    let half = LinkFaults {
        loss: 500_000,
        ..LinkFaults::default()
    };
    for (faults, code) in [(half, "link_faulty"), (LinkFaults::default(), "ok")] {
        service
            .lab_mut()
            .set_link_faults("S1", Some("S3"), faults)
            .unwrap();
        assert_eq!(verdict(&mut service), code);
    }
}

#[test]
fn without_a_port_the_one_with_a_fault_is_diagnosed() {
    let mut service = serve(&options());
    service.lab_mut().set_link("host-a/2", None, false).unwrap();
    pass(&mut service, Duration::from_secs(1));
    let lab = service.lab();
    let vf = lab.inventory.vf("host-a/1", None).unwrap();
    assert_eq!(lab.why(&vf, PortNum(1)).code, "ok");
    let found = lab.why_any_port(&vf);
    assert_eq!((found.port, found.code), (2, "link_down"), "{found}");
}
