//! Reads and atomic operations that a responder remembers, to answer them, and to answer them again
//! (IBA 9.7.5.1.1).

use alloc::collections::VecDeque;

use ib_wire::Psn;

use crate::psn::PsnOrder;
use crate::request::{AtomicOp, RemoteRange};

/// The answer of a remembered request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Record<R> {
    /// A read. A range of 0 bytes has no region.
    Read {
        region: Option<R>,
        range: RemoteRange,
        /// Number of the response packet from which the requester asked last. It has everything before.
        from: u32,
    },
    /// An atomic operation, with what memory held.
    Atomic { op: AtomicOp, original: u64 },
    /// An atomic write.
    AtomicWrite,
    /// A flush.
    Flush,
}

/// The part of an answer that is still to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Number of the response packet that begins the stream, as "first" or "only".
    pub(super) start: u32,
    /// Number of the next response packet.
    pub(super) next: u32,
}

/// A remembered request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered<R> {
    pub(super) psn: Psn,
    /// Packets of the whole answer.
    pub(super) packets: u32,
    pub(super) record: Record<R>,
    /// Part that is still to be sent.
    pub(super) pending: Option<Stream>,
    /// The answer was sent whole at least once.
    pub(super) answered: bool,
}

/// The newest reads and atomic operations, oldest first.
#[derive(Clone, Debug)]
pub(super) struct History<R> {
    entries: VecDeque<Remembered<R>>,
    depth: usize,
}

impl<R: Copy> History<R> {
    pub(super) const fn new(depth: u8) -> Self {
        Self {
            entries: VecDeque::new(),
            depth: depth as usize,
        }
    }

    /// Changes the number of requests that are remembered from the next one on.
    pub(super) const fn set_depth(&mut self, depth: u8) {
        self.depth = depth as usize;
    }

    /// Returns `true` if a request can be remembered without forgetting one that was never answered.
    pub(super) fn has_room(&self) -> bool {
        let forgotten = (self.entries.len() + 1).saturating_sub(self.depth);
        self.depth > 0 && (self.entries.iter().take(forgotten)).all(|entry| entry.answered)
    }

    /// Remembers a request whose answer is to be sent, and forgets the oldest if there are too many.
    pub(super) fn push(&mut self, psn: Psn, packets: u32, record: Record<R>) {
        while self.entries.len() >= self.depth.max(1) {
            self.entries.pop_front();
        }
        self.entries.push_back(Remembered {
            psn,
            packets,
            record,
            pending: Some(Stream { start: 0, next: 0 }),
            answered: false,
        });
    }

    /// Returns the request that `psn` belongs to.
    pub(super) fn find(&mut self, psn: Psn) -> Option<&mut Remembered<R>> {
        self.entries.iter_mut().find(|entry| {
            let at = psn.since(entry.psn);
            at >= 0 && at.unsigned_abs() < entry.packets
        })
    }

    /// Forgets requests so old that the order of PSNs no longer tells, when `expected` is the next new PSN.
    pub(super) fn expire(&mut self, expected: Psn) {
        while let Some(front) = self.entries.front()
            && expected.is_before(front.psn)
        {
            self.entries.pop_front();
        }
    }

    /// Returns the PSN of the first request that came after `psn`.
    pub(super) fn first_after(&self, psn: Psn) -> Option<Psn> {
        let mut after = self.entries.iter().map(|entry| entry.psn);
        after.find(|&first| psn.is_before(first))
    }

    /// Returns the oldest request with something to send.
    pub(super) fn first_pending(&mut self) -> Option<&mut Remembered<R>> {
        self.entries
            .iter_mut()
            .find(|entry| entry.pending.is_some())
    }

    /// Drops everything that is still to be sent.
    pub(super) fn stop(&mut self) {
        for entry in &mut self.entries {
            entry.pending = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_older_than_half_the_psns_are_forgotten() {
        let psn = Psn::from_low_bits;
        let mut history = History::<()>::new(2);
        let op = AtomicOp::FetchAdd { add: 1 };
        history.push(psn(10), 1, Record::Atomic { op, original: 0 });
        history.expire(psn(10 + (1 << 23) - 1));
        assert_eq!(history.first_after(psn(9)), Some(psn(10)));
        history.expire(psn(10 + (1 << 23) + 1));
        assert_eq!(history.first_after(psn(9)), None);
    }
}
