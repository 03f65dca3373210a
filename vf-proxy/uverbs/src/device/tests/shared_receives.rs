//! Shared receive queues whose size changes.

use hca_api::{AsyncEvent, HcaEvent, HostMemory, PulledReceives, SrqHandle};
use verbs_link::abi::ring::{CONSUMER_INDEX, RECEIVE_HEADER};
use verbs_link::abi::shared_receive_queue::{
    CreateSrq, CreateSrqAnswer, ModifySrq, QuerySrqAnswer, RxeCreateSrqAnswer, RxeModifySrq,
};

use super::*;
use crate::ring::SharedReceiveSource;

/// A queue of 3 receives without a list, which has some.
struct Queue {
    process: Process,
    handle: u32,
    ring: MappedRing,
    /// Address of the place of a new ring, in the program's memory.
    answer: u64,
}

#[derive(Clone, Copy)]
struct Wanted {
    mask: u32,
    max_wr: u32,
    limit: u32,
}

impl Queue {
    fn new(posted: u32) -> Self {
        let mut process = Process::new();
        let (pd, ()): (HandleAnswer, ()) = process.ask(command::ALLOC_PD, &0_u64);
        let create = CreateSrq {
            pd_handle: pd.handle,
            max_wr: 3.into(),
            max_sge: 1.into(),
            ..CreateSrq::default()
        };
        let (srq, place): (CreateSrqAnswer, RxeCreateSrqAnswer) =
            process.ask(command::CREATE_SRQ, &create);
        let answer = process.with(|_, hca| hca.allocate_dma(64).unwrap().addr);
        let mut queue = Self {
            process,
            handle: srq.srq_handle.get(),
            ring: place.ring,
            answer,
        };
        (0..posted).for_each(|index| queue.post(index, index));
        queue
    }

    /// Posts a receive whose name is its number plus 7.
    fn post(&mut self, number: u32, index: u32) {
        let request = ReceiveElement {
            wr_id: u64::from(number + 7).into(),
            ..ReceiveElement::default()
        };
        let size = (RECEIVE_HEADER + 16).next_power_of_two() as u64;
        let at = self.ring.offset.get() + RING_HEADER;
        let rings = &self.process.rings;
        rings.store_at(at + u64::from(index) * size, request.as_bytes());
        rings.store(self.ring.offset.get() + PRODUCER_INDEX, index + 1);
    }

    fn modify(&mut self, to: u64, wanted: Wanted) -> Result<(), Errno> {
        let core = ModifySrq {
            srq_handle: self.handle.into(),
            attr_mask: wanted.mask.into(),
            max_wr: wanted.max_wr.into(),
            srq_limit: wanted.limit.into(),
        };
        let own = RxeModifySrq {
            mmap_info_addr: to.into(),
        };
        let mut payload = [0; size_of::<ModifySrq>() + size_of::<RxeModifySrq>()];
        payload[..16].copy_from_slice(core.as_bytes());
        payload[16..].copy_from_slice(own.as_bytes());
        let done = self.process.command(command::MODIFY_SRQ, &payload, 0);
        done.map(|_| ())
    }

    /// Returns the size and the limit.
    fn query(&mut self) -> (u32, u32) {
        let query = AnsweredHandleCommand {
            handle: self.handle.into(),
            ..AnsweredHandleCommand::default()
        };
        let (seen, ()): (QuerySrqAnswer, ()) = self.process.ask(command::QUERY_SRQ, &query);
        (seen.max_wr.get(), seen.srq_limit.get())
    }

    fn provider(&self) -> SrqHandle {
        self.process.device.srqs.0[&self.handle].object.provider
    }
}

#[test]
fn a_shared_queue_goes_on_in_a_ring_of_another_size_with_the_receives_that_wait() {
    let mut queue = Queue::new(3);
    let (answer, old) = (queue.answer, queue.ring.offset.get());
    let limit = Wanted {
        mask: 2,
        max_wr: 0,
        limit: 2,
    };
    queue.modify(answer, limit).unwrap();
    let larger = Wanted {
        mask: 1,
        max_wr: 10,
        limit: 0,
    };
    queue.modify(answer, larger).unwrap();
    assert_eq!(queue.query(), (15, 2), "the limit stays");
    let mut place = MappedRing::default();
    queue
        .process
        .with(|_, hca| hca.dma_read(answer, place.as_mut_bytes()).unwrap());
    assert_ne!(place.offset.get(), old);
    queue.ring = place;
    let rings = queue.process.rings.clone();
    assert_eq!(rings.load(place.offset.get() + PRODUCER_INDEX), 3);
    assert_eq!(rings.load(place.offset.get() + CONSUMER_INDEX), 0);
    queue.post(3, 3);
    let current = queue.process.device.srqs.0[&queue.handle]
        .object
        .ring
        .clone();
    let memory = HostMemory::new();
    let mut source = SharedReceiveSource(current);
    assert_eq!(source.pending(&memory), 4);
    let names = core::iter::from_fn(|| source.pull(&memory, &mut Vec::new()));
    assert_eq!(names.collect::<Vec<_>>(), [7, 8, 9, 10]);
    // A limit above the receives that are left is reached at once.
    queue.modify(answer, limit).unwrap();
    let told = queue.process.with(|_, hca| hca.poll_event());
    let reached = AsyncEvent::SrqLimitReached(queue.provider());
    assert_eq!(told, Some(HcaEvent::Async(reached)));
}

#[test]
fn sizes_that_do_not_hold_what_waits_or_what_is_wanted_are_refused_and_change_nothing() {
    let mut queue = Queue::new(3);
    let answer = queue.answer;
    for (to, mask, max_wr, limit, error) in [
        (answer, 1, 2, 0, Errno::EINVAL),
        (answer, 1, 0, 0, Errno::EINVAL),
        (answer, 1, u32::MAX, 0, Errno::EINVAL),
        (answer, 3, 7, 8, Errno::EINVAL),
        (answer, 4, 7, 0, Errno::EINVAL),
        (u64::MAX, 1, 7, 0, Errno::EFAULT),
    ] {
        let wanted = Wanted {
            mask,
            max_wr,
            limit,
        };
        assert_eq!(queue.modify(to, wanted), Err(error), "{mask} {max_wr}");
        assert_eq!(queue.query(), (3, 0));
    }
}
