//! Conversations between connection managers, over any channel, and the judgement of how they
//! ended.
//!
//! A [`Plan`] says what the two users of a conversation do and when. [`Driver`] lets many plans run
//! at once between nodes that each have a [`Cm`](ib_endpoint::cm::Cm), in virtual time, over a
//! [`Channel`]. At the end [`Driver::finish`] gives every way in which a conversation went wrong: a
//! message came to somebody else, the sides disagree and no timeout explains it, a timeout came at a
//! time that the message fields do not explain, or something was left over.

mod alarms;
mod driver;
mod ending;
mod plan;
mod side;
mod users;

use ib_endpoint::{MadAddress, Transmit};
use ib_vtime::Instant;
use ib_wire::mad::Mad;
use ib_wire::{Gid, Guid, Lid};

pub use driver::{Driver, Totals};
pub use ending::Ending;
pub use plan::{Goodbye, Kind, Plan, Reply};

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// GUID of the node's CA.
    pub ca_guid: Guid,
    /// LID of its port.
    pub lid: Lid,
    /// GID of its port.
    pub gid: Gid,
}

/// A MAD that arrived at a node.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The node, by its place in the list that the driver was given.
    pub node: usize,
    /// Where it came from.
    pub from: MadAddress,
    /// The MAD.
    pub mad: Mad,
}

/// What carries MADs between the nodes, in virtual time.
pub trait Channel {
    /// The address by which a conversation begins.
    fn address(&self, _number: usize, _kind: Kind, to: &NodeAddress) -> MadAddress {
        MadAddress::gsi(to.lid)
    }

    /// Takes a MAD that `node` sends at `now`.
    fn send(&mut self, now: Instant, node: usize, transmit: &Transmit);

    /// When the channel has to run next; `None` while nothing is under way.
    fn next_time(&self) -> Option<Instant>;

    /// A MAD that has arrived by `now`. Called until it gives `None`.
    fn receive(&mut self, now: Instant) -> Option<Arrival>;
}
