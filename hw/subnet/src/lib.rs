//! An embedded subnet manager and subnet administrator.
//!
//! [`SubnetManager`] runs on a port of an HCA. It is made of two machines that know no HCA:
//! [`sm::Sm`] discovers and configures the subnet with SMPs, and [`sa::Sa`] answers and tells its
//! clients. Both do what OpenSM does where a node, a client or another manager can tell the
//! difference. [`routing`] and [`LidManager`] are the pure parts.
//!
//! Everything is sans-I/O and deterministic: the same seed and the same inputs give the same
//! packets.
#![forbid(unsafe_code)]

mod config;
mod lid;
mod manager;
mod partition;
mod rate;
pub mod routing;
pub mod sa;
pub mod sm;
#[cfg(test)]
mod testing;
pub mod topology;

pub use config::SubnetConfig;
pub use lid::{LidManager, LidRange, LidRequest};
pub use manager::{ManagerStats, OpenError, SubnetManager};
pub use partition::{IpoibBroadcast, Membership, Partition, PartitionEnforcement, Partitions};
