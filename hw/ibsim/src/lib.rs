//! The protocol of the ibsim fabric simulator.
//!
//! Programs that manage or query InfiniBand fabrics through `libibumad` can be pointed at a simulator
//! by preloading `libumad2sim`, which speaks this protocol instead of using `/dev/infiniband/umad*`.
//!
//! * [`codec`]: the two datagrams, and the names of the sockets.
//! * [`server`]: lets such programs use the ports of a fabric, which it reaches by [`Ports`].
//! * [`uplink`]: puts an emulated adapter onto the fabric of somebody else's simulator.
#![forbid(unsafe_code)]

pub mod codec;
mod ports;
pub mod server;
pub mod uplink;

pub use ports::{Asker, Ports, Smi};
