//! Real processes for end-to-end tests: a service with its sockets, an OpenSM, and whatever is run against them.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where its surroundings do"
)]

mod capture;
mod far_end;
mod lab;
pub mod linux_hca;
pub mod linux_pf;
mod machines;
mod memory_cgroup;
pub mod mpi;
mod process;

pub use capture::{Capture, Packets};
pub use far_end::far_end;
pub use lab::{Lab, OpenSm, PATIENCE, Shim, binary};
pub use machines::Machines;
pub use memory_cgroup::MemoryCgroup;
pub use process::{Process, wait_for};
