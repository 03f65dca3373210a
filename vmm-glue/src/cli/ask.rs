//! Arguments of the commands that ask a running service.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use vhca::serve::control::default_path;
use vhca::show::Subject;

/// Where the service is.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The control socket of the service; by default $XDG_RUNTIME_DIR/vhca/control.sock, or
    /// /tmp/vhca-UID/control.sock.
    #[arg(long, value_name = "PATH", env = "VHCA_CONTROL")]
    pub(crate) control: Option<PathBuf>,
}

impl ServerArgs {
    /// The control socket.
    pub(crate) fn control(&self) -> anyhow::Result<PathBuf> {
        match &self.control {
            Some(path) => Ok(path.clone()),
            None => {
                default_path().context("no place for a control socket; say where with --control")
            }
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// What to show.
    #[arg(value_enum)]
    pub(crate) subject: Subject,
    /// Of this host only.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PlainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
