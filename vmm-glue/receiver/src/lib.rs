//! Takes the descriptors that clients of a service pass, in a process of its own: the *receiver*.
//!
//! A `close(2)` may take as long as the owner of the file likes: a TCP socket with SO_LINGER and unread data waits for its
//! peer, a file of FUSE for its server, even where another reference to it exists. The kernel installs a
//! received descriptor before the process can look at it, and closes one without room in the context of the thread that reads the
//! message, closes the socket last, or exits. So any client can block a
//! service of one thread. Here
//!
//! * the service peeks at each message without room for descriptors, which installs and closes none, and reads a message
//!   that has none itself;
//! * a message with descriptors is read by the receiver, which has a duplicate of each client's socket. It passes the
//!   descriptors on that the protocol takes ([`Kind`]), and closes the others. It keeps a duplicate of each passed descriptor until
//!   the service has closed its own ([`Lease`]), so that the service never closes a file last;
//! * the service never closes a client's socket or a listener last: the receiver has duplicates of them.
//!
//! The receiver serves clients on threads, each client on at most one at a time. A user with
//! [`STUCK_MAX`] threads that wait is not served until one of them goes on.

mod activity;
mod kind;
mod message;
mod process;
mod seccomp;
mod service;
mod wake;

pub use activity::{Activity, Work, during, published};
pub use kind::Kind;
pub use process::{STUCK_MAX, run};
pub use service::{ClientSocket, Lease, PassedFd, Received, Receiver};
pub use wake::Wakeups;

/// Name of the hidden command that runs the process.
pub const COMMAND: &str = "receiver";

/// Descriptors that one message can have (`SCM_MAX_FD` of `net/scm.h`).
const SCM_MAX_FD: usize = 253;

/// Bytes of a message that the receiver reads at most.
const MESSAGE_MAX: usize = 128 << 10;
