//! Adapters on a fabric.

mod connected;
