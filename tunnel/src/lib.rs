//! The boundary between a VF and the PF.
//!
//! A VF has no special QPs. What it means for QP0 or QP1 goes through a *tunnel*: a pair of UD QPs
//! per VF, port and special QP, the *proxy QP* in the VF and the *tunnel QP* at the PF. This crate
//! holds what both ends must agree on:
//!
//! * [`ToPf`] and [`ToVf`], the 312 bytes that cross in either direction, in the layout that a
//!   ConnectX guest driver builds and reads, so that a guest's frames pass unchanged;
//! * a type for each *side* of everything that is rewritten on the way ([`VfTid`] and [`WireTid`],
//!   [`VfCommId`] and [`WireCommId`], [`VirtualPKeyIndex`] and [`PhysicalPKeyIndex`]): only the
//!   translation tables convert between them;
//! * [`DropReason`], the one closed list of reasons for which a frame is dropped;
//! * [`SubnetLmcs`], the LIDs that belong to one port: an answer from any other LID is refused;
//! * [`wire_id`], what the tables of the ids that we put on the wire are made of.
//!
//! The VF is known by the tunnel that a frame came through, never by its bytes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod drop_reason;
mod frame;
mod lmcs;
mod side;
pub mod wire_id;

pub use drop_reason::DropReason;
pub use frame::{FrameError, TUNNEL_FRAME_SIZE, ToPf, ToPfHeader, ToVf, ToVfHeader, global_route};
pub use hca_api::SpecialQp;
pub use lmcs::SubnetLmcs;
pub use side::{
    PhysicalPKeyIndex, RemoteCommId, VfCommId, VfId, VfTid, VirtualPKeyIndex, WireCommId, WireTid,
};
