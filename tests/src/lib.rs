//! End-to-end tests of the workspace, and what they share.
#![forbid(unsafe_code)]

pub mod cargo;
pub mod conversation;
pub mod divided_device;
pub mod docs;
pub mod effort;
pub mod faulty_hca;
pub mod fields;
pub mod fuzz_targets;
pub mod golden;
pub mod live;
pub mod mads;
pub mod mlx4_driver;
pub mod plain;
pub mod siege;
pub mod traces;
pub mod vf_subnet;
pub mod virtual_service;

pub use vhca::world;
