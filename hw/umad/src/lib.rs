//! Linux' umad without Linux: what `/dev/infiniband/umadN`, `issmN` and the files of
//! `/sys/class/infiniband` do, as machines on [`ib_endpoint::MadAgent`]s, and the protocol by which
//! a preload library in a program reaches them.
//!
//! Everything here is sans-I/O. A [`UmadServer`] is given datagrams of clients and an [`Adapters`]
//! to act on, and gives datagrams to send. Behaviour follows the kernel's `user_mad.c`; where it
//! does not, the place says so.
#![forbid(unsafe_code)]

mod abi;
mod adapters;
mod file;
mod protocol;
mod rules;
mod server;
pub mod sysfs;
#[cfg(test)]
mod testing;
mod tree;

pub use abi::{
    HEADER_SIZE, MAX_AGENTS, OLD_HEADER_SIZE, RegisterRequest, RegisterRequest2, UmadHeader, ioctl,
};
pub use adapters::{AdapterId, Adapters, PortId, Verbs, VerbsId};
pub use file::{FileCounters, FileLimits, Packet, UmadFile};
pub use linux_abi::Errno;
pub use protocol::{
    Call, CallReply, Delivery, Frame, FrameKind, HELLO_REPLY_SIZE, Hello, HelloReply, INLINE_MAX,
    LONG_HEAD, MAX_DATAGRAM, MAX_MESSAGE, PART_MAX, Purpose, frames,
};
pub use rules::{AgentRules, FileRules, MAD_HEADER_SIZE, RequestKey};
pub use server::{Answer, ServerLimits, SessionId, TreeRequest, UmadServer, UserId, Verdict};
pub use tree::TreeId;
