//! A function: who owns what, and what its consumer sees of the ports.

use hca_api::{
    AddressVector, AsyncEvent, Cause, Completion, CompletionStatus, CqHandle, FunctionId,
    FunctionSpec, HcaError, MrHandle, PdHandle, Privileges, QpHandle, QpState, ResourceCounts,
    SpecialQp, SrqHandle, VirtualPort,
};
use hca_functions::{Added, CompletionQueue, EventQueue, Receive};
use ib_vtime::Secret;
use ib_wire::{Guid, PKeyIndex, PortNum};
use slab::Slab;

use super::connected::Connected;
use super::connection_counters::ConnectionCounters;
use super::held::Held;
use super::memory::Memory;
use super::qp::{Qp, Side};
use super::srq::Srq;

/// A protection domain.
#[derive(Debug, Default)]
pub(super) struct Pd {
    /// Objects that belong to it.
    users: u32,
}

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Av {
    pub(super) pd: PdHandle,
    pub(super) vector: AddressVector,
}

/// What a function has of one port.
#[derive(Debug, Default)]
pub(super) struct FunctionPort {
    /// What the PF shows; not used by the PF itself.
    pub(super) view: VirtualPort,
    /// Bits of PortInfo:CapabilityMask that the consumer set.
    pub(super) capabilities: u32,
    /// The function's QP0 and QP1: proxies, or of the PF the special queue pairs themselves.
    specials: [Option<u32>; 2],
}

impl FunctionPort {
    pub(super) const fn special(&self, special: SpecialQp) -> Option<u32> {
        self.specials[special as usize]
    }

    pub(super) const fn set_special(&mut self, special: SpecialQp, qp: Option<u32>) {
        self.specials[special as usize] = qp;
    }
}

/// A function of the adapter.
#[derive(Debug)]
pub(super) struct FunctionState {
    pub(super) id: FunctionId,
    pub(super) privileges: Privileges,
    pub(super) node_guid: Guid,
    quota: ResourceCounts,
    ports: Vec<FunctionPort>,
    pub(super) memory: Memory,
    pds: Slab<Pd>,
    pub(super) avs: Slab<Av>,
    pub(super) cqs: Slab<CompletionQueue>,
    pub(super) srqs: Slab<Srq>,
    pub(super) qps: Slab<Qp>,
    pub(super) events: EventQueue,
    /// Queue pairs of completion queues that overran, which are to go to ERR.
    pub(super) overrun: Vec<QpHandle>,
    /// Whether it is among the device's stirred functions.
    pub(super) stirred: bool,
    attachments: u32,
    /// QP numbers set aside and not in use.
    pub(super) reserved_qpns: u32,
    /// Messages for the function while it is held.
    pub(super) held: Option<Box<Held>>,
    /// Sums over its connections, those that are gone included.
    pub(super) connections: ConnectionCounters,
}

impl FunctionState {
    pub(super) fn new(
        spec: FunctionSpec,
        privileges: Privileges,
        ports: u8,
        secret: Secret,
    ) -> Self {
        Self {
            id: spec.id,
            privileges,
            node_guid: spec.node_guid,
            quota: spec.quota,
            ports: (0..ports).map(|_| FunctionPort::default()).collect(),
            memory: Memory::new(spec.memory, secret),
            pds: Slab::new(),
            avs: Slab::new(),
            cqs: Slab::new(),
            srqs: Slab::new(),
            qps: Slab::new(),
            events: EventQueue::default(),
            overrun: Vec::new(),
            stirred: false,
            attachments: 0,
            reserved_qpns: 0,
            held: None,
            connections: ConnectionCounters::default(),
        }
    }

    /// Destroys everything that the function owns; nothing completes.
    pub(super) fn reset(&mut self) {
        self.memory.reset();
        self.pds.clear();
        self.avs.clear();
        self.cqs.clear();
        self.srqs.clear();
        self.qps.clear();
        self.events.reset();
        self.overrun.clear();
        self.attachments = 0;
        self.reserved_qpns = 0;
        // Messages for queue pairs that are gone go with them. A held function stays so.
        if let Some(held) = &mut self.held {
            **held = Held::default();
        }
        for port in &mut self.ports {
            port.specials = [None; 2];
            port.capabilities = 0;
        }
    }

    pub(super) fn has(&self, privilege: Privileges) -> bool {
        self.privileges.contains(privilege)
    }

    pub(super) fn port(&self, port: PortNum) -> Option<&FunctionPort> {
        self.ports.get(port.index().checked_sub(1)?)
    }

    pub(super) fn port_mut(&mut self, port: PortNum) -> Option<&mut FunctionPort> {
        self.ports.get_mut(port.index().checked_sub(1)?)
    }

    /// The physical index behind one of this function's P_Key indices.
    pub(super) fn physical_pkey(&self, port: PortNum, index: PKeyIndex) -> Option<PKeyIndex> {
        if self.has(Privileges::ANY_SOURCE) {
            return Some(index);
        }
        *self.port(port)?.view.pkeys.get(usize::from(index.0))?
    }

    /// What the function owns.
    pub(super) fn resources(&self) -> ResourceCounts {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        ResourceCounts {
            pds: count(self.pds.len()),
            avs: count(self.avs.len()),
            cqs: count(self.cqs.len()),
            srqs: count(self.srqs.len()),
            qps: count(self.qps.len()),
            mrs: count(self.memory.region_count()),
            mws: count(self.memory.window_count()),
            attachments: self.attachments,
        }
    }

    /// Refuses an object that would exceed the function's quota.
    pub(super) fn check_quota(
        &self,
        count: impl Fn(&ResourceCounts) -> u32,
    ) -> Result<(), HcaError> {
        if count(&self.resources()) < count(&self.quota) {
            Ok(())
        } else {
            Err(HcaError::InsufficientResources)
        }
    }

    pub(super) const fn quota(&self) -> &ResourceCounts {
        &self.quota
    }

    pub(super) const fn count_attachment(&mut self) {
        self.attachments += 1;
    }

    pub(super) const fn uncount_attachment(&mut self) {
        self.attachments -= 1;
    }

    // Protection domains.

    pub(super) fn alloc_pd(&mut self) -> Result<PdHandle, HcaError> {
        self.check_quota(|r| r.pds)?;
        slot(self.pds.insert(Pd::default())).map(PdHandle)
    }

    pub(super) fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), HcaError> {
        self.check_pd(pd)?;
        if self.pds[pd.0 as usize].users != 0 {
            return Err(HcaError::InUse);
        }
        self.pds.remove(pd.0 as usize);
        Ok(())
    }

    pub(super) fn check_pd(&self, pd: PdHandle) -> Result<(), HcaError> {
        if self.pds.contains(pd.0 as usize) {
            Ok(())
        } else {
            Err(HcaError::InvalidHandle)
        }
    }

    pub(super) fn hold_pd(&mut self, pd: PdHandle) {
        if let Some(pd) = self.pds.get_mut(pd.0 as usize) {
            pd.users += 1;
        }
    }

    pub(super) fn release_pd(&mut self, pd: PdHandle) {
        if let Some(pd) = self.pds.get_mut(pd.0 as usize) {
            pd.users -= 1;
        }
    }

    // Lookups.

    pub(super) fn cq(&self, cq: CqHandle) -> Result<&CompletionQueue, HcaError> {
        self.cqs.get(cq.0 as usize).ok_or(HcaError::InvalidHandle)
    }

    pub(super) fn cq_mut(&mut self, cq: CqHandle) -> Result<&mut CompletionQueue, HcaError> {
        self.cqs
            .get_mut(cq.0 as usize)
            .ok_or(HcaError::InvalidHandle)
    }

    pub(super) fn srq(&self, srq: SrqHandle) -> Result<&Srq, HcaError> {
        self.srqs.get(srq.0 as usize).ok_or(HcaError::InvalidHandle)
    }

    pub(super) fn srq_mut(&mut self, srq: SrqHandle) -> Result<&mut Srq, HcaError> {
        self.srqs
            .get_mut(srq.0 as usize)
            .ok_or(HcaError::InvalidHandle)
    }

    /// Arms the limit of a shared receive queue and changes its size. A limit above the receives that are left is reached at once.
    pub(super) fn modify_srq(
        &mut self,
        srq: SrqHandle,
        limit: u32,
        max_wr: Option<u32>,
    ) -> Result<(), HcaError> {
        let (memory, queue) = (self.memory.space(), self.srqs.get_mut(srq.0 as usize));
        let queue = queue.ok_or(HcaError::InvalidHandle)?;
        queue.modify(memory, limit, max_wr)?;
        // Of a queue that is below the limit already, no take would tell (IBA 10.2.9.2).
        if queue.limit_reached(memory) {
            self.events.raise(AsyncEvent::SrqLimitReached(srq));
        }
        Ok(())
    }

    pub(super) fn qp(&self, qp: QpHandle) -> Result<&Qp, HcaError> {
        self.qps.get(qp.0 as usize).ok_or(HcaError::InvalidHandle)
    }

    pub(super) fn qp_mut(&mut self, qp: QpHandle) -> Result<&mut Qp, HcaError> {
        self.qps
            .get_mut(qp.0 as usize)
            .ok_or(HcaError::InvalidHandle)
    }

    // Completions and errors.

    /// Reports a completion of a queue pair. If the completion queue cannot take it, both it and its queue pairs
    /// have failed (IBA 11.6.3.1: their work queues can report nothing), and the result is `false`. This queue pair is in ERR
    /// then, the others are when the device has seen to [`Self::overrun`].
    pub(super) fn complete(&mut self, qp: u32, side: Side, completion: Completion) -> bool {
        let Some(pair) = self.qps.get(qp as usize) else {
            return false;
        };
        let cq = match side {
            Side::Send => pair.send_cq,
            Side::Receive => pair.recv_cq,
        };
        let state = pair.state;
        let Ok(queue) = self.cq_mut(cq) else {
            return false;
        };
        match queue.add(completion) {
            Added::Quietly => return true,
            Added::Announced => {
                self.events.announce(cq);
                return true;
            }
            Added::Overflowed => {
                self.events.raise(AsyncEvent::CqError(cq));
                let uses = |qp: &Qp| qp.send_cq == cq || qp.recv_cq == cq;
                let users = self.qps.iter().filter(|(_, qp)| uses(qp));
                let users = users.filter_map(|(index, _)| slot(index).ok());
                self.overrun.extend(users.map(QpHandle));
            }
            Added::Lost => {}
        }
        if !matches!(state, QpState::Error | QpState::Reset) {
            self.events.raise(AsyncEvent::QpFatal(QpHandle(qp)));
            self.enter_error(qp);
        }
        false
    }

    /// Reports a request that ended with an error. Returns `false` as [`Self::complete`] does.
    pub(super) fn complete_failed(
        &mut self,
        qp: u32,
        side: Side,
        wr_id: u64,
        (status, cause): (CompletionStatus, Cause),
    ) -> bool {
        let Some(pair) = self.qps.get(qp as usize) else {
            return false;
        };
        let completion = Completion {
            wr_id,
            status,
            cause,
            op: side.op(),
            qpn: pair.numbers.external,
            ..Completion::BLANK
        };
        self.complete(qp, side, completion)
    }

    /// Moves a queue pair to the error state: everything posted completes as flushed.
    pub(super) fn enter_error(&mut self, qp: u32) {
        let Some(pair) = self.qps.get_mut(qp as usize) else {
            return;
        };
        let was = core::mem::replace(&mut pair.state, QpState::Error);
        // The machine of a connection raises it, behind the completion of the receive that it holds.
        let is_live = pair.connected().is_some_and(Connected::is_live);
        let with_srq = pair.srq.is_some() && !is_live;
        self.flush(qp);
        if with_srq && was != QpState::Error {
            self.events.raise(AsyncEvent::LastWqeReached(QpHandle(qp)));
        }
    }

    /// Completes everything posted to a queue pair as flushed.
    fn flush(&mut self, qp: u32) {
        self.flush_sends(qp);
        // A source that never runs dry must not keep us here.
        let most = self
            .qps
            .get(qp as usize)
            .map_or(0, |pair| pair.receives.flushed_at_once());
        for _ in 0..most {
            let Some(receive) = self
                .qps
                .get_mut(qp as usize)
                .and_then(|pair| pair.receives.take(self.memory.space()))
            else {
                return;
            };
            if !self.complete_failed(qp, Side::Receive, receive.wr_id, FLUSHED) {
                return;
            }
        }
    }

    /// Completes the waiting sends of a queue pair as flushed.
    pub(super) fn flush_sends(&mut self, qp: u32) {
        while let Some(send) = self
            .qps
            .get_mut(qp as usize)
            .and_then(|pair| pair.sends.pop_front())
        {
            self.complete_failed(qp, Side::Send, send.work.wr_id, FLUSHED);
        }
    }

    /// Takes the receive that the next message of a queue pair goes to.
    pub(super) fn take_receive(&mut self, qp: u32) -> Option<Receive> {
        let pair = self.qps.get_mut(qp as usize)?;
        let Some(handle) = pair.srq else {
            return pair.receives.take(self.memory.space());
        };
        let srq = self.srqs.get_mut(handle.0 as usize)?;
        let receive = srq.take(self.memory.space());
        if srq.limit_reached(self.memory.space()) {
            self.events.raise(AsyncEvent::SrqLimitReached(handle));
        }
        receive
    }

    /// Notes which memory region a queue pair's receives are in.
    pub(super) fn note_region(&mut self, qp: u32, region: MrHandle) {
        let Some(pair) = self.qps.get_mut(qp as usize) else {
            return;
        };
        let queue = match pair.srq {
            Some(srq) => self.srqs.get_mut(srq.0 as usize).map(|srq| &mut srq.queue),
            None => Some(&mut pair.receives),
        };
        if let Some(queue) = queue {
            queue.region = region;
        }
    }
}

/// The end of a request of a queue in error.
pub(super) const FLUSHED: (CompletionStatus, Cause) = (CompletionStatus::Flushed, Cause::None);

/// A slab index as a handle.
pub(super) fn slot(index: usize) -> Result<u32, HcaError> {
    u32::try_from(index).map_err(|_| HcaError::InsufficientResources)
}
