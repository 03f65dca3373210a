//! Completions on their way from the provider.

use hca_api::{ArmKind, Completion, CompletionOp, CqHandle, Hca, HcaError};

/// Creates the provider's queue behind a completion queue of so many entries, and arms it for its first completion.
///
/// # Errors
/// As [`Hca::create_cq`].
pub fn create_cq(hca: &mut dyn Hca, entries: u32) -> Result<CqHandle, HcaError> {
    let cq = hca.create_cq(provider_entries(hca, entries))?;
    // A new queue has no completion that could be missed.
    hca.arm_cq(cq, ArmKind::Next).map(|_| cq)
}

/// Resizes the provider's queue behind a completion queue that has so many entries from now on.
///
/// # Errors
/// As [`Hca::resize_cq`].
pub fn resize_cq(hca: &mut dyn Hca, cq: CqHandle, entries: u32) -> Result<(), HcaError> {
    hca.resize_cq(cq, provider_entries(hca, entries))
}

/// Returns the entries of the provider's queue behind one of so many. Every send completes there, also one of which no completion is
/// reported, so there are more.
fn provider_entries(hca: &dyn Hca, entries: u32) -> u32 {
    const LEAST: u32 = 1 << 12;

    let most = hca.attributes().limits.max_cqe;
    entries.saturating_mul(2).max(LEAST).min(most)
}

/// Returns `true` for a completion of a receive.
#[must_use]
pub const fn is_receive(op: CompletionOp) -> bool {
    matches!(op, CompletionOp::Recv | CompletionOp::RecvRdmaImm)
}

/// Moves completions of the provider's queue to `deliver`, `BATCH` at a time and at most so many `batches`, and arms the queue for the
/// next one. Returns `true` if it moved all that it may, and the queue is to be collected again; a queue that is gone has nothing.
pub fn collect<const BATCH: usize>(
    hca: &mut dyn Hca,
    cq: CqHandle,
    batches: usize,
    mut deliver: impl FnMut(&mut dyn Hca, &Completion),
) -> bool {
    let mut batch = [Completion::BLANK; BATCH];
    for _ in 0..batches {
        let count = hca.poll_cq(cq, &mut batch).unwrap_or(0);
        for completion in &batch[..count] {
            deliver(hca, completion);
        }
        // No event announces a completion that came before the queue was armed: the queue is polled once more.
        if count < BATCH && hca.arm_cq(cq, ArmKind::Next) != Ok(true) {
            return false;
        }
    }
    true
}
