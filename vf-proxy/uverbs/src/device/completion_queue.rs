//! Completion queues: rings, and when the program wants an event.

use std::sync::Arc;

use hca_api::{ArmKind, Completion, CompletionFlags, CompletionStatus, CqHandle, Hca};
use verbs_link::abi::AnsweredHandleCommand;
use verbs_link::abi::completion_queue::{
    CreateCq, CreateCqAnswer, DestroyCqAnswer, ExtendedCreateCq, ExtendedCreateCqAnswer,
    ReqNotifyCq, ResizeCq, ResizeCqAnswer, RxeCqAnswer, event_type,
};
use verbs_link::abi::ring::CompletionElement;
use verbs_link::budget::cost;
use verbs_link::{Answer, Budget, ChannelId, Command, Errno, Reply, RetiredEvents};
use vf_queues::{Arming, Event, collect, create_cq, is_receive, resize_cq};

use super::completion::element;
use super::{ContextId, Owned, ProcessDevice};
use crate::overflow::{Overflow, Waiting};
use crate::ring::{CompletionRing, Ring};
use crate::ring_memory::Extents;
use crate::ring_pages::RingPages;

/// Completions that are moved at a time.
const BATCH: usize = 64;

/// Batches of a queue before others have their turn.
const BATCHES: usize = 16;

/// Flags of the extended CREATE_CQ that change nothing here: a queue that overruns fails whatever they say.
const IGNORE_OVERRUN: u32 = 2;

/// Most entries of a ring. Completions of a larger queue that the program leaves unread wait behind it.
const LONGEST_RING: u32 = (1 << 15) - 1;

/// Most entries of a queue, as an mlx5 adapter has them.
const MAX_ENTRIES: u32 = (1 << 22) - 1;

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) provider: CqHandle,
    ring: CompletionRing,
    /// Completions for which the ring has no room yet.
    overflow: Overflow,
    /// Entries that the program was granted, which may be more than the ring has.
    capacity: u32,
    channel: Option<ChannelId>,
    pub(super) user_handle: u64,
    arming: Arming,
    /// Index behind the last solicited completion in the ring.
    behind_solicited: u32,
    /// The ring is another than at the last time that the program armed the queue.
    is_moved: bool,
    /// Completion events that were passed on.
    completion_events: u32,
    /// Asynchronous events that were passed on.
    pub(super) async_events: u32,
    /// The ring overflowed: nothing more is written.
    failed: bool,
    /// Work queues that complete here.
    pub(super) users: u32,
}

impl Cq {
    /// Returns how many completions the queue has room for.
    pub(super) const fn entries(&self) -> u32 {
        self.capacity
    }

    /// Returns the completions that the program has not taken.
    fn waiting(&mut self) -> u32 {
        self.ring.waiting() + self.overflow.len()
    }

    /// Adds a completion. Returns `false` if the queue is full, or the budget used up.
    fn add(&mut self, budget: &Budget, waiting: Waiting) -> bool {
        if self.overflow.is_empty() && self.write(&waiting) {
            return true;
        }
        self.waiting() < self.capacity && self.overflow.push(budget, waiting)
    }

    /// Moves completions into the ring, as far as there is room. Returns `true` if a moved one wakes the program.
    fn move_waiting(&mut self) -> bool {
        let mut wakes = false;
        while let Some(first) = self.overflow.first().cloned()
            && self.write(&first)
        {
            wakes |= self.wakes(first.solicited);
            self.overflow.remove_first();
        }
        wakes
    }

    /// Writes a completion to the ring. Returns `false` if there is no room.
    fn write(&mut self, waiting: &Waiting) -> bool {
        let written = self.ring.push(&waiting.element);
        if written && waiting.solicited {
            self.behind_solicited = self.ring.producer();
        }
        written
    }

    /// Arms the queue: the next completion wakes the program.
    const fn arm(&mut self, solicited_only: bool) {
        // A queue that waits for any completion is not made to wait for solicited ones only.
        let kind = match (solicited_only, self.arming.armed()) {
            (false, _) | (_, Some(ArmKind::Next)) => ArmKind::Next,
            _ => ArmKind::Solicited,
        };
        self.arming.arm(Some(kind));
    }

    /// Returns `true` if one came for which the program waits since it saw the ring with a producer index.
    fn has_missed(&mut self, seen: u32) -> bool {
        let is_moved = core::mem::take(&mut self.is_moved);
        let ring = self.ring.ring();
        let came = ring.distance(seen, self.ring.producer());
        let solicited = ring.distance(seen, self.behind_solicited);
        let any_solicited = (1..=came).contains(&solicited);
        is_moved || came > 0 && self.wakes(any_solicited)
    }

    /// Returns `true` if the program waits for a completion of a kind, and waits no longer: it is to be woken.
    fn wakes(&mut self, solicited: bool) -> bool {
        self.arming.complete(solicited) == Event::Due
    }
}

/// Creates the ring of a queue of so many entries. Returns it with the entries that the program is granted.
fn new_ring(rings: &Arc<RingPages>, extents: &mut Extents, cqe: u32) -> Result<(Ring, u32), Errno> {
    let size = size_of::<CompletionElement>();
    let ring = Ring::new(rings, extents, cqe.min(LONGEST_RING), size);
    let ring = ring.ok_or(Errno::ENOMEM)?;
    let capacity = match cqe {
        0..=LONGEST_RING => ring.capacity(),
        _ => (cqe + 1).next_power_of_two() - 1,
    };
    Ok((ring, capacity))
}

impl ProcessDevice {
    pub(super) fn create_cq(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
        extended: bool,
    ) -> Result<Answer, Errno> {
        let asked = if extended {
            command.read_padded::<ExtendedCreateCq>(size_of::<ExtendedCreateCq>())?
        } else {
            let (asked, _) = command.read::<CreateCq>()?;
            ExtendedCreateCq {
                user_handle: asked.user_handle,
                cqe: asked.cqe,
                comp_vector: asked.comp_vector,
                comp_channel: asked.comp_channel,
                ..ExtendedCreateCq::default()
            }
        };
        if asked.comp_mask.get() != 0 || asked.comp_vector.get() != 0 {
            return Err(Errno::EINVAL);
        }
        if asked.flags.get() & !IGNORE_OVERRUN != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let channel = match u32::try_from(asked.comp_channel.get()) {
            Ok(id) => Some(self.channel_of(context, ChannelId(id))?),
            Err(_) => None,
        };
        let cqe = entries(hca, asked.cqe.get())?;
        let rings = self.rings()?;
        let _charge = self.charge(cost::COMPLETION_QUEUE)?;
        let (ring, capacity) = new_ring(&rings, &mut self.extents, cqe)?;
        let provider = match create_cq(hca, capacity) {
            Ok(provider) => provider,
            Err(error) => {
                ring.give_back(&mut self.extents);
                return Err(error.into());
            }
        };
        let place = ring.place();
        let object = Cq {
            provider,
            ring: CompletionRing::new(ring),
            overflow: Overflow::default(),
            capacity,
            channel,
            user_handle: asked.user_handle.get(),
            arming: Arming::default(),
            behind_solicited: 0,
            is_moved: false,
            completion_events: 0,
            async_events: 0,
            failed: false,
            users: 0,
        };
        let handle = self.new_handle();
        let owned = Owned {
            context,
            object,
            _charge,
        };
        self.cqs.0.insert(handle, owned);
        self.cq_by_provider.insert(provider, handle);
        let base = CreateCqAnswer {
            cq_handle: handle.into(),
            cqe: capacity.into(),
        };
        let answer = if extended {
            let length = size_of::<ExtendedCreateCqAnswer>();
            Answer::new(&ExtendedCreateCqAnswer {
                base,
                comp_mask: 0.into(),
                response_length: u32::try_from(length).unwrap_or(0).into(),
            })
        } else {
            Answer::new(&base)
        };
        Ok(answer.with(&RxeCqAnswer { ring: place }))
    }

    fn channel_of(&self, context: ContextId, channel: ChannelId) -> Result<ChannelId, Errno> {
        let own = self.channels.get(&channel);
        let own = own.is_some_and(|own| own.context == context);
        own.then_some(channel).ok_or(Errno::EINVAL)
    }

    pub(super) fn resize_cq(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<ResizeCq>()?;
        let handle = asked.cq_handle.get();
        let cqe = entries(hca, asked.cqe.get())?;
        let rings = self.rings()?;
        self.cqs.get(context, handle)?;
        // Completions that the program can expect count, though nobody has moved them yet.
        self.collect(hca, handle);
        let cq = self.cqs.get_mut(context, handle)?;
        if cq.waiting() > cqe {
            return Err(Errno::EINVAL);
        }
        let (ring, capacity) = new_ring(&rings, &mut self.extents, cqe)?;
        if !ring.reach(cq.ring.waiting()) {
            ring.give_back(&mut self.extents);
            return Err(Errno::ENOMEM);
        }
        if let Err(error) = resize_cq(hca, cq.provider, capacity) {
            ring.give_back(&mut self.extents);
            return Err(error.into());
        }
        let place = ring.place();
        cq.ring.move_to(ring).give_back(&mut self.extents);
        cq.capacity = capacity;
        cq.is_moved = true;
        self.move_waiting(handle);
        let answer = ResizeCqAnswer {
            cqe: capacity.into(),
            reserved: 0.into(),
        };
        Ok(Answer::new(&answer).with(&RxeCqAnswer { ring: place }))
    }

    pub(super) fn req_notify_cq(
        &mut self,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<ReqNotifyCq>()?;
        let handle = asked.cq_handle.get();
        let cq = self.cqs.get_mut(context, handle)?;
        cq.arm(asked.solicited_only.get() != 0);
        cq.is_moved = false;
        // The program has read what there was, and waits.
        self.move_waiting(handle);
        Ok(Answer::default())
    }

    /// Arms a completion queue of a program, as REQ_NOTIFY_CQ did at the time at which the program saw a producer index of the ring:
    /// one that came since wakes it at once.
    pub fn arm(&mut self, context: ContextId, cq: u32, solicited_only: bool, seen: u32) {
        let Ok(queue) = self.cqs.get_mut(context, cq) else {
            return;
        };
        queue.arm(solicited_only);
        if queue.has_missed(seen) {
            self.wake(cq);
        }
        self.move_waiting(cq);
    }

    pub(super) fn destroy_cq(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<(Answer, Reply), Errno> {
        let (asked, _) = command.read::<AnsweredHandleCommand>()?;
        let handle = asked.handle.get();
        let cq = self.cqs.get(context, handle)?;
        if cq.users > 0 {
            return Err(Errno::EBUSY);
        }
        let answer = DestroyCqAnswer {
            comp_events_reported: cq.completion_events.into(),
            async_events_reported: cq.async_events.into(),
        };
        let element = cq.user_handle;
        let retired = |channel, offset| RetiredEvents {
            channel,
            element,
            offset,
        };
        let completion = cq.channel.map(|channel| retired(channel, 0));
        let events = self.contexts.get(&context).and_then(|known| known.events);
        let reply = Reply {
            retired: completion
                .into_iter()
                .chain(events.map(|channel| retired(channel, 4)))
                .collect(),
            ..Reply::default()
        };
        self.end_cq(hca, handle);
        Ok((Answer::new(&answer), reply))
    }

    pub(super) fn end_cq(&mut self, hca: &mut dyn Hca, handle: u32) {
        if let Some(owned) = self.cqs.0.remove(&handle) {
            let cq = owned.object;
            self.cq_by_provider.remove(&cq.provider);
            self.backlog.remove_cq(handle);
            self.overflowing.remove(&handle);
            // Nothing completes there any more.
            let _ = hca.destroy_cq(cq.provider);
            cq.ring.ring().give_back(&mut self.extents);
        }
    }

    /// Moves the completions of a queue to the program, and asks to be told of the next.
    pub(super) fn collect(&mut self, hca: &mut dyn Hca, handle: u32) {
        let Some(provider) = self.cqs.0.get(&handle).map(|cq| cq.object.provider) else {
            return;
        };
        let more = collect::<BATCH>(hca, provider, BATCHES, |_, completion| {
            self.deliver(handle, completion);
        });
        if more {
            self.backlog.collect(handle);
        }
    }

    /// Reports a completion to the program. One of a queue pair that is gone tells nobody anything.
    fn deliver(&mut self, cq: u32, completion: &Completion) {
        let Some(qp) = self.qp_by_number.get(&completion.qpn).copied() else {
            return;
        };
        let mut told = *completion;
        if !is_receive(completion.op) {
            let Some(sent) = self.sent(qp) else { return };
            let failed = completion.status != CompletionStatus::Success;
            if !sent.signaled && !failed {
                return;
            }
            told.wr_id = sent.wr_id;
        }
        if completion.status != CompletionStatus::Success {
            self.backlog.flush.add(qp);
        }
        self.push(cq, &told);
    }

    /// Adds a completion to a queue.
    pub(super) fn push(&mut self, handle: u32, completion: &Completion) {
        self.move_waiting(handle);
        let Some(cq) = self.cqs.0.get_mut(&handle).map(|cq| &mut cq.object) else {
            return;
        };
        if cq.failed {
            return;
        }
        let solicited = completion.flags.contains(CompletionFlags::SOLICITED)
            || completion.status != CompletionStatus::Success;
        let element = element(completion);
        if !cq.add(&self.budget, Waiting { element, solicited }) {
            cq.failed = true;
            self.tell_of_cq(handle, event_type::CQ_ERR);
            let users = self
                .qps
                .0
                .iter()
                .filter(|(_, qp)| qp.object.completes_at(handle));
            self.backlog.fail(users.map(|(qp, _)| *qp));
            return;
        }
        if !cq.overflow.is_empty() {
            self.overflowing.insert(handle);
        }
        if cq.wakes(solicited) {
            self.wake(handle);
        }
    }

    /// Moves completions that wait for room into the rings of their queues. Returns `true` if there are any left.
    pub(super) fn move_overflows(&mut self) -> bool {
        let handles: Vec<u32> = self.overflowing.iter().copied().collect();
        for handle in handles {
            self.move_waiting(handle);
        }
        !self.overflowing.is_empty()
    }

    /// Moves completions of a queue that wait for room into its ring.
    fn move_waiting(&mut self, handle: u32) {
        if !self.overflowing.contains(&handle) {
            return;
        }
        let Some(cq) = self.cqs.0.get_mut(&handle).map(|cq| &mut cq.object) else {
            return;
        };
        let wakes = cq.move_waiting();
        if cq.overflow.is_empty() {
            self.overflowing.remove(&handle);
        }
        if wakes {
            self.wake(handle);
        }
    }

    /// Reports to a program that a completion came for which it waits.
    fn wake(&mut self, handle: u32) {
        let Some(cq) = self.cqs.0.get_mut(&handle).map(|cq| &mut cq.object) else {
            return;
        };
        cq.arming.arm(None);
        let (channel, user_handle) = (cq.channel, cq.user_handle);
        if channel.is_some_and(|channel| self.tell_completion(channel, user_handle))
            && let Some(cq) = self.cqs.0.get_mut(&handle)
        {
            cq.object.completion_events += 1;
        }
    }
}

/// Returns the most entries of a queue: the provider's has two for each.
pub(super) fn max_entries(hca: &dyn Hca) -> u32 {
    MAX_ENTRIES.min(hca.attributes().limits.max_cqe / 2 - 1)
}

/// Checks the number of entries that a program asks for.
fn entries(hca: &dyn Hca, cqe: u32) -> Result<u32, Errno> {
    (1..=max_entries(hca))
        .contains(&cqe)
        .then_some(cqe)
        .ok_or(Errno::EINVAL)
}
