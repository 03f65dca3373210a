//! An embedded subnet manager and subnet administrator.
#![forbid(unsafe_code)]

pub mod routing;
