//! An emulated InfiniBand fabric.
//!
//! * [`Node`] and [`PhysicalPort`]: the identity and the state of a channel adapter or a switch,
//!   worked on by the agents in [`sma`] and [`pma`].
//! * [`EndNode`]: what the fabric needs of a device behind its ports.
//! * [`Frame`]: a packet.
#![forbid(unsafe_code)]

mod config;
mod frame;
mod node;
pub mod pma;
mod port;
pub mod sma;
mod trap;

pub use config::{HcaConfig, PortConfig, SwitchConfig};
pub use frame::Frame;
pub use node::{EndNode, Node, NodeKind};
pub use pma::PortCounters;
pub use port::{CapabilityMask, ExtendedSpeed, LinkSpeed, LinkWidth, PhysicalPort};
pub use trap::{BadKey, WrongKey};
