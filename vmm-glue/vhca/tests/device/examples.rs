//! The examples, as they are run. Cargo builds them before it runs these tests.

use std::env;
use std::process::Command;

/// Exit status of an example that cannot be tried here. It has printed why.
const NOT_RUN: i32 = 77;

/// Runs an example, and returns what it printed.
fn run(name: &str, arguments: &[&str]) -> String {
    let tests = env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples");
    let example = example.join(name);
    if !example.exists() {
        return format!("{name}: not run: it is not built, as by `cargo test --test device`");
    }
    let ran = Command::new(&example).args(arguments).output().unwrap();
    let [out, error] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
    let is_well = matches!(ran.status.code(), Some(0 | NOT_RUN));
    assert!(is_well, "{name} {arguments:?}: {out}{error}");
    out.into_owned()
}

#[test]
fn a_vmm_without_a_hypervisor_finds_the_vf() {
    println!("{}", run("embed", &[]));
}

/// The guest's program, its ports, and what its runs have to show are no part of the VMM.
#[test]
fn a_vmm_on_kvm_takes_at_most_400_lines() {
    let sources = [
        include_str!("../../examples/vmm/main.rs"),
        include_str!("../../examples/vmm/vm.rs"),
    ];
    let lines = sources.iter().map(|source| source.lines().count());
    assert!(lines.sum::<usize>() <= 400);
}

/// Runs the VMM on KVM once for each of these.
#[cfg(feature = "kvm")]
fn run_vmm(all: &[&[&str]]) {
    for arguments in all {
        println!("{}", run("vmm", arguments));
    }
}

#[cfg(feature = "kvm")]
#[test]
fn a_vmm_on_kvm_boots_a_guest_that_drives_the_vf() {
    run_vmm(&[&["steps", "--repeat", "5"], &["doorbells"]]);
}

#[cfg(feature = "kvm")]
#[test]
fn a_vmm_on_kvm_masks_pauses_and_plugs_and_its_guests_talk_and_bear_a_siege() {
    run_vmm(&[
        &["masks"],
        &["pause", "--repeat", "20"],
        &["plug"],
        &["tour"],
        &["siege"],
    ]);
}
