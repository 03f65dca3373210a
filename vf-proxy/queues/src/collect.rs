//! Completions on their way from the provider.

use hca_api::{ArmKind, Completion, CqHandle, Hca};

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
