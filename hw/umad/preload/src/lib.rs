//! A library to be loaded before a program's others (`LD_PRELOAD`), so that the program finds the
//! ports of a vhca service where it looks for those of the kernel: in `/sys/class/infiniband`,
//! `/sys/class/infiniband_mad` and `/dev/infiniband`.
//!
//! It takes the place of functions of the C library. Calls about other paths and files reach the C
//! library unchanged, and without `VHCA_UMAD_SOCKET` all do. An
//! umad file is a connection to the service, so `poll` and its kin work on it as they are. What the
//! library itself needs of the kernel it asks by system calls, never by functions that it replaces.
//!
//! What cannot be done gives an error number. Only the end of the service ends a program that has an umad file open.
#![expect(
    unsafe_code,
    reason = "functions of the C library are replaced here, with pointers of C programs in their hands; everything behind them is safe code"
)]

mod client;
mod client_file;
mod descriptors;
pub mod duplicates;
pub mod folders;
mod interface;
pub mod interface_lists;
mod interface_requests;
pub mod interpose;
pub mod lookers;
pub mod mappings;
mod memory_map;
pub mod names;
mod netlink;
mod network_namespace;
mod open_files;
mod paths;
mod polling;
mod rdma_cm;
mod real;
mod refusal;
mod registration;
mod ring_mapping;
mod setting;
pub mod sockets;
mod status;
mod tree;
mod umad_file;
mod verbs;
pub mod walks;
