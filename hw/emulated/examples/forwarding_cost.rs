//! Measures what a datagram costs per hop, and what a fat tree of a thousand hosts costs to make.
//!
//! `cargo run --release -p emulated-hca --example forwarding_cost`

use std::collections::VecDeque;
use std::error::Error;
use std::fs;

use emulated_hca::{
    EndNode, Fabric, Frame, HcaConfig, LinkConfig, Node, NodeId, SwitchConfig, Topology,
};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, MadHeader, Method, MgmtClass};
use ib_wire::packet::UdFrame;
use ib_wire::smp::{
    DirectedRouteSmp, LinearForwardingTable, PortInfo, PortPhysState, PortState, SmpAttribute,
    SwitchInfo,
};
use ib_wire::{Guid, Lid, PKey, PortNum, Psn, QKey, Qpn, Sl, Vl};
use zerocopy::IntoBytes;

const HOPS: usize = 8;
const PACKETS: usize = 200_000;
const BATCH: usize = 200;
const RUNS: usize = 7;

/// An end node that sends what it is given and keeps the last packet it got.
#[derive(Debug)]
struct Sink {
    node: Node,
    outbox: VecDeque<Frame>,
    last: Option<Frame>,
    received: usize,
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

struct Chain {
    fabric: Fabric<Sink>,
    from: NodeId,
    to: NodeId,
}

impl Chain {
    fn new() -> Result<Self, Box<dyn Error>> {
        let mut fabric = Fabric::of_end_nodes(0);
        let mut host = |guid| {
            fabric.add_end_node(Sink {
                node: Node::channel_adapter(&HcaConfig::new(Guid::new(guid), "host")),
                outbox: VecDeque::new(),
                last: None,
                received: 0,
            })
        };
        let (from, to) = (host(0x1000), host(0x2000));
        let mut left = from.port(1);
        for index in 0..HOPS as u64 {
            let guid = Guid::new(0x10_0000 + index * 0x100);
            let switch = fabric.add_switch(&SwitchConfig::new(guid, "switch", 36));
            fabric.connect(left, switch.port(1), LinkConfig::default())?;
            left = switch.port(2);
        }
        fabric.connect(left, to.port(1), LinkConfig::default())?;
        let mut chain = Self { fabric, from, to };
        chain.run();
        chain.bring_up()?;
        Ok(chain)
    }

    fn run(&mut self) {
        while self.fabric.poll(Instant::ZERO) {}
    }

    fn ask<A: SmpAttribute + Copy>(
        &mut self,
        path: &[u8],
        port: u32,
        set: Option<A>,
    ) -> Result<A, Box<dyn Error>> {
        let method = if set.is_some() {
            Method::SET
        } else {
            Method::GET
        };
        let header = MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, method, A::ID);
        let mut mad = Mad::new(header);
        mad.header.attribute_modifier = port.into();
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
        self.send([frame]);
        self.run();
        let from = self.fabric.device_mut(self.from).ok_or("no host")?;
        let answer = from.last.take().ok_or("no answer")?;
        let bytes = answer.bytes().get(28..284).ok_or("short answer")?;
        let answer = Mad::from_bytes(bytes).ok_or("no MAD")?;
        Ok(*answer.view::<DirectedRouteSmp>().attribute())
    }

    fn send(&mut self, frames: impl IntoIterator<Item = Frame>) {
        if let Some(from) = self.fabric.device_mut(self.from) {
            from.outbox.extend(frames);
        }
    }

    fn set_port(
        &mut self,
        path: &[u8],
        port: u32,
        change: impl Fn(&mut PortInfo),
    ) -> Result<(), Box<dyn Error>> {
        let mut info: PortInfo = self.ask(path, port, None)?;
        info.set_port_state(PortState::NO_CHANGE);
        info.set_phys_state(PortPhysState::NO_CHANGE);
        change(&mut info);
        self.ask(path, port, Some(info)).map(|_| ())
    }

    fn bring_up(&mut self) -> Result<(), Box<dyn Error>> {
        let mut path = vec![1];
        path.resize(HOPS + 1, 2);
        for state in [PortState::ARMED, PortState::ACTIVE] {
            for hop in 1..=HOPS {
                let path = &path[..hop];
                for port in [1, 2] {
                    self.set_port(path, port, |info| info.set_port_state(state))?;
                }
                let mut info: SwitchInfo = self.ask(path, 0, None)?;
                info.linear_fdb_top = Lid::new(2);
                self.ask(path, 0, Some(info))?;
                let mut table = LinearForwardingTable {
                    ports: [LinearForwardingTable::DROP; 64],
                };
                (table.ports[1], table.ports[2]) = (PortNum(1), PortNum(2));
                self.ask(path, 0, Some(table))?;
            }
            for (path, lid) in [(&[][..], 1), (&path[..], 2)] {
                self.set_port(path, 0, |info| {
                    info.lid = Lid::new(lid);
                    info.master_sm_lid = Lid::new(1);
                    info.set_port_state(state);
                })?;
            }
        }
        Ok(())
    }
}

fn frame(vl: Vl, slid: Lid, dlid: Lid, qp: Qpn, payload: &[u8]) -> Result<Frame, Box<dyn Error>> {
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

/// Nanoseconds that this process has run on a CPU: other processes do not count.
fn cpu_time() -> Result<u64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/schedstat")?;
    Ok(stat.split_whitespace().next().ok_or("empty")?.parse()?)
}

/// Bytes of this process in memory.
fn resident() -> Result<u64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = stat.split_whitespace().nth(1).ok_or("empty")?.parse()?;
    Ok(pages * 4096)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut chain = Chain::new()?;
    let packet = frame(Vl::default(), Lid::new(1), Lid::new(2), Qpn::GSI, &[7; 256])?;
    let mut costs = Vec::new();
    for _ in 0..RUNS {
        let start = cpu_time()?;
        for _ in 0..PACKETS / BATCH {
            chain.send((0..BATCH).map(|_| Frame::sealed(packet.bytes())));
            chain.run();
        }
        let hops = (PACKETS * (HOPS + 1)) as f64;
        costs.push((cpu_time()? - start) as f64 / hops);
    }
    costs.sort_by(f64::total_cmp);
    let received = chain.fabric.device(chain.to).ok_or("no host")?.received;
    println!(
        "{received} datagrams of {} bytes over {HOPS} switches: median {:.0} ns of CPU time per packet \
         and link, {:.0} to {:.0}",
        packet.len(),
        costs[RUNS / 2],
        costs[0],
        costs[RUNS - 1],
    );

    let (start, before) = (cpu_time()?, resident()?);
    let (fabric, built) = Topology::fat_tree(16, 1000).build(1);
    let (end, after) = (cpu_time()?, resident()?);
    println!(
        "fat tree of {} hosts, {} switches and {} links: made in {:.1} ms of CPU time, {} KiB",
        built.hcas.len(),
        built.switches.len(),
        built.links.len(),
        (end - start) as f64 / 1e6,
        (after - before) / 1024,
    );
    drop(fabric);
    Ok(())
}
