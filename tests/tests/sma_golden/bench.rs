//! The recorded fabric, with hosts that send what they are given and keep what comes back.

use std::collections::VecDeque;

use emulated_hca::{
    Built, EndNode, Endpoint, Fabric, Frame, Lanes, Node, PlannedNode, TopologyFile, sma,
};
use hca_api::{LocalMad, MadView, SourceAddress};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, MgmtClass};
use ib_wire::packet::Packet;
use ib_wire::{Lid, PortNum, Sl};

/// A channel adapter whose software is the test.
#[derive(Debug)]
pub(crate) struct Host {
    node: Node,
    outbox: VecDeque<(PortNum, Frame)>,
    inbox: VecDeque<Frame>,
}

impl EndNode for Host {
    fn node(&self) -> &Node {
        &self.node
    }

    fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    fn receive(&mut self, _now: Instant, _port: PortNum, frame: Frame) {
        self.inbox.push_back(frame);
    }

    fn poll_transmit_on(&mut self, _now: Instant, port: PortNum, _lanes: Lanes) -> Option<Frame> {
        let at = self.outbox.iter().position(|(p, _)| *p == port)?;
        self.outbox.remove(at).map(|(_, frame)| frame)
    }

    fn ports_changed(&mut self, _now: Instant) {
        while self.node.take_port_change().is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _now: Instant) {}
}

/// Traces of a later day, when two hosts had GUIDs of their own.
const LATER: [&str; 2] = ["sweep-qos-pkeys.txt", "sm-restart-sweep.txt"];

/// The fabric, and its nodes by the names that the recorder used.
pub(crate) struct Bench {
    fabric: Fabric<Host>,
    built: Built,
    names: Vec<(String, PlannedNode)>,
}

impl Bench {
    /// The fabric of a trace; its adapters and switches have as many P_Keys as the simulator's.
    pub(crate) fn of(trace: &str) -> Self {
        let mut text = include_str!("../../topologies/recorded.net").to_owned();
        if LATER.contains(&trace) {
            text = text.replace("Hca 1 \"H-3\"", "caguid=0x2c90300000030\nHca 1 \"H-3\"");
            text = text.replace("Hca 1 \"H-4\"", "caguid=0x2c90300000040\nHca 1 \"H-4\"");
        }
        let mut file = TopologyFile::parse("recorded.net", &text).unwrap();
        for hca in &mut file.topology.hcas {
            hca.pkey_table_len = 64;
            hca.guid_table_len = 32;
        }
        for switch in &mut file.topology.switches {
            switch.pkey_table_len = 64;
        }
        let add = |fabric: &mut Fabric<Host>, config: &_| {
            fabric.add_end_node(Host {
                node: Node::channel_adapter(config),
                outbox: VecDeque::new(),
                inbox: VecDeque::new(),
            })
        };
        let (fabric, built) = file.topology.build_on(Fabric::new(1), add);
        Self {
            fabric,
            built,
            names: file.nodes,
        }
    }

    /// A port of a node by the node's name.
    pub(crate) fn port(&self, name: &str, port: u8) -> Endpoint {
        let (_, planned) = self.names.iter().find(|(n, _)| n == name).unwrap();
        self.built.node(*planned).unwrap().port(port)
    }

    /// Sends an SMP from a host's first port and gives the response.
    pub(crate) fn ask(&mut self, host: &str, dlid: Lid, mad: &Mad) -> Option<Mad> {
        let at = self.port(host, 1);
        let slid = match mad.header.mgmt_class {
            MgmtClass::SUBN_DIRECTED_ROUTE => Lid::PERMISSIVE,
            _ => self.fabric.port(at).unwrap().lid,
        };
        if slid == dlid && slid != Lid::PERMISSIVE {
            return self.ask_itself(at, slid, mad);
        }
        let frame = Frame::of_smp(mad, slid, dlid, Sl::default()).unwrap();
        let software = self.fabric.device_mut(at.node).unwrap();
        software.outbox.push_back((at.port, frame));
        let now = self.fabric.now();
        while self.fabric.poll(now) {}
        let answers = &mut self.fabric.device_mut(at.node).unwrap().inbox;
        let answer = answers.drain(..).next()?;
        let packet = Packet::parse(answer.bytes()).unwrap();
        Mad::from_bytes(packet.transport().unwrap().payload)
    }

    fn ask_itself(&mut self, at: Endpoint, lid: Lid, mad: &Mad) -> Option<Mad> {
        let node = self.fabric.device_mut(at.node).unwrap().node_mut();
        let view = MadView::Network(SourceAddress::of_smp(at.port, lid, Sl::default()));
        match sma::process(node, at.port, &view, mad) {
            LocalMad::Reply(reply) => Some(reply),
            LocalMad::Consumed | LocalMad::NotHandled => None,
        }
    }
}
