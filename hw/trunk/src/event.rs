//! Events of a session.

use crate::close::CloseReason;
use crate::hello::Hello;

/// An event of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// Both hellos are right.
    Opened(Hello),
    /// The port at the other end was enabled, or disabled.
    PeerPort {
        /// `true` if it is enabled.
        enabled: bool,
    },
    /// The session is over. It is the last event.
    Closed(CloseReason),
}
