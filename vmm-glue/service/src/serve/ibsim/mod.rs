//! The ibsim protocol as a way in: programs that preload `libumad2sim` use any port of the fabric.

mod ports;
pub(super) mod sockets;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use emulated_hca::Endpoint;
use ib_vtime::{Duration, Instant};
use ibsim_link::codec::{Control, ControlKind, MAD_DATAGRAM_SIZE};
use ibsim_link::server::{Server, ServerConfig};
use rustix::process::{Uid, getuid};
use thiserror::Error;

use super::access::Users;
use super::way_in::{Turn, WayIn};
use ports::{LabPorts, RawClients};
use sockets::{Received, Sent};
use vhca::watch::{EventSet, Ready};
use vhca_receiver::{ClientSocket, Kind, Receiver};

pub use sockets::IbsimAddress;

/// Datagrams taken from one socket before the next one's turn.
const BATCH: usize = 64;

/// How often it is looked whether clients that say nothing are still there.
const PROBE_PERIOD: Duration = Duration::from_secs(1);

/// Why the sockets cannot be had.
#[derive(Debug, Error)]
pub enum IbsimError {
    /// Somebody else has them.
    #[error("ibsim {0}: another server is running there; stop it, or choose another name or port")]
    Taken(IbsimAddress),
    /// The system refuses.
    #[error("ibsim {0}: cannot open its sockets")]
    Refused(IbsimAddress, #[source] io::Error),
}

/// The data socket of a slot.
#[derive(Debug)]
struct DataSocket {
    fd: ClientSocket,
    slot: u32,
    /// The id that names the client's own socket.
    client: u32,
    /// The client's socket is full; it is told when it is not.
    waits: bool,
}

/// The sockets of a server, and the server behind them.
#[derive(Debug)]
pub struct IbsimWay {
    address: IbsimAddress,
    /// Whose programs may attach. UDP does not tell.
    users: Users,
    control: ClientSocket,
    /// `true` while the control socket is watched.
    watches_control: bool,
    data: BTreeMap<RawFd, DataSocket>,
    server: Server<Endpoint>,
    raw: RawClients,
    next_probe: Instant,
}

impl IbsimWay {
    /// Opens the control socket. By Unix sockets only the programs of some users can attach, by UDP those of all.
    ///
    /// # Errors
    /// [`IbsimError`].
    pub fn bind(address: IbsimAddress, users: Users) -> Result<Self, IbsimError> {
        if let IbsimAddress::Udp(port) = address {
            log::warn!(
                "ibsim: every user of this host can manage the fabric by UDP port {port}; --ibsim lets in only some"
            );
        }
        let control = address.bind_control().map_err(|error| {
            if error.kind() == io::ErrorKind::AddrInUse {
                IbsimError::Taken(address.clone())
            } else {
                IbsimError::Refused(address.clone(), error)
            }
        })?;
        Ok(Self {
            address,
            users,
            control: ClientSocket::trusted(control),
            watches_control: true,
            data: BTreeMap::new(),
            server: Server::new(ServerConfig::default()),
            raw: RawClients::default(),
            next_probe: Instant::ZERO,
        })
    }

    /// The server, to be looked at.
    #[must_use]
    pub const fn server(&self) -> &Server<Endpoint> {
        &self.server
    }

    fn take_controls(&mut self, turn: &mut Turn<'_>) {
        let mut buffer = [0; MAD_DATAGRAM_SIZE];
        for _ in 0..BATCH {
            let Some(received) = self.address.receive_from(&mut self.control, &mut buffer) else {
                return;
            };
            let is_admitted = self.admits(turn, &received);
            let Received { len, from, .. } = received;
            let Some(from) = from else { continue };
            if !is_admitted {
                if let Some(mut reply) = Control::parse(&buffer[..len]) {
                    reply.kind = ControlKind::ERROR;
                    // It is told at once if it listens.
                    let _ = sockets::reply(&self.control, &from, &reply);
                }
                continue;
            }
            let mut ports = LabPorts::new(turn.lab, &mut self.raw);
            let mut outcome = self
                .server
                .handle_control(&mut ports, &from.key(), &buffer[..len]);
            if let Some((slot, client)) = outcome.connected {
                match self.address.open_data(slot, client, &from) {
                    Ok(fd) => {
                        let fd = admit(turn.receiver, fd);
                        turn.watch(&fd);
                        let socket = DataSocket {
                            slot,
                            client,
                            waits: false,
                            fd,
                        };
                        self.data.insert(socket.fd.as_raw_fd(), socket);
                    }
                    Err(error) => {
                        ports.complain(format_args!(
                            "no way to the socket of client {client}: {error}"
                        ));
                        self.server.lose(&mut ports, slot);
                        if let Some(reply) = &mut outcome.reply {
                            reply.kind = ControlKind::ERROR;
                        }
                    }
                }
            }
            if let Some(slot) = outcome.disconnected {
                self.close(turn, slot);
            }
            if let Some(reply) = &outcome.reply {
                // A client that does not wait for its reply goes without.
                let _ = sockets::reply(&self.control, &from, reply);
            }
        }
    }

    fn take_mads(&mut self, turn: &mut Turn<'_>, ready: Ready) {
        let Some(socket) = self.data.get_mut(&ready.fd) else {
            return;
        };
        let slot = socket.slot;
        socket.waits &= !ready.events.contains(EventSet::OUT);
        // One more than a datagram, so that a longer one is seen as such.
        let mut buffer = [0; MAD_DATAGRAM_SIZE + 1];
        for _ in 0..BATCH {
            match self.address.receive(&mut socket.fd, &mut buffer) {
                Ok(Some(received)) if is_admitted(&self.address, &self.users, &received) => {
                    let mut ports = LabPorts::new(turn.lab, &mut self.raw);
                    let datagram = &buffer[..received.len];
                    self.server.handle_mad(turn.now, &mut ports, slot, datagram);
                }
                Ok(Some(received)) => complain(turn, &mut self.raw, &received),
                Ok(None) => break,
                Err(_) => return self.lose(turn, slot),
            }
        }
        turn.watches.modify(&socket.fd, socket.wanted());
    }

    /// Watches the control socket unless the receiver discards a datagram of it.
    fn watch_control(&mut self, turn: &mut Turn<'_>) {
        let wanted = !self.control.is_asking();
        if core::mem::replace(&mut self.watches_control, wanted) != wanted {
            let events = if wanted {
                EventSet::IN
            } else {
                EventSet::empty()
            };
            turn.watches.modify(&self.control, events);
        }
    }

    /// Returns `true` if a datagram is of a user who may attach.
    fn admits(&mut self, turn: &mut Turn<'_>, received: &Received) -> bool {
        let is_admitted = is_admitted(&self.address, &self.users, received);
        if !is_admitted {
            complain(turn, &mut self.raw, received);
        }
        is_admitted
    }

    /// Sends what waits for clients, as far as they take it.
    fn send(&mut self, turn: &mut Turn<'_>) {
        let slots: Vec<u32> = self.server.waiting().collect();
        for slot in slots {
            let Some(socket) = self.data.values_mut().find(|socket| socket.slot == slot) else {
                continue;
            };
            let mut is_gone = false;
            while !socket.waits
                && !is_gone
                && let Some(datagram) = self.server.front(slot)
            {
                match sockets::send(&mut socket.fd, datagram) {
                    Sent::Taken => self.server.pop(slot),
                    Sent::Full => {
                        socket.waits = true;
                        turn.watches.modify(&socket.fd, socket.wanted());
                    }
                    Sent::Gone => is_gone = true,
                }
            }
            if is_gone {
                self.lose(turn, slot);
            }
        }
    }

    /// Looks for clients that died without a word.
    fn probe(&mut self, turn: &mut Turn<'_>) {
        if turn.now < self.next_probe {
            return;
        }
        self.next_probe = turn.now + PROBE_PERIOD;
        let gone: Vec<u32> = (self.data.values())
            .filter(|socket| !self.address.is_alive(socket.client))
            .map(|socket| socket.slot)
            .collect();
        for slot in gone {
            self.lose(turn, slot);
        }
    }

    fn lose(&mut self, turn: &mut Turn<'_>, slot: u32) {
        self.server
            .lose(&mut LabPorts::new(turn.lab, &mut self.raw), slot);
        self.close(turn, slot);
    }

    fn close(&mut self, turn: &mut Turn<'_>, slot: u32) {
        let mut sockets = self.data.iter();
        let fd = sockets.find_map(|(fd, socket)| (socket.slot == slot).then_some(*fd));
        if let Some(socket) = fd.and_then(|fd| self.data.remove(&fd)) {
            turn.part(socket.fd);
        }
    }
}

impl DataSocket {
    /// Returns what the socket is to be watched for.
    fn wanted(&self) -> EventSet {
        let mut wanted = EventSet::empty();
        wanted.set(EventSet::IN, !self.fd.is_asking());
        wanted.set(EventSet::OUT, self.waits && !self.fd.is_asking());
        wanted
    }
}

/// Hands a socket to the receiver, which then discards datagrams with descriptors. Without a receiver they are closed here.
fn admit(receiver: Option<&Receiver>, socket: OwnedFd) -> ClientSocket {
    let Some(receiver) = receiver else {
        return ClientSocket::trusted(socket);
    };
    let admitted = receiver.admit(socket, Kind::Datagrams, getuid().as_raw());
    admitted.unwrap_or_else(|(socket, _)| ClientSocket::trusted(socket))
}

/// Returns `true` if a datagram is of a user who may attach, as all may by UDP.
fn is_admitted(address: &IbsimAddress, users: &Users, received: &Received) -> bool {
    match address {
        IbsimAddress::Unix(_) => received.user.is_some_and(|user| users.contains(user)),
        IbsimAddress::Udp(_) => true,
    }
}

fn complain(turn: &mut Turn<'_>, raw: &mut RawClients, received: &Received) {
    let user = received.user.map_or(0, Uid::as_raw);
    LabPorts::new(turn.lab, raw).complain(format_args!(
        "a program of user {user} is refused; --ibsim-user {user} lets such programs in"
    ));
}

impl WayIn for IbsimWay {
    fn start(&mut self, turn: &mut Turn<'_>) {
        if turn.receiver.is_some()
            && let Ok(control) = self.control.try_clone()
        {
            self.control = admit(turn.receiver, control);
        }
        turn.watch(&self.control);
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, ready: Ready) {
        if ready.fd == self.control.as_raw_fd() {
            self.take_controls(turn);
            self.watch_control(turn);
        } else {
            self.take_mads(turn, ready);
        }
    }

    fn flush(&mut self, turn: &mut Turn<'_>) {
        self.server
            .poll(turn.now, &mut LabPorts::new(turn.lab, &mut self.raw));
        self.send(turn);
        self.probe(turn);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let probe = (!self.data.is_empty()).then_some(self.next_probe);
        probe.into_iter().chain(self.server.poll_timeout()).min()
    }
}

#[cfg(test)]
mod tests;
