//! Arguments of the lab.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use vhca::lab::{GuestVf, Manager, Options, Tie, default_cache};

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
    /// The fabric; see `vhca serve --help`.
    #[arg(long, default_value = "two-switch")]
    topology: String,
    /// Where tests/guest/prepare.sh has put the guests. [default: $VHCA_GUEST_CACHE, or vhca-guest in
    /// the folder of the user's caches]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl LabArgs {
    /// What they say.
    pub(crate) fn options(&self) -> Options {
        Options {
            guests: self.guests.clone(),
            kernel: self.kernel.clone(),
            manager: self.sm,
            topology: self.topology.clone(),
            cache: self.cache.clone().unwrap_or_else(default_cache),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// The console, as `vhca lab` tells it.
    pub(crate) socket: PathBuf,
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
