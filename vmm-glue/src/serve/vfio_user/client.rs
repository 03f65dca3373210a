//! A VMM at a VF's socket.

use ib_vtime::{Duration, Instant};
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;

use super::seat::Vmm;
use crate::vfio_user::{Connection, Handled, Lent, Session};
use crate::watch::EventSet;
use crate::world::{HostFunction, World};

/// Messages of one client that are taken before others have their turn.
const BUDGET: usize = 64;

/// How long a client may take to agree on a version.
const GREETING: Duration = Duration::from_secs(5);

/// A VMM that has a VF.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) session: Session,
    peer: Option<UCred>,
    since: Instant,
    /// What the socket is watched for.
    pub(super) watched: EventSet,
}

impl Client {
    pub(super) fn new(now: Instant, connection: Connection, session: Session) -> Self {
        Self {
            peer: socket_peercred(&connection).ok(),
            connection,
            session,
            since: now,
            watched: EventSet::IN,
        }
    }

    /// Until when it has to agree on a version, unless it has.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.session.is_agreed()).then(|| self.since + GREETING)
    }

    /// What there is to tell of it.
    pub(super) fn view(&self) -> Vmm {
        Vmm {
            pid: self.peer.map(|peer| peer.pid),
            uid: self.peer.map(|peer| peer.uid),
            since: self.since,
            statistics: self.session.statistics(),
            vectors: self.session.interrupts().in_use(),
        }
    }

    /// Takes messages, as long as it takes replies.
    ///
    /// # Errors
    /// Why it is to be cut off.
    pub(super) fn serve(&mut self, world: &mut World, at: HostFunction) -> anyhow::Result<()> {
        self.connection.send_unsent()?;
        for _ in 0..BUDGET {
            if !self.connection.wants_input() {
                break;
            }
            let Some(message) = self.connection.receive()? else {
                break;
            };
            let session = &mut self.session;
            let handled = world.with_device(at, |function, hca, now| {
                let mut lent = Lent { function, hca, now };
                session.handle(message, &mut lent)
            });
            let Some(Handled { reply, end }) = handled else {
                anyhow::bail!("its VF is gone");
            };
            if let Some(reply) = reply {
                self.connection.send(&reply)?;
            }
            if let Some(end) = end {
                return Err(end.into());
            }
        }
        Ok(())
    }

    /// What the socket is to be watched for now, if that is something else than before.
    pub(super) fn new_watch(&mut self) -> Option<EventSet> {
        let mut wanted = EventSet::empty();
        if self.connection.wants_input() {
            wanted |= EventSet::IN;
        }
        if self.connection.has_unsent() {
            wanted |= EventSet::OUT;
        }
        let is_new = wanted != self.watched;
        self.watched = wanted;
        is_new.then_some(wanted)
    }
}

/// A VMM that came to a VF that another one has: it is told so when it speaks.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) connection: Connection,
    pub(super) deadline: Instant,
}

impl Refused {
    pub(super) fn new(now: Instant, connection: Connection) -> Self {
        Self {
            connection,
            deadline: now + GREETING,
        }
    }

    /// Answers its first message. Whether there is nothing more to be said.
    pub(super) fn answer(&mut self) -> bool {
        use rustix::io::Errno;

        use crate::vfio_user::codec::error_reply;

        match self.connection.receive() {
            Ok(None) => false,
            Ok(Some(message)) => {
                // It hears of it, or has gone before.
                let _ = self
                    .connection
                    .send(&error_reply(&message.header, Errno::BUSY));
                true
            }
            Err(_) => true,
        }
    }
}
