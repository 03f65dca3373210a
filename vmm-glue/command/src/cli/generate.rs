//! Man pages and shell completions, made from the definitions of the arguments.

use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;

use super::Cli;

#[derive(Debug, Subcommand)]
pub(crate) enum GenerateCommand {
    /// Write a man page for each command into a folder, which is created if it is missing.
    Man {
        /// Folder of the pages, such as /usr/local/share/man/man1.
        folder: PathBuf,
    },
    /// Print completions for a shell: vhca generate completions bash
    /// >/usr/share/bash-completion/completions/vhca.
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
        let mut command = Cli::command();
        match self {
            Self::Man { folder } => fs::create_dir_all(&folder)
                .and_then(|()| clap_mangen::generate_to(command, &folder))
                .with_context(|| format!("cannot write man pages to {}", folder.display())),
            Self::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut command, "vhca", &mut script);
                io::Write::write_all(&mut io::stdout(), &script).context("cannot print")
            }
        }
    }
}
