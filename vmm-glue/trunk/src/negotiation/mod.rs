//! The set-up of a trunk over queues by vhost-user, which blocks, and so runs in the process beside the service.
//!
//! The front end connects, and owns memory, queues and eventfds. It offers `VIRTIO_F_VERSION_1` and `VIRTIO_RING_F_EVENT_IDX`, reads the
//! [version](VERSION) of the trunk from the configuration, and passes one region of memory and four queues, which it enables last.
//! From then on the connection says nothing: that it hangs up ends the trunk at either end. There is no log, no in-flight memory and no
//! migration: a new connection is a new session.

mod back_end;
mod front_end;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use thiserror::Error;
use vhost::vhost_user::VhostUserProtocolFeatures;

use crate::ring::memory::MemoryError;

pub(crate) use back_end::accept;
pub use front_end::connect;

/// Version of records and queues: the whole configuration of the device, two little-endian bytes.
const VERSION: u16 = 1;

/// `VIRTIO_F_VERSION_1`, `VIRTIO_RING_F_EVENT_IDX` and `VHOST_USER_F_PROTOCOL_FEATURES`.
const FEATURES: u64 = 1 << 32 | 1 << 29 | 1 << 30;

/// Features of the protocol.
const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::CONFIG);

/// Time that all of a set-up may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Reason for which there is no trunk over queues.
#[derive(Debug, Error)]
pub enum NegotiationError {
    /// The other end says something else, or nothing.
    #[error("vhost-user: {0}")]
    Protocol(String),
    /// The other end has another version.
    #[error(
        "the other end has version {0} of trunks over queues, and this one has version {VERSION}"
    )]
    Version(u16),
    /// The memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// An error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<vhost::Error> for NegotiationError {
    fn from(error: vhost::Error) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl From<vhost::vhost_user::Error> for NegotiationError {
    fn from(error: vhost::vhost_user::Error) -> Self {
        Self::Protocol(error.to_string())
    }
}
