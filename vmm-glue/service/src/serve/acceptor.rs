//! Connections at a listening socket, as long as the process has descriptors for them.

use core::fmt;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use ib_vtime::{Duration, Instant};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::getuid;
use umad_link::UserId;

use super::descriptors::DescriptorLimit;
use super::way_in::Turn;
use crate::credentials::{of_peer, refuse_descriptors};
use vhca::watch::EventSet;
use vhca_receiver::{ClientSocket, Kind, Wakeups};

/// How long a socket is left alone that cannot give a connection: the descriptors of the process, or of the host, are
/// used up, and nothing tells when some are free again.
const REST: Duration = Duration::from_millis(250);

/// The same at the process's own limit, where a connection that ends makes room.
const SHORT_REST: Duration = Duration::from_millis(20);

/// A listening socket. While it cannot give a connection it is not watched, or those who wait there would keep the
/// event loop busy.
#[derive(Debug)]
pub(super) struct Acceptor {
    listener: OwnedFd,
    /// Descriptors that clients may pass.
    kind: Kind,
    /// Wake-ups by user: how long they take is known for longer than a connection lasts.
    wakeups: BTreeMap<UserId, Wakeups>,
    /// A connection that the receiver could not take yet.
    waiting: Option<OwnedFd>,
    limit: DescriptorLimit,
    rests_until: Option<Instant>,
    /// Whether it was logged that those who wait have to go on waiting.
    is_said: bool,
}

impl Acceptor {
    /// Takes a socket that listens and does not block, and whose clients may pass descriptors of a kind.
    pub(super) fn new(listener: impl Into<OwnedFd>, kind: Kind) -> Self {
        Self {
            listener: listener.into(),
            kind,
            wakeups: BTreeMap::new(),
            waiting: None,
            limit: DescriptorLimit::current(),
            rests_until: None,
            is_said: false,
        }
    }

    /// Which descriptor it is.
    pub(super) fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Has the socket watched.
    pub(super) fn start(&self, turn: &mut Turn<'_>) {
        // Connections that wait in its queue go with the last descriptor of it, and so may descriptors with them.
        if let Some(Err(error)) = turn.receiver.map(|receiver| receiver.keep(&self.listener)) {
            log::warn!("the receiver does not take a listening socket: {error}");
        }
        if self.kind == Kind::Nothing {
            // Elsewhere the receiver closes them.
            refuse_descriptors(&self.listener);
        }
        turn.watches.add(&self.listener, EventSet::IN);
    }

    /// The next connection, which does not block. `None` if nobody waits, or nobody can be let in now;
    /// [`Self::is_resting`] tells which, and the log, by the name of the socket.
    pub(super) fn accept(
        &mut self,
        turn: &mut Turn<'_>,
        name: &dyn fmt::Display,
    ) -> Option<ClientSocket> {
        match self.take().and_then(|socket| self.admit(turn, socket)) {
            Ok(client) => return Some(client),
            Err(Errno::AGAIN) => self.is_said = false,
            // Whoever waits behind is told of again.
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => self.rest(turn, name, error),
        }
        None
    }

    /// Takes the next connection from the queue.
    fn take(&mut self) -> Result<OwnedFd, Errno> {
        if let Some(waiting) = self.waiting.take() {
            return Ok(waiting);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        self.limit.admit(&self.listener)?;
        accept_with(&self.listener, flags)
    }

    /// Makes the receiver take the client's descriptors.
    fn admit(&mut self, turn: &Turn<'_>, socket: OwnedFd) -> Result<ClientSocket, Errno> {
        let Some(receiver) = turn.receiver else {
            return Ok(ClientSocket::trusted(socket));
        };
        let uid = of_peer(&socket).map_or_else(|_| getuid(), |peer| peer.uid);
        self.wakeups
            .retain(|_, wakeups| wakeups.are_used() || wakeups.are_slow());
        let wakeups = self
            .wakeups
            .entry(UserId(uid.as_raw()))
            .or_default()
            .clone();
        let admitted = receiver.admit(socket, self.kind, uid.as_raw());
        let admitted = admitted.map(|client| client.with_wakeups(wakeups));
        admitted.map_err(|(socket, error)| {
            self.waiting = Some(socket);
            if error == Errno::AGAIN {
                Errno::MFILE
            } else {
                error
            }
        })
    }

    fn rest(&mut self, turn: &mut Turn<'_>, name: &dyn fmt::Display, error: Errno) {
        if !core::mem::replace(&mut self.is_said, true) {
            log::warn!(
                "{name}: those who connect have to wait: {error}; raise the limit of open files (ulimit -n) if this lasts"
            );
        }
        turn.watches.modify(&self.listener, EventSet::empty());
        let rest = if error == Errno::MFILE {
            SHORT_REST
        } else {
            REST
        };
        self.rests_until = Some(turn.now + rest);
    }

    /// Whether nobody can be let in until [`Self::poll_timeout`].
    pub(super) const fn is_resting(&self) -> bool {
        self.rests_until.is_some()
    }

    /// Watches the socket again if it has rested. Returns `true` if a connection waits for [`Self::accept`] for which the socket
    /// does not become ready.
    pub(super) fn wake(&mut self, turn: &mut Turn<'_>) -> bool {
        let is_over = self.rests_until.is_some_and(|until| until <= turn.now);
        if is_over {
            self.rests_until = None;
            turn.watches.modify(&self.listener, EventSet::IN);
        }
        is_over && self.waiting.is_some()
    }

    /// When [`Self::wake`] has something to do.
    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.rests_until
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket_with,
    };
    use std::collections::{BTreeMap, VecDeque};

    use super::*;
    use crate::serve::{Lab, Options};
    use vhca::watch::{WatchChange, Watches};

    #[test]
    fn a_socket_that_gives_no_connection_is_left_alone_and_goes_on_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let address = SocketAddrUnix::new(directory.path().join("socket")).unwrap();
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
        };
        let listener = open();
        bind(&listener, &address).unwrap();
        let mut acceptor = Acceptor::new(listener, Kind::Nothing);
        let fd = acceptor.fd();

        let mut lab = Lab::build(&Options::default(), 1).unwrap();
        let mut watches = Watches::new();
        let (mut stop, mut lost, mut announcements) = (false, None, VecDeque::new());
        let begin = Instant::ZERO;
        let mut turn = Turn {
            is_virtual: true,
            receiver: None,
            lanes: &mut BTreeMap::new(),
            lab: &mut lab,
            now: begin,
            watches: watches.tagged(0),
            stop: &mut stop,
            lost: &mut lost,
            announcements: &mut announcements,
        };
        // As long as it does not listen, it gives an error other than that nobody waits.
        assert!(acceptor.accept(&mut turn, &"test").is_none());
        assert!(acceptor.is_resting());
        assert_eq!(acceptor.poll_timeout(), Some(begin + REST));
        turn.now = begin + REST / 2;
        acceptor.wake(&mut turn);
        assert!(acceptor.is_resting());

        listen(&acceptor.listener, 8).unwrap();
        let caller = open();
        connect(&caller, &address).unwrap();
        turn.now = begin + REST;
        acceptor.wake(&mut turn);
        assert_eq!(
            (acceptor.is_resting(), acceptor.poll_timeout()),
            (false, None)
        );
        let mut connection = acceptor.accept(&mut turn, &"test").unwrap();
        assert!(connection.receive(&mut [0]).unwrap().is_none());
        assert!(acceptor.is_said, "others may still wait");
        assert!(acceptor.accept(&mut turn, &"test").is_none());
        assert!(!acceptor.is_resting() && !acceptor.is_said);

        let changes = core::iter::from_fn(|| watches.poll()).map(|change| match change {
            WatchChange::Modify(of, _, events) => (of, events),
            change => panic!("{change:?}"),
        });
        let expected = [(fd, EventSet::empty()), (fd, EventSet::IN)];
        assert!(changes.eq(expected));
    }
}
