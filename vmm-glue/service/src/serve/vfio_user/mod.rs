//! A way in for VMMs: a vfio-user socket for each VF, by which QEMU or Cloud Hypervisor has it as a PCI function
//! of its guest.

mod client;
mod doorbells;
mod guarded;
pub(super) mod seat;
mod shown;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ib_vtime::{Duration, Instant};
use rustix::io::Errno;
use vf_pci::Doorbell;

use super::acceptor::Acceptor;
use super::access::SocketName;
use super::claim::Claim;
use super::claim::ClaimError;
use super::lab::Lab;
use super::listeners::Listeners;
use super::way_in::{Turn, WayIn};
use client::{Client, Refused};
use guarded::Guarded;
use vhca::watch::{EventSet, Ready};
use vhca::world::HostFunction;
use vhca::{FairQueue, LogLimit};
use vhca_receiver::{ClientSocket, Kind, Work, during};
use vhca_vfio_user::{Connection, Patience, Session, Signals};

pub use seat::{Seat, Vmm};

/// VMMs at all sockets that wait to be told that their VF is taken. More are turned away without a word.
const MAX_REFUSED: usize = 64;

/// Connections of one socket that are accepted before others have their turn.
const ACCEPTED: usize = 16;

/// How long VMMs are served before the world has its turn, all together.
const SHARE: Duration = Duration::from_micros(200);

/// How long a VF waits for its socket that could not be opened.
const REOPENING: Duration = Duration::from_secs(5);

/// The socket of a VF.
#[derive(Debug)]
struct Door {
    /// What the log calls it by.
    name: String,
    acceptor: Acceptor,
    client: Option<Client>,
    /// The VMM before has gone, and the world was not polled since: the VF may not be reset yet.
    is_settling: bool,
    /// Who comes next, once the VF is reset: nothing that the one before left may reach its memory.
    next: Option<ClientSocket>,
    log: LogLimit,
    _claim: Option<Claim>,
}

/// Whose a descriptor is.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Listener(HostFunction),
    Client(HostFunction),
    /// The eventfd of a doorbell.
    Doorbell(HostFunction, Doorbell),
    Refused,
    /// The threads that write to guarded memory.
    Memory,
}

/// The vfio-user sockets of a service, with the VMMs at them.
#[derive(Debug)]
pub struct VfioUserSockets {
    folder: PathBuf,
    /// Where the sockets of VFs come from.
    listeners: Listeners,
    doors: BTreeMap<HostFunction, Door>,
    owners: BTreeMap<RawFd, Owner>,
    refused: BTreeMap<RawFd, Refused>,
    /// VFs whose VMM did something that has to be noted.
    touched: BTreeSet<HostFunction>,
    /// VFs whose VMM did not agree on a version yet, and some that have none any more.
    silent: BTreeSet<HostFunction>,
    /// VFs whose VMM has gone since the world was polled.
    settling: BTreeSet<HostFunction>,
    /// VFs that have no socket, since it could not be opened, and when that is tried again.
    shut: BTreeMap<HostFunction, Instant>,
    /// VFs whose sockets cannot give a connection now.
    resting: BTreeSet<HostFunction>,
    /// VFs whose VMM's memory may wait.
    guarded: Guarded,
    /// VFs whose VMM sent more than there was time for.
    unfinished: FairQueue<HostFunction>,
    /// How long VMMs were served since the world had its turn.
    served: Duration,
    /// When the world is to be polled again, since a device was used behind its last poll.
    again: Option<Instant>,
    /// How long VMMs may be waited for that do not share memory.
    patience: Arc<Mutex<Patience>>,
    signals: Signals,
}

impl VfioUserSockets {
    /// Opens a socket for each VF of a lab that is offered to VMMs: the one that was passed for it, or else one in a
    /// folder, which is made if there is none. VFs that come later have theirs then.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn claim(folder: &Path, lab: &mut Lab, listeners: Listeners) -> Result<Self, ClaimError> {
        let refused = |source| ClaimError::Folder {
            path: folder.to_owned(),
            source,
        };
        make_folder(folder, listeners.folder_mode()).map_err(refused)?;
        lab.guard_notice
            .event()
            .map_err(|error| ClaimError::Event(error.into()))?;
        let signals = Signals::default();
        if let Err(error) = signals.signaller() {
            log::error!("vfio-user: VMMs are turned away until they can be interrupted: {error}");
        }
        let mut sockets = Self {
            // Whoever is told of a socket may be in another directory.
            folder: std::path::absolute(folder).map_err(refused)?,
            listeners,
            doors: BTreeMap::new(),
            owners: BTreeMap::new(),
            refused: BTreeMap::new(),
            touched: BTreeSet::new(),
            silent: BTreeSet::new(),
            settling: BTreeSet::new(),
            shut: BTreeMap::new(),
            resting: BTreeSet::new(),
            guarded: Guarded::default(),
            unfinished: FairQueue::default(),
            served: Duration::ZERO,
            again: None,
            patience: Arc::default(),
            signals,
        };
        for seat in lab.seats.values_mut() {
            sockets.open(seat)?;
        }
        Ok(sockets)
    }

    /// Waits longer, or less long, for VMMs that do not share memory.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self {
            patience: Arc::new(Mutex::new(patience)),
            ..self
        }
    }

    fn open(&mut self, seat: &mut Seat) -> Result<(), ClaimError> {
        let path = self.folder.join(seat.file_name());
        let name = SocketName::Vf(seat.host_name.clone(), seat.vf);
        let listener = self.listeners.stream(&name, &path)?;
        seat.socket = Some(listener.path);
        let door = Door {
            name: format!("{}/{}", seat.host_name, seat.vf.get()),
            acceptor: Acceptor::new(listener.socket, Kind::Vmm),
            client: None,
            is_settling: false,
            next: None,
            log: LogLimit::default(),
            _claim: listener.claim,
        };
        self.doors.insert(seat.at, door);
        Ok(())
    }

    /// Opens the sockets of VFs that came meanwhile, and has them watched.
    fn open_new(&mut self, turn: &mut Turn<'_>) {
        if self.doors.len() == turn.lab.seats.len() {
            return;
        }
        let mut opened = Vec::new();
        for seat in turn.lab.seats.values_mut() {
            let is_shut = self
                .shut
                .get(&seat.at)
                .is_some_and(|until| *until > turn.now);
            if is_shut || self.doors.contains_key(&seat.at) {
                continue;
            }
            match self.open(seat) {
                Ok(()) => {
                    self.shut.remove(&seat.at);
                    opened.push(seat.at);
                }
                Err(error) => {
                    let again = turn.now + REOPENING;
                    if self.shut.insert(seat.at, again).is_none() {
                        log::error!("vfio-user: {error}; trying again");
                    }
                }
            }
        }
        for at in opened {
            self.start_door(turn, at);
        }
    }

    fn start_door(&mut self, turn: &mut Turn<'_>, at: HostFunction) {
        if let Some(door) = self.doors.get(&at) {
            let fd = door.acceptor.fd();
            self.owners.insert(fd, Owner::Listener(at));
            door.acceptor.start(turn);
        }
    }

    fn accept(&mut self, turn: &mut Turn<'_>, at: HostFunction) {
        let mut slice = turn.slice(client::TURN);
        for _ in 0..ACCEPTED {
            // The socket stays ready for the others.
            if slice.is_over() {
                return;
            }
            let Some(door) = self.doors.get_mut(&at) else {
                return;
            };
            let name = &format_args!("vfio-user: {}", door.name);
            let Some(socket) = door.acceptor.accept(turn, name) else {
                if door.acceptor.is_resting() {
                    self.resting.insert(at);
                }
                return;
            };
            // Of one that is gone the news may still wait to be read.
            self.serve(turn, at);
            let Some(door) = self.doors.get_mut(&at) else {
                return;
            };
            if door.client.as_mut().is_some_and(Client::is_gone) {
                // It had not been read to its end: a reply to it waited, or the receiver reads for it.
                self.part(turn, at, &"the VMM is gone");
            }
            let Some(door) = self.doors.get_mut(&at) else {
                return;
            };
            if door.client.is_some() || door.next.is_some() {
                let text = "is taken; another VMM is turned away";
                self.refuse(turn, at, socket, Errno::BUSY, &text);
            } else if door.is_settling {
                door.next = Some(socket);
            } else {
                self.admit(turn, at, socket);
            }
        }
    }

    /// Watches sockets again that have rested.
    fn wake(&mut self, turn: &mut Turn<'_>) {
        for at in self.resting.clone() {
            let acceptor = self.doors.get_mut(&at).map(|door| &mut door.acceptor);
            let has_waiting = acceptor.is_some_and(|acceptor| acceptor.wake(turn));
            if has_waiting {
                self.accept(turn, at);
            }
        }
        let doors = &self.doors;
        self.resting.retain(|at| {
            let door = doors.get(at);
            door.is_some_and(|door| door.acceptor.is_resting())
        });
    }

    fn admit(&mut self, turn: &mut Turn<'_>, at: HostFunction, socket: ClientSocket) {
        let signaller = match self.signals.signaller() {
            Ok(signaller) => signaller,
            Err(error) => {
                let text = format_args!("cannot interrupt a VMM, which is turned away: {error}");
                return self.refuse(turn, at, socket, Errno::AGAIN, &text);
            }
        };
        let world = turn.lab.world();
        let (Some(seat), Some(device)) = (turn.lab.seats.get(&at), world.device(at)) else {
            return;
        };
        let interrupts = device.function().interrupt_vectors();
        let signaller = signaller.with_wakeups(socket.wakeups().clone());
        let session = Session::new(seat.memory.clone(), interrupts, signaller)
            .with_doorbells(Box::new(doorbells::event));
        turn.watch(&socket);
        self.owners.insert(socket.as_raw_fd(), Owner::Client(at));
        let client = Client::new(turn.now, Connection::new(socket, interrupts), session);
        if let Some(door) = self.doors.get_mut(&at) {
            door.client = Some(client);
        }
        if let Some(seat) = turn.lab.seats.get_mut(&at) {
            seat.vmms += 1;
        }
        self.silent.insert(at);
        self.serve(turn, at);
    }

    /// Turns a VMM away, which is told `error`.
    fn refuse(
        &mut self,
        turn: &mut Turn<'_>,
        at: HostFunction,
        socket: ClientSocket,
        error: Errno,
        text: &dyn core::fmt::Display,
    ) {
        if let Some(seat) = turn.lab.seats.get_mut(&at) {
            seat.refused += 1;
            log(&mut self.doors, turn.now, at, text);
        }
        if self.refused.len() == MAX_REFUSED {
            drop(socket);
            return;
        }
        turn.watch(&socket);
        let fd = socket.as_raw_fd();
        self.owners.insert(fd, Owner::Refused);
        let refused = Refused::new(turn.now, Connection::without_function(socket), error);
        self.refused.insert(fd, refused);
        self.tell_refused(turn, fd);
    }

    fn tell_refused(&mut self, turn: &mut Turn<'_>, fd: RawFd) {
        if self.refused.get_mut(&fd).is_some_and(Refused::answer) {
            self.drop_refused(turn, fd);
        }
    }

    fn drop_refused(&mut self, turn: &mut Turn<'_>, fd: RawFd) {
        self.owners.remove(&fd);
        if let Some(refused) = self.refused.remove(&fd) {
            turn.part(refused.connection.into());
        }
    }

    /// Serves a VMM now, or when those before it were.
    fn serve_in_turn(&mut self, turn: &mut Turn<'_>, at: HostFunction) {
        if self.served < SHARE && self.unfinished.is_before_all(at) {
            self.serve(turn, at);
        } else {
            self.unfinished.add(at);
            self.again = Some(turn.now);
        }
    }

    /// Takes what a VMM sent, and gives it what waits for it.
    fn serve(&mut self, turn: &mut Turn<'_>, at: HostFunction) {
        let Some(client) = self
            .doors
            .get_mut(&at)
            .and_then(|door| door.client.as_mut())
        else {
            return;
        };
        self.touched.insert(at);
        let slice = turn.slice(client::TURN);
        let served = client.serve(turn.lab.world_mut(), slice, at, &self.patience);
        let length = slice.spent();
        self.served += length;
        self.unfinished.charge(at, length);
        match served {
            Ok(()) => {
                self.watch_doorbells(turn, at);
                let door = self.doors.get_mut(&at);
                let Some(client) = door.and_then(|door| door.client.as_mut()) else {
                    return;
                };
                // It is asked once: the memory's thread may change the answer at any time.
                let waits = client.waits_for_memory();
                if let Some(wanted) = client.new_watch(waits) {
                    turn.watches.modify(&*client.connection(), wanted);
                }
                if waits {
                    self.guarded.wait(at);
                } else if client.has_more() {
                    self.unfinished.add(at);
                }
            }
            Err(why) => self.part(turn, at, &why),
        }
    }

    /// Lets a VMM go: its device is as after a reset, and reaches no memory any more.
    fn part(&mut self, turn: &mut Turn<'_>, at: HostFunction, why: &dyn core::fmt::Display) {
        let door = self.doors.get_mut(&at);
        let Some(client) = door.and_then(|door| door.client.as_mut()) else {
            return;
        };
        client.session.remove_doorbells();
        self.watch_doorbells(turn, at);
        let door = self.doors.get_mut(&at);
        let Some(door) = door else { return };
        let Some(client) = door.client.take() else {
            return;
        };
        door.is_settling = true;
        self.settling.insert(at);
        self.release(turn, at);
        // Before its memory goes: a peer that reads from it is answered by nobody, rather than told of an error.
        turn.lab.world_mut().reset_device(at);
        // With the memory goes the other handle of the connection.
        client.session.memory().clear();
        let fd = client.connection().as_raw_fd();
        self.owners.remove(&fd);
        turn.lab.note_stall(fd, at);
        if let Some(connection) = Arc::into_inner(client.connection) {
            let connection = connection.into_inner();
            turn.part(connection.unwrap_or_else(PoisonError::into_inner).into());
        }
        if let Some(seat) = turn.lab.seats.get_mut(&at) {
            seat.vmm = None;
            let text = &format_args!("is free again: {why}");
            log(&mut self.doors, turn.now, at, text);
        }
    }

    /// Signals what the devices have to tell.
    fn signal(&mut self, turn: &mut Turn<'_>) {
        let world = turn.lab.world_mut();
        while let Some(at) = world.poll_interrupting() {
            let door = self.doors.get_mut(&at);
            let mut client = door.and_then(|door| door.client.as_mut());
            while let Some(vector) = world.poll_interrupt(at) {
                // Without a VMM there is no guest to be told.
                if let Some(client) = &mut client {
                    let fd = client.connection().as_raw_fd();
                    during(Work::WakeUp, fd, || client.session.raise(vector));
                }
            }
        }
    }

    /// Takes the messages that came while their VMM was waited for, and goes on with those for which the time of
    /// their VMM's turn was too short: of neither a socket tells.
    fn serve_unfinished(&mut self, turn: &mut Turn<'_>) {
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        let was_waited = patience.begin_round();
        drop(patience);
        if was_waited {
            let doors = self.doors.iter();
            let waiting = doors.filter(|(_, door)| {
                let client = door.client.as_ref();
                client.is_some_and(|client| client.connection().has_waiting())
            });
            for (at, _) in waiting {
                self.unfinished.add(*at);
            }
        }
        self.served = Duration::ZERO;
        for _ in 0..self.unfinished.len() {
            let Some(at) = self.unfinished.take() else {
                break;
            };
            self.serve(turn, at);
            self.again = Some(turn.now);
            if self.served >= SHARE {
                break;
            }
        }
        self.served = Duration::ZERO;
        if !self.unfinished.is_empty() {
            self.again = Some(turn.now);
        }
    }

    /// Lets those in whose VF is reset now.
    fn admit_next(&mut self, turn: &mut Turn<'_>) {
        for at in core::mem::take(&mut self.settling) {
            let Some(door) = self.doors.get_mut(&at) else {
                continue;
            };
            door.is_settling = false;
            if let Some(socket) = door.next.take() {
                self.admit(turn, at, socket);
                self.again = Some(turn.now);
            }
        }
    }

    /// Lets those go that took too long for their first words.
    fn expire(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        let is_late = |deadline: Instant| deadline <= now;
        let refused = self.refused.iter();
        let refused = refused.filter(|(_, refused)| is_late(refused.deadline));
        for fd in refused.map(|(fd, _)| *fd).collect::<Vec<_>>() {
            self.drop_refused(turn, fd);
        }
        let (doors, silent) = (&self.doors, &mut self.silent);
        silent.retain(|at| deadline(doors, *at).is_some());
        let silent = silent.iter().copied();
        let late = silent.filter(|at| deadline(doors, *at).is_some_and(is_late));
        for at in late.collect::<Vec<_>>() {
            self.part(turn, at, &"the VMM did not agree on a version in time");
            self.again = Some(turn.now);
        }
    }

    /// Notes what there is to tell of the VMMs that did something.
    fn note(&mut self, turn: &mut Turn<'_>) {
        for at in core::mem::take(&mut self.touched) {
            let Some(seat) = turn.lab.seats.get_mut(&at) else {
                continue;
            };
            seat.memory.release_unused();
            let before = core::mem::replace(&mut seat.refused_accesses, seat.memory.refused());
            if seat.refused_accesses > before {
                let text = "may touch no more of its guest's memory: raise guest_memory";
                log(&mut self.doors, turn.now, at, &text);
            }
            let client = self.doors.get(&at).and_then(|door| door.client.as_ref());
            seat.vmm = client.map(Client::view);
        }
    }
}

/// Makes a folder unless it is there, with a mode that no umask narrows.
fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Until when the VMM of a VF has to agree on a version, unless it has.
fn deadline(doors: &BTreeMap<HostFunction, Door>, at: HostFunction) -> Option<Instant> {
    doors.get(&at)?.client.as_ref()?.deadline()
}

fn log(
    doors: &mut BTreeMap<HostFunction, Door>,
    now: Instant,
    at: HostFunction,
    text: &dyn core::fmt::Display,
) {
    if let Some(Door { log, name, .. }) = doors.get_mut(&at) {
        log.warn(now, format_args!("vfio-user: {name} {text}"));
    }
}

impl WayIn for VfioUserSockets {
    fn start(&mut self, turn: &mut Turn<'_>) {
        let doors: Vec<HostFunction> = self.doors.keys().copied().collect();
        for at in doors {
            self.start_door(turn, at);
        }
        self.watch_guarded(turn);
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, ready: Ready) {
        let Some(owner) = self.owners.get(&ready.fd).copied() else {
            return;
        };
        match owner {
            Owner::Listener(at) => self.accept(turn, at),
            Owner::Refused => self.tell_refused(turn, ready.fd),
            // The next flush looks at the memory.
            Owner::Memory => turn.lab.guard_notice.clear(),
            Owner::Doorbell(at, doorbell) => self.note_rung(turn, at, doorbell),
            Owner::Client(at) => {
                let ended = EventSet::HANG_UP | EventSet::ERROR;
                if ready.events.intersects(EventSet::IN | EventSet::OUT) {
                    self.serve_in_turn(turn, at);
                } else if ready.events.intersects(ended) {
                    self.part(turn, at, &"the VMM is gone");
                }
            }
        }
    }

    fn flush(&mut self, turn: &mut Turn<'_>) {
        self.again = None;
        self.wake(turn);
        self.open_new(turn);
        self.signal_doorbells(turn);
        self.signal(turn);
        self.look_at_guarded(turn);
        self.admit_next(turn);
        self.serve_unfinished(turn);
        self.expire(turn);
        self.note(turn);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let refused = self.refused.values().map(|refused| refused.deadline);
        let silent = self.silent.iter();
        let silent = silent.filter_map(|at| deadline(&self.doors, *at));
        let resting = self.resting.iter();
        let resting = resting.filter_map(|at| self.doors.get(at)?.acceptor.poll_timeout());
        let shut = self.shut.values().copied();
        let others = resting.chain(shut).chain(self.again);
        refused.chain(silent).chain(others).min()
    }
}
