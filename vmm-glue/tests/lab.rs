//! The lab with a guest that is off at once: what is said of VFs, and that nothing is left.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
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
    fs::write(cache.join("kernel-6.1/vmlinuz"), "").unwrap();
    let boot = cache.join("boot");
    fs::write(&boot, GUEST).unwrap();
    fs::set_permissions(&boot, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vhca"));
    command.arg("lab").arg("--cache").arg(cache).args(arguments);
    command.env("TMPDIR", folder).env_remove("RUST_LOG");
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
        "H1-2-vf40 boots, as 10.9.0.1",
        "H2-1-vf1 boots, as 10.9.0.2",
        "H1-2-vf40 is off",
        "H2-1-vf1 is off",
    ] {
        assert!(said.contains(line), "{said}");
    }
    let left = fs::read_dir(folder.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["cache"]);
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
