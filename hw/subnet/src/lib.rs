//! An embedded subnet manager and subnet administrator.
#![forbid(unsafe_code)]

mod lid;
pub mod routing;

pub use lid::{LidManager, LidRange, LidRequest};
