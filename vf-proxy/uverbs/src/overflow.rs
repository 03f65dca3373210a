//! Completions that wait for room in the ring that a program reads.
//!
//! A completion queue may have millions of entries, and its ring goes round all of its places whether or not they are needed at
//! once. So the ring of a large queue is a short one, and the service holds the completions beyond it, in memory that comes and
//! goes with them.

use std::collections::VecDeque;
use verbs_link::abi::ring::CompletionElement;
use verbs_link::{Budget, Charge};

/// Completions that are charged at a time: about a page of them.
const PART: usize = 80;

/// A completion that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) element: CompletionElement,
    /// The completion wakes a program that waits for solicited ones only.
    pub(crate) solicited: bool,
}

/// A part of the completions, with the charge for its memory.
#[derive(Debug)]
struct Part {
    waiting: VecDeque<Waiting>,
    _charge: Charge,
}

/// Completions that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Overflow {
    parts: VecDeque<Part>,
    len: u32,
}

impl Overflow {
    /// Returns the number of completions.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Returns `true` if no completion waits.
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a completion. Returns `false` if the budget does not have the memory.
    pub(crate) fn push(&mut self, budget: &Budget, waiting: Waiting) -> bool {
        let has_room = (self.parts.back()).is_some_and(|part| part.waiting.len() < PART);
        if !has_room {
            let bytes = PART * size_of::<Waiting>();
            let Some(_charge) = budget.charge(bytes.try_into().unwrap_or(u64::MAX)) else {
                return false;
            };
            self.parts.push_back(Part {
                waiting: VecDeque::with_capacity(PART),
                _charge,
            });
        }
        if let Some(part) = self.parts.back_mut() {
            part.waiting.push_back(waiting);
            self.len += 1;
        }
        true
    }

    /// Returns the oldest completion.
    pub(crate) fn first(&self) -> Option<&Waiting> {
        self.parts.front()?.waiting.front()
    }

    /// Removes the oldest completion.
    pub(crate) fn remove_first(&mut self) {
        let Some(part) = self.parts.front_mut() else {
            return;
        };
        self.len -= u32::from(part.waiting.pop_front().is_some());
        if part.waiting.is_empty() {
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_come_out_in_order_and_their_memory_comes_and_goes() {
        let budget = Budget::new(1 << 20, None);
        let mut overflow = Overflow::default();
        let waiting = |wr_id: u64| Waiting {
            element: CompletionElement {
                wr_id: wr_id.into(),
                ..CompletionElement::default()
            },
            solicited: false,
        };
        for wr_id in 0..1000 {
            assert!(overflow.push(&budget, waiting(wr_id)));
        }
        let used = budget.used();
        assert!((48_000..64_000).contains(&used), "{used} bytes");
        for wr_id in 0..1000 {
            assert_eq!(overflow.first().unwrap().element.wr_id.get(), wr_id);
            overflow.remove_first();
        }
        assert_eq!((budget.used(), overflow.len()), (0, 0));
        assert!(overflow.is_empty() && overflow.first().is_none());
        overflow.remove_first();
        let few = Budget::new(100, None);
        assert!(!overflow.push(&few, waiting(0)) && overflow.is_empty());
    }
}
