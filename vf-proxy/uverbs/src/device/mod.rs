//! A function as the uverbs device of one process.

mod address;
mod completion;
mod completion_queue;
mod context;
mod events;
mod memory;
mod modify;
mod query;
mod queue_pair;
mod send_queue;
mod shared_receive_queue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hca_api::{
    AsyncEvent, AvHandle, Consumer, CqHandle, Hca, HcaEvent, MrHandle, MwHandle, PdHandle,
    QpHandle, SrqHandle,
};
use ib_vtime::{Duration, Instant};
use ib_wire::Qpn;
use verbs_link::{Budget, ChannelId, Charge, Command, Errno, EventQueue, Reply};
use vf_queues::Backlog;

use crate::ring::MAX_ELEMENT;
use crate::ring_memory::{Extents, RingMemory};
use crate::ring_pages::RingPages;

use completion_queue::Cq;
use queue_pair::Qp;
use shared_receive_queue::Srq;

/// An open file of a process. Never used again while the process has the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(pub u32);

/// An open file.
#[derive(Debug)]
struct Context {
    /// Channel of asynchronous events, once the context is made.
    events: Option<ChannelId>,
}

/// Kinds of objects, in the order in which they are destroyed: each before the kinds that it uses.
#[derive(Clone, Copy, Debug)]
enum Kind {
    QueuePairs,
    SharedReceiveQueues,
    CompletionQueues,
    Windows,
    Regions,
    Addresses,
    Domains,
}

/// A file that the process has closed, and whose objects are not all destroyed.
#[derive(Clone, Copy, Debug)]
struct ClosedFile {
    context: ContextId,
    /// Kind of the next object to look at.
    kind: Kind,
    /// Least handle of that object.
    handle: u32,
}

impl ClosedFile {
    const fn of(context: ContextId) -> Self {
        Self {
            context,
            kind: Kind::QueuePairs,
            handle: 0,
        }
    }
}

/// An object of a context.
#[derive(Debug)]
struct Owned<T> {
    context: ContextId,
    object: T,
    _charge: Charge,
}

/// Objects of a kind, by their handles.
#[derive(Debug)]
struct Objects<T>(BTreeMap<u32, Owned<T>>);

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Objects<T> {
    fn get(&self, context: ContextId, handle: u32) -> Result<&T, Errno> {
        let owned = self.0.get(&handle).filter(|owned| owned.context == context);
        owned.map(|owned| &owned.object).ok_or(Errno::EINVAL)
    }

    fn get_mut(&mut self, context: ContextId, handle: u32) -> Result<&mut T, Errno> {
        let owned = self.0.get_mut(&handle);
        let owned = owned.filter(|owned| owned.context == context);
        owned.map(|owned| &mut owned.object).ok_or(Errno::EINVAL)
    }
}

/// Pause before requests in a page that the budget did not have are looked at again.
const STARVED_PAUSE: Duration = Duration::from_millis(20);

/// Pause between looks at completion queues whose programs have yet to read: within it a program reads at most a ring.
const MOVE_PAUSE: Duration = Duration::from_millis(2);

/// A function as the device of a process: its contexts, their objects, and the rings that it shares with the process.
///
/// The owner gives commands and doorbells to it, passes on what [`Self::poll_event`] returns, and calls [`Self::release`] when
/// the process is gone: then the PF resets the function, and [`Self::is_free`] tells when another process may have it.
#[derive(Debug)]
pub struct ProcessDevice {
    /// Memory of the process that has the device.
    rings: Option<Arc<RingPages>>,
    budget: Budget,
    extents: Extents,
    contexts: BTreeMap<ContextId, Context>,
    /// Files that the process has closed, with objects that are not destroyed yet.
    closed: VecDeque<ClosedFile>,
    pds: Objects<PdHandle>,
    mrs: Objects<MrHandle>,
    mws: Objects<MwHandle>,
    ahs: Objects<AvHandle>,
    cqs: Objects<Cq>,
    srqs: Objects<Srq>,
    qps: Objects<Qp>,
    /// The bytes of the request that is carried out.
    element: Box<[u8; MAX_ELEMENT]>,
    qp_by_number: BTreeMap<Qpn, u32>,
    cq_by_provider: BTreeMap<CqHandle, u32>,
    next_handle: u32,
    next_context: u32,
    next_channel: u32,
    channels: BTreeMap<ChannelId, Owned<()>>,
    events: EventQueue,
    backlog: Backlog<u32, u32>,
    /// Completion queues with completions that wait for room in their rings.
    overflowing: BTreeSet<u32>,
    /// Queue pairs whose next requests are in a page that the budget does not have.
    starved: BTreeSet<u32>,
    /// Time of the next look at completions and requests that wait for memory.
    next_retry: Instant,
    /// The PF is to reset the function.
    reset_wanted: bool,
    /// The objects of a process that is gone still exist: the reset was asked for, or they are being destroyed.
    resetting: bool,
    /// Others use the function, which is never reset: a process that is gone leaves its objects to be destroyed one by one.
    shares_function: bool,
    /// Events that found their channel full or closed, or the budget used up.
    pub dropped_events: u64,
}

impl Default for ProcessDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcessDevice {
    /// Creates a device that no process has.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rings: None,
            budget: Budget::default(),
            extents: Extents::new(0),
            contexts: BTreeMap::new(),
            closed: VecDeque::new(),
            pds: Objects::default(),
            mrs: Objects::default(),
            mws: Objects::default(),
            ahs: Objects::default(),
            cqs: Objects::default(),
            srqs: Objects::default(),
            qps: Objects::default(),
            element: Box::new([0; MAX_ELEMENT]),
            qp_by_number: BTreeMap::new(),
            cq_by_provider: BTreeMap::new(),
            next_handle: 1,
            next_context: 1,
            next_channel: 1,
            channels: BTreeMap::new(),
            events: EventQueue::default(),
            backlog: Backlog::new(send_queue::PACE),
            overflowing: BTreeSet::new(),
            starved: BTreeSet::new(),
            next_retry: Instant::ZERO,
            reset_wanted: false,
            resetting: false,
            shares_function: false,
            dropped_events: 0,
        }
    }

    /// Creates the same on a function that others use, too. The objects of a process that is gone are destroyed one by one, and
    /// the function is not reset.
    #[must_use]
    pub fn on_shared_function() -> Self {
        Self {
            shares_function: true,
            ..Self::new()
        }
    }

    /// Returns `true` if a process can have the device.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.rings.is_none() && !self.resetting
    }

    /// Returns `true` while the function of a process that is gone is not reset, or has objects of it.
    #[must_use]
    pub const fn is_resetting(&self) -> bool {
        self.resetting
    }

    /// Assigns the device to a process that shares `rings` with it, and has this budget. Returns `false` if another has it.
    pub fn claim(&mut self, rings: Arc<dyn RingMemory>, budget: Budget) -> bool {
        let free = self.is_free();
        if free {
            self.extents = Extents::new(rings.len());
            self.rings = Some(Arc::new(RingPages::new(rings, &budget)));
            self.budget = budget;
        }
        free
    }

    /// Takes the device from its process: everything is gone, and the function is to be reset. On a function that others use, the
    /// next polls destroy what the process had.
    pub fn release(&mut self) {
        if self.rings.is_some() && self.shares_function {
            for context in core::mem::take(&mut self.contexts).into_keys() {
                self.closed.push_back(ClosedFile::of(context));
            }
            self.resetting = true;
        } else if self.rings.is_some() {
            self.forget();
            self.rings = None;
            self.budget = Budget::default();
            self.reset_wanted = true;
            self.resetting = true;
        }
    }

    /// Returns the queue pairs that exist.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        self.qps.0.len()
    }

    /// Returns the open files.
    #[must_use]
    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Returns the sends that were taken and have not completed.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let qps = self.qps.0.values();
        qps.map(|owned| owned.object.sent.in_flight()).sum()
    }

    /// Returns the queue pairs whose next sends wait for room.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let qps = self.qps.0.values();
        qps.filter(|owned| owned.object.sent.waits()).count()
    }

    /// Forgets every object, without the provider.
    fn forget(&mut self) {
        let (rings, resetting) = (self.rings.take(), self.resetting);
        *self = Self {
            rings,
            budget: self.budget.clone(),
            resetting,
            shares_function: self.shares_function,
            next_handle: self.next_handle,
            next_context: self.next_context,
            next_channel: self.next_channel,
            dropped_events: self.dropped_events,
            ..Self::new()
        };
    }

    /// Carries out a command of a file.
    ///
    /// # Errors
    /// The error number that the kernel would give.
    pub fn command(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        bytes: &[u8],
    ) -> Result<Reply, Errno> {
        let command = Command::decode(bytes)?;
        let mut done = self.carry_out(hca, context, &command);
        // A closed file has given back all that it had, as far as the process knows.
        while matches!(done, Err(Errno::ENOMEM)) && self.end_closed(hca) {
            done = self.carry_out(hca, context, &command);
        }
        let (answer, mut reply) = done?;
        reply.answer = command.answer(&answer)?;
        Ok(reply)
    }

    fn new_handle(&mut self) -> u32 {
        let handle = self.next_handle;
        self.next_handle = handle.checked_add(1).unwrap_or(1);
        handle
    }

    /// Returns the budget of the process that has the device.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Charges an object to the budget.
    fn charge(&self, bytes: u64) -> Result<Charge, Errno> {
        self.budget.charge(bytes).ok_or(Errno::ENOMEM)
    }

    fn rings(&self) -> Result<Arc<RingPages>, Errno> {
        self.rings.clone().ok_or(Errno::EIO)
    }
}

impl Consumer for ProcessDevice {
    fn handle_hca_event(&mut self, _: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        match event {
            HcaEvent::Completion(cq) => {
                if let Some(handle) = self.cq_by_provider.get(cq).copied() {
                    self.collect(hca, handle);
                }
            }
            HcaEvent::Async(AsyncEvent::FunctionReset) => {
                self.device_gone();
                self.resetting = false;
            }
            HcaEvent::Async(event) => self.handle_async(hca, *event),
        }
    }

    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        if let Some(handle) = self.backlog.take_uncollected() {
            self.collect(hca, handle);
        }
        if let Some(handle) = self.backlog.sends.take(now) {
            self.serve(hca, handle);
        }
        if let Some(handle) = self.backlog.take_failing() {
            self.fail_overrun(hca, handle);
        }
        if !self.end_closed(hca) && self.shares_function && self.resetting {
            self.forget();
            self.rings = None;
            self.budget = Budget::default();
            self.resetting = false;
        }
        if self.retries() && self.next_retry <= now {
            while let Some(handle) = self.starved.pop_first() {
                self.backlog.sends.add(handle);
            }
            let overflows = self.move_overflows();
            self.next_retry = now + if overflows { MOVE_PAUSE } else { STARVED_PAUSE };
        }
        self.flush_next(now, hca);
        self.ends_objects() || self.backlog.next().is_some_and(|next| next <= now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ends = self.ends_objects().then_some(Instant::ZERO);
        let retry = self.retries().then_some(self.next_retry);
        let next = [ends, self.backlog.next(), retry];
        next.into_iter().flatten().min()
    }

    fn take_reset_request(&mut self) -> bool {
        core::mem::take(&mut self.reset_wanted)
    }
}

/// Handles of the provider that name queue pairs and shared receive queues in events.
impl ProcessDevice {
    /// Returns `true` if there are objects of closed files, or of a process that is gone, to be destroyed.
    fn ends_objects(&self) -> bool {
        !self.closed.is_empty() || self.shares_function && self.resetting
    }

    /// Returns `true` if completions or requests wait for memory.
    fn retries(&self) -> bool {
        !self.starved.is_empty() || !self.overflowing.is_empty()
    }

    fn qp_of(&self, provider: QpHandle) -> Option<u32> {
        let mut qps = self.qps.0.iter();
        qps.find(|(_, owned)| owned.object.provider == provider)
            .map(|(handle, _)| *handle)
    }

    fn srq_of(&self, provider: SrqHandle) -> Option<u32> {
        let mut srqs = self.srqs.0.iter();
        srqs.find(|(_, owned)| owned.object.provider == provider)
            .map(|(handle, _)| *handle)
    }
}

#[cfg(test)]
mod tests;
