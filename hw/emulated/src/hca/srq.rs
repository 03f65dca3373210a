//! Shared receive queues (IBA 10.2.9, 11.2.3).

use hca_api::{AddressSpace, HcaError, PdHandle, SrqAttributes};

use hca_functions::{Receive, ReceiveQueue};

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) pd: PdHandle,
    pub(super) queue: ReceiveQueue,
    limit: u32,
    /// QPs that take receives from here.
    pub(super) users: u32,
}

impl Srq {
    pub(super) const fn new(pd: PdHandle, queue: ReceiveQueue, limit: u32) -> Self {
        Self {
            pd,
            queue,
            limit,
            users: 0,
        }
    }

    /// Takes the oldest receive.
    pub(super) fn take(&mut self, memory: &dyn AddressSpace) -> Option<Receive> {
        self.queue.take(memory)
    }

    /// Whether fewer receives are left than the limit asks for; true once, then the limit is
    /// disarmed (IBA 10.2.9.2).
    pub(super) fn limit_reached(&mut self, memory: &dyn AddressSpace) -> bool {
        let reached = self.limit != 0 && self.queue.waiting(memory) < self.limit as usize;
        if reached {
            self.limit = 0;
        }
        reached
    }

    /// Arms the limit and changes the size.
    pub(super) fn modify(
        &mut self,
        memory: &dyn AddressSpace,
        limit: u32,
        max_wr: Option<u32>,
    ) -> Result<(), HcaError> {
        let max_wr = max_wr.unwrap_or(self.queue.max_wr);
        if limit > max_wr || self.queue.waiting(memory) > max_wr as usize {
            return Err(HcaError::InvalidParameter);
        }
        self.queue.max_wr = max_wr;
        self.limit = limit;
        Ok(())
    }

    pub(super) const fn attributes(&self) -> SrqAttributes {
        SrqAttributes {
            max_wr: self.queue.max_wr,
            max_sge: self.queue.max_sge,
            limit: self.limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_api::{HostMemory, ReceiveMode, RecvRequest};
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Post(u64),
        Take,
        Modify(u32, Option<u32>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => any::<u64>().prop_map(Step::Post),
            3 => Just(Step::Take),
            1 => (0_u32..8, prop::option::of(1_u32..10)).prop_map(|(l, m)| Step::Modify(l, m)),
        ]
    }

    proptest! {
        /// IBA 10.2.9.2, 11.2.3.3: a bounded queue in order of posting; the limit fires once per
        /// arming, when fewer are left.
        #[test]
        fn a_shared_queue_is_a_bounded_fifo_with_a_one_shot_limit(
            steps in prop::collection::vec(step(), 0..64)
        ) {
            let memory = HostMemory::new();
            let mut srq = Srq::new(PdHandle(0), ReceiveQueue::new(ReceiveMode::Posted, 4, 1), 2);
            let (mut model, mut max, mut limit) = (Vec::new(), 4_usize, 2_usize);
            for step in steps {
                match step {
                    Step::Post(wr_id) => {
                        let posted = srq.queue.post(&RecvRequest { wr_id, scatter: &[] });
                        prop_assert_eq!(posted.is_ok(), model.len() < max);
                        if posted.is_ok() { model.push(wr_id); }
                    }
                    Step::Take => {
                        let taken = srq.take(&memory).map(|r| r.wr_id);
                        prop_assert_eq!(taken, (!model.is_empty()).then(|| model.remove(0)));
                        let fires = limit != 0 && model.len() < limit;
                        prop_assert_eq!(srq.limit_reached(&memory), fires);
                        if fires { limit = 0; }
                    }
                    Step::Modify(to, size) => {
                        let new_max = size.map_or(max, |s| s as usize);
                        let fits = to as usize <= new_max && model.len() <= new_max;
                        prop_assert_eq!(srq.modify(&memory, to, size).is_ok(), fits);
                        if fits { max = new_max; limit = to as usize; }
                    }
                }
                prop_assert_eq!(srq.queue.waiting(&memory), model.len());
            }
        }
    }
}
