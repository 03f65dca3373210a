//! A VF as its guest sees it.
//!
//! [`native`] is for programs that hold a VF themselves: what they run on a real QP1 they run on the
//! VF's proxy of it. A [`PciFunction`] is for guests with a driver of their own; [`mlx4`] is one. What every
//! such personality needs of PCI is beside it, in `pci`.
#![forbid(unsafe_code)]

mod device;
pub mod mlx4;
pub mod native;
mod pci;
mod personality;

pub use device::{PciChanges, PciDevice};
pub use pci::{Bar, Doorbell, MsixMessage, PciEvent, PciFunction};
pub use personality::Personality;
