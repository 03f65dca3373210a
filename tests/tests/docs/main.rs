//! Every command of the documents is run as it stands there, or named in a list with the reason why not.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

mod exceptions;
mod options;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use exceptions::{EXCEPTIONS, Exception};
use vhca_tests::docs::{Block, Session, blocks, documents};

/// For the commands of one session.
const LIMIT: Duration = Duration::from_secs(120);

/// How many sessions run at a time.
const WORKERS: usize = 2;

/// Documents whose blocks follow from each other: a reader pastes them from top to bottom.
const ONE_SESSION: [&str; 2] = ["README.md", "vmm-glue/service/docs/containers.md"];

/// Programs that not every machine has, or not in the version that a document wants.
const PROGRAMS: [(&str, &str); 2] = [
    (
        "qemu-system-x86_64",
        // It has a VF if its socket is there.
        "socket=$(printf '%s\\n' \"$@\" | sed -n 's/.*vfio-user-pci.*\"path\":\"\\([^\"]*\\)\".*/\\1/p')
[ -S \"$socket\" ]",
    ),
    // Images come from the net.
    ("podman", include_str!("podman.sh")),
];

/// Returns the commands of a block that no exception names, and adds those that do to `matched`.
fn runnable(block: &Block, matched: &Mutex<BTreeSet<usize>>) -> Vec<String> {
    let excepted = |command: &&String| {
        let names = |exception: &Exception| {
            exception.document == block.document && command.starts_with(exception.command)
        };
        let mut matching = (0..EXCEPTIONS.len()).filter(|index| names(&EXCEPTIONS[*index]));
        matching
            .next()
            .map(|index| matched.lock().unwrap().insert(index))
            .is_some()
    };
    let commands = block.commands.iter().filter(|command| !excepted(command));
    commands.cloned().collect()
}

/// Runs commands, and returns what is wrong.
fn run(name: &str, commands: &[String]) -> Option<String> {
    let begun = Instant::now();
    let outcome = Session::new(&PROGRAMS).run(commands, LIMIT);
    println!(
        "{name}: {} commands, {:.1} s",
        commands.len(),
        begun.elapsed().as_secs_f32()
    );
    // `vhca why` says by its status whether there is a fault, which a port that comes up has; and a program ends with 1 when its
    // service is stopped before it.
    let stopped = outcome
        .output
        .contains("has ended, and so does this program");
    let is_answer = |(status, command): &&(i32, String)| {
        let is_of_program = stopped && command == "a service in the background";
        *status == 1 && (command.starts_with("vhca why ") || is_of_program)
    };
    let failed: Vec<_> = outcome
        .failed
        .iter()
        .filter(|failure| !is_answer(failure))
        .collect();
    if failed.is_empty() && outcome.ended {
        return None;
    }
    let mut wrong = format!("{name}:\n");
    for (status, command) in failed {
        writeln!(wrong, "  status {status}: {command}").unwrap();
    }
    if !outcome.ended {
        writeln!(wrong, "  does not end within {} s", LIMIT.as_secs()).unwrap();
    }
    writeln!(wrong, "{}", outcome.output).unwrap();
    Some(wrong)
}

/// Runs the blocks of a document, and returns what is wrong.
fn run_document(document: &str, matched: &Mutex<BTreeSet<usize>>) -> Vec<String> {
    let blocks = blocks(document);
    let sessions = blocks
        .iter()
        .map(|block| (block.line, runnable(block, matched)));
    let sessions: Vec<_> = if ONE_SESSION.contains(&document) {
        vec![(1, sessions.flat_map(|(_, commands)| commands).collect())]
    } else {
        sessions
            .filter(|(_, commands)| !commands.is_empty())
            .collect()
    };
    let wrong = sessions
        .into_iter()
        .filter_map(|(line, commands)| run(&format!("{document}:{line}"), &commands));
    wrong.collect()
}

#[test]
fn what_the_readme_quotes_of_the_example_stands_there() {
    let readme = include_str!("../../../README.md");
    let example = include_str!("../../../vmm-glue/vhca/examples/embed.rs");
    let quotes = readme.split("```rust\n").skip(1);
    let quotes: Vec<_> = quotes.filter_map(|rest| rest.split("```").next()).collect();
    assert!(!quotes.is_empty());
    for quote in quotes {
        assert!(example.contains(quote), "{quote}");
    }
}

#[test]
fn every_command_of_the_documents_does_what_it_says() {
    let (matched, wrong) = (Mutex::new(BTreeSet::new()), Mutex::new(Vec::new()));
    let waiting = Mutex::new(documents());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let Some(document) = waiting.lock().unwrap().pop() else {
                        return;
                    };
                    let found = run_document(&document, &matched);
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let matched = matched.into_inner().unwrap();
    let stale = (0..EXCEPTIONS.len()).filter(|index| !matched.contains(index));
    let stale: Vec<_> = stale.map(|index| &EXCEPTIONS[index]).collect();
    assert!(
        stale.is_empty(),
        "no document has these commands: {stale:#?}"
    );
}
