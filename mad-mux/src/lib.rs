//! Which MADs of a VF may pass, to whom, and under which transaction id.
//!
//! One LID and one QP1 serve every VF of a port, so two questions must be answered for each MAD:
//!
//! * May it pass? [`policy`] answers by class, method and special QP, in both directions, and says
//!   which machine goes on with it.
//! * Whose is it? [`tid`] answers for answers, by the transaction that they belong to; [`steering`]
//!   for requests, by their global route.
//!
//! And one need not be asked at all: [`path_cache`] answers requests for paths that the SA answered
//! lately.
//!
//! Statement numbers in test names are those of the conformance table.
#![forbid(unsafe_code)]

pub mod path_cache;
pub mod policy;
pub mod rmpp;
pub mod steering;
pub mod tid;
