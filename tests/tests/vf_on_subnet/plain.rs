//! Virtual functions in software over the least of the physical ones of emulated adapters.

use vhca_tests::divided_device::PlainDevice as Device;

#[expect(clippy::duplicate_mod, reason = "the same scenes on another adapter")]
#[path = "suite/mod.rs"]
pub(super) mod suite;
