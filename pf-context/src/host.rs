//! A PF context and what runs on its VFs, on any adapter.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};

use hca_api::{Adapter, AddressSpace, Consumer, FunctionId, Hca};
use ib_vtime::Instant;
use thiserror::Error;
use vf_tunnel::VfId;

use crate::PfContext;
use crate::context::{PfConfig, PfError, VfSpec};

/// Why a consumer cannot have a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// There is no such VF.
    #[error("there is no {0}")]
    NoVf(VfId),
    /// Another consumer has it.
    #[error("{0} is in use")]
    InUse(VfId),
}

/// A host that shares its adapter: the PF context, and the [`Consumer`]s of its VFs.
///
/// Sans-I/O: the owner keeps the [`Adapter`] and lends it to each call, always the same one. The host is polled after any
/// other call, after whatever drives the adapter, and when [`PfHost::poll_timeout`] says so.
#[derive(Debug)]
pub struct PfHost {
    context: PfContext,
    consumers: BTreeMap<VfId, Box<dyn Consumer>>,
    /// Functions that may have something to do.
    waiting: BTreeSet<FunctionId>,
    /// The function that had its turn last.
    last: FunctionId,
}

/// What came of a VF's turn.
#[derive(Debug, Default)]
#[must_use]
pub struct VfTurn {
    /// The consumer may have more to do, for which its turn was too short.
    pub has_more: bool,
    /// Outcome of a reset that the consumer asked for. The VF has an event then, and the PF something to do.
    pub reset: Option<Result<(), PfError>>,
}

impl PfHost {
    /// Makes a host of a PF context whose VFs nothing runs on.
    #[must_use]
    pub const fn new(context: PfContext) -> Self {
        Self {
            context,
            consumers: BTreeMap::new(),
            waiting: BTreeSet::new(),
            last: FunctionId::PF,
        }
    }

    /// Takes an adapter's special QPs; see [`PfContext::open`].
    ///
    /// # Errors
    /// [`PfError`]; nothing is left behind then.
    pub fn open(
        now: Instant,
        adapter: &mut impl Adapter,
        config: &PfConfig,
    ) -> Result<Self, PfError> {
        let mut pf = adapter.function(FunctionId::PF).ok_or(NO_FUNCTION)?;
        PfContext::open(now, &mut pf, config).map(Self::new)
    }

    /// Returns the PF context.
    #[must_use]
    pub const fn context(&self) -> &PfContext {
        &self.context
    }

    /// Returns the PF context, to be used. What it wants to send leaves with the next poll.
    pub fn context_mut(&mut self) -> &mut PfContext {
        self.wake(FunctionId::PF);
        &mut self.context
    }

    /// Makes a VF on which nothing runs yet; see [`PfContext::add_vf`].
    ///
    /// # Errors
    /// [`PfError`].
    pub fn add_vf(
        &mut self,
        now: Instant,
        adapter: &mut impl Adapter,
        vf: VfId,
        spec: VfSpec,
    ) -> Result<(), PfError> {
        let mut pf = adapter.function(FunctionId::PF).ok_or(NO_FUNCTION)?;
        self.context_mut().add_vf(now, &mut pf, vf, spec)
    }

    /// Ends a VF and what runs on it; see [`PfContext::remove_vf`]. Returns the memory that the VF reached.
    ///
    /// # Errors
    /// [`PfError`].
    pub fn remove_vf(
        &mut self,
        now: Instant,
        adapter: &mut impl Adapter,
        vf: VfId,
    ) -> Result<Box<dyn AddressSpace>, PfError> {
        let mut pf = adapter.function(FunctionId::PF).ok_or(NO_FUNCTION)?;
        let memory = self.context_mut().remove_vf(now, &mut pf, vf)?;
        self.consumers.remove(&vf);
        Ok(memory)
    }

    /// Gives everything up; see [`PfContext::close`].
    pub fn close(self, now: Instant, adapter: &mut impl Adapter) {
        if let Some(mut pf) = adapter.function(FunctionId::PF) {
            self.context.close(now, &mut pf);
        }
    }

    /// Gives a VF to a consumer.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn place(&mut self, vf: VfId, consumer: Box<dyn Consumer>) -> Result<(), PlaceError> {
        if !self.context.vfs().any(|known| known == vf) {
            return Err(PlaceError::NoVf(vf));
        }
        if self.consumers.contains_key(&vf) {
            return Err(PlaceError::InUse(vf));
        }
        self.consumers.insert(vf, consumer);
        self.wake(vf.into());
        Ok(())
    }

    /// Takes a VF's consumer away, with whatever it has on the VF.
    pub fn take(&mut self, vf: VfId) -> Option<Box<dyn Consumer>> {
        self.consumers.remove(&vf)
    }

    /// Returns a VF's consumer.
    #[must_use]
    pub fn consumer(&self, vf: VfId) -> Option<&dyn Consumer> {
        self.consumers.get(&vf).map(AsRef::as_ref)
    }

    /// Returns a VF's consumer, to be used.
    pub fn consumer_mut(&mut self, vf: VfId) -> Option<&mut dyn Consumer> {
        self.wake(vf.into());
        self.consumers.get_mut(&vf).map(AsMut::as_mut)
    }

    /// Returns the VFs that have a consumer, with it, in the order of their numbers.
    pub fn consumers(&self) -> impl Iterator<Item = (VfId, &dyn Consumer)> {
        let all = self.consumers.iter();
        all.map(|(vf, consumer)| (*vf, consumer.as_ref()))
    }

    /// Calls something with a VF's consumer and its function. `None` if the VF has no consumer of this type.
    pub fn with_consumer<C: Consumer, T>(
        &mut self,
        adapter: &mut impl Adapter,
        vf: VfId,
        call: impl FnOnce(&mut C, &mut dyn Hca) -> T,
    ) -> Option<T> {
        self.wake(vf.into());
        let consumer = self.consumers.get_mut(&vf)?.downcast_mut()?;
        let mut function = adapter.function(vf.into())?;
        Some(call(consumer, &mut function))
    }

    /// Lets a VF's consumer do what is due, until `is_over`, and resets the VF if the consumer asks for that.
    pub fn poll_vf(
        &mut self,
        now: Instant,
        adapter: &mut impl Adapter,
        vf: VfId,
        is_over: &mut dyn FnMut() -> bool,
    ) -> VfTurn {
        let Some(consumer) = self.consumers.get_mut(&vf) else {
            return VfTurn::default();
        };
        let has_more = match adapter.function(vf.into()) {
            Some(mut function) => consumer.take_turn(now, &mut function, is_over),
            None => false,
        };
        let reset = consumer.take_reset_request().then(|| {
            let mut pf = adapter.function(FunctionId::PF).ok_or(NO_FUNCTION)?;
            self.context.reset_vf(now, &mut pf, vf)
        });
        VfTurn { has_more, reset }
    }

    /// Lets the PF and the consumers that have events, or whose time has come, do what is due, in turns, until all are
    /// quiet or `is_over`, which is asked after each part. Returns `true` if there is more to do at once.
    ///
    /// # Errors
    /// [`PfError`] of a reset that a consumer asked for: a fault of the adapter.
    pub fn poll(
        &mut self,
        now: Instant,
        adapter: &mut impl Adapter,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<bool, PfError> {
        self.wake_due(now);
        loop {
            while let Some(ready) = adapter.poll_ready() {
                self.wake(ready);
            }
            let Some(function) = self.next_waiting() else {
                return Ok(false);
            };
            let has_more = match VfId::new(function.0) {
                Some(vf) => {
                    let turn = self.poll_vf(now, adapter, vf, is_over);
                    if let Some(reset) = turn.reset {
                        self.wake(FunctionId::PF);
                        self.wake(function);
                        reset?;
                    }
                    turn.has_more
                }
                None => self.poll_pf(now, adapter, is_over),
            };
            if has_more {
                self.wake(function);
            }
            if is_over() {
                return Ok(!self.waiting.is_empty());
            }
        }
    }

    fn poll_pf(
        &mut self,
        now: Instant,
        adapter: &mut impl Adapter,
        is_over: &mut dyn FnMut() -> bool,
    ) -> bool {
        let Some(mut pf) = adapter.function(FunctionId::PF) else {
            return false;
        };
        while let Some(event) = pf.poll_event() {
            self.context.handle_hca_event(now, &mut pf, &event);
        }
        while self.context.poll(now, &mut pf) {
            if is_over() {
                return true;
            }
        }
        false
    }

    /// Returns when to poll at the latest; a time that has passed means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.waiting.is_empty() {
            return Some(Instant::ZERO);
        }
        let consumers = self.consumers.values();
        let consumers = consumers.filter_map(|consumer| consumer.poll_timeout());
        consumers.chain(self.context.poll_timeout()).min()
    }

    /// Takes the function whose turn it is: the one behind that which had the last, in the order of their numbers.
    fn next_waiting(&mut self) -> Option<FunctionId> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.waiting.range(behind).next();
        let next = *next.or_else(|| self.waiting.first())?;
        self.waiting.remove(&next);
        self.last = next;
        Some(next)
    }

    fn wake(&mut self, function: FunctionId) {
        self.waiting.insert(function);
    }

    fn wake_due(&mut self, now: Instant) {
        let is_due = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        if is_due(self.context.poll_timeout()) {
            self.wake(FunctionId::PF);
        }
        let consumers = self.consumers.iter();
        let due: Vec<VfId> = consumers
            .filter(|(_, consumer)| is_due(consumer.poll_timeout()))
            .map(|(vf, _)| *vf)
            .collect();
        for vf in due {
            self.wake(vf.into());
        }
    }
}

const NO_FUNCTION: PfError = PfError::Hca(hca_api::HcaError::InvalidParameter);
