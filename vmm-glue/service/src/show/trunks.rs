//! Trunks to the fabrics of other services.

use emulated_hca::Endpoint;
use ib_trunk::{Hello, Statistics};
use vhca_control::table::{Cell, Column, column};

use super::table::Row;

/// A trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrunkRow {
    /// The port at this end.
    pub near: Endpoint,
    /// The port, as `NODE/PORT`.
    pub port: String,
    /// The way to the other end, as the option has it.
    pub way: String,
    /// The other end, or the reason for which the trunk is down.
    pub peer: Result<Hello, String>,
    /// `true` if the switch takes the other end for a host that is not trusted.
    pub is_guarded: bool,
    /// Counters since the trunk is up.
    pub statistics: Statistics,
}

impl TrunkRow {
    /// Returns the site at the other end, if the trunk is up.
    #[must_use]
    pub fn site(&self) -> Option<&str> {
        self.peer.as_ref().ok().map(|peer| peer.site.as_str())
    }
}

impl Row for TrunkRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("way").shrinks_to(24),
        column("site"),
        column("peer"),
        column("peer_guid"),
        column("peer_port"),
        column("round_trip_us"),
        column("sent_bytes"),
        column("received_bytes"),
        column("discarded"),
        column("reason").shrinks_to(24),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (peer, counted) = (self.peer.as_ref().ok(), &self.statistics);
        let trust = if self.is_guarded { "host" } else { "fabric" };
        vec![
            Cell::of(&self.port),
            Cell::of(&self.way),
            Cell::option(self.site(), Cell::of),
            Cell::of(trust),
            Cell::option(peer, |peer| Cell::of(peer.node_guid)),
            Cell::option(peer, |peer| Cell::Number(peer.port.into())),
            Cell::option(counted.round_trip, |time| {
                Cell::Number(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
            }),
            Cell::Number(counted.sent_bytes),
            Cell::Number(counted.received_bytes),
            Cell::Number(counted.discarded),
            Cell::option(self.peer.as_ref().err(), Cell::of),
        ]
    }

    fn has_problem(&self) -> bool {
        self.peer.is_err()
    }
}
