//! Objects of a function that the ends of tunnels use: the physical one and the virtual ones have them alike.

use std::collections::BTreeMap;

use hca_api::{
    AddressSpace, AsyncEvent, Cause, Completion, CompletionOp, CompletionStatus, CqHandle,
    DmaFault, Hca, HcaError, HcaEvent, PdHandle, QpHandle, QpState,
};

use crate::cq::{Added, CompletionQueue};
use crate::end::TunnelEnd;
use crate::event::EventQueue;
use crate::memory::VfMemory;
use crate::receive_queue::Receive;
use crate::regions::Regions;

/// First handle of objects that the adapter does not know. Its own handles are below.
pub(crate) const FIRST_END: u32 = 1 << 31;

/// Why a request failed.
pub(crate) type Failure = (CompletionStatus, Cause);

/// The end of a request of a queue in error.
pub(crate) const FLUSHED: Failure = (CompletionStatus::Flushed, Cause::None);

/// Objects of a function.
#[derive(Debug, Default)]
pub(crate) struct Side {
    /// Protection domains, with the number of objects in each that are known here.
    pub(crate) pds: BTreeMap<PdHandle, u32>,
    /// Completion queues. Of the physical function's the adapter has the other half.
    pub(crate) cqs: BTreeMap<CqHandle, CompletionQueue>,
    pub(crate) regions: Regions,
    pub(crate) ends: BTreeMap<QpHandle, TunnelEnd>,
    pub(crate) events: EventQueue,
    /// The function is in line with the functions that may have events.
    pub(crate) is_stirred: bool,
    /// The next handle. None comes again, so that a stale one names nothing.
    next: u32,
}

impl Side {
    /// Returns a side whose own handles begin at `first`.
    pub(crate) fn new(first: u32) -> Self {
        Self {
            next: first,
            ..Self::default()
        }
    }

    /// Returns a handle for a new object.
    pub(crate) fn draw_handle(&mut self) -> Result<u32, HcaError> {
        let handle = self.next;
        self.next = handle
            .checked_add(1)
            .ok_or(HcaError::InsufficientResources)?;
        Ok(handle)
    }

    /// Counts one more user of a protection domain.
    pub(crate) fn hold_pd(&mut self, pd: PdHandle) -> Result<(), HcaError> {
        let users = self.pds.get_mut(&pd).ok_or(HcaError::InvalidHandle)?;
        *users += 1;
        Ok(())
    }

    pub(crate) fn release_pd(&mut self, pd: PdHandle) {
        if let Some(users) = self.pds.get_mut(&pd) {
            *users -= 1;
        }
    }

    pub(crate) fn cq_mut(&mut self, cq: CqHandle) -> Result<&mut CompletionQueue, HcaError> {
        self.cqs.get_mut(&cq).ok_or(HcaError::InvalidHandle)
    }

    pub(crate) fn end(&self, qp: QpHandle) -> Result<&TunnelEnd, HcaError> {
        self.ends.get(&qp).ok_or(HcaError::InvalidHandle)
    }

    pub(crate) fn end_mut(&mut self, qp: QpHandle) -> Result<&mut TunnelEnd, HcaError> {
        self.ends.get_mut(&qp).ok_or(HcaError::InvalidHandle)
    }

    /// Takes the oldest event.
    pub(crate) fn poll_event(&mut self) -> Option<HcaEvent> {
        let event = self.events.poll()?;
        if let HcaEvent::Completion(cq) = event
            && let Some(queue) = self.cqs.get_mut(&cq)
        {
            queue.announcement_taken();
        }
        Some(event)
    }

    /// Reports a completion of an end. A completion queue that overruns fails with all ends that use it (IBA 11.6.3.1).
    pub(crate) fn complete(&mut self, cq: CqHandle, completion: Completion) {
        let Some(queue) = self.cqs.get_mut(&cq) else {
            return;
        };
        match queue.add(completion) {
            Added::Quietly | Added::Lost => {}
            Added::Announced => self.events.announce(cq),
            Added::Overflowed => {
                self.events.raise(AsyncEvent::CqError(cq));
                for (handle, end) in &mut self.ends {
                    let is_failed = matches!(end.state, QpState::Reset | QpState::Error);
                    if !is_failed && (end.send_cq == cq || end.recv_cq == cq) {
                        end.state = QpState::Error;
                        self.events.raise(AsyncEvent::QpFatal(*handle));
                    }
                }
            }
        }
    }

    /// Reports a request of an end that failed.
    pub(crate) fn complete_failed(
        &mut self,
        qp: QpHandle,
        op: CompletionOp,
        wr_id: u64,
        (status, cause): Failure,
    ) {
        let Some(end) = self.ends.get(&qp) else {
            return;
        };
        let cq = match op {
            CompletionOp::Recv => end.recv_cq,
            _ => end.send_cq,
        };
        let completion = Completion {
            wr_id,
            status,
            cause,
            op,
            qpn: end.numbers.external,
            ..Completion::BLANK
        };
        self.complete(cq, completion);
    }

    /// Moves an end to the error state: its receives complete as flushed, of a source's a bounded number.
    pub(crate) fn enter_error(&mut self, qp: QpHandle, memory: &Memory<'_>) {
        let Some(end) = self.ends.get_mut(&qp) else {
            return;
        };
        end.state = QpState::Error;
        for _ in 0..end.receives.flushed_at_once() {
            let Some(receive) = self.take_receive(qp, memory) else {
                return;
            };
            self.complete_failed(qp, CompletionOp::Recv, receive.wr_id, FLUSHED);
        }
    }

    /// Takes the receive for the next message of an end.
    pub(crate) fn take_receive(&mut self, qp: QpHandle, memory: &Memory<'_>) -> Option<Receive> {
        let receives = &mut self.ends.get_mut(&qp)?.receives;
        match memory {
            Memory::Virtual(memory) => receives.take(*memory),
            Memory::Physical(_) => receives.take_posted(),
        }
    }
}

/// The memory of a function: the adapter reaches the physical one's.
pub(crate) enum Memory<'a> {
    Physical(&'a mut dyn Hca),
    Virtual(&'a mut VfMemory),
}

impl Memory<'_> {
    pub(crate) fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        match self {
            Self::Physical(hca) => hca.dma_read(addr, buf),
            Self::Virtual(memory) => memory.read(addr, buf),
        }
    }

    pub(crate) fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        match self {
            Self::Physical(hca) => hca.dma_write(addr, bytes),
            Self::Virtual(memory) => memory.write(addr, bytes),
        }
    }
}
