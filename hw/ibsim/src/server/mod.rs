//! The server: lets clients of the protocol use the ports of a fabric.
//!
//! It owns no socket. Whoever does hands it the datagrams that came in ([`Server::handle_control`],
//! [`Server::handle_mad`]), sends what it has for the clients ([`Server::front`], [`Server::pop`]), and
//! calls [`Server::poll`] after the fabric was polled.
//!
//! What stock clients rely on, and what they suffer from, is kept in mind:
//!
//! * `libumad2sim` has no timers: a request that nobody answers would be outstanding for ever. So each
//!   comes back, with status 110: at once if it can be known that it reaches nobody, else when its
//!   answer is overdue.
//! * It dies of a MAD of a class that it has no agent for. SMPs and requests to an SA are only given to
//!   a client that announced itself as a subnet manager and has sent SMPs.
//! * Transaction ids have the client's slot in their upper 16 bits on the way to the others, with the
//!   mark of raw clients ([`ib_endpoint::RAW_TID`]), and come back as a simulator gives them: with the
//!   slot there.
//! * The hop pointer of directed routes is 0 in its datagrams, on the way out and on the way back.

mod client;
mod control;
mod deliver;
mod request;

use std::collections::{BTreeMap, BTreeSet};

use ib_vtime::{Duration, Instant, TimerQueue};
use zerocopy::IntoBytes;

use crate::codec::MadDatagram;
use crate::{Ports, Smi};
use client::Client;

pub use client::ClientView;
pub use control::ControlOutcome;

/// The limits and times of a [`Server`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Clients at once; at most 32768, since a slot has 15 bits of a transaction id.
    pub max_clients: u32,
    /// MADs that wait for a client that does not read; more are dropped and counted.
    pub max_queued: usize,
    /// Requests of a client without an answer; more come back at once.
    pub max_outstanding: usize,
    /// Requests given to a client whose answers may still come.
    pub max_given: usize,
    /// When an SMP without an answer comes back.
    pub smp_timeout: Duration,
    /// When another request without an answer comes back.
    pub gmp_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_clients: 1024,
            max_queued: 1024,
            max_outstanding: 4096,
            max_given: 1024,
            // More than an answer takes on a fabric at rest, and less than OpenSM waits for a node that
            // does not answer: 3 × 200 ms.
            smp_timeout: Duration::from_millis(500),
            // What the tools wait for an SA: 1 s, repeated 3 times.
            gmp_timeout: Duration::from_secs(4),
        }
    }
}

/// What a server counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Control datagrams of a wrong size or magic number.
    pub bad_controls: u64,
    /// Control requests that failed.
    pub refused_controls: u64,
    /// MAD datagrams of a wrong size, or that hold no MAD that can be sent, from clients that expect
    /// nothing back.
    pub bad_mads: u64,
    /// MADs of clients that were sent.
    pub sent: u64,
    /// Requests that came back at once.
    pub bounced: u64,
    /// Requests that came back when their answer was overdue.
    pub overdue: u64,
    /// Answers given to clients.
    pub answers: u64,
    /// Answers that nobody waits for, or not any more.
    pub stray_answers: u64,
    /// Requests given to clients.
    pub requests: u64,
    /// Requests that no client takes.
    pub declined: u64,
    /// MADs for clients whose queue was full.
    pub overrun: u64,
    /// Clients that went away without a word.
    pub lost_clients: u64,
}

/// The server side of the protocol. See the [module](self).
#[derive(Debug)]
pub struct Server<P> {
    config: ServerConfig,
    clients: BTreeMap<u32, Client<P>>,
    /// The ports in use, and whether their QP0 is.
    ports: BTreeMap<P, Smi>,
    /// Slots of clients for which something waits.
    waiting: BTreeSet<u32>,
    timers: TimerQueue<(u32, u64)>,
    counters: ServerCounters,
}

impl<P: Copy + Ord + core::fmt::Debug> Server<P> {
    /// A server without clients.
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        Self {
            config: ServerConfig {
                max_clients: config.max_clients.min(1 << 15),
                ..config
            },
            clients: BTreeMap::new(),
            ports: BTreeMap::new(),
            waiting: BTreeSet::new(),
            timers: TimerQueue::new(),
            counters: ServerCounters::default(),
        }
    }

    /// Takes what the ports have for clients, and sends back what is overdue.
    pub fn poll(&mut self, now: Instant, ports: &mut impl Ports<Port = P>) {
        let in_use: Vec<P> = self.ports.keys().copied().collect();
        for port in in_use {
            while let Some((qpn, from, message)) = ports.receive(port) {
                self.deliver(ports, port, qpn, &from, &message);
            }
        }
        while let Some((_, (slot, tid))) = self.timers.pop_due(now) {
            self.send_back_overdue(slot, tid);
        }
    }

    /// When [`Self::poll`] wants to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// The slots of the clients for which something waits to be sent.
    pub fn waiting(&self) -> impl Iterator<Item = u32> {
        self.waiting.iter().copied()
    }

    /// The next datagram for a client; it stays until [`Self::pop`].
    #[must_use]
    pub fn front(&self, slot: u32) -> Option<&[u8]> {
        let datagram = self.clients.get(&slot)?.queue.front()?;
        Some(datagram.as_bytes())
    }

    /// Drops the datagram that was sent.
    pub fn pop(&mut self, slot: u32) {
        if let Some(client) = self.clients.get_mut(&slot) {
            client.queue.pop_front();
            if client.queue.is_empty() {
                self.waiting.remove(&slot);
            }
        }
    }

    /// Forgets a client that is gone: its socket says so.
    pub fn lose(&mut self, ports: &mut impl Ports<Port = P>, slot: u32) {
        if self.remove(ports, slot) {
            self.counters.lost_clients += 1;
        }
    }

    /// The clients, by their slots.
    pub fn clients(&self) -> impl Iterator<Item = ClientView<P>> {
        self.clients.iter().map(|(slot, client)| client.view(*slot))
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// Gives up a client and what it had. `false` if there was none.
    fn remove(&mut self, ports: &mut impl Ports<Port = P>, slot: u32) -> bool {
        let Some(client) = self.clients.remove(&slot) else {
            return false;
        };
        self.waiting.remove(&slot);
        for outstanding in client.outstanding.into_values() {
            self.timers.cancel(outstanding.timer);
        }
        let mut others = self.clients.values().filter(|c| c.port == client.port);
        let still_sm = others.clone().any(|other| other.is_sm);
        if client.is_sm && !still_sm {
            ports.set_is_sm(client.port, false);
        }
        if others.next().is_none() {
            self.ports.remove(&client.port);
            ports.close(client.port);
        }
        true
    }

    /// Queues a datagram for a client.
    fn queue(&mut self, slot: u32, datagram: MadDatagram) -> bool {
        let max = self.config.max_queued;
        let Some(client) = self.clients.get_mut(&slot) else {
            return false;
        };
        if client.queue.len() >= max {
            self.counters.overrun += 1;
            return false;
        }
        client.queue.push_back(datagram);
        self.waiting.insert(slot);
        true
    }
}

#[cfg(test)]
mod tests;
