//! The control socket: a Unix stream socket by which the service is asked and changed.

mod answer;
mod client;
mod reply;
mod scene;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use ib_vtime::{Duration, Instant};

#[cfg(test)]
pub(super) use reply::metrics_text;

use super::acceptor::Acceptor;
use super::claim::Claim;
use super::listeners::Listener;
use super::way_in::{Turn, WayIn};
use client::Client;
use vhca::watch::Ready;
use vhca_receiver::Kind;

/// Time for connections before others have their turn. The socket stays ready for the others.
const ACCEPTING: Duration = Duration::from_micros(50);

/// Clients at a time; of more, the one that has been silent for longest must go.
const MAX_CLIENTS: usize = 64;

/// The socket and its clients.
#[derive(Debug)]
pub struct ControlSocket {
    acceptor: Acceptor,
    _claim: Option<Claim>,
    clients: BTreeMap<RawFd, Client>,
    /// Whose reply had the last turn.
    replied: RawFd,
}

impl ControlSocket {
    /// Serves whoever connects to a socket of streams.
    #[must_use]
    pub fn new(listener: Listener) -> Self {
        Self {
            acceptor: Acceptor::new(listener.socket, Kind::Nothing),
            _claim: listener.claim,
            clients: BTreeMap::new(),
            replied: 0,
        }
    }

    fn accept(&mut self, turn: &mut Turn<'_>) {
        let mut slice = turn.slice(ACCEPTING);
        while !slice.is_over()
            && let Some(stream) = self.acceptor.accept(turn, &"control socket")
        {
            if self.clients.len() == MAX_CLIENTS {
                self.evict(turn);
            }
            let client = Client::new(turn, stream);
            self.clients.insert(client.fd(), client);
        }
        if self.acceptor.is_resting() {
            // A client that is silent makes room for one that asks.
            self.evict(turn);
        }
    }

    fn evict(&mut self, turn: &mut Turn<'_>) {
        let clients = self.clients.iter();
        let silent = clients.min_by_key(|(_, client)| client.last_used);
        if let Some(fd) = silent.map(|(&fd, _)| fd) {
            self.close(turn, fd);
        }
    }

    /// Goes on with the replies under way, by turns, for a slice in all.
    fn reply(&mut self, turn: &mut Turn<'_>) {
        let mut slice = turn.slice(reply::SLICE);
        let mut is_over = false;
        while !is_over {
            let wanting = |(fd, client): (&RawFd, &Client)| client.wants_reply().then_some(*fd);
            let behind = self.clients.range(self.replied + 1..).find_map(wanting);
            let next = behind.or_else(|| self.clients.iter().find_map(wanting));
            let Some(fd) = next else { return };
            self.replied = fd;
            let client = self.clients.get_mut(&fd);
            let stays = client.is_none_or(|client| client.reply(turn, &mut slice));
            if !stays {
                self.close(turn, fd);
            }
            is_over = slice.is_over();
        }
    }

    fn close(&mut self, turn: &mut Turn<'_>, fd: RawFd) {
        if let Some(client) = self.clients.remove(&fd) {
            client.close(turn);
        }
    }
}

impl WayIn for ControlSocket {
    fn start(&mut self, turn: &mut Turn<'_>) {
        self.acceptor.start(turn);
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, ready: Ready) {
        if ready.fd == self.acceptor.fd() {
            self.accept(turn);
        } else if let Some(client) = self.clients.get_mut(&ready.fd)
            && !client.handle_ready(turn, ready.events)
        {
            self.close(turn, ready.fd);
        }
    }

    fn flush(&mut self, turn: &mut Turn<'_>) {
        if self.acceptor.wake(turn) {
            self.accept(turn);
        }
        while let Some((tap, record)) = turn.lab.world_mut().poll_tapped() {
            for client in self.clients.values_mut() {
                client.take_frame(tap, &record);
            }
        }
        let mut gone = Vec::new();
        for (fd, client) in &mut self.clients {
            if client.is_served() && !client.advance(turn) {
                gone.push(*fd);
            }
        }
        for fd in gone {
            self.close(turn, fd);
        }
        self.reply(turn);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let clients = self.clients.values().filter_map(Client::deadline);
        clients.chain(self.acceptor.poll_timeout()).min()
    }
}
