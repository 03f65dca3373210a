//! Virtual functions in software over the physical one of an emulated adapter.

use vhca_tests::divided_device::{DividedDevice as Device, DividedFunction as Function};

#[expect(clippy::duplicate_mod, reason = "the same scenes on another adapter")]
#[path = "suite.rs"]
mod suite;
