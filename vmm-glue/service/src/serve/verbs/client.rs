//! A connection of a program: requests in, answers out by the sockets that come with them, never blocking.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ib_vtime::{Duration, Instant};
use rustix::io::Errno;
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use verbs_link::{CallReply, ChannelId, EventRecord, MAX_REQUEST};
use vhca::watch::EventSet;
use vhca::world::HostFunction;
use vhca_receiver::{ClientSocket, PassedFd, Wakeups};

use super::rings::MappedRings;

/// A request as it came.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) bytes: Vec<u8>,
    /// The socket for the answer, and behind it what the request is about.
    pub(super) descriptors: Vec<PassedFd>,
}

/// A VF in the hands of a program.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) at: HostFunction,
    pub(super) rings: Arc<MappedRings>,
    channels: BTreeMap<ChannelId, OpenChannel>,
    wakeups: Wakeups,
    /// Records that wait.
    waiting: usize,
    /// Time of the next attempt at channels that are full, and the pause before it.
    retry: Option<(Instant, Duration)>,
}

/// The service's end of a channel.
#[derive(Debug)]
struct OpenChannel {
    socket: Arc<OwnedFd>,
    /// Records for which there was no room.
    backlog: VecDeque<Vec<u8>>,
}

/// Pause before the first attempt to pass on what found no room, and the longest one.
const SOON: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_millis(128);

/// Records that wait for a program at most. One that reads none loses the later ones.
const MAX_WAITING: usize = 1 << 16;

impl Holding {
    pub(super) const fn new(at: HostFunction, rings: Arc<MappedRings>, wakeups: Wakeups) -> Self {
        Self {
            wakeups,
            at,
            rings,
            channels: BTreeMap::new(),
            waiting: 0,
            retry: None,
        }
    }

    pub(super) fn open_channel(&mut self, channel: ChannelId, socket: OwnedFd) {
        let opened = OpenChannel {
            socket: Arc::new(socket),
            backlog: VecDeque::new(),
        };
        self.channels.insert(channel, opened);
    }

    pub(super) fn close_channel(&mut self, channel: ChannelId) {
        if let Some(closed) = self.channels.remove(&channel) {
            self.waiting -= closed.backlog.len();
        }
    }

    /// Passes a record on, or keeps it until there is room. Returns `false` if it is lost.
    pub(super) fn pass_on(&mut self, now: Instant, record: EventRecord) -> bool {
        let Some(channel) = self.channels.get_mut(&record.channel) else {
            return false;
        };
        if channel.backlog.is_empty() {
            match self.wakeups.send(&channel.socket, &record.bytes) {
                Err(Errno::AGAIN) => {}
                sent => return sent.is_ok(),
            }
        }
        if self.waiting >= MAX_WAITING {
            return false;
        }
        channel.backlog.push_back(record.bytes);
        self.waiting += 1;
        self.retry.get_or_insert((now + SOON, SOON));
        true
    }

    /// Tries again to pass on the records that wait, if it is time.
    pub(super) fn retry(&mut self, now: Instant) {
        let Some((_, pause)) = self.retry.filter(|(at, _)| *at <= now) else {
            return;
        };
        let before = self.waiting;
        for channel in self.channels.values_mut() {
            while let Some(record) = channel.backlog.front() {
                if self.wakeups.send(&channel.socket, record) == Err(Errno::AGAIN) {
                    break;
                }
                channel.backlog.pop_front();
                self.waiting -= 1;
            }
        }
        let pause = match self.waiting == before {
            true => pause.saturating_mul(2).min(LATE),
            false => SOON,
        };
        self.retry = (self.waiting > 0).then(|| (now + pause, pause));
    }

    /// Returns the time of the next attempt.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.retry.map(|(at, _)| at)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: ClientSocket,
    /// `true` while the socket is watched for requests.
    watched: bool,
    pub(super) holding: Option<Holding>,
}

impl Client {
    pub(super) const fn new(socket: ClientSocket) -> Self {
        Self {
            socket,
            holding: None,
            watched: true,
        }
    }

    /// Returns what the socket is to be watched for, if that is something else than before.
    pub(super) fn new_watch(&mut self) -> Option<EventSet> {
        let wanted = !self.socket.is_asking();
        if core::mem::replace(&mut self.watched, wanted) == wanted {
            return None;
        }
        Some(if wanted {
            EventSet::IN
        } else {
            EventSet::empty()
        })
    }

    /// Returns the next request, `None` if there is none now.
    ///
    /// # Errors
    /// The connection is over, or the program sends more than the protocol has.
    pub(super) fn receive(&mut self) -> io::Result<Option<Datagram>> {
        let mut bytes = vec![0; MAX_REQUEST + 1];
        let Some(received) = self.socket.receive(&mut bytes)? else {
            return Ok(None);
        };
        if received.len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.len > MAX_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.truncate(received.len);
        Ok(Some(Datagram {
            bytes,
            descriptors: received.fds,
        }))
    }
}

/// Answers a request by the socket that came with it, which must be a Unix socket and is never waited for.
///
/// # Errors
/// Errors of the system.
pub(super) fn answer(
    wakeups: &Wakeups,
    to: PassedFd,
    reply: &CallReply,
    attachments: Vec<OwnedFd>,
) -> io::Result<()> {
    if socket_domain(&to)? != AddressFamily::UNIX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(wakeups.answer(to, reply.encode(), attachments)?)
}

/// The two ends of a channel: the service's, and the program's.
pub(super) fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    // Nothing is read here. What a program sent would be closed with the socket, with its descriptors.
    shutdown(&ours, Shutdown::Read)?;
    Ok((ours, theirs))
}
