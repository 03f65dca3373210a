//! A VF as its guest sees it.
//!
//! [`native`] is for programs that hold a VF themselves: what they run on a real QP1 they run on the
//! VF's proxy of it.
#![forbid(unsafe_code)]

pub mod native;
