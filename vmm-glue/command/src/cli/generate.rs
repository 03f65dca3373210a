//! Man pages and shell completions, made from the definitions of the arguments.

mod man;
mod pages;

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;
use clap_complete::env::Shells;

use super::Cli;
use super::complete::VARIABLE;

/// End of the script for zsh, which calls the file itself for the first completion.
const AUTOLOADED: &[u8] = b"[ \"$funcstack[1]\" = _vhca ] && _clap_dynamic_completer_vhca \"$@\"\n";

#[derive(Debug, Subcommand)]
pub(crate) enum GenerateCommand {
    /// Write a man page for each command into a folder, which is created if it is missing.
    Man {
        /// Folder of the pages, such as /usr/local/share/man/man1.
        folder: PathBuf,
    },
    /// Print completions for a shell: vhca generate completions bash
    /// >/usr/share/bash-completion/completions/vhca.
    ///
    /// They ask vhca itself, and so the running service for its hosts and VFs.
    Completions {
        /// Shell to complete in.
        #[arg(value_enum)]
        shell: Shell,
    },
}

impl GenerateCommand {
    /// Generates the files.
    ///
    /// # Errors
    /// The folder cannot be created or written.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Man { folder } => man::write(Cli::command(), &folder)
                .with_context(|| format!("cannot write man pages to {}", folder.display())),
            Self::Completions { shell } => {
                let shells = Shells::builtins();
                let completer = shells.completer(&shell.to_string());
                let completer = completer.context("no completions for this shell")?;
                let mut script = Vec::new();
                completer.write_registration(VARIABLE, "vhca", "vhca", "vhca", &mut script)?;
                if shell == Shell::Zsh {
                    script.extend_from_slice(AUTOLOADED);
                }
                io::Write::write_all(&mut io::stdout(), &script).context("cannot print")
            }
        }
    }
}
