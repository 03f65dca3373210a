//! Arguments of the lab.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use vhca_control::OfferedVf;
use vhca_control::protocol::Request;

use super::number::number;
use super::serve::OwnSocketArgs;
use super::words::{RIGHTS, words};
use super::{ServerArgs, complete};
use crate::lab::{GuestVf, Manager, Options, Tie, console_of, default_cache};

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// The VFs that get a guest each; can be given more than once. H1-1/1,H1-1/2 are two of one host.
    #[arg(long = "guest", value_name = "HOST/N", value_delimiter = ',', default_values = ["H1-1/1", "H2-1/1"])]
    guests: Vec<GuestVf>,
    /// The guests' kernel: 6.1, 6.12, cloud, or another that tests/guest/prepare.sh was asked for.
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Who manages the subnet.
    #[arg(long, value_enum, default_value_t)]
    sm: Manager,
    /// The fabric; see `vhca serve --help`. [default: two-switch, or that of --config]
    #[arg(long)]
    topology: Option<String>,
    /// Take options of the service from this TOML file; flags come first.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// VFs of each shared adapter, 254 at most. [default: enough for the guests, or those of --config]
    #[arg(long, value_parser = number::<u16>(1..=254))]
    vfs: Option<u16>,
    /// Rights of every VF beyond the ordinary.
    #[arg(long, value_name = "RIGHT", value_parser = words::<String>(RIGHTS), value_delimiter = ',')]
    rights: Vec<String>,
    /// Where tests/guest/prepare.sh has put the guests. [default: $VHCA_GUEST_CACHE, or vhca-guest in
    /// the folder of the user's caches]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    own: OwnSocketArgs,
}

impl LabArgs {
    /// What they say.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        Ok(Options {
            guests: self.guests.clone(),
            kernel: self.kernel.clone(),
            manager: self.sm,
            topology: self.topology.clone(),
            config: self.config.clone(),
            vfs: self.vfs,
            rights: self.rights.clone(),
            cache: self.cache.clone().unwrap_or_else(default_cache),
            control: self.own.path()?,
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// The guest's VF, HOST/N, or the socket of its console.
    #[arg(add = complete::vf())]
    guest: String,
    #[command(flatten)]
    server: ServerArgs,
}

impl ConsoleArgs {
    /// Returns the socket of the console.
    pub(crate) fn socket(&self) -> anyhow::Result<PathBuf> {
        let socket = Path::new(&self.guest);
        if socket.exists() || self.guest.parse::<GuestVf>().is_err() {
            return Ok(socket.to_owned());
        }
        let request = Request::Offered {
            vf: self.guest.clone(),
            host: None,
        };
        let offered = self.server.connect()?.ask(&request)?;
        let offered: OfferedVf = serde_json::from_str(&offered)?;
        Ok(console_of(&offered.socket))
    }
}

#[derive(Debug, Args)]
pub(crate) struct TiedArgs {
    /// The process that must be the parent.
    #[arg(long, value_name = "PID")]
    parent: u32,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl TiedArgs {
    /// What they say.
    pub(crate) fn tie(self) -> Option<Tie> {
        let mut words = self.program.into_iter();
        Some(Tie {
            parent: self.parent,
            program: words.next()?,
            arguments: words.collect(),
        })
    }
}
