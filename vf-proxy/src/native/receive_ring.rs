//! A receive queue that stays full.

use std::collections::VecDeque;

use hca_api::{
    AccessFlags, Completion, CompletionFlags, CompletionOp, CompletionStatus, Hca, HcaError, RKey,
};

use super::{ConnectedQp, MemoryRegion, VfPort, VfPortError};

/// Receive buffers of a queue pair. Each is posted again once its message is copied, so that the peer finds as many as before.
#[derive(Debug)]
pub struct ReceiveRing {
    region: MemoryRegion,
    first_wr_id: u64,
    count: u32,
    size: u32,
    /// Buffers that are not posted.
    idle: VecDeque<u32>,
}

/// A message of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes of a send. An RDMA write with immediate data brings none here.
    pub bytes: Vec<u8>,
    /// Immediate data, in host byte order.
    pub immediate: Option<u32>,
    /// Key of the own region that the peer's send invalidated.
    pub invalidated: Option<RKey>,
}

impl ReceiveRing {
    /// Registers `count` buffers of `size` bytes, which are not posted yet. The names of their requests are `first_wr_id` and those
    /// that follow.
    ///
    /// # Errors
    /// As [`VfPort::reg_mr`].
    pub fn allocate(
        port: &mut VfPort,
        hca: &mut dyn Hca,
        first_wr_id: u64,
        count: u32,
        size: u32,
    ) -> Result<Self, VfPortError> {
        let len = count.checked_mul(size).ok_or(HcaError::InvalidParameter)?;
        let region = port.reg_mr(hca, len as usize, AccessFlags::LOCAL_WRITE)?;
        Ok(Self {
            region,
            first_wr_id,
            count,
            size,
            idle: (0..count).collect(),
        })
    }

    /// Returns the number of buffers that are posted.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.count as usize - self.idle.len()
    }

    /// Posts all buffers that are not posted: the first time, or after errors.
    ///
    /// # Errors
    /// As [`ConnectedQp::post_recv`]; another call goes on with the buffer that was refused.
    pub fn fill(&mut self, hca: &mut dyn Hca, qp: &ConnectedQp) -> Result<(), HcaError> {
        while let Some(&at) = self.idle.front() {
            let scatter = [self.region.sge(at * self.size, self.size)];
            qp.post_recv(hca, self.first_wr_id.wrapping_add(at.into()), &scatter)?;
            self.idle.pop_front();
        }
        Ok(())
    }

    /// Takes a completion of the queue pair, copies the message and posts the buffer again. A buffer that cannot be posted waits for
    /// the next message, or for [`Self::fill`].
    ///
    /// Returns `None` if the completion is not that of a buffer.
    ///
    /// # Errors
    /// The status of a receive that failed or was flushed, whose buffer is not posted again.
    pub fn receive(
        &mut self,
        hca: &mut dyn Hca,
        qp: &ConnectedQp,
        done: &Completion,
    ) -> Option<Result<Received, CompletionStatus>> {
        let at = u32::try_from(done.wr_id.wrapping_sub(self.first_wr_id)).ok()?;
        if at >= self.count {
            return None;
        }
        self.idle.push_back(at);
        if done.status != CompletionStatus::Success {
            return Some(Err(done.status));
        }
        let len = match done.op {
            CompletionOp::RecvRdmaImm => 0,
            _ => done.byte_len.min(self.size),
        };
        let mut bytes = vec![0; len as usize];
        let offset = at as usize * self.size as usize;
        if self.region.read(hca, offset, &mut bytes).is_err() {
            return Some(Err(CompletionStatus::LocalProtection));
        }
        // The next message or the owner tries again.
        let _ = self.fill(hca, qp);
        let flagged = |flag| done.flags.contains(flag).then_some(done.immediate);
        Some(Ok(Received {
            bytes,
            immediate: flagged(CompletionFlags::IMMEDIATE),
            invalidated: flagged(CompletionFlags::INVALIDATED).map(RKey),
        }))
    }

    /// Deregisters the buffers, when the queue pair is drained or closed.
    ///
    /// # Errors
    /// As [`VfPort::dereg_mr`].
    pub fn deallocate(self, port: &mut VfPort, hca: &mut dyn Hca) -> Result<(), VfPortError> {
        port.dereg_mr(hca, self.region)
    }
}

#[cfg(test)]
mod tests;
