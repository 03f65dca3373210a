//! Carriers of trunks between emulated fabrics: Unix, TCP and TLS connections and queues in shared memory, none of which
//! blocks, and the process that makes them.
//!
//! [`TrunkListener`] accepts connections, and [`Door`] makes them; a [`Carrier`] has one, and carries the bytes of a
//! [`Session`](ib_trunk::Session) over it. [`Trunks`] has all of these for the trunks of a fabric: it connects and listens, tries again,
//! and moves packets between the fabric and the other ends.
#![forbid(unsafe_code)]

mod address;
mod busy_poll;
mod carrier;
mod config;
mod descriptors;
mod door;
mod handshakes;
mod listener;
mod negotiation;
mod parts;
mod ring;
mod rings;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod trunk;
mod trunks;

pub use address::{AddressError, TrunkAddress};
pub use carrier::Carrier;
pub use config::{TrunkConfig, TrunkPeer, TrunkWay};
pub use door::{COMMAND, Connected, Door, DoorAnswer, run};
pub use listener::TrunkListener;
pub use negotiation::{NegotiationError, connect};
pub use parts::RingParts;
pub use ring::memory::MemoryError;
pub use ring::{RingError, Signals};
pub use rings::RingsError;
pub use stream::Security;
#[cfg(feature = "tls")]
pub use tls::{
    CredentialFiles, CredentialsError, KeygenError, PublicKey, PublicKeyError, TlsEnd, keygen,
    public_key,
};
pub use trunk::{Trunk, TrunkError};
pub use trunks::{TrunkEvent, TrunkId, Trunks};

#[cfg(test)]
mod tests;
