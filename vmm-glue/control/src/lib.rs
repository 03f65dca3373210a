//! The control socket of the `vhca` service: its protocol, its client, and the values that pass through it.
//!
//! A [`Remote`] sends a [`Request`](protocol::Request) and returns the reply. [`Places`] are the sockets at which a service
//! may answer.

mod capture;
mod facts;
mod folder;
mod guest;
mod link;
mod places;
pub mod protocol;
mod remote;
mod right;
mod show;
mod silence;
pub mod table;
mod vf;

pub use capture::CaptureSpec;
pub use facts::{Facts, Printable, milliseconds};
pub use folder::{OwnFolderError, default_path, default_places};
pub use guest::{GuestAction, GuestReport, GuestReports};
pub use link::{FaultySpeed, FaultyWidth, LinkFaults};
pub use places::{PlaceError, Places};
pub use protocol::Refusal;
pub use remote::{Remote, RemoteError, StreamEnd};
pub use right::Right;
pub use show::{By, Subject};
pub use silence::Silent;
pub use vf::{OfferedVf, VfChange, VfState};
