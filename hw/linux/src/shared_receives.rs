//! Shared receive queues of the host.

use std::sync::Arc;

use hca_api::{HcaError, PdHandle, ReceiveMode, RecvRequest, Sge, SrqAttributes, SrqSpec};

use crate::attributes::{refused, refused_request};
use crate::gsi::{MAX_SGE, MAX_WR};
use crate::sys::abi::{self, SrqAttr, srq_mask};
use crate::sys::{SharedQueue, User};

/// A receive that the host has.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) wr_id: u64,
    /// The list of a datagram, in which its route is.
    pub(crate) scatter: Vec<Sge>,
}

/// A shared receive queue. Its requests complete in any order: their numbers are places of a table.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    pub(crate) host: Arc<SharedQueue>,
    _user: User,
    pub(crate) pd: PdHandle,
    max_sge: u32,
    max_wr: u32,
    receives: Vec<Option<Received>>,
    free: Vec<u32>,
}

impl SharedReceives {
    /// Makes a queue whose handle has a number.
    pub(crate) fn new(
        spec: &SrqSpec,
        make: impl FnOnce(SrqAttr) -> std::io::Result<SharedQueue>,
    ) -> Result<Self, HcaError> {
        if !matches!(spec.receives, ReceiveMode::Posted) {
            return Err(HcaError::Unsupported);
        }
        if spec.max_wr > MAX_WR || spec.max_sge > MAX_SGE {
            return Err(HcaError::InvalidParameter);
        }
        let attr = SrqAttr {
            max_wr: spec.max_wr,
            max_sge: spec.max_sge,
            srq_limit: 0,
        };
        let host = make(attr).map_err(|error| refused(&error))?;
        let mut queue = Self {
            _user: host.user_of_domain(),
            host: Arc::new(host),
            pd: spec.pd,
            max_sge: spec.max_sge,
            max_wr: spec.max_wr,
            receives: Vec::new(),
            free: Vec::new(),
        };
        if spec.limit != 0 {
            queue.modify(spec.limit, None)?;
        }
        Ok(queue)
    }

    pub(crate) fn modify(&mut self, limit: u32, max_wr: Option<u32>) -> Result<(), HcaError> {
        if max_wr.is_some_and(|max_wr| max_wr > MAX_WR) {
            return Err(HcaError::InvalidParameter);
        }
        let attr = SrqAttr {
            max_wr: max_wr.unwrap_or(0),
            max_sge: 0,
            srq_limit: limit,
        };
        let size = max_wr.map_or(0, |_| srq_mask::MAX_WR);
        let modified = self.host.modify(attr, srq_mask::LIMIT | size);
        modified.map_err(|error| refused(&error))?;
        self.max_wr = max_wr.unwrap_or(self.max_wr);
        Ok(())
    }

    pub(crate) fn query(&self) -> Result<SrqAttributes, HcaError> {
        let found = self.host.query().map_err(|error| refused(&error))?;
        Ok(SrqAttributes {
            max_wr: found.max_wr,
            max_sge: found.max_sge,
            limit: found.srq_limit,
        })
    }

    /// Posts a receive, which the host knows by the name that `name` makes of its number.
    pub(crate) fn post(
        &mut self,
        request: &RecvRequest<'_>,
        name: impl FnOnce(u32) -> u64,
    ) -> Result<(), HcaError> {
        if request.scatter.len() > self.max_sge as usize {
            return Err(HcaError::TooManySges);
        }
        // The host has the bound. A queue pair that is destroyed can leave places that never come back, of which some are granted.
        let taken = self.receives.len() - self.free.len();
        if taken >= 2 * self.max_wr as usize {
            return Err(HcaError::QueueFull);
        }
        let list: Vec<_> = request.scatter.iter().map(abi::Sge::from).collect();
        let free = self.free.last().copied();
        let next = u32::try_from(self.receives.len()).unwrap_or(0);
        let number = free.unwrap_or(next);
        let posted = self.host.post(name(number), &list);
        posted.map_err(|error| refused_request(&error))?;
        let received = Received {
            wr_id: request.wr_id,
            scatter: request.scatter.to_vec(),
        };
        match free {
            Some(_) => {
                self.free.pop();
                self.receives[number as usize] = Some(received);
            }
            None => self.receives.push(Some(received)),
        }
        Ok(())
    }

    /// Takes a receive by its number. `None` if there is none.
    pub(crate) fn complete(&mut self, number: u32) -> Option<Received> {
        let received = self.receives.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(received)
    }
}
