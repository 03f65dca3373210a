//! A way in for programs that use Linux' verbs: a Unix socket to which the preload library in such a program connects, once
//! for each process. A process has a VF to itself, as long as its connection lasts.

mod channels;
pub(super) mod claims;
mod client;
pub(super) mod conflict;
mod interface;
pub(super) mod memory;
pub(super) mod network;
mod pending;
pub(super) mod process_vf;
pub(super) mod program;
mod refusal;
mod rings;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use hca_api::{AddressSpace, FunctionId, Hca};
use ib_vtime::{Duration, Instant};
use verbs_link::abi::rdma_cm::{CmCommandHeader, SetOption};
use verbs_link::{
    ArmLayout, CallReply, ChannelId, Errno, EventRecord, Namespace, RdmaCm, Reply, Request, Verb,
    netlink,
};
use vf_uverbs::{ContextId, ProcessDevice};
use zerocopy::{FromBytes, IntoBytes};

use super::acceptor::Acceptor;
use super::claim::Claim;
use super::descriptors::DescriptorLimit;
use super::lab::Lab;
use super::listeners::Listener;
use super::way_in::{Turn, WayIn};
use crate::credentials::of_peer;
use channels::Channels;
use client::{Client, Datagram, Holding};
use memory::is_process_memory;
use process_vf::Holder;
use program::VfProgram;
use refusal::ClaimRefusal;
use rings::MappedRings;
use vhca::LogLimit;
use vhca::watch::{EventSet, Ready};
use vhca::world::HostFunction;
use vhca_receiver::{Kind, PassedFd, Work, during};

pub use network::VerbsNetwork;

/// Requests of one program that are taken before others have their turn.
const BUDGET: usize = 64;

/// Time for the requests of one program before others have their turn.
const TURN: Duration = Duration::from_micros(50);

/// Time for which the programs of a user have to seal their rings after one of them made the service wait.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Programs at one time.
const MAX_CLIENTS: usize = 4096;

/// Outcome of a request.
enum Outcome {
    /// There is no answer.
    Silent,
    /// The answer, and the descriptors that go with it.
    Answered(CallReply, Vec<OwnedFd>),
    /// The program does not keep to the protocol.
    Broken,
}

/// The verbs socket of a service, with the programs at it.
#[derive(Debug)]
pub struct VerbsSocket {
    acceptor: Acceptor,
    clients: BTreeMap<RawFd, Client>,
    /// Users of programs whose rings made the service wait, and until when their programs have to seal them.
    distrusted: BTreeMap<u32, Instant>,
    limit: DescriptorLimit,
    /// Limit on lines of the log that programs cause.
    log: LogLimit,
    _claim: Option<Claim>,
}

impl VerbsSocket {
    /// Serves whoever connects to a socket of packets.
    #[must_use]
    pub fn new(listener: Listener) -> Self {
        Self {
            acceptor: Acceptor::new(listener.socket, Kind::Program),
            clients: BTreeMap::new(),
            distrusted: BTreeMap::new(),
            limit: DescriptorLimit::current(),
            log: LogLimit::default(),
            _claim: listener.claim,
        }
    }

    fn accept(&mut self, turn: &mut Turn<'_>) {
        let mut slice = turn.slice(TURN);
        for _ in 0..BUDGET {
            // The socket stays ready for the others.
            if slice.is_over() {
                return;
            }
            let Some(socket) = self.acceptor.accept(turn, &"verbs") else {
                return;
            };
            if self.clients.len() >= MAX_CLIENTS {
                let what = "verbs: too many programs; one is turned away";
                self.log.warn(turn.now, what);
                drop(socket);
                continue;
            }
            turn.watch(&socket);
            self.clients.insert(socket.as_raw_fd(), Client::new(socket));
        }
    }

    /// Takes what a program sent. Returns `true` if it stays.
    fn serve(&mut self, turn: &mut Turn<'_>, fd: RawFd) -> bool {
        let mut slice = turn.slice(TURN);
        for _ in 0..BUDGET {
            let Some(client) = self.clients.get_mut(&fd) else {
                return true;
            };
            let Datagram { bytes, descriptors } = match client.receive() {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return true,
                Err(_) => return false,
            };
            let mut descriptors = descriptors.into_iter();
            let answer_to = descriptors.next();
            let outcome = match Request::decode(&bytes) {
                Ok(request) if !self.limit.may_stay(fd) && request.verb == Verb::Claim => {
                    Outcome::Answered(ClaimRefusal::Descriptors.reply(), Vec::new())
                }
                Ok(request) => {
                    carry_out(turn, client, &self.distrusted, &request, descriptors.next())
                }
                Err(_) => Outcome::Broken,
            };
            match (outcome, answer_to) {
                (Outcome::Silent, None) => {}
                (Outcome::Answered(reply, attachments), Some(to)) => {
                    // A program that does not wait for its answer has none.
                    let _ = during(Work::WakeUp, fd, || {
                        client::answer(client.socket.wakeups(), to, &reply, attachments)
                    });
                }
                _ => {
                    let what = "verbs: a program does not keep to the protocol, and is cut off";
                    self.log.warn(turn.now, what);
                    return false;
                }
            }
            // The socket tells again of what is left.
            if slice.is_over() {
                break;
            }
        }
        true
    }

    /// Ends the connections of programs whose rings made the service wait.
    fn drop_waited_for(&mut self, turn: &mut Turn<'_>, waited_for: &[RawFd]) {
        for fd in waited_for {
            let holding = self
                .clients
                .get(fd)
                .and_then(|client| client.holding.as_ref());
            let uid = holding.and_then(|holding| holding.uid);
            if let Some(uid) = uid {
                self.distrusted.insert(uid, turn.now + REMEMBERED);
            }
            let what = format_args!(
                "verbs: a program of user {uid:?} has holes in its rings, which others waited for, and is cut off"
            );
            self.log.warn(turn.now, what);
            self.drop_client(turn, *fd);
        }
    }

    fn drop_client(&mut self, turn: &mut Turn<'_>, fd: RawFd) {
        if let Some(client) = self.clients.remove(&fd) {
            if let Some(holding) = &client.holding {
                turn.lab.note_stall(fd, holding.at);
                turn.lab.release_vf(holding.at);
            }
            turn.part(client.socket);
        }
    }
}

/// Carries out a request.
fn carry_out(
    turn: &mut Turn<'_>,
    client: &mut Client,
    distrusted: &BTreeMap<u32, Instant>,
    request: &Request<'_>,
    descriptor: Option<PassedFd>,
) -> Outcome {
    let failed = |errno| Outcome::Answered(CallReply::failed(errno), Vec::new());
    if request.verb == Verb::Claim {
        return match claim(turn, client, distrusted, request.body, descriptor) {
            Ok(reply) => Outcome::Answered(reply, Vec::new()),
            Err(refusal) => Outcome::Answered(refusal.reply(), Vec::new()),
        };
    }
    if request.verb == Verb::Netlink {
        return ask(turn, client, request);
    }
    if request.verb == Verb::Interface {
        let node = core::str::from_utf8(request.body);
        let at = node.ok().and_then(|node| shown(turn.lab, client, node));
        let interface = at.and_then(|at| interface::interface(turn.lab, at));
        let reply = CallReply {
            body: interface.map_or(Vec::new(), |interface| interface.as_bytes().to_vec()),
            ..CallReply::default()
        };
        return Outcome::Answered(reply, Vec::new());
    }
    let Some(holding) = &mut client.holding else {
        return Outcome::Broken;
    };
    let at = holding.at;
    match request.verb {
        Verb::Claim | Verb::Netlink | Verb::Interface => Outcome::Broken,
        Verb::Open => match open(turn, holding) {
            Ok((context, file)) => {
                let reply = CallReply {
                    opened: context.0,
                    ..CallReply::default()
                };
                Outcome::Answered(reply, vec![file])
            }
            Err(errno) => failed(errno),
        },
        Verb::Mapped => match holding.rings.seal() {
            Ok(()) => Outcome::Answered(CallReply::default(), Vec::new()),
            Err(_) => failed(Errno::EPERM),
        },
        Verb::Command { .. } if holding.is_distrusted && !holding.rings.is_sealed() => {
            failed(Errno::EPERM)
        }
        Verb::Command { context } => {
            let context = ContextId(context);
            let done = with_device(turn, at, |device, hca| {
                device.command(hca, context, request.body)
            });
            answered(done.and_then(|reply| attach(holding, reply)))
        }
        Verb::Doorbell { context, qp } => {
            // A device that is gone has told so by an event.
            let _ = with_device(turn, at, |device, hca| {
                device.ring(hca, ContextId(context), qp);
                Ok(())
            });
            Outcome::Silent
        }
        Verb::Arm { context, cq } => {
            if let Ok((arm, _)) = ArmLayout::read_from_prefix(request.body) {
                let (solicited, seen) = (arm.solicited_only.get() != 0, arm.seen.get());
                let _ = with_device(turn, at, |device, _| {
                    device.arm(ContextId(context), cq, solicited, seen);
                    Ok(())
                });
            }
            Outcome::Silent
        }
        Verb::Close { context } => {
            let _ = with_device(turn, at, |device, hca| {
                device.close(hca, ContextId(context));
                Ok(())
            });
            Outcome::Silent
        }
        Verb::CloseChannel { channel } => {
            let channel = ChannelId(channel);
            holding.channels.close(channel);
            let world = turn.lab.world_mut();
            world.with_consumer(at, |program: &mut VfProgram, hca, now| {
                program.close_channel(now, hca, channel);
            });
            Outcome::Silent
        }
        Verb::OpenCm => {
            turn.lab.take_namespace(at, Namespace::decode(request.body));
            let world = turn.lab.world_mut();
            let opened = world.with_consumer(at, |program: &mut VfProgram, hca, now| {
                program.open_cm(now, hca)
            });
            let opened = opened.unwrap_or(Err(Errno::EIO)).map(|channel| Reply {
                opened: Some(channel),
                ..Reply::default()
            });
            answered(opened.and_then(|reply| attach(holding, reply)))
        }
        Verb::CmCommand { channel } => {
            let addresses = RdmaCm::names_address(request.body).then(|| turn.lab.addresses(at));
            let addresses = addresses.flatten().unwrap_or_default();
            let command = match RdmaCm::names_option(request.body) {
                None => Ok(Cow::Borrowed(request.body)),
                Some(option) => with_option(turn.lab, at, request.body, option).map(Cow::Owned),
            };
            let command = match command {
                Ok(command) => command,
                Err(errno) => return failed(errno),
            };
            let world = turn.lab.world_mut();
            let channel = ChannelId(channel);
            let done = world.with_consumer(at, |program: &mut VfProgram, hca, now| {
                program.cm_command(now, hca, &addresses, channel, &command)
            });
            let done = done.unwrap_or(Err(Errno::EIO));
            answered(done.and_then(|reply| attach(holding, reply)))
        }
        Verb::PutBack { channel } => {
            let record = EventRecord {
                channel: ChannelId(channel),
                bytes: request.body.to_vec(),
            };
            match holding.channels.take_back(turn.now, record) {
                Ok(true) => {}
                Ok(false) => {
                    let _ = with_device(turn, at, |device, _| {
                        device.dropped_events += 1;
                        Ok(())
                    });
                }
                Err(_) => return Outcome::Broken,
            }
            Outcome::Silent
        }
    }
}

/// Returns a command with the option behind it that it names in the memory of its program.
fn with_option(
    lab: &Lab,
    at: HostFunction,
    command: &[u8],
    (addr, len): (u64, usize),
) -> Result<Vec<u8>, Errno> {
    /// Most bytes of an option: some paths of 72 bytes.
    const MOST: usize = 4096;

    if len > MOST {
        return Err(Errno::EINVAL);
    }
    let offered = lab.process_vfs.get(&at).ok_or(Errno::EIO)?;
    let begin = size_of::<CmCommandHeader>() + size_of::<SetOption>();
    let mut command = command.get(..begin).ok_or(Errno::EINVAL)?.to_vec();
    command.resize(begin + len, 0);
    let read = offered.memory.read(addr, &mut command[begin..]);
    read.map(|()| command).map_err(|_| Errno::EFAULT)
}

fn answered(done: Result<(CallReply, Vec<OwnedFd>), Errno>) -> Outcome {
    match done {
        Ok((reply, attachments)) => Outcome::Answered(reply, attachments),
        Err(errno) => Outcome::Answered(CallReply::failed(errno), Vec::new()),
    }
}

fn claim(
    turn: &mut Turn<'_>,
    client: &mut Client,
    distrusted: &BTreeMap<u32, Instant>,
    name: &[u8],
    process: Option<PassedFd>,
) -> Result<CallReply, ClaimRefusal> {
    if client.holding.is_some() {
        return Err(ClaimRefusal::Malformed);
    }
    let name = core::str::from_utf8(name).map_err(|_| ClaimRefusal::Malformed)?;
    let process = process.filter(is_process_memory);
    let process = process.ok_or(ClaimRefusal::Malformed)?;
    let rings = MappedRings::new().map_err(|_| ClaimRefusal::Memory)?;
    let rings = Arc::new(rings);
    let peer = of_peer(&client.socket).ok();
    let pid = peer.and_then(|peer| peer.pid);
    let holder = Holder {
        pid: pid.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok()),
        uid: peer.map(|peer| peer.uid.as_raw()),
        client: client.socket.as_raw_fd(),
        since: turn.now,
    };
    let uid = holder.uid;
    let until = uid.and_then(|uid| distrusted.get(&uid));
    let (at, budget) = turn.lab.claim_vf(name, &rings, process, holder)?;
    client.holding = Some(Holding {
        at,
        rings,
        channels: Channels::new(budget, client.socket.wakeups().clone()),
        uid,
        is_distrusted: until.is_some_and(|until| *until > turn.now),
    });
    Ok(CallReply::default())
}

fn open(turn: &mut Turn<'_>, holding: &Holding) -> Result<(ContextId, OwnedFd), Errno> {
    let file = holding.rings.descriptor().map_err(|_| Errno::ENFILE)?;
    let context = with_device(turn, holding.at, |device, _| device.open())?;
    Ok((context, file))
}

/// Adds the descriptors of a channel that a command opened.
fn attach(holding: &mut Holding, reply: Reply) -> Result<(CallReply, Vec<OwnedFd>), Errno> {
    let mut attachments = Vec::new();
    if let Some(opened) = reply.opened {
        let (ours, theirs) = channels::ends().map_err(|_| Errno::ENFILE)?;
        holding.channels.open(opened, ours);
        attachments = vec![theirs];
    }
    let reply = CallReply {
        error: None,
        opened: reply.opened.map_or(0, |channel| channel.0),
        retired: reply.retired,
        body: reply.answer,
    };
    Ok((reply, attachments))
}

/// Answers a question of RDMA netlink. A process without a VF is answered about the one that it sees, and about the objects of
/// another user's program not at all.
fn ask(turn: &mut Turn<'_>, client: &Client, request: &Request<'_>) -> Outcome {
    let mut parts = request.body.splitn(3, |byte| *byte == 0);
    let mut text = || core::str::from_utf8(parts.next()?).ok();
    let (Some(name), Some(node)) = (text(), text()) else {
        return Outcome::Broken;
    };
    let Some(question) = parts.next() else {
        return Outcome::Broken;
    };
    let at = shown(turn.lab, client, node);
    let uid = of_peer(&client.socket).ok().map(|peer| peer.uid.as_raw());
    // The adapter of a bare node is the first that umad shows.
    let is_adapter = at.is_some_and(|at| at.function == FunctionId::PF);
    let first = umad_link::sysfs::name(0);
    let name = if is_adapter { &first } else { name };
    let view = at.and_then(|at| turn.lab.device_view_of(at, name, uid));
    let datagrams = netlink::answer(view.as_ref(), question);
    let reply = CallReply {
        body: datagrams.concat(),
        ..CallReply::default()
    };
    Outcome::Answered(reply, Vec::new())
}

/// Returns the VF that a client has, or sees.
fn shown(lab: &Lab, client: &Client, node: &str) -> Option<HostFunction> {
    let held = client.holding.as_ref().map(|holding| holding.at);
    held.or_else(|| {
        let peer = of_peer(&client.socket).ok();
        lab.shown_vf(node, peer.and_then(|peer| peer.pid))
    })
}

fn with_device<T>(
    turn: &mut Turn<'_>,
    at: HostFunction,
    call: impl FnOnce(&mut ProcessDevice, &mut dyn Hca) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let world = turn.lab.world_mut();
    let called = world.with_consumer(at, |program: &mut VfProgram, hca, _| {
        call(&mut program.device, hca)
    });
    called.unwrap_or(Err(Errno::EIO))
}

impl WayIn for VerbsSocket {
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
        } else if let Some(client) = self.clients.get_mut(&ready.fd)
            && let Some(wanted) = client.new_watch()
        {
            turn.watches.modify(&client.socket, wanted);
        }
    }

    fn flush(&mut self, turn: &mut Turn<'_>) {
        while let Some(conflict) = turn.lab.address_conflicts.poll() {
            self.log.warn(turn.now, conflict);
        }
        if self.acceptor.wake(turn) {
            self.accept(turn);
        }
        let mut waited_for = Vec::new();
        for (fd, client) in &mut self.clients {
            let Some(holding) = &mut client.holding else {
                continue;
            };
            if holding.rings.has_waited() {
                waited_for.push(*fd);
            }
            let world = turn.lab.world_mut();
            let program = world.consumer::<VfProgram>(holding.at);
            let has_events = program
                .is_some_and(|program| program.device.has_events() || program.cm.has_events());
            if has_events && let Some(program) = world.consumer_mut::<VfProgram>(holding.at) {
                let VfProgram { device, cm, .. } = program;
                while let Some(record) = device.poll_event().or_else(|| cm.poll_event()) {
                    if !holding.channels.pass_on(turn.now, record) {
                        device.dropped_events += 1;
                    }
                }
            }
            holding.channels.retry(turn.now);
        }
        self.drop_waited_for(turn, &waited_for);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let holdings = self
            .clients
            .values()
            .filter_map(|client| client.holding.as_ref());
        let retries = holdings.filter_map(|holding| holding.channels.poll_timeout());
        retries.chain(self.acceptor.poll_timeout()).min()
    }
}
