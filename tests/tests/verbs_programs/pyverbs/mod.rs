//! The tests of pyverbs, whose outcomes on a VF are written down.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vhca_tests::live::{Lab, MemoryCgroup, Shim};

use crate::{lab, wait_until_up};

/// Bytes that the service and the tests may have together.
const MEMORY: u64 = 512 << 20;

/// Folder of the tests in Debian's packages `rdma-core`, and later `python3-pyverbs`.
const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";

fn run(program: &str, arguments: &[&str], folder: &Path) {
    let status = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .status();
    let ended = status.is_ok_and(|status| status.success());
    assert!(ended, "{program} {}", arguments.join(" "));
}

/// Copies the tests into a folder. Documents are left out of containers' packages: there they come from the package itself.
fn copy_tests(folder: &Path) -> PathBuf {
    let path = folder.to_str().unwrap();
    if Path::new(INSTALLED).join("base.py.gz").exists() {
        run("cp", &["-r", INSTALLED, path], folder);
    } else {
        run(
            "apt-get",
            &["download", "rdma-core", "python3-pyverbs"],
            folder,
        );
        let packages = fs::read_dir(folder).unwrap();
        let names = packages.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        for package in names.filter(|name| name.ends_with(".deb")) {
            run("dpkg-deb", &["-x", &package, "."], folder);
        }
        run("cp", &["-r", &format!(".{INSTALLED}"), path], folder);
    }
    let tests = folder.join("tests");
    run(
        "find",
        &[".", "-name", "*.gz", "-exec", "gunzip", "{}", "+"],
        &tests,
    );
    tests
}

/// Reads lines of a name and an outcome, or several.
fn outcomes(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.filter_map(|line| line.split_once(' '));
    rows.map(|(name, outcomes)| (name, outcomes.split(" | ").collect()))
        .collect()
}

#[test]
fn the_tests_of_pyverbs_pass_or_skip_as_written_down() {
    let version = Command::new("dpkg-query")
        .args(["-W", "-f", "${Version}", "python3-pyverbs"])
        .output()
        .unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let written_down = [
        ("44.", include_str!("rdma-core-44.txt")),
        ("56.", include_str!("rdma-core-56.txt")),
    ];
    let known = written_down
        .iter()
        .find(|(prefix, _)| version.starts_with(prefix));
    let Some((_, wanted)) = known else {
        eprintln!(
            "not run: the outcomes are those of rdma-core 44 and 56, and this is {version:?}"
        );
        return;
    };
    // With CQs of as many entries as the device has: memory that nothing is written to costs nothing.
    let group = MemoryCgroup::new(MEMORY);
    let lab = match &group {
        Ok(group) => Lab::serve_in(group, &["--verbs"]),
        Err(_) => lab(),
    };
    wait_until_up(&lab);
    let tests = copy_tests(lab.dir());
    let runner =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs_programs/pyverbs/outcomes.py");
    let mut program = group
        .as_ref()
        .map_or_else(|_| Vec::new(), |group| group.prefix().to_vec());
    // Debian's interpreter has Debian's modules.
    let words = [
        "/usr/bin/python3",
        runner.to_str().unwrap(),
        tests.to_str().unwrap(),
        "vhca1",
    ];
    program.extend(words.map(str::to_owned));
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let output = lab.on(Shim::Vhca, "H1-1", &program).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let found = outcomes(&told);
    let wanted = outcomes(wanted);
    let other: Vec<String> = wanted
        .iter()
        .filter(|(name, wanted)| {
            let found = found.get(*name).and_then(|found| found.first());
            found.is_none_or(|found| !wanted.contains(found))
        })
        .map(|(name, wanted)| format!("{name}: {:?}, and not {wanted:?}", found.get(name)))
        .collect();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(other.is_empty(), "{}\n{log}", other.join("\n"));
    assert_eq!(
        found.len(),
        wanted.len(),
        "tests that are not written down: {told}"
    );
}
