//! Which sends of a queue pair are under way.

/// Names the completions of sends, and tells them from those of receives.
const SEND: u64 = 1 << 63;

/// Of so many sends that the queue holds, one completes.
const SIGNALLED_PART: u32 = 8;

/// The sends of a queue pair, by their running count.
///
/// A send queue works in order, so a completion tells that all sends before it are done, too. Only one
/// in a few asks for one: there are several of these among those that fill the queue, and when it is
/// full one of them is to come.
#[derive(Debug)]
pub(super) struct Sends {
    most: u32,
    /// Sends posted.
    posted: u64,
    /// Sends posted up to the last one that completes.
    signalled: u64,
    /// Sends known to be done.
    done: u64,
}

impl Sends {
    pub(super) const fn new(most: u32) -> Self {
        Self {
            most,
            posted: 0,
            signalled: 0,
            done: 0,
        }
    }

    /// Sends that the queue takes now.
    pub(super) fn free(&self) -> usize {
        let free = u64::from(self.most).saturating_sub(self.posted - self.done);
        usize::try_from(free).unwrap_or(usize::MAX)
    }

    /// Whether everything that was to complete has.
    pub(super) const fn is_at_rest(&self) -> bool {
        self.done >= self.signalled
    }

    /// The name of the next send.
    pub(super) const fn next(&self) -> u64 {
        SEND | self.posted
    }

    /// Which of the queue's places the next send has.
    pub(super) const fn next_slot(&self) -> u64 {
        self.posted % self.most as u64
    }

    /// Whether the next send is to complete.
    pub(super) const fn is_signalled(&self) -> bool {
        self.posted - self.signalled + 1 >= (self.most / SIGNALLED_PART) as u64
    }

    /// The next send was posted.
    pub(super) const fn post(&mut self) {
        let signalled = self.is_signalled();
        self.posted += 1;
        if signalled {
            self.signalled = self.posted;
        }
    }

    /// Takes note of a completion. `false`: it is not that of a send.
    pub(super) const fn complete(&mut self, wr_id: u64) -> bool {
        let send = wr_id & SEND != 0;
        let done = (wr_id & !SEND) + 1;
        if send && done > self.done && done <= self.posted {
            self.done = done;
        }
        send
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However many are posted, and however late completions come, the queue is never stuck and
        /// never overfull.
        #[test]
        fn a_full_queue_has_a_completion_to_come(most in 1_u32..100, steps: Vec<bool>) {
            let mut sends = Sends::new(most);
            let (mut under_way, mut to_come) = (0_u64, VecDeque::new());
            for post in steps {
                if post && sends.free() > 0 {
                    under_way += 1;
                    if sends.is_signalled() {
                        to_come.push_back((sends.next(), under_way));
                    }
                    sends.post();
                } else if let Some((name, count)) = to_come.pop_front() {
                    prop_assert!(sends.complete(name));
                    under_way -= count;
                    to_come.iter_mut().for_each(|(_, before)| *before -= count);
                }
                prop_assert_eq!(sends.free() as u64, u64::from(most) - under_way);
                prop_assert!(sends.free() > 0 || !to_come.is_empty());
                prop_assert_eq!(sends.is_at_rest(), to_come.is_empty());
            }
        }
    }

    #[test]
    fn a_failed_send_ends_those_before_it_and_names_out_of_range_end_nothing() {
        let mut sends = Sends::new(64);
        (0..4).for_each(|_| sends.post());
        assert!(sends.is_at_rest(), "none of them completes");
        assert_eq!(sends.free(), 60);
        assert!(sends.complete(SEND | 2));
        assert_eq!(sends.free(), 63);
        for stray in [SEND | 1, SEND | 9, u64::MAX] {
            assert!(sends.complete(stray));
        }
        assert!(!sends.complete(3), "a receive");
        assert_eq!(sends.free(), 63);
    }
}
