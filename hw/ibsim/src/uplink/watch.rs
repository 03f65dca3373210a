//! Requests from the fabric that somebody behind the adapter should answer.

use std::collections::VecDeque;

use ib_vtime::Instant;
use ib_wire::mad::{Mad, MadStatus, Method, MgmtClass};
use ib_wire::{Lid, Tid};

use super::config::ANSWER_TIME;

/// Requests that are watched at most; beyond, the oldest is refused before its time.
const MAX_WATCHED: usize = 1024;

#[derive(Clone, Debug)]
struct Request {
    from: Lid,
    mad: Mad,
    deadline: Instant,
}

/// The requests that wait for an answer, the oldest first.
///
/// A requester on the simulator cannot notice by itself that none comes: the stock client library has
/// no timers, and OpenSM stands still until each of its requests has come back.
#[derive(Debug, Default)]
pub(super) struct Watch {
    requests: VecDeque<Request>,
}

impl Watch {
    /// Takes note of what the adapter is given. Gives a request that has to make room.
    pub(super) fn note(&mut self, now: Instant, from: Lid, mad: &Mad) -> Option<(Lid, Mad)> {
        if !expects_answer(mad) || self.position(from, mad).is_some() {
            return None;
        }
        let crowded = self.requests.len() == MAX_WATCHED;
        let oldest = crowded.then(|| self.requests.pop_front()).flatten();
        self.requests.push_back(Request {
            from,
            mad: *mad,
            deadline: now + ANSWER_TIME,
        });
        oldest.map(|request| (request.from, refusal(&request.mad)))
    }

    /// Takes note of what the adapter sends.
    pub(super) fn answered(&mut self, to: Lid, mad: &Mad) {
        if mad.header.method.is_response()
            && let Some(at) = self.position(to, mad)
        {
            self.requests.remove(at);
        }
    }

    /// The next request whose time is over, as the answer to its sender.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Lid, Mad)> {
        let due = self.requests.front().is_some_and(|r| r.deadline <= now);
        let request = due.then(|| self.requests.pop_front()).flatten()?;
        Some((request.from, refusal(&request.mad)))
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.requests.front().map(|request| request.deadline)
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
    }

    fn position(&self, peer: Lid, mad: &Mad) -> Option<usize> {
        let key = |mad: &Mad| -> (Tid, MgmtClass) { (mad.header.tid, mad.header.mgmt_class) };
        self.requests
            .iter()
            .position(|request| request.from == peer && key(&request.mad) == key(mad))
    }
}

/// Whether the sender of a MAD waits for an answer with the same transaction id. The messages of the CM
/// have answers of their own.
pub(super) fn expects_answer(mad: &Mad) -> bool {
    let method = mad.header.method;
    !method.is_answer() && method != Method::SEND && method != Method::TRAP
}

/// The answer to a request that nobody knows: method and attribute not supported.
pub(super) fn refusal(request: &Mad) -> Mad {
    let mut mad = *request;
    let direction = match mad.header.mgmt_class {
        MgmtClass::SUBN_DIRECTED_ROUTE => MadStatus::DIRECTION,
        _ => 0,
    };
    mad.header.method = mad.header.method.response();
    let status = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE.get() | direction;
    mad.header.status = MadStatus::new(status);
    mad
}

#[cfg(test)]
mod tests {
    use ib_wire::mad::{AttributeId, MadHeader};

    use super::*;

    fn request(tid: u64, method: Method) -> Mad {
        let class = MgmtClass::new(0x32);
        let mut mad = Mad::new(MadHeader::new(class, method, AttributeId::new(1)));
        mad.header.tid = Tid::new(tid);
        mad
    }

    const PEER: Lid = Lid::new(7);

    #[test]
    fn a_request_without_an_answer_is_refused_when_its_time_is_over() {
        let mut watch = Watch::default();
        assert!(
            watch
                .note(Instant::ZERO, PEER, &request(1, Method::GET))
                .is_none()
        );
        let end = watch.poll_timeout().unwrap();
        assert_eq!(end, Instant::ZERO + ANSWER_TIME);
        assert!(watch.pop_due(Instant::ZERO).is_none());
        let (to, mad) = watch.pop_due(end).unwrap();
        assert_eq!((to, mad.header.tid), (PEER, Tid::new(1)));
        assert_eq!(mad.header.method, Method::GET_RESP);
        assert_eq!(mad.header.status, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
        assert!(watch.poll_timeout().is_none());
    }

    #[test]
    fn an_answer_to_the_requester_ends_the_watch_and_one_to_another_does_not() {
        let mut watch = Watch::default();
        watch.note(Instant::ZERO, PEER, &request(1, Method::REPORT));
        watch.answered(Lid::new(8), &request(1, Method::REPORT_RESP));
        assert!(watch.poll_timeout().is_some());
        watch.answered(PEER, &request(1, Method::REPORT_RESP));
        assert!(watch.poll_timeout().is_none());
    }

    #[test]
    fn messages_that_owe_no_answer_are_not_watched() {
        let mut watch = Watch::default();
        for method in [
            Method::SEND,
            Method::TRAP,
            Method::TRAP_REPRESS,
            Method::GET_RESP,
        ] {
            watch.note(Instant::ZERO, PEER, &request(1, method));
        }
        assert!(watch.poll_timeout().is_none());
    }

    #[test]
    fn of_too_many_requests_the_oldest_is_refused_at_once_and_a_repetition_is_not_another() {
        let mut watch = Watch::default();
        for tid in 0..1024 {
            let request = request(tid, Method::GET);
            assert!(watch.note(Instant::ZERO, PEER, &request).is_none());
            assert!(watch.note(Instant::ZERO, PEER, &request).is_none());
        }
        let (_, oldest) = watch
            .note(Instant::ZERO, PEER, &request(5000, Method::GET))
            .unwrap();
        assert_eq!(oldest.header.tid, Tid::new(0));
    }
}
