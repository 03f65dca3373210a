//! An emulated InfiniBand fabric.
//!
//! [`Fabric`] holds nodes and the links between them and moves packets: real ones, from LRH to
//! VCRC, through switches that forward by the tables that a subnet manager writes.
//!
//! * [`Node`] and [`PhysicalPort`]: the identity and the state of a channel adapter or a switch,
//!   worked on by the agents in [`sma`] and [`pma`].
//! * [`EndNode`]: the device behind a node's ports, as the fabric uses it. [`ChannelAdapter`]: one that the fabric makes.
//! * [`Fabric::add_gateway`]: the far end of a link that leaves the fabric. [`Crossing`]: a packet or a run that does.
//! * [`Topology`]: a plan of nodes and links, of a well-known shape or from a [file](topology_file).
//! * [`Frame`]: a packet. [`PacketRun`]: consecutive packets of one message.
//! * [`FaultPlan`]: faults of a link; [`TapPoint`]: where packets are watched.
//!
//! Each lane of a link has places in place of credits: packets for a full lane wait in the channel adapter, or in the switch,
//! where they keep their places on the link by which they came.
//!
//! Not emulated: arbitration between lanes, random forwarding tables, routers, congestion control.
#![forbid(unsafe_code)]

mod config;
mod description;
mod drops;
mod fabric;
mod frame;
mod gateway;
mod lanes;
mod link;
mod node;
mod pace;
pub mod pma;
mod port;
mod run;
pub mod sma;
mod smi;
mod source;
mod switch;
mod tap;
mod topology;
pub mod topology_file;
mod trap;

pub use config::{HcaConfig, PortConfig, SwitchConfig};
pub use drops::{DropCounters, DropReason, Dropped};
pub use fabric::{Fabric, FabricError, LinkTrouble, NodeId, Travelling};
pub use frame::{Frame, FrameWriter};
pub use gateway::{Crossing, MAX_GATEWAY_RUN};
pub use lanes::Lanes;
pub use link::{
    Endpoint, Fault, FaultCounters, FaultPlan, FaultRule, LinkConfig, LinkId, LinkState,
    PacketFilter, When,
};
pub use node::{ChannelAdapter, EndNode, Node, NodeKind};
pub use pace::Pace;
pub use pma::PortCounters;
pub use port::PhysicalPort;
pub use run::{PacketRun, PacketTemplate, RunHead};
pub use source::PacketSource;
pub use switch::Port0Mad;
pub use tap::{TapId, TapPoint, Tapped};
pub use topology::{Built, PlannedNode, PlannedPort, TooManyNodes, Topology};
pub use topology_file::{
    MAX_TOPOLOGY_NODES, MAX_TOPOLOGY_PORTS, SourceText, TopologyError, TopologyFile,
    TopologyProblem,
};
pub use trap::{BadKey, WrongKey};
