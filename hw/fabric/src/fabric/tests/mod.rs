//! The fabric with end nodes that do nothing but send and keep what a test tells them.

mod bring_up;
mod faults;
mod gateway;
mod holding;
mod port0;
mod route;
mod switching;
mod traffic;
mod traps;

use std::collections::VecDeque;

use ib_vtime::{Instant, Secret};
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::packet::UdFrame;
use ib_wire::smp::{DirectedRouteSmp, PortInfo, PortState, SmpAttribute};
use ib_wire::{Guid, Lid, PKey, PortNum, Psn, QKey, Qpn, Sl, Tid, Vl};
use zerocopy::IntoBytes;

use super::{Fabric, NodeId};
use crate::{
    ChannelAdapter, DropReason, EndNode, Endpoint, Frame, HcaConfig, Lanes, LinkConfig, LinkId,
    Node, PhysicalPort, SwitchConfig,
};

/// An end node that is driven by the test.
#[derive(Debug)]
pub(crate) struct Probe {
    node: Node,
    outbox: VecDeque<(PortNum, Frame)>,
    pub(super) inbox: VecDeque<(Instant, PortNum, Frame)>,
    pub(super) changes: Vec<(PortNum, hca_api::PortChange)>,
}

impl EndNode for Probe {
    fn node(&self) -> &Node {
        &self.node
    }

    fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    fn receive(&mut self, now: Instant, port: PortNum, frame: Frame) {
        self.inbox.push_back((now, port, frame));
    }

    fn poll_transmit_on(&mut self, _now: Instant, port: PortNum, lanes: Lanes) -> Option<Frame> {
        let mut waiting = self.outbox.iter();
        let at = waiting.position(|(p, frame)| *p == port && lanes.contains(frame.lane()))?;
        self.outbox.remove(at).map(|(_, frame)| frame)
    }

    fn ports_changed(&mut self, _now: Instant) {
        while let Some(change) = self.node.take_port_change() {
            self.changes.push(change);
        }
    }
}

impl ChannelAdapter for Probe {
    fn from_config(config: &HcaConfig, _secret: Secret) -> Self {
        Self {
            node: Node::channel_adapter(config),
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            changes: Vec::new(),
        }
    }
}

/// A fabric under test.
pub(super) struct Bench {
    pub(super) fabric: Fabric<Probe>,
    next_guid: u64,
    next_tid: u64,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self {
            fabric: Fabric::new(0),
            next_guid: 0x1000,
            next_tid: 1,
        }
    }

    fn guid(&mut self) -> Guid {
        self.next_guid += 0x1000;
        Guid::new(self.next_guid)
    }

    pub(super) fn host(&mut self) -> NodeId {
        let config = HcaConfig::new(self.guid(), "host");
        self.fabric.add_hca(&config)
    }

    pub(super) fn switch(&mut self, ports: u8) -> NodeId {
        let config = SwitchConfig::new(self.guid(), "switch", ports);
        self.fabric.add_switch(&config)
    }

    pub(super) fn connect_by(&mut self, a: Endpoint, b: Endpoint, config: LinkConfig) -> LinkId {
        self.fabric.connect(a, b, config).unwrap()
    }

    pub(super) fn run_until(&mut self, now: Instant) {
        while self.fabric.poll(now) {}
    }

    pub(super) fn run(&mut self) {
        self.run_until(self.fabric.now());
    }

    pub(super) fn send(&mut self, from: Endpoint, frame: Frame) {
        let probe = self.fabric.device_mut(from.node).unwrap();
        probe.outbox.push_back((from.port, frame));
    }

    pub(super) fn received(&mut self, node: NodeId) -> Vec<Frame> {
        let probe = self.fabric.device_mut(node).unwrap();
        let frames = probe.inbox.drain(..).map(|(_, _, frame)| frame).collect();
        self.run();
        frames
    }

    pub(super) fn port(&self, at: Endpoint) -> &PhysicalPort {
        self.fabric.port(at).unwrap()
    }

    /// Packets that were dropped at a port.
    pub(super) fn dropped(&self, at: Endpoint, reason: DropReason) -> u64 {
        let drops = self.fabric.node(at.node).unwrap().drops();
        let here =
            |(port, _, why, _): &(PortNum, _, DropReason, _)| *port == at.port && *why == reason;
        drops
            .iter()
            .filter(here)
            .map(|(.., dropped)| dropped.packets)
            .sum()
    }

    /// Sends a directed-route SMP.
    pub(super) fn send_smp(&mut self, from: Endpoint, path: &[u8], mut mad: Mad) -> Tid {
        let tid = Tid::new(self.next_tid);
        self.next_tid += 1;
        mad.header.tid = tid;
        assert!(mad.view_mut::<DirectedRouteSmp>().set_path(path));
        let frame = Frame::of_smp(&mad, Lid::PERMISSIVE, Lid::PERMISSIVE, Sl::default()).unwrap();
        self.send(from, frame);
        tid
    }

    /// Sends a directed-route SMP and gives the response.
    pub(super) fn ask(&mut self, from: Endpoint, path: &[u8], mad: Mad) -> Option<Mad> {
        let tid = self.send_smp(from, path, mad);
        self.run();
        let frames = self.received(from.node);
        let mut mads = frames.into_iter().filter_map(|mut frame| frame.smp());
        mads.find(|mad| mad.header.tid == tid)
    }

    /// Gets an attribute by directed route.
    pub(super) fn get<A: SmpAttribute + Copy>(
        &mut self,
        from: Endpoint,
        path: &[u8],
        modifier: u32,
    ) -> A {
        let answer = self
            .ask(from, path, request::<A>(Method::GET, modifier))
            .unwrap();
        let smp: &DirectedRouteSmp = answer.view();
        assert_eq!(smp.status().get(), 0);
        assert!(smp.is_returning());
        *smp.attribute()
    }

    /// Sets an attribute by directed route, and gives what the response says.
    pub(super) fn set<A: SmpAttribute + Copy>(
        &mut self,
        from: Endpoint,
        path: &[u8],
        modifier: u32,
        value: A,
    ) -> A {
        let mut mad = request::<A>(Method::SET, modifier);
        *mad.view_mut::<DirectedRouteSmp>().attribute_mut() = value;
        let answer = self.ask(from, path, mad).unwrap();
        let smp: &DirectedRouteSmp = answer.view();
        assert_eq!(smp.status().get(), 0);
        *smp.attribute()
    }

    /// Changes PortInfo of a port and gives the port's new one.
    pub(super) fn change_port(
        &mut self,
        from: Endpoint,
        path: &[u8],
        port: u32,
        change: impl FnOnce(&mut PortInfo),
    ) -> PortInfo {
        let mut info: PortInfo = self.get(from, path, port);
        info.set_port_state(PortState::NO_CHANGE);
        info.set_phys_state(ib_wire::smp::PortPhysState::NO_CHANGE);
        change(&mut info);
        self.set(from, path, port, info)
    }
}

/// A directed-route request for an attribute.
pub(super) fn request<A: SmpAttribute>(method: Method, modifier: u32) -> Mad {
    let header = MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, method, A::ID);
    let mut mad = Mad::new(header);
    mad.header.attribute_modifier = modifier.into();
    mad
}

/// A datagram of some payload bytes to a QP that is not a special one.
pub(super) fn datagram(slid: u16, dlid: u16, payload: &[u8]) -> Frame {
    let mut buffer = vec![0; payload.len() + 64];
    let len = UdFrame {
        vl: Vl::default(),
        sl: Sl::default(),
        slid: Lid::new(slid),
        dlid: Lid::new(dlid),
        grh: None,
        pkey: PKey::DEFAULT_FULL,
        dest_qp: Qpn::from_low_bits(0x48),
        src_qp: Qpn::from_low_bits(0x49),
        qkey: QKey::new(7),
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload,
    }
    .write(&mut buffer)
    .unwrap();
    Frame::sealed(&buffer[..len])
}

/// The payload of a datagram.
pub(super) fn payload(frame: &Frame) -> Vec<u8> {
    let packet = ib_wire::packet::Packet::parse(frame.bytes()).unwrap();
    packet.transport().unwrap().payload.as_bytes().to_vec()
}
