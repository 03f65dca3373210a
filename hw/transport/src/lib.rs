//! The connected transports of InfiniBand, RC and UC (IBA chapter 9), as machines without I/O.
//!
//! A machine takes packets and the time by method call, acts through the [`Effects`] that it is lent, and is polled
//! for what leaves. It holds no memory, no frame, no clock and no lock; the same inputs give the same outputs.
//!
//! * [`ReliableConnection`] is a [`Requester`], which sends requests, takes responses and sends again what was lost,
//!   and a [`Responder`], which executes requests and answers them.
//! * [`UnreliableConnection`] is a [`UcSender`] and a [`UcReceiver`].
//! * [`Run`] and [`Response`] are consecutive packets of one message, one at least; a [`Transfer`] is either, and maps
//!   to opcodes and extended headers. Packets of a link are runs of one. Queue pairs that reach each other without a
//!   link hand over whole runs, and every result is the same.
//!
//! The rules that the machines follow are listed in `RULES.md` beside the crate's manifest.
//!
//! # Contract
//!
//! The caller checks what concerns the queue pair before a packet comes here: checksums, number, state, service, P_Key
//! and address. After a call it polls what the call's documentation names, and it asks whether the connection
//! failed: the queue pair is in ERR then, and the rest of its receive queue flushes.
//!
//! Whatever a peer sends is legal input: it ends in a response, a completion, an event or a silent drop, never in a
//! panic. What a peer can make a machine keep is bounded by the depth of the responder.
//!
//! ```
//! use ib_transport::{AckTimeout, PathMtu, PsnOrder, RnrTimer};
//! use ib_vtime::Duration;
//! use ib_wire::{Mtu, Psn};
//!
//! let pmtu = PathMtu::new(Mtu::MTU_1024).ok_or("an unknown code")?;
//! assert_eq!(pmtu.packets(4097), 5);
//! let newest = Psn::from_low_bits(0xff_ffff).wrapping_add(5);
//! assert_eq!(newest.since(Psn::from_low_bits(0xff_ffff)), 5);
//! assert_eq!(RnrTimer::from_low_bits(12).duration(), Duration::from_micros(640));
//! assert_eq!(AckTimeout::from_low_bits(0).duration(), None);
//! # Ok::<(), &str>(())
//! ```
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

pub use connection::{ReliableConnection, UnreliableConnection};
pub use effects::{
    Effects, Event, LocalFault, LocalRight, ReceiveFault, Received, ReceivedKind, RemoteFault,
    RemoteRight, Taken,
};
pub use inbound::ResponderState;
pub use psn::{MAX_UNACKNOWLEDGED, PsnOrder};
pub use request::{
    AtomicOp, Flush, MAX_MESSAGE, Operation, RemoteRange, RemoteStart, Request, Status,
};
pub use requester::{Requester, RequesterConfig, RequesterState};
pub use responder::{RemoteRights, Responder, ResponderConfig};
pub use run::{Answer, Ending, Response, Run, RunOperation};
pub use timing::{AckTimeout, PathMtu, RetryCount, RnrRetryCount, RnrTimer};
pub use transfer::{PacketHeaders, Transfer};
pub use unreliable::{UcReceiver, UcReceiverConfig, UcSender, UcSenderConfig, UcSenderState};
