//! An uplink between an emulated adapter and a simulator of a few lines, whose node has the emulated
//! SMA.

mod attach;
mod guids;
mod mads;
mod port;

use std::collections::VecDeque;

use hca_api::{LocalMad, MadView, PhysicalState, PortChange, PortState, SourceAddress};
use ib_fabric::{
    ChannelAdapter, EndNode, Fabric, HcaConfig, Lanes, LinkConfig, LinkId, LinkState, Node, NodeId,
    PhysicalPort, PortConfig, sma,
};
use ib_vtime::{Duration, Instant, Secret};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::packet::{Packet, UdFrame};
use ib_wire::smp::{GuidInfo, LidRoutedSmp, SmInfo, SmpAttribute};
use ib_wire::{Guid, Lid, PKey, PKeyIndex, PortNum, Psn, QKey, Qpn, Sl, Tid, Vl};
use zerocopy::IntoBytes;

use super::*;
use crate::codec::{CONTROL_SIZE, MAD_DATAGRAM_SIZE};

pub(super) const LID: Lid = Lid::new(5);
pub(super) const SM_LID: Lid = Lid::new(1);
pub(super) const SLOT: u32 = 3;
const NODE_GUID: u64 = 0x10_0000;
const PORT: PortNum = PortNum(1);

/// A simulator with one node, and a subnet manager somewhere.
pub(super) struct Sim {
    pub(super) node: Node,
    /// As SMInfo shows it; `None` if there is none.
    pub(super) sm: Option<SmInfo>,
    /// What the client sent to QP1 of others.
    pub(super) inbox: VecDeque<Arrived>,
    /// Answers nothing.
    pub(super) is_silent: bool,
    /// Refuses CONNECT.
    pub(super) is_full: bool,
}

impl Sim {
    fn new() -> Self {
        let config = HcaConfig {
            ports: 1,
            guid_table_len: 32,
            pkey_table_len: 64,
            ..HcaConfig::new(Guid::new(NODE_GUID), "sim")
        };
        let mut sim = Self {
            node: Node::channel_adapter(&config),
            sm: Some(sm(100)),
            inbox: VecDeque::new(),
            is_silent: false,
            is_full: false,
        };
        let port = sim.port();
        port.state = PortState::Active;
        port.physical_state = PhysicalState::LinkUp;
        port.lid = LID;
        port.sm_lid = SM_LID;
        port.subnet_timeout = 17;
        sim
    }

    pub(super) fn port(&mut self) -> &mut PhysicalPort {
        self.node.port_mut(PORT).unwrap()
    }

    /// Has the SMA do a Set, as the subnet manager of the simulated fabric would.
    pub(super) fn set<A: SmpAttribute + Copy>(&mut self, modifier: u32, value: A) {
        let mut mad = Mad::new(MadHeader::new(
            MgmtClass::SUBN_LID_ROUTED,
            Method::SET,
            A::ID,
        ));
        mad.header.attribute_modifier = modifier.into();
        *mad.view_mut::<LidRoutedSmp>().attribute_mut() = value;
        let LocalMad::Reply(reply) = sma::process(&mut self.node, PORT, &MadView::Host, &mad)
        else {
            panic!("no answer");
        };
        assert_eq!(reply.header.status.get(), 0);
    }

    fn control(&mut self, bytes: &[u8; CONTROL_SIZE]) -> Option<[u8; CONTROL_SIZE]> {
        let request = Control::parse(bytes).unwrap();
        if self.is_silent {
            return None;
        }
        let kind = match request.kind {
            ControlKind::CONNECT if self.is_full => ControlKind::ERROR,
            kind => kind,
        };
        let mut answer = Control { kind, ..request };
        if kind == ControlKind::CONNECT {
            answer.data[..4].copy_from_slice(&SLOT.to_ne_bytes());
        }
        Some(zerocopy::transmute!(answer))
    }

    fn mad(&mut self, bytes: &[u8; MAD_DATAGRAM_SIZE]) -> Option<[u8; MAD_DATAGRAM_SIZE]> {
        let mut arrived = translate::arrived(bytes).unwrap();
        if self.is_silent {
            return None;
        }
        let header = &mut arrived.mad.header;
        if !header.method.is_response() {
            header.tid = Tid::new(header.tid.get() & !(0xffff << 48) | u64::from(SLOT) << 48);
        }
        if !header.mgmt_class.is_smp() || header.method.is_response() {
            self.inbox.push_back(arrived);
            return None;
        }
        if header.attribute_id == SmInfo::ID {
            match self.sm {
                Some(sm) if arrived.dlid == SM_LID => {
                    arrived.mad.header.method = Method::GET_RESP;
                    *arrived.mad.view_mut::<LidRoutedSmp>().attribute_mut() = sm;
                }
                _ => arrived.bounced = true,
            }
            return Some(answered(&arrived));
        }
        assert_eq!(arrived.dlid, Lid::PERMISSIVE, "the node itself is asked");
        let view = MadView::Network(SourceAddress::local(PORT));
        match sma::process(&mut self.node, PORT, &view, &arrived.mad) {
            LocalMad::Reply(reply) => arrived.mad = reply,
            _ => arrived.bounced = true,
        }
        Some(answered(&arrived))
    }
}

/// What the simulator sends back.
fn answered(arrived: &Arrived) -> [u8; MAD_DATAGRAM_SIZE] {
    let mut datagram = translate::to_agent(None, &arrived.mad);
    if arrived.bounced {
        datagram.status = MadDatagram::TIMED_OUT.into();
    }
    zerocopy::transmute!(datagram)
}

pub(super) fn sm(act_count: u32) -> SmInfo {
    SmInfo {
        guid: Guid::new(0x5001),
        act_count: act_count.into(),
        ..SmInfo::default()
    }
}

/// An adapter that sends nothing, and keeps the changes of its port that it would report to its functions.
#[derive(Debug)]
pub(super) struct Adapter {
    node: Node,
    pub(super) changes: PortChange,
}

impl EndNode for Adapter {
    fn node(&self) -> &Node {
        &self.node
    }

    fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    fn receive(&mut self, _now: Instant, _port: PortNum, _frame: Frame) {}

    fn poll_transmit_on(&mut self, _now: Instant, _port: PortNum, _lanes: Lanes) -> Option<Frame> {
        None
    }

    fn ports_changed(&mut self, _now: Instant) {
        while let Some((_, change)) = self.node.take_port_change() {
            self.changes |= change;
        }
    }
}

impl ChannelAdapter for Adapter {
    fn from_config(config: &HcaConfig, _secret: Secret) -> Self {
        Self {
            node: Node::channel_adapter(config),
            changes: PortChange::empty(),
        }
    }
}

/// An uplink with both of its sides.
pub(super) struct Bench {
    pub(super) now: Instant,
    pub(super) sim: Sim,
    /// Whether the simulator's sockets are there.
    pub(super) is_there: bool,
    pub(super) uplink: Uplink,
    pub(super) fabric: Fabric<Adapter>,
    adapter: Option<(NodeId, NodeId, LinkId)>,
    pub(super) identities: Vec<Identity>,
    pub(super) refused: Vec<bool>,
    pub(super) cables: Vec<bool>,
}

impl Bench {
    pub(super) fn new(guids: GuidPolicy) -> Self {
        let config = UplinkConfig {
            node: "H-2".to_owned(),
            guids,
        };
        Self {
            now: Instant::ZERO,
            sim: Sim::new(),
            is_there: true,
            uplink: Uplink::new(Instant::ZERO, config),
            fabric: Fabric::new(1),
            adapter: None,
            identities: Vec::new(),
            refused: Vec::new(),
            cables: Vec::new(),
        }
    }

    /// One whose adapter is up.
    pub(super) fn up(guids: GuidPolicy) -> Self {
        let mut bench = Self::new(guids);
        assert!(bench.run_until(Duration::from_secs(5), Bench::is_up));
        bench
    }

    pub(super) fn is_up(&mut self) -> bool {
        self.adapter_port()
            .is_some_and(|port| port.state == PortState::Active)
    }

    pub(super) fn adapter_port(&self) -> Option<&PhysicalPort> {
        self.fabric.port(self.adapter?.0.port(1))
    }

    fn add_adapter(&mut self, identity: &Identity) {
        let guid = Guid::new(identity.port_guid.get() - 1);
        let host = self.fabric.add_hca(&HcaConfig {
            ports: 1,
            guid_table_len: identity.guid_table_len,
            pkey_table_len: identity.pkey_table_len,
            ..HcaConfig::new(guid, "host")
        });
        let gateway = self.fabric.add_gateway("sim", PortConfig::default());
        let ends = (host.port(1), gateway.port(1));
        let link = self.fabric.connect(ends.0, ends.1, LinkConfig::default());
        let link = link.unwrap();
        self.fabric.set_link(link, LinkState::Down);
        self.adapter = Some((host, gateway, link));
    }

    fn carry_out(&mut self, output: UplinkOutput) {
        match output {
            UplinkOutput::Open if self.is_there => self.uplink.opened(self.now, 77),
            UplinkOutput::Open => self.uplink.failed(self.now),
            UplinkOutput::Control(bytes) => {
                if let Some(answer) = self.sim.control(&bytes) {
                    self.uplink.handle_control(self.now, &answer);
                }
            }
            UplinkOutput::Mad(_) if !self.is_there => self.uplink.failed(self.now),
            UplinkOutput::Mad(bytes) => {
                if let Some(answer) = self.sim.mad(&bytes) {
                    self.uplink.handle_mad(self.now, &answer);
                }
            }
            UplinkOutput::Join(slot) => assert_eq!(slot, SLOT),
            UplinkOutput::Close => {}
            UplinkOutput::Identity(identity) => {
                self.identities.push(identity);
                self.add_adapter(&identity);
            }
            UplinkOutput::Cable(plugged) => {
                self.cables.push(plugged);
                let (_, _, link) = self.adapter.unwrap();
                let state = if plugged {
                    LinkState::Up
                } else {
                    LinkState::Down
                };
                self.fabric.set_link(link, state);
            }
            UplinkOutput::Frame(frame) => self.fabric.send_from(self.adapter.unwrap().1, frame),
            UplinkOutput::GuidsRefused(refused) => self.refused.push(refused),
        }
    }

    /// Does everything that is due now.
    pub(super) fn poll(&mut self) {
        if self
            .uplink
            .poll_timeout(self.now)
            .is_some_and(|at| at <= self.now)
        {
            self.uplink.handle_timeout(self.now);
        }
        for round in 0.. {
            assert!(
                round < 10_000,
                "the uplink and its sides keep each other busy"
            );
            if let Some(output) = self.uplink.poll_output() {
                self.carry_out(output);
                continue;
            }
            while self.fabric.poll(self.now) {}
            let gateway = self.adapter.map(|(_, gateway, _)| gateway);
            match gateway.and_then(|gateway| self.fabric.take_from(gateway, Lanes::ALL)) {
                Some(frame) => self.uplink.handle_frame(self.now, frame),
                None => return,
            }
        }
    }

    pub(super) fn run_until(
        &mut self,
        limit: Duration,
        mut condition: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let end = self.now + limit;
        loop {
            self.poll();
            if condition(self) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            let next = self.uplink.poll_timeout(self.now);
            let next = next.into_iter().chain(self.fabric.poll_timeout()).min();
            self.now = next.unwrap_or(end).max(self.now).min(end);
        }
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// A MAD arrives from a peer's QP1.
    pub(super) fn deliver(&mut self, from: Lid, mad: &Mad) {
        let datagram = translate::to_port(from, LID, mad);
        self.deliver_bytes(datagram.as_bytes());
    }

    pub(super) fn deliver_bytes(&mut self, bytes: &[u8]) {
        self.uplink.handle_mad(self.now, bytes);
    }

    /// What the uplink would do next, without doing it.
    pub(super) fn outputs(&mut self) -> Vec<UplinkOutput> {
        std::iter::from_fn(|| self.uplink.poll_output()).collect()
    }

    /// The adapter sends a MAD from QP1.
    pub(super) fn send(&mut self, to: Lid, mad: &Mad) {
        let frame = packet(to, Qpn::GSI, mad.as_bytes());
        self.uplink.handle_frame(self.now, frame);
        self.poll();
    }
}

/// A datagram of the adapter.
pub(super) fn packet(to: Lid, qp: Qpn, payload: &[u8]) -> Frame {
    let mut buffer = [0; 512];
    let len = UdFrame {
        vl: Vl::default(),
        sl: Sl::default(),
        slid: LID,
        dlid: to,
        grh: None,
        pkey: PKey::DEFAULT_FULL,
        dest_qp: qp,
        src_qp: Qpn::GSI,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload,
    }
    .write(&mut buffer)
    .unwrap();
    Frame::sealed(&buffer[..len])
}

/// A MAD of some class.
pub(super) fn mad(class: MgmtClass, method: Method, attribute: u16, tid: u64) -> Mad {
    let mut mad = Mad::new(MadHeader::new(class, method, AttributeId::new(attribute)));
    mad.header.tid = Tid::new(tid);
    mad
}

/// The MADs among outputs that go to the adapter, with the queue pair of their source.
pub(super) fn to_adapter(outputs: &[UplinkOutput]) -> Vec<(Mad, Qpn, PKey)> {
    let frames = outputs.iter().filter_map(|output| match output {
        UplinkOutput::Frame(frame) => Some(frame),
        _ => None,
    });
    frames
        .map(|frame| {
            let packet = Packet::parse(frame.bytes()).unwrap();
            let transport = packet.transport().unwrap();
            let deth = transport.extended.deth.unwrap();
            let mad = Mad::from_bytes(transport.payload).unwrap();
            (mad, deth.src_qp, transport.bth.pkey)
        })
        .collect()
}

/// A block of the GUID table.
pub(super) fn guid_block(guids: &[(usize, u64)]) -> GuidInfo {
    let mut block = GuidInfo::default();
    for (index, guid) in guids {
        block.guids[*index] = Guid::new(*guid);
    }
    block
}
