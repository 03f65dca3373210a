//! The locks of `device`: a test has others in their place, which try orders of threads.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
