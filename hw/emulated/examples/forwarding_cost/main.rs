//! Measures what a datagram costs per hop, and what a fat tree of a thousand hosts costs to make and to
//! sweep.
//!
//! `cargo run --release -p emulated-hca --example forwarding_cost`

mod prober;
mod sweep;

use std::error::Error;
use std::fs;

use emulated_hca::hca::Device;
use emulated_hca::{Fabric, Frame, HcaConfig, LinkConfig, Node, NodeId, SwitchConfig, Topology};
use ib_wire::smp::{LinearForwardingTable, PortInfo, PortPhysState, PortState, SwitchInfo};
use ib_wire::{Guid, Lid, PortNum, Qpn, Vl};

use prober::{Bench, Host, frame};

const HOPS: usize = 8;
const PACKETS: usize = 200_000;
const BATCH: usize = 200;
const RUNS: usize = 7;

/// Two hosts with switches in a row between them.
struct Chain {
    bench: Bench,
    to: NodeId,
}

impl Chain {
    fn new() -> Result<Self, Box<dyn Error>> {
        let mut fabric = Fabric::new(0);
        let mut host = |guid| {
            let config = HcaConfig::new(Guid::new(guid), "host");
            fabric.add_end_node(Host::sink(Node::channel_adapter(&config)))
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
        let bench = Bench::new(fabric, from);
        let mut chain = Self { bench, to };
        chain.bench.run();
        chain.bring_up()?;
        Ok(chain)
    }

    fn set_port(
        &mut self,
        path: &[u8],
        port: u32,
        change: impl Fn(&mut PortInfo),
    ) -> Result<(), Box<dyn Error>> {
        let mut info: PortInfo = self.bench.ask(path, port, None)?;
        info.set_port_state(PortState::NO_CHANGE);
        info.set_phys_state(PortPhysState::NO_CHANGE);
        change(&mut info);
        self.bench.ask(path, port, Some(info)).map(|_| ())
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
                let mut info: SwitchInfo = self.bench.ask(path, 0, None)?;
                info.linear_fdb_top = Lid::new(2);
                self.bench.ask(path, 0, Some(info))?;
                let mut table = LinearForwardingTable {
                    ports: [LinearForwardingTable::DROP; 64],
                };
                (table.ports[1], table.ports[2]) = (PortNum(1), PortNum(2));
                self.bench.ask(path, 0, Some(table))?;
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
            chain
                .bench
                .send((0..BATCH).map(|_| Frame::sealed(packet.bytes())))?;
            chain.bench.run();
        }
        let hops = (PACKETS * (HOPS + 1)) as f64;
        costs.push((cpu_time()? - start) as f64 / hops);
    }
    costs.sort_by(f64::total_cmp);
    let to = chain.bench.fabric.device_mut(chain.to).ok_or("no host")?;
    let received = to.as_sink()?.received;
    println!(
        "{received} datagrams of {} bytes over {HOPS} switches: median {:.0} ns of CPU time per packet \
         and link, {:.0} to {:.0}",
        packet.len(),
        costs[RUNS / 2],
        costs[0],
        costs[RUNS - 1],
    );

    let (start, before) = (cpu_time()?, resident()?);
    let (fabric, built) = Topology::fat_tree(16, 1000).build::<Device>(1);
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
    sweep::measure()
}
