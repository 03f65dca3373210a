use serde_json::Value;
use vhca_control::{GuestAction, VfChange};

use super::group::LEFT;
use crate::serve::guests::JobId;
use crate::serve::lab::Lab;
use crate::serve::options::Options;
use crate::serve::service::Service;
use crate::serve::subnet::{PartEnforce, SubnetOptions};
use crate::serve::tests::pass;
use crate::serve::topology::TopologySpec;
use ib_vtime::Duration;
use ib_wire::{Lmc, PortNum};
use vhca::Driven;

const MGID: &str = "ff12::4242";
const SOON: Duration = Duration::from_secs(30);

fn options() -> Options {
    Options {
        topology: TopologySpec::TwoSwitch,
        vfs: 16,
        guests: true,
        ..Options::default()
    }
}

fn service() -> Service {
    service_of(&options())
}

fn service_of(options: &Options) -> Service {
    let mut service = Service::in_virtual_time(Lab::build(options, 1).unwrap());
    pass(&mut service, Duration::from_secs(5));
    service
}

/// What comes of an action, as JSON.
fn act(service: &mut Service, vf: &str, action: &GuestAction) -> Vec<Value> {
    let vfs = service.lab().inventory.vfs(vf, None).unwrap();
    let job = service.lab_mut().guests_do(&vfs, action).unwrap();
    wait_for(service, job)
}

/// What comes of a job, as JSON.
fn wait_for(service: &mut Service, job: JobId) -> Vec<Value> {
    let end = service.lab().world().now() + SOON;
    let mut now = service.lab().world().now();
    loop {
        service.poll(now);
        if let Some(reports) = service.lab_mut().poll_report(job) {
            let json = serde_json::to_value(reports).unwrap();
            return json.as_array().unwrap().clone();
        }
        assert!(now < end, "nothing comes of {job:?}");
        now = service
            .poll_timeout()
            .map_or(end, |next| next.max(now).min(end));
    }
}

fn join(mgid: &str) -> GuestAction {
    GuestAction::Join { mgid: mgid.into() }
}

fn send(to: &str) -> GuestAction {
    GuestAction::Send {
        to: to.into(),
        text: "to all".into(),
    }
}

fn received(service: &mut Service) -> Vec<u64> {
    let all = act(service, "all", &GuestAction::Status {});
    all.iter()
        .map(|guest| guest["received"].as_u64().unwrap())
        .collect()
}

fn all_ok(reports: &[Value]) {
    for report in reports {
        assert_eq!(report["ok"], true, "{report}");
    }
}

#[test]
fn a_datagram_to_a_group_reaches_exactly_its_members_across_switches() {
    let mut service = service();
    all_ok(&act(&mut service, "all", &join(MGID)));
    pass(&mut service, Duration::from_secs(1));
    all_ok(&act(&mut service, "H1-1/3", &send(MGID)));
    pass(&mut service, Duration::from_millis(10));
    assert_eq!(received(&mut service), vec![1; 64]);
    let leave = GuestAction::Leave { mgid: MGID.into() };
    all_ok(&act(&mut service, "H2-1/all", &leave));
    all_ok(&act(&mut service, "H1-2/5", &leave));
    pass(&mut service, Duration::from_secs(1));
    all_ok(&act(&mut service, "H1-1/3", &send(MGID)));
    pass(&mut service, Duration::from_millis(10));
    let counts = received(&mut service);
    assert_eq!(counts.iter().sum::<u64>(), 64 + 64 - 17);
    assert_eq!(counts[32..48], [1; 16], "the host that left");
    let outsider = act(&mut service, "H1-2/5", &send(MGID));
    assert_eq!(outsider[0]["ok"], false);
}

#[test]
fn guests_join_groups_with_a_queue_key_that_they_did_not_choose() {
    let broadcast = "ff12:401b:ffff::ffff:ffff";
    let mut service = service();
    for (mgid, qkey, pkey) in [
        (broadcast, "0x00000b1b", "0xffff"),
        (MGID, "0x11111111", "0xffff"),
    ] {
        let sent = received(&mut service);
        let joined = act(&mut service, "all", &join(mgid));
        all_ok(&joined);
        let facts = joined.iter().map(|guest| (&guest["qkey"], &guest["pkey"]));
        assert!(
            facts
                .clone()
                .all(|fact| fact == (&qkey.into(), &pkey.into())),
            "{joined:?}"
        );
        pass(&mut service, Duration::from_secs(1));
        all_ok(&act(&mut service, "H1-1/3", &send(mgid)));
        pass(&mut service, Duration::from_millis(10));
        let counts = received(&mut service);
        assert!(
            counts.iter().zip(&sent).all(|(now, then)| *now == then + 1),
            "{mgid}: {counts:?}"
        );
        let leave = GuestAction::Leave { mgid: mgid.into() };
        all_ok(&act(&mut service, "all", &leave));
    }
}

#[test]
fn a_group_is_made_in_the_partition_of_the_first_key_of_who_makes_it() {
    let partition = "pkey = 0x8001\nmembers = { ALL = \"full\", H2-1 = \"limited\" }";
    let mut service = service_of(&Options {
        subnet: SubnetOptions {
            partitions: vec![toml::from_str(partition).unwrap()],
            ..SubnetOptions::default()
        },
        ..options()
    });
    for (vf, first, mgid) in [
        ("H1-1/1", "0x8001", MGID),
        ("H2-1/1", "0x0001", "ff12::4243"),
    ] {
        let keys = VfChange::Pkeys(vec![first.to_owned(), "0xffff".to_owned()]);
        let vfs = service.lab().inventory.vfs(vf, None).unwrap();
        service
            .lab_mut()
            .set_vf(&vfs[0], PortNum(1), &keys)
            .unwrap();
        pass(&mut service, Duration::from_secs(1));
        let made = act(&mut service, vf, &join(mgid));
        all_ok(&made);
        assert_eq!(made[0]["pkey"], "0x8001", "{made:?}");
    }
    let made = act(&mut service, "H1-2/1", &join("ff12::4244"));
    assert_eq!(made[0]["pkey"], "0xffff", "{made:?}");
}

/// All hosts but H1-1 are limited members of the partition; with LMC their ports have four LIDs each, and the switches in
/// front of them know their partitions.
#[test]
fn limited_members_of_a_partition_reach_full_ones_alone() {
    let partition = "pkey = 1\nipoib = true\nmembers = { ALL = \"limited\", H1-1 = \"full\" }";
    let mut service = service_of(&Options {
        subnet: SubnetOptions {
            partitions: vec![toml::from_str(partition).unwrap()],
            lmc: Lmc::new(2),
            part_enforce: Some(PartEnforce::Both),
        },
        ..options()
    });
    let group = "ff12:401b:8001::ffff:ffff";
    let guests = ["H1-1/1", "H1-2/1", "H2-1/1"];
    for (vf, key) in guests.into_iter().zip(["0x8001", "0x0001", "0x0001"]) {
        let stranger = act(&mut service, vf, &join(group));
        let why = stranger[0]["error"].as_str().unwrap().to_owned();
        let vfs = service.lab().inventory.vfs(vf, None).unwrap();
        let keys = VfChange::Pkeys(vec!["0xffff".to_owned(), key.to_owned()]);
        let set = service.lab_mut().set_vf(&vfs[0], PortNum(1), &keys);
        set.unwrap_or_else(|error| panic!("{vf}: {}", error.message));
        pass(&mut service, Duration::from_secs(1));
        let joined = act(&mut service, vf, &join(group));
        all_ok(&joined);
        assert!(why.contains("partition"), "{why}");
    }
    pass(&mut service, Duration::from_secs(1));
    let count = |service: &mut Service| {
        guests.map(|vf| {
            let status = act(service, vf, &GuestAction::Status {});
            assert_eq!(status[0]["lid"].as_u64().unwrap() % 4, 0, "{status:?}");
            status[0]["received"].as_u64().unwrap()
        })
    };
    all_ok(&act(&mut service, guests[1], &send(group)));
    pass(&mut service, Duration::from_millis(10));
    let from_limited = count(&mut service);
    assert_eq!((from_limited[0], from_limited[2]), (1, 0));
    all_ok(&act(&mut service, guests[0], &send(group)));
    pass(&mut service, Duration::from_millis(10));
    let from_full = count(&mut service);
    assert_eq!((from_full[1] - from_limited[1], from_full[2]), (1, 1));
    let fabric = service.lab().world().fabric();
    let leaf = fabric.nodes().find_map(|(node, kind)| {
        (kind == emulated_hca::NodeKind::Switch).then(|| fabric.port(node.port(1)))?
    });
    let leaf = leaf.unwrap();
    assert!(leaf.partition_enforcement_in && leaf.partition_enforcement_out);
}

#[test]
fn a_guest_finds_the_way_to_another_and_sends_to_it() {
    let mut service = service();
    let peer = act(&mut service, "H2-2/16", &GuestAction::Status {});
    let gid = peer[0]["gid"].as_str().unwrap().to_owned();
    let path = act(
        &mut service,
        "H1-1/1",
        &GuestAction::Query { dgid: gid.clone() },
    );
    assert_eq!(path[0]["ok"], true);
    assert_eq!(path[0]["dlid"], peer[0]["lid"]);
    all_ok(&act(&mut service, "H1-1/1", &send(&gid)));
    pass(&mut service, Duration::from_millis(10));
    let peer = act(&mut service, "H2-2/16", &GuestAction::Status {});
    assert_eq!(
        (&peer[0]["received"], &peer[0]["last"]),
        (&1.into(), &"to all".into())
    );
    assert_eq!(received(&mut service).iter().sum::<u64>(), 1);
}

#[test]
fn what_cannot_be_done_is_told_with_the_reason() {
    let mut service = service();
    let vfs = service.lab().inventory.vfs("H1-1/1", None).unwrap();
    let mut refused = |action: &GuestAction| {
        let refusal = service.lab_mut().guests_do(&vfs, action).unwrap_err();
        refusal.message
    };
    assert!(refused(&join("fe80::1")).contains("ff"));
    assert!(refused(&join("group")).contains("IPv6"));
    let nobody = act(&mut service, "H1-1/1", &send("fe80::dead"));
    assert!(nobody[0]["error"].as_str().unwrap().contains("no guest"));
    let unknown = act(&mut service, "H1-1/99", &GuestAction::Status {});
    assert!(unknown[0]["error"].as_str().unwrap().contains("--guests"));
    let path = GuestAction::Query {
        dgid: "fe80::dead".into(),
    };
    let path = act(&mut service, "H1-1/1", &path);
    assert!(
        path[0]["error"].as_str().unwrap().contains("refused"),
        "{path:?}"
    );
}

#[test]
fn without_an_sa_guests_give_up_in_time() {
    let mut service = service();
    service.lab_mut().set_link("mgmt-1/1", None, false).unwrap();
    let path = GuestAction::Query {
        dgid: "fe80::dead".into(),
    };
    let reports = act(&mut service, "H1-1/1", &path);
    assert_eq!(reports[0]["ok"], false, "{reports:?}");
}

#[test]
fn guests_that_ask_for_many_paths_at_once_get_all_of_them() {
    let mut service = service();
    let action = GuestAction::Paths {
        count: 50,
        destinations: 5,
    };
    let reports = act(&mut service, "all", &action);
    all_ok(&reports);
    for report in &reports {
        let facts = ["asked", "answered", "failed", "destinations"].map(|name| &report[name]);
        assert_eq!(facts, [50, 50, 0, 5], "{report}");
    }
    let nothing = GuestAction::Paths {
        count: 0,
        destinations: 5,
    };
    let vfs = service.lab().inventory.vfs("1", Some("H1-1")).unwrap();
    assert!(service.lab_mut().guests_do(&vfs, &nothing).is_err());
}

#[test]
fn a_guest_that_leaves_a_group_at_any_moment_of_joining_it_is_out_and_can_join_again() {
    let mut service = service();
    let vfs = service.lab().inventory.vfs("H1-1/1", None).unwrap();
    let leave = GuestAction::Leave { mgid: MGID.into() };
    let mut seen = std::collections::BTreeSet::new();
    for steps in 0.. {
        let begin = |service: &mut Service, action: &GuestAction| {
            service.lab_mut().guests_do(&vfs, action).unwrap()
        };
        let begun = service.lab().world().now();
        let joining = begin(&mut service, &join(MGID));
        let mut now = begun;
        for _ in 0..steps {
            service.poll(now);
            now = service.poll_timeout().unwrap();
        }
        let [leaving, again] = [&leave, &join(MGID)].map(|action| begin(&mut service, action));
        let joined = wait_for(&mut service, joining);
        let left = wait_for(&mut service, leaving);
        let again = wait_for(&mut service, again);
        // The SA may never have heard of the membership; the guest is out all the same.
        all_ok(&left);
        let why = |report: &[Value]| report[0]["error"].as_str().unwrap_or("joined").to_owned();
        seen.insert((why(&joined), why(&again)));
        assert!(service.lab().world().now() < begun + Duration::from_secs(2));
        pass(&mut service, Duration::from_secs(1));
        if why(&again) == "joined" {
            all_ok(&act(&mut service, "H1-1/1", &leave));
        }
        if why(&joined) == "joined" {
            break;
        }
    }
    let leaving = "the guest is still leaving the group; try again";
    let expected = [(LEFT, "joined"), ("joined", leaving)];
    let expected = expected.map(|(joined, again)| (joined.to_owned(), again.to_owned()));
    assert_eq!(seen, expected.into_iter().collect());
    all_ok(&act(&mut service, "H1-1/1", &join(MGID)));
    let status = act(&mut service, "H1-1/1", &GuestAction::Status {});
    assert_eq!(status[0]["groups"], serde_json::json!([MGID]));
}

#[test]
fn a_guest_whose_gid_changes_is_in_its_groups_under_the_new_one() {
    let mut service = service();
    all_ok(&act(&mut service, "all", &join(MGID)));
    let vf = service.lab().inventory.vfs("H1-1/1", None).unwrap();
    let before = act(&mut service, "H1-1/1", &GuestAction::Status {});
    let guid = VfChange::PortGuid("0x0002c90300abcdef".into());
    let set = service.lab_mut().set_vf(&vf[0], PortNum(1), &guid);
    set.unwrap();
    pass(&mut service, Duration::from_secs(5));
    let after = act(&mut service, "H1-1/1", &GuestAction::Status {});
    assert_ne!(before[0]["gid"], after[0]["gid"]);
    assert_eq!(before[0]["groups"], after[0]["groups"]);
    let sent = received(&mut service);
    all_ok(&act(&mut service, "H2-1/3", &send(MGID)));
    pass(&mut service, Duration::from_millis(10));
    let counts = received(&mut service);
    assert!(counts.iter().zip(sent).all(|(now, then)| *now == then + 1));
    // What the SA and the PF have is the new GID's.
    let leave = GuestAction::Leave { mgid: MGID.into() };
    all_ok(&act(&mut service, "H1-1/1", &leave));
    all_ok(&act(&mut service, "H1-1/1", &join(MGID)));
}

#[test]
fn questions_whose_answers_nobody_waits_for_are_not_asked() {
    let mut service = service();
    let paths = |count| GuestAction::Paths {
        count,
        destinations: 5,
    };
    let vfs = service.lab().inventory.vfs("H1-1/1", None).unwrap();
    let job = service.lab_mut().guests_do(&vfs, &paths(u32::MAX)).unwrap();
    pass(&mut service, Duration::from_millis(5));
    let busy = act(&mut service, "H1-1/1", &paths(1));
    assert!(busy[0]["error"].as_str().unwrap().contains("already"));
    service.lab_mut().forget_job(job);
    pass(&mut service, Duration::from_millis(100));
    all_ok(&act(&mut service, "H1-1/1", &paths(1)));
}

#[test]
fn what_a_guest_received_is_no_command_to_a_terminal() {
    let mut service = service();
    let peer = act(&mut service, "H2-2/16", &GuestAction::Status {});
    let to = peer[0]["gid"].as_str().unwrap().to_owned();
    let text = "\u{1b}[2Jclear".to_owned();
    all_ok(&act(
        &mut service,
        "H1-1/1",
        &GuestAction::Send { to, text },
    ));
    pass(&mut service, Duration::from_millis(10));
    let vfs = service.lab().inventory.vfs("H2-2/16", None).unwrap();
    let job = service.lab_mut().guests_do(&vfs, &GuestAction::Status {});
    let reports = service.lab_mut().poll_report(job.unwrap()).unwrap();
    let told = reports[0].to_string();
    assert!(told.ends_with("last=\\u{1b}[2Jclear"), "{told}");
}
