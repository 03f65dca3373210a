//! The running service: a fabric with the software of its hosts, driven by the wall clock, and the ways
//! in to it.
//!
//! A [`Lab`] is what is served: a [`World`](vhca::world::World) whose nodes and hosts have names. A
//! [`Service`] drives it, and lends it to its [`WayIn`]s (sockets of every kind, signals) when their
//! descriptors are ready and after each poll. [`run`] makes one from [`Options`] and runs it until it
//! is asked to stop.

mod acceptor;
mod access;
mod accounts;
mod announcement;
mod attach;
mod attach_spec;
mod cables;
mod capture;
mod cast;
mod claim;
pub mod control;
mod descriptors;
mod guests;
mod host_memory;
mod ibsim;
mod inventory;
mod lab;
mod lab_error;
mod linux_port;
mod listeners;
mod notify;
mod options;
mod options_error;
mod options_file;
mod policy;
mod receiver;
mod rights;
mod run;
mod sa_watch;
mod sandbox;
mod service;
mod settings;
mod signals;
mod sm;
mod snapshot;
mod subnet;
mod topology;
mod trunk_credentials;
mod trunk_spec;
mod trunks;
mod umad;
mod verbs;
mod vfio_user;
mod watchdog;
mod watchdog_feed;
mod way_in;
mod why;

pub use access::{AccessError, AccessRule, AccessSpec, SocketMode, SocketName, Users};
pub use announcement::Announcement;
pub use attach::IbsimNode;
pub use attach_spec::{AttachSpec, AttachSpecError, IbsimSpec, LinuxSpec};
pub use claim::ClaimError;
pub use guests::JobId;
pub use ibsim::{IbsimAddress, IbsimError, IbsimWay};
pub use inventory::{Inventory, LabHost, NamedVf};
pub use lab::Lab;
pub use lab_error::LabError;
pub use listeners::{Listener, Listeners};
pub use options::{GuidPolicy, Options, Quotas, SidrSpec, SmChoice};
pub use options_error::OptionsError;
pub use options_file::{GivenOptions, OptionsFileError};
pub use policy::{Check, PolicyOptions};
pub use run::{ServeError, run};
pub use sa_watch::SaWatch;
pub use sandbox::SandboxError;
pub use service::Service;
pub use signals::Signals;
pub use subnet::{MemberKind, PartEnforce, PartitionSpec, SubnetError, SubnetOptions, parse_lmc};
pub use topology::{Plan, PlanError, SpecError, TopologySpec};
pub use trunk_credentials::{TrunkCredentials, TrunkCredentialsError};
pub use trunk_spec::{TrunkSpec, TrunkSpecError};
pub use umad::UmadSocket;
pub use verbs::{VerbsNetwork, VerbsSocket};
pub use vfio_user::{Seat, VfioUserSockets, Vmm};
pub use way_in::{Turn, WayIn};

#[cfg(test)]
mod tests;
