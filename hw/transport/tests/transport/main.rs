//! The machines of both ends against each other, against a model, and against hostile packets.

mod host;
mod model;
mod network;
mod packets;
mod random;
mod responder_rules;
