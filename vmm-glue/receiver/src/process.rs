//! The receiver's side: threads that serve clients, one client on at most one of them at a time.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::{Errno, dup};
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use slab::Slab;

use crate::message::{self, LANE_HEAD, Order, Packet, Request, pair};
use crate::wake::{send_all, with_rest};
use crate::{Kind, MESSAGE_MAX, seccomp};

/// Threads of one user, which may all wait for a close or a look at a file.
pub const STUCK_MAX: usize = 16;

/// Time after which a thread counts as one that waits.
const STUCK_AFTER: Duration = Duration::from_millis(100);

/// Threads without work that stay for the next.
const SPARE: usize = 4;

/// Threads that close descriptors which came with datagrams.
const BESIDE_MAX: usize = 64;

/// Time within which other connections leave room for the descriptors of a message.
const ROOM_WITHIN: Duration = Duration::from_secs(10);

/// Time between two looks for that room.
const ROOM_ASKED: Duration = Duration::from_millis(1);

/// Number of the channel to the service among the watched descriptors.
const CHANNEL: u64 = u64::MAX;

/// A client.
#[derive(Debug)]
struct Client {
    uid: u32,
    kind: Kind,
    /// Its user has too many threads that wait: its messages are not read.
    is_refused: bool,
    work: Mutex<Work>,
}

/// Work for a client.
#[derive(Debug)]
struct Work {
    /// `None` at the end.
    ends: Option<Ends>,
    todo: VecDeque<Task>,
    /// Time since which a thread is busy with it.
    busy_since: Option<Instant>,
    /// Waits for a thread of its user.
    is_parked: bool,
}

/// A client's socket and the lane to the service.
#[derive(Clone, Debug)]
struct Ends {
    socket: Arc<OwnedFd>,
    lane: Arc<OwnedFd>,
}

#[derive(Debug)]
enum Task {
    /// The service asks for a message, or has closed its end of the lane with this number.
    Lane(usize),
    /// The service has closed its duplicates.
    Close(Vec<OwnedFd>),
}

/// A watched descriptor.
#[derive(Debug)]
enum Watched {
    Lane(Arc<Client>),
    /// The end of a lease, with the duplicates that are kept for it.
    Lease {
        end: Arc<OwnedFd>,
        client: Arc<Client>,
        kept: Vec<OwnedFd>,
    },
}

/// The process.
#[derive(Debug)]
struct Process {
    channel: OwnedFd,
    epoll: OwnedFd,
    watched: Mutex<Slab<Watched>>,
    /// Clients with a thread that serves them.
    busy: Mutex<BTreeMap<usize, Arc<Client>>>,
    /// Clients whose user has [`STUCK_MAX`] threads, in their order.
    parked: Mutex<BTreeMap<u32, VecDeque<Arc<Client>>>>,
    /// Threads that wait for work.
    idle: Mutex<usize>,
    kept: Mutex<Vec<OwnedFd>>,
    /// Threads that close descriptors of datagrams.
    beside: Mutex<usize>,
    /// Sockets of refused clients, by user: closed when one of the user's threads goes on.
    refused: Mutex<BTreeMap<u32, Vec<Arc<OwnedFd>>>>,
    /// Passed on in the place of a descriptor that the protocol does not take.
    nothing: OwnedFd,
    maps: Maps,
}

/// Says whether a process has a file, by device and inode, mapped privately.
type Maps = fn(i32, u64, u64) -> bool;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the service at standard input until that is gone. `maps` answers questions about mapped files.
///
/// # Errors
/// Errors of the system before the service is served.
pub fn run(maps: fn(i32, u64, u64) -> bool) -> io::Result<()> {
    let channel = dup(io::stdin())?;
    let process = Process::new(channel, maps)?;
    seccomp::confine().map_err(io::Error::other)?;
    process.serve();
    // Descriptors of clients may keep their thread, but not this process from ending; the kernel closes them in its own time.
    std::process::exit(0);
}

impl Process {
    pub(crate) fn new(channel: OwnedFd, maps: Maps) -> io::Result<Arc<Self>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &channel, EventData::new_u64(CHANNEL), once())?;
        Ok(Arc::new(Self {
            channel,
            epoll,
            watched: Mutex::default(),
            busy: Mutex::default(),
            parked: Mutex::default(),
            idle: Mutex::default(),
            kept: Mutex::default(),
            beside: Mutex::default(),
            refused: Mutex::default(),
            nothing: io::pipe()?.0.into(),
            maps,
        }))
    }

    /// Serves until the service is gone.
    pub(crate) fn serve(self: &Arc<Self>) {
        *lock(&self.idle) += 1;
        while self.serve_next() {}
    }

    /// Serves as a further thread: until there are enough others without work.
    fn work(self: Arc<Self>) {
        while self.serve_next() {
            let mut idle = lock(&self.idle);
            if *idle > SPARE {
                *idle -= 1;
                return;
            }
        }
    }

    /// Waits for one event and does what it is about. Returns `false` at the end of the service.
    fn serve_next(self: &Arc<Self>) -> bool {
        let mut events = Vec::with_capacity(1);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(Errno::INTR) => return true,
            Err(_) => return false,
        }
        let Some(event) = events.pop() else {
            return true;
        };
        self.leave_a_thread();
        let goes_on = match event.data.u64() {
            CHANNEL => self.take_order(),
            key => {
                self.take_event(usize::try_from(key).unwrap_or(usize::MAX));
                true
            }
        };
        *lock(&self.idle) += 1;
        goes_on
    }

    /// Starts another thread if all are at work: this one may have to wait.
    fn leave_a_thread(self: &Arc<Self>) {
        let mut idle = lock(&self.idle);
        *idle -= 1;
        if *idle == 0 {
            let process = self.clone();
            let spawned = thread::Builder::new().spawn(move || process.work());
            // Without another thread clients wait for this one.
            *idle += usize::from(spawned.is_ok());
        }
    }

    /// Takes an order of the service. Returns `false` at its end.
    fn take_order(&self) -> bool {
        let mut bytes = [0; 32];
        let packet = read_whole(&self.channel, &mut bytes, 2);
        // The next order is for another thread.
        let _ = epoll::modify(
            &self.epoll,
            &self.channel,
            EventData::new_u64(CHANNEL),
            once(),
        );
        let mut packet = match packet {
            Ok(packet) if packet.len > 0 => packet,
            Err(Errno::AGAIN | Errno::MFILE) => return true,
            Ok(_) | Err(_) => return false,
        };
        let order = Order::decode(bytes.get(..packet.len).unwrap_or_default());
        let (second, first) = (packet.fds.pop(), packet.fds.pop());
        match (order, first, second) {
            (Some(Order::Client(kind, uid)), Some(socket), Some(lane)) => {
                self.add_client(uid, kind, socket, lane);
            }
            (Some(Order::Keep), None, Some(fd)) => lock(&self.kept).push(fd),
            (Some(Order::Maps(pid, device, inode)), None, Some(answer_to)) => {
                let answer = [u8::from((self.maps)(pid, device, inode))];
                // The service may have stopped waiting.
                let _ = send(&answer_to, &answer, SendFlags::NOSIGNAL);
            }
            _ => {}
        }
        true
    }

    fn add_client(&self, uid: u32, kind: Kind, socket: OwnedFd, lane: OwnedFd) {
        let is_refused = self.stuck(uid) >= STUCK_MAX;
        if is_refused {
            // The service finds the connection at its end, and gives it up.
            let _ = shutdown(&socket, Shutdown::Both);
        }
        let lane = Arc::new(lane);
        let ends = Ends {
            socket: Arc::new(socket),
            lane: lane.clone(),
        };
        let client = Arc::new(Client {
            uid,
            kind,
            is_refused,
            work: Mutex::new(Work {
                ends: Some(ends),
                todo: VecDeque::new(),
                busy_since: None,
                is_parked: false,
            }),
        });
        self.watch(&*lane, Watched::Lane(client));
    }

    /// Returns how many threads wait for a user's files.
    fn stuck(&self, uid: u32) -> usize {
        let busy = lock(&self.busy);
        let of_user = busy.values().filter(|client| client.uid == uid);
        let since = of_user.filter_map(|client| lock(&client.work).busy_since);
        since.filter(|since| since.elapsed() >= STUCK_AFTER).count()
    }

    /// Watches a descriptor for one event.
    fn watch(&self, fd: impl AsFd, what: Watched) {
        let key = lock(&self.watched).insert(what);
        if epoll::add(&self.epoll, fd, data(key), once()).is_err() {
            // Without a watch the duplicates are of no use. Closed here, and not under the lock.
            let unwatched = lock(&self.watched).try_remove(key);
            drop(unwatched);
        }
    }

    /// Handles a lane or a lease that is ready.
    fn take_event(self: &Arc<Self>, key: usize) {
        let mut watched = lock(&self.watched);
        let (client, task) = match watched.get(key) {
            Some(Watched::Lane(client)) => (client.clone(), Task::Lane(key)),
            Some(Watched::Lease { .. }) => match watched.remove(key) {
                Watched::Lease { end, client, kept } => {
                    drop(end);
                    (client, Task::Close(kept))
                }
                Watched::Lane(_) => return,
            },
            None => return,
        };
        drop(watched);
        let mut next = self.begin(&client, task).then_some(client);
        while let Some(client) = next {
            self.work_for(&client);
            next = self.end(&client);
        }
    }

    /// Adds a task to a client's. Returns `true` if this thread is to carry them out: no other does, and the client's user has
    /// not too many threads.
    fn begin(&self, client: &Arc<Client>, task: Task) -> bool {
        let mut busy = lock(&self.busy);
        let mut work = lock(&client.work);
        work.todo.push_back(task);
        if work.busy_since.is_some() || work.is_parked {
            return false;
        }
        let of_user = busy.values().filter(|other| other.uid == client.uid);
        let may_wait = client.kind != Kind::Datagrams && !client.is_refused;
        if may_wait && of_user.count() >= STUCK_MAX {
            work.is_parked = true;
            let mut parked = lock(&self.parked);
            parked
                .entry(client.uid)
                .or_default()
                .push_back(client.clone());
            return false;
        }
        work.busy_since = Some(Instant::now());
        busy.insert(Arc::as_ptr(client) as usize, client.clone());
        true
    }

    /// Carries out a client's tasks until there is none.
    fn work_for(self: &Arc<Self>, client: &Arc<Client>) {
        loop {
            let mut work = lock(&client.work);
            let Some(task) = work.todo.pop_front() else {
                break;
            };
            work.busy_since = Some(Instant::now());
            drop(work);
            with_rest(|| self.carry_out(client, task));
        }
        if !client.is_refused {
            self.close_refused(client.uid);
        }
    }

    /// Ends the work for a client, unless there is more. Returns the client to go on with: the same, or one that waits for a
    /// thread of its user.
    fn end(&self, client: &Arc<Client>) -> Option<Arc<Client>> {
        let mut busy = lock(&self.busy);
        let mut work = lock(&client.work);
        if !work.todo.is_empty() {
            return Some(client.clone());
        }
        work.busy_since = None;
        drop(work);
        busy.remove(&(Arc::as_ptr(client) as usize));
        let mut parked = lock(&self.parked);
        let waiting = parked.get_mut(&client.uid)?;
        let next = waiting.pop_front();
        if waiting.is_empty() {
            parked.remove(&client.uid);
        }
        let next = next?;
        let mut work = lock(&next.work);
        work.is_parked = false;
        work.busy_since = Some(Instant::now());
        drop(work);
        busy.insert(Arc::as_ptr(&next) as usize, next.clone());
        Some(next)
    }

    /// Closes descriptors on a thread of their own: a socket of datagrams has messages of many clients, which none of them may
    /// stop. Beyond [`BESIDE_MAX`] such threads descriptors are kept until the process ends.
    fn close_beside(self: &Arc<Self>, fds: Vec<OwnedFd>) {
        let mut beside = lock(&self.beside);
        if *beside >= BESIDE_MAX {
            drop(beside);
            lock(&self.kept).extend(fds);
            return;
        }
        let process = self.clone();
        let close = move || {
            drop(fds);
            *lock(&process.beside) -= 1;
        };
        *beside += usize::from(thread::Builder::new().spawn(close).is_ok());
    }

    /// Closes the sockets of a user's refused clients.
    fn close_refused(&self, uid: u32) {
        let refused = lock(&self.refused).remove(&uid);
        drop(refused);
    }

    fn carry_out(self: &Arc<Self>, client: &Arc<Client>, task: Task) {
        match task {
            Task::Close(kept) => drop(kept),
            Task::Lane(key) => {
                let ends = lock(&client.work).ends.clone();
                let Some(ends) = ends else { return };
                if self.serve_lane(client, &ends).is_some() {
                    let _ = epoll::modify(&self.epoll, &*ends.lane, data(key), once());
                    return;
                }
                lock(&self.watched).try_remove(key);
                lock(&client.work).ends = None;
                if client.is_refused {
                    let mut refused = lock(&self.refused);
                    refused.entry(client.uid).or_default().push(ends.socket);
                    return;
                }
                // The end wakes the client's waiters, and messages in the queue are closed with the socket: both may take long.
                let _ = shutdown(&ends.socket, Shutdown::Both);
                drop(ends);
            }
        }
    }

    /// Carries out a request of the service. `None` when the service has closed the client's socket.
    fn serve_lane(self: &Arc<Self>, client: &Arc<Client>, ends: &Ends) -> Option<()> {
        let mut head = [0; LANE_HEAD];
        let mut bytes = vec![0; MESSAGE_MAX];
        let request = match message::receive(&ends.lane, &mut head, &mut bytes, 0) {
            Ok(request) => request.len.checked_sub(LANE_HEAD)?,
            Err(Errno::AGAIN) => return Some(()),
            Err(_) => return None,
        };
        let answered = match Request::of(head) {
            _ if client.is_refused => answer(ends, Errno::CONNRESET.raw_os_error(), &[], &[]),
            Request::Send => {
                send_all(&ends.socket, bytes.get(..request).unwrap_or_default());
                answer(ends, 0, &[], &[])
            }
            Request::Read(most) => {
                let most = usize::try_from(most).unwrap_or(MESSAGE_MAX);
                bytes.truncate(most);
                let most = client.kind.most();
                let read = if client.kind == Kind::Datagrams {
                    // No protocol takes their descriptors, and none of their senders may hold up the others.
                    message::receive(&ends.socket, &mut [], &mut bytes, most)
                } else {
                    read_whole(&ends.socket, &mut bytes, most)
                };
                match read {
                    Ok(packet) => {
                        let bytes = bytes.get(..packet.len).unwrap_or_default();
                        self.pass_on(client, ends, bytes, packet)
                    }
                    Err(error) => answer(ends, error.raw_os_error(), &[], &[]),
                }
            }
        };
        answered.ok()
    }

    /// Passes a message on with what the protocol takes of its descriptors, and keeps duplicates of those. The others are closed
    /// afterwards: the service need not wait for that.
    fn pass_on(
        self: &Arc<Self>,
        client: &Arc<Client>,
        ends: &Ends,
        bytes: &[u8],
        packet: Packet,
    ) -> Result<(), Errno> {
        if client.kind == Kind::Datagrams {
            answer(ends, 0, &[], &[])?;
            self.close_beside(packet.fds);
            return Ok(());
        }
        // Alignment leaves room for one more.
        if packet.is_cut || packet.fds.len() > client.kind.most() {
            return answer(ends, Errno::MSGSIZE.raw_os_error(), &[], &[]);
        }
        if packet.fds.is_empty() || client.kind == Kind::Nothing {
            return answer(ends, 0, bytes, &[]);
        }
        let taken: Vec<bool> = packet.fds.iter().map(|fd| client.kind.takes(fd)).collect();
        let (own, other) = pair()?;
        let fds = packet.fds.iter().zip(&taken);
        let fds = fds.map(|(fd, taken)| {
            if *taken {
                fd.as_fd()
            } else {
                self.nothing.as_fd()
            }
        });
        let fds: Vec<_> = core::iter::once(other.as_fd()).chain(fds).collect();
        answer(ends, 0, bytes, &fds)?;
        drop(fds);
        let kept = packet.fds.into_iter().zip(taken);
        let (kept, refused): (Vec<_>, Vec<_>) = kept.partition(|(_, taken)| *taken);
        let kept = kept.into_iter().map(|(fd, _)| fd).collect();
        let end = Arc::new(own);
        let client = client.clone();
        self.watch(&*end.clone(), Watched::Lease { end, client, kept });
        drop(refused);
        Ok(())
    }
}

/// Reads a message with `most` of its descriptors. Waits up to [`ROOM_WITHIN`] for free descriptors: the service may have admitted
/// clients before this process has closed the descriptors of earlier ones.
fn read_whole(socket: &OwnedFd, bytes: &mut [u8], most: usize) -> Result<Packet, Errno> {
    let begun = Instant::now();
    loop {
        match message::receive_whole(socket, bytes, most) {
            Err(Errno::MFILE) if begun.elapsed() < ROOM_WITHIN => thread::sleep(ROOM_ASKED),
            read => return read,
        }
    }
}

/// Answers the service on a lane.
fn answer(
    ends: &Ends,
    error: i32,
    bytes: &[u8],
    fds: &[rustix::fd::BorrowedFd<'_>],
) -> Result<(), Errno> {
    let head: [u8; LANE_HEAD] = error.to_ne_bytes();
    message::send(&*ends.lane, [&head, bytes], fds, SendFlags::DONTWAIT)
}

/// Names a watched descriptor.
fn data(key: usize) -> EventData {
    EventData::new_u64(u64::try_from(key).unwrap_or(CHANNEL))
}

/// One event, until the next is asked for.
fn once() -> EventFlags {
    EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT
}

#[cfg(test)]
mod tests;
