//! Two guests that connect and disconnect.

use std::collections::BTreeMap;
use std::time::Duration;

use ib_endpoint::MadAddress;
use ib_endpoint::cm::{Cm, CmConfig, CmEventKind, ConnId, Rendezvous};
use ib_vtime::Instant;
use ib_wire::cm::{CmPath, CmRep, CmReq};
use ib_wire::{PKey, Qpn, ServiceId};

use crate::conversations::{Arrival, Channel, NodeAddress};

const SERVICE: ServiceId = ServiceId::new(0x7000);

/// Two guests, of which the first connects to the second.
pub(super) struct Pair {
    nodes: [usize; 2],
    places: [NodeAddress; 2],
    cms: [Cm; 2],
    /// When the message was sent that a connection waits for the answer to.
    asked: BTreeMap<ConnId, Instant>,
    latencies: Vec<Duration>,
    begun: u32,
    ended: u32,
}

impl Pair {
    pub(super) fn new(nodes: [usize; 2], places: [NodeAddress; 2]) -> Self {
        let mut cms = places.map(|place| Cm::new(CmConfig::new(place.ca_guid, 1)));
        cms[1]
            .listen(SERVICE, u64::MAX)
            .expect("the first listener");
        Self {
            nodes,
            places,
            cms,
            asked: BTreeMap::new(),
            latencies: Vec::new(),
            begun: 0,
            ended: 0,
        }
    }

    /// Begins a connection.
    pub(super) fn connect(&mut self, now: Instant, channel: &mut impl Channel) {
        let [own, peer] = self.places;
        let mut primary = CmPath {
            local_lid: own.lid,
            remote_lid: peer.lid,
            local_gid: own.gid,
            remote_gid: peer.gid,
            ..CmPath::default()
        };
        primary.set_subnet_local(true);
        primary.set_local_ack_timeout(14);
        self.begun += 1;
        let mut req = CmReq {
            service_id: SERVICE,
            local_qpn: Qpn::from_low_bits(self.begun + 16),
            pkey: PKey::DEFAULT_FULL,
            primary,
            ..CmReq::default()
        };
        req.set_remote_cm_response_timeout(16);
        req.set_local_cm_response_timeout(16);
        req.set_max_cm_retries(7);
        let to = MadAddress::gsi(peer.lid);
        let made = self.cms[0].send_req(now, &to, &req, Rendezvous::ClientServer);
        if let Ok(conn) = made {
            self.asked.insert(conn, now);
        }
        self.pump(now, channel);
    }

    /// Takes a MAD, if it came to one of the two.
    pub(super) fn take(&mut self, now: Instant, channel: &mut impl Channel, arrival: &Arrival) {
        if let Some(side) = self.nodes.iter().position(|node| *node == arrival.node) {
            self.cms[side].handle_mad(now, &arrival.from, &arrival.mad);
            self.pump(now, channel);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, channel: &mut impl Channel) {
        for side in 0..2 {
            if self.cms[side].poll_timeout().is_some_and(|due| due <= now) {
                self.cms[side].handle_timeout(now);
            }
        }
        self.pump(now, channel);
    }

    fn pump(&mut self, now: Instant, channel: &mut impl Channel) {
        for side in 0..2 {
            while let Some(event) = self.cms[side].poll_event() {
                self.hear(now, side, event.conn, &event.kind);
            }
            while let Some(transmit) = self.cms[side].poll_transmit() {
                channel.send(now, self.nodes[side], &transmit);
            }
        }
    }

    /// Both sides go on at once. What a connection's state refuses ends as a connection that fails.
    fn hear(&mut self, now: Instant, side: usize, conn: ConnId, event: &CmEventKind) {
        let cm = &mut self.cms[side];
        let _ = match event {
            CmEventKind::ReqReceived { req, .. } => {
                let rep = CmRep {
                    local_qpn: req.local_qpn,
                    ..CmRep::default()
                };
                cm.send_rep(now, conn, &rep)
            }
            CmEventKind::RepReceived(_) => {
                let took = self.asked.insert(conn, now);
                self.latencies.extend(took.map(|asked| now - asked));
                let ready = cm.send_rtu(now, conn, &[]);
                ready.and_then(|()| cm.send_dreq(now, conn, &[]))
            }
            CmEventKind::DreqReceived(_) => cm.send_drep(now, conn, &[]),
            CmEventKind::DrepReceived(_) => {
                let took = self.asked.remove(&conn);
                self.latencies.extend(took.map(|asked| now - asked));
                self.ended += 1;
                Ok(())
            }
            _ => Ok(()),
        };
    }

    pub(super) fn latencies(&self) -> Vec<Duration> {
        self.latencies.clone()
    }

    /// Connections that were not made and ended.
    pub(super) const fn failed(&self) -> u32 {
        self.begun - self.ended
    }
}
