//! RDMA reads and writes of scatter lists.

mod plan;

use hca_api::{
    AccessFlags, Completion, CompletionStatus, DmaBuffer, Hca, HcaError, LKey, Payload,
    RemoteAddress, SendFlags, SendOp, Sge,
};

use self::plan::{Chunk, Run, chunks, runs};
use super::{ConnectedQp, PooledRegion, RegistrationPool};

/// Local memory of a [`Transfer`], in the order of the remote bytes. Entries may be of any length and alignment; empty ones are
/// skipped.
#[derive(Debug)]
pub enum LocalMemory<'a> {
    /// Memory of registered regions, which the adapter reaches by their keys.
    Keyed(&'a [Sge]),
    /// Memory of the function without a key. The transfer registers its pages in regions of the pool, and invalidates them.
    Unregistered(&'a [DmaBuffer], &'a mut RegistrationPool),
}

/// Bounds of the requests of a [`Transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferLimits {
    /// Entries of a gather or scatter list.
    pub max_sge: u32,
    /// Requests that a transfer has in the send queue at a time.
    pub max_wr: u32,
    /// Bytes of a request, 2^31 at most (IBA 9.7.1).
    pub max_message: u32,
}

/// Why there is no transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The pool has fewer idle regions than the transfer needs. Others that end give theirs back.
    #[error("{needed} regions are needed, and {idle} are idle")]
    NoRegions {
        /// Regions that the transfer needs.
        needed: usize,
        /// Regions that can be taken.
        idle: usize,
    },
    /// The remote range or an entry of the local memory goes beyond 2^64.
    #[error("a range goes beyond the end of the address space")]
    OutOfRange,
    /// The highest bit of the name is set.
    #[error("the name of a transfer is less than 2^63")]
    InvalidName,
}

/// Progress of a [`Transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferState {
    /// The next requests have to be posted.
    ToPost,
    /// The posted requests have not completed.
    InFlight,
    /// All bytes are where they belong, and no key names the memory.
    Done,
    /// A request failed with this status, and with it the connection; some bytes may be where they belong.
    Failed(CompletionStatus),
}

/// An RDMA read or write between a scatter list and a range of a peer's memory (`rdma_rw_ctx_init`).
///
/// It takes the fewest regions that hold the pages of the list, and the fewest requests for the entries that come of it. Of the
/// requests in the send queue the last is signalled, and no other: [`Self::post`] posts as many as fit,
/// [`Self::handle_completion`] takes the completions of the queue pair, and [`Self::release`] gives the regions back in the end.
///
/// With registrations, all precede the first transfer of bytes, and all invalidations follow the last.
#[derive(Debug)]
pub struct Transfer {
    wr_id: u64,
    direction: Direction,
    remote: RemoteAddress,
    regions: Vec<(PooledRegion, Run)>,
    chunks: Vec<Chunk>,
    max_wr: usize,
    /// Requests that were posted.
    posted: usize,
    /// Requests up to the next one that is signalled.
    batch_end: usize,
    error: Option<CompletionStatus>,
    state: TransferState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Write,
    Read,
}

/// In the name of a request: it is not the last one of those in the queue.
const STEP: u64 = 1 << 63;

impl Transfer {
    /// Makes a transfer to the peer's memory. `wr_id` names it in completions, and is less than 2^63.
    ///
    /// # Errors
    /// [`TransferError`]; no region is taken then.
    pub fn write(
        wr_id: u64,
        local: LocalMemory<'_>,
        remote: RemoteAddress,
        limits: &TransferLimits,
    ) -> Result<Self, TransferError> {
        Self::new(wr_id, Direction::Write, local, remote, limits)
    }

    /// Makes a transfer from the peer's memory, as [`Self::write`].
    ///
    /// # Errors
    /// [`TransferError`]; no region is taken then.
    pub fn read(
        wr_id: u64,
        local: LocalMemory<'_>,
        remote: RemoteAddress,
        limits: &TransferLimits,
    ) -> Result<Self, TransferError> {
        Self::new(wr_id, Direction::Read, local, remote, limits)
    }

    fn new(
        wr_id: u64,
        direction: Direction,
        local: LocalMemory<'_>,
        remote: RemoteAddress,
        limits: &TransferLimits,
    ) -> Result<Self, TransferError> {
        if wr_id & STEP != 0 {
            return Err(TransferError::InvalidName);
        }
        let (regions, chunks) = match local {
            LocalMemory::Keyed(sges) => {
                let entries = sges.iter();
                let entries = entries.map(|sge| (sge.addr, u64::from(sge.len), sge.lkey));
                (Vec::new(), chunks(entries, remote.addr, limits)?)
            }
            LocalMemory::Unregistered(memory, pool) => {
                let runs = runs(memory, pool.max_pages())?;
                let (needed, idle) = (runs.len(), pool.idle());
                if needed > idle {
                    return Err(TransferError::NoRegions { needed, idle });
                }
                // Keys are not known before the regions are taken, and differ: places stand for them.
                let places = (0..).zip(&runs);
                let entries = places.map(|(place, run)| (run.iova, run.len, LKey(place)));
                let mut chunks = chunks(entries, remote.addr, limits)?;
                let taken = std::iter::from_fn(|| pool.take());
                let regions: Vec<_> = taken.take(needed).zip(runs).collect();
                for sge in chunks.iter_mut().flat_map(|chunk| &mut chunk.sges) {
                    sge.lkey = LKey(regions[sge.lkey.0 as usize].0.key().0);
                }
                (regions, chunks)
            }
        };
        let max_wr = (limits.max_wr as usize).max(1);
        let mut this = Self {
            wr_id,
            direction,
            remote,
            regions,
            chunks,
            max_wr,
            posted: 0,
            batch_end: 0,
            error: None,
            state: TransferState::ToPost,
        };
        this.batch_end = this.requests().min(max_wr);
        Ok(this)
    }

    /// Returns the requests of the transfer, those for registrations and invalidations included.
    #[must_use]
    pub const fn requests(&self) -> usize {
        self.chunks.len() + 2 * self.regions.len()
    }

    /// Returns the regions that the transfer registers.
    #[must_use]
    pub const fn registrations(&self) -> usize {
        self.regions.len()
    }

    /// Returns the progress of the transfer.
    #[must_use]
    pub const fn state(&self) -> TransferState {
        self.state
    }

    /// Posts requests, [`TransferLimits::max_wr`] at most, in [`TransferState::ToPost`]. In other states it does nothing.
    ///
    /// # Errors
    /// As [`ConnectedQp::post_send`]. Requests before the one that was refused are posted, and another call goes on with that
    /// one; after [`HcaError::QueueFull`] once others have completed.
    pub fn post(&mut self, hca: &mut dyn Hca, qp: &ConnectedQp) -> Result<(), HcaError> {
        if self.state != TransferState::ToPost {
            return Ok(());
        }
        while self.posted < self.batch_end {
            self.post_next(hca, qp)?;
            self.posted += 1;
        }
        self.state = TransferState::InFlight;
        Ok(())
    }

    fn post_next(&self, hca: &mut dyn Hca, qp: &ConnectedQp) -> Result<(), HcaError> {
        let is_last = self.posted + 1 == self.batch_end;
        let (wr_id, flags) = match is_last {
            true => (self.wr_id, SendFlags::SIGNALED),
            false => (self.wr_id | STEP, SendFlags::empty()),
        };
        let mut post = |op, sges| qp.post_send(hca, wr_id, op, Payload::Gather(sges), flags);
        if let Some((taken, run)) = self.regions.get(self.posted) {
            let range = (run.iova, run.len);
            let access = match self.direction {
                Direction::Write => AccessFlags::empty(),
                Direction::Read => AccessFlags::LOCAL_WRITE,
            };
            let region = taken.region();
            let given = region.registration(taken.variant(), range, &run.pages, access);
            return post(SendOp::FastRegister(given), &[]);
        }
        let place = self.posted - self.regions.len();
        if let Some(chunk) = self.chunks.get(place) {
            let remote = RemoteAddress {
                addr: chunk.remote_addr,
                ..self.remote
            };
            let op = match self.direction {
                Direction::Write => SendOp::RdmaWrite(remote),
                Direction::Read => SendOp::RdmaRead(remote),
            };
            return post(op, &chunk.sges);
        }
        let (taken, _) = &self.regions[place - self.chunks.len()];
        post(SendOp::LocalInvalidate(taken.key()), &[])
    }

    /// Takes a completion of the queue pair. Returns `false` if it is not the transfer's.
    pub fn handle_completion(&mut self, done: &Completion) -> bool {
        if done.wr_id & !STEP != self.wr_id {
            return false;
        }
        if done.status != CompletionStatus::Success {
            self.error.get_or_insert(done.status);
        }
        if done.wr_id == self.wr_id {
            let left = self.requests() - self.posted;
            self.state = match self.error {
                Some(status) => TransferState::Failed(status),
                None if left == 0 => TransferState::Done,
                None => TransferState::ToPost,
            };
            self.batch_end = self.posted + left.min(self.max_wr);
        }
        true
    }

    /// Ends the transfer and gives its regions to the pool: as empty ones if it is done or nothing was posted, and otherwise to be
    /// renewed (`rdma_rw_ctx_destroy`).
    pub fn release(self, pool: &mut RegistrationPool) {
        let is_empty = self.state == TransferState::Done || self.posted == 0;
        for (region, _) in self.regions {
            if is_empty {
                pool.give_back(region);
            } else {
                pool.discard(region);
            }
        }
    }
}

#[cfg(test)]
mod tests;
