//! The machines of both ends against each other, against a model, and against hostile packets.

mod both_ways;
mod duplicate_rules;
mod frames;
mod host;
mod hostile;
mod local_rules;
mod model;
mod network;
mod packets;
mod random;
mod recovery_rules;
mod requester_rules;
mod responder_rules;
mod rig;
mod splitting;
mod streams;
mod unreliable_random;
mod unreliable_rules;
