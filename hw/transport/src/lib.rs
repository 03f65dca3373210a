//! The connected transports of InfiniBand, RC and UC, as machines without I/O.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod connection;
mod effects;
mod inbound;
mod psn;
mod request;
mod requester;
mod responder;
mod run;
mod timing;
mod transfer;
mod unreliable;

pub use connection::ReliableConnection;
pub use effects::*;
pub use psn::{MAX_UNACKNOWLEDGED, PsnOrder};
pub use request::*;
pub use requester::{Requester, RequesterConfig, RequesterState};
pub use responder::{RemoteRights, Responder, ResponderConfig, ResponderState};
pub use run::*;
pub use timing::*;
pub use transfer::{PacketHeaders, Transfer};
pub use unreliable::{UcReceiver, UcReceiverConfig, UcSender, UcSenderConfig, UcSenderState};
