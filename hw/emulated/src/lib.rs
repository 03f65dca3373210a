//! Emulated channel adapters, as nodes of an emulated fabric.
//!
//! [`hca::Device`] is the channel adapter with its functions, the provider of [`hca_api::Hca`] and an [`EndNode`] of
//! [`ib_fabric`]. [`Fabric`] is a fabric of them, whose functions [`Adapters`] lends.
//!
//! ```
//! use emulated_hca::{Adapters, Fabric, HcaConfig, LinkConfig, SwitchConfig};
//! use hca_api::{FunctionId, Hca, PhysicalState, PortState};
//! use ib_vtime::Instant;
//! use ib_wire::{Guid, PortNum};
//!
//! let mut fabric = Fabric::new(7);
//! let host = fabric.add_hca(&HcaConfig::new(Guid::new(0x1000), "host"));
//! let switch = fabric.add_switch(&SwitchConfig::new(Guid::new(0x2000), "switch", 8));
//! fabric.connect(host.port(1), switch.port(1), LinkConfig::default())?;
//! while fabric.poll(Instant::ZERO) {}
//!
//! let mut pf = fabric.hca(host, FunctionId::PF).ok_or("no such adapter")?;
//! let port = pf.query_port(PortNum(1))?;
//! assert_eq!(port.physical_state, PhysicalState::LinkUp);
//! // The rest is up to a subnet manager.
//! assert_eq!(port.state, PortState::Init);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod adapters;
pub mod hca;

pub use adapters::{Adapters, Fabric};
pub use ib_fabric::{
    BadKey, Built, ChannelAdapter, DropCounters, DropReason, Dropped, EndNode, Endpoint,
    FabricError, Fault, FaultCounters, FaultPlan, FaultRule, Frame, FrameWriter, HcaConfig, Lanes,
    LinkConfig, LinkId, LinkState, LinkTrouble, MAX_TOPOLOGY_NODES, MAX_TOPOLOGY_PORTS, Node,
    NodeId, NodeKind, Pace, PacketFilter, PacketRun, PacketSource, PacketTemplate, PhysicalPort,
    PlannedNode, PlannedPort, Port0Mad, PortConfig, PortCounters, RunHead, SourceText,
    SwitchConfig, TapId, TapPoint, Tapped, TooManyNodes, Topology, TopologyError, TopologyFile,
    TopologyProblem, Travelling, When, WrongKey, pma, sma, topology_file,
};

#[cfg(test)]
mod tests;
