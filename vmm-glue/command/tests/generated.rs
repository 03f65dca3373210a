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
fn pages_have_values_and_the_sections_of_a_reference() {
    let folder = tempfile::tempdir().expect("a folder");
    vhca(&["generate", "man", folder.path().to_str().expect("a name")]);
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).expect("a page");
    for entry in fs::read_dir(folder.path()).expect("the pages") {
        let name = entry.expect("a page").file_name();
        let page = page(name.to_str().expect("a name"));
        for section in ["EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            let headings = page.lines().filter_map(|line| line.strip_prefix(".SH "));
            let headings = headings.filter(|heading| heading.trim_matches('"') == section);
            assert_eq!(headings.count(), 1, "{name:?}: {section}");
        }
    }
    let serve = page("vhca-serve.1");
    for wanted in [
        "[\\fB\\-\\-vfs\\fR \\fIVFS\\fR]",
        "[\\fB\\-\\-pf\\fR \\fINODE\\fR...]",
        "\\fB\\-\\-vfs\\fR \\fI<VFS>\\fR",
        "two\\-switch",
        ".SH FILES",
        ".SH ENVIRONMENT",
        "\\fBVHCA_CONTROL\\fR",
        "\\fBRUST_LOG\\fR",
        "\\fB159\\fR",
    ] {
        assert!(serve.contains(wanted), "{wanted} in {serve}");
    }
    let run = page("vhca-run.1");
    assert!(
        run.contains("\\fB126\\fR") && run.contains("opensm(8)"),
        "{run}"
    );
}

#[test]
fn the_page_of_why_has_every_code_of_its_table() {
    let folder = tempfile::tempdir().expect("a folder");
    vhca(&["generate", "man", folder.path().to_str().expect("a name")]);
    let page = fs::read_to_string(folder.path().join("vhca-why.1")).expect("a page");
    let (_, codes) = page.split_once(".SH CODES\n").expect("codes");
    let (codes, _) = codes.split_once(".SH").expect("a section behind them");
    let terms = codes.lines().filter_map(|line| line.strip_prefix("\\fB"));
    let terms: Vec<_> = terms.filter_map(|line| line.strip_suffix("\\fR")).collect();
    let known = vhca_diagnosis::KNOWN_FAULTS;
    let known: Vec<_> = known.iter().map(|known| known.code).collect();
    assert_eq!(terms, known);
    assert!(terms.contains(&"sa_unreachable"));
}

/// Returns what a shell is offered for a line of which the last word is to be completed.
fn offered(shell: &str, line: &[&str], control: &str) -> String {
    let index = (line.len() - 1).to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_vhca"))
        .arg("--")
        .args(line)
        .env("VHCA_COMPLETE", shell)
        .env("VHCA_CONTROL", control)
        .env("_CLAP_COMPLETE_INDEX", index)
        .env("_CLAP_IFS", "\n")
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{line:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_shell_is_offered_commands_subjects_and_values() {
    for shell in ["bash", "zsh", "fish"] {
        let commands = offered(shell, &["vhca", ""], "/nonexistent");
        for command in subcommands(&[]) {
            assert!(commands.contains(&command), "{shell}: {command}");
        }
        for (line, wanted) in [
            (&["vhca", "show", "d"][..], "drops"),
            (&["vhca", "show", "vfs", "--wa"], "--wait-up"),
            (&["vhca", "serve", "--sm", ""], "none"),
            (&["vhca", "set", "link", "H1-1/1", "d"], "down"),
            (&["vhca", "why", ""], "all"),
        ] {
            let offered = offered(shell, line, "/nonexistent");
            assert!(offered.contains(wanted), "{shell}: {line:?}: {offered:?}");
        }
    }
}

#[test]
fn bash_completes_by_the_script() {
    let script = vhca(&["generate", "completions", "bash"]);
    let path = std::path::Path::new(env!("CARGO_BIN_EXE_vhca"));
    let path = path.parent().expect("its folder").to_str().expect("a name");
    let ask = "source /dev/stdin && COMP_WORDS=(vhca show d) COMP_CWORD=2 COMP_TYPE=9 &&
        _clap_complete_vhca vhca d show && echo \"${COMPREPLY[*]}\"";
    let mut bash = Command::new("bash")
        .args(["-c", ask])
        .env("PATH", format!("{path}:/usr/bin:/bin"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash runs");
    let mut stdin = bash.stdin.take().expect("its input");
    stdin.write_all(script.as_bytes()).expect("written");
    drop(stdin);
    let output = bash.wait_with_output().expect("it ends");
    let offered = String::from_utf8(output.stdout).expect("text");
    assert_eq!(offered.trim(), "drops");
}

#[test]
fn other_shells_take_the_scripts() {
    for shell in ["zsh", "fish"] {
        let script = vhca(&["generate", "completions", shell]);
        assert!(script.contains("VHCA_COMPLETE"), "{script}");
        let checked = Command::new(shell)
            .args(["-n", "/dev/stdin"])
            .stdin(Stdio::piped())
            .spawn();
        let Ok(mut checked) = checked else {
            eprintln!("not run: the script for {shell}, which is not there");
            continue;
        };
        let mut stdin = checked.stdin.take().expect("its input");
        stdin.write_all(script.as_bytes()).expect("written");
        drop(stdin);
        assert!(checked.wait().expect("an end").success(), "{shell}");
    }
}
