//! Trunks: cables between fabrics of different processes, over any ordered stream of bytes.
//!
//! A trunk joins two ports, each in a [`Fabric`](ib_fabric::Fabric) of its own. At each end a gateway is
//! plugged to the port, and a [`Session`] carries what arrives there to the other end as records:
//!
//! | kind | body |
//! | --- | --- |
//! | hello | the site of the sender, the GUIDs at its end, and what it supports |
//! | packet | a packet from LRH to ICRC |
//! | run | consecutive packets of one message, with one header and one payload of 64 KiB at most |
//! | credit | for each lane, the bytes of packets that may come in total |
//! | port | the state of the sender's port |
//! | ping, pong | a time of the sender of the ping |
//! | close | the reason |
//!
//! The link is lossless as a cable is: a packet of a data lane leaves when the other end has room for it on its lane, and waits in its
//! fabric until then, so that its sender waits. Packets on VL15 have no credits (IBA 7.9): they leave first, and are discarded beyond
//! [`MANAGEMENT_DEPTH`].
//!
//! Runs cross whole if both hellos say so; elsewhere the fabric cuts them into the packets that they stand for. Neither a packet nor a
//! run has its sender's queue pair with it: that of a packet of another process is not known.
//!
//! [`TrunkEnd`] joins a session to a gateway. Neither has a socket or a clock: the owner of the stream passes bytes in and out.
#![forbid(unsafe_code)]

mod close;
mod credit;
mod end;
mod event;
mod hello;
mod record;
mod run;
mod session;
mod statistics;

pub use close::CloseReason;
pub use credit::WINDOW;
pub use end::{TrunkEnd, TrunkState};
pub use event::SessionEvent;
pub use hello::{Hello, MAX_SITE, SiteName, SiteNameError};
pub use record::{MAX_BODY, MAX_RECORD, RecordSink};
pub use session::{MANAGEMENT_DEPTH, Session, SessionConfig};
pub use statistics::Statistics;

#[cfg(test)]
mod tests;
