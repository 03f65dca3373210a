//! A requester whose peer is the test.

use ib_transport::{
    AtomicOp, Flush, Operation, RemoteStart, Request, RequesterConfig, Response, Run, Status,
    Transfer,
};
use ib_vtime::{Duration, Instant};
use ib_wire::packet::{FlushPlacement, FlushSelectivity};

use crate::host::Buffer;
use crate::network::{End, requester, responder};
use crate::packets::{ack, give};
use crate::random::{ALL, host};

pub(crate) const REMOTE: RemoteStart = RemoteStart {
    addr: 64,
    rkey: ALL,
};
pub(crate) const SEND: Operation = Operation::Send;
pub(crate) const WRITE: Operation = Operation::Write(REMOTE);
pub(crate) const READ: Operation = Operation::Read(REMOTE);
pub(crate) const ADD: Operation = Operation::Atomic(REMOTE, AtomicOp::FetchAdd { add: 1 });
pub(crate) const ATOMIC_WRITE: Operation = Operation::AtomicWrite(REMOTE);
pub(crate) const FLUSH: Operation = Operation::Flush(
    REMOTE,
    Flush {
        placement: FlushPlacement::GLOBAL,
        selectivity: FlushSelectivity::RANGE,
    },
);

/// ACK timeout of every end here: code 14.
pub(crate) const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);

/// A connection whose first request has PSN 10.
pub(crate) struct Rig {
    pub(crate) end: End,
    pub(crate) now: Instant,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    /// Returns a connection whose peer has said that it counts no credits.
    pub(crate) fn with(change: impl FnOnce(&mut RequesterConfig)) -> Self {
        let mut rig = Self::counting_credits(change);
        rig.reply(ack(9));
        rig
    }

    pub(crate) fn counting_credits(change: impl FnOnce(&mut RequesterConfig)) -> Self {
        let mut config = requester(10);
        change(&mut config);
        Self {
            end: End::new(host(0), config, responder(0)),
            now: Instant::ZERO,
        }
    }

    /// Posts a request, whose name is its number.
    pub(crate) fn post(&mut self, operation: Operation, len: u32) -> &mut Self {
        self.post_fenced(operation, len, false)
    }

    pub(crate) fn post_fenced(&mut self, operation: Operation, len: u32, fence: bool) -> &mut Self {
        let posted = self.end.host.sends.len() + self.end.rc.requester().len();
        let id = posted as u64;
        let request = Request {
            operation,
            buffer: Buffer { id, at: 8192 },
            len,
            fence,
            solicited: true,
        };
        self.end.rc.post(request, &mut self.end.host);
        self
    }

    /// Returns everything that leaves, a packet at a time.
    pub(crate) fn packets(&mut self) -> Vec<Run> {
        let polled = std::iter::from_fn(|| self.end.poll(self.now, 1));
        polled
            .filter_map(|(transfer, _)| match transfer {
                Transfer::Request(run) => Some(run),
                Transfer::Response(_) => None,
            })
            .collect()
    }

    pub(crate) fn psns(&mut self) -> Vec<u32> {
        self.packets().iter().map(|run| run.psn.get()).collect()
    }

    pub(crate) fn reply(&mut self, response: Response) -> &mut Self {
        give(&mut self.end, self.now, Transfer::Response(response));
        self
    }

    /// Moves the clock to the deadline.
    pub(crate) fn elapse(&mut self) {
        self.now = self.end.rc.poll_timeout().expect("a timer runs");
        self.end.rc.handle_timeout(self.now, &mut self.end.host);
    }

    pub(crate) fn statuses(&self) -> Vec<Status> {
        self.end
            .host
            .sends
            .iter()
            .map(|(_, status)| *status)
            .collect()
    }

    pub(crate) fn done(&self) -> usize {
        self.statuses()
            .iter()
            .filter(|status| **status == Status::Success)
            .count()
    }
}
