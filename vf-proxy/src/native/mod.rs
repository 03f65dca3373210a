//! A VF that a program holds itself.
//!
//! A [`VirtualHca`] is opened on a VF's function. Each of its ports is a [`VfPort`]: the SA client, the
//! CM and the MAD agents of an [`EndPort`](ib_endpoint::EndPort) on the port's proxy QPs, the VF's
//! own datagram queue pairs with the multicast groups that they listen to, and its connected queue pairs
//! with the memory regions that they and their peers read and write.
//!
//! Connected queue pairs have what kernel consumers expect of an RDMA core:
//!
//! * [`Transfer`] reads or writes a scatter list of any length and layout in the fewest requests, by keys or by registrations from a
//!   [`RegistrationPool`] (`rdma_rw_ctx_*`, `ib_mr_pool_*`);
//! * [`ReceiveRing`] keeps a receive queue full;
//! * [`ConnectedQp::drain_send`] and [`ConnectedQp::drain_receive`] end a connection with all requests completed (`ib_drain_*`);
//! * [`VfPort::create_shared_completions`] makes a completion queue of many queue pairs, polled with a budget (`ib_cq_pool_get`);
//! * [`ConnectedQp::query`] returns the attributes of a queue pair as they stand.
//!
//! The example `block_target` of the crate `vhca` uses all of them.
//!
//! Like an `EndPort` it is sans-I/O: the owner keeps the function and lends it to each call, passes on
//! the function's events with [`VirtualHca::handle_hca_event`], calls [`VirtualHca::poll`] then and when
//! [`VirtualHca::poll_timeout`] says so, and pulls what happened from [`VirtualHca::poll_event`].
//!
//! ```
//! use hca_api::{Hca, HcaError};
//! use ib_vtime::Instant;
//! use ib_wire::sa::JoinState;
//! use ib_wire::{Gid, PKey, PortNum, QKey};
//! use vf_proxy::native::{
//!     GroupEvent, GroupSpec, Partition, UdQpSpec, VfPortEvent, VirtualHca, VirtualHcaConfig,
//!     VirtualHcaEvent,
//! };
//!
//! const KEY: QKey = QKey::new(0x1234);
//!
//! /// Joins a group, says hello to it, and leaves with everything given back.
//! fn say_hello(now: Instant, vf: &mut dyn Hca, group: Gid) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut hca = VirtualHca::open(now, vf, VirtualHcaConfig::new(7))?;
//!     let port = hca.port_mut(PortNum(1)).ok_or(HcaError::InvalidPort)?;
//!     let qp = port.open_qp(vf, &UdQpSpec::new(Partition::Key(PKey::DEFAULT_FULL), KEY))?;
//!     let spec = GroupSpec::create(group, JoinState::FULL_MEMBER, PKey::DEFAULT_FULL, KEY);
//!     let group = port.join(now, spec)?;
//!     port.attach(vf, group, qp)?;
//!     // A real program waits here for events of the function, and until `poll_timeout`.
//!     while let Some(event) = vf.poll_event() {
//!         hca.handle_hca_event(now, vf, &event)?;
//!     }
//!     while hca.poll(now, vf) {}
//!     while let Some(event) = hca.poll_event() {
//!         if let VirtualHcaEvent::Port { port, event } = event
//!             && let VfPortEvent::Group { group, event: GroupEvent::Joined(_) } = event
//!             && let Some(port) = hca.port_mut(port)
//!         {
//!             port.send_to_group(vf, qp, group, b"hello")?;
//!         }
//!     }
//!     hca.close(now, vf);
//!     Ok(())
//! }
//! ```

mod config;
mod connected_qp;
mod connections;
mod event;
mod fast_region;
mod group;
mod memory_region;
mod memory_window;
mod port;
mod port_connections;
mod port_groups;
mod proxy_qp;
mod receive_ring;
mod registration_pool;
mod shared_completions;
mod transfer;
mod ud_qp;
mod virtual_hca;

pub use config::VirtualHcaConfig;
pub use connected_qp::{ConnectedQp, ConnectedQpId, ConnectedQpSpec, Peer};
pub use event::{GroupEvent, ResolveError, VfPortError, VfPortEvent, VirtualHcaEvent};
pub use fast_region::FastRegion;
pub use group::{GroupId, GroupSpec};
pub use memory_region::MemoryRegion;
pub use memory_window::MemoryWindow;
pub use port::VfPort;
pub use proxy_qp::ProxyQp;
pub use receive_ring::{ReceiveRing, Received};
pub use registration_pool::{PooledRegion, RegistrationPool};
pub use shared_completions::SharedCompletionsId;
pub use transfer::{LocalMemory, Transfer, TransferError, TransferLimits, TransferState};
pub use ud_qp::{Partition, UdQp, UdQpId, UdQpSpec};
pub use virtual_hca::VirtualHca;

#[cfg(test)]
mod tests;
