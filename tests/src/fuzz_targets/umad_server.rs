//! Hostile clients of the umad server, on an adapter with one port, and a hostile subnet behind it.

use hca_api::SpecialQp;
use ib_endpoint::{
    AgentEvent, AgentId, MadAddress, MadAgent, MadAgentConfig, RmppConfig, Transmit,
};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{NodeType, PortInfo};
use ib_wire::{Gid, Guid, Lid, PKey, PortNum, QKey, Tid};
use linux_abi::sysfs::Device;
use umad_link::sysfs::{Ca, CaPort};
use umad_link::{
    AdapterId, Adapters, Call, CallReply, Delivery, FileLimits, Frame, FrameKind, Hello,
    HelloReply, MAX_DATAGRAM, PortId, Purpose, RegisterRequest, RegisterRequest2, ServerLimits,
    SessionId, UmadHeader, UmadServer, UserId, Verbs, VerbsId, Verdict, frames, ioctl,
};
use zerocopy::IntoBytes;

use super::hostile::{Input, pass_time, remember};

const LIMITS: ServerLimits = ServerLimits {
    sessions: 4,
    announced: 2,
    user_bytes: 60_000,
    bytes: 100_000,
    file: FileLimits {
        outstanding: 8,
        waiting_bytes: 20_000,
        unread: 16,
        unread_bytes: 200_000,
    },
};

const CLASSES: [MgmtClass; 5] = [
    MgmtClass::SUBN_ADM,
    MgmtClass::SUBN_DIRECTED_ROUTE,
    MgmtClass::PERF,
    MgmtClass::new(0x32),
    MgmtClass::new(0),
];

const METHODS: [Method; 5] = [
    Method::GET,
    Method::GET_TABLE,
    Method::GET_MULTI,
    Method::GET_TABLE_RESP,
    Method::TRAP_REPRESS,
];

/// The vendor of the fourth class.
const OUI: [u8; 3] = [0, 0x14, 5];

/// An adapter with one port.
struct OnePort {
    gsi: MadAgent,
    smi: MadAgent,
    is_sm: bool,
}

impl OnePort {
    fn new() -> Self {
        let config = |config: MadAgentConfig| MadAgentConfig {
            max_outstanding: 16,
            max_pending_requests: 16,
            max_pending_control: 16,
            rmpp: RmppConfig {
                max_message: 100_000,
                max_buffered: 200_000,
                max_unsolicited: 4,
                max_retained: 8,
                ..RmppConfig::default()
            },
            ..config
        };
        Self {
            gsi: MadAgent::new(config(MadAgentConfig::gsi(1))),
            smi: MadAgent::new(config(MadAgentConfig::smi(1))),
            is_sm: false,
        }
    }

    fn on(&mut self, qp: SpecialQp) -> &mut MadAgent {
        match qp {
            SpecialQp::Gsi => &mut self.gsi,
            SpecialQp::Smi => &mut self.smi,
        }
    }
}

impl Adapters for OnePort {
    fn find(&mut self, name: &str) -> Option<AdapterId> {
        matches!(name, "" | "H-1").then_some(AdapterId(0))
    }

    fn view(&mut self, _: AdapterId) -> Option<Ca> {
        Some(Ca {
            node_type: NodeType::CA,
            node_guid: Guid::new(1),
            system_image_guid: Guid::new(1),
            description: "H-1".to_owned(),
            firmware: String::new(),
            revision: 0,
            device_id: 0,
            ports: vec![CaPort {
                number: PortNum(1),
                info: PortInfo::default(),
                gids: vec![Gid::NONE],
                pkeys: vec![PKey::DEFAULT_FULL],
                counters: Vec::new(),
            }],
        })
    }

    fn verbs(&mut self, _: &str) -> Option<Verbs> {
        None
    }

    fn verbs_device(&mut self, _: VerbsId, _: String) -> Option<Device> {
        None
    }

    fn pending_ports(&mut self, name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    fn agent(&mut self, _: PortId, qp: SpecialQp) -> Option<&mut MadAgent> {
        Some(self.on(qp))
    }

    fn poll_event(&mut self, _: PortId, qp: SpecialQp, agent: AgentId) -> Option<AgentEvent> {
        self.on(qp).poll_event_of(agent)
    }

    fn set_is_sm(&mut self, _: PortId, is_sm: bool) -> bool {
        self.is_sm = is_sm;
        true
    }
}

/// The whole scene: the server, its clients, the port, and what is on the wire.
struct Scene {
    now: Instant,
    port: OnePort,
    server: UmadServer,
    sessions: Vec<SessionId>,
    wire: Vec<(SpecialQp, Transmit)>,
    read: u64,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 12 {
            0 => self.connect(),
            1 => self.hello(input),
            2 => {
                let mut bytes = vec![0; usize::from(input.byte())];
                input.fill(&mut bytes);
                self.send(input, &bytes);
            }
            3 => self.register(input),
            4 => {
                let id = u32::from(input.byte() % 33);
                self.call(input, Call::Ioctl(ioctl::UNREGISTER_AGENT), id.as_bytes());
            }
            5 | 6 => self.write(input),
            7 => self.answer(input),
            8 => self.inject(input),
            9 => self.pass(input.time()),
            10 => self.read(input),
            _ => {
                if let Some(session) = input.take(&mut self.sessions) {
                    self.server.disconnect(&mut self.port, session);
                }
            }
        }
        self.settle();
    }

    /// Lets the server and the agents do what is due.
    fn settle(&mut self) {
        self.server.poll(self.now, &mut self.port);
        for qp in [SpecialQp::Gsi, SpecialQp::Smi] {
            while let Some(transmit) = self.port.on(qp).poll_transmit(self.now) {
                remember(&mut self.wire, (qp, transmit));
            }
            let sizes = self.port.on(qp).sizes();
            assert!(sizes.requests <= 16 && sizes.transfers_out <= 16);
        }
        while let Some(silent) = self.server.poll_expired(self.now) {
            self.server.disconnect(&mut self.port, silent);
            self.sessions.retain(|session| *session != silent);
        }
        assert!(self.server.len() <= LIMITS.sessions);
        assert_eq!(self.server.len(), self.sessions.len());
    }

    fn connect(&mut self) {
        let user = u32::from(self.sessions.len() % 2 == 1);
        self.sessions
            .extend(self.server.connect(self.now, UserId(user)));
    }

    fn hello(&mut self, input: &mut Input<'_>) {
        let names = ["", "H-1", "H-1,H-1", "H-2", ",,,,,,,,,,"];
        let paths = [
            "sys/devices/pci7ca0:00/7ca0:00:00.0/infiniband/vhca0/ports/1/lid",
            "infiniband_mad/umad1/port",
            "x",
        ];
        let adapters = input.pick(&names).unwrap_or_default();
        let number = u32::from(input.byte() % 3);
        let purpose = match input.byte() % 7 {
            0 => Purpose::Tree,
            1 => Purpose::Attribute(input.pick(&paths).unwrap_or_default()),
            2 => Purpose::IsSm(number),
            6 => Purpose::PendingPorts,
            _ => Purpose::Umad(number),
        };
        let hello = Hello {
            adapters,
            device: "",
            purpose,
        };
        let bytes = hello.encode().expect("the texts are short");
        self.send(input, &bytes);
    }

    /// A client sends a datagram, perhaps a damaged one.
    fn send(&mut self, input: &mut Input<'_>, bytes: &[u8]) {
        let Some(session) = input.pick(&self.sessions) else {
            return;
        };
        let mut bytes = bytes.to_vec();
        if input.byte() < 16 && !bytes.is_empty() {
            input.damage(&mut bytes);
        }
        self.receive(session, &bytes);
    }

    fn receive(&mut self, session: SessionId, bytes: &[u8]) {
        if !self.server.wants_input(session) {
            return;
        }
        let verdict = self
            .server
            .receive(self.now, &mut self.port, session, bytes);
        match verdict {
            Verdict::Nothing => {}
            Verdict::Opened(reply) => assert!(HelloReply::decode(&reply).is_ok()),
            Verdict::Replied(reply) => {
                assert!(HelloReply::decode(&reply).is_ok());
                self.hang_up(session);
            }
            Verdict::Tree(tree) => {
                assert!(tree.view.entries().len() < 1000);
                self.hang_up(session);
            }
            Verdict::Answered(answer) => {
                assert!(CallReply::decode(&answer.datagram).is_ok());
            }
            Verdict::Close => self.hang_up(session),
        }
    }

    fn hang_up(&mut self, session: SessionId) {
        self.server.disconnect(&mut self.port, session);
        self.sessions.retain(|other| *other != session);
    }

    fn call(&mut self, input: &mut Input<'_>, call: Call, body: &[u8]) {
        let kind = FrameKind::Call(call);
        let header = Frame { kind, body }.header().expect("numbers fit");
        self.send(input, &[&header[..], body].concat());
    }

    fn register(&mut self, input: &mut Input<'_>) {
        let class = input.pick(&CLASSES).unwrap_or_default();
        let mask = [u64::from(input.byte()) << 1, 0].map(Into::into);
        let qpn = u8::from(!class.is_smp()) ^ u8::from(input.byte() < 16);
        let rmpp_version = u8::from(input.flag());
        if input.flag() {
            let request = RegisterRequest {
                method_mask: mask,
                qpn,
                mgmt_class: class.get(),
                mgmt_class_version: class.supported_version(),
                oui: OUI,
                rmpp_version,
                ..RegisterRequest::default()
            };
            self.call(
                input,
                Call::Ioctl(ioctl::REGISTER_AGENT),
                request.as_bytes(),
            );
        } else {
            let request = RegisterRequest2 {
                method_mask: mask,
                qpn: u32::from(qpn).into(),
                mgmt_class: class.get(),
                mgmt_class_version: class.supported_version(),
                oui: 0x1405.into(),
                flags: u32::from(input.byte() < 32).into(),
                rmpp_version,
                ..RegisterRequest2::default()
            };
            self.call(
                input,
                Call::Ioctl(ioctl::REGISTER_AGENT2),
                request.as_bytes(),
            );
        }
    }

    /// A client writes a message: whole, or with a part missing or damaged.
    fn write(&mut self, input: &mut Input<'_>) {
        let Some(session) = input.pick(&self.sessions) else {
            return;
        };
        let class = input.pick(&CLASSES).unwrap_or_default();
        let method = input.pick(&METHODS).unwrap_or_default();
        let mut mad = Mad::new(MadHeader::new(class, method, AttributeId::new(0x35)));
        mad.header.tid = Tid::new(u64::from(input.byte()));
        if class.is_vendor_oui() {
            mad.as_mut_bytes()[37..40].copy_from_slice(&OUI);
        }
        let header = UmadHeader {
            id: u32::from(input.byte() % 4).into(),
            timeout_ms: (u32::from(input.byte()) * 4).into(),
            retries: u32::from(input.byte() % 4).into(),
            qpn: 1.into(),
            qkey: QKey::GSI.get().into(),
            lid: Lid::new(2),
            grh_present: u8::from(input.byte() < 32),
            ..UmadHeader::default()
        };
        let mut message = [header.as_bytes(), mad.as_bytes()].concat();
        if input.flag() {
            // Under RMPP: RMPPFlags.Active.
            message[64 + 26] = 1;
            message.resize(64 + 56 + usize::from(input.byte()) * 300, 0x5a);
        }
        if input.byte() < 16 {
            input.damage(&mut message);
        }
        let cut = input.byte();
        for (index, frame) in frames(&message).enumerate() {
            if usize::from(cut) != index + 1 && self.sessions.contains(&session) {
                let header = frame.header().expect("numbers fit");
                self.receive(session, &[&header[..], frame.body].concat());
            }
        }
    }

    /// The subnet answers something that was sent, or loses it.
    fn answer(&mut self, input: &mut Input<'_>) {
        let Some((qp, Transmit { to, mut mad })) = input.take(&mut self.wire) else {
            return;
        };
        mad.header.method = match mad.header.method {
            method if method.is_response() => Method::new(method.get() ^ Method::RESPONSE_BIT),
            method => method.response(),
        };
        if input.byte() < 32 {
            input.damage(mad.as_mut_bytes());
        }
        self.port.on(qp).handle_mad(self.now, &to, &mad);
    }

    /// A stranger's MAD.
    fn inject(&mut self, input: &mut Input<'_>) {
        let mad = input.mad();
        let (qp, from) = if input.flag() {
            (SpecialQp::Smi, MadAddress::smi(Lid::new(3)))
        } else {
            (SpecialQp::Gsi, MadAddress::gsi(Lid::new(3)))
        };
        self.port.on(qp).handle_mad(self.now, &from, &mad);
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut now = self.now;
        let port = &mut self.port;
        pass_time(&mut now, end, |now| {
            for qp in [SpecialQp::Gsi, SpecialQp::Smi] {
                port.on(qp).handle_timeout(now);
                while port.on(qp).poll_transmit(now).is_some() {}
            }
            [port.gsi.poll_timeout(), port.smi.poll_timeout()]
                .into_iter()
                .flatten()
                .min()
        });
        self.now = end;
    }

    /// A client reads, and fetches what is announced.
    fn read(&mut self, input: &mut Input<'_>) {
        let fetches = input.flag();
        let Some(session) = input.pick(&self.sessions) else {
            return;
        };
        self.read_one(session, fetches);
    }

    fn read_one(&mut self, session: SessionId, fetches: bool) -> bool {
        let Some(datagram) = self.server.next_datagram(session) else {
            return false;
        };
        assert!(datagram.len() <= MAX_DATAGRAM);
        let delivery = Delivery::decode(datagram).expect("the server keeps to the protocol");
        let (total, serial) = (delivery.total, delivery.serial);
        match serial {
            None => assert_eq!(delivery.body.len(), total),
            Some(_) => assert!(delivery.body.len() < total),
        }
        self.server.sent(session);
        self.read += 1;
        if let Some(serial) = serial.filter(|_| fetches) {
            let kind = FrameKind::Call(Call::Fetch(serial));
            let header = Frame { kind, body: &[] }.header().expect("numbers fit");
            if self.server.wants_input(session) {
                let verdict = self
                    .server
                    .receive(self.now, &mut self.port, session, &header);
                let Verdict::Answered(answer) = verdict else {
                    panic!("{verdict:?}");
                };
                assert_eq!(answer.attachment.map(|bytes| bytes.len()), Some(total));
            }
        }
        true
    }

    /// Ends everything: what is under way, then the clients.
    fn wind_down(mut self) {
        for _ in 0..64 {
            self.pass(Duration::from_secs(600));
            self.settle();
            for session in self.sessions.clone() {
                while self.read_one(session, true) {}
            }
        }
        for session in core::mem::take(&mut self.sessions) {
            self.server.disconnect(&mut self.port, session);
        }
        assert!(self.server.is_empty() && !self.port.is_sm);
        self.pass(Duration::from_secs(600));
        for qp in [SpecialQp::Gsi, SpecialQp::Smi] {
            let sizes = self.port.on(qp).sizes();
            assert!(sizes.is_empty(), "left: {sizes:?}");
        }
    }
}

/// Clients that speak the protocol, break it, write, read, stall and leave, while the subnet answers,
/// lies and is silent. No input makes the server exceed its limits, break the protocol itself, or
/// leave anything of a client that is gone.
pub(super) fn umad_server(data: &[u8]) {
    play(data).wind_down();
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let mut scene = Scene {
        now: Instant::from_millis(1),
        port: OnePort::new(),
        server: UmadServer::new(LIMITS),
        sessions: Vec::new(),
        wire: Vec::new(),
        read: 0,
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
    fn the_seeds_read_an_answer_a_timeout_and_a_request() {
        for (seed, read) in [
            (
                include_bytes!("../../fuzz/corpus/umad_server/answer").as_slice(),
                1,
            ),
            (include_bytes!("../../fuzz/corpus/umad_server/timeout"), 1),
            (include_bytes!("../../fuzz/corpus/umad_server/request"), 1),
        ] {
            assert_eq!(play(seed).read, read);
        }
    }
}
