//! A completion queue of many queue pairs.

use std::collections::{BTreeMap, VecDeque};

use hca_api::{ArmKind, Completion, CqHandle, Hca, HcaError, QpCaps};
use ib_wire::Qpn;

use super::ConnectedQpId;

/// Names a completion queue that queue pairs of a port share. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedCompletionsId(pub(super) u64);

/// A completion queue that queue pairs of a port share (`ib_cq_pool_get`). Each has room for all of its requests, so the queue does
/// not overflow.
#[derive(Debug)]
pub(super) struct SharedCompletions {
    cq: CqHandle,
    entries: u32,
    members: BTreeMap<Qpn, Member>,
    /// Queue pairs with completions that were not handed out, in their turns.
    turns: VecDeque<Qpn>,
    /// Completions that were not handed out.
    held: usize,
}

#[derive(Debug)]
struct Member {
    id: ConnectedQpId,
    entries: u32,
    waiting: VecDeque<Completion>,
}

/// Completions that are taken from the adapter at once.
const BATCH: usize = 16;

impl SharedCompletions {
    pub(super) fn create(hca: &mut dyn Hca, entries: u32) -> Result<Self, HcaError> {
        let cq = hca.create_cq(entries)?;
        hca.arm_cq(cq, ArmKind::Next)?;
        Ok(Self {
            cq,
            entries,
            members: BTreeMap::new(),
            turns: VecDeque::new(),
            held: 0,
        })
    }

    pub(super) const fn cq(&self) -> CqHandle {
        self.cq
    }

    /// Checks that the requests of another queue pair have room.
    pub(super) fn check_room(&self, caps: &QpCaps) -> Result<(), HcaError> {
        let taken = self
            .members
            .values()
            .map(|member| u64::from(member.entries));
        let needed = u64::from(entries_of(caps)) + taken.sum::<u64>();
        if needed > self.entries.into() {
            return Err(HcaError::InsufficientResources);
        }
        Ok(())
    }

    /// Takes a queue pair in, for whose requests there is room.
    pub(super) fn add(&mut self, qpn: Qpn, id: ConnectedQpId, caps: &QpCaps) {
        let member = Member {
            id,
            entries: entries_of(caps),
            waiting: VecDeque::new(),
        };
        self.members.insert(qpn, member);
    }

    /// Forgets a queue pair that was destroyed, with its completions: its number may come back.
    pub(super) fn remove(&mut self, hca: &mut dyn Hca, qpn: Qpn) {
        // Only a reset can have taken the queue away.
        let _ = self.fetch(hca, usize::MAX);
        let gone = self.members.remove(&qpn);
        self.held -= gone.map_or(0, |member| member.waiting.len());
        self.turns.retain(|waiting| *waiting != qpn);
    }

    /// Hands out completions, `budget` at most, one of each queue pair in turn. If there are fewer, the next one raises an event.
    pub(super) fn poll(
        &mut self,
        hca: &mut dyn Hca,
        budget: usize,
    ) -> Result<Vec<(ConnectedQpId, Completion)>, HcaError> {
        let mut handed = Vec::new();
        while handed.len() < budget {
            self.fetch(hca, self.entries as usize)?;
            let left = budget - handed.len();
            handed.extend(std::iter::from_fn(|| self.next()).take(left));
            if handed.len() < budget && !hca.arm_cq(self.cq, ArmKind::Next)? {
                break;
            }
        }
        Ok(handed)
    }

    fn next(&mut self) -> Option<(ConnectedQpId, Completion)> {
        let qpn = self.turns.pop_front()?;
        let member = self.members.get_mut(&qpn)?;
        let done = member.waiting.pop_front()?;
        self.held -= 1;
        if !member.waiting.is_empty() {
            self.turns.push_back(qpn);
        }
        Some((member.id, done))
    }

    /// Takes completions from the adapter, until `most` wait here.
    fn fetch(&mut self, hca: &mut dyn Hca, most: usize) -> Result<(), HcaError> {
        let mut batch = [Completion::BLANK; BATCH];
        loop {
            let room = most.saturating_sub(self.held).min(BATCH);
            let count = hca.poll_cq(self.cq, &mut batch[..room])?;
            for done in &batch[..count] {
                // Others are completions of a queue pair that was not taken in.
                if let Some(member) = self.members.get_mut(&done.qpn) {
                    if member.waiting.is_empty() {
                        self.turns.push_back(done.qpn);
                    }
                    member.waiting.push_back(*done);
                    self.held += 1;
                }
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }
}

const fn entries_of(caps: &QpCaps) -> u32 {
    caps.max_send_wr.saturating_add(caps.max_recv_wr)
}

#[cfg(test)]
mod tests;
