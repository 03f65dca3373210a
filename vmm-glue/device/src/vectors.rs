//! Vectors of a device: changed messages that its VMM has not been given, and interrupts that wait.
//!
//! A vector whose message changed is in `changed` until a thread begins an update with it, and in `in_update` while that call
//! of `Interrupts::update` is under way. An interrupt waits while its vector is in either, and while it has no message.

use std::collections::BTreeSet;

/// Vectors of a device that a VMM drives. Protected by the lock of the provider.
#[derive(Debug, Default)]
pub(super) struct Vectors {
    changed: BTreeSet<u16>,
    in_update: BTreeSet<u16>,
    /// Vectors that were raised and not signalled.
    waiting: BTreeSet<u16>,
    /// A thread is about to begin an update.
    is_claimed: bool,
    /// Number of times that messages changed.
    changes: u64,
}

impl Vectors {
    /// Notes vectors whose messages changed. Returns `true` if no thread is in an update or about to begin one: then a call of
    /// the device has to, or the loop.
    #[must_use]
    pub(super) fn note(&mut self, vectors: BTreeSet<u16>) -> bool {
        if vectors.is_empty() {
            return false;
        }
        self.changes += 1;
        self.changed.extend(vectors);
        // A thread that is in an update now looks again when that has returned.
        !self.is_claimed && self.in_update.is_empty()
    }

    /// Returns how often messages changed, for [`Vectors::claim`].
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns `true` if the caller has to make an update: because it changed messages itself, after there were `before` changes,
    /// or because there are changes and no other thread makes it.
    #[must_use]
    pub(super) fn claim(&mut self, before: u64) -> bool {
        let is_its_own = self.changes != before;
        let is_left = !self.is_claimed && self.in_update.is_empty();
        let is_due = !self.changed.is_empty() && (is_its_own || is_left);
        self.is_claimed |= is_due;
        is_due
    }

    /// Takes the vectors of an update. Only one thread may be between this and [`Vectors::end`].
    pub(super) fn begin(&mut self) -> &BTreeSet<u16> {
        self.is_claimed = false;
        self.in_update = core::mem::take(&mut self.changed);
        &self.in_update
    }

    /// Notes that the update has returned. Returns `true` if messages changed since [`Vectors::begin`] and no thread is about
    /// to begin another update.
    #[must_use]
    pub(super) fn end(&mut self) -> bool {
        self.in_update.clear();
        !self.changed.is_empty() && !self.is_claimed
    }

    /// Makes a vector wait until it can be signalled.
    pub(super) fn raise(&mut self, vector: u16) {
        self.waiting.insert(vector);
    }

    /// Signals the vectors that wait and whose messages the VMM knows. `signal` returns `false` for a vector without a
    /// message, which waits on.
    pub(super) fn signal(&mut self, mut signal: impl FnMut(u16) -> bool) {
        let Self {
            changed,
            in_update,
            waiting,
            ..
        } = self;
        let is_known = |vector: &u16| !changed.contains(vector) && !in_update.contains(vector);
        waiting.retain(|vector| !is_known(vector) || !signal(*vector));
    }

    /// Forgets the vectors that wait.
    pub(super) fn forget_raised(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signalled(vectors: &mut Vectors) -> Vec<u16> {
        let mut signalled = Vec::new();
        vectors.signal(|vector| {
            signalled.push(vector);
            true
        });
        signalled
    }

    #[test]
    fn a_vector_waits_until_its_update_has_returned_and_others_do_not() {
        let mut vectors = Vectors::default();
        assert!(vectors.note(BTreeSet::from([1])));
        for vector in [1, 2] {
            vectors.raise(vector);
        }
        assert_eq!(signalled(&mut vectors), [2]);
        assert_eq!(*vectors.begin(), BTreeSet::from([1]));
        assert!(signalled(&mut vectors).is_empty());
        assert!(!vectors.end());
        assert_eq!(signalled(&mut vectors), [1]);
        assert!(signalled(&mut vectors).is_empty());
    }

    #[test]
    fn a_change_during_an_update_is_left_to_the_thread_that_is_in_it() {
        let mut vectors = Vectors::default();
        assert!(vectors.note(BTreeSet::from([1])));
        assert_eq!(vectors.begin().len(), 1);
        let before = vectors.changes();
        assert!(!vectors.note(BTreeSet::from([1])));
        assert!(!vectors.claim(vectors.changes()), "it is another's");
        vectors.raise(1);
        assert!(vectors.end(), "no thread has claimed it");
        assert!(signalled(&mut vectors).is_empty());
        assert!(vectors.claim(before));
        assert!(!vectors.note(BTreeSet::from([3])), "it is claimed");
        assert_eq!(*vectors.begin(), BTreeSet::from([1, 3]));
        assert!(!vectors.end());
        assert!(!vectors.claim(before), "all is updated");
    }

    #[test]
    fn a_caller_waits_for_its_own_changes_whichever_thread_makes_others() {
        let mut vectors = Vectors::default();
        let before = vectors.changes();
        assert!(vectors.note(BTreeSet::from([1])));
        assert!(vectors.claim(before));
        let between = vectors.changes();
        assert!(!vectors.claim(between), "another thread updates it");
        assert!(!vectors.note(BTreeSet::from([2])));
        assert!(vectors.claim(between));
    }

    #[test]
    fn a_vector_without_a_message_goes_on_waiting_until_it_is_forgotten() {
        let mut vectors = Vectors::default();
        vectors.raise(4);
        vectors.signal(|_| false);
        assert_eq!(signalled(&mut vectors), [4]);
        vectors.raise(4);
        vectors.forget_raised();
        assert!(signalled(&mut vectors).is_empty());
    }
}
