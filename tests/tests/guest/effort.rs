//! How much of what takes long is done.

/// The first of these, or the second with `VHCA_GUEST_FULL` set.
pub(crate) fn full<T>(sample: T, all: T) -> T {
    if std::env::var_os("VHCA_GUEST_FULL").is_some_and(|value| !value.is_empty()) {
        all
    } else {
        sample
    }
}
