//! Commands and options of `vhca` that the documents name in their text exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use vhca_tests::docs::{documents, root};
use vhca_tests::live::binary;

/// A command of `vhca`, of one word or two, and an option of it.
type Named = (String, String);

/// Returns the options of `vhca` commands that a line of code names.
fn named(line: &str) -> Vec<Named> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let ["vhca", command, rest @ ..] = &words[..] else {
        return Vec::new();
    };
    if !is_name(command) || command.starts_with('-') {
        return Vec::new();
    }
    let command = match rest {
        [what @ ("vf" | "link"), ..] if *command == "set" => format!("set {what}"),
        // The address of a function stands between.
        [_, what, ..] if *command == "vfio" && is_name(what) => format!("vfio BDF {what}"),
        _ => (*command).to_owned(),
    };
    // What is behind `--` belongs to another program.
    let own = rest.iter().take_while(|word| **word != "--");
    let own = own.map(|word| word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '-'));
    let options = own.filter(|word| word.starts_with("--"));
    let options = options.map(|word| word.split('=').next().unwrap_or(word));
    let mut named: Vec<Named> = options
        .map(|option| (command.clone(), option.to_owned()))
        .collect();
    named.push((command, String::new()));
    named
}

/// Returns the help of a command, or nothing if there is no such command.
fn help(command: &str) -> String {
    let output = Command::new(binary())
        .args(command.split(' '))
        .arg("--help")
        .output()
        .unwrap();
    if !output.status.success() {
        return String::new();
    }
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn options_that_the_documents_name_exist() {
    let mut options: BTreeMap<Named, BTreeSet<String>> = BTreeMap::new();
    for document in documents() {
        let text = fs::read_to_string(root().join(&document)).unwrap();
        // Code is between two marks, in a line or in a block.
        let code = text.split('`').skip(1).step_by(2).flat_map(str::lines);
        for named in code.flat_map(named) {
            options.entry(named).or_default().insert(document.clone());
        }
    }
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let missing = options.iter().filter(|((command, option), _)| {
        let help = helps
            .entry(command.clone())
            .or_insert_with(|| help(command));
        help.is_empty() || !help.contains(option.as_str())
    });
    let missing: Vec<_> = missing.collect();
    assert!(
        options.len() > 50 && missing.is_empty(),
        "{} options, {missing:#?}",
        options.len()
    );
}
