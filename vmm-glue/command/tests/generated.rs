//! Man pages and shell completions, compared with the help that the commands print.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

fn vhca(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_vhca"))
        .args(arguments)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the subcommands that a command's help lists.
fn subcommands(path: &[&str]) -> Vec<String> {
    let help = vhca(&[path, &["--help"]].concat());
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_has_a_man_page_that_lists_its_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("man1");
    vhca(&["generate", "man", pages.to_str().expect("a name")]);
    let commands = subcommands(&[]);
    assert!(commands.len() > 15, "{commands:?}");
    for command in &commands {
        let page = fs::read_to_string(pages.join(format!("vhca-{command}.1"))).expect("a page");
        let help = vhca(&[command, "--help"]);
        let options = help.split_whitespace().filter(|word| {
            word.len() > 2
                && word.starts_with("--")
                && word[2..]
                    .chars()
                    .all(|letter| letter.is_ascii_lowercase() || letter == '-')
        });
        for option in options {
            let escaped = option.replace('-', "\\-");
            assert!(page.contains(&escaped), "{command}: {option}");
        }
        for below in subcommands(&[command]) {
            let page = pages.join(format!("vhca-{command}-{below}.1"));
            assert!(page.is_file(), "{}", page.display());
        }
    }
}

#[test]
fn bash_takes_the_completions_and_offers_every_command() {
    let script = vhca(&["generate", "completions", "bash"]);
    let mut bash = Command::new("bash")
        .args([
            "-c",
            "source /dev/stdin && COMP_WORDS=(vhca '') COMP_CWORD=1 && _vhca vhca '' vhca && echo ${COMPREPLY[*]}",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash runs");
    let mut stdin = bash.stdin.take().expect("its input");
    stdin.write_all(script.as_bytes()).expect("written");
    drop(stdin);
    let output = bash.wait_with_output().expect("it ends");
    let offered = String::from_utf8(output.stdout).expect("text");
    for command in subcommands(&[]) {
        assert!(offered.contains(&command), "{command} of {offered:?}");
    }
}
