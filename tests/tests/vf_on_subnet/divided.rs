//! Virtual functions in software over the physical ones of emulated adapters.

use vhca_tests::divided_device::DividedDevice as Device;

#[expect(clippy::duplicate_mod, reason = "the same scenes on another adapter")]
#[path = "suite/mod.rs"]
pub(super) mod suite;
