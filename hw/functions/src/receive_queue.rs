//! Queues of receive requests.

use std::collections::VecDeque;

use hca_api::{
    AddressSpace, HcaError, LKey, MAX_FLUSHED, MrHandle, PulledReceives, ReceiveMode, RecvRequest,
    Sge,
};

/// A scatter or gather list; up to two entries are kept without allocating.
#[derive(Clone, Debug)]
pub struct SgeList(Entries);

#[derive(Clone, Debug)]
enum Entries {
    Few([Sge; 2], u8),
    Many(Box<[Sge]>),
}

impl SgeList {
    const NO_SGE: Sge = Sge {
        addr: 0,
        len: 0,
        lkey: LKey(0),
    };

    /// Returns a copy of a list.
    #[must_use]
    pub fn new(sges: &[Sge]) -> Self {
        Self(match *sges {
            [] => Entries::Few([Self::NO_SGE; 2], 0),
            [only] => Entries::Few([only, Self::NO_SGE], 1),
            [first, second] => Entries::Few([first, second], 2),
            _ => Entries::Many(sges.into()),
        })
    }

    /// Returns the entries.
    #[must_use]
    pub fn as_slice(&self) -> &[Sge] {
        match &self.0 {
            Entries::Few(sges, count) => &sges[..usize::from(*count)],
            Entries::Many(sges) => sges,
        }
    }
}

/// Returns the number of bytes that the entries of a list name, together.
#[must_use]
pub fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// A receive, taken to be filled.
#[derive(Clone, Debug)]
pub struct Receive {
    /// The consumer's name for the request.
    pub wr_id: u64,
    /// Places of the message.
    pub scatter: SgeList,
}

/// Receive requests: posted, or pulled when one is needed.
#[derive(Debug)]
pub struct ReceiveQueue {
    posted: VecDeque<Receive>,
    source: Option<Box<dyn PulledReceives>>,
    /// Requests that fit.
    pub max_wr: u32,
    /// Scatter entries of a request.
    pub max_sge: u32,
    /// Where pulled scatter lists are read into.
    pulled: Vec<Sge>,
    /// The memory region that the last scatter list named.
    pub region: MrHandle,
}

impl ReceiveQueue {
    /// Returns an empty queue.
    #[must_use]
    pub fn new(mode: ReceiveMode, max_wr: u32, max_sge: u32) -> Self {
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
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the queue pulls, [`HcaError::TooManySges`], [`HcaError::QueueFull`].
    pub fn check(&self, request: &RecvRequest<'_>) -> Result<(), HcaError> {
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
    ///
    /// # Errors
    /// As [`ReceiveQueue::check`].
    pub fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        self.check(request)?;
        self.posted.push_back(Receive {
            wr_id: request.wr_id,
            scatter: SgeList::new(request.scatter),
        });
        Ok(())
    }

    /// Takes the oldest request. A source reads the consumer's `memory`.
    pub fn take(&mut self, memory: &dyn AddressSpace) -> Option<Receive> {
        let Some(source) = &mut self.source else {
            return self.take_posted();
        };
        self.pulled.clear();
        let wr_id = source.pull(memory, &mut self.pulled)?;
        Some(Receive {
            wr_id,
            scatter: SgeList::new(&self.pulled),
        })
    }

    /// Takes the oldest request that was posted; a source is not asked.
    pub fn take_posted(&mut self) -> Option<Receive> {
        self.posted.pop_front()
    }

    /// Returns the number of requests that are flushed at a time.
    #[must_use]
    pub fn flushed_at_once(&self) -> usize {
        match self.source {
            Some(_) => MAX_FLUSHED.min(self.max_wr as usize),
            None => self.posted.len(),
        }
    }

    /// Returns the number of requests that wait.
    #[must_use]
    pub fn waiting(&self, memory: &dyn AddressSpace) -> usize {
        self.source
            .as_ref()
            .map_or(self.posted.len(), |source| source.pending(memory))
    }

    /// Forgets the posted requests. A source's stay in the consumer's memory.
    pub fn clear(&mut self) {
        self.posted.clear();
    }
}
