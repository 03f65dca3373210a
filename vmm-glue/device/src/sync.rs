//! The locks of this crate: a test has others in their place, which try orders of threads.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
