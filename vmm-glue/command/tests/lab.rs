//! The lab with a guest that is off at once: what is said of VFs, and that nothing is left.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

/// Takes the place of the script that boots a guest: it sees that the VF's socket is there, has
/// a console, and ends.
const GUEST: &str = "#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    --console) console=$2 ;;
    --vfio-user) device=$2 ;;
    esac
    shift
done
[ -S \"$device\" ] && : >\"$console\" && sleep 1
";

fn lab(folder: &Path, arguments: &[&str]) -> Output {
    let cache = folder.join("cache");
    fs::create_dir_all(cache.join("kernel-6.1")).unwrap();
    fs::create_dir_all(folder.join("run")).unwrap();
    fs::write(cache.join("kernel-6.1/vmlinuz"), "").unwrap();
    let boot = cache.join("boot");
    fs::write(&boot, GUEST).unwrap();
    fs::set_permissions(&boot, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vhca"));
    command.arg("lab").arg("--cache").arg(cache).args(arguments);
    command.env("TMPDIR", folder).env_remove("RUST_LOG");
    command.env("VHCA_CONTROL", folder.join("run/control.sock"));
    command.output().unwrap()
}

#[test]
fn a_guest_has_the_vf_that_is_named_however_many_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let output = lab(folder.path(), &["--guest", "H1-2/40,H2-1/1"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let complained = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}{complained}");
    for line in [
        "vhca console H1-2/40 ",
        "# the guest with 10.9.0.2; ^] leaves its console",
        "^C here ends all of it",
        "H1-2/40 is off",
        "H2-1/1 is off",
    ] {
        assert!(said.contains(line), "{said}");
    }
    let left = fs::read_dir(folder.path()).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["cache", "run"]);
}

#[test]
fn a_lab_takes_options_of_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("vhca.toml");
    fs::write(&config, "topology = \"single\"\nvfs = 7\n").unwrap();
    let config = config.to_str().unwrap();
    let guest = ["--config", config, "--guest"];
    let run = |more: &[&str]| lab(folder.path(), &[&guest[..], more].concat());
    let output = run(&["host-1/7", "--rights", "perf_mgt,vendor"]);
    let (said, complained) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{said}{complained}");
    assert!(
        said.starts_with(&format!("fabric of {config} with ")),
        "{said}"
    );
    let output = run(&["host-1/7", "--vfs", "6"]);
    let complained = String::from_utf8(output.stderr).unwrap();
    assert!(complained.contains("host-1/7"), "{complained}");
}

#[test]
fn a_lab_beside_another_service_says_where_its_own_is() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("run/control.sock");
    fs::create_dir(folder.path().join("run")).unwrap();
    let _service = UnixListener::bind(&taken).unwrap();
    let output = lab(folder.path(), &["--guest", "H1-1/1"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let export = format!("export VHCA_CONTROL={}/vhca-lab-", folder.path().display());
    assert!(said.contains(&export), "{said}");
}

#[test]
fn a_host_that_is_not_in_the_fabric_is_refused_with_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let output = lab(folder.path(), &["--topology", "single"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        said.contains("H1-1/1") && said.contains("host-1, host-2, host-3, host-4"),
        "{said}"
    );
}

#[test]
fn a_lab_that_is_refused_does_not_say_how_to_use_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = lab(folder.path(), &["--guest", "H9/1"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    let complained = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        complained,
        "vhca: no host of this fabric has H9/1 for a guest; the hosts with VFs are H1-1, H1-2, H2-1, H2-2\n"
    );
}
