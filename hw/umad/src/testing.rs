//! What the tests of this crate run on: an adapter whose port has two agents, and a peer of it.

use hca_api::SpecialQp;
use ib_endpoint::{
    AgentEvent, AgentId, MadAddress, MadAgent, MadAgentConfig, Message, MethodSet, Registration,
    Transmit,
};
use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{NodeType, PortInfo};
use ib_wire::{Gid, Guid, Lid, PKey, PortNum, SubnetPrefix, Tid};
use linux_abi::sysfs::Device;
use zerocopy::IntoBytes;

use crate::sysfs::{Ca, CaPort};
use crate::{
    AdapterId, Adapters, HEADER_SIZE, PortId, RegisterRequest2, UmadHeader, Verbs, VerbsId,
};

/// The LID of the port under test, and of its peer.
pub(crate) const OURS: Lid = Lid::new(1);
pub(crate) const PEERS: Lid = Lid::new(2);

pub(crate) const PORT: PortId = PortId {
    adapter: AdapterId(0),
    port: PortNum(1),
};

pub(crate) fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// An adapter with one port.
pub(crate) struct OnePort {
    pub(crate) smi: MadAgent,
    pub(crate) gsi: MadAgent,
    pub(crate) is_sm: bool,
    pub(crate) has_qp0: bool,
}

impl OnePort {
    pub(crate) fn new() -> Self {
        Self {
            smi: MadAgent::new(MadAgentConfig::smi(1)),
            gsi: MadAgent::new(MadAgentConfig::gsi(1)),
            is_sm: false,
            has_qp0: true,
        }
    }
}

impl Adapters for OnePort {
    fn find(&mut self, name: &str) -> Option<AdapterId> {
        matches!(name, "" | "H-1").then_some(AdapterId(0))
    }

    fn view(&mut self, _: AdapterId) -> Option<Ca> {
        let guid = Guid::new(0x0002_c903_0000_0001);
        Some(Ca {
            node_type: NodeType::CA,
            node_guid: guid,
            system_image_guid: guid,
            description: "H-1".to_owned(),
            firmware: "1".to_owned(),
            revision: 0,
            device_id: 1,
            ports: vec![CaPort {
                number: PORT.port,
                info: PortInfo {
                    lid: OURS,
                    ..PortInfo::default()
                },
                gids: vec![Gid::from_parts(SubnetPrefix::DEFAULT, guid)],
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

    fn pending_ports(&mut self, _: &str) -> Vec<String> {
        vec!["H-1/1".to_owned()]
    }

    fn agent(&mut self, port: PortId, qp: SpecialQp) -> Option<&mut MadAgent> {
        assert_eq!(port, PORT);
        match qp {
            SpecialQp::Gsi => Some(&mut self.gsi),
            SpecialQp::Smi => self.has_qp0.then_some(&mut self.smi),
        }
    }

    fn poll_event(&mut self, _: PortId, qp: SpecialQp, agent: AgentId) -> Option<AgentEvent> {
        match qp {
            SpecialQp::Gsi => self.gsi.poll_event_of(agent),
            SpecialQp::Smi => self.smi.poll_event_of(agent),
        }
    }

    fn set_is_sm(&mut self, _: PortId, is_sm: bool) -> bool {
        self.is_sm = is_sm;
        true
    }
}

/// An agent at the other end, which takes requests to the SA.
pub(crate) struct Peer {
    pub(crate) agent: MadAgent,
    pub(crate) id: AgentId,
}

impl Peer {
    pub(crate) fn new() -> Self {
        let mut agent = MadAgent::new(MadAgentConfig::gsi(2));
        let methods = MethodSet::of(&[Method::GET, Method::GET_TABLE, Method::GET_MULTI]);
        let id = agent
            .register(Registration::new(MgmtClass::SUBN_ADM, methods))
            .unwrap();
        Self { agent, id }
    }

    /// The next request that came in, answered with data under RMPP or with a MAD like it.
    pub(crate) fn answer(&mut self, now: Instant, data: Option<Vec<u8>>) -> Mad {
        let (from, message) = loop {
            match self.agent.poll_event() {
                Some(AgentEvent::Request { from, message, .. }) => break (from, message),
                Some(_) => {}
                None => panic!("no request came in"),
            }
        };
        let mut mad = *message.mad();
        mad.header.method = mad.header.method.response();
        let answer = match data {
            Some(data) => Message::rmpp(mad, data).unwrap(),
            None => Message::single(mad),
        };
        self.agent.respond(now, self.id, from, answer).unwrap();
        *message.mad()
    }
}

/// Moves MADs of QP1 between the port and its peer until neither has more.
pub(crate) fn exchange(now: u64, port: &mut OnePort, peer: &mut Peer) {
    loop {
        let mut moved = false;
        while let Some(Transmit { mad, .. }) = port.gsi.poll_transmit(at(now)) {
            peer.agent.handle_mad(at(now), &MadAddress::gsi(OURS), &mad);
            moved = true;
        }
        while let Some(Transmit { mad, .. }) = peer.agent.poll_transmit(at(now)) {
            port.gsi.handle_mad(at(now), &MadAddress::gsi(PEERS), &mad);
            moved = true;
        }
        if !moved {
            return;
        }
    }
}

/// A registration in the second form.
pub(crate) fn request(class: MgmtClass, methods: &[Method], rmpp: bool) -> RegisterRequest2 {
    let mut mask = [0_u64; 2];
    for method in methods {
        mask[usize::from(method.get() / 64)] |= 1 << (method.get() % 64);
    }
    RegisterRequest2 {
        qpn: u32::from(!class.is_smp()).into(),
        mgmt_class: class.get(),
        mgmt_class_version: class.supported_version(),
        method_mask: mask.map(Into::into),
        rmpp_version: u8::from(rmpp),
        ..RegisterRequest2::default()
    }
}

/// A MAD of the SA's class.
pub(crate) fn sa_mad(method: Method, tid: u64) -> Mad {
    let mut mad = Mad::new(MadHeader::new(
        MgmtClass::SUBN_ADM,
        method,
        AttributeId::new(0x35),
    ));
    mad.header.tid = Tid::new(tid);
    mad
}

/// What a program writes: a MAD from an agent to the peer.
pub(crate) fn written(agent: u32, timeout_ms: u32, mad: &[u8]) -> Vec<u8> {
    let header = UmadHeader {
        id: agent.into(),
        timeout_ms: timeout_ms.into(),
        qpn: 1.into(),
        qkey: 0x8001_0000.into(),
        lid: PEERS,
        ..UmadHeader::default()
    };
    [header.as_bytes(), mad].concat()
}

/// Header and MAD of what a program read.
pub(crate) fn parsed(bytes: &[u8]) -> (UmadHeader, &[u8]) {
    let header = UmadHeader::read(bytes, HEADER_SIZE).unwrap();
    (header, &bytes[HEADER_SIZE..])
}
