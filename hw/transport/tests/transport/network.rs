//! Two ends and the packets between them.

use std::collections::VecDeque;

use ib_transport::{
    AckTimeout, Outgoing, PathMtu, ReliableConnection, RemoteRights, RequesterConfig,
    ResponderConfig, RetryCount, RnrRetryCount, RnrTimer,
};
use ib_vtime::{Instant, SplitMix64};
use ib_wire::{Mtu, Psn};

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

    pub(crate) fn take(&mut self, now: Instant, outgoing: &Outgoing, payload: &[u8]) {
        self.host.arriving.clear();
        self.host.arriving.extend_from_slice(payload);
        match outgoing {
            Outgoing::Request(run) => self.rc.handle_request(run, &mut self.host),
            Outgoing::Response(response) => {
                self.rc.handle_response(now, response, &mut self.host);
            }
        }
    }

    pub(crate) fn poll(&mut self, now: Instant, budget: u32) -> Option<(Outgoing, Vec<u8>)> {
        self.host.staged.clear();
        let outgoing = self.rc.poll_transmit(now, budget, &mut self.host)?;
        let payload = std::mem::take(&mut self.host.staged);
        let len = match outgoing {
            Outgoing::Request(run) => run.len,
            Outgoing::Response(response) => response.payload_len(),
        };
        assert_eq!(payload.len(), len as usize, "{outgoing:?}");
        Some((outgoing, payload))
    }
}

/// Parts of 1000 of the runs that something happens to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lose: u64,
    pub(crate) duplicate: u64,
    pub(crate) delay: u64,
    pub(crate) corrupt: u64,
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
    /// Runs under way, with the end that they go to.
    wire: VecDeque<(usize, Outgoing, Vec<u8>)>,
}

impl Network {
    pub(crate) fn new(ends: [End; 2], budget: u32, seed: u64) -> Self {
        Self {
            ends,
            now: Instant::ZERO,
            faults: Faults::default(),
            budget,
            random: SplitMix64::new(seed),
            wire: VecDeque::new(),
        }
    }

    fn send(&mut self, to: usize, outgoing: Outgoing, payload: Vec<u8>) {
        let faults = self.faults;
        // The ICRC finds whatever corrupts a packet, and the adapter drops it.
        if self.random.chance(faults.lose + faults.corrupt, 1000) {
            return;
        }
        if self.random.chance(faults.duplicate, 1000) {
            self.wire.push_back((to, outgoing, payload.clone()));
        }
        if self.random.chance(faults.delay, 1000) {
            let at = self.random.below(self.wire.len() as u64 + 1);
            let at = usize::try_from(at).expect("small");
            self.wire.insert(at, (to, outgoing, payload));
        } else {
            self.wire.push_back((to, outgoing, payload));
        }
    }

    /// Polls both ends until they have nothing to send.
    fn transmit(&mut self) {
        for from in 0..2 {
            let budget =
                1 + u32::try_from(self.random.below(u64::from(self.budget))).expect("small");
            while let Some((outgoing, payload)) = self.ends[from].poll(self.now, budget) {
                self.send(1 - from, outgoing, payload);
            }
        }
    }

    /// Delivers everything until nothing is under way.
    pub(crate) fn settle(&mut self) {
        self.transmit();
        let mut steps = 0;
        while let Some((to, outgoing, payload)) = self.wire.pop_front() {
            self.ends[to].take(self.now, &outgoing, &payload);
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
