//! The MAD agent and the connection manager that every InfiniBand host has.
//!
//! Everything here is sans-I/O: machines take the time and received MADs by method call and give
//! MADs and events to be pulled. They run on a real QP0 or QP1, or on a VF's proxy of one.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod address;
pub mod cm;
mod datagram_qp;
pub mod end_port;
pub mod mad_agent;
mod mad_qp;
mod message;
mod port_path;
mod queued_mads;
mod rmpp;
pub mod sa_client;
mod sma_client;
pub mod smi;

pub use address::{MadAddress, Peer};
pub use datagram_qp::{Datagram, DatagramQp, DatagramQpSpec, Received};
pub use end_port::{BoundAgent, EndPort, EndPortConfig, EndPortError, EndPortEvent, LinkCounters};
pub use mad_agent::{
    AgentEvent, AgentId, Disposition, DropReason, MadAgent, MadAgentConfig, MadCounters, MadSizes,
    MethodSet, Oui, RAW_TID, RegisterError, Registration, RequestId, RetryPolicy, RmppConfig,
    SendError, TransferError, TransferId, Transmit,
};
pub use mad_qp::{MadQp, MadTransport};
pub use message::{Message, segment_layout};
pub use port_path::{PathError, PortPath, group_destination};
pub use queued_mads::QueuedMads;
pub use sa_client::{SaAnswer, SaClient, SaError, SaEvent, SaRequest};
pub use sma_client::{PortView, SmaClient, SmaError};
