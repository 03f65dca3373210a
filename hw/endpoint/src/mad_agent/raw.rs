//! The raw client: a program that makes its MADs itself, such as one whose MADs come from another
//! machine's agent.
//!
//! It chooses the transaction ids of its requests and marks them with [`RAW_TID`], which no
//! registration's ids have (see [`AgentId`]). Answers with the mark are given to it as they are, and
//! so are requests that no registration takes. Whether an answer fits a request is for it to judge.
//! What comes to it under RMPP is acknowledged here and given as a whole.

use ib_wire::Tid;
use ib_wire::mad::Mad;

use super::{AgentEvent, AgentId, Disposition, DropReason, MadAgent, RegisterError, SendError};
use crate::{MadAddress, Message};

/// The bit that marks transaction ids of the raw client.
pub const RAW_TID: u64 = 1 << 63;

impl MadAgent {
    /// Registers the raw client, of which there is one at most. Its events come by
    /// [`Self::poll_event_of`], all as [`AgentEvent::Request`]: what it is given, requests and answers
    /// alike, is told apart by the method.
    ///
    /// # Errors
    /// [`RegisterError::Conflict`] if there is one already.
    pub fn register_raw(&mut self) -> Result<AgentId, RegisterError> {
        let agent = self.registry.insert_raw()?;
        self.keep_apart(agent);
        Ok(agent)
    }

    /// Sends a MAD of the raw client as it is. Answers come back to it if the transaction id has
    /// [`RAW_TID`].
    ///
    /// # Errors
    /// [`SendError::UnknownAgent`] if the agent is not the raw client; [`SendError::WrongClass`] for an
    /// SMP on QP1 or another class on QP0; [`SendError::TooMany`].
    pub fn send_raw(&mut self, agent: AgentId, to: MadAddress, mad: Mad) -> Result<(), SendError> {
        if self.registry.raw() != Some(agent) {
            return Err(SendError::UnknownAgent);
        }
        if !self.carries(mad.header.mgmt_class) {
            return Err(SendError::WrongClass);
        }
        self.enqueue(agent, to, mad)
    }

    /// Does with a request that the raw client was given and cannot take what is done with one that
    /// nobody takes: refuses it with a status, or drops it.
    pub fn decline_raw(&mut self, from: &MadAddress, mad: &Mad) -> Disposition {
        if mad.header.method.is_answer() {
            return self.counters.drop_mad(DropReason::UnmatchedResponse);
        }
        let route = self.registry.route(mad);
        self.refuse_unclaimed(from, mad, route)
    }

    /// The raw client, if an answer's transaction id is one of its own.
    pub(super) fn raw_of(&self, tid: Tid) -> Option<AgentId> {
        self.registry.raw().filter(|_| tid.get() & RAW_TID != 0)
    }
}

/// Events that wait for one client.
impl MadAgent {
    /// The next event of a registration that is [apart](crate::Registration::apart), or of the raw
    /// client.
    pub fn poll_event_of(&mut self, agent: AgentId) -> Option<AgentEvent> {
        self.apart.get_mut(&agent)?.pop_front()
    }

    pub(super) fn keep_apart(&mut self, agent: AgentId) {
        self.apart
            .insert(agent, alloc::collections::VecDeque::new());
    }

    /// Queues an event where its registration looks for it.
    pub(super) fn tell(&mut self, event: AgentEvent) {
        match self.apart.get_mut(&event.agent()) {
            Some(queue) => queue.push_back(event),
            None => self.events.push_back(event),
        }
    }

    /// Hands a request to its taker.
    pub(super) fn deliver_request(
        &mut self,
        agent: AgentId,
        from: &MadAddress,
        message: Message,
    ) -> Disposition {
        let waiting = match self.apart.get(&agent) {
            Some(queue) => queue.len(),
            None => self.pending_requests,
        };
        if waiting >= self.config.max_pending_requests {
            return self.counters.drop_mad(DropReason::EventQueueFull);
        }
        if !self.apart.contains_key(&agent) {
            self.pending_requests += 1;
        }
        self.tell(AgentEvent::Request {
            agent,
            from: *from,
            message,
        });
        Disposition::Delivered
    }
}
