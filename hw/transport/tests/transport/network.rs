//! Two ends and the packets between them.

use std::collections::VecDeque;

use ib_transport::{
    AckTimeout, PathMtu, ReliableConnection, RemoteRights, RequesterConfig, ResponderConfig,
    RetryCount, RnrRetryCount, RnrTimer, Transfer,
};
use ib_vtime::{Instant, SplitMix64};
use ib_wire::packet::{FlushPlacement, TransportService};
use ib_wire::{Mtu, Psn};

use crate::frames::{decode, encode};
use crate::host::{Buffer, Host, Receive, Region};

pub(crate) type Connection = ReliableConnection<Buffer, Region, Receive>;

/// Returns the path MTU of every connection here: 256 bytes.
pub(crate) fn pmtu() -> PathMtu {
    PathMtu::new(Mtu::MTU_256).expect("a legal code")
}

pub(crate) fn requester(psn: u32) -> RequesterConfig {
    RequesterConfig {
        pmtu: pmtu(),
        first_psn: Psn::from_low_bits(psn),
        ack_timeout: AckTimeout::from_low_bits(14),
        retries: RetryCount::from_low_bits(7),
        rnr_retries: RnrRetryCount::INFINITE,
        max_reads: 4,
        window: 128,
        ack_interval: 16,
        max_message: 1 << 30,
    }
}

pub(crate) fn responder(psn: u32) -> ResponderConfig {
    ResponderConfig {
        pmtu: pmtu(),
        first_psn: Psn::from_low_bits(psn),
        rights: RemoteRights {
            read: true,
            write: true,
            atomic: true,
            flush: FlushPlacement::GLOBAL,
        },
        max_reads: 4,
        min_rnr_timer: RnrTimer::from_low_bits(12),
        shared_receives: false,
    }
}

/// One end.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) host: Host,
    pub(crate) rc: Connection,
}

impl End {
    pub(crate) fn new(host: Host, requester: RequesterConfig, responder: ResponderConfig) -> Self {
        let mut rc = Connection::new(requester, responder);
        rc.start();
        Self { host, rc }
    }

    pub(crate) fn take(&mut self, now: Instant, transfer: &Transfer, payload: &[u8]) {
        self.host.arriving.clear();
        self.host.arriving.extend_from_slice(payload);
        self.rc.handle(now, transfer, &mut self.host);
    }

    pub(crate) fn poll(&mut self, now: Instant, budget: u32) -> Option<(Transfer, Vec<u8>)> {
        self.host.staged.clear();
        let transfer = self.rc.poll_transmit(now, budget, &mut self.host)?;
        let payload = std::mem::take(&mut self.host.staged);
        let len = transfer.payload_len() as usize;
        assert_eq!(payload.len(), len, "{transfer:?}");
        Some((transfer, payload))
    }
}

/// Parts of 1000 of the packets that something happens to. What is no frame is lost when it is corrupted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lose: u64,
    pub(crate) duplicate: u64,
    pub(crate) delay: u64,
    pub(crate) corrupt: u64,
}

/// A transfer on its way, with its payload.
#[derive(Clone, Debug)]
enum Carried {
    Whole(Transfer, Vec<u8>),
    Frame(Vec<u8>),
}

/// A connection and its network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) ends: [End; 2],
    pub(crate) now: Instant,
    pub(crate) faults: Faults,
    /// Largest run in packets.
    pub(crate) budget: u32,
    pub(crate) random: SplitMix64,
    /// Packets travel one by one, with checksums.
    pub(crate) framed: bool,
    /// Transfers under way, each with its destination.
    wire: VecDeque<(usize, Carried)>,
}

impl Network {
    pub(crate) fn new(ends: [End; 2], budget: u32, seed: u64) -> Self {
        Self {
            ends,
            now: Instant::ZERO,
            faults: Faults::default(),
            budget,
            random: SplitMix64::new(seed),
            framed: false,
            wire: VecDeque::new(),
        }
    }

    /// Puts packets on the wire, as frames one by one if the network has links.
    fn send(&mut self, to: usize, transfer: Transfer, payload: Vec<u8>) {
        if !self.framed {
            self.put(to, Carried::Whole(transfer, payload));
            return;
        }
        let mut rest = (transfer, payload);
        while let Some((front, back)) = rest.0.split(1, pmtu()) {
            let behind = rest.1.split_off(front.payload_len() as usize);
            self.put(
                to,
                Carried::Frame(encode(TransportService::Rc, &front, &rest.1)),
            );
            rest = (back, behind);
        }
        self.put(
            to,
            Carried::Frame(encode(TransportService::Rc, &rest.0, &rest.1)),
        );
    }

    fn put(&mut self, to: usize, mut carried: Carried) {
        let faults = self.faults;
        if self.random.chance(faults.lose, 1000) {
            return;
        }
        if self.random.chance(faults.duplicate, 1000) {
            self.wire.push_back((to, carried.clone()));
        }
        if self.random.chance(faults.corrupt, 1000) {
            let Carried::Frame(frame) = &mut carried else {
                return;
            };
            let at = self.random.below(frame.len() as u64);
            frame[usize::try_from(at).expect("small")] ^= 1 << self.random.below(8);
        }
        let mut at = self.wire.len();
        if self.random.chance(faults.delay, 1000) {
            at = usize::try_from(self.random.below(at as u64 + 1)).expect("small");
        }
        self.wire.insert(at, (to, carried));
    }

    /// Polls both ends until they have nothing to send.
    fn transmit(&mut self) {
        for from in 0..2 {
            let budget =
                1 + u32::try_from(self.random.below(u64::from(self.budget))).expect("small");
            while let Some((transfer, payload)) = self.ends[from].poll(self.now, budget) {
                self.send(1 - from, transfer, payload);
            }
        }
    }

    /// Delivers everything until nothing is under way.
    pub(crate) fn settle(&mut self) {
        self.transmit();
        let mut steps = 0;
        while let Some((to, carried)) = self.wire.pop_front() {
            let arrived = match carried {
                Carried::Whole(transfer, payload) => Some((transfer, payload)),
                // The checksums find whatever corrupts a frame.
                Carried::Frame(frame) => decode(&frame),
            };
            if let Some((transfer, payload)) = arrived {
                self.ends[to].take(self.now, &transfer, &payload);
            }
            self.transmit();
            steps += 1;
            assert!(steps < 1_000_000, "packets without end");
        }
    }

    /// Moves the clock to the next deadline. Returns `false` if no timer runs.
    pub(crate) fn elapse(&mut self) -> bool {
        let deadlines = self.ends.iter().filter_map(|end| end.rc.poll_timeout());
        let Some(next) = deadlines.min() else {
            return false;
        };
        self.now = self.now.max(next);
        for end in &mut self.ends {
            end.rc.handle_timeout(self.now, &mut end.host);
        }
        true
    }
}
