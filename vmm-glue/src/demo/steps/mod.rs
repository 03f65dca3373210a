//! What happens in the demo, step by step.

mod connections;
mod datagrams;
mod queries;
mod subnet;

use super::stage::{Stage, StepResult};

/// A step: acts on the stage and tells what it saw.
pub(super) type Step = fn(&mut Stage) -> StepResult;

/// All steps in their order. Later ones build on what earlier ones left.
pub(super) const ALL: &[(&str, Step)] = &[
    ("subnet-up", subnet::comes_up),
    ("path-query", queries::path),
    ("cm-connect", connections::connect),
    ("cm-reject", connections::reject),
    ("cm-abandon", connections::abandon),
    ("cm-migrate", connections::migrate),
    ("sidr", connections::resolve_service),
    ("multicast", datagrams::multicast),
    ("rmpp-table", queries::large_table),
    ("link-failure", subnet::link_fails),
    ("link-recovery", subnet::link_comes_back),
    ("sm-restart", subnet::manager_restarts),
];
