//! Guests of a running service: by vfio-user sockets and shared memory, in real time.

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::Value;
use vhca_remote::LinkError;
use vhca_tests::live::{Lab, PATIENCE, wait_for};
use vhca_tests::mlx4_driver::served::{Assault, Circle, Remote, Site};

/// The sockets of VFs of a host.
fn sockets(
    dir: &tempfile::TempDir,
    vfs: impl Iterator<Item = (&'static str, u16)>,
) -> Vec<PathBuf> {
    let socket = |(host, vf)| dir.path().join(format!("{host}-vf{vf}.sock"));
    vfs.map(socket).collect()
}

#[test]
fn guests_on_two_hosts_do_not_notice_hostile_ones_at_the_same_service() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let arguments = [
        "--topology",
        "two-switch",
        "--vfs",
        "3",
        "--vfio-user",
        folder,
    ];
    let mut lab = Lab::serve(&arguments);
    let good = [1, 2]
        .into_iter()
        .flat_map(|vf| [("H1-1", vf), ("H2-1", vf)]);
    let circle = Circle::start(&sockets(&dir, good));
    let bad = [("H1-1", 3), ("H2-1", 3)].into_iter();
    let assault = Assault::start(&sockets(&dir, bad), 1);
    let talked = wait_for(PATIENCE, || {
        let enough = circle.messages() >= 200 && assault.steps() >= 4000;
        (enough || circle.is_broken()).then_some(())
    });
    let talk = circle.end();
    assert!(talked.is_some(), "{talk:?}");
    let assaulted = assault.end();
    println!("{talk:?}; {assaulted:?}");
    assert!(talk.messages >= 200 && talk.answers > 0, "{talk:?}");
    let depth = assaulted.depth;
    assert!(depth.probes > 0 && depth.accepted > 0, "{assaulted:?}");

    let gone = wait_for(Duration::from_secs(10), || {
        let shown = lab.json(&["show", "vfs"]);
        let mut vmms = shown["vmms"].as_array()?.iter();
        vmms.all(|vmm| vmm["attached"] == false).then_some(())
    });
    assert!(gone.is_some() && lab.service().ended().is_none());
}

/// Waits until the guests of a circle have exchanged 200 messages, and ends it. Returns the tables of VFs that the service had before the end.
fn talk(lab: &Lab, circle: Circle) -> Value {
    let talked = wait_for(PATIENCE, || {
        let enough = circle.messages() >= 200;
        (enough || circle.is_broken()).then_some(())
    });
    let shown = lab.json(&["show", "vfs"]);
    let talk = circle.end();
    assert!(talked.is_some(), "{talk:?}");
    assert!(talk.messages >= 200 && talk.answers > 0, "{talk:?}");
    shown
}

#[test]
fn guests_of_devices_in_this_process_talk_to_others_at_the_same_service() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let arguments = ["--topology", "two-switch", "--vfs", "2"];
    let arguments = [&arguments[..], &["--vfio-user", folder]].concat();
    let mut lab = Lab::serve(&arguments);
    let vfs = [("H1-1", 1), ("H2-1", 1), ("H1-1", 2)].into_iter();
    let sites: Vec<Remote> = sockets(&dir, vfs).into_iter().map(Remote).collect();
    let shown = talk(&lab, Circle::start(&sites));
    // Each message is a send and a receive; nearly all doorbells are rung by the eventfds that the service has for them.
    let vmms = shown["vmms"].as_array().unwrap();
    let rings: u64 = vmms.iter().filter_map(|vmm| vmm["rings"].as_u64()).sum();
    assert!(rings > 200, "{vmms:?}");

    // Its VMM has gone, so the VF has room for another; the second one is turned away.
    let (vmm, _memory) = wait_for(PATIENCE, || sites[0].attach().ok()).expect("the VF is free");
    let refused = sites[0].attach().unwrap_err().to_string();
    assert!(refused.contains("another VMM has this VF"), "{refused}");

    let (failed, failure) = channel();
    vmm.device()
        .on_failure(move |reason| failed.send(reason.to_string()).unwrap());
    lab.service().signal("KILL");
    let reason = failure.recv_timeout(PATIENCE).expect("the service is gone");
    assert!(reason.contains("closed the connection"), "{reason}");
    let mut word = [0; 4];
    vmm.device().config_read(0, &mut word);
    assert_eq!(word, [0xff; 4]);
    // Its sockets may take connections for a moment yet.
    lab.service().wait(PATIENCE);
    let gone = sites[0].attach().unwrap_err();
    let is_gone = [
        LinkError::Closed.to_string(),
        "cannot connect to".to_owned(),
    ]
    .iter()
    .any(|text| gone.to_string().contains(text));
    assert!(is_gone, "{gone}");

    // The next service takes the same sockets, at which the VMM attaches devices for its guests anew.
    let back = Lab::serve(&arguments);
    talk(&back, Circle::start(&sites));
}
