//! Virtual InfiniBand HCAs for any VMM: what a VMM links.
//!
//! * [`world`] puts a fabric, the software of its hosts and a subnet manager together, and drives them in virtual time.
//! * [`device`] has the PCI functions of VFs for the threads of a VMM: accesses, interrupts, doorbells. `kvm` has the latter
//!   two for KVM (feature `kvm`). They are a crate of their own, `vhca-device`, for a VMM whose adapter is elsewhere.
//! * [`Runner`] drives sans-I/O machines by the wall clock in an event loop, with the file descriptors that they
//!   [`watch`].
//! * `trunk` has the cables that join a world and the fabrics of others: [`World::add_trunk`](world::World) (feature `trunk`).
//! * [`GuestRam`] is the guest memory of a VMM that is built on vm-memory, as a VF reaches it.
//! * [`DropLog`] turns what a PF dropped into log lines, a few for each VF and reason.
//!
//! A VMM depends on this crate alone: [`emulated`] makes a world with one VF by one call, and re-exports the
//! types that a world takes and returns. The example `embed` has one VF with guest memory and interrupts; in
//! `rdma_write` and `key_value` programs hold VFs and reach each other's memory.

#![forbid(unsafe_code)]

mod driven;
mod drop_log;
pub mod emulated;
mod fair_queue;
mod log_limit;
mod real_time;
pub mod watch;
pub mod world;

pub use driven::Driven;
pub use drop_log::{DropLine, DropLog};
pub use fair_queue::FairQueue;
pub use log_limit::{LogLimit, Suppressed};
pub use real_time::{LoopError, RunEnd, Runner, StopHandle};
pub use vhca_device as device;
#[cfg(feature = "kvm")]
pub use vhca_device::kvm;
pub use vhca_device::{GuestRam, Slice};
#[cfg(feature = "trunk")]
pub use vhca_trunk as trunk;

/// A VMM runs a world on a thread of its own.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<world::World>();
};
