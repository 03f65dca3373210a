//! The sockets of a real service: who may connect, what a client can take from others, what the process may do.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod descriptors;
mod passed;
mod rings;
mod sandbox;
mod serving;
mod vfio_user;
mod watchers;
