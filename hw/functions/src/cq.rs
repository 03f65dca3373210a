//! Completion queues (IBA 10.8, 11.2.6, 11.4.2).

use std::collections::VecDeque;

use hca_api::{ArmKind, Completion, CompletionFlags, CompletionStatus, HcaError};

/// Fate of a completion that a queue was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It waits to be polled.
    Quietly,
    /// It waits, and the consumer asked for an announcement.
    Announced,
    /// There was no room: the queue has just failed (IBA 10.8.2, "CQ overrun").
    Overflowed,
    /// The queue had failed before.
    Lost,
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    ring: VecDeque<Completion>,
    capacity: usize,
    armed: Option<ArmKind>,
    /// An announcement waits in the event queue.
    announced: bool,
    failed: bool,
    /// Work queues that complete here.
    pub users: u32,
}

impl CompletionQueue {
    /// Returns an empty queue that takes `capacity` completions.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self {
            ring: VecDeque::new(),
            capacity,
            armed: None,
            announced: false,
            failed: false,
            users: 0,
        }
    }

    /// Adds a completion, and returns the fate of it. A failed queue keeps its completions and takes none.
    pub fn add(&mut self, completion: Completion) -> Added {
        if self.failed {
            return Added::Lost;
        }
        if self.ring.len() >= self.capacity {
            self.failed = true;
            return Added::Overflowed;
        }
        let solicited = completion.flags.contains(CompletionFlags::SOLICITED)
            || completion.status != CompletionStatus::Success;
        self.ring.push_back(completion);
        let due = match self.armed {
            None => false,
            Some(ArmKind::Next) => true,
            Some(ArmKind::Solicited) => solicited,
        };
        if due {
            self.armed = None;
        }
        if due && !self.announced {
            self.announced = true;
            Added::Announced
        } else {
            Added::Quietly
        }
    }

    /// Moves completions out, oldest first, and returns their number.
    pub fn poll(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.ring.len());
        for (slot, completion) in out.iter_mut().zip(self.ring.drain(..count)) {
            *slot = completion;
        }
        count
    }

    /// Returns the number of completions that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Asks for an announcement, and returns `true` if completions wait already. A request for any completion is not weakened by a later one for
    /// solicited completions (IBA 11.4.2.2).
    pub fn arm(&mut self, kind: ArmKind) -> bool {
        if self.armed != Some(ArmKind::Next) {
            self.armed = Some(kind);
        }
        !self.ring.is_empty()
    }

    /// Takes note of an announcement that another queue behind this one made. Returns `true` if the consumer asked for one
    /// and none waits.
    pub(crate) fn announce(&mut self) -> bool {
        self.armed.take().is_some() && !core::mem::replace(&mut self.announced, true)
    }

    /// Notes that the consumer took the announcement.
    pub const fn announcement_taken(&mut self) {
        self.announced = false;
    }

    /// Returns `true` if no completion waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Changes the capacity; completions stay.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if more completions wait than would fit.
    pub fn resize(&mut self, capacity: usize) -> Result<(), HcaError> {
        if capacity < self.ring.len() {
            return Err(HcaError::InvalidParameter);
        }
        self.capacity = capacity;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hca_api::CompletionOp;
    use proptest::prelude::*;

    use super::*;

    fn completion(wr_id: u64, solicited: bool) -> Completion {
        Completion {
            wr_id,
            op: CompletionOp::Recv,
            flags: if solicited {
                CompletionFlags::SOLICITED
            } else {
                CompletionFlags::empty()
            },
            ..Completion::BLANK
        }
    }

    /// IBA 11.4.2.2: armed for solicited events, an ordinary completion is silent, one in error is
    /// announced.
    #[test]
    fn a_queue_armed_for_solicited_events_announces_solicited_and_failed_completions_only() {
        let mut cq = CompletionQueue::new(8);
        assert!(!cq.arm(ArmKind::Solicited));
        assert_eq!(cq.add(completion(1, false)), Added::Quietly);
        assert_eq!(cq.add(completion(2, true)), Added::Announced);
        assert_eq!(cq.add(completion(3, true)), Added::Quietly, "armed once");
        cq.announcement_taken();
        assert!(cq.arm(ArmKind::Solicited), "three wait already");
        let failed = Completion {
            status: CompletionStatus::Flushed,
            ..completion(4, false)
        };
        assert_eq!(cq.add(failed), Added::Announced);
    }

    /// IBA 11.4.2.2: the stronger request stays.
    #[test]
    fn arming_for_any_completion_outlives_arming_for_solicited_ones() {
        let mut cq = CompletionQueue::new(8);
        cq.arm(ArmKind::Next);
        cq.arm(ArmKind::Solicited);
        assert_eq!(cq.add(completion(1, false)), Added::Announced);
    }

    /// IBA 10.8.2: an overrun is an error of the queue; earlier completions stay readable.
    #[test]
    fn an_overflow_fails_the_queue_once_and_keeps_what_was_there() {
        let mut cq = CompletionQueue::new(1);
        assert_eq!(cq.add(completion(1, false)), Added::Quietly);
        assert_eq!(cq.add(completion(2, false)), Added::Overflowed);
        assert_eq!(cq.add(completion(3, false)), Added::Lost);
        let mut out = [completion(0, false); 4];
        assert_eq!(cq.poll(&mut out), 1);
        assert_eq!(out[0].wr_id, 1);
        assert_eq!(cq.add(completion(4, false)), Added::Lost);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64),
        Poll(usize),
        Resize(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<u64>().prop_map(Step::Add),
            2 => (0_usize..4).prop_map(Step::Poll),
            1 => (1_usize..12).prop_map(Step::Resize),
        ]
    }

    proptest! {
        /// IBA 11.2.6.3: completions come in order through any number of resizes.
        #[test]
        fn a_queue_is_a_bounded_fifo(steps in prop::collection::vec(step(), 0..64)) {
            let (mut cq, mut model, mut capacity) = (CompletionQueue::new(4), VecDeque::new(), 4);
            let mut failed = false;
            for step in steps {
                match step {
                    Step::Add(id) => {
                        let expect = if failed { Added::Lost }
                            else if model.len() == capacity { Added::Overflowed }
                            else { Added::Quietly };
                        failed |= expect == Added::Overflowed;
                        if expect == Added::Quietly { model.push_back(id); }
                        prop_assert_eq!(cq.add(completion(id, false)), expect);
                    }
                    Step::Poll(at_most) => {
                        let mut out = vec![completion(0, false); at_most];
                        let count = cq.poll(&mut out);
                        let expect: Vec<u64> = model.drain(..at_most.min(model.len())).collect();
                        let got: Vec<u64> = out[..count].iter().map(|c| c.wr_id).collect();
                        prop_assert_eq!(got, expect);
                    }
                    Step::Resize(to) => {
                        prop_assert_eq!(cq.resize(to).is_ok(), to >= model.len());
                        if to >= model.len() { capacity = to; }
                    }
                }
                prop_assert_eq!(cq.len(), model.len());
            }
        }
    }
}
