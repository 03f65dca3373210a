//! The emulated fabric under a real OpenSM, asked by the real tools.
//!
//! Each test has a `vhca serve`, an OpenSM and a directory of its own, so they run side by side. The
//! programs come from Debian packages, which `tests/run.sh` installs.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where its surroundings do"
)]

mod bring_up;
mod capture;
mod multicast;
mod osmtest;
mod partitions;
mod records;
mod recovery;
mod scale;
mod storm;
mod tools;
mod wide_switch;
