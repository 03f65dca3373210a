//! Virtual functions in software over the least of the physical one of an emulated adapter.

use vhca_tests::divided_device::{PlainDevice as Device, PlainFunction as Function};

#[expect(clippy::duplicate_mod, reason = "the same scenes on another adapter")]
#[path = "suite/mod.rs"]
mod suite;
