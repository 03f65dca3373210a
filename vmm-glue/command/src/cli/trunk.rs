//! Keys of trunks.

use std::path::PathBuf;

use clap::Subcommand;
use vhca_trunk::{PublicKey, keygen, public_key};

#[derive(Debug, Subcommand)]
pub(crate) enum TrunkCommand {
    /// Make a private key for trunks with tls: addresses, and print its public key, a line for the peers of the other ends.
    Keygen {
        /// The file of the private key, which must not exist.
        file: PathBuf,
    },
    /// Print the public key of a private key.
    Public {
        /// The file of the private key.
        file: PathBuf,
    },
}

impl TrunkCommand {
    /// Returns the public key that is to be printed.
    pub(crate) fn run(&self) -> anyhow::Result<PublicKey> {
        match self {
            Self::Keygen { file } => Ok(keygen(file)?),
            Self::Public { file } => Ok(public_key(file)?),
        }
    }
}
