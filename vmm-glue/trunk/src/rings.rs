//! A carrier over queues in shared memory: records of packets and runs by one pair of queues, all others by another pair.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant as WallInstant;

use ib_trunk::{MAX_RECORD, RecordSink, Session};
use ib_vtime::{Duration, Instant};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{Errno, write};
use thiserror::Error;

use crate::parts::{RingParts, Side};
use crate::ring::memory::{self, CONTROL_CHUNK, PACKET_CHUNK, Plan, QUEUES};
use crate::ring::{
    DeviceReceiver, DeviceSender, DriverReceiver, DriverSender, Receiver, RingError, Sender,
    Signals,
};

/// Bytes that are received in one call at most, so that others have their turns.
const MOST: usize = 1 << 20;

/// Bytes as which a chunk counts at least.
const LEAST: usize = MOST / 256;

/// Numbers of what the epoll descriptor watches.
const HUNG_UP: u64 = u64::MAX;
const AGAIN: u64 = u64::MAX - 1;

/// Reason for which there is no connection over queues.
#[derive(Debug, Error)]
pub enum RingsError {
    /// The queues are not where the other end says.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// An error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<Errno> for RingsError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// The ends of a pair of queues that this process has.
type Ends = (Box<dyn Sender>, Box<dyn Receiver>);

/// A pair of queues, one each way.
#[derive(Debug)]
struct Lane {
    sender: Box<dyn Sender>,
    receiver: Box<dyn Receiver>,
    /// Signalled for chunks that were sent.
    sent: OwnedFd,
    /// Signalled for room of chunks that were received.
    received: OwnedFd,
    /// Records besides packets and runs that have no room yet.
    waiting: Vec<u8>,
    /// Packets or runs of the session have no room yet.
    lacks_room: bool,
}

/// A connection over queues. It never blocks.
#[derive(Debug)]
pub(crate) struct Rings {
    /// Ready when there is a notification, or the other end is gone.
    ready: OwnedFd,
    packets: Lane,
    control: Lane,
    signals: Signals,
    /// The chunk that was received last.
    buffer: Vec<u8>,
    /// Signalled when a call of [`Self::receive`] leaves chunks for the next one.
    again: OwnedFd,
    /// Time after traffic in which no signal is asked for.
    busy_poll: Duration,
    /// End of that time, while it lasts: the owner looks at the queues again and again.
    awake_until: Option<WallInstant>,
    /// Hangs up at the other end when it is dropped.
    _lifeline: OwnedFd,
    is_hung_up: bool,
    failure: Option<String>,
}

impl Rings {
    /// Maps the memory and watches the eventfds.
    ///
    /// # Errors
    /// [`RingsError`].
    pub(crate) fn new(parts: RingParts, signals: &Signals) -> Result<Self, RingsError> {
        let memory = memory::map(parts.memory, parts.base, parts.bytes)?;
        let [to_device, to_driver, control_to_device, control_to_driver] = parts.queues;
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let watched = match parts.side {
            Side::Driver => &parts.calls,
            Side::Device => &parts.kicks,
        };
        // Eventfds are not read: each signal is an edge.
        let edges = EventFlags::IN | EventFlags::ET;
        for (number, eventfd) in (0..).zip(watched) {
            epoll::add(&ready, eventfd, EventData::new_u64(number), edges)?;
        }
        let hung_up = edges | EventFlags::RDHUP;
        epoll::add(
            &ready,
            &parts.lifeline,
            EventData::new_u64(HUNG_UP),
            hung_up,
        )?;
        let again = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&ready, &again, EventData::new_u64(AGAIN), edges)?;
        let (signalled, ends): (_, [Ends; 2]) = match parts.side {
            Side::Driver => {
                let [packets_out, packets_in, control_out, control_in] = Plan::new().queues;
                let sender = |(addresses, buffers)| -> Box<dyn Sender> {
                    Box::new(DriverSender::new(memory.clone(), addresses, buffers))
                };
                let receiver = |(addresses, buffers)| {
                    let receiver = DriverReceiver::new(memory.clone(), addresses, buffers);
                    receiver.map(|receiver| -> Box<dyn Receiver> { Box::new(receiver) })
                };
                let packets = (sender(packets_out), receiver(packets_in)?);
                let control = (sender(control_out), receiver(control_in)?);
                (parts.kicks, [packets, control])
            }
            Side::Device => {
                let sender = |addresses, most| {
                    let sender = DeviceSender::new(memory.clone(), addresses, most);
                    sender.map(|sender| -> Box<dyn Sender> { Box::new(sender) })
                };
                let receiver = |addresses, most| {
                    let receiver = DeviceReceiver::new(memory.clone(), addresses, most);
                    receiver.map(|receiver| -> Box<dyn Receiver> { Box::new(receiver) })
                };
                let packets = (
                    sender(to_driver, PACKET_CHUNK)?,
                    receiver(to_device, PACKET_CHUNK)?,
                );
                let control = (
                    sender(control_to_driver, CONTROL_CHUNK)?,
                    receiver(control_to_device, CONTROL_CHUNK)?,
                );
                (parts.calls, [packets, control])
            }
        };
        let [to_device, to_driver, control_to_device, control_to_driver] = signalled;
        let [sent, received] = match parts.side {
            Side::Driver => [
                [to_device, control_to_device],
                [to_driver, control_to_driver],
            ],
            Side::Device => [
                [to_driver, control_to_driver],
                [to_device, control_to_device],
            ],
        };
        let lane = |((sender, receiver), (sent, received))| Lane {
            sender,
            receiver,
            sent,
            received,
            waiting: Vec::new(),
            lacks_room: false,
        };
        let [packets, control] = ends;
        let ([packets_sent, control_sent], [packets_received, control_received]) = (sent, received);
        Ok(Self {
            ready,
            packets: lane((packets, (packets_sent, packets_received))),
            control: lane((control, (control_sent, control_received))),
            signals: signals.clone(),
            buffer: Vec::new(),
            again,
            busy_poll: Duration::ZERO,
            awake_until: None,
            _lifeline: parts.lifeline,
            is_hung_up: false,
            failure: None,
        })
    }

    /// Sets for how long after traffic the queues are looked at, by [`Self::look`], in place of a wait for signals: a chunk then costs the
    /// other end no system call, and this one no wake-up. Zero ends a time under way with the next look.
    pub(crate) fn set_busy_poll(&mut self, time: Duration) {
        self.busy_poll = time;
        if time.is_zero() && self.is_awake() {
            self.awake_until = Some(WallInstant::now());
        }
    }

    /// Returns `true` if [`Self::look`] is to be called soon, since no signal may come.
    pub(crate) const fn is_awake(&self) -> bool {
        self.awake_until.is_some()
    }

    fn stay_awake(&mut self) {
        if !self.busy_poll.is_zero() {
            self.awake_until = Some(WallInstant::now() + self.busy_poll);
        }
    }

    /// Takes note of notifications. They need no other answer than to look at the queues.
    fn note_events(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(QUEUES + 2);
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(
            &self.ready,
            rustix::buffer::spare_capacity(&mut events),
            Some(&now),
        ) {
            // The descriptor stays ready.
            Err(Errno::INTR) => return Ok(()),
            waited => waited?,
        };
        self.is_hung_up |= events.iter().any(|event| event.data.u64() == HUNG_UP);
        Ok(())
    }

    /// Passes chunks that wait on to the session. Returns `false` if the connection has ended.
    pub(crate) fn receive(&mut self, now: Instant, session: &mut Session) -> bool {
        let received = self.note_events().map_err(RingsError::from);
        let received = received.and_then(|()| self.receive_chunks(now, session));
        match received {
            Ok(()) => !self.is_hung_up || session.is_closed(),
            Err(error) => self.fail(&error),
        }
    }

    /// Passes chunks that wait on to the session without a look for notifications, and asks for them again if none came for the time that
    /// is set. Returns `false` if the connection has ended.
    pub(crate) fn look(&mut self, now: Instant, session: &mut Session) -> bool {
        match self.receive_chunks(now, session) {
            Ok(()) => true,
            Err(error) => self.fail(&error),
        }
    }

    fn receive_chunks(&mut self, now: Instant, session: &mut Session) -> Result<(), RingsError> {
        let mut read = 0;
        while !session.is_closed() {
            // Records that were sent before these packets are there by now, and come before them.
            let packets = self.packets.receiver.waiting()?;
            let (signals, buffer) = (&self.signals, &mut self.buffer);
            let mut receive = |lane: &mut Lane| -> Result<(), RingsError> {
                if session.is_closed() {
                    return Ok(());
                }
                if lane.receiver.receive(buffer)? {
                    read += buffer.len().max(LEAST);
                    session.handle_records(now, buffer);
                    if lane.receiver.must_notify()? {
                        signals.signal(&lane.received)?;
                    }
                }
                Ok(())
            };
            for _ in 0..self.control.receiver.waiting()? {
                receive(&mut self.control)?;
            }
            for _ in 0..packets {
                receive(&mut self.packets)?;
            }
            if read > 0 {
                self.stay_awake();
            }
            let is_over = |until| WallInstant::now() >= until;
            if !self.awake_until.is_none_or(is_over) {
                return Ok(());
            }
            self.awake_until = None;
            if !self.control.receiver.await_chunk()? & !self.packets.receiver.await_chunk()? {
                return Ok(());
            }
            if read >= MOST {
                write(&self.again, &1_u64.to_ne_bytes())?;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends the records of the session, as far as there is room. Returns `false` if the connection has ended.
    pub(crate) fn transmit(&mut self, session: &mut Session) -> bool {
        let (signals, is_awake) = (&self.signals, self.is_awake());
        let sent = self.control.send_control(signals, is_awake, session);
        let sent = sent.and_then(|any| {
            let packets = self.packets.send_packets(signals, is_awake, session)?;
            Ok(any || packets)
        });
        match sent {
            Ok(any) => {
                if any {
                    // The answer may come soon.
                    self.stay_awake();
                }
                true
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &RingsError) -> bool {
        self.failure = Some(error.to_string());
        false
    }

    /// Returns `true` if a chunk waits for room.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.control.waiting.is_empty() || self.packets.lacks_room
    }

    /// Returns the rule that the other end broke.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

impl Lane {
    /// Returns `true` if there is room for a chunk. An end that is not awake asks to be signalled once there is.
    fn finds_room(&mut self, is_awake: bool) -> Result<bool, RingsError> {
        while !self.sender.has_room()? {
            if is_awake || !self.sender.await_room()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn notify_sent(&mut self, signals: &Signals) -> Result<(), RingsError> {
        if self.sender.must_notify()? {
            signals.signal(&self.sent)?;
        }
        Ok(())
    }

    /// Sends records besides packets and runs, as far as there is room. Returns `true` if any were sent.
    fn send_control(
        &mut self,
        signals: &Signals,
        is_awake: bool,
        session: &mut Session,
    ) -> Result<bool, RingsError> {
        let most = usize::try_from(CONTROL_CHUNK).unwrap_or(0);
        let mut any = false;
        while !self.waiting.is_empty() || session.poll_control(&mut self.waiting, most) {
            if !self.finds_room(is_awake)? {
                break;
            }
            let waiting = &self.waiting;
            self.sender.write(&mut |chunk| chunk.append(waiting))?;
            self.waiting.clear();
            any = true;
            self.notify_sent(signals)?;
        }
        Ok(any)
    }

    /// Writes packets and runs of the session to the shared memory, as far as there is room. Returns `true` if any were sent.
    fn send_packets(
        &mut self,
        signals: &Signals,
        is_awake: bool,
        session: &mut Session,
    ) -> Result<bool, RingsError> {
        // A record goes beyond the bound that is asked for, and not beyond the chunk.
        let most = usize::try_from(PACKET_CHUNK).unwrap_or(0);
        let most = most.saturating_sub(MAX_RECORD);
        let mut any = false;
        self.lacks_room = false;
        while session.has_packets() {
            if !self.finds_room(is_awake)? {
                self.lacks_room = true;
                break;
            }
            self.sender.write(&mut |chunk| {
                let _ = session.poll_packets(chunk, most);
            })?;
            any = true;
            self.notify_sent(signals)?;
        }
        Ok(any)
    }
}

impl AsFd for Rings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}
