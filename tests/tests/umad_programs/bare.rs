//! Programs on bare nodes, where nothing of the service's runs.

use std::process::Stdio;

use vhca::Slice;
use vhca_control::Subject;
use vhca_service::serve::{Lab, Options, TopologySpec};
use vhca_service::show::{Filter, Scene, ServiceFacts, page};

use crate::service::{Served, succeeded};
use crate::{compiled, is_up, line};

/// Five hosts at one switch, of which two are bare.
fn options() -> Options {
    Options {
        topology: TopologySpec::Single,
        bare: vec!["host-1".into(), "host-2".into()],
        vfs: 2,
        ..Options::default()
    }
}

pub(crate) fn two_bare() -> Served {
    Served::new(options(), is_up)
}

pub(crate) fn two_bare_with_verbs() -> Served {
    let verbs = true;
    Served::new(Options { verbs, ..options() }, is_up)
}

#[test]
fn a_bare_node_is_shown_as_one_and_has_no_vfs() {
    let lab = Lab::build(&options(), 1).unwrap();
    let scene = Scene {
        pfs: &[],
        vmms: &lab,
        fabric: lab.world().fabric(),
        service: &ServiceFacts::default(),
        now: lab.world().now(),
    };
    let mut reply = Vec::new();
    let mut page = page(&scene, Subject::Fabric, Filter::default());
    assert!(page.write(&scene, &mut reply, &mut Slice::endless()));
    let reply = String::from_utf8(reply).unwrap();
    for (node, kind) in [("host-1", "bare"), ("host-2", "bare"), ("host-3", "ca")] {
        let row = format!("[\"{node}\",\"{kind}\",");
        assert!(reply.contains(&row), "{row} in {reply}");
        let refusal = lab.inventory.vfs(&format!("{node}/1"), None).err();
        let code = refusal.map(|refusal| refusal.code);
        assert_eq!(code.as_deref(), (kind == "bare").then_some("bare_node"));
    }
}

#[test]
fn a_program_registers_all_classes_on_a_bare_node_and_not_those_of_the_software_elsewhere() {
    let served = two_bare();
    let program = compiled(&served, "agents");
    let agents = |node| succeeded(&served.on(node, &program).output().unwrap());
    let bare = agents("host-1");
    assert_eq!(bare.lines().count(), 8);
    assert!(bare.lines().all(|line| line.ends_with(": ok")), "{bare}");
    // Agents of a program end with it.
    assert_eq!(agents("host-1"), bare);
    let elsewhere = agents("host-3");
    let refused = elsewhere.lines().filter(|line| !line.ends_with(": ok"));
    assert!(
        refused.eq(["SA Report: EINVAL", "CM Send: EINVAL"]),
        "{elsewhere}"
    );
}

#[test]
fn the_diagnostics_of_debian_work_on_bare_nodes_and_between_them() {
    let served = two_bare();
    let [one, two] = ["host-1", "host-2"].map(|node| served.told(node, "ibstat", &[]));
    assert_eq!(line(&one, "State: "), "Active");
    let [lid, far] = [&one, &two].map(|ibstat| line(ibstat, "Base lid: "));
    let info = served.told("host-1", "smpquery", &["nodedesc", far]);
    assert!(info.contains("host-2"), "{info}");
    let directed = served.told("host-1", "smpquery", &["-D", "nodedesc", "0,1"]);
    assert!(directed.contains("S1"), "{directed}");
    let path = ["--src-to-dst", "host-1:host-2", "-p"];
    let path = served.told("host-1", "saquery", &path);
    let is_far =
        |line: &str| line.trim().starts_with("dlid.") && line.ends_with(&format!(".{far}"));
    assert!(path.lines().any(is_far), "{path}");
    let counters = served.told("host-2", "perfquery", &[lid, "1"]);
    assert!(counters.contains("PortXmitPkts"), "{counters}");
    let mut server = served.on("host-2", "ibping").arg("-S").spawn().unwrap();
    // No server answers before one has registered its class.
    let answered = (0..20).any(|_| {
        let mut ping = served.on("host-1", "ibping");
        let ping = ping.args(["-c", "3", far]).stdout(Stdio::null());
        ping.status().unwrap().success()
    });
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(answered);
}
