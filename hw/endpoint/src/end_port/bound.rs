//! A MAD agent on a queue pair of an HCA: part of an [`EndPort`](super::EndPort), or alone, on a port whose programs register all
//! classes themselves.

use alloc::boxed::Box;

use hca_api::{Hca, HcaError, LocalMad, MadView, SourceAddress};
use ib_vtime::Instant;

use crate::smi::{self, SmiIncoming, SmiOutgoing};
use crate::{MadAddress, MadAgent, MadTransport, Transmit};

/// What carried MADs between an agent and its queue pair did not reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Sends that the HCA refused; the agents' retries cover them.
    pub refused_sends: u64,
    /// Directed-route SMPs with an impossible route, in either direction.
    pub bad_routes: u64,
}

/// A MAD agent bound to QP0 or QP1.
#[derive(Debug)]
pub struct BoundAgent<T> {
    pub(super) qp: T,
    pub(super) mads: MadAgent,
    /// Taken from the agent, not yet taken by the queue pair.
    held: Option<Transmit>,
    /// Whether the agent sends next, or the others on its queue pair.
    agents_turn: bool,
    counters: LinkCounters,
}

impl<T: MadTransport> BoundAgent<T> {
    /// Binds an agent to a queue pair.
    pub fn new(qp: T, mads: MadAgent) -> Self {
        Self {
            qp,
            mads,
            held: None,
            agents_turn: false,
            counters: LinkCounters::default(),
        }
    }

    /// Returns the agent.
    pub const fn agent(&mut self) -> &mut MadAgent {
        &mut self.mads
    }

    /// Receives up to `budget` MADs, runs the agent's timers, and sends up to `budget` MADs. Returns `true` if there may be more to
    /// do at once; if not, the HCA raises [`HcaEvent::Completion`](hca_api::HcaEvent::Completion) when there is.
    pub fn poll(&mut self, now: Instant, hca: &mut dyn Hca, budget: usize) -> bool {
        let unreceived = self.receive(now, hca, budget);
        self.mads.handle_timeout(now);
        let unsent = self.send(now, hca, budget, &mut || None);
        self.arm(hca) || unreceived.min(unsent) == 0
    }

    /// Returns when to call [`Self::poll`] at the latest; a time that has passed means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.can_go_on(false) {
            true => Some(Instant::ZERO),
            false => self.mads.poll_timeout(),
        }
    }

    /// Whether something waits to be sent, by the agent or `others`, and can be.
    pub(super) fn can_go_on(&self, others: bool) -> bool {
        let waits = self.held.is_some() || self.mads.has_transmit() || others;
        waits && self.qp.can_send()
    }

    /// Asks for an event when there is something to receive. `true` if there is already.
    pub(super) fn arm(&self, hca: &mut dyn Hca) -> bool {
        self.qp.arm(hca)
    }

    pub(super) const fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Takes up to `budget` received MADs. Gives how much of the budget is left.
    pub(super) fn receive(&mut self, now: Instant, hca: &mut dyn Hca, mut budget: usize) -> usize {
        while budget > 0
            && let Some((from, mut mad)) = self.qp.poll(hca)
        {
            budget -= 1;
            match smi::incoming(&mut mad, self.qp.port()) {
                SmiIncoming::Deliver => {
                    self.mads.handle_mad(now, &from, &mad);
                }
                SmiIncoming::Discard => self.counters.bad_routes += 1,
            }
        }
        budget
    }

    /// Sends up to `budget` MADs, in turn the agent's and what `others` give. Gives how much of the
    /// budget is left.
    pub(super) fn send(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        mut budget: usize,
        others: &mut dyn FnMut() -> Option<Transmit>,
    ) -> usize {
        while budget > 0 && self.qp.can_send() {
            let held = self.held.take();
            let Some(transmit) = held.or_else(|| self.next(now, others)) else {
                return budget;
            };
            budget -= 1;
            if !self.send_one(now, hca, transmit) {
                return budget;
            }
        }
        budget
    }

    fn next(
        &mut self,
        now: Instant,
        others: &mut dyn FnMut() -> Option<Transmit>,
    ) -> Option<Transmit> {
        self.agents_turn = !self.agents_turn;
        if self.agents_turn {
            self.mads.poll_transmit(now).or_else(others)
        } else {
            others().or_else(|| self.mads.poll_transmit(now))
        }
    }

    /// Sends a MAD. `false` if the queue pair takes no more now.
    fn send_one(&mut self, now: Instant, hca: &mut dyn Hca, transmit: Transmit) -> bool {
        let mut mad = transmit.mad;
        match smi::outgoing(&mut mad, self.qp.port()) {
            SmiOutgoing::Send => match self.qp.send(hca, &transmit.to, &mad) {
                Ok(()) => true,
                Err(HcaError::QueueFull) => {
                    self.held = Some(transmit);
                    false
                }
                Err(_) => {
                    self.counters.refused_sends += 1;
                    true
                }
            },
            SmiOutgoing::LocalAgents => {
                let from = MadAddress::directed();
                // The M_Key guards the port against its own programs, too.
                let view = MadView::Network(SourceAddress::local(self.qp.port()));
                match hca.process_local_mad(self.qp.port(), view, &mad) {
                    Ok(LocalMad::Reply(mut reply)) => {
                        // The agents' answer comes back over a route without hops.
                        if smi::outgoing(&mut reply, self.qp.port()) == SmiOutgoing::LocalManager {
                            self.mads.handle_mad(now, &from, &reply);
                        } else {
                            self.counters.bad_routes += 1;
                        }
                    }
                    // What they leave is for the software on QP0 itself.
                    Ok(LocalMad::NotHandled) => {
                        self.mads.handle_mad(now, &from, &mad);
                    }
                    _ => {}
                }
                true
            }
            SmiOutgoing::LocalManager => {
                self.mads.handle_mad(now, &MadAddress::directed(), &mad);
                true
            }
            SmiOutgoing::Discard => {
                self.counters.bad_routes += 1;
                true
            }
        }
    }

    /// Destroys the queue pair.
    pub fn close(self, hca: &mut dyn Hca) {
        Box::new(self.qp).close(hca);
    }
}
