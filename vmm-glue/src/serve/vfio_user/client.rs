//! A VMM at a VF's socket.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ib_vtime::{Duration, Instant};
use rustix::io::Errno;
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;

use super::seat::Vmm;
use crate::vfio_user::{Connection, Handled, Lent, Patience, Remote, Session};
use crate::watch::EventSet;
use crate::world::{HostFunction, World};

/// Messages of one client that are taken before others have their turn.
const BUDGET: usize = 64;

/// How long a client may take to agree on a version.
const GREETING: Duration = Duration::from_secs(5);

/// A VMM that has a VF.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) connection: Arc<Mutex<Connection>>,
    pub(super) session: Session,
    peer: Option<UCred>,
    since: Instant,
    /// What the socket is watched for.
    pub(super) watched: EventSet,
}

impl Client {
    pub(super) fn new(now: Instant, connection: Connection, session: Session) -> Self {
        let peer = socket_peercred(&connection).ok();
        session.memory().set_owner(peer.map(|peer| peer.pid));
        Self {
            peer,
            connection: Arc::new(Mutex::new(connection)),
            session,
            since: now,
            watched: EventSet::IN,
        }
    }

    /// A panic elsewhere leaves it as it is between two calls, so it goes on being used.
    pub(super) fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
    pub(super) fn serve(
        &mut self,
        world: &mut World,
        at: HostFunction,
        patience: &Arc<Mutex<Patience>>,
    ) -> anyhow::Result<()> {
        self.connection().send_unsent()?;
        for _ in 0..BUDGET {
            // Not held while the message is handled: the device may have to ask the VMM for memory.
            let mut connection = self.connection();
            if !connection.wants_input() {
                break;
            }
            let Some(message) = connection.receive()? else {
                break;
            };
            drop(connection);
            let was_agreed = self.session.is_agreed();
            let session = &mut self.session;
            let handled = world.with_device(at, |function, hca, now| {
                let mut lent = Lent { function, hca, now };
                session.handle(message, &mut lent)
            });
            let Some(Handled { reply, end }) = handled else {
                anyhow::bail!("its VF is gone");
            };
            if let Some(reply) = reply {
                self.connection().send(&reply)?;
            }
            if !was_agreed && self.session.is_agreed() {
                let connection = self.connection.clone();
                let most = self.session.most_data();
                let remote = Remote::new(connection, patience.clone(), most);
                self.session.memory().set_remote(Some(Box::new(remote)));
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
        let connection = self.connection();
        if connection.wants_input() {
            wanted |= EventSet::IN;
        }
        if connection.has_unsent() {
            wanted |= EventSet::OUT;
        }
        drop(connection);
        let is_new = wanted != self.watched;
        self.watched = wanted;
        is_new.then_some(wanted)
    }
}

/// A VMM that cannot have the VF to which it came: it is told so when it speaks.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) connection: Connection,
    pub(super) deadline: Instant,
    why: Errno,
}

impl Refused {
    pub(super) fn new(now: Instant, connection: Connection, why: Errno) -> Self {
        Self {
            connection,
            deadline: now + GREETING,
            why,
        }
    }

    /// Answers its first message. Whether there is nothing more to be said.
    pub(super) fn answer(&mut self) -> bool {
        use crate::vfio_user::codec::error_reply;

        match self.connection.receive() {
            Ok(None) => false,
            Ok(Some(message)) => {
                // It hears of it, or has gone before.
                let _ = self
                    .connection
                    .send(&error_reply(&message.header, self.why));
                true
            }
            Err(_) => true,
        }
    }
}
