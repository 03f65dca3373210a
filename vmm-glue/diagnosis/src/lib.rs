//! Diagnoses of VFs' ports: the fault, its evidence, and what to do next.
//!
//! [`why`] is a function of a [`Snapshot`]: it asks nothing and changes nothing. The owner of the adapters takes the snapshot,
//! with the [`Subnet`] as far as it is known and a [`Pf`] for each adapter with VFs. [`Faults::of`] has the diagnoses of all VFs.
//!
//! ```
//! use ib_wire::PortNum;
//! use vhca_diagnosis::{Snapshot, why};
//!
//! let found = why(&Snapshot::default(), "host-a", 1, PortNum(1));
//! assert_eq!(found.code, "no_such_port");
//! ```
#![forbid(unsafe_code)]

mod commands;
mod diagnosis;
mod duplicates;
mod fault;
mod faults;
mod foreign_peers;
mod guids;
mod hampered;
mod known;
mod links;
mod m_keys;
mod managers;
mod pair;
mod partitions;
mod port;
mod programs;
mod rates;
mod sa;
mod shell;
mod slow_memory;
mod snapshot;
mod subnet;
mod trunks;
mod unmanaged;
mod vmms;

pub use diagnosis::{Diagnosis, why};
pub use fault::Fault;
pub use faults::Faults;
pub use known::{Code, KNOWN_FAULTS, KnownFault};
pub use pair::{End, Pair, PairDiagnosis, PairGroup, why_pair};
pub use rates::{Rates, Shortfall};
pub use shell::quoted;
pub use snapshot::{
    ERRORS_COUNT, ForeignPeer, Memory, Offer, PKeyTable, Pf, PfPort, Program, RECENT, SLOW_MEMORY,
    SLOW_MEMORY_REMEMBERED, SlowMemory, Snapshot, Stall, Vf, VfPort, Vmm,
};
pub use subnet::{Dropped, Extent, Node, NodeKind, Port, PortAt, Subnet, Trunk, Way};
