//! Work requests as the device keeps them, and the queues that hold receives.

use std::collections::VecDeque;

use hca_api::{
    AddressSpace, AddressVector, HcaError, MAX_FLUSHED, MrHandle, Payload, PulledReceives,
    ReceiveMode, RecvRequest, SendFlags, Sge,
};
use ib_wire::{PKeyIndex, QKey, Qpn};

/// A scatter or gather list; up to two entries are kept without allocating.
#[derive(Clone, Debug)]
pub(super) enum SgeList {
    Few([Sge; 2], u8),
    Many(Box<[Sge]>),
}

impl SgeList {
    const NO_SGE: Sge = Sge {
        addr: 0,
        len: 0,
        lkey: hca_api::LKey(0),
    };

    pub(super) fn new(sges: &[Sge]) -> Self {
        match *sges {
            [] => Self::Few([Self::NO_SGE; 2], 0),
            [only] => Self::Few([only, Self::NO_SGE], 1),
            [first, second] => Self::Few([first, second], 2),
            _ => Self::Many(sges.into()),
        }
    }

    pub(super) fn as_slice(&self) -> &[Sge] {
        match self {
            Self::Few(sges, count) => &sges[..usize::from(*count)],
            Self::Many(sges) => sges,
        }
    }
}

/// Bytes that the entries of a list name, together.
pub(super) fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// The bytes of a send that waits.
#[derive(Clone, Debug)]
pub(super) enum OwnedPayload {
    Gather(SgeList),
    Inline(Vec<u8>),
    Headed(Vec<u8>, SgeList),
}

impl OwnedPayload {
    pub(super) fn new(payload: Payload<'_>, spare: &mut SpareBytes) -> Self {
        match payload {
            Payload::Gather(sges) => Self::Gather(SgeList::new(sges)),
            Payload::Inline(bytes) => Self::Inline(spare.copy(bytes)),
            Payload::Headed(head, sges) => Self::Headed(spare.copy(head), SgeList::new(sges)),
        }
    }

    /// Gives back what it took.
    pub(super) fn give_back(self, spare: &mut SpareBytes) {
        match self {
            Self::Gather(_) => {}
            Self::Inline(bytes) | Self::Headed(bytes, _) => spare.give_back(bytes),
        }
    }

    /// Returns the bytes that were given, and the list of those behind them.
    pub(super) fn split(&self) -> (&[u8], &[Sge]) {
        match self {
            Self::Gather(sges) => (&[], sges.as_slice()),
            Self::Inline(bytes) => (bytes, &[]),
            Self::Headed(head, sges) => (head, sges.as_slice()),
        }
    }

    pub(super) fn as_payload(&self) -> Payload<'_> {
        match self {
            Self::Gather(sges) => Payload::Gather(sges.as_slice()),
            Self::Inline(bytes) => Payload::Inline(bytes),
            Self::Headed(head, sges) => Payload::Headed(head, sges.as_slice()),
        }
    }
}

/// Memory for what is given with sends, kept for those to come.
#[derive(Debug, Default)]
pub(super) struct SpareBytes(Vec<Vec<u8>>);

impl SpareBytes {
    /// Pieces that are kept. They are as long as the longest that queue pairs take, at most.
    const MOST: usize = 64;

    fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.0.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        copy
    }

    fn give_back(&mut self, bytes: Vec<u8>) {
        if self.0.len() < Self::MOST {
            self.0.push(bytes);
        }
    }
}

/// What a datagram send needs besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWork {
    pub(super) wr_id: u64,
    pub(super) immediate: Option<u32>,
    pub(super) flags: SendFlags,
    pub(super) target: Target,
}

/// Where a datagram send goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// To the other end of the tunnel.
    TunnelPeer,
    /// To an address.
    Address {
        vector: AddressVector,
        qpn: Qpn,
        qkey: QKey,
        pkey_index: PKeyIndex,
    },
    /// To an address handle of another protection domain: the request fails (IBA 10.2.2.2).
    ForeignHandle,
}

/// A send that waits because the queue drains or the port's egress is full.
#[derive(Clone, Debug)]
pub(super) struct WaitingSend {
    pub(super) work: SendWork,
    pub(super) payload: OwnedPayload,
}

/// A receive, taken to be filled.
#[derive(Clone, Debug)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) scatter: SgeList,
}

/// Receive requests: posted, or pulled when one is needed.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    posted: VecDeque<Receive>,
    source: Option<Box<dyn PulledReceives>>,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    /// Where pulled scatter lists are read into.
    pulled: Vec<Sge>,
    /// The memory region that the last scatter list named.
    pub(super) region: MrHandle,
}

impl ReceiveQueue {
    pub(super) fn new(mode: ReceiveMode, max_wr: u32, max_sge: u32) -> Self {
        Self {
            posted: VecDeque::new(),
            source: match mode {
                ReceiveMode::Posted => None,
                ReceiveMode::Pulled(source) => Some(source),
            },
            max_wr,
            max_sge,
            pulled: Vec::new(),
            region: MrHandle(0),
        }
    }

    /// Checks a request for [`ReceiveQueue::post`].
    pub(super) fn check(&self, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        if self.source.is_some() {
            return Err(HcaError::InvalidParameter);
        }
        if request.scatter.len() > self.max_sge as usize {
            return Err(HcaError::TooManySges);
        }
        if self.posted.len() >= self.max_wr as usize {
            return Err(HcaError::QueueFull);
        }
        Ok(())
    }

    /// Queues a request.
    pub(super) fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        self.check(request)?;
        self.posted.push_back(Receive {
            wr_id: request.wr_id,
            scatter: SgeList::new(request.scatter),
        });
        Ok(())
    }

    /// Takes the oldest request. A source reads the consumer's `memory`.
    pub(super) fn take(&mut self, memory: &dyn AddressSpace) -> Option<Receive> {
        let Some(source) = &mut self.source else {
            return self.posted.pop_front();
        };
        self.pulled.clear();
        let wr_id = source.pull(memory, &mut self.pulled)?;
        Some(Receive {
            wr_id,
            scatter: SgeList::new(&self.pulled),
        })
    }

    /// Requests that are flushed at a time.
    pub(super) fn flushed_at_once(&self) -> usize {
        match self.source {
            Some(_) => MAX_FLUSHED.min(self.max_wr as usize),
            None => self.posted.len(),
        }
    }

    /// Requests that wait.
    pub(super) fn len(&self, memory: &dyn AddressSpace) -> usize {
        self.source
            .as_ref()
            .map_or(self.posted.len(), |source| source.pending(memory))
    }

    /// Forgets what was posted. What a source holds stays in the consumer's memory.
    pub(super) fn clear(&mut self) {
        self.posted.clear();
    }
}
