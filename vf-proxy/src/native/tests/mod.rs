//! Scenes that tests of several files begin with.

pub(super) mod loopback;
