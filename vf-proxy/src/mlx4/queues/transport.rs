//! The transport of a queue pair.

/// The transport that carries a queue pair's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// Datagrams.
    Datagram,
    /// Datagrams to and from the other end of a tunnel.
    Tunnel,
    /// A reliable connection.
    Rc,
    /// An unreliable connection.
    Uc,
}

impl Transport {
    /// Returns `true` if the queue pair has a peer.
    pub(super) const fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc)
    }
}
