//! A function's event queue.

use std::collections::{BTreeSet, VecDeque};

use hca_api::{AsyncEvent, CqHandle, HcaEvent, PdHandle, PortChange, QpHandle, SrqHandle};
use ib_wire::PortNum;

/// An object whose events are withdrawn when it is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// A completion queue.
    Cq(CqHandle),
    /// A shared receive queue.
    Srq(SrqHandle),
    /// A queue pair.
    Qp(QpHandle),
    /// A protection domain.
    Pd(PdHandle),
}

/// Events that wait for the consumer.
///
/// An event that waits already is not queued a second time, and the changes of a port are merged, so
/// the queue is bounded by the number of objects, however much the consumer leaves undone.
#[derive(Debug, Default)]
pub struct EventQueue {
    queue: VecDeque<HcaEvent>,
    /// Asynchronous events in `queue`, by [`identity`].
    waiting: BTreeSet<(u8, u32)>,
    /// Changes of each port since its event was queued; indexed by port number.
    changes: Vec<PortChange>,
}

impl EventQueue {
    /// Queues the announcement of an armed completion queue. The caller sees to it that the queue
    /// has none waiting.
    pub fn announce(&mut self, cq: CqHandle) {
        self.queue.push_back(HcaEvent::Completion(cq));
    }

    /// Queues an asynchronous event, unless the same one waits.
    pub fn raise(&mut self, event: AsyncEvent) {
        if let AsyncEvent::Port { port, change } = event {
            if self.changes.len() <= port.index() {
                self.changes.resize(port.index() + 1, PortChange::empty());
            }
            self.changes[port.index()] |= change;
        }
        if self.waiting.insert(identity(&event)) {
            self.queue.push_back(HcaEvent::Async(event));
        }
    }

    /// Returns `true` if no event waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the oldest event.
    #[must_use]
    pub fn poll(&mut self) -> Option<HcaEvent> {
        let event = self.queue.pop_front()?;
        let HcaEvent::Async(asynchronous) = event else {
            return Some(event);
        };
        self.waiting.remove(&identity(&asynchronous));
        Some(HcaEvent::Async(match asynchronous {
            AsyncEvent::Port { port, .. } => AsyncEvent::Port {
                port,
                change: self.take_changes(port),
            },
            other => other,
        }))
    }

    /// Withdraws the events of an object that is destroyed.
    pub fn forget(&mut self, source: EventSource) {
        let waiting = &mut self.waiting;
        self.queue.retain(|event| {
            let gone = origin(event) == Some(source);
            if let (true, HcaEvent::Async(event)) = (gone, event) {
                waiting.remove(&identity(event));
            }
            !gone
        });
    }

    /// Withdraws everything; what remains is the news of the reset.
    pub fn reset(&mut self) {
        *self = Self::default();
        self.raise(AsyncEvent::FunctionReset);
    }

    fn take_changes(&mut self, port: PortNum) -> PortChange {
        self.changes
            .get_mut(port.index())
            .map_or_else(PortChange::empty, core::mem::take)
    }
}

/// Returns the kind and the object of an asynchronous event: two with the same ones are the same news.
fn identity(event: &AsyncEvent) -> (u8, u32) {
    match *event {
        AsyncEvent::Port { port, .. } => (0, u32::from(port.0)),
        AsyncEvent::CommunicationEstablished(qp) => (1, qp.0),
        AsyncEvent::SendQueueDrained(qp) => (2, qp.0),
        AsyncEvent::QpFatal(qp) => (3, qp.0),
        AsyncEvent::QpRequestError(qp) => (4, qp.0),
        AsyncEvent::QpAccessError(qp) => (5, qp.0),
        AsyncEvent::LastWqeReached(qp) => (6, qp.0),
        AsyncEvent::PathMigrated(qp) => (7, qp.0),
        AsyncEvent::PathMigrationFailed(qp) => (8, qp.0),
        AsyncEvent::CqError(cq) => (9, cq.0),
        AsyncEvent::SrqError(srq) => (10, srq.0),
        AsyncEvent::SrqLimitReached(srq) => (11, srq.0),
        AsyncEvent::FunctionReset => (12, 0),
        AsyncEvent::DeviceFatal => (13, 0),
        AsyncEvent::RegistrationDone(pd) => (14, pd.0),
    }
}

pub(crate) fn origin(event: &HcaEvent) -> Option<EventSource> {
    let asynchronous = match event {
        HcaEvent::Completion(cq) => return Some(EventSource::Cq(*cq)),
        HcaEvent::Async(asynchronous) => asynchronous,
    };
    match *asynchronous {
        AsyncEvent::CommunicationEstablished(qp)
        | AsyncEvent::SendQueueDrained(qp)
        | AsyncEvent::QpFatal(qp)
        | AsyncEvent::QpRequestError(qp)
        | AsyncEvent::QpAccessError(qp)
        | AsyncEvent::LastWqeReached(qp)
        | AsyncEvent::PathMigrated(qp)
        | AsyncEvent::PathMigrationFailed(qp) => Some(EventSource::Qp(qp)),
        AsyncEvent::CqError(cq) => Some(EventSource::Cq(cq)),
        AsyncEvent::SrqError(srq) | AsyncEvent::SrqLimitReached(srq) => Some(EventSource::Srq(srq)),
        AsyncEvent::RegistrationDone(pd) => Some(EventSource::Pd(pd)),
        AsyncEvent::Port { .. } | AsyncEvent::FunctionReset | AsyncEvent::DeviceFatal => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(change: PortChange) -> AsyncEvent {
        AsyncEvent::Port {
            port: PortNum(1),
            change,
        }
    }

    #[test]
    fn port_changes_that_wait_are_merged_and_keep_the_first_ones_place() {
        let mut events = EventQueue::default();
        events.raise(port(PortChange::LID));
        events.announce(CqHandle(3));
        events.raise(port(PortChange::ACTIVE));
        assert_eq!(
            events.poll(),
            Some(HcaEvent::Async(port(PortChange::LID | PortChange::ACTIVE)))
        );
        assert_eq!(events.poll(), Some(HcaEvent::Completion(CqHandle(3))));
        assert_eq!(events.poll(), None);
        events.raise(port(PortChange::SM));
        assert_eq!(events.poll(), Some(HcaEvent::Async(port(PortChange::SM))));
    }

    #[test]
    fn an_event_that_waits_is_not_queued_again_until_it_was_polled() {
        let mut events = EventQueue::default();
        let fatal = AsyncEvent::QpFatal(QpHandle(7));
        events.raise(fatal);
        events.raise(fatal);
        assert_eq!(events.poll(), Some(HcaEvent::Async(fatal)));
        assert_eq!(events.poll(), None);
        events.raise(fatal);
        assert_eq!(events.poll(), Some(HcaEvent::Async(fatal)));
    }

    #[test]
    fn the_events_of_a_destroyed_object_are_withdrawn() {
        let mut events = EventQueue::default();
        events.announce(CqHandle(1));
        events.raise(AsyncEvent::CqError(CqHandle(1)));
        events.raise(AsyncEvent::QpFatal(QpHandle(1)));
        events.forget(EventSource::Cq(CqHandle(1)));
        assert_eq!(
            events.poll(),
            Some(HcaEvent::Async(AsyncEvent::QpFatal(QpHandle(1))))
        );
        assert_eq!(events.poll(), None);
    }

    #[test]
    fn a_reset_leaves_only_its_own_event() {
        let mut events = EventQueue::default();
        events.raise(port(PortChange::LID));
        events.reset();
        assert_eq!(
            events.poll(),
            Some(HcaEvent::Async(AsyncEvent::FunctionReset))
        );
        assert_eq!(events.poll(), None);
    }
}
