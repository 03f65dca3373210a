//! The functions of an emulated adapter.

use emulated_hca::hca::{Device, Function};

#[expect(clippy::duplicate_mod, reason = "the same scenes on another adapter")]
#[path = "suite.rs"]
mod suite;
