//! Locks that outlive a panic of the VMM's.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic of the VMM's in one of its calls leaves everything here as it is between two calls.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
