//! Forwarding tables from the shape of the fabric: pure functions over the graph of switches.

mod graph;
mod multicast;
mod unicast;

pub use graph::{Hop, SwitchGraph, SwitchIndex};
pub use multicast::{GroupMember, MulticastTree, multicast_tree};
pub use unicast::{Destination, Lft, NO_PATH, unicast_tables};
