//! Scripts for the mux of a port.

use vhca_exercises::replay::{ReplayError, run};

/// Runs a script twice: both runs end alike and print the same whole lines.
pub(super) fn replay(data: &[u8]) {
    let (out, mistake) = outcome(data);
    assert_eq!(outcome(data), (out.clone(), mistake));
    assert!(out.is_empty() || out.ends_with(b"}\n"));
}

/// What a script prints, and the line on which it ends early.
fn outcome(data: &[u8]) -> (Vec<u8>, Option<u64>) {
    let mut out = Vec::new();
    let mistake = match run(data, &mut out) {
        Ok(()) => None,
        Err(ReplayError::Script { line, .. }) => Some(line),
        Err(error) => panic!("memory neither ends nor fails: {error}"),
    };
    (out, mistake)
}
