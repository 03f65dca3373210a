//! Conformance: tests named by the numbered statements of what the machine must do. The comparison with a
//! model is in `tests/src/fuzz_targets/cm_paravirt`.

mod addresses;
mod answers;
mod counts;
mod harness;
mod ids;
mod life;
mod peers;
mod quiet;
mod sidr;
