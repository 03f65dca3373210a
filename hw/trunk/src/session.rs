//! One connection of a trunk, from hello to close.

use std::collections::VecDeque;

use ib_fabric::{Crossing, Frame, PacketRun, PacketSource};
use ib_vtime::{Duration, Instant};
use ib_wire::Vl;
use ib_wire::packet::{VCRC_SIZE, crc};
use zerocopy::IntoBytes;
use zerocopy::network_endian::U64;

use crate::close::CloseReason;
use crate::credit::{Allowance, Room};
use crate::event::SessionEvent;
use crate::hello::{Features, Hello, HelloBody};
use crate::record::{
    CloseBody, CreditBody, DATA_LANES, Header, Kind, MAX_BODY, PingBody, PortBody, Record,
    RecordSink, SourceBody, flag, in_front, put, put_on, read, split,
};
use crate::run;
use crate::statistics::Statistics;

/// Packets on VL15 that wait at most, each way; more are discarded and counted.
pub const MANAGEMENT_DEPTH: usize = 64;

/// Packets of a data lane that wait to leave at most; see [`Session::has_place`].
const LANE_DEPTH: u32 = 64;

/// Bytes of a hello's body that are read at most, since later versions may have a longer one.
const MAX_HELLO: usize = 4 * HelloBody::SIZE;

/// Configuration of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// This end's own hello.
    pub hello: Hello,
    /// The session ends when nothing comes for so long. Pings leave each third of it.
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The hello of the other end has not come.
    Greeting,
    Open,
    Closed,
}

/// A packet or a run of a data lane that waits, with the credits that it takes: the bytes of its record's body.
#[derive(Debug)]
struct Waiting {
    crossing: Crossing,
    bytes: usize,
}

/// One connection of a trunk, as a machine without a clock and without a socket.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    phase: Phase,
    /// Features of the other end.
    features: Features,
    began: Instant,
    heard: Instant,
    next_ping: Instant,
    /// Bytes that came and are not a whole record yet.
    incoming: Vec<u8>,
    /// Records besides packets that are to leave.
    control: Vec<u8>,
    management: VecDeque<Frame>,
    leaving: [VecDeque<Waiting>; DATA_LANES],
    /// The lane whose turn it is.
    turn: usize,
    allowance: Allowance,
    room: Room,
    arrived_management: VecDeque<Frame>,
    arrived: [VecDeque<Waiting>; DATA_LANES],
    events: VecDeque<SessionEvent>,
    statistics: Statistics,
}

impl Session {
    /// Begins a session on a new connection: its hello is the first to leave.
    #[must_use]
    pub fn new(now: Instant, config: SessionConfig) -> Self {
        let mut control = Vec::new();
        let hello = HelloBody::new(&config.hello);
        put(&mut control, Kind::Hello, hello.as_bytes());
        Self {
            phase: Phase::Greeting,
            features: Features::default(),
            began: now,
            heard: now,
            next_ping: now + config.timeout / 3,
            config,
            incoming: Vec::new(),
            control,
            management: VecDeque::new(),
            leaving: Default::default(),
            turn: 0,
            allowance: Allowance::default(),
            room: Room::default(),
            arrived_management: VecDeque::new(),
            arrived: Default::default(),
            events: VecDeque::new(),
            statistics: Statistics::default(),
        }
    }

    /// Returns the counters.
    #[must_use]
    pub const fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns `true` if runs may be sent: the other end takes them, and has said hello.
    #[must_use]
    pub const fn carries_runs(&self) -> bool {
        self.features.runs()
    }

    /// Returns `true` once the session is over. Then [`Self::poll_transmit`] has the close record at most.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Takes bytes of the other end, from wherever the last ones ended.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if self.is_closed() {
            return;
        }
        self.heard = now;
        let mut incoming = core::mem::take(&mut self.incoming);
        if incoming.is_empty() {
            // Whole records are read where they are.
            incoming.extend_from_slice(self.handle_whole(now, bytes));
        } else {
            incoming.extend_from_slice(bytes);
            let rest = self.handle_whole(now, &incoming).len();
            incoming.drain(..incoming.len() - rest);
        }
        if !self.is_closed() {
            self.incoming = incoming;
        }
    }

    /// Takes whole records of the other end, from a carrier that does not cut them. Bytes that end within a record end the session. If the
    /// last record is a run and takes at least half of the buffer, the run keeps that, and leaves an empty one.
    pub fn handle_records(&mut self, now: Instant, records: &mut Vec<u8>) {
        if self.is_closed() {
            return;
        }
        self.heard = now;
        let rest = self.handle_while(now, records, |phase, record| {
            // A small run in a large buffer would keep more memory than it has credits for.
            let keeps = record.rest.is_empty() && 2 * record.body.len() >= records.capacity();
            !(keeps && phase == Phase::Open && record.header.kind() == Some(Kind::Run))
        });
        let at = records.len() - rest.len();
        let handled = match split(rest, MAX_BODY) {
            _ if rest.is_empty() || self.is_closed() => Ok(()),
            Ok(Some(record)) => {
                let body = at + size_of::<Header>();
                self.handle_run(record.header, core::mem::take(records), body)
            }
            Ok(None) | Err(_) => Err(CloseReason::Garbage),
        };
        if let Err(reason) = handled {
            self.close(reason);
        }
    }

    /// Handles the whole records at the front of bytes. Returns the rest.
    fn handle_whole<'b>(&mut self, now: Instant, bytes: &'b [u8]) -> &'b [u8] {
        self.handle_while(now, bytes, |_, _| true)
    }

    /// Handles the whole records at the front of bytes, up to the first one that `is_next` says no to. Returns the rest.
    fn handle_while<'b>(
        &mut self,
        now: Instant,
        mut bytes: &'b [u8],
        is_next: impl Fn(Phase, &Record<'_>) -> bool,
    ) -> &'b [u8] {
        while !self.is_closed() {
            let most = match self.phase {
                Phase::Greeting => MAX_HELLO,
                Phase::Open | Phase::Closed => MAX_BODY,
            };
            let handled = match split(bytes, most) {
                Ok(Some(record)) if !is_next(self.phase, &record) => break,
                Ok(Some(record)) => {
                    bytes = record.rest;
                    self.handle_record(now, record.header, record.body)
                }
                Ok(None) => break,
                Err(reason) => Err(reason),
            };
            if let Err(reason) = handled {
                self.close(reason);
            }
        }
        bytes
    }

    /// Takes note that the stream has ended.
    pub fn handle_end(&mut self) {
        if !self.is_closed() {
            self.end(CloseReason::Ended);
        }
    }

    /// Sends a ping, or ends the session, if it is time.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.is_closed() {
            return;
        }
        if now >= self.heard + self.config.timeout {
            self.close(CloseReason::Timeout);
        } else if now >= self.next_ping {
            self.next_ping = now + self.config.timeout / 3;
            if self.phase == Phase::Open {
                let time = U64::new(nanoseconds(now.saturating_duration_since(self.began)));
                put(&mut self.control, Kind::Ping, PingBody { time }.as_bytes());
            }
        }
    }

    /// Returns when to call [`Self::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_closed()).then(|| self.next_ping.min(self.heard + self.config.timeout))
    }

    /// Ends the session: the other end gets the reason.
    pub fn close(&mut self, reason: CloseReason) {
        if self.is_closed() {
            return;
        }
        put(
            &mut self.control,
            Kind::Close,
            CloseBody::new(reason).as_bytes(),
        );
        self.end(reason);
    }

    fn end(&mut self, reason: CloseReason) {
        self.phase = Phase::Closed;
        self.management.clear();
        self.arrived_management.clear();
        for queue in self.leaving.iter_mut().chain(&mut self.arrived) {
            queue.clear();
        }
        self.events.push_back(SessionEvent::Closed(reason));
    }

    /// Reports that this end's port is enabled, or disabled.
    pub fn report_port(&mut self, enabled: bool) {
        if !self.is_closed() {
            let body = PortBody::new(enabled);
            put(&mut self.control, Kind::Port, body.as_bytes());
        }
    }

    /// Returns `true` if [`Self::send`] takes another packet of a lane without a loss.
    #[must_use]
    pub fn has_place(&self, lane: Vl) -> bool {
        let waiting = self.leaving.get(usize::from(lane.get()));
        let packets = waiting.map(|waiting| waiting.iter().map(|next| next.crossing.packets()));
        packets.is_none_or(|packets| packets.sum::<u32>() < LANE_DEPTH)
    }

    /// Sends a packet, or a run if [`Self::carries_runs`] says so. A packet on VL15 is discarded if too many wait; before the session is
    /// open all packets are.
    pub fn send(&mut self, crossing: impl Into<Crossing>) {
        if self.phase != Phase::Open {
            return;
        }
        let crossing = crossing.into();
        let lane = usize::from(crossing.lane().get());
        match (self.leaving.get_mut(lane), crossing) {
            (Some(waiting), crossing) => {
                let bytes = match &crossing {
                    Crossing::Packet(frame) => Some(carried(frame).len()),
                    Crossing::Run(run) => run::length(run),
                };
                match bytes {
                    Some(bytes) => waiting.push_back(Waiting { crossing, bytes }),
                    None => self.statistics.discarded += 1,
                }
            }
            (None, Crossing::Packet(frame)) if self.management.len() < MANAGEMENT_DEPTH => {
                self.management.push_back(frame);
            }
            (None, _) => self.statistics.discarded += 1,
        }
    }

    /// Appends records that are to leave until `out` has `most` bytes: it may get longer by one record. Returns `true` if
    /// anything was appended.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>, most: usize) -> bool {
        let before = out.len();
        self.announce_room();
        out.append(&mut self.control);
        let has_packets = self.poll_packets(out, most);
        has_packets || out.len() > before
    }

    /// Appends records besides packets and runs that are to leave, as long as `out` has at most `most` bytes then. Returns `true` if
    /// anything was appended. For a carrier with a way of their own: they are to be there before packets that are polled later.
    #[must_use]
    pub fn poll_control(&mut self, out: &mut Vec<u8>, most: usize) -> bool {
        self.announce_room();
        let room = most.saturating_sub(out.len());
        let mut rest = &self.control[..];
        while let Ok(Some(record)) = split(rest, MAX_BODY)
            && self.control.len() - record.rest.len() <= room
        {
            rest = record.rest;
        }
        let taken = self.control.len() - rest.len();
        out.extend(self.control.drain(..taken));
        taken > 0
    }

    /// Appends packets and runs that are to leave until `out` has `most` bytes: it may get longer by one record. Returns `true` if
    /// anything was appended.
    #[must_use]
    pub fn poll_packets(&mut self, out: &mut impl RecordSink, most: usize) -> bool {
        let before = out.written();
        while out.written() < most
            && let Some(crossing) = self.next_leaving()
        {
            match crossing {
                Crossing::Packet(mut frame) => self.put_packet(out, &mut frame),
                Crossing::Run(run) => self.put_run(out, &run),
            }
        }
        out.written() > before
    }

    /// Returns `true` if [`Self::poll_packets`] has packets or runs.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        !self.management.is_empty() || self.next_lane().is_some()
    }

    /// Queues a credit record, if it is worth one.
    fn announce_room(&mut self) {
        if self.phase == Phase::Open
            && let Some(credit) = self.room.announce()
        {
            put(&mut self.control, Kind::Credit, credit.as_bytes());
        }
    }

    /// Returns the next packet or run: on VL15, or of the next data lane that has credits.
    fn next_leaving(&mut self) -> Option<Crossing> {
        if let Some(frame) = self.management.pop_front() {
            return Some(frame.into());
        }
        let lane = self.next_lane()?;
        let Waiting { crossing, bytes } = self.leaving.get_mut(lane)?.pop_front()?;
        self.allowance.spend(crossing.lane(), bytes);
        self.turn = (lane + 1) % DATA_LANES;
        Some(crossing)
    }

    /// Returns the data lane whose turn it is, of the ones that have credits for their next packet.
    fn next_lane(&self) -> Option<usize> {
        let mut lanes = (0..DATA_LANES).map(|step| (self.turn + step) % DATA_LANES);
        lanes.find(|lane| {
            let next = self.leaving.get(*lane).and_then(VecDeque::front);
            next.is_some_and(|next| self.allowance.has(next.crossing.lane(), next.bytes))
        })
    }

    fn put_packet(&mut self, out: &mut impl RecordSink, frame: &mut Frame) {
        let lane = frame.lane();
        let source = self.source_to_send(frame.source());
        let (flags, vcrc) = match frame.vcrc_matches() {
            true => (0, &[][..]),
            false => (
                flag::BAD_VCRC,
                frame
                    .bytes()
                    .last_chunk::<VCRC_SIZE>()
                    .map_or(&[][..], |crc| &crc[..]),
            ),
        };
        let packet = carried(frame);
        self.statistics.sent_packets += 1;
        self.statistics.sent_bytes += packet.len() as u64;
        let (source, flag) = in_front(source.as_ref());
        put_on(
            out,
            Kind::Packet,
            flags | flag,
            lane,
            &[source, packet, vcrc],
        );
    }

    fn put_run(&mut self, out: &mut impl RecordSink, run: &PacketRun) {
        if let Some(head) = run.head() {
            self.statistics.sent_packets += u64::from(head.packets);
            self.statistics.sent_bytes += head.words * 4;
        }
        let source = self.source_to_send(run.template().source);
        run::put(out, run, in_front(source.as_ref()));
    }

    /// Returns the record of a sender, if the other end takes those.
    fn source_to_send(&self, source: Option<PacketSource>) -> Option<SourceBody> {
        source
            .filter(|_| self.features.sources())
            .map(SourceBody::new)
    }

    /// Takes a packet or a run that came, of a lane that `has_place` says yes to.
    pub fn poll_crossing(&mut self, has_place: impl Fn(Vl) -> bool) -> Option<Crossing> {
        if has_place(Vl::MANAGEMENT)
            && let Some(frame) = self.arrived_management.pop_front()
        {
            return Some(frame.into());
        }
        let mut lanes = self.arrived.iter_mut();
        let Waiting { crossing, bytes } = lanes.find_map(|arrived| {
            let lane = arrived.front()?.crossing.lane();
            has_place(lane).then(|| arrived.pop_front()).flatten()
        })?;
        self.room.take(crossing.lane(), bytes);
        Some(crossing)
    }

    fn handle_record(
        &mut self,
        now: Instant,
        header: Header,
        body: &[u8],
    ) -> Result<(), CloseReason> {
        let kind = header.kind();
        if self.phase == Phase::Greeting {
            return match kind {
                Some(Kind::Hello) => self.handle_hello(body),
                Some(Kind::Close) => {
                    self.handle_close(body);
                    Ok(())
                }
                _ => Err(CloseReason::Version),
            };
        }
        match kind.ok_or(CloseReason::Garbage)? {
            Kind::Hello => return Err(CloseReason::Garbage),
            Kind::Packet => return self.handle_packet(header, body),
            Kind::Run => return self.handle_run(header, body.to_vec(), 0),
            Kind::Credit => self.allowance.raise(&read::<CreditBody>(body)?)?,
            Kind::Port => {
                let enabled = read::<PortBody>(body)?.enabled != 0;
                self.tell_port(enabled);
            }
            Kind::Ping => put(
                &mut self.control,
                Kind::Pong,
                read::<PingBody>(body)?.as_bytes(),
            ),
            Kind::Pong => {
                let sent = Duration::from_nanos(read::<PingBody>(body)?.time.get());
                let now = now.saturating_duration_since(self.began);
                self.statistics.round_trip =
                    Some(now.checked_sub(sent).ok_or(CloseReason::Garbage)?);
            }
            Kind::Close => self.handle_close(body),
        }
        // Pongs wait in memory while the stream takes nothing.
        match self.control.len() <= MAX_BODY {
            true => Ok(()),
            false => Err(CloseReason::Garbage),
        }
    }

    fn tell_port(&mut self, enabled: bool) {
        let event = SessionEvent::PeerPort { enabled };
        match self.events.back_mut() {
            Some(last @ SessionEvent::PeerPort { .. }) => *last = event,
            _ => self.events.push_back(event),
        }
    }

    fn handle_hello(&mut self, body: &[u8]) -> Result<(), CloseReason> {
        let (hello, features) = HelloBody::read(body)?;
        if hello.site == self.config.hello.site {
            return Err(CloseReason::SameSite);
        }
        self.phase = Phase::Open;
        self.features = features;
        self.events.push_back(SessionEvent::Opened(hello));
        Ok(())
    }

    /// Ends the session with the reason of the other end.
    fn handle_close(&mut self, body: &[u8]) {
        let reason = read::<CloseBody>(body).map(|body| body.reason());
        self.end(reason.unwrap_or(CloseReason::Other));
    }

    fn handle_packet(&mut self, header: Header, body: &[u8]) -> Result<(), CloseReason> {
        let lane = header.lane().ok_or(CloseReason::Garbage)?;
        let (source, body) = SourceBody::take(header.flags, body)?;
        let frame = if header.flags & flag::BAD_VCRC != 0 {
            Frame::new(body)
        } else {
            let mut bytes = Vec::with_capacity(body.len() + VCRC_SIZE);
            bytes.extend_from_slice(body);
            bytes.extend_from_slice(&crc::vcrc(body));
            Frame::new(&bytes)
        };
        // A packet whose own header says otherwise would leave on a lane that its credits are not for.
        if frame.lrh().is_none() || frame.lane() != lane {
            return Err(CloseReason::Garbage);
        }
        let frame = match source {
            Some(source) => frame.sent_by(source),
            None => frame,
        };
        let bytes = carried(&frame).len();
        self.statistics.received_packets += 1;
        self.statistics.received_bytes += bytes as u64;
        match self.arrived.get_mut(usize::from(lane.get())) {
            Some(arrived) => {
                self.room.receive(lane, bytes)?;
                let crossing = frame.into();
                arrived.push_back(Waiting { crossing, bytes });
            }
            None if self.arrived_management.len() < MANAGEMENT_DEPTH => {
                self.arrived_management.push_back(frame);
            }
            None => self.statistics.discarded += 1,
        }
        Ok(())
    }

    /// Takes a run whose body is in `bytes` from `at` on.
    fn handle_run(&mut self, header: Header, bytes: Vec<u8>, at: usize) -> Result<(), CloseReason> {
        let lane = header.lane().ok_or(CloseReason::Garbage)?;
        let body = bytes.get(at..).unwrap_or_default();
        let (source, body) = SourceBody::take(header.flags, body)?;
        let length = body.len();
        let at = bytes.len() - length;
        let run = run::read(header.flags & !flag::SOURCE, bytes, at);
        let run = run.filter(|_| self.carries_runs());
        let run = run.map(|run| match source {
            Some(source) => run.sent_by(source),
            None => run,
        });
        let arrived = self.arrived.get_mut(usize::from(lane.get()));
        let head = run.as_ref().and_then(PacketRun::head);
        let (Some(arrived), Some(run), Some(head)) = (arrived, run, head) else {
            return Err(CloseReason::Garbage);
        };
        if head.vl != lane {
            return Err(CloseReason::Garbage);
        }
        self.room.receive(lane, length)?;
        self.statistics.received_packets += u64::from(head.packets);
        self.statistics.received_bytes += head.words * 4;
        arrived.push_back(Waiting {
            crossing: Crossing::Run(run),
            bytes: length,
        });
        Ok(())
    }
}

/// Returns a packet without its VCRC, which is of a link.
fn carried(frame: &Frame) -> &[u8] {
    let bytes = frame.bytes();
    bytes
        .split_last_chunk::<VCRC_SIZE>()
        .map_or(bytes, |(carried, _)| carried)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
