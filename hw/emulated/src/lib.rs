//! An emulated InfiniBand fabric.
#![forbid(unsafe_code)]
