//! A VMM at a VF's socket.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ib_vtime::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::seat::Vmm;
use crate::credentials::{Credentials, of_peer};
use vhca::Slice;
use vhca::watch::EventSet;
use vhca::world::{HostFunction, World};
use vhca_receiver::PassedFd;
use vhca_vfio_user::codec::Message;
use vhca_vfio_user::{Connection, ConnectionEnd, Handled, Lent, Patience, Remote, Reply, Session};

/// How long one client is served before others have their turn.
pub(super) const TURN: Duration = Duration::from_micros(50);

/// How long a client may take to agree on a version.
const GREETING: Duration = Duration::from_secs(5);

/// A VMM that has a VF.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) connection: Arc<Mutex<Connection>>,
    pub(super) session: Session,
    peer: Option<Credentials>,
    since: Instant,
    /// What the socket is watched for.
    pub(super) watched: EventSet,
    /// A reply, and the number of the posted write that comes before it.
    held: Option<(u64, Reply)>,
}

impl Client {
    pub(super) fn new(now: Instant, connection: Connection, session: Session) -> Self {
        let peer = of_peer(&connection).ok();
        session.memory().set_owner(peer.and_then(|peer| peer.pid));
        session.memory().set_client(connection.as_raw_fd());
        Self {
            peer,
            connection: Arc::new(Mutex::new(connection)),
            session,
            since: now,
            watched: EventSet::IN,
            held: None,
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
            pid: self.peer.and_then(|peer| peer.pid),
            uid: self.peer.map(|peer| peer.uid),
            since: self.since,
            statistics: self.session.statistics(),
            vectors: self.session.interrupts().in_use(),
        }
    }

    /// Returns `true` if its reply, or its next message, waits for posted writes. The notice follows when these are done.
    pub(super) fn waits_for_memory(&self) -> bool {
        let memory = self.session.memory();
        let held = self.held.as_ref();
        held.is_some_and(|(number, _)| !memory.has_done(*number))
            || memory.posted().is_some_and(|posted| posted.is_full)
    }

    /// Sends a reply, once all writes that were posted before it are done.
    fn send(&mut self, reply: Reply) -> Result<(), ConnectionEnd> {
        match self.session.memory().last_posted() {
            Some(number) => self.held = Some((number, reply)),
            None => self.send_now(&reply)?,
        }
        Ok(())
    }

    /// Sends the reply that waited, if it need not any longer.
    fn send_held(&mut self) -> Result<(), ConnectionEnd> {
        let memory = self.session.memory();
        let held = self.held.take_if(|(number, _)| memory.has_done(*number));
        if let Some((_, reply)) = held {
            self.send_now(&reply)?;
        }
        Ok(())
    }

    /// Sends a reply with its descriptors. If the client takes no descriptors now, it gets an error instead.
    fn send_now(&self, reply: &Reply) -> Result<(), ConnectionEnd> {
        let mut connection = self.connection();
        if reply.doorbells.is_empty() {
            return connection.send(&reply.bytes);
        }
        let events = reply.doorbells.iter();
        let events: Option<Vec<_>> = events
            .map(|doorbell| self.session.event(doorbell).map(AsFd::as_fd))
            .collect();
        // Doorbells may have gone while the reply waited.
        if let Some(events) = events
            && connection.pass(&reply.bytes, &events)?
        {
            return Ok(());
        }
        connection.send(&reply.refused(Errno::AGAIN))
    }

    /// Whether something is left of what it sent, of which its socket does not tell.
    pub(super) fn has_more(&self) -> bool {
        self.held.is_some()
            || self.session.is_amid()
            || self.session.is_rung()
            || self.connection().has_waiting()
    }

    /// Returns `true` if its end of the socket is closed, whatever is still to be read.
    pub(super) fn is_gone(&mut self) -> bool {
        let connection = self.connection();
        let mut polled = [PollFd::new(&*connection, PollFlags::empty())];
        // Without an answer it counts as there.
        let _ = poll(&mut polled, Some(&Timespec::default()));
        polled[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Takes messages, as long as it takes replies and the slice lasts.
    ///
    /// # Errors
    /// Why it is to be cut off.
    pub(super) fn serve(
        &mut self,
        world: &mut World,
        mut slice: Slice,
        at: HostFunction,
        patience: &Arc<Mutex<Patience>>,
    ) -> anyhow::Result<()> {
        self.connection().send_unsent()?;
        self.send_held()?;
        if self.session.is_rung() {
            let session = &mut self.session;
            world.with_device(at, |function, hca, now| {
                session.ring(&mut Lent { function, hca, now });
            });
        }
        while self.held.is_none() && !self.waits_for_memory() {
            // The connection is not held while the message is handled: the device may have to ask the VMM for memory.
            let message = self.next_message()?;
            if message.is_none() && !self.session.is_amid() {
                break;
            }
            let was_agreed = self.session.is_agreed();
            let session = &mut self.session;
            let handled = world.with_device(at, |function, hca, now| {
                let mut lent = Lent { function, hca, now };
                match message {
                    Some(message) => session.handle(message, &mut lent, &mut slice),
                    None => session.go_on(&mut lent, &mut slice),
                }
            });
            let Some(handled) = handled else {
                anyhow::bail!("its VF is gone");
            };
            let Some(Handled { reply, end }) = handled else {
                break;
            };
            if let Some(reply) = reply {
                self.send(reply)?;
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
            if slice.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// The next message, unless one before is not done, or the client does not take replies.
    fn next_message(&self) -> Result<Option<Message<PassedFd>>, ConnectionEnd> {
        let mut connection = self.connection();
        if self.session.is_amid() || !connection.wants_input() {
            return Ok(None);
        }
        connection.receive()
    }

    /// Returns the events for which the socket is to be watched now, if they are others than before. `waits_for_memory` is
    /// [`Self::waits_for_memory`].
    pub(super) fn new_watch(&mut self, waits_for_memory: bool) -> Option<EventSet> {
        let mut wanted = EventSet::empty();
        let connection = self.connection();
        let is_asking = connection.socket().is_asking();
        let is_served = self.session.is_amid() || self.held.is_some() || waits_for_memory;
        let may_speak = !is_served && !is_asking;
        if connection.wants_input() && may_speak {
            wanted |= EventSet::IN;
        }
        if connection.has_unsent() && !is_asking {
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
        use vhca_vfio_user::codec::error_reply;

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
