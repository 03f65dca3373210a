//! The crate `vhca` as a registry has it: packed, and unpacked elsewhere.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::str;

use serde_json::Value;
use vhca_tests::cargo::cargo;
use vhca_tests::docs::root;
use vhca_tests::effort::is_full;

const FOLDER: &str = "vmm-glue/vhca";

/// Runs a command, and returns its output.
fn output(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output.stdout
}

fn lines(output: &[u8]) -> BTreeSet<&str> {
    str::from_utf8(output).unwrap().lines().collect()
}

#[test]
fn the_crate_is_packed_with_each_file_of_its_folder() {
    let packed = output(cargo().current_dir(root()).args([
        "package",
        "-p",
        "vhca",
        "--list",
        "--offline",
        "--allow-dirty",
        "--exclude-lockfile",
    ]));
    let folder = root().join(FOLDER);
    let kept = output(Command::new("git").arg("-C").arg(folder).arg("ls-files"));
    let (packed, kept) = (lines(&packed), lines(&kept));
    let left_out: Vec<_> = kept.difference(&packed).collect();
    assert!(left_out.is_empty(), "{left_out:?}");
    // The guest of the example is a package of its own.
    assert!(packed.contains("examples/vmm/payload/src/main.rs"));
}

/// Returns the configuration by which Cargo takes the other crates from this checkout: no registry has them yet.
fn patch() -> String {
    let metadata = output(cargo().current_dir(root()).args([
        "metadata",
        "--no-deps",
        "--format-version=1",
        "--offline",
    ]));
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    let mut patch = "[patch.crates-io]\n".to_owned();
    for package in metadata["packages"].as_array().unwrap() {
        let [name, manifest] = ["name", "manifest_path"].map(|key| package[key].as_str().unwrap());
        if name != "vhca" {
            let path = Path::new(manifest).parent().unwrap();
            writeln!(patch, "{name} = {{ path = {path:?} }}").unwrap();
        }
    }
    patch
}

#[test]
fn the_packed_crate_builds_its_examples_and_tests_elsewhere() {
    if !is_full() {
        eprintln!("not run without VHCA_FULL=1: it builds all crates that a VMM links once more");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    output(cargo().current_dir(root()).args([
        "package",
        "-p",
        "vhca",
        "--no-verify",
        "--offline",
        "--allow-dirty",
        "--exclude-lockfile",
        "--target-dir",
        dir.path().to_str().unwrap(),
    ]));
    let packed = dir.path().join("package/vhca-0.1.0.crate");
    output(
        Command::new("tar")
            .current_dir(dir.path())
            .arg("xf")
            .arg(packed),
    );
    let unpacked = dir.path().join("vhca-0.1.0");
    std::fs::create_dir(unpacked.join(".cargo")).unwrap();
    std::fs::write(unpacked.join(".cargo/config.toml"), patch()).unwrap();
    let elsewhere = || {
        let mut cargo = cargo();
        cargo
            .current_dir(&unpacked)
            .env("CARGO_TARGET_DIR", dir.path().join("target"));
        cargo
    };
    let all = ["--offline", "--features", "kvm,remote,trunk"];
    output(
        elsewhere()
            .args(["test", "--no-run", "--examples", "--tests"])
            .args(all),
    );
    output(elsewhere().args(["test", "--test", "adapters"]).args(all));
    if !Path::new("/dev/kvm").exists() {
        eprintln!("the example is not run without KVM");
        return;
    }
    // It builds its payload, too.
    let booted = output(
        elsewhere()
            .args(["run", "--example", "vmm"])
            .args(all)
            .args(["--", "steps"]),
    );
    let booted = String::from_utf8(booted).unwrap();
    assert!(booted.contains("1 of 1 boots"), "{booted}");
}
