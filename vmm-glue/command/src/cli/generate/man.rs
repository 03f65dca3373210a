//! Man pages: what the arguments say, and the sections that a reference has besides.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use vhca_diagnosis::KNOWN_FAULTS;

use super::pages::{self, Page};

/// Writes a page for each command into a folder, which is made if it is missing.
pub(super) fn write(command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_all(&command, folder)
}

fn write_all(command: &Command, folder: &Path) -> io::Result<()> {
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        write_all(below, folder)?;
    }
    let version = command.get_version().unwrap_or_default();
    let page = Man::new(command.clone())
        .source(format!("vhca {version}"))
        .manual("Virtual InfiniBand HCAs");
    let mut file = File::create(folder.join(page.get_filename()))?;
    page.render_title(&mut file)?;
    page.render_name_section(&mut file)?;
    synopsis(command, &mut file)?;
    page.render_description_section(&mut file)?;
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        page.render_options_section(&mut file)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        page.render_subcommands_section(&mut file)?;
    }
    let path = command.get_bin_name().unwrap_or("vhca");
    let of = pages::of(path);
    if of.command == "why" {
        codes(&mut file)?;
    }
    exit_status(of, &mut file)?;
    environment(command, of, &mut file)?;
    files(command, of, &mut file)?;
    examples(path, of, &mut file)?;
    see_also(path, of, &mut file)?;
    file.flush()
}

/// Writes how a command is called, with the values of its options.
fn synopsis(command: &Command, out: &mut File) -> io::Result<()> {
    let mut roff = Roff::default();
    roff.control("SH", ["SYNOPSIS"]);
    let mut line = vec![bold(command.get_bin_name().unwrap_or("vhca"))];
    let is_usual = |argument: &&Arg| matches!(argument.get_id().as_str(), "help" | "version");
    let shown = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set());
    let (options, positionals): (Vec<_>, Vec<_>) = shown
        .filter(|argument| !is_usual(argument))
        .partition(|argument| !argument.is_positional());
    for argument in options.into_iter().chain(positionals) {
        let (open, close) = match argument.is_required_set() {
            true => (" ", ""),
            false => (" [", "]"),
        };
        line.push(roman(open));
        if let Some(long) = argument.get_long() {
            line.push(bold(format!("--{long}")));
        }
        line.extend(values(argument));
        line.push(roman(close));
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        line.extend([roman(" "), italic("COMMAND"), roman(" ...")]);
    }
    roff.text(line);
    roff.to_writer(out)
}

/// Returns the values of an argument by their names.
fn values(argument: &Arg) -> Vec<Inline> {
    if !argument.get_action().takes_values() {
        return Vec::new();
    }
    let names = argument.get_value_names().unwrap_or_default();
    let names = italic(names.join(" "));
    let range = argument.get_num_args().unwrap_or_default();
    let many = match argument.get_action() {
        ArgAction::Append => roman("..."),
        _ => roman(""),
    };
    let gap = roman(if argument.is_positional() { "" } else { " " });
    match range.min_values() {
        0 if !argument.is_positional() => vec![roman(" ["), names, roman("]")],
        _ => vec![gap, names, many],
    }
}

/// Writes a section of terms, if it has any.
fn section<'t>(
    title: &str,
    terms: impl IntoIterator<Item = (&'t str, &'t str)>,
    out: &mut File,
) -> io::Result<()> {
    let mut roff = Roff::default();
    let mut has_any = false;
    for (term, text) in terms {
        if !has_any {
            roff.control("SH", [title]);
            has_any = true;
        }
        roff.control("TP", []);
        roff.text([bold(term)]);
        roff.text([roman(text.replace('`', ""))]);
    }
    match has_any {
        true => roff.to_writer(out),
        false => Ok(()),
    }
}

/// Writes the codes that `vhca why` can print.
fn codes(out: &mut File) -> io::Result<()> {
    let codes = KNOWN_FAULTS.iter().map(|known| (known.code, known.meaning));
    section("CODES", codes, out)
}

fn exit_status(of: &Page, out: &mut File) -> io::Result<()> {
    let own = |status: &str| of.exit.iter().any(|(own, _)| *own == status);
    let usual = pages::EXIT.iter().filter(|(status, _)| !own(status));
    let mut all: Vec<_> = usual.chain(of.exit).copied().collect();
    all.sort_by_key(|(status, _)| status.parse::<u8>().unwrap_or(u8::MAX));
    section("EXIT STATUS", all, out)
}

/// Writes the variables that arguments have, and others.
fn environment(command: &Command, of: &Page, out: &mut File) -> io::Result<()> {
    let variable = |argument: &Arg| {
        let variable = argument.get_env()?.to_str()?.to_owned();
        Some((variable, format!("The same as --{}.", argument.get_long()?)))
    };
    let of_arguments: Vec<_> = command.get_arguments().filter_map(variable).collect();
    let of_arguments = of_arguments
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()));
    let runtime = asks(command).then_some(pages::RUNTIME);
    let others = of.environment.iter().copied();
    section(
        "ENVIRONMENT",
        of_arguments.chain(runtime).chain(others),
        out,
    )
}

/// Returns `true` for a command that has a control socket.
fn asks(command: &Command) -> bool {
    command
        .get_arguments()
        .any(|argument| argument.get_id() == "control")
}

fn files(command: &Command, of: &Page, out: &mut File) -> io::Result<()> {
    let sockets: &[_] = if asks(command) { &pages::SOCKETS } else { &[] };
    section("FILES", of.files.iter().chain(sockets).copied(), out)
}

/// Writes the examples of a command: of one below another only those that have all of its words.
fn examples(path: &str, of: &Page, out: &mut File) -> io::Result<()> {
    let has_all = |line: &str| {
        let is_mark = |c: char| c.is_whitespace() || "\"$()".contains(c);
        let words: Vec<_> = line.split(is_mark).collect();
        path.split(' ').all(|word| words.contains(&word))
    };
    let examples = of.examples.iter().filter(|(line, _)| has_all(line));
    section("EXAMPLES", examples.copied(), out)
}

/// Writes the pages that go with a page: those above it, and those that its table names.
fn see_also(path: &str, of: &Page, out: &mut File) -> io::Result<()> {
    let words: Vec<_> = path.split(' ').collect();
    let above = (1..words.len()).map(|count| format!("{}(1)", words[..count].join("-")));
    let named = of.see.iter().map(|name| match name.contains('(') {
        true => (*name).to_owned(),
        false => format!("vhca-{name}(1)"),
    });
    let mut roff = Roff::default();
    roff.control("SH", ["SEE ALSO"]);
    let all: Vec<_> = above.chain(named).collect();
    roff.text([roman(all.join(", "))]);
    roff.control("PP", []);
    roff.text([roman(
        "The service has its own document: serve.md in /usr/share/doc/vhca, or in vmm-glue/service/docs of the sources.",
    )]);
    roff.to_writer(out)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::super::Cli;
    use super::pages::PAGES;
    use super::*;

    #[test]
    fn every_command_has_a_page_of_its_own_in_the_table_and_every_page_a_command() {
        let command = Cli::command();
        let commands = command
            .get_subcommands()
            .filter(|below| !below.is_hide_set());
        let commands: Vec<_> = commands.map(Command::get_name).collect();
        let pages = PAGES.iter().filter(|page| !page.command.is_empty());
        let pages: Vec<_> = pages.map(|page| page.command).collect();
        assert_eq!(pages, commands);
        for page in PAGES {
            assert!(!page.examples.is_empty(), "{}", page.command);
            for name in page.see.iter().filter(|name| !name.contains('(')) {
                assert!(commands.contains(name), "{}: {name}", page.command);
            }
        }
    }

    #[test]
    fn examples_are_command_lines_that_are_understood() {
        for (line, _) in PAGES.iter().flat_map(|page| page.examples) {
            // What stands behind is the shell's.
            let own = line.split([';', '|', '>']).next().unwrap();
            let own = own.trim_start_matches("eval \"$(").trim_end_matches(")\"");
            let words = own.split_whitespace().filter(|word| *word != "&");
            Cli::command()
                .try_get_matches_from(words)
                .unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
