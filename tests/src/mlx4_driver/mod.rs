//! Guests with the driver of the crate `mlx4-driver`, over a guest memory of their own.
//!
//! [`Bench`] is a bus with one function alone; [`Lab`] has guests on hosts with PF contexts, a fabric and a subnet manager;
//! [`VmmBus`] leads to a function of a running service, by vfio-user and shared memory.

mod bench;
pub mod hostile;
mod lab;
mod memory;
pub mod served;
mod shared;
mod vmm;

pub use ::mlx4_driver::{
    BufferKind, Bus, Command, Connection, ConnectionSpec, Core, CqSpec, DatagramAttributes,
    Destination, Driver, DriverError, Event, Heard, Input, Operation, Output, Owner, PAGE, Payload,
    Peer, QpSpec, QpUse, Region, Remote, Rights, SendWork, Sge, SrqSpec, Talker, TalkerSpec,
    WorkCompletion, function_level_reset, interrupt_vectors, measure_bar, place_bar,
};
pub use bench::{Bench, FIRST_LID, NODE_GUID, QUOTA};
pub use lab::{Guest, GuestId, Lab, LabPlan};
pub use memory::{GuestMemory, StrayAccesses};
pub use vmm::VmmBus;
