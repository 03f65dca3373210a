//! The machines of both ends against each other, against a model, and against hostile packets.

mod host;
mod model;
mod network;
mod packets;
mod random;
mod recovery_rules;
mod requester_rules;
mod responder_rules;
mod rig;
mod splitting;
mod unreliable_rules;
