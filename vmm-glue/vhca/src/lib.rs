//! Virtual InfiniBand HCAs for any VMM: what a VMM links.
//!
//! * [`world`] puts a fabric, the software of its hosts and a subnet manager together, and drives them in virtual time.
//! * [`device`] has the PCI functions of VFs for the threads of a VMM: accesses, interrupts, doorbells. `kvm` has the latter
//!   two for KVM (feature `kvm`).
//! * `remote` (feature `remote`) makes such a device of a VF that a running service serves.
//! * [`Runner`] drives sans-I/O machines by the wall clock in an event loop, with the file descriptors that they
//!   [`watch`].
//! * `trunk` has the cables that join a world and the fabrics of others: [`World::add_trunk`](world::World) (feature `trunk`).
//! * [`GuestRam`] is the guest memory of a VMM that is built on vm-memory, as a VF reaches it.
//! * [`DropLog`] turns what a PF dropped into log lines, a few for each VF and reason.
//!
//! `world`, [`Runner`], [`DropLog`] and [`emulated`] are behind the feature `world`, which is on by default. A VMM that has the VFs of a
//! service links neither: `default-features = false, features = ["remote"]`.
//!
//! A VMM depends on this crate alone: [`emulated`] makes a world with one VF by one call, and re-exports the
//! types that a world takes and returns. The example `embed` has one VF with guest memory and interrupts; in
//! `rdma_write` and `key_value` programs hold VFs and reach each other's memory.

#![forbid(unsafe_code)]

#[cfg(feature = "world")]
mod driven;
#[cfg(feature = "world")]
mod drop_log;
#[cfg(feature = "world")]
pub mod emulated;
#[cfg(feature = "world")]
mod fair_queue;
#[cfg(feature = "world")]
mod log_limit;
#[cfg(feature = "world")]
mod real_time;
#[cfg(feature = "world")]
pub mod watch;
#[cfg(feature = "world")]
pub mod world;

#[cfg(feature = "world")]
pub use driven::Driven;
#[cfg(feature = "world")]
pub use drop_log::{DropLine, DropLog};
#[cfg(feature = "world")]
pub use fair_queue::FairQueue;
#[cfg(feature = "world")]
pub use log_limit::{LogLimit, Suppressed};
#[cfg(feature = "world")]
pub use real_time::{LoopError, RunEnd, Runner, StopHandle};
pub use vhca_device as device;
#[cfg(feature = "kvm")]
pub use vhca_device::kvm;
pub use vhca_device::{GuestRam, Slice};
#[cfg(feature = "remote")]
pub use vhca_remote as remote;
#[cfg(feature = "trunk")]
pub use vhca_trunk as trunk;

/// A VMM runs a world on a thread of its own.
#[cfg(feature = "world")]
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<world::World>();
};
