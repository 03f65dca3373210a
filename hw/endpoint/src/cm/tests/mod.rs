//! Two managers side by side: the tests carry each MAD by hand, or lose it.

mod connect;
mod disconnect;
mod duplicates;
mod limits;
mod migrate;
mod peer;
mod refuse;
mod sidr;
mod stale;
mod timeouts;

use alloc::vec::Vec;
use core::time::Duration;

use ib_vtime::Instant;
use ib_wire::cm::{CmPath, CmRep, CmReq, timeout_nanos};
use ib_wire::mad::{AttributeId, Mad, MadLayout};
use ib_wire::{Gid, Guid, Lid, PKey, Qpn, ServiceId, SubnetPrefix};

use super::{
    Cm, CmConfig, CmEvent, CmEventKind, CmSizes, CmVerdict, ConnId, Rendezvous, Role, State,
};
use crate::MadAddress;

const SERVICE: ServiceId = ServiceId::new(0x0100_0000_0000_1234);

/// Codes of the REQ that the tests send, and the tries.
const REMOTE_RESPONSE: u8 = 14;
const LOCAL_RESPONSE: u8 = 12;
const PATH: u8 = 10;
const RETRIES: u8 = 2;

fn time(code: u8) -> Duration {
    Duration::from_nanos(timeout_nanos(code))
}

/// How long the active side waits for one try.
fn active_wait() -> Duration {
    time(REMOTE_RESPONSE) + time(PATH)
}

/// How long the passive side waits for one try.
fn passive_wait() -> Duration {
    time(LOCAL_RESPONSE) + time(PATH)
}

/// How long the active side stays in TimeWait: the REPs of these tests have the shortest Target ACK Delay.
fn active_time_wait() -> Duration {
    time(PATH) + time(0)
}

/// A node: 0 is the active side unless a test says otherwise.
const A: usize = 0;
const B: usize = 1;

fn guid(node: usize) -> Guid {
    Guid::new(0x0002_c903_0000_0001 + u64::try_from(node).expect("small"))
}

fn lid(node: usize) -> Lid {
    Lid::new(u16::try_from(node + 1).expect("small"))
}

fn gid(node: usize) -> Gid {
    Gid::from_parts(SubnetPrefix::DEFAULT, guid(node))
}

fn qpn(node: usize) -> Qpn {
    Qpn::from_low_bits(0x100 + u32::try_from(node).expect("small"))
}

/// A REQ of one node to the other.
fn req_from(node: usize) -> CmReq {
    let mut primary = CmPath {
        local_lid: lid(node),
        remote_lid: lid(1 - node),
        local_gid: gid(node),
        remote_gid: gid(1 - node),
        ..CmPath::default()
    };
    primary.set_local_ack_timeout(PATH);
    let mut req = CmReq {
        service_id: SERVICE,
        local_qpn: qpn(node),
        pkey: PKey::DEFAULT_FULL,
        primary,
        ..CmReq::default()
    };
    req.set_remote_cm_response_timeout(REMOTE_RESPONSE);
    req.set_local_cm_response_timeout(LOCAL_RESPONSE);
    req.set_max_cm_retries(RETRIES);
    req
}

struct Pair {
    cms: [Cm; 2],
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        Self::with(|config| config)
    }

    fn with(adjust: impl Fn(CmConfig) -> CmConfig) -> Self {
        Self {
            cms: [A, B].map(|node| {
                let seed = u64::try_from(node).expect("small");
                Cm::new(adjust(CmConfig::new(guid(node), seed)))
            }),
            now: Instant::from_millis(1),
        }
    }

    /// A pair whose second node listens.
    fn listening() -> (Self, ConnId) {
        let mut pair = Self::new();
        let listener = pair.cms[B].listen(SERVICE, u64::MAX).expect("free");
        (pair, listener)
    }

    fn send_req(&mut self) -> ConnId {
        self.send_req_from(A, Rendezvous::ClientServer)
    }

    fn send_req_from(&mut self, node: usize, rendezvous: Rendezvous) -> ConnId {
        let to = MadAddress::gsi(lid(1 - node));
        self.cms[node]
            .send_req(self.now, &to, &req_from(node), rendezvous)
            .expect("room")
    }

    fn send_rep(&mut self, node: usize, conn: ConnId) {
        let rep = CmRep {
            local_qpn: qpn(node),
            ..CmRep::default()
        };
        self.cms[node]
            .send_rep(self.now, conn, &rep)
            .expect("a REQ to answer");
    }

    /// The MADs that a node sends; whoever ignores them has lost them.
    fn sent(&mut self, node: usize) -> Vec<Mad> {
        core::iter::from_fn(|| self.cms[node].poll_transmit())
            .map(|transmit| {
                assert_eq!(transmit.to.lid, lid(1 - node), "to the other node");
                transmit.mad
            })
            .collect()
    }

    /// The one MAD that a node sends.
    fn sent_one(&mut self, node: usize, attribute: AttributeId) -> Mad {
        let sent = self.sent(node);
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0].header.attribute_id, attribute);
        sent[0]
    }

    /// Gives a MAD of the other node to this one.
    fn give(&mut self, node: usize, mad: &Mad) -> CmVerdict {
        let from = MadAddress::gsi(lid(1 - node));
        self.cms[node].handle_mad(self.now, &from, mad)
    }

    fn events(&mut self, node: usize) -> Vec<CmEvent> {
        core::iter::from_fn(|| self.cms[node].poll_event()).collect()
    }

    fn event(&mut self, node: usize) -> CmEvent {
        let mut events = self.events(node);
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// Carries everything until both nodes are silent.
    fn carry(&mut self) {
        loop {
            let sent = [self.sent(A), self.sent(B)];
            if sent.iter().all(Vec::is_empty) {
                return;
            }
            for node in [A, B] {
                for mad in &sent[1 - node] {
                    self.give(node, mad);
                }
            }
        }
    }

    /// Lets time pass on both nodes, stopping at every timer.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self
            .cms
            .iter()
            .filter_map(Cm::poll_timeout)
            .min()
            .filter(|&next| next <= end)
        {
            self.now = self.now.max(next);
            for cm in &mut self.cms {
                cm.handle_timeout(self.now);
            }
        }
        self.now = end;
    }

    fn state(&self, node: usize, conn: ConnId) -> Option<State> {
        self.cms[node].info(conn).map(|info| info.state)
    }

    #[track_caller]
    fn assert_state(&self, node: usize, conn: ConnId, state: State) {
        assert_eq!(self.state(node, conn), Some(state));
    }

    /// A REQ and its event at the listener: the connections of both sides.
    fn requested(&mut self) -> (ConnId, ConnId) {
        let a = self.send_req();
        self.carry();
        let b = self.event(B).conn;
        self.assert_state(A, a, State::ReqSent);
        self.assert_state(B, b, State::ReqRcvd);
        (a, b)
    }

    /// A REP on top of that.
    fn replied(&mut self) -> (ConnId, ConnId) {
        let (a, b) = self.requested();
        self.send_rep(B, b);
        self.carry();
        assert!(matches!(self.event(A).kind, CmEventKind::RepReceived(_)));
        self.assert_state(A, a, State::RepRcvd);
        self.assert_state(B, b, State::RepSent);
        (a, b)
    }

    /// An RTU on top of that.
    fn established(&mut self) -> (ConnId, ConnId) {
        let (a, b) = self.replied();
        self.cms[A].send_rtu(self.now, a, b"go").expect("ready");
        self.carry();
        assert!(matches!(self.event(B).kind, CmEventKind::RtuReceived(_)));
        self.assert_state(A, a, State::Established);
        self.assert_state(B, b, State::Established);
        (a, b)
    }

    /// Whatever is in TimeWait ends there; then nothing but listeners is left.
    fn assert_drained(&mut self) {
        self.pass(Duration::from_secs(3600));
        for node in [A, B] {
            self.sent(node);
            self.events(node);
            let sizes = CmSizes {
                listeners: 0,
                ..self.cms[node].table_sizes()
            };
            assert_eq!(sizes, CmSizes::default(), "node {node}");
        }
    }
}

/// The message's own layout.
fn view<T: MadLayout>(mad: &Mad) -> &T {
    mad.view()
}
