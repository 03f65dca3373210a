//! Virtual functions in software, over any adapter that knows one function.
//!
//! [`Functions`] stands between a PF context and an [`Hca`](hca_api::Hca). [`Functions::on`] joins it to the adapter and returns
//! an [`Adapter`](hca_api::Adapter) whose physical function is the adapter's own, with the verbs of a
//! [`FunctionManager`](hca_api::FunctionManager) besides. Each virtual function has memory, handles, events and a quota of its
//! own, and sees each port as the PF shows it.
//!
//! Nothing waits, and there is no clock: the same calls have the same results. Receives that a virtual function keeps in its own
//! memory are read ahead, also at times that [`Functions::poll_timeout`] returns.
//!
//! The parts that an adapter with functions of its own needs as well are public: [`EventQueue`], [`CompletionQueue`],
//! [`ReceiveQueue`], the transitions of queue pairs ([`next_state`]) and the answers of a port's SMA to virtual functions
//! ([`virtual_answer`]).
#![forbid(unsafe_code)]

mod connections;
mod cq;
mod datagrams;
mod end;
mod event;
mod function;
mod functions;
mod manager;
mod memory;
mod numbers;
mod pair;
mod physical;
mod pulled;
mod qp_state;
mod queue_pairs;
mod receive_queue;
mod refill;
mod regions;
mod remains;
mod side;
mod tunnel;
mod vf;
mod virtual_port;
mod virtual_view;

pub use cq::{Added, CompletionQueue};
pub use event::{EventQueue, EventSource};
pub use functions::{DividedAdapter, Function, Functions};
pub use qp_state::next_state;
pub use receive_queue::{Receive, ReceiveQueue, SgeList, total_len};
pub use virtual_view::{physical_request, virtual_answer};

#[cfg(test)]
mod tests;
