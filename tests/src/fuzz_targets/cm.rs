//! A sequence of operations on two connection managers that talk over a hostile wire.

use ib_endpoint::MadAddress;
use ib_endpoint::cm::{Cm, CmConfig, CmEventKind, CmSizes, ConnId, Rendezvous};
use ib_vtime::{Duration, Instant};
use ib_wire::cm::{CmApr, CmLap, CmRej, CmRep, CmReq, CmSidrRep, CmSidrReq, RejReason};
use ib_wire::mad::{AttributeId, BASE_VERSION, Mad, Method, MgmtClass};
use ib_wire::{CommId, Guid, Lid, Qpn, ServiceId};

use super::hostile::{Input, Wire};

/// The longest that a connection manager waits here, so that winding down takes few steps.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// One end: a connection manager and what its user knows.
struct End {
    lid: Lid,
    cm: Cm,
    listeners: Vec<ConnId>,
    conns: Vec<ConnId>,
    destroyed: Vec<ConnId>,
}

impl End {
    fn new(lid: u16) -> Self {
        let config = CmConfig {
            max_connections: 32,
            max_pending: 8,
            max_transmits: 64,
            max_wait: MAX_WAIT,
            ..CmConfig::new(Guid::new(lid.into()), u64::from(lid))
        };
        Self {
            lid: Lid::new(lid),
            cm: Cm::new(config),
            listeners: Vec::new(),
            conns: Vec::new(),
            destroyed: Vec::new(),
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.cm.poll_event() {
            assert!(
                !self.destroyed.contains(&event.conn),
                "an event of a destroyed connection"
            );
            match event.kind {
                CmEventKind::ReqReceived { .. } | CmEventKind::SidrReqReceived { .. } => {
                    assert!(!self.conns.contains(&event.conn), "a connection comes once");
                    self.conns.push(event.conn);
                }
                _ => {}
            }
        }
        let cm = &self.cm;
        self.conns.retain(|conn| cm.info(*conn).is_some());
    }

    fn check(&self) {
        let sizes = self.cm.table_sizes();
        assert!(sizes.connections <= 32);
        assert!(sizes.transmits <= 64);
        assert!(sizes.timers <= sizes.connections, "one timer each");
        assert!(sizes.local_ids <= sizes.connections);
        assert!(sizes.remote_ids <= sizes.connections);
    }

    fn destroy(&mut self, now: Instant, conn: ConnId) {
        if self.cm.destroy(now, conn).is_ok() {
            self.destroyed.push(conn);
        }
    }
}

/// One of a few service ids, so that requests meet listeners.
fn service_id(input: &mut Input<'_>) -> ServiceId {
    ServiceId::new(u64::from(input.byte() % 4))
}

struct Scene {
    now: Instant,
    ends: [End; 2],
    wire: Wire,
}

impl Scene {
    fn transmit(&mut self) {
        for (side, end) in self.ends.iter_mut().enumerate() {
            while let Some(transmit) = end.cm.poll_transmit() {
                self.wire.push(side, transmit.mad);
            }
        }
    }

    fn deliver(&mut self, sender: usize, mad: &Mad) {
        let from = MadAddress::gsi(self.ends[sender].lid);
        let _ = self.ends[1 - sender].cm.handle_mad(self.now, &from, mad);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let operation = input.byte();
        let side = usize::from(operation >> 7);
        match operation & 7 {
            0 => self.open(side, input),
            1 | 2 => self.act(side, input),
            3 | 4 => {
                for mad in self.wire.pass(side, input) {
                    self.deliver(side, &mad);
                }
            }
            5 => {
                self.now += Duration::from_millis(1 << (input.byte() % 15));
                let now = self.now;
                self.ends
                    .iter_mut()
                    .for_each(|end| end.cm.handle_timeout(now));
            }
            6 => self.inject(side, input),
            _ => self.wire.lose(side, input),
        }
        self.transmit();
        for end in &mut self.ends {
            end.take_events();
            end.check();
        }
    }

    /// Starts something: a listener, a connection, a SIDR exchange.
    fn open(&mut self, side: usize, input: &mut Input<'_>) {
        let to = MadAddress::gsi(self.ends[1 - side].lid);
        let now = self.now;
        let end = &mut self.ends[side];
        let kind = input.byte();
        let service = service_id(input);
        match kind % 4 {
            0 => {
                let mask = [u64::MAX, !1, 0][input.index(3)];
                end.listeners.extend(end.cm.listen(service, mask));
            }
            3 => {
                let req = CmSidrReq {
                    service_id: service,
                    ..CmSidrReq::default()
                };
                let timeout = Duration::from_millis(u64::from(input.byte()));
                let made = end
                    .cm
                    .send_sidr_req(now, &to, &req, timeout, input.byte() % 4);
                end.conns.extend(made);
            }
            kind => {
                let mut req = CmReq {
                    service_id: service,
                    local_qpn: Qpn::from_low_bits(u32::from(input.byte() % 8)),
                    ..CmReq::default()
                };
                req.set_remote_cm_response_timeout(input.byte());
                req.set_local_cm_response_timeout(input.byte());
                req.set_max_cm_retries(input.byte());
                req.primary.set_local_ack_timeout(input.byte());
                let rendezvous = match kind {
                    1 => Rendezvous::ClientServer,
                    _ => Rendezvous::PeerToPeer,
                };
                end.conns
                    .extend(end.cm.send_req(now, &to, &req, rendezvous));
            }
        }
    }

    /// A user calls something on a connection, whether the state allows it or not.
    fn act(&mut self, side: usize, input: &mut Input<'_>) {
        let now = self.now;
        let to = MadAddress::gsi(self.ends[1 - side].lid);
        let end = &mut self.ends[side];
        let known = end.conns.iter().chain(&end.listeners);
        let at = input.index(end.conns.len() + end.listeners.len());
        let (operand, call) = (input.byte(), input.byte());
        let Some(conn) = known.copied().nth(at) else {
            return;
        };
        let before = end.cm.info(conn);
        let data = [operand; 8];
        let cm = &mut end.cm;
        let called = match call % 13 {
            0 => {
                let rep = CmRep {
                    local_qpn: Qpn::from_low_bits(u32::from(operand % 8)),
                    ..CmRep::default()
                };
                cm.send_rep(now, conn, &rep)
            }
            1 => cm.send_rtu(now, conn, &data),
            2 => cm.send_rej(now, conn, RejReason::new(operand.into()), &data, &data),
            3 => cm.send_mra(now, conn, operand, &data),
            4 => cm.send_dreq(now, conn, &data),
            5 => cm.send_drep(now, conn, &data),
            6 => {
                let mut lap = CmLap::default();
                lap.set_remote_cm_response_timeout(operand);
                cm.send_lap(now, conn, &lap)
            }
            7 => cm.send_apr(now, conn, &CmApr::default()),
            8 => cm.send_sidr_rep(now, conn, &CmSidrRep::default()),
            9 => cm.establish(now, conn),
            10 => cm.set_address(conn, &to),
            11 => {
                end.destroy(now, conn);
                end.listeners.retain(|listener| *listener != conn);
                return;
            }
            _ => cm.send_rtu(now, conn, &[0; 225]),
        };
        if called.is_err() {
            assert_eq!(end.cm.info(conn), before, "a refused call changes nothing");
        }
    }

    /// A stranger's message: any bytes, but of the CM, and with ids of the victim's if there are any.
    fn inject(&mut self, side: usize, input: &mut Input<'_>) {
        let mut mad = input.mad();
        let victim = &self.ends[1 - side];
        mad.header.base_version = BASE_VERSION;
        mad.header.mgmt_class = MgmtClass::COM_MGT;
        mad.header.class_version = MgmtClass::COM_MGT.supported_version();
        mad.header.method = Method::SEND;
        mad.header.attribute_id = AttributeId::new(0x10 + u16::from(input.byte() % 12));
        let at = input.index(victim.conns.len() + 1);
        if let Some(info) = victim.conns.get(at).and_then(|conn| victim.cm.info(*conn)) {
            // All messages of a connection start with both ids, as this one does.
            let rej = mad.view_mut::<CmRej>();
            rej.local_comm_id = info.remote_id.unwrap_or(CommId::NONE);
            rej.remote_comm_id = info.local_id;
        }
        self.deliver(side, &mad);
    }

    /// The users leave and the wire goes dead: nothing may be left.
    fn wind_down(&mut self) {
        for end in &mut self.ends {
            for conn in [end.conns.clone(), end.listeners.clone()].concat() {
                end.destroy(self.now, conn);
            }
        }
        for _ in 0..10_000 {
            self.transmit();
            self.wire.clear();
            let next = self
                .ends
                .iter()
                .filter_map(|end| end.cm.poll_timeout())
                .min();
            let Some(next) = next else { break };
            assert!(
                next <= self.now + MAX_WAIT * 256,
                "a wait that nothing explains"
            );
            self.now = self.now.max(next);
            let now = self.now;
            for end in &mut self.ends {
                end.cm.handle_timeout(now);
                end.take_events();
            }
        }
        for end in &self.ends {
            assert_eq!(end.cm.table_sizes(), CmSizes::default());
        }
    }
}

/// Two connection managers and their users, while the input decides what users call and what the
/// wire does. No input makes one panic, exceed its bounds, report a connection that its user
/// destroyed, or keep anything once the users are gone.
pub(super) fn cm(data: &[u8]) {
    play(data).wind_down();
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let mut scene = Scene {
        now: Instant::from_millis(1),
        ends: [End::new(1), End::new(2)],
        wire: Wire::default(),
    };
    while input.has_operation() {
        scene.step(&mut input);
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_opens_and_closes_a_connection() {
        let scene = play(include_bytes!("../../fuzz/corpus/cm/connect"));
        let [active, passive] = scene.ends.map(|end| end.cm.counters().accepted);
        assert_eq!(active, 2, "REP and DREP");
        assert_eq!(passive, 3, "REQ, RTU and DREQ");
    }
}
