//! An embedded subnet manager and subnet administrator.
//!
//! [`sm::Sm`] discovers and configures a subnet with SMPs and answers like OpenSM where a node or
//! another manager can tell the difference. It is sans-I/O: SMPs go in and out by method call.
//! [`routing`] and [`LidManager`] are the pure parts of it.
#![forbid(unsafe_code)]

mod config;
mod lid;
mod partition;
mod rate;
pub mod routing;
pub mod sa;
pub mod sm;
pub mod topology;

pub use config::SubnetConfig;
pub use lid::{LidManager, LidRange, LidRequest};
pub use partition::{IpoibBroadcast, Membership, Partition, Partitions};
