//! Devices as a VMM's threads use them.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod accesses;
mod event;
mod examples;
mod hostile;
#[cfg(feature = "kvm")]
mod kvm;
mod probe;
mod updates;
