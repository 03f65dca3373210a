//! The HCA as software sees it: the verbs-provider interface.
//!
//! This is the boundary that a driver of an adapter implements, and everything above it (endpoints,
//! the subnet manager, the PF context, a VF's personality) is written against: [`Hca`] is one
//! *function* of an adapter, [`FunctionManager`] is what its physical function can do besides.
//! The names and the rules are those of the verbs chapter (IBA volume 1, chapter 11); each item
//! cites its verb.
//!
//! # Shape
//!
//! * **Calls do not block and do not wait.** Sending queues work; results come as [`Completion`]s
//!   from [`Hca::poll_cq`] and as [`HcaEvent`]s from [`Hca::poll_event`]. One event queue per
//!   function announces completions and asynchronous events, so polling it drives everything.
//! * **Callers borrow the HCA for a call.** Machines keep handles, not references; whoever drives
//!   them passes `&mut dyn Hca`. No shared ownership, no locks.
//! * **Memory belongs to the function's [`AddressSpace`]**: the consumer's own heap, a guest's
//!   memory, or a process's. Work requests name it by address and local key; the consumer reaches
//!   its own buffers through [`Hca::dma_read`] and [`Hca::dma_write`].
//! * **The receive side can be pulled.** Real hardware reads a receive work request when a packet
//!   needs it, not when it was posted. A QP or SRQ whose receives live in guest memory is created
//!   with [`ReceiveMode::Pulled`]; others take [`Hca::post_recv`].
//! * **Numbers can be external.** The number by which a consumer knows its QP ([`QpNumbers`]) can
//!   differ from the number on the wire, as for special, proxy and tunnel QPs.
//!
//! # Who runs on it
//!
//! [`Consumer`] is anything that runs on a function, [`Adapter`] anything that lends functions.
//!
//! # Privileges
//!
//! A function has [`Privileges`]. Without them it can create no special QP, send nothing on VL15,
//! and set no controlled Q_Key; the provider checks, whatever the consumer says.
//!
//! # Errors
//!
//! [`HcaError`] is for the caller's own mistakes and for exhaustion. What the fabric or a guest's
//! memory does wrong is never an `Err`: it is a completion status, an event or a counter.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod address;
mod attributes;
mod completion;
mod consumer;
mod error;
mod event;
mod function;
mod handle;
mod lent;
mod memory;
mod provider;
mod queue_pair;
mod spaces;
mod work;

pub use address::{AddressVector, GlobalRoute, SourceAddress};
pub use attributes::{
    DeviceAttributes, DeviceCaps, DeviceModify, Limits, PhysicalState, PortAttributes, PortModify,
    PortState,
};
pub use completion::{ArmKind, Cause, Completion, CompletionFlags, CompletionOp, CompletionStatus};
pub use consumer::{Adapter, Consumer};
pub use error::{DmaFault, HcaError};
pub use event::{AsyncEvent, HcaEvent, PortChange};
pub use function::{
    FunctionAttributes, FunctionId, FunctionManager, FunctionSpec, Privileges, ResourceCounts,
    VirtualPort,
};
pub use handle::{
    AvHandle, CqHandle, LKey, MrHandle, MwHandle, PdHandle, QpHandle, RKey, SrqHandle,
};
pub use memory::{
    AccessFlags, AddressSpace, DmaBuffer, FileRun, HostMemory, MrKeys, MrKind, MrSpec, MwKeys,
    MwType, copy_through_buffer,
};
pub use provider::{Hca, LocalMad, MadView};
pub use queue_pair::{
    AlternatePath, MAX_FLUSHED, MigrationState, PulledReceives, QpAttributes, QpCaps, QpKind,
    QpModify, QpNumbers, QpSpec, QpState, ReceiveMode, SpecialQp, SrqAttributes, SrqSpec,
};
pub use spaces::{SpaceId, Spaces};
pub use work::{
    FastRegister, MwBind, PageList, Payload, RecvRequest, RemoteAddress, SendFlags, SendOp,
    SendRequest, Sge, UdAddress, UdDestination,
};
