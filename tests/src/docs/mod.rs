//! The shell blocks of the documents, and a shell that runs them as they stand there.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where its surroundings do"
)]

mod session;

use std::fs;
use std::path::{Path, PathBuf};

pub use session::{Outcome, Session};

/// Folders without documents of the project.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

/// Languages of fenced blocks that are no shell commands.
const LANGUAGES: [&str; 7] = ["text", "rust", "toml", "json", "yaml", "ini", "xml"];

/// A fenced block of shell commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The document, from the root of the workspace.
    pub document: String,
    /// Number of the first command's line.
    pub line: usize,
    /// Commands, one or more lines each.
    pub commands: Vec<String>,
}

/// The root of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the workspace").to_owned()
}

/// Returns all documents of the workspace, by their paths from its root, in order.
#[must_use]
pub fn documents() -> Vec<String> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if entry.file_type().unwrap().is_dir() {
                if !SKIPPED.contains(&&*name) {
                    folders.push(entry.path());
                }
            } else if name.ends_with(".md") {
                let path = entry.path();
                let path = path.strip_prefix(&root).unwrap();
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Returns the shell blocks of a document.
#[must_use]
pub fn blocks(document: &str) -> Vec<Block> {
    parse(
        document,
        &fs::read_to_string(root().join(document)).unwrap(),
    )
}

/// Returns the shell blocks of a document's text.
///
/// # Panics
/// If a block has no language, or one that is unknown here: nobody could say whether it is to be run.
#[must_use]
pub fn parse(document: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut language = None;
    let mut before = "";
    for (index, line) in text.lines().enumerate() {
        let at = format!("{document}:{}", index + 1);
        let trimmed = line.trim();
        match (trimmed.strip_prefix("```"), language) {
            (Some("sh"), None) => {
                language = Some("sh");
                blocks.push(Block {
                    document: document.to_owned(),
                    line: index + 2,
                    commands: Vec::new(),
                });
            }
            (Some(named), None) => {
                let known = LANGUAGES.contains(&named);
                assert!(
                    known,
                    "{at}: a block needs a language: sh or one of {LANGUAGES:?}"
                );
                language = Some(named);
            }
            (Some(_), Some(_)) => language = None,
            (None, Some("sh")) => {
                let block: &mut Block = blocks.last_mut().expect("one has begun");
                add_line(&mut block.commands, trimmed);
            }
            (None, Some(_)) => {}
            // Text of a list is indented, too.
            (None, None) => assert!(
                !line.starts_with("    ") || !before.is_empty() || trimmed.is_empty(),
                "{at}: an indented block has no language: fence it"
            ),
        }
        before = trimmed;
    }
    assert_eq!(language, None, "{document}: a block does not end");
    blocks
}

/// Adds a line to the commands of a block: to the last one if that goes on.
fn add_line(commands: &mut Vec<String>, line: &str) {
    if line.is_empty() || line.starts_with('#') {
        return;
    }
    let goes_on = |last: &&mut String| {
        ["\\", "&&", "||", "|"]
            .iter()
            .any(|end| last.ends_with(end))
    };
    if let Some(last) = commands.last_mut().filter(goes_on) {
        last.push('\n');
        last.push_str(line);
        return;
    }
    commands.push(line.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_go_on_behind_a_backslash_and_comments_are_none() {
        let text = "```text\nout\n```\n\n* a list\n\n  ```sh\n  # nothing\n  a \\\n    b\n  c &&\n  d\n  e &\n  ```\n";
        let blocks = parse("x.md", text);
        assert_eq!(blocks.len(), 1);
        assert_eq!(blocks[0].line, 8);
        assert_eq!(blocks[0].commands, ["a \\\nb", "c &&\nd", "e &"]);
    }

    #[test]
    fn blocks_without_a_language_are_refused() {
        for text in [
            "```\na\n```\n",
            "Text:\n\n    a\n",
            "```perl\na\n```\n",
            "```sh\na\n",
        ] {
            let parsed = std::panic::catch_unwind(|| parse("x.md", text));
            assert!(parsed.is_err(), "{text}");
        }
    }
}
