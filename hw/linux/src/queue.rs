//! A completion queue.

use std::collections::VecDeque;
use std::sync::Arc;

use hca_api::{ArmKind, Completion, CompletionOp, CompletionStatus, HcaError};

use crate::sys;

/// Entries of the longest queue.
pub(crate) const MAX_ENTRIES: u32 = 1 << 16;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    capacity: usize,
    completions: VecDeque<Completion>,
    armed: Option<ArmKind>,
    /// The host's queue, whose completions come here.
    pub(crate) host: Option<Arc<sys::CompletionQueue>>,
}

/// The event that a completion raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raised {
    /// None.
    Nothing,
    /// The one that the queue was armed for.
    Completion,
    /// The completion did not fit and is lost.
    Overrun,
}

impl CompletionQueue {
    pub(crate) fn new(entries: u32) -> Result<Self, HcaError> {
        let mut queue = Self {
            capacity: 0,
            completions: VecDeque::new(),
            armed: None,
            host: None,
        };
        queue.resize(entries)?;
        Ok(queue)
    }

    pub(crate) fn resize(&mut self, entries: u32) -> Result<(), HcaError> {
        let fits = entries as usize >= self.completions.len();
        if !(1..=MAX_ENTRIES).contains(&entries) || !fits {
            return Err(HcaError::InvalidParameter);
        }
        self.capacity = entries as usize;
        Ok(())
    }

    pub(crate) fn waiting(&self) -> usize {
        self.completions.len()
    }

    /// Returns the number of completions that fit.
    pub(crate) fn room(&self) -> usize {
        self.capacity - self.completions.len()
    }

    pub(crate) const fn armed(&self) -> Option<ArmKind> {
        self.armed
    }

    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.completions.len());
        for (place, completion) in out.iter_mut().zip(self.completions.drain(..count)) {
            *place = completion;
        }
        count
    }

    pub(crate) fn arm(&mut self, kind: ArmKind) -> bool {
        // The wish for any completion includes that for a solicited one.
        if self.armed != Some(ArmKind::Next) {
            self.armed = Some(kind);
        }
        !self.completions.is_empty()
    }

    /// Adds a completion. umad does not pass the solicited bit on, so each receive counts as solicited.
    pub(crate) fn push(&mut self, completion: Completion) -> Raised {
        if self.completions.len() >= self.capacity {
            return Raised::Overrun;
        }
        let is_solicited =
            completion.op == CompletionOp::Recv || completion.status != CompletionStatus::Success;
        self.completions.push_back(completion);
        match self.armed {
            Some(ArmKind::Solicited) if !is_solicited => Raised::Nothing,
            Some(_) => {
                self.armed = None;
                Raised::Completion
            }
            None => Raised::Nothing,
        }
    }
}
