//! What happens in the demo, step by step.

mod connected;
mod connections;
mod datagrams;
mod guests;
mod queries;
mod subnet;

use super::stage::{Stage, StepResult};

/// A step: acts on the stage and tells what it saw.
pub(super) type Step = fn(&mut Stage) -> StepResult;

/// All steps in their order. Later ones build on what earlier ones left.
pub(super) const ALL: &[(&str, Step)] = &[
    ("subnet-up", subnet::comes_up),
    ("vf-guids", guests::get_guids),
    ("path-query", queries::path),
    ("cm-siblings", connections::connect_siblings),
    ("cm-hosts", connections::connect_strangers),
    ("cm-reject", connections::reject),
    ("cm-abandon", connections::abandon),
    ("cm-migrate", connections::migrate),
    ("sidr", connections::resolve_service),
    ("rmpp-tables", queries::large_tables),
    ("multicast", datagrams::multicast),
    ("vf-reset", guests::reset),
    ("link-failure", subnet::link_fails),
    ("link-recovery", subnet::link_comes_back),
    ("sm-restart", subnet::manager_restarts),
    ("rdma-write", connected::write),
    ("rdma-read-lossy", connected::read_across_a_lossy_link),
    ("uc-send", connected::unreliable_send),
];
