//! Which MADs of a VF may pass, and to whom.
//!
//! One LID and one QP1 serve every VF of a port, so two questions must be answered for each MAD:
//!
//! * May it pass? [`policy`] answers by class, method and special QP, in both directions, and says
//!   which machine goes on with it.
//! * Whose is it? [`steering`] answers by the global route of a request that came in.
//!
//! Statement numbers in test names are those of the conformance table.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod policy;
pub mod steering;
