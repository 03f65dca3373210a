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
const SLACK_LINES: usize = 150;

/// The same for words.
const SLACK_WORDS: usize = 10;

/// Lines from which on a crate has a budget of lines.
const LARGE: usize = 5000;

/// Files in which one type may have `impl` blocks without a budget of its own.
const IMPL_FILES: usize = 6;

/// Words of a translation, in place of the actor, the verb or the noun: see CONTRIBUTING.md.
const WORDS: [&str; 22] = [
    "somebody",
    "nobody",
    "everybody",
    "anybody",
    "whoever",
    "whom",
    "told",
    "tell",
    "tells",
    "lets",
    "those that",
    "what is",
    "what was",
    "what has",
    "what it",
    "what they",
    "what came",
    "what comes",
    "for ever",
    "no more",
    "any more",
    "those of",
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

/// Expands a path with lists to the paths that it stands for.
fn expand(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        let plain = path.split(" as ").next().unwrap_or_default();
        return vec![plain.trim().trim_end_matches("::*").to_owned()];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in inner.chars() {
        match letter {
            ',' if depth == 0 => parts.push(String::new()),
            _ => {
                depth += i32::from(letter == '{') - i32::from(letter == '}');
                parts.last_mut().unwrap().push(letter);
            }
        }
    }
    let parts = parts.iter().map(|part| part.trim());
    let parts = parts.filter(|part| !part.is_empty());
    parts
        .flat_map(|part| expand(part).into_iter())
        .map(|part| format!("{}{part}", before.trim()))
        .collect()
}

/// Paths that a file imports or exports anew, from the root of its crate.
fn imports(at: &[String], source: &str) -> Vec<Vec<String>> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut lines = code.lines();
    let mut paths = Vec::new();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        let public = ["pub ", "pub(crate) ", "pub(super) "];
        let bare = public.iter().find_map(|public| line.strip_prefix(public));
        let Some(path) = bare.unwrap_or(line).strip_prefix("use ") else {
            continue;
        };
        let mut path = path.to_owned();
        while !path.contains(';') {
            let Some(more) = lines.next() else { break };
            path.push_str(more.trim_start());
        }
        paths.extend(expand(path.split(';').next().unwrap_or_default()));
    }
    let absolute = paths.into_iter().filter_map(|path| {
        let mut parts = path.split("::").map(str::to_owned).peekable();
        let first = parts.next()?;
        let mut from = match first.as_str() {
            "crate" => Vec::new(),
            "self" => at.to_vec(),
            "super" => at.get(..at.len().checked_sub(1)?)?.to_vec(),
            // A module of its own, or another crate.
            _ => [at, &[first]].concat(),
        };
        while parts.next_if(|part| part == "super").is_some() {
            from.pop();
        }
        from.extend(parts);
        Some(from)
    });
    absolute.collect()
}

/// Returns the number of files that import from each other in circles, and the number of imports between two of one circle. A
/// module that takes from one below it which takes from the module is a circle, too.
fn circles(sources: &BTreeMap<PathBuf, String>) -> (usize, usize) {
    let modules: BTreeMap<Vec<String>, &str> = sources
        .iter()
        .map(|(file, source)| (module(file), source.as_str()))
        .collect();
    let edges = |at: &Vec<String>| -> BTreeSet<Vec<String>> {
        let imported = imports(at, modules[at]);
        let known = imported.into_iter().filter_map(|mut path| {
            let is_own = path.starts_with(at);
            while !modules.contains_key(&path) {
                path.pop()?;
            }
            // A path that looks like one of its own modules may be another crate's.
            (!is_own || path.starts_with(at)).then_some(path)
        });
        known.filter(|path| path != at).collect()
    };
    let edges: BTreeMap<_, _> = modules.keys().map(|at| (at, edges(at))).collect();
    let reached = |from: &Vec<String>| -> BTreeSet<Vec<String>> {
        let mut all = BTreeSet::new();
        let mut next: Vec<_> = edges[from].iter().cloned().collect();
        while let Some(one) = next.pop() {
            if all.insert(one.clone()) {
                next.extend(edges[&one].iter().cloned());
            }
        }
        all
    };
    let reached: BTreeMap<_, _> = modules.keys().map(|at| (at, reached(at))).collect();
    let files = modules.keys().filter(|at| reached[at].contains(*at));
    let arrows = modules.keys().flat_map(|at| {
        let back = edges[at].iter().filter(|to| reached[to].contains(at));
        back.map(|_| ())
    });
    (files.count(), arrows.count())
}

/// Returns the types that have `impl` blocks in so many files that this is to be said, with the number of files.
fn scattered(sources: &BTreeMap<PathBuf, String>) -> BTreeMap<String, usize> {
    let mut files: BTreeMap<String, BTreeSet<&Path>> = BTreeMap::new();
    for (file, source) in sources {
        for line in source.lines() {
            // An inherent one, or a trait's.
            let Some(rest) = line.strip_prefix("impl") else {
                continue;
            };
            let named = rest.rsplit(" for ").next().unwrap_or_default();
            let named = named.strip_prefix('<').map_or(named, |generic| {
                generic.split_once("> ").map_or("", |(_, after)| after)
            });
            let name: String = named
                .trim()
                .chars()
                .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
                .collect();
            if name.starts_with(char::is_uppercase) {
                files.entry(name).or_default().insert(file);
            }
        }
    }
    let files = files.into_iter().map(|(name, files)| (name, files.len()));
    files.filter(|(_, files)| *files > IMPL_FILES).collect()
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

/// Occurrences of the words in a text.
fn words(text: &str) -> usize {
    let text = text.to_lowercase();
    let plain: Vec<&str> = text
        .split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let text = format!(" {} ", plain.join(" "));
    let found = WORDS
        .iter()
        .map(|word| text.matches(&format!(" {word} ")).count());
    found.sum()
}

/// Returns the texts of a source for readers and users: doc comments, errors and help.
fn said(source: &str) -> String {
    let mut said: Vec<&str> = doc_lines(source).collect();
    let messages = source.lines().map(str::trim).filter(|line| {
        ["#[error(", "#[arg(", "#[command("]
            .iter()
            .any(|attribute| line.starts_with(attribute))
    });
    said.extend(messages);
    said.join("\n")
}

/// Returns the Markdown files of a folder, except in folders of other crates.
fn documents(folder: &Path, other: &[PathBuf]) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let is_hidden = path.file_name().unwrap().to_string_lossy().starts_with('.');
            if path.is_dir() {
                if !is_hidden && !path.ends_with("target") && !other.contains(&path) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|kind| kind == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// Words of code in all sources of the workspace, tests included, with the number of times that each stands there.
fn vocabulary() -> BTreeMap<String, usize> {
    let mut counted = BTreeMap::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(path);
            } else if name.ends_with(".rs") {
                for line in read(&path).lines() {
                    let code = line.split("//").next().unwrap_or_default();
                    let words =
                        code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
                    for word in words {
                        *counted.entry(word.to_owned()).or_default() += 1;
                    }
                }
            }
        }
    }
    counted
}

/// Public functions of a source whose names stand nowhere else.
fn unused(source: &str, vocabulary: &BTreeMap<String, usize>) -> usize {
    let names = source.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("pub ")?;
        let rest = rest.strip_prefix("const ").unwrap_or(rest);
        let rest = rest.strip_prefix("fn ")?;
        rest.split(['(', '<']).next()
    });
    names
        .filter(|name| vocabulary.get(*name) == Some(&1))
        .count()
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
    let vocabulary = vocabulary();
    let all: Vec<PathBuf> = crates().iter().map(|folder| root().join(folder)).collect();
    let count_words =
        |files: Vec<PathBuf>| -> usize { files.iter().map(|file| words(&read(file))).sum() };
    let of_workspace = documents(&root(), &all);
    counted.insert(("words", ".".to_owned()), count_words(of_workspace));
    for folder in crates() {
        let sources = sources(&folder);
        let sum = |count: fn(&str) -> usize| sources.values().map(|source| count(source)).sum();
        let mut note = |what, number: usize| counted.insert((what, folder.clone()), number);
        let lines = sum(|source| source.lines().count());
        if lines > LARGE {
            note("lines", lines);
        }
        let (files, arrows) = circles(&sources);
        note("circles", files);
        note("arrows", arrows);
        let of_sources: usize = sum(|source| words(&said(source)));
        let documents = count_words(documents(&root().join(&folder), &all));
        note("words", of_sources + documents);
        let unused = sources.values().map(|source| unused(source, &vocabulary));
        note("unused", unused.sum());
        note("polls", sum(polls));
        let world = sources
            .iter()
            .filter(|(path, _)| folder == "vmm-glue/vhca" && path.starts_with("world"));
        let panics = world.map(|(_, source)| doc_lines(source).filter(|line| *line == "# Panics"));
        note("panics", panics.map(Iterator::count).sum());
        for (name, files) in scattered(&sources) {
            counted.insert(("impls", format!("{folder}: {name}")), files);
        }
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
        let slack = match *what {
            "lines" => SLACK_LINES,
            "words" => SLACK_WORDS,
            _ => 0,
        };
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
    let lib = file("lib.rs", "pub use a::A;");
    let straight = [
        lib.clone(),
        file("a.rs", "use crate::b::B;\nuse core::fmt;"),
        file("b.rs", "use crate::{\n    c::{C, D},\n};"),
        file("c.rs", "use a_crate::A;"),
    ];
    assert_eq!(of(&straight), (0, 0));
    let mut round = straight;
    round[3].1 = "use super::a::A;".to_owned();
    assert_eq!(of(&round), (3, 3));
    round[3].1 = "#[cfg(test)]\nmod tests {\n    use super::super::a::A;\n}".to_owned();
    assert_eq!(of(&round), (0, 0));
    round[3].1 = "use super::Root;".to_owned();
    assert_eq!(of(&round), (4, 4));
}

#[test]
fn lists_of_imports_are_expanded() {
    assert_eq!(
        expand("a::{b::C, d::{E as F, self}}"),
        ["a::b::C", "a::d::E", "a::d::self"]
    );
    assert_eq!(expand("a::*"), ["a"]);
}

#[test]
fn words_count_where_readers_and_users_meet_them() {
    assert_eq!(words("Whom it tells, what\nis there: for ever."), 4);
    assert_eq!(words("foretell somebodys whatis"), 0);
    let source = "/// Nobody.\n// Nobody.\n#[error(\"what is\")]\nlet nobody = 1;\n";
    assert_eq!(words(&said(source)), 2);
}

#[test]
fn a_function_whose_name_stands_nowhere_else_is_unused() {
    let words = [("seen", 2), ("alone", 1)];
    let words = words.map(|(word, times)| (word.to_owned(), times)).into();
    let source = "pub fn seen() {}\n    pub const fn alone<T>() {}\nfn alone() {}\n";
    assert_eq!(unused(source, &words), 1);
}

#[test]
fn a_type_is_scattered_over_more_than_six_files() {
    let files = |count: usize| {
        let file = |nth| {
            (
                PathBuf::from(format!("f{nth}.rs")),
                "impl<T: X> Y for Z<T> {".to_owned(),
            )
        };
        (0..count).map(file).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(scattered(&files(6)), BTreeMap::new());
    assert_eq!(scattered(&files(7)), [("Z".to_owned(), 7)].into());
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
