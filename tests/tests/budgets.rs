//! Numbers of the sources that may fall and must not rise unnoticed: `tests/budgets.toml` has what each may be.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where the sources are not what they should be"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

/// Lines by which a crate may be shorter than its budget before that has to follow.
const SLACK: usize = 150;

/// Words that open a sentence of a translation, not of this field: see CONTRIBUTING.md.
const OPENERS: [&str; 8] = [
    "Gives", "Whether", "What", "Who", "Whom", "Tells", "Lets", "Has",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folders of the workspace's crates, as its manifest has them, but for the tests.
fn crates() -> Vec<String> {
    let manifest: Table = toml::from_str(&read(&root().join("Cargo.toml"))).unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap().iter();
    let members = members.map(|member| member.as_str().unwrap().to_owned());
    members.filter(|member| member != "tests").collect()
}

/// The sources of a crate by their paths below `src`, without files of tests.
fn sources(folder: &str) -> BTreeMap<PathBuf, String> {
    let src = root().join(folder).join("src");
    let (mut folders, mut found) = (vec![src.clone()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.extend((name != "tests").then_some(path));
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let below = path.strip_prefix(&src).unwrap().to_owned();
                found.insert(below, read(&path));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no sources");
    found
}

/// The module that a file is, from the root of its crate.
fn module(file: &Path) -> Vec<String> {
    let parts = file.with_extension("");
    let parts = parts.iter().map(|part| part.to_string_lossy().into_owned());
    parts
        .filter(|part| !["lib", "main", "mod"].contains(&part.as_str()))
        .collect()
}

/// Paths that a file imports: what follows `use` in one line, from the root of its crate, without lists.
fn imports(at: &[String], source: &str) -> Vec<Vec<String>> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let paths = code
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("use "));
    let absolute = paths.filter_map(|path| {
        let path = path.split(['{', ';', '*']).next().unwrap_or_default();
        let path = path.trim_end_matches("::").split(" as ").next()?;
        let mut parts = path.split("::").map(str::to_owned).peekable();
        let mut from = match parts.next()?.as_str() {
            "crate" => Vec::new(),
            "self" => at.to_vec(),
            "super" => at.get(..at.len().checked_sub(1)?)?.to_vec(),
            _ => return None,
        };
        while parts.next_if(|part| part == "super").is_some() {
            from.pop();
        }
        from.extend(parts);
        Some(from)
    });
    absolute.collect()
}

/// Circles of files that import from each other. What a module takes from those below it is no part of one: they are its
/// own.
fn circles(sources: &BTreeMap<PathBuf, String>) -> usize {
    let modules: BTreeMap<Vec<String>, &str> = sources
        .iter()
        .map(|(file, source)| (module(file), source.as_str()))
        .collect();
    let edges = |at: &Vec<String>| -> Vec<Vec<String>> {
        let imported = imports(at, modules[at]);
        let known = imported.into_iter().filter_map(|mut path| {
            while !modules.contains_key(&path) {
                path.pop()?;
            }
            Some(path)
        });
        known.filter(|path| !path.starts_with(at)).collect()
    };
    let reached = |from: &Vec<String>| -> BTreeSet<Vec<String>> {
        let (mut all, mut next) = (BTreeSet::new(), edges(from));
        while let Some(one) = next.pop() {
            if all.insert(one.clone()) {
                next.extend(edges(&one));
            }
        }
        all
    };
    let reached: BTreeMap<_, _> = modules.keys().map(|at| (at, reached(at))).collect();
    let circle = |at: &Vec<String>| -> BTreeSet<Vec<String>> {
        let both = reached[at]
            .iter()
            .filter(|other| reached[other].contains(at));
        both.cloned().collect()
    };
    let circles: BTreeSet<_> = modules.keys().map(circle).collect();
    circles.iter().filter(|circle| circle.len() > 1).count()
}

/// The text of doc comments, a line each.
fn doc_lines(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().map(str::trim_start);
    lines.filter_map(|line| {
        let text = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"))?;
        Some(text.trim())
    })
}

/// Sentences of doc comments that open with one of the words.
fn openers(source: &str) -> usize {
    let mut begins = true;
    let mut count = 0;
    for line in doc_lines(source) {
        for sentence in line.split_inclusive(". ") {
            let word = sentence.split([' ', ',', '.', ':']).next();
            let word = word.unwrap_or_default();
            count += usize::from(begins && OPENERS.contains(&word));
            begins = sentence.trim_end().ends_with('.');
        }
        begins |= line.is_empty();
    }
    count
}

/// Methods that lend out what a machine has to send or tell, and that a caller may forget to use.
fn polls(source: &str) -> usize {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_poll = |line: &str| {
        ["output", "event", "transmit"]
            .iter()
            .any(|what| line.starts_with(&format!("pub fn poll_{what}")))
    };
    let found = (0..lines.len()).filter(|nth| is_poll(lines[*nth]));
    let forgettable = found.filter(|nth| {
        let above = lines[..*nth].iter().rev();
        let mut above = above.take_while(|line| line.starts_with("#[") || line.starts_with("///"));
        !above.any(|line| line.starts_with("#[must_use"))
    });
    forgettable.count()
}

/// Counts each number, of each crate.
fn counted() -> BTreeMap<(&'static str, String), usize> {
    let mut counted = BTreeMap::new();
    for folder in crates() {
        let sources = sources(&folder);
        let sum = |count: fn(&str) -> usize| sources.values().map(|source| count(source)).sum();
        let mut note = |what, number: usize| counted.insert((what, folder.clone()), number);
        note("lines", sum(|source| source.lines().count()));
        note("circles", circles(&sources));
        note("openers", sum(openers));
        note("polls", sum(polls));
        let world = sources
            .iter()
            .filter(|(path, _)| folder == "vmm-glue/vhca" && path.starts_with("world"));
        let panics = world.map(|(_, source)| doc_lines(source).filter(|line| *line == "# Panics"));
        note("panics", panics.map(Iterator::count).sum());
    }
    counted
}

#[test]
fn every_number_is_within_its_budget_and_the_budget_follows_what_falls() {
    let budgets: Table = toml::from_str(&read(&root().join("tests/budgets.toml"))).unwrap();
    let counted = counted();
    let mut wrong = Vec::new();
    for ((what, folder), number) in &counted {
        let budget = budgets.get(*what).and_then(|table| table.get(folder));
        let most = budget.map_or(0, |budget| {
            let most = budget.get("most").unwrap_or(budget);
            usize::try_from(most.as_integer().unwrap()).unwrap()
        });
        let slack = if *what == "lines" { SLACK } else { 0 };
        if *number > most {
            wrong.push(format!(
                "[{what}] \"{folder}\" = {number} is more than {most}"
            ));
        } else if number + slack < most {
            wrong.push(format!(
                "[{what}] \"{folder}\" = {number}: lower it from {most}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "tests/budgets.toml:\n{}",
        wrong.join("\n")
    );
    let known: BTreeSet<_> = counted
        .keys()
        .map(|(what, name)| (*what, name.as_str()))
        .collect();
    for (what, table) in &budgets {
        for folder in table.as_table().unwrap().keys() {
            assert!(
                known.contains(&(what.as_str(), folder.as_str())),
                "{what} {folder}"
            );
        }
    }
}

#[test]
fn a_circle_is_found_however_long_it_is() {
    let file = |name: &str, source: &str| (PathBuf::from(name), source.to_owned());
    let of = |files: &[(PathBuf, String)]| circles(&files.iter().cloned().collect());
    let lib = file("lib.rs", "use crate::a::A;");
    let straight = [
        lib.clone(),
        file("a.rs", "use crate::b::B;\nuse super::Root;"),
        file("b.rs", "use crate::c::{C, D};"),
        file("c.rs", ""),
    ];
    assert_eq!(of(&straight), 0);
    let mut round = straight;
    round[3].1 = "use super::a::A;".to_owned();
    assert_eq!(of(&round), 1);
    round[3].1 = "#[cfg(test)]\nmod tests {\n    use super::super::a::A;\n}".to_owned();
    assert_eq!(of(&round), 0);
}

#[test]
fn a_sentence_counts_by_its_first_word() {
    assert_eq!(openers("/// Gives it. Whether it does.\nfn f() {}\n"), 2);
    assert_eq!(
        openers("/// Returns what\n/// Has to be. He gives it.\n"),
        0
    );
    assert_eq!(openers("//! Room.\n//!\n//! What is there\n"), 1);
    assert_eq!(openers("// Gives it.\n"), 0);
}

#[test]
fn a_poll_counts_that_may_be_forgotten() {
    let poll = "pub fn poll_event(&mut self) -> Option<Event> {";
    assert_eq!(polls(poll), 1);
    assert_eq!(
        polls(&format!("/// It.\n#[must_use]\n#[inline]\n{poll}")),
        0
    );
    assert_eq!(polls(&format!("#[must_use]\nfn other() {{}}\n\n{poll}")), 1);
}
