//! The interface that a ConnectX-3 virtual function and its driver share, as byte layouts.
//!
//! Both sides compile against this crate: the device that a guest sees, and the driver that tests
//! drive it with. Nothing here behaves; values that a device chooses (how many queue pairs it has)
//! are the device's.
//!
//! * **A layout is a `repr(C)` struct of unaligned big-endian fields**, each with its offset beside
//!   it, which the compiler checks. Reserved bytes are named fields, so decoding and encoding any
//!   bytes is the identity.
//! * **Enumerations are open**: an unknown value is a value, not an error.
//! * **Bits count from the least significant one** of the big-endian word, as the driver's headers do.
//!
//! Source: the Linux mlx4 drivers (`mlx4_core`, `mlx4_ib`) and rdma-core's `libmlx4`, read as the
//! definition of the interface. Identifiers of theirs in the docs are witnesses.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

#[macro_use]
mod layout;

pub mod bar;
pub mod comm;
pub mod cq;
pub mod cqe;
pub mod eq;
pub mod eqe;
pub mod mad_ifc;
mod mailbox;
pub mod mpt;
pub mod mtt;
mod number;
mod opcode;
pub mod pci;
pub mod qp;
pub mod query;
pub mod receive;
pub mod resource;
pub mod set_port;
pub mod srq;
mod status;
mod vhcr;
pub mod wqe;

pub use mailbox::{MAILBOX_SIZE, Mailbox, MailboxLayout};
pub use number::{
    CounterIndex, Cqn, DoorbellRecordAddr, Eqn, LogPageSize, MptIndex, MttIndex, Pdn, Srqn, Uar,
};
pub use opcode::Opcode;
pub use status::Status;
pub use vhcr::{TOKEN, VHCR_SIZE, Vhcr};
