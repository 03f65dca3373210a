//! Completion queues: rings, and when the program wants an event.

use hca_api::{
    ArmKind, Completion, CompletionFlags, CompletionOp, CompletionStatus, CqHandle, Hca,
};
use ib_wire::Qpn;

use super::completion::{element, is_receive};
use super::{ChannelId, ContextId, Owned, ProcessDevice};
use crate::abi::AnsweredHandleCommand;
use crate::abi::completion_queue::{
    CreateCq, CreateCqAnswer, DestroyCqAnswer, ExtendedCreateCq, ExtendedCreateCqAnswer,
    ReqNotifyCq, ResizeCq, ResizeCqAnswer, RxeCqAnswer, event_type,
};
use crate::abi::ring::CompletionElement;
use crate::budget::cost;
use crate::ring::{CompletionRing, Ring};
use crate::{Answer, Command, Errno, Reply, RetiredEvents};

/// Completions that are moved at a time.
const BATCH: usize = 64;

/// Batches of a queue before others have their turn.
const BATCHES: usize = 16;

/// Flags of the extended CREATE_CQ that change nothing here: a queue that overruns fails whatever they say.
const IGNORE_OVERRUN: u32 = 2;

/// A completion to be overwritten.
const BLANK: Completion = Completion {
    wr_id: 0,
    status: CompletionStatus::Success,
    op: CompletionOp::Send,
    qpn: Qpn::SMI,
    byte_len: 0,
    immediate: 0,
    flags: CompletionFlags::empty(),
    source: None,
};

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) provider: CqHandle,
    ring: CompletionRing,
    channel: Option<ChannelId>,
    pub(super) user_handle: u64,
    armed: Option<ArmKind>,
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
    /// Returns how many completions the ring has room for.
    pub(super) const fn entries(&self) -> u32 {
        self.ring.capacity()
    }
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
        let ring = Ring::new(
            &rings,
            &mut self.extents,
            cqe,
            size_of::<CompletionElement>(),
        );
        let ring = ring.ok_or(Errno::ENOMEM)?;
        // The provider completes every send, told to the program or not.
        let made = hca.create_cq(provider_entries(hca, ring.capacity()));
        let armed = made.and_then(|cq| hca.arm_cq(cq, ArmKind::Next).map(|_| cq));
        let provider = match armed {
            Ok(provider) => provider,
            Err(error) => {
                ring.give_back(&mut self.extents);
                return Err(error.into());
            }
        };
        let (capacity, place) = (ring.capacity(), ring.place());
        let object = Cq {
            provider,
            ring: CompletionRing::new(ring),
            channel,
            user_handle: asked.user_handle.get(),
            armed: None,
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
        if cq.ring.waiting() > cqe {
            return Err(Errno::EINVAL);
        }
        let ring = Ring::new(
            &rings,
            &mut self.extents,
            cqe,
            size_of::<CompletionElement>(),
        );
        let ring = ring.ok_or(Errno::ENOMEM)?;
        if !ring.reach(cq.ring.waiting()) {
            ring.give_back(&mut self.extents);
            return Err(Errno::ENOMEM);
        }
        if let Err(error) = hca.resize_cq(cq.provider, provider_entries(hca, ring.capacity())) {
            ring.give_back(&mut self.extents);
            return Err(error.into());
        }
        let (capacity, place) = (ring.capacity(), ring.place());
        cq.ring.move_to(ring).give_back(&mut self.extents);
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
        let cq = self.cqs.get_mut(context, asked.cq_handle.get())?;
        // A queue that waits for any completion is not made to wait for solicited ones only.
        cq.armed = match (asked.solicited_only.get(), cq.armed) {
            (0, _) | (_, Some(ArmKind::Next)) => Some(ArmKind::Next),
            _ => Some(ArmKind::Solicited),
        };
        Ok(Answer::default())
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
            self.uncollected.remove(&handle);
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
        let mut batch = [BLANK; BATCH];
        for _ in 0..BATCHES {
            let count = hca.poll_cq(provider, &mut batch).unwrap_or(0);
            for completion in &batch[..count] {
                self.deliver(handle, completion);
            }
            if count < batch.len() && hca.arm_cq(provider, ArmKind::Next) != Ok(true) {
                return;
            }
        }
        self.uncollected.insert(handle);
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
            self.failed.insert(qp);
        }
        self.push(cq, &told);
    }

    /// Writes a completion into a ring.
    pub(super) fn push(&mut self, handle: u32, completion: &Completion) {
        let Some(cq) = self.cqs.0.get_mut(&handle).map(|cq| &mut cq.object) else {
            return;
        };
        if cq.failed {
            return;
        }
        if !cq.ring.push(&element(completion)) {
            cq.failed = true;
            self.tell_of_cq(handle, event_type::CQ_ERR);
            return;
        }
        let solicited = completion.flags.contains(CompletionFlags::SOLICITED)
            || completion.status != CompletionStatus::Success;
        let due = match cq.armed {
            Some(ArmKind::Next) => true,
            Some(ArmKind::Solicited) => solicited,
            None => false,
        };
        if due {
            cq.armed = None;
            let (channel, user_handle) = (cq.channel, cq.user_handle);
            if channel.is_some_and(|channel| self.tell_completion(channel, user_handle))
                && let Some(cq) = self.cqs.0.get_mut(&handle)
            {
                cq.object.completion_events += 1;
            }
        }
    }
}

/// Checks the number of entries that a program asks for.
fn entries(hca: &dyn Hca, cqe: u32) -> Result<u32, Errno> {
    let most = hca.attributes().limits.max_cqe / 2 - 1;
    (1..=most)
        .contains(&cqe)
        .then_some(cqe)
        .ok_or(Errno::EINVAL)
}

/// Returns the entries of the provider's queue behind one of the program's.
fn provider_entries(hca: &dyn Hca, entries: u32) -> u32 {
    const LEAST: u32 = 1 << 12;

    let most = hca.attributes().limits.max_cqe;
    entries.saturating_mul(2).max(LEAST).min(most)
}
