//! CONFORMANCE.md names every conformance test that the test runner has, and nothing that it has not; each statement is
//! the one that its tests were last reviewed against. The other rules have a source and tests that run.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;
use vhca_tests::cargo::cargo;

/// The statements are numbered from 1 to this.
const STATEMENTS: u16 = 232;

/// A line for each statement: its number and the CRC-32 of its text, as it was when its tests were reviewed.
const REVIEWED: &str = "golden/reviewed_statements.txt";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The statement numbers at the start of a test's name: `c035_c036_...` names two.
fn numbers(test: &str) -> Vec<u16> {
    test.split('_')
        .map_while(|part| {
            let digits = part.strip_prefix('c').filter(|digits| digits.len() == 3)?;
            digits.parse().ok()
        })
        .collect()
}

/// A test binary of the workspace and the top-level folder of its package.
struct Binary {
    folder: String,
    path: PathBuf,
}

/// Runs a command to its end and returns what it printed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Builds the tests of the workspace, unless they are built, and returns their binaries.
fn binaries() -> Vec<Binary> {
    let root = root().canonicalize().unwrap();
    let mut command = cargo();
    let args = [
        "test",
        "--workspace",
        "--features",
        "vhca/kvm",
        "--locked",
        "--no-run",
        "--quiet",
    ];
    let command = command.args(args).arg("--message-format=json");
    let messages = output(command.current_dir(&root));
    let messages = messages.lines().map(serde_json::from_str);
    let messages = messages.map(Result::<Value, _>::unwrap);
    let binary = |message: Value| {
        let path = message["executable"].as_str()?.into();
        // Binaries that are built for tests to run hold no tests.
        message["profile"]["test"].as_bool().filter(|test| *test)?;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let folder = manifest.strip_prefix(&root).ok()?.components().next()?;
        let folder = folder.as_os_str().to_str()?.to_owned();
        Some(Binary { folder, path })
    };
    messages.filter_map(binary).collect()
}

/// The names, without their modules, of the tests that a binary lists.
fn listed(binary: &Binary, options: &[&str]) -> BTreeSet<String> {
    let mut command = Command::new(&binary.path);
    let list = output(command.args(["--list", "--format=terse"]).args(options));
    list.lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter_map(|path| path.rsplit("::").next())
        .map(str::to_owned)
        .collect()
}

/// The tests that the test runner runs, with the folders of their packages.
static TESTS_THAT_RUN: LazyLock<BTreeSet<(String, String)>> = LazyLock::new(|| {
    let mut tests = BTreeSet::new();
    for binary in binaries() {
        let ignored = listed(&binary, &["--ignored"]);
        let names = listed(&binary, &[]).into_iter();
        let names = names.filter(|name| !ignored.contains(name));
        tests.extend(names.map(|name| (binary.folder.clone(), name)));
    }
    tests
});

/// A row of the table.
struct Row {
    statement: String,
    state: String,
    /// The tests that it names, with the folders of their packages.
    tests: BTreeSet<(String, String)>,
}

/// The tests that a cell names.
fn named(cell: &str) -> BTreeSet<(String, String)> {
    cell.split("<br>")
        .filter_map(|test| test.trim_matches('`').split_once(' '))
        .map(|(folder, name)| (folder.to_owned(), name.to_owned()))
        .collect()
}

fn rows() -> BTreeMap<u16, Row> {
    let text = fs::read_to_string(root().join("CONFORMANCE.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _kind, statement, state, tests, _] = cells[..] else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        let row = Row {
            statement: statement.to_owned(),
            state: state.to_owned(),
            tests: named(tests),
        };
        let twice = rows.insert(number, row);
        assert!(twice.is_none(), "statement {number} has two rows");
    }
    rows
}

#[test]
fn every_statement_has_a_row() {
    assert!(rows().into_keys().eq(1..=STATEMENTS));
}

#[test]
fn the_table_and_the_tests_are_in_step() {
    let mut expected: BTreeMap<u16, BTreeSet<(String, String)>> = BTreeMap::new();
    for (folder, name) in &*TESTS_THAT_RUN {
        for number in numbers(name) {
            expected
                .entry(number)
                .or_default()
                .insert((folder.clone(), name.clone()));
        }
    }
    for (number, Row { tests, .. }) in rows() {
        let expected = expected.remove(&number).unwrap_or_default();
        assert_eq!(
            tests, expected,
            "statement {number}: the table (left) and the tests that run differ"
        );
    }
    assert!(expected.is_empty(), "tests of no statement: {expected:?}");
}

/// Each of the other rules has a source, or says that none was found, and tests that run.
#[test]
fn the_other_rules_have_sources_and_tests_that_run() {
    let text = fs::read_to_string(root().join("CONFORMANCE.md")).unwrap();
    let (_, rules) = text.split_once("## Other rules").unwrap();
    let mut count = 0;
    for line in rules.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, rule, source, tests, _] = cells[..] else {
            continue;
        };
        if matches!(rule, "rule" | "---") {
            continue;
        }
        count += 1;
        assert!(!source.is_empty(), "{rule}");
        let tests = named(tests);
        assert!(!tests.is_empty(), "{rule}");
        let gone: Vec<_> = tests.difference(&TESTS_THAT_RUN).collect();
        assert!(gone.is_empty(), "{rule}: {gone:?}");
    }
    assert!(count >= 50, "{count} rules are left");
}

#[test]
fn a_statement_is_tested_exactly_if_it_has_tests() {
    for (number, Row { state, tests, .. }) in rows() {
        let expected = if tests.is_empty() { "open" } else { "tested" };
        assert_eq!(state, expected, "statement {number}");
    }
}

/// The CRC-32 of a statement's text, as `crc32` and zip compute it.
fn crc(statement: &str) -> String {
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
    format!("{:08x}", crc.checksum(statement.as_bytes()))
}

#[test]
fn every_statement_is_the_one_that_its_tests_were_reviewed_against() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(REVIEWED);
    let text = fs::read_to_string(path).unwrap();
    let reviewed = text.lines().filter(|line| !line.starts_with('#'));
    let reviewed: BTreeSet<String> = reviewed.map(str::to_owned).collect();
    let rows = rows().into_iter();
    let written = rows.map(|(number, row)| format!("{number} {}", crc(&row.statement)));
    let written: BTreeSet<String> = written.collect();
    let changed: Vec<_> = written.difference(&reviewed).collect();
    let stale: Vec<_> = reviewed.difference(&written).collect();
    assert!(
        changed.is_empty() && stale.is_empty(),
        "statements changed since their tests were reviewed: read those tests again, then put the lines {changed:?} \
         into tests/{REVIEWED} for {stale:?}"
    );
}
