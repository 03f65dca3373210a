//! A VF as its guest sees it.
//!
//! [`native`] is for programs that hold a VF themselves: what they run on a real QP1 they run on the
//! VF's proxy of it. A [`vf_pci::PciFunction`] is for guests with a driver of their own; [`mlx4`] is one.
#![forbid(unsafe_code)]

pub mod mlx4;
pub mod native;
mod personality;

pub use personality::Personality;
