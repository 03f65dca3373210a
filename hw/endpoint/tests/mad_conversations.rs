//! SplitMix64 conversations of MAD agents over a network that loses, repeats and reorders: each ends in
//! its response, or in a failure that its parameters explain; nothing is left.
#![expect(
    clippy::cast_possible_truncation,
    reason = "random numbers are drawn below small bounds"
)]

use std::collections::BTreeMap;

use ib_endpoint::{
    AgentEvent, AgentId, Disposition, DropReason, MadAddress, MadAgent, MadAgentConfig, Message,
    MethodSet, Oui, Registration, RequestId, RetryPolicy, TransferError, segment_layout,
};
use ib_vtime::{Duration, Instant, SplitMix64};
use ib_wire::Lid;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::rmpp::{RmppStatus, VendorOuiMad};

const VENDOR_CLASS: MgmtClass = MgmtClass::new(0x33);
const OUI: Oui = Oui([0, 0x14, 5]);

/// How the network behaves.
#[derive(Clone, Copy, Debug)]
struct Faults {
    loss_percent: u64,
    repeat_percent: u64,
    max_delay_us: u64,
}

/// What was asked, and what must come back.
#[derive(Debug)]
struct Asked {
    started: Instant,
    policy: RetryPolicy,
    rmpp_request: bool,
    answer: Vec<u8>,
    answer_is_rmpp: bool,
}

struct Host {
    mads: MadAgent,
    sa: AgentId,
    vendor: AgentId,
    address: MadAddress,
    asked: BTreeMap<RequestId, Asked>,
}

#[derive(Debug, Default)]
struct Tally {
    responses: u64,
    timed_out: u64,
    ended_by_us: u64,
    ended_by_peer: u64,
    /// Responses that ended for want of acknowledgements; their requesters are told.
    responders_gave_up: u64,
}

struct World {
    now: Instant,
    random: SplitMix64,
    faults: Faults,
    hosts: Vec<Host>,
    in_flight: BTreeMap<(Instant, u64), (usize, usize, Mad)>,
    order: u64,
    tally: Tally,
}

fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl World {
    fn new(seed: u64, hosts: u16, faults: Faults) -> Self {
        let host = |n: u16| {
            let mut config = MadAgentConfig::gsi(seed ^ u64::from(n));
            // No transfer shall end because of all the others.
            config.rmpp.max_unsolicited = 4096;
            let mut mads = MadAgent::new(config);
            let methods = MethodSet::of(&[
                Method::GET,
                Method::SET,
                Method::GET_TABLE,
                Method::GET_MULTI,
            ]);
            let sa = Registration::new(MgmtClass::SUBN_ADM, methods);
            let vendor = Registration::new(VENDOR_CLASS, methods).with_oui(OUI);
            Host {
                sa: mads.register(sa).expect("first of its class"),
                vendor: mads.register(vendor).expect("first of its class"),
                mads,
                address: MadAddress::gsi(Lid::new(n + 1)),
                asked: BTreeMap::new(),
            }
        };
        Self {
            now: Instant::ZERO,
            random: SplitMix64::new(seed),
            faults,
            hosts: (0..hosts).map(host).collect(),
            in_flight: BTreeMap::new(),
            order: 0,
            tally: Tally::default(),
        }
    }

    /// Starts a conversation of a random kind. The request's data tells the server what to answer.
    fn ask(&mut self) {
        let hosts = self.hosts.len() as u64;
        let from = self.random.below(hosts) as usize;
        let to = (from + 1 + self.random.below(hosts - 1) as usize) % hosts as usize;
        let vendor = self.random.chance(20, 100);
        let (method, rmpp_request, answer_is_rmpp) = match self.random.below(100) {
            0..40 => (Method::GET, false, false),
            40..50 => (Method::SET, false, false),
            50..80 => (Method::GET_TABLE, false, true),
            80..95 => (Method::GET_MULTI, true, true),
            _ => (Method::GET_MULTI, true, false),
        };
        let seed = self.random.next();
        let length = self.length();
        let class = if vendor {
            VENDOR_CLASS
        } else {
            MgmtClass::SUBN_ADM
        };
        let layout = segment_layout(class).expect("both classes have RMPP");
        let mut mad = Mad::new(MadHeader::new(class, method, AttributeId::new(0x35)));
        if vendor {
            mad.view_mut::<VendorOuiMad>().oui = OUI.0;
        }
        let mut order = [0_u8; 17];
        order[0] = u8::from(answer_is_rmpp);
        order[1..9].copy_from_slice(&seed.to_le_bytes());
        order[9..17].copy_from_slice(&(length as u64).to_le_bytes());
        let message = if rmpp_request {
            let mut data = order.to_vec();
            data.extend(payload(!seed, self.length()));
            Message::rmpp(mad, data).expect("both classes have RMPP")
        } else {
            let start = 12 + layout.class_header;
            mad.data[start..start + 17].copy_from_slice(&order);
            Message::single(mad)
        };
        let answer = payload(seed, if answer_is_rmpp { length } else { layout.data });
        let timeout = Duration::from_millis(100 + self.random.below(900));
        let policy = RetryPolicy::new(timeout, self.random.below(6) as u8);
        let address = self.hosts[to].address;
        let host = &mut self.hosts[from];
        let agent = if vendor { host.vendor } else { host.sa };
        let id = host
            .mads
            .send_request(self.now, agent, address, message, policy)
            .expect("there is room");
        let asked = Asked {
            started: self.now,
            policy,
            rmpp_request,
            answer,
            answer_is_rmpp,
        };
        assert!(host.asked.insert(id, asked).is_none());
        self.pump();
    }

    /// Mostly short, sometimes 40 KiB.
    fn length(&mut self) -> usize {
        let bound = match self.random.below(100) {
            0..80 => 800,
            80..97 => 8_000,
            _ => 40 * 1024,
        };
        self.random.below(bound + 1) as usize
    }

    /// Takes everything that hosts have to send or tell.
    fn pump(&mut self) {
        loop {
            let mut moved = false;
            for n in 0..self.hosts.len() {
                while let Some(event) = self.hosts[n].mads.poll_event() {
                    self.take_event(n, event);
                    moved = true;
                }
                while let Some(transmit) = self.hosts[n].mads.poll_transmit(self.now) {
                    let to = usize::from(transmit.to.lid.get()) - 1;
                    self.carry(n, to, transmit.mad);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn carry(&mut self, from: usize, to: usize, mad: Mad) {
        let copies = if self.random.chance(self.faults.loss_percent, 100) {
            0
        } else {
            1 + u64::from(self.random.chance(self.faults.repeat_percent, 100))
        };
        for _ in 0..copies {
            let delay = 1 + self.random.below(self.faults.max_delay_us);
            let arrival = self.now + Duration::from_micros(delay);
            self.order += 1;
            self.in_flight
                .insert((arrival, self.order), (from, to, mad));
        }
    }

    fn take_event(&mut self, n: usize, event: AgentEvent) {
        match event {
            AgentEvent::Request {
                agent,
                from,
                message,
            } => self.serve(n, agent, from, &message),
            AgentEvent::Response {
                request,
                from,
                message,
                ..
            } => {
                let asked = self.hosts[n].asked.remove(&request).expect("asked once");
                assert_eq!(message.is_rmpp(), asked.answer_is_rmpp);
                assert_eq!(message.data(), asked.answer);
                assert_ne!(from.lid, self.hosts[n].address.lid);
                self.tally.responses += 1;
            }
            AgentEvent::RequestFailed {
                request, reason, ..
            } => {
                let asked = self.hosts[n].asked.remove(&request).expect("asked once");
                self.explain(&asked, reason);
            }
            AgentEvent::TransferEnded { result, .. } => {
                let gave_up = TransferError::EndedByUs(RmppStatus::TOO_MANY_RETRIES);
                self.tally.responders_gave_up += u64::from(result == Err(gave_up));
            }
        }
    }

    /// Answers as the request's first 17 bytes of data say.
    fn serve(&mut self, n: usize, agent: AgentId, from: MadAddress, request: &Message) {
        let data = request.data();
        let number = |at: usize| {
            let bytes = data[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let (seed, length) = (number(1), number(9) as usize);
        if request.is_rmpp() {
            assert_eq!(data[17..], payload(!seed, data.len() - 17));
        }
        let mut head = *request.mad();
        head.header.method = request.header().method.response();
        let answer = if data[0] == 1 {
            Message::rmpp(head, payload(seed, length)).expect("both classes have RMPP")
        } else {
            let layout = segment_layout(head.header.mgmt_class).expect("has RMPP");
            // A single MAD carries no RMPP header.
            head.data[..12].fill(0);
            let start = 12 + layout.class_header;
            head.data[start..].copy_from_slice(&payload(seed, layout.data));
            Message::single(head)
        };
        self.hosts[n]
            .mads
            .respond(self.now, agent, from, answer)
            .expect("there is room");
    }

    /// A failure must follow from the parameters of the request.
    fn explain(&mut self, asked: &Asked, reason: TransferError) {
        let elapsed = self.now - asked.started;
        let policy = asked.policy;
        let tries = u32::from(policy.retries) + 1;
        match reason {
            TransferError::TimedOut { transmissions } => {
                let patience = policy.timeout * tries;
                if asked.rmpp_request {
                    // Repeated ACKs call for more turn-arounds than the timer does.
                    assert!(transmissions >= tries);
                    assert!(elapsed >= patience);
                } else {
                    assert_eq!(transmissions, tries);
                    assert_eq!(elapsed, patience);
                }
                self.tally.timed_out += 1;
            }
            TransferError::EndedByUs(RmppStatus::TOO_MANY_RETRIES) => {
                assert!(asked.rmpp_request);
                assert!(elapsed >= policy.timeout * tries);
                self.tally.ended_by_us += 1;
            }
            TransferError::EndedByUs(RmppStatus::TOTAL_TIME_TOO_LONG) => {
                assert!(asked.answer_is_rmpp);
                assert!(elapsed >= Duration::from_secs(40));
                self.tally.ended_by_us += 1;
            }
            TransferError::EndedByPeer(RmppStatus::TOO_MANY_RETRIES) => {
                assert!(self.tally.responders_gave_up > self.tally.ended_by_peer);
                self.tally.ended_by_peer += 1;
            }
            TransferError::EndedByPeer(status) => panic!("nothing explains {status}"),
            TransferError::EndedByUs(status) => panic!("nothing explains {status}"),
        }
    }

    /// Goes on to the next arrival or timer. `false` if there is none.
    fn step(&mut self) -> bool {
        let arrival = self.in_flight.first_key_value().map(|(key, _)| key.0);
        let timer = self
            .hosts
            .iter()
            .filter_map(|h| h.mads.poll_timeout())
            .min();
        let Some(next) = arrival.into_iter().chain(timer).min() else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (from, to, mad) = entry.remove();
            let address = self.hosts[from].address;
            self.hosts[to].mads.handle_mad(self.now, &address, &mad);
        }
        for host in &mut self.hosts {
            host.mads.handle_timeout(self.now);
        }
        self.pump();
        true
    }

    fn step_until(&mut self, end: Instant) {
        loop {
            let arrival = self.in_flight.first_key_value().map(|(key, _)| key.0);
            let timers = self.hosts.iter().filter_map(|h| h.mads.poll_timeout());
            match timers.chain(arrival).min() {
                Some(next) if next <= end => self.step(),
                _ => break,
            };
        }
        self.now = end;
    }

    /// Runs so many conversations, started a few milliseconds apart, to their ends.
    fn converse(mut self, conversations: u64) -> Tally {
        for _ in 0..conversations {
            self.ask();
            let gap = Duration::from_micros(self.random.below(4_000));
            self.step_until(self.now + gap);
        }
        while self.step() {}
        for host in &self.hosts {
            assert!(host.asked.is_empty(), "{} without an end", host.asked.len());
            let sizes = host.mads.sizes();
            assert!(sizes.is_empty(), "{sizes:?}");
        }
        let ends = self.tally.responses
            + self.tally.timed_out
            + self.tally.ended_by_us
            + self.tally.ended_by_peer;
        assert_eq!(ends, conversations);
        self.tally
    }
}

#[test]
fn on_a_network_without_faults_every_conversation_is_answered() {
    let faults = Faults {
        loss_percent: 0,
        repeat_percent: 0,
        max_delay_us: 1,
    };
    let tally = World::new(1, 4, faults).converse(20_000);
    assert_eq!(tally.responses, 20_000);
}

#[test]
fn with_reordering_and_repetition_but_no_loss_every_conversation_is_answered() {
    let faults = Faults {
        loss_percent: 0,
        repeat_percent: 20,
        max_delay_us: 40_000,
    };
    let tally = World::new(2, 4, faults).converse(20_000);
    assert_eq!(tally.responses, 20_000);
}

#[test]
fn with_some_loss_conversations_end_in_answers_or_explained_failures() {
    let faults = Faults {
        loss_percent: 5,
        repeat_percent: 5,
        max_delay_us: 20_000,
    };
    let tally = World::new(3, 4, faults).converse(40_000);
    assert!(tally.responses > 38_000, "{tally:?}");
    assert!(tally.timed_out > 0, "{tally:?}");
}

#[test]
fn with_heavy_loss_conversations_end_in_answers_or_explained_failures() {
    let faults = Faults {
        loss_percent: 40,
        repeat_percent: 30,
        max_delay_us: 300_000,
    };
    let tally = World::new(4, 4, faults).converse(20_000);
    assert!(tally.responses > 8_000, "{tally:?}");
    assert!(tally.timed_out > 0, "{tally:?}");
    assert!(
        tally.ended_by_us > 0 && tally.ended_by_peer > 0,
        "{tally:?}"
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let faults = Faults {
        loss_percent: 10,
        repeat_percent: 10,
        max_delay_us: 50_000,
    };
    let run = |seed: u64| format!("{:?}", World::new(seed, 3, faults).converse(500));
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}

/// A host under fire: everything that a forger without the transaction ids can send.
#[test]
fn forged_mads_of_every_shape_change_nothing_and_fill_no_memory() {
    let faults = Faults {
        loss_percent: 0,
        repeat_percent: 0,
        max_delay_us: 1,
    };
    let mut world = World::new(5, 2, faults);
    let mut random = SplitMix64::new(99);
    for _ in 0..50 {
        world.ask();
    }
    while world.step() {}
    let host = &mut world.hosts[0];
    let before = host.mads.counters().responses;
    let mut now = world.now;
    for n in 0..100_000_u64 {
        let mut mad = Mad::default();
        for chunk in mad.data.chunks_mut(8) {
            let bytes = random.next().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        let class = [MgmtClass::SUBN_ADM, VENDOR_CLASS, MgmtClass::PERF];
        let method = [0x01, 0x02, 0x12, 0x14, 0x81, 0x92, 0x94, 0x06, 0x55, 0xd5];
        let method = Method::new(method[random.below(10) as usize]);
        mad.header = MadHeader::new(
            class[random.below(3) as usize],
            method,
            AttributeId::new(0x35),
        );
        mad.header.tid = (random.below(64) << 32 | random.below(64)).into();
        if random.chance(20, 100) {
            mad.header.class_version = 9;
        }
        // Plausible RMPP headers half of the time.
        if random.chance(50, 100) {
            mad.data[0] = 1;
            mad.data[1] = (random.below(6)) as u8;
            mad.data[2] = (random.below(8)) as u8 | 1;
            mad.data[3] = if random.chance(80, 100) { 0 } else { 126 };
            mad.data[4..8].copy_from_slice(&(random.below(70) as u32).to_be_bytes());
            mad.data[8..12].copy_from_slice(&(random.below(100_000) as u32).to_be_bytes());
        }
        if random.chance(50, 100) {
            mad.view_mut::<VendorOuiMad>().oui = OUI.0;
        }
        let from = MadAddress::gsi(Lid::new(100 + random.below(50) as u16));
        host.mads.handle_mad(now, &from, &mad);
        while host.mads.poll_event().is_some() {}
        while host.mads.poll_transmit(now).is_some() {}
        let sizes = host.mads.sizes();
        let config = host.mads.config().rmpp;
        assert!(sizes.buffered <= config.max_buffered);
        assert!(sizes.transfers_in <= config.max_unsolicited);
        assert!(sizes.retained <= config.max_retained);
        now += Duration::from_micros(n % 500);
        host.mads.handle_timeout(now);
    }
    assert_eq!(host.mads.counters().responses, before);
    let dropped = |reason| host.mads.counters().dropped(reason);
    for reason in [
        DropReason::UnmatchedResponse,
        DropReason::UnknownTransfer,
        DropReason::ProtocolViolation,
        DropReason::UnknownMethod,
    ] {
        assert!(
            dropped(reason) > 0 || reason == DropReason::UnknownMethod,
            "{reason:?}"
        );
    }
    while let Some(next) = host.mads.poll_timeout() {
        host.mads.handle_timeout(next);
        while host.mads.poll_transmit(next).is_some() {}
        while host.mads.poll_event().is_some() {}
    }
    assert!(host.mads.sizes().is_empty());
}

#[test]
fn a_forged_answer_with_the_right_id_from_the_wrong_host_is_dropped() {
    let faults = Faults {
        loss_percent: 0,
        repeat_percent: 0,
        max_delay_us: 1_000,
    };
    let mut world = World::new(6, 2, faults);
    let mut forged = 0;
    for _ in 0..500 {
        world.ask();
        let (_, (from, _, mad)) = world.in_flight.last_key_value().expect("just asked");
        let (from, mut mad) = (*from, *mad);
        mad.header.method = mad.header.method.response();
        let stranger = MadAddress::gsi(Lid::new(77));
        let disposition = world.hosts[from]
            .mads
            .handle_mad(world.now, &stranger, &mad);
        assert!(matches!(
            disposition,
            Disposition::Dropped(DropReason::ForeignResponse | DropReason::UnknownTransfer)
        ));
        forged += 1;
        while world.step() {}
    }
    assert_eq!(world.tally.responses, forged);
}
