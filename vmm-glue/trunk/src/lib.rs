//! Carriers of trunks between emulated fabrics: Unix, TCP and TLS connections that never block, and the process that makes them.
//!
//! [`TrunkListener`] accepts connections, and [`Door`] makes them; a [`Carrier`] has one, and carries the bytes of a
//! [`Session`](ib_trunk::Session) over it.
#![forbid(unsafe_code)]

mod address;
mod carrier;
mod door;
mod listener;
#[cfg(feature = "tls")]
mod tls;

pub use address::{AddressError, TrunkAddress};
pub use carrier::{Carrier, Security};
pub use door::{COMMAND, Door, DoorAnswer, run};
pub use listener::TrunkListener;
#[cfg(feature = "tls")]
pub use tls::{
    CredentialFiles, CredentialsError, KeygenError, PublicKey, PublicKeyError, TlsEnd, keygen,
    public_key,
};

#[cfg(test)]
mod tests;
