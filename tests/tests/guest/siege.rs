//! Acceptance: two real guests, sixteen guests whose driver is that of the tests, and four hostile ones at one
//! service, all at once; nobody notices the others.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use vhca_tests::live::{PATIENCE, wait_for};
use vhca_tests::mlx4_driver::served::{Assault, Circle};

use crate::churn::{held, resident_kib};
use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::ip::{address, bring_up};
use crate::pings;

/// Each has a real guest on its first VF.
const HOSTS: [&str; 2] = ["H1-1", "H2-1"];

/// VFs of each host whose guests have the driver of the tests, and those whose guests are hostile.
const TALKING: std::ops::RangeInclusive<u16> = 2..=9;
const HOSTILE: std::ops::RangeInclusive<u16> = 10..=11;

/// How much memory the service may keep of twenty VMMs that are gone: what the allocator keeps.
const SLACK_KIB: u64 = 16 * 1024;

/// The sockets of VFs of both hosts, those with the same number beside each other.
fn sockets(fabric: &Fabric, vfs: std::ops::RangeInclusive<u16>) -> Vec<PathBuf> {
    let vfs = vfs.flat_map(|vf| HOSTS.map(|host| (host, vf)));
    vfs.map(|(host, vf)| fabric.device(host, vf)).collect()
}

/// What the service has of its VFs: all that a guest could leave behind, and the broadcast groups. (The real guests
/// join other groups as IPv6 goes on.)
fn tables(fabric: &Fabric) -> Vec<String> {
    let of_vfs = HOSTS.into_iter().flat_map(|host| {
        (1..=*HOSTILE.end()).map(move |vf| {
            let mut held = held(fabric, host, vf);
            held.retain(|column| vf > 1 || !column.starts_with("groups"));
            format!("{host}/{vf}: {held:?}")
        })
    });
    let is_kept = |group: &&Value| {
        let mut members = group["members"].as_array().unwrap().iter();
        let is_broadcast = group["mgid"].as_str().unwrap().ends_with(":ffff:ffff");
        is_broadcast || members.any(|member| member["vf"] != 1)
    };
    let told = fabric.lab.json(&["show", "mcast"]);
    let groups = told["groups"].as_array().unwrap().iter().filter(is_kept);
    let groups = groups.map(|group| format!("{} {}", group["mgid"], group["members"]));
    let connections = fabric.lab.json(&["show", "cm"]).to_string();
    of_vfs.chain(groups).chain([connections]).collect()
}

#[test]
fn two_guests_and_sixteen_harnesses_do_not_notice_four_hostile_guests() {
    let length = Duration::from_secs(full(20, 600));
    let vfs = HOSTILE.end().to_string();
    let mut fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", &vfs]);
    let mut guests = fabric.guests("6.1", HOSTS.map(|host| (host, 1)));
    bring_up(&mut guests);
    let service = fabric.lab.service().id();
    let before = tables(&fabric);
    let resident = resident_kib(service);
    for (place, guest) in guests.iter_mut().enumerate() {
        pings::start(guest, &address(1 - place));
    }

    let circle = Circle::start(&sockets(&fabric, TALKING));
    let assault = Assault::start(&sockets(&fabric, HOSTILE), 1);
    let talking = wait_for(PATIENCE, || {
        (circle.messages() >= 16 || circle.is_broken()).then_some(())
    });
    assert!(talking.is_some(), "the harnesses do not come up");
    let early = wait_for(length, || {
        (circle.is_broken() || fabric.lab.service().ended().is_some()).then_some(())
    });
    let under_siege = resident_kib(service);
    let (talk, assaulted) = (circle.end(), assault.end());
    assert!(early.is_none() && fabric.lab.service().ended().is_none());
    let pings = guests.each_mut().map(pings::end);

    let after = wait_for(PATIENCE, || {
        let after = tables(&fabric);
        (after == before).then_some(())
    });
    assert!(after.is_some(), "{before:#?}, then {:#?}", tables(&fabric));
    // The VFs of the hostile guests are as good as new.
    let circle = Circle::start(&sockets(&fabric, HOSTILE));
    wait_for(PATIENCE, || {
        (circle.messages() >= 40 || circle.is_broken()).then_some(())
    });
    assert!(circle.end().messages >= 40);
    let left = resident_kib(service);

    let [there, back] = &pings;
    println!(
        "siege of {} s: {} pings of two guests, {} lost ({}); {} messages of 16 harnesses, {} bytes, \
         {} answers of the SA, all right; 4 hostile guests: {} steps, {} VMMs, {:?}; \
         the service has {resident} KiB before, {under_siege} KiB under siege, {left} KiB after",
        length.as_secs(),
        there.sent + back.sent,
        there.lost() + back.lost(),
        there.times,
        talk.messages,
        talk.bytes,
        talk.answers,
        assaulted.steps,
        assaulted.vmms,
        assaulted.depth,
    );
    for pings in &pings {
        assert!(
            pings.sent >= length.as_secs() && pings.lost() == 0,
            "{pings:?}"
        );
    }
    // Each guest of the circle says something at least once a second, and most of the siege's steps get somewhere.
    assert!(talk.messages >= 16 * length.as_secs() && talk.answers >= length.as_secs());
    assert!(assaulted.depth.probes > 0 && assaulted.depth.accepted > 0);
    assert_eq!(assaulted.cut_off, 0, "{assaulted:?}");
    assert!(
        left < resident + SLACK_KIB,
        "{resident} KiB, then {left} KiB"
    );
    let said = fabric.lab.service().output();
    assert!(!said.contains("panicked"), "{said}");
}
