//! Reasons for the end of a session.

use thiserror::Error;

/// Reason for the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// The stream ended without a close record.
    #[error("the connection ended")]
    Ended,
    /// Nothing came for the time that the configuration allows.
    #[error("nothing came from the other end")]
    Timeout,
    /// The other end is not a trunk, or has another version.
    #[error("the other end speaks no version of this protocol that is known here")]
    Version,
    /// Both ends are of one site, whose GUIDs would be on the fabric twice.
    #[error("both ends have the same site name: start one of the services with another --site")]
    SameSite,
    /// A record that no end may send.
    #[error("the other end sent a record that makes no sense")]
    Garbage,
    /// Packets beyond the credits of their lane.
    #[error("the other end sent more than there was room for")]
    Overrun,
    /// The service at the other end stops.
    #[error("the other end stops")]
    Stopping,
    /// The port at the other end has a connection already.
    #[error("the port at the other end has another trunk: each trunk has a port of its own")]
    Busy,
    /// A reason of a later version.
    #[error("the other end closed the connection")]
    Other,
}

impl CloseReason {
    const NUMBERS: [(Self, u16); 8] = [
        (Self::Ended, 1),
        (Self::Timeout, 2),
        (Self::Version, 3),
        (Self::SameSite, 4),
        (Self::Garbage, 5),
        (Self::Overrun, 6),
        (Self::Stopping, 7),
        (Self::Busy, 8),
    ];

    pub(crate) fn number(self) -> u16 {
        let found = Self::NUMBERS.iter().find(|(reason, _)| *reason == self);
        found.map_or(0, |(_, number)| *number)
    }

    pub(crate) fn from_number(number: u16) -> Self {
        let found = Self::NUMBERS.iter().find(|(_, known)| *known == number);
        found.map_or(Self::Other, |(reason, _)| *reason)
    }
}
