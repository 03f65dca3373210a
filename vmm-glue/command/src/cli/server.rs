//! Arguments of all commands that ask a running service.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use vhca_control::{Places, Remote, default_places};

use super::number::number;

/// Where the service is, and how long it may take to start.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The control socket of the service; by default $XDG_RUNTIME_DIR/vhca/control.sock or
    /// /tmp/vhca-UID/control.sock, or else that of the packaged service, /run/vhca/control.sock.
    #[arg(long, value_name = "PATH", env = "VHCA_CONTROL", global = true)]
    pub(super) control: Option<PathBuf>,
    /// Wait so many seconds for a service that starts; 0 for not at all.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = number::<u32>(0..=86_400), global = true)]
    pub(super) wait: u32,
}

impl ServerArgs {
    /// Returns the places of control sockets.
    pub(crate) fn places(&self) -> anyhow::Result<Places> {
        Ok(Places {
            paths: match &self.control {
                Some(path) => vec![path.clone()],
                None => default_places()?,
            },
            wait: Duration::from_secs(self.wait.into()),
        })
    }

    /// Connects to the service.
    pub(crate) fn connect(&self) -> anyhow::Result<Remote> {
        Ok(Remote::connect_to(&self.places()?, say)?)
    }
}

/// Prints a line about the command's progress to stderr.
pub(crate) fn say(line: &str) {
    // Without stderr there is nobody to be told.
    let _ = writeln!(io::stderr(), "vhca: {line}");
}
