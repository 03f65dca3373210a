//! The end node that measurements are made from, and the SMPs that it sends.

use std::collections::VecDeque;
use std::error::Error;

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, Fabric, Frame, Node, NodeId};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::packet::UdFrame;
use ib_wire::smp::{DirectedRouteSmp, SmpAttribute};
use ib_wire::{Lid, PKey, PortNum, Psn, QKey, Qpn, Sl, Vl};
use zerocopy::IntoBytes;

/// An end node that sends what it is given and keeps the last packet it got.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) node: Node,
    pub(crate) outbox: VecDeque<Frame>,
    pub(crate) last: Option<Frame>,
    pub(crate) received: usize,
}

impl EndNode for Sink {
    fn node(&self) -> &Node {
        &self.node
    }

    fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    fn receive(&mut self, _now: Instant, _port: PortNum, frame: Frame) {
        self.last = Some(frame);
        self.received += 1;
    }

    fn poll_transmit(&mut self, _now: Instant, port: PortNum) -> Option<Frame> {
        (port == PortNum(1)).then(|| self.outbox.pop_front())?
    }

    fn ports_changed(&mut self, _now: Instant) {
        while self.node.take_port_change().is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _now: Instant) {}
}

/// A host of a fabric: one that measures, or an adapter.
#[derive(Debug)]
pub(crate) enum Host {
    Sink(Box<Sink>),
    Adapter(Box<Device>),
}

impl Host {
    pub(crate) fn sink(node: Node) -> Self {
        Self::Sink(Box::new(Sink {
            node,
            outbox: VecDeque::new(),
            last: None,
            received: 0,
        }))
    }

    /// The software of a host that measures.
    pub(crate) fn as_sink(&mut self) -> Result<&mut Sink, Box<dyn Error>> {
        match self {
            Self::Sink(sink) => Ok(sink),
            Self::Adapter(_) => Err("an adapter does not measure".into()),
        }
    }

    fn end_node(&self) -> &dyn EndNode {
        match self {
            Self::Sink(sink) => &**sink,
            Self::Adapter(device) => &**device,
        }
    }

    fn end_node_mut(&mut self) -> &mut dyn EndNode {
        match self {
            Self::Sink(sink) => &mut **sink,
            Self::Adapter(device) => &mut **device,
        }
    }
}

impl EndNode for Host {
    fn node(&self) -> &Node {
        self.end_node().node()
    }

    fn node_mut(&mut self) -> &mut Node {
        self.end_node_mut().node_mut()
    }

    fn receive(&mut self, now: Instant, port: PortNum, frame: Frame) {
        self.end_node_mut().receive(now, port, frame);
    }

    fn poll_transmit(&mut self, now: Instant, port: PortNum) -> Option<Frame> {
        self.end_node_mut().poll_transmit(now, port)
    }

    fn ports_changed(&mut self, now: Instant) {
        self.end_node_mut().ports_changed(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.end_node().poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.end_node_mut().handle_timeout(now);
    }
}

/// A fabric and the host from which it is measured.
pub(crate) struct Bench {
    pub(crate) fabric: Fabric<Host>,
    pub(crate) from: NodeId,
    /// SMPs asked so far, and links that they and their answers crossed.
    pub(crate) smps: u64,
    pub(crate) links: u64,
}

impl Bench {
    pub(crate) fn new(fabric: Fabric<Host>, from: NodeId) -> Self {
        Self {
            fabric,
            from,
            smps: 0,
            links: 0,
        }
    }

    pub(crate) fn run(&mut self) {
        while self.fabric.poll(Instant::ZERO) {}
    }

    pub(crate) fn send(
        &mut self,
        frames: impl IntoIterator<Item = Frame>,
    ) -> Result<(), Box<dyn Error>> {
        let host = self.fabric.device_mut(self.from).ok_or("no host")?;
        host.as_sink()?.outbox.extend(frames);
        Ok(())
    }

    /// Gets an attribute by directed route, or sets it, and gives the answer.
    pub(crate) fn ask<A: SmpAttribute + Copy>(
        &mut self,
        path: &[u8],
        modifier: u32,
        set: Option<A>,
    ) -> Result<A, Box<dyn Error>> {
        let method = if set.is_some() {
            Method::SET
        } else {
            Method::GET
        };
        let header = MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, method, A::ID);
        let mut mad = Mad::new(header);
        mad.header.attribute_modifier = modifier.into();
        let smp: &mut DirectedRouteSmp = mad.view_mut();
        smp.set_path(path);
        if let Some(value) = set {
            *smp.attribute_mut() = value;
        }
        let frame = frame(
            Vl::MANAGEMENT,
            Lid::PERMISSIVE,
            Lid::PERMISSIVE,
            Qpn::SMI,
            mad.as_bytes(),
        )?;
        self.send([frame])?;
        self.run();
        self.smps += 1;
        self.links += 2 * path.len() as u64;
        let from = self.fabric.device_mut(self.from).ok_or("no host")?;
        let answer = from.as_sink()?.last.take().ok_or("no answer")?;
        let bytes = answer.bytes().get(28..284).ok_or("short answer")?;
        let answer = Mad::from_bytes(bytes).ok_or("no MAD")?;
        let smp: &DirectedRouteSmp = answer.view();
        if smp.status().get() != 0 {
            return Err(format!("{path:?}: status {:#x}", smp.status().get()).into());
        }
        Ok(*smp.attribute())
    }
}

pub(crate) fn frame(
    vl: Vl,
    slid: Lid,
    dlid: Lid,
    qp: Qpn,
    payload: &[u8],
) -> Result<Frame, Box<dyn Error>> {
    let mut buffer = [0; 512];
    let len = UdFrame {
        vl,
        sl: Sl::default(),
        slid,
        dlid,
        grh: None,
        pkey: PKey::DEFAULT_FULL,
        dest_qp: qp,
        src_qp: qp,
        qkey: QKey::SMI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload,
    }
    .write(&mut buffer)?;
    Ok(Frame::sealed(&buffer[..len]))
}
