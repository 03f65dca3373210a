//! CONFORMANCE.md names every conformance test of the workspace, and nothing that is not there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The statements are numbered from 1 to this.
const STATEMENTS: u16 = 232;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Rust files of the tree, without what builds leave.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
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

/// The conformance tests, by the folder of their crate.
fn tests_in_tree() -> BTreeSet<(String, String)> {
    let root = root().canonicalize().unwrap();
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut tests = BTreeSet::new();
    for file in files {
        let folder = file
            .strip_prefix(&root)
            .unwrap()
            .components()
            .next()
            .unwrap();
        let folder = folder.as_os_str().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).unwrap();
        let names = text
            .split("fn c")
            .skip(1)
            .filter_map(|rest| rest.split_once('('))
            .map(|(name, _)| format!("c{name}"))
            .filter(|name| !numbers(name).is_empty());
        tests.extend(names.map(|name| (folder.clone(), name)));
    }
    tests
}

/// The rows of the table: statement, state, and the tests that it names.
fn rows() -> BTreeMap<u16, (String, BTreeSet<(String, String)>)> {
    let text = fs::read_to_string(root().join("CONFORMANCE.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _kind, _statement, state, tests, _] = cells[..] else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        let tests = tests
            .split("<br>")
            .filter_map(|test| test.trim_matches('`').split_once(' '))
            .map(|(folder, name)| (folder.to_owned(), name.to_owned()))
            .collect();
        let twice = rows.insert(number, (state.to_owned(), tests));
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
    for (folder, name) in tests_in_tree() {
        for number in numbers(&name) {
            expected
                .entry(number)
                .or_default()
                .insert((folder.clone(), name.clone()));
        }
    }
    for (number, (_, tests)) in rows() {
        let expected = expected.remove(&number).unwrap_or_default();
        assert_eq!(
            tests, expected,
            "statement {number}: the table (left) and the tree differ"
        );
    }
    assert!(expected.is_empty(), "tests of no statement: {expected:?}");
}

#[test]
fn a_statement_is_tested_exactly_if_it_has_tests() {
    for (number, (state, tests)) in rows() {
        let expected = if tests.is_empty() { "open" } else { "tested" };
        assert_eq!(state, expected, "statement {number}");
    }
}
