//! Options of ids.

/// Options of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// The port may be that of another id that allows it, too, until one of them listens.
    pub(super) reuses_address: bool,
    /// The port is taken for its family only; by default, for IPv4 only.
    pub(super) family_only: Option<bool>,
    /// Service class for which paths are asked.
    pub(super) service_type: u8,
    /// ACK timeout of the queue pair, in place of the path's.
    pub(super) ack_timeout: Option<u8>,
}
