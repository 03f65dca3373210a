//! The share of long tests that runs.

/// Returns `true` if long tests run whole: if the environment has `VHCA_FULL`.
#[must_use]
pub fn is_full() -> bool {
    std::env::var_os("VHCA_FULL").is_some()
}

/// Returns `all` where long tests run whole, otherwise `sample`.
#[must_use]
pub fn full<T>(sample: T, all: T) -> T {
    if is_full() { all } else { sample }
}
