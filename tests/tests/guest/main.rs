//! Unmodified Linux guests on the emulated fabric, by vfio-user and a stock QEMU.
//!
//! `tests/guest/prepare.sh` must have filled its cache before. Each test has a service, guests and a directory of
//! its own. tests/guest/README.md tells how to run what is only sampled here in full.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where its surroundings do"
)]

mod bring_up;
mod churn;
mod documents;
mod effort;
mod fabric;
mod figures;
mod guest;
mod harness;
mod hotplug;
mod inner;
mod ip;
mod kexec;
mod lab;
mod mads;
mod names;
mod offloads;
mod partitions;
mod pings;
mod programs;
mod qmp;
mod rdma;
mod refusals;
mod roce;
mod roce_faults;
mod saved;
mod siege;
mod soft_roce;
mod storage;
mod trunks;
mod truth;
mod two_ports;
mod vfio;
