//! Conformance: tests named by the numbered statements of what the machine must do, and a
//! comparison with a simple model.

mod addresses;
mod answers;
mod counts;
mod harness;
mod ids;
mod life;
mod model;
mod peers;
mod quiet;
mod sidr;
