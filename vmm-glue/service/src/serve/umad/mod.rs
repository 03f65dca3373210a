//! A way in for programs that use Linux' umad: a Unix socket to which the preload library
//! `libvhca_umad.so` in such a program connects, once for each file that the program opens.

mod adapters;
mod client;
mod tree;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use ib_vtime::{Duration, Instant};
use rustix::process::getuid;
use umad_link::{
    Errno, FileCounters, Hello, HelloReply, Purpose, ServerLimits, TreeId, UmadServer, UserId,
    Verdict,
};

use super::acceptor::Acceptor;
use super::access::Access;
use super::claim::Claim;
use super::claim::ClaimError;
use super::descriptors::DescriptorLimit;
use super::listeners::Listener;
use super::way_in::{Turn, WayIn};
use crate::credentials::of_peer;
use crate::show::Programs;
use adapters::{KnownNodes, KnownVfs, LabAdapters};
use client::{Client, Datagram, Sent};
use tree::Trees;
use vhca::LogLimit;
use vhca::watch::{EventSet, Ready};
use vhca_receiver::{Kind, PassedFd};

/// Connections that are accepted, and datagrams of one client that are taken, before others have
/// their turn.
const BUDGET: usize = 64;

/// Time for the datagrams of one client before others have their turn: what one costs depends on what its program has under way.
const TURN: Duration = Duration::from_micros(50);

/// Begins the warning about a tree.
const NO_TREE: &str = "umad: cannot make the files that a program looks for";

/// The umad socket of a service, with its clients.
#[derive(Debug)]
pub struct UmadSocket {
    acceptor: Acceptor,
    clients: BTreeMap<RawFd, Client>,
    server: UmadServer,
    nodes: KnownNodes,
    vfs: KnownVfs,
    trees: Trees,
    /// Clients that wait for a tree.
    waiting: Vec<(RawFd, TreeId)>,
    /// What programs did with files that are closed, and the files that were opened.
    programs: Programs,
    limit: DescriptorLimit,
    /// What programs cause to be logged.
    log: LogLimit,
    _claim: Option<Claim>,
}

impl UmadSocket {
    /// Serves whoever connects to a socket of packets, with a folder `PATH.sys` beside it for the same user.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn new(listener: Listener) -> Result<Self, ClaimError> {
        Self::with_access(listener, Access::default())
    }

    /// The same with a folder for all who may connect.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub(super) fn with_access(listener: Listener, access: Access) -> Result<Self, ClaimError> {
        let mut root = listener.path.as_os_str().to_owned();
        root.push(".sys");
        let trees = Trees::new(root.into(), access).map_err(|source| ClaimError::Refused {
            path: listener.path,
            source,
        })?;
        Ok(Self {
            acceptor: Acceptor::new(listener.socket, Kind::Answers),
            clients: BTreeMap::new(),
            server: UmadServer::new(ServerLimits::default()),
            nodes: KnownNodes::default(),
            vfs: KnownVfs::default(),
            trees,
            waiting: Vec::new(),
            programs: Programs::default(),
            limit: DescriptorLimit::current(),
            log: LogLimit::default(),
            _claim: listener.claim,
        })
    }

    /// The folder that is made and removed with it.
    pub(super) fn folder(&self) -> &Path {
        self.trees.root()
    }

    fn accept(&mut self, turn: &mut Turn<'_>) {
        let mut slice = turn.slice(TURN);
        for _ in 0..BUDGET {
            // The socket stays ready for the others.
            if slice.is_over() {
                return;
            }
            let Some(socket) = self.acceptor.accept(turn, &"umad") else {
                return;
            };
            // Whoever cannot be told apart shares with the service's own user.
            let uid = of_peer(&socket).map_or_else(|_| getuid(), |peer| peer.uid);
            let user = UserId(uid.as_raw());
            let Some(session) = self.server.connect(turn.now, user) else {
                let what = "umad: too many programs; one is turned away";
                self.log.warn(turn.now, what);
                drop(socket);
                continue;
            };
            turn.watch(&socket);
            let client = Client {
                session,
                watched: EventSet::IN,
                socket,
            };
            self.clients.insert(client.socket.as_raw_fd(), client);
        }
    }

    /// Takes what a client sent. Whether it stays.
    fn serve(&mut self, turn: &mut Turn<'_>, fd: RawFd) -> bool {
        let mut slice = turn.slice(TURN);
        for _ in 0..BUDGET {
            let Some(client) = self.clients.get_mut(&fd) else {
                return true;
            };
            if !self.server.wants_input(client.session) {
                return true;
            }
            let Datagram { bytes, answer_to } = match client.receive() {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return true,
                Err(_) => return false,
            };
            if opens_file(&bytes) && !self.limit.may_stay(fd) {
                let result = Err(Errno::ENFILE);
                client.send(&HelloReply { result }.encode());
                let what = "umad: programs have to wait, because few descriptors are left; raise the limit of open files \
                            (ulimit -n) if this lasts";
                self.log.warn(turn.now, what);
                return false;
            }
            let mut adapters = LabAdapters {
                lab: turn.lab,
                known: &mut self.nodes,
                vfs: &mut self.vfs,
                peer: Some(&client.socket),
            };
            let session = client.session;
            let verdict = self
                .server
                .receive(turn.now, &mut adapters, session, &bytes);
            if !self.act(turn.now, fd, verdict, answer_to) {
                return false;
            }
            // The socket tells again of what is left.
            if slice.is_over() {
                break;
            }
        }
        true
    }

    /// Does what a datagram leads to. Whether the client stays.
    fn act(
        &mut self,
        now: Instant,
        fd: RawFd,
        verdict: Verdict,
        answer_to: Option<PassedFd>,
    ) -> bool {
        let Some(client) = self.clients.get_mut(&fd) else {
            return false;
        };
        match verdict {
            Verdict::Nothing => true,
            Verdict::Opened(reply) => {
                self.programs.opened += 1;
                client.send(&reply) == Sent::Yes
            }
            Verdict::Replied(reply) => {
                client.send(&reply);
                false
            }
            Verdict::Tree(request) => {
                let id = request.id.clone();
                let user = of_peer(&client.socket).map_or_else(|_| getuid(), |peer| peer.uid);
                match self.trees.begin(now, user, request) {
                    Ok(()) => self.waiting.push((fd, id)),
                    Err(error) => {
                        self.log.warn(now, format_args!("{NO_TREE}: {error}"));
                        client.send(&reply_with_place(None));
                    }
                }
                self.waiting.iter().any(|(waiting, _)| *waiting == fd)
            }
            Verdict::Answered(answer) => {
                answer_to.is_some_and(|to| client.answer(to, answer).is_ok())
            }
            Verdict::Close => {
                let what = "umad: a client does not keep to the protocol, and is cut off";
                self.log.warn(now, what);
                false
            }
        }
    }

    /// Answers the clients whose trees are complete, or cannot be made.
    fn answer_waiting(&mut self, turn: &mut Turn<'_>, advanced: Result<(), (TreeId, io::Error)>) {
        let failed = match advanced {
            Ok(()) => None,
            Err((id, error)) => {
                self.log.warn(turn.now, format_args!("{NO_TREE}: {error}"));
                Some(id)
            }
        };
        let is_over = |id: &TreeId| self.trees.place(id).is_some() || failed.as_ref() == Some(id);
        let over: Vec<_> = self.waiting.extract_if(.., |(_, id)| is_over(id)).collect();
        for (fd, id) in over {
            if let Some(client) = self.clients.get_mut(&fd) {
                client.send(&reply_with_place(self.trees.place(&id)));
            }
            self.drop_client(turn, fd);
        }
    }

    /// Returns what programs did, with the files that are open.
    fn programs(&self) -> Programs {
        let mut programs = self.programs;
        let clients = self.clients.values();
        for (counters, _) in clients.filter_map(|client| self.server.counters(client.session)) {
            programs.open += 1;
            add(&mut programs, counters);
        }
        programs
    }

    fn drop_client(&mut self, turn: &mut Turn<'_>, fd: RawFd) {
        self.waiting.retain(|(waiting, _)| *waiting != fd);
        if let Some(client) = self.clients.remove(&fd) {
            if let Some((counters, _)) = self.server.counters(client.session) {
                add(&mut self.programs, counters);
            }
            let mut adapters = LabAdapters {
                lab: turn.lab,
                known: &mut self.nodes,
                vfs: &mut self.vfs,
                peer: None,
            };
            self.server.disconnect(&mut adapters, client.session);
            turn.part(client.socket);
        }
    }

    /// Passes on what waits for a client. Whether it stays.
    fn pass_on(&mut self, turn: &mut Turn<'_>, fd: RawFd) -> bool {
        let Some(client) = self.clients.get_mut(&fd) else {
            return true;
        };
        let mut wanted = EventSet::empty();
        if self.server.wants_input(client.session) && !client.socket.is_asking() {
            wanted |= EventSet::IN;
        }
        while let Some(datagram) = self.server.next_datagram(client.session) {
            match client.send(datagram) {
                Sent::Yes => self.server.sent(client.session),
                Sent::Later => {
                    wanted.set(EventSet::OUT, !client.socket.is_asking());
                    break;
                }
                Sent::Gone => return false,
            }
        }
        if wanted != client.watched {
            turn.watches.modify(&client.socket, wanted);
            client.watched = wanted;
        }
        true
    }
}

/// Adds what a file counted.
const fn add(programs: &mut Programs, counters: FileCounters) {
    programs.sent += counters.written;
    programs.received += counters.received;
    programs.timed_out += counters.timed_out;
    programs.unread += counters.unread_dropped;
    programs.refused += counters.refused;
}

/// Returns `true` if a datagram asks for a file, whose connection stays open for as long as the program wants.
fn opens_file(datagram: &[u8]) -> bool {
    let hello = Hello::decode(datagram).map(|hello| hello.purpose);
    matches!(hello, Ok(Purpose::Umad(_) | Purpose::IsSm(_)))
}

fn reply_with_place(place: Option<&Path>) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;

    let path = place.map(|path| path.as_os_str().as_bytes());
    let result = path.ok_or(Errno::ENOMEM);
    HelloReply { result }.encode()
}

impl WayIn for UmadSocket {
    fn start(&mut self, turn: &mut Turn<'_>) {
        self.acceptor.start(turn);
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, ready: Ready) {
        if ready.fd == self.acceptor.fd() {
            self.accept(turn);
            return;
        }
        let ended = EventSet::HANG_UP | EventSet::ERROR;
        let stays = if ready.events.contains(EventSet::IN) {
            self.serve(turn, ready.fd)
        } else {
            !ready.events.intersects(ended)
        };
        if !stays {
            self.drop_client(turn, ready.fd);
        }
    }

    fn flush(&mut self, turn: &mut Turn<'_>) {
        if self.acceptor.wake(turn) {
            self.accept(turn);
        }
        let mut adapters = LabAdapters {
            lab: turn.lab,
            known: &mut self.nodes,
            vfs: &mut self.vfs,
            peer: None,
        };
        self.server.poll(turn.now, &mut adapters);
        let advanced = self.trees.advance(turn.now, |id| id.view(&mut adapters));
        self.answer_waiting(turn, advanced);
        let mut gone = Vec::new();
        let fds: Vec<RawFd> = self.clients.keys().copied().collect();
        for fd in fds {
            if !self.pass_on(turn, fd) {
                gone.push(fd);
            }
        }
        while let Some(session) = self.server.poll_expired(turn.now) {
            let expired = |client: &&Client| client.session == session;
            match self.clients.values().find(expired) {
                Some(client) => self.drop_client(turn, client.socket.as_raw_fd()),
                None => break,
            }
        }
        for fd in gone {
            self.drop_client(turn, fd);
        }
        turn.lab.programs = self.programs();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let server = self.server.poll_timeout();
        let trees = self.trees.poll_timeout();
        let timeouts = server.into_iter().chain(self.acceptor.poll_timeout());
        timeouts.chain(trees).min()
    }
}
