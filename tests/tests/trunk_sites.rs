//! Many services behind one: leaves with two hosts each, whose trunks all lead to a spine.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vhca_tests::effort::full;
use vhca_tests::live::{Lab, OpenSm, PATIENCE, Shim};

/// Hosts of a site.
const HOSTS: usize = 2;

/// Writes a fabric of one switch, with the host of the manager if it has none, and these hosts.
fn fabric(folder: &Path, name: &str, is_managing: bool, hosts: usize) -> String {
    let manager = is_managing.then(|| "mgmt".to_owned());
    let hosts = manager
        .into_iter()
        .chain((1..=hosts).map(|host| format!("H{host}")));
    let hosts: Vec<_> = hosts.collect();
    let mut text = format!("Switch 254 \"{name}\"\n");
    for (port, host) in (1..).zip(&hosts) {
        writeln!(text, "[{port}] \"{host}\"[1]").unwrap();
    }
    for (port, host) in (1..).zip(&hosts) {
        write!(text, "\nHca 1 \"{host}\"\n[1] \"{name}\"[{port}]\n").unwrap();
    }
    let path = folder.join(format!("{name}.net"));
    std::fs::write(&path, text).unwrap();
    path.to_string_lossy().into_owned()
}

/// Returns the names of hosts, as options take them.
fn names(hosts: usize) -> String {
    let names: Vec<_> = (1..=hosts).map(|host| format!("H{host}")).collect();
    names.join(",")
}

/// Returns the time from the start of OpenSM until the VFs of all services are up.
fn time_to_come_up(managed: &Lab, labs: &[Lab]) -> Duration {
    let started = Instant::now();
    let _opensm = OpenSm::start(managed, Shim::Vhca, "mgmt", "");
    for lab in labs.iter().chain([managed]) {
        lab.told(&["show", "vfs", "--wait-up", "300"]);
    }
    started.elapsed()
}

/// Returns the memory of a service's process in MiB.
fn memory(lab: &mut Lab) -> u64 {
    let status = format!("/proc/{}/status", lab.service().id());
    let status = std::fs::read_to_string(status).unwrap();
    let row = status
        .lines()
        .find(|row| row.starts_with("VmRSS:"))
        .unwrap();
    let kilobytes: u64 = row.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes >> 10
}

#[test]
fn many_sites_behind_a_spine_come_up_as_one_service_does() {
    let sites = full(10, 100);
    let folder = TempDir::new().unwrap();
    let common = ["--sm", "none", "--vfs"];

    let hosts = sites * HOSTS;
    let (whole, pf) = (fabric(folder.path(), "whole", true, hosts), names(hosts));
    let one = Lab::serve(&[&common[..], &["4", "--topology", &whole, "--pf", &pf]].concat());
    let alone = time_to_come_up(&one, &[]);
    drop(one);

    let socket = |site| format!("unix:{}/{site}", folder.path().display());
    // A leaf is a switch with hosts behind it.
    let listening = |site| format!("spine/{}=listen:{},peer=fabric", site + 1, socket(site));
    let spine = fabric(folder.path(), "spine", true, 0);
    let mut arguments = ["0", "--topology", &spine, "--site", "spine"]
        .map(str::to_owned)
        .to_vec();
    arguments.extend((1..=sites).flat_map(|site| ["--trunk".to_owned(), listening(site)]));
    let arguments: Vec<_> = common
        .into_iter()
        .chain(arguments.iter().map(String::as_str))
        .collect();
    let spine = Lab::serve(&arguments);
    let (leaf, pf) = (fabric(folder.path(), "leaf", false, HOSTS), names(HOSTS));
    let leaves = (1..=sites).map(|site| {
        let (name, trunk) = (format!("leaf-{site}"), format!("leaf/9={}", socket(site)));
        let fabric = ["4", "--topology", &leaf, "--pf", &pf];
        let joined = ["--site", &name, "--trunk", &trunk];
        let mut leaf = Lab::serve(&[&common[..], &fabric, &joined].concat());
        leaf.service().wait_for_line("): up, port", PATIENCE);
        leaf
    });
    let mut leaves: Vec<_> = leaves.collect();
    let joined = time_to_come_up(&spine, &leaves);
    let memory = leaves.iter_mut().map(memory).max().unwrap();
    println!(
        "{hosts} hosts of 4 VFs: {joined:?} in {sites} sites, {alone:?} in one; {memory} MiB a site at most"
    );
    // Each of its processes waits for a processor beside others' tests.
    assert!(
        joined < alone * 3 + Duration::from_secs(20),
        "{joined:?}, {alone:?}"
    );
}
