//! Wire ids and the names of slots that they stand for.
//!
//! The permutation between them takes its time step by step, for several words as well as for one. So
//! the ids of a batch of answers are turned into names together, and with a new transaction's name
//! those of the next ones into ids. What was not foreseen is turned by itself.

use vf_tunnel::wire_id::{LANES, Permutation};

/// The permutation, and what it was lately asked for and will be again.
#[derive(Clone, Debug)]
pub(super) struct Names {
    permutation: Permutation,
    /// Ids of answers that are about to be judged, and their names.
    upcoming: Pairs,
    /// Names of transactions that are about to begin, and their ids.
    prepared: Pairs,
}

/// Words and what they turn into, in the order in which they are expected.
#[derive(Clone, Debug)]
struct Pairs {
    from: [u32; LANES],
    to: [u32; LANES],
    len: usize,
    next: usize,
}

impl Pairs {
    const NONE: Self = Self {
        from: [0; LANES],
        to: [0; LANES],
        len: 0,
        next: 0,
    };

    /// What a word turns into, if it is one of those that are expected. Those before it are not
    /// expected any more.
    fn take(&mut self, word: u32) -> Option<u32> {
        let expected = self.from.get(self.next..self.len)?;
        let skipped = expected.iter().position(|&other| other == word)?;
        let at = self.next + skipped;
        self.next = at + 1;
        Some(self.to[at])
    }
}

impl Names {
    pub(super) const fn new(permutation: Permutation) -> Self {
        Self {
            permutation,
            upcoming: Pairs::NONE,
            prepared: Pairs::NONE,
        }
    }

    /// Expects ids in this order, and gives their names.
    pub(super) fn expect(&mut self, ids: &[u32; LANES], len: usize) -> &[u32] {
        self.upcoming = Pairs {
            from: *ids,
            to: self.permutation.decode_all(*ids),
            len,
            next: 0,
        };
        &self.upcoming.to[..len]
    }

    /// The name that an id stands for.
    pub(super) fn name_of(&mut self, id: u32) -> u32 {
        let known = self.upcoming.take(id);
        known.unwrap_or_else(|| self.permutation.decode(id))
    }

    /// The id of a name.
    pub(super) fn id_of(&self, name: u32) -> u32 {
        self.permutation.encode(name)
    }

    /// The id of a new transaction's name. If it was not expected, the names that follow it are, as
    /// far as somebody knows them.
    pub(super) fn next_id_of(
        &mut self,
        name: u32,
        following: impl FnOnce() -> [u32; LANES],
    ) -> u32 {
        if let Some(id) = self.prepared.take(name) {
            return id;
        }
        let from = following();
        self.prepared = Pairs {
            from,
            to: self.permutation.encode_all(from),
            len: LANES,
            next: 0,
        };
        self.id_of(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever was expected, in whatever order and however often it comes.
        #[test]
        fn an_id_has_the_name_that_the_permutation_gives_it(
            expected: [u32; LANES],
            len in 0..=LANES,
            asked in prop::collection::vec((any::<bool>(), any::<u32>(), 0..LANES), 0..40),
        ) {
            let permutation = Permutation::new(7);
            let mut names = Names::new(permutation.clone());
            let turned = permutation.decode_all(expected);
            prop_assert_eq!(names.expect(&expected, len), &turned[..len]);
            for (is_expected, other, at) in asked {
                let word = if is_expected { expected[at] } else { other };
                prop_assert_eq!(names.name_of(word), permutation.decode(word));
                let id = names.next_id_of(word, || expected);
                prop_assert_eq!(id, permutation.encode(word));
            }
        }
    }
}
