//! Data by the host: queue pairs, completions and events.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hca_api::{
    AddressVector, AsyncEvent, Completion, CompletionFlags, CqHandle, HcaError, HcaEvent, PdHandle,
    PortChange, QpHandle, QpSpec, SendRequest, Sge, SourceAddress, SrqHandle, SrqSpec, UdAddress,
};
use ib_wire::{Mtu, Qpn};

use super::{BUDGET, GRH_SPACE, LinuxHca};
use crate::attributes::refused;
use crate::data::Data;
use crate::local_mad::Link;
use crate::pair::{Owner, Pair, owner, route};
use crate::shared_receives::SharedReceives;
use crate::sys::abi::Wc;
use crate::sys::{self, Parts, RaisedEvent, SharedQueue};
use crate::umad::PortFiles;

/// Completions that are taken from the host at a time.
const AT_ONCE: usize = 16;

impl<F: PortFiles> LinuxHca<F> {
    /// Returns the data of the port.
    pub(super) fn data(&mut self) -> Result<&mut Data, HcaError> {
        self.data.as_mut().ok_or(HcaError::Unsupported)
    }

    /// Reads from the host what sysfs does not show of the port.
    pub(super) fn look_at_link(&mut self) {
        let found = self.data.as_ref().map(|data| data.device.port(data.port));
        let Some(Ok(found)) = found else {
            return;
        };
        let mtu =
            |code| Some(Mtu::new(u8::try_from(code).ok()?)).filter(|mtu| mtu.bytes().is_some());
        if let (Some(max_mtu), Some(active_mtu)) = (mtu(found.max_mtu), mtu(found.active_mtu)) {
            self.facts.link = Link {
                max_mtu,
                active_mtu,
                subnet_timeout: found.subnet_timeout,
            };
        }
    }

    /// Returns the files of completions, of asynchronous events, and of outcomes of registrations.
    pub(crate) fn event_files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let files = self.data.as_ref().map(|data| data.device.descriptors());
        files.into_iter().flatten().chain(self.memory.news())
    }

    pub(super) fn pair(&self, qp: QpHandle) -> Option<&Pair> {
        self.data.as_ref()?.pairs.get(&qp)
    }

    /// Returns a queue pair of the host, to be changed, and the port there. `None` if there is none of the handle.
    pub(super) fn pair_mut(&mut self, qp: QpHandle) -> Option<(&mut Pair, u8)> {
        let data = self.data.as_mut()?;
        let port = data.port;
        data.pairs.get_mut(&qp).map(|pair| (pair, port))
    }

    /// Returns an address for the host.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`]: on RoCE, an address without a route, or from an entry that has no address.
    pub(super) fn host_vector(&self, vector: &AddressVector) -> Result<AddressVector, HcaError> {
        match &self.roce {
            Some(roce) => roce
                .addresses
                .host_vector(vector)
                .ok_or(HcaError::InvalidParameter),
            None => Ok(*vector),
        }
    }

    /// Makes a queue pair of the host.
    pub(super) fn create_pair(&mut self, qp: QpHandle, spec: &QpSpec) -> Result<Qpn, HcaError> {
        let host = |cq: CqHandle| {
            let queue = self.queues.get(cq.0)?.host.clone();
            queue.ok_or(HcaError::Unsupported)
        };
        let parts = Parts {
            pd: self.memory.domain(spec.pd)?.clone(),
            send_cq: host(spec.send_cq)?,
            recv_cq: host(spec.recv_cq)?,
            srq: spec.srq.map(|srq| self.shared_queue(srq)).transpose()?,
        };
        let pair = Pair::new(qp, spec, parts)?;
        let number = pair.number();
        let data = self.data()?;
        data.numbers.insert(number.get(), qp);
        data.pairs.insert(qp, pair);
        Ok(number)
    }

    /// Returns a shared receive queue of the host.
    fn shared_queue(&self, srq: SrqHandle) -> Result<Arc<SharedQueue>, HcaError> {
        let data = self.data.as_ref().ok_or(HcaError::InvalidHandle)?;
        Ok(data.srqs.get(srq.0)?.host.clone())
    }

    /// Makes a shared receive queue of the host.
    pub(super) fn create_shared_queue(&mut self, spec: &SrqSpec) -> Result<SrqHandle, HcaError> {
        let domain = self.memory.domain(spec.pd)?;
        let data = self.data.as_mut().ok_or(HcaError::Unsupported)?;
        let number = data.srqs.next();
        let queue = SharedReceives::new(spec, |attr| SharedQueue::new(domain, attr, number))?;
        data.srqs.add(queue).map(SrqHandle)
    }

    pub(super) fn shared(&mut self, srq: SrqHandle) -> Result<&mut SharedReceives, HcaError> {
        let data = self.data.as_mut().ok_or(HcaError::InvalidHandle)?;
        data.srqs.get_mut(srq.0)
    }

    /// Destroys a queue pair of the host: resets it, flushes the requests that are not complete, and leaves the host's part to the thread.
    pub(super) fn destroy_pair(&mut self, qp: QpHandle) -> Result<(), HcaError> {
        let pair = self.data()?.pair_mut(qp)?;
        if !pair.groups.is_empty() {
            return Err(HcaError::InUse);
        }
        let queues = [pair.send_cq, pair.recv_cq];
        for cq in queues {
            self.fetch(cq);
        }
        let data = self.data()?;
        if let Some(mut pair) = data.pairs.remove(&qp) {
            data.numbers.remove(&pair.number().get());
            let is_stopped = pair.stop();
            for (cq, end) in pair.flush() {
                self.complete(cq, end);
            }
            // A queue pair that the host does not stop ends here: peers reach memory by it until then.
            if is_stopped {
                self.memory.destroy(pair.into_host());
            }
        }
        Ok(())
    }

    /// Posts a send of a queue pair of the host.
    pub(super) fn send_by_host(
        &mut self,
        qp: QpHandle,
        request: &SendRequest<'_>,
    ) -> Result<(), HcaError> {
        let pair = self.pair(qp).ok_or(HcaError::InvalidHandle)?;
        let (pd, is_datagram) = (pair.pd, pair.is_datagram());
        if request.destination.is_some() != is_datagram {
            return Err(HcaError::InvalidParameter);
        }
        let address = request.destination.map(|to| match to.address {
            UdAddress::Vector(vector) => Ok(vector),
            UdAddress::Handle(av) => match *self.addresses.get(av.0)? {
                (owner, vector) if owner == pd => Ok(vector),
                _ => Err(HcaError::InvalidHandle),
            },
        });
        let vector = address.transpose()?;
        let vector = vector.map(|vector| self.host_vector(&vector)).transpose()?;
        let domain = self.memory.domain(pd)?;
        let data = self.data.as_mut().ok_or(HcaError::Unsupported)?;
        let address = vector.map(|vector| data.address((pd, domain), &vector));
        data.pair_mut(qp)?.send(request, address.transpose()?)
    }

    /// Makes the host's part of a completion queue, if there is a host.
    pub(super) fn create_host_queue(
        &self,
        entries: u32,
        number: u32,
    ) -> Result<Option<Arc<sys::CompletionQueue>>, HcaError> {
        let Some(data) = &self.data else {
            return Ok(None);
        };
        let entries = i32::try_from(entries).map_err(|_| HcaError::InvalidParameter)?;
        let queue = sys::CompletionQueue::new(&data.device, entries, number);
        let queue = queue.map_err(|error| refused(&error))?;
        Ok(Some(Arc::new(queue)))
    }

    /// Takes completions of a queue from the host, as many as there is room for. The host keeps the others.
    pub(super) fn fetch(&mut self, cq: CqHandle) {
        let mut taken = [Wc::default(); AT_ONCE];
        while let Ok(queue) = self.queues.get(cq.0)
            && let Some(host) = &queue.host
        {
            let room = queue.room().min(AT_ONCE);
            let count = host.poll(&mut taken[..room]).unwrap_or(0);
            for wc in &taken[..count] {
                self.complete_by_host(cq, wc);
            }
            if count < AT_ONCE {
                break;
            }
        }
    }

    fn complete_by_host(&mut self, cq: CqHandle, wc: &Wc) {
        let Some(((mut completion, scatter), pd)) = self.completed(wc) else {
            return;
        };
        if completion.flags.contains(CompletionFlags::GRH)
            && let Some(source) = &mut completion.source
        {
            self.add_route(pd, &scatter, source);
        }
        self.complete(cq, completion);
    }

    /// Returns a completion of the host as the consumer's, with the list of its receive and the protection domain of that. `None` for
    /// a request or a queue pair that is gone.
    fn completed(&mut self, wc: &Wc) -> Option<((Completion, Vec<Sge>), PdHandle)> {
        let data = self.data.as_mut()?;
        match owner(wc.wr_id) {
            Owner::Pair(qp) => {
                let pair = data.pairs.get_mut(&qp)?;
                Some((pair.complete(wc, None)?, pair.pd))
            }
            Owner::Shared(srq, number) => {
                let shared = data.srqs.get_mut(srq.0).ok()?;
                let (received, pd) = (shared.complete(number)?, shared.pd);
                let pair = data.pairs.get_mut(data.numbers.get(&wc.qp_num)?)?;
                Some((pair.complete(wc, Some(received))?, pd))
            }
        }
    }

    /// Reads the route of a datagram from its receive.
    fn add_route(&self, pd: PdHandle, scatter: &[Sge], source: &mut SourceAddress) {
        let mut bytes = [0; GRH_SPACE];
        if self.memory.gather(pd, scatter, &mut bytes) {
            source.grh = route(&bytes);
        }
    }

    /// Arms the host's part of a queue for what the queue is armed for, and takes completions that are there already.
    pub(super) fn arm_host(&mut self, cq: CqHandle) {
        let Ok(queue) = self.queues.get(cq.0) else {
            return;
        };
        // Solicited completions are not known as such here: each receive counts as one.
        if let (Some(host), Some(_)) = (&queue.host, queue.armed())
            && host.arm(false).is_ok()
        {
            self.fetch(cq);
        }
    }

    /// Takes news of the host.
    pub(super) fn take_news(&mut self) {
        let Some(data) = &mut self.data else {
            return;
        };
        let [completions, events, registered] = std::mem::take(&mut data.ready);
        let device = data.device.clone();
        let mut left = [completions, events];
        for _ in 0..BUDGET {
            let cq = left[0].then(|| device.completion_event()).flatten();
            let event = left[1].then(|| device.async_event()).flatten();
            left = [cq.is_some(), event.is_some()];
            if let Some(cq) = cq {
                self.fetch(CqHandle(cq));
                self.arm_host(CqHandle(cq));
            }
            if let Some(event) = event {
                self.take_event(event);
            }
        }
        if let Some(data) = &mut self.data {
            let [completions, events] = left;
            data.ready = [completions, events, false];
        }
        let domains = registered.then(|| self.memory.take_outcomes());
        for domain in domains.into_iter().flatten() {
            let event = HcaEvent::Async(AsyncEvent::RegistrationDone(domain));
            if !self.events.contains(&event) {
                self.events.push_back(event);
            }
        }
    }

    /// Takes an asynchronous event of a type of `enum ibv_event_type`.
    fn take_event(&mut self, raised: RaisedEvent) {
        let qp = QpHandle(raised.object);
        let data = self.data.as_ref();
        let port = data.map(|data| data.port.into());
        let has_handle = match raised.kind {
            0 => self.queues.get(raised.object).is_ok(),
            1..=7 | 16 => self.pair(qp).is_some(),
            14 | 15 => data.is_some_and(|data| data.srqs.get(raised.object).is_ok()),
            _ => true,
        };
        if !has_handle {
            // The object waits for its end in the thread.
            return;
        }
        let event = match raised.kind {
            0 => AsyncEvent::CqError(CqHandle(raised.object)),
            1 => AsyncEvent::QpFatal(qp),
            2 => AsyncEvent::QpRequestError(qp),
            3 => AsyncEvent::QpAccessError(qp),
            4 => AsyncEvent::CommunicationEstablished(qp),
            5 => AsyncEvent::SendQueueDrained(qp),
            6 => AsyncEvent::PathMigrated(qp),
            7 => AsyncEvent::PathMigrationFailed(qp),
            8 => {
                self.is_dead = true;
                AsyncEvent::DeviceFatal
            }
            14 => AsyncEvent::SrqError(SrqHandle(raised.object)),
            15 => AsyncEvent::SrqLimitReached(SrqHandle(raised.object)),
            16 => AsyncEvent::LastWqeReached(qp),
            // The port's news are in sysfs.
            9..=13 | 18 if port == Some(raised.object) => return self.look(PortChange::empty()),
            17 if port == Some(raised.object) => return self.look(PortChange::CLIENT_REREGISTER),
            _ => return,
        };
        let event = HcaEvent::Async(event);
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }
}

#[cfg(test)]
mod tests;
