//! Speed of a VF on a port of a Linux HCA, alone and beside a VF that does all it can to be in the way.
//!
//! ```text
//! linux_neighbours DEVICE PORT (answer|alone|attacked) OWN PEER
//! ```
//!
//! Two of these programs exchange their addresses by the files OWN and PEER. The one that answers lends its memory, and ends with the
//! other one. The other one writes 8 bytes there, one write after the other, and prints half of the time that a write takes: the median,
//! the 99th of a hundred and the longest, in microseconds; then the MB/s of writes of 64 KiB and of 1 MiB, 16 at a time; then the median of the
//! SA's answers to 2,000 searches for the path to the peer, one after the other, which the PF knows, and for the record of its node, which it
//! asks the SA for each time. `attacked`: a second VF of the adapter registers large and scattered memory, posts requests with keys that it
//! does not have, has receives without end in its memory, and makes and destroys queue pairs, each call a turn between the calls of the
//! first VF. An error is one line, with exit status 2.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_api::{
    AccessFlags, AddressSpace, Completion, CompletionStatus, CqHandle, DmaBuffer, Hca, HcaError,
    LKey, MrKeys, MrKind, MrSpec, Payload, PdHandle, PulledReceives, QpCaps, QpHandle, QpKind,
    QpModify, QpSpec, QpState, RKey, ReceiveMode, RemoteAddress, SendFlags, SendOp, Sge,
};
use hca_linux::{MappedFiles, PORT};
use ib_endpoint::{EndPortEvent, SaEvent, SaRequest};
use ib_wire::sa::NodeRecord;
use ib_wire::{Gid, Lid, Mtu, PKeyIndex, Qpn};
use vf_proxy::native::{ConnectedQp, ConnectedQpSpec, Partition, Peer};
use vf_tunnel::VfId;
use vhca_tests::live::linux_pf::{PATIENCE, Result, Shared, ended, peer_in};

/// Bytes of the buffers: 16 writes of 1 MiB share one.
const BUFFER: u32 = 1 << 20;

/// Time for which each kind of write is repeated.
const SPAN: Duration = Duration::from_secs(1);

/// Writes of the larger sizes that are under way.
const WINDOW: usize = 16;

/// Pages of the attacker's scattered memory: of the largest region, and of one that is registered at once.
const PAGES: u32 = 4096;
const FEW_PAGES: u32 = 256;
const PAGE: u32 = 4096;

/// Bytes that no region has.
const NOWHERE: Sge = Sge {
    addr: u64::MAX - 8,
    len: 1 << 30,
    lkey: LKey(3),
};

/// The facts that the peer has to know of a VF.
struct Address {
    gid: Gid,
    lid: Lid,
    qpn: Qpn,
    memory: RemoteAddress,
}

impl Address {
    fn text(&self) -> String {
        let (gid, memory) = (u128::from_be_bytes(self.gid.0), &self.memory);
        let (lid, qpn) = (self.lid.get(), self.qpn.get());
        format!("{gid} {lid} {qpn} {} {}\n", memory.addr, memory.rkey.0)
    }

    fn read(text: &str) -> Option<Self> {
        let mut numbers = text.strip_suffix('\n')?.split(' ');
        let gid: u128 = numbers.next()?.parse().ok()?;
        let mut next = || numbers.next()?.parse::<u64>().ok();
        Some(Self {
            gid: Gid(gid.to_be_bytes()),
            lid: Lid::new(next()?.try_into().ok()?),
            qpn: Qpn::from_low_bits(next()?.try_into().ok()?),
            memory: RemoteAddress {
                addr: next()?,
                rkey: RKey(next()?.try_into().ok()?),
            },
        })
    }
}

/// Makes a queue pair for connections.
fn create(hca: &mut dyn Hca, pd: PdHandle) -> std::result::Result<ConnectedQp, HcaError> {
    let spec = ConnectedQpSpec::rc(Partition::Index(PKeyIndex(0)));
    ConnectedQp::create(hca, pd, PORT, PKeyIndex(0), &spec)
}

/// A VF with one connection.
struct Neighbour {
    vf: VfId,
    qp: ConnectedQp,
    buffer: DmaBuffer,
    region: MrKeys,
}

impl Neighbour {
    fn open(shared: &mut Shared, vf: VfId, gid: Gid) -> Result<(Self, Address)> {
        let (pd, buffer) = shared.with(vf, |hca| {
            Ok((hca.alloc_pd()?, hca.allocate_dma(BUFFER as usize)?))
        })?;
        let kind = MrKind::Virtual {
            addr: buffer.addr,
            len: buffer.len as u64,
        };
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let spec = MrSpec {
            pd,
            kind,
            access,
            key: None,
        };
        let region = shared.register(vf, &spec)?;
        shared.with(vf, |hca| {
            let qp = create(hca, pd)?;
            let memory = RemoteAddress {
                addr: buffer.addr,
                rkey: region.rkey,
            };
            let address = Address {
                gid,
                lid: hca.query_port(PORT)?.lid,
                qpn: qp.qpn(),
                memory,
            };
            Ok((
                Self {
                    vf,
                    qp,
                    buffer,
                    region,
                },
                address,
            ))
        })
    }

    fn send(&self, shared: &mut Shared, op: SendOp<'_>, len: u32) -> Result<()> {
        let list = &[Sge {
            addr: self.buffer.addr,
            len,
            lkey: self.region.lkey,
        }];
        shared.with(self.vf, |hca| {
            let payload = Payload::Gather(list);
            Ok(self
                .qp
                .post_send(hca, 0, op, payload, SendFlags::SIGNALED)?)
        })
    }

    fn connect(&self, shared: &mut Shared, peer: &Address) -> Result<()> {
        let peer = Peer {
            path_mtu: Mtu::MTU_4096,
            ..Peer::on_subnet(PORT, peer.lid, peer.gid, peer.qpn, self.qp.psn())
        };
        shared.with(self.vf, |hca| Ok(self.qp.connect(hca, &peer)?))
    }

    /// Takes completions. Returns their number.
    fn completed(&self, shared: &mut Shared) -> Result<usize> {
        let mut out = [Completion::BLANK; WINDOW];
        let count = shared.with(self.vf, |hca| Ok(hca.poll_cq(self.qp.cq(), &mut out)?))?;
        let failed = |of: &&Completion| of.status != CompletionStatus::Success;
        match out[..count].iter().find(failed) {
            Some(failed) => Err(format!("{failed:?}").into()),
            None => Ok(count),
        }
    }
}

/// A source of endless receives. Each seventh names bytes that no region has.
#[derive(Debug)]
struct Endless {
    place: Sge,
    taken: u64,
}

impl PulledReceives for Endless {
    fn pull(&mut self, _: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        self.taken += 1;
        scatter.push(match self.taken % 7 {
            0 => NOWHERE,
            _ => self.place,
        });
        Some(self.taken)
    }

    fn pending(&self, _: &dyn AddressSpace) -> usize {
        usize::MAX
    }
}

/// A VF whose calls are of no use to it.
struct Attacker {
    vf: VfId,
    pd: PdHandle,
    buffer: DmaBuffer,
    regions: Vec<MrKeys>,
    /// A queue pair whose receives have no end, and its completion queue.
    endless: (QpHandle, CqHandle),
    /// Receives of it that completed.
    received: usize,
    qps: Vec<ConnectedQp>,
    /// Pages of the largest region, the last one first.
    pages: Arc<Vec<u64>>,
    few_pages: Arc<Vec<u64>>,
    calls: u64,
}

impl Attacker {
    fn open(shared: &mut Shared, vf: VfId) -> Result<Self> {
        shared.with(vf, |hca| {
            let buffer = hca.allocate_dma((PAGES * PAGE) as usize)?;
            let pages = |count: u32| {
                let pages = (0..count).rev();
                Arc::new(
                    pages
                        .map(|page| buffer.addr + u64::from(page * PAGE))
                        .collect(),
                )
            };
            let pd = hca.alloc_pd()?;
            Ok(Self {
                vf,
                pd,
                buffer,
                regions: Vec::new(),
                endless: Self::open_endless(hca, pd, buffer.addr)?,
                received: 0,
                qps: Vec::new(),
                pages: pages(PAGES),
                few_pages: pages(FEW_PAGES),
                calls: 0,
            })
        })
    }

    /// Makes a queue pair that reads its receives from memory of the VF.
    fn open_endless(hca: &mut dyn Hca, pd: PdHandle, addr: u64) -> Result<(QpHandle, CqHandle)> {
        let kind = MrKind::Virtual { addr, len: 64 };
        let access = AccessFlags::LOCAL_WRITE;
        let spec = MrSpec {
            pd,
            kind,
            access,
            key: None,
        };
        let lkey = hca.register_mr(&spec)?.lkey;
        let place = Sge {
            addr,
            len: 64,
            lkey,
        };
        let cq = hca.create_cq(512)?;
        let (qp, _) = hca.create_qp(QpSpec {
            kind: QpKind::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: 1,
                max_recv_wr: 256,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
            receives: ReceiveMode::Pulled(Box::new(Endless { place, taken: 0 })),
            qpn: None,
            block_multicast_loopback: false,
        })?;
        Ok((qp, cq))
    }

    /// Resets the queue pair with endless receives, and brings it to INIT, where the adapter reads them, and to the error state, where it
    /// flushes them.
    fn read_endless(&mut self, hca: &mut dyn Hca) -> Result<()> {
        let (qp, cq) = self.endless;
        let to = |state| QpModify {
            state: Some(state),
            ..QpModify::default()
        };
        let init = QpModify {
            port: Some(PORT),
            pkey_index: Some(PKeyIndex(0)),
            access: Some(AccessFlags::empty()),
            ..to(QpState::Init)
        };
        for change in [to(QpState::Reset), init, to(QpState::Error)] {
            hca.modify_qp(qp, &change)?;
        }
        let mut out = [Completion::BLANK; 512];
        self.received += hca.poll_cq(cq, &mut out)?;
        Ok(())
    }

    /// Registers memory, or asks for the outcome.
    fn register(&mut self, hca: &mut dyn Hca, kind: MrKind<'_>) {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let spec = MrSpec {
            pd: self.pd,
            kind,
            access,
            key: None,
        };
        self.regions.extend(hca.register_mr(&spec));
    }

    /// Deregisters memory. A region that is under way is the next one to be asked for again.
    fn deregister(&mut self, hca: &mut dyn Hca, region: MrKeys) -> Result<()> {
        match hca.deregister_mr(region.handle) {
            Err(HcaError::Pending) => self.regions.insert(0, region),
            ended => ended?,
        }
        Ok(())
    }

    fn scattered(pages: &Arc<Vec<u64>>) -> MrKind<'_> {
        MrKind::Physical {
            pages,
            page_shift: 12,
            iova: 0,
            first_offset: 0,
            len: pages.len() as u64 * u64::from(PAGE),
        }
    }

    /// Makes the next call. Some are made to be refused.
    fn call(&mut self, shared: &mut Shared) -> Result<()> {
        self.calls += 1;
        let number = self.calls;
        let vf = self.vf;
        shared.with(vf, |hca| {
            match number % 8 {
                0 => {
                    let pages = self.pages.clone();
                    self.register(hca, Self::scattered(&pages));
                }
                1 => {
                    let few_pages = self.few_pages.clone();
                    self.register(hca, Self::scattered(&few_pages));
                }
                2 => self.register(
                    hca,
                    MrKind::Virtual {
                        addr: self.buffer.addr,
                        len: self.buffer.len as u64,
                    },
                ),
                3 => {
                    if let Some(region) = self.regions.pop() {
                        self.deregister(hca, region)?;
                    }
                }
                4 if self.qps.len() < 8 => {
                    self.qps.push(create(hca, self.pd)?);
                }
                5 if number % 16 == 5 => self.read_endless(hca)?,
                5 => {
                    let list = &[Sge {
                        lkey: LKey(u32::try_from(number % 99_991)?),
                        ..NOWHERE
                    }];
                    let posted = self.qps.last().map(|qp| qp.post_recv(hca, 0, list));
                    let is_expected = matches!(
                        posted,
                        None | Some(Ok(()) | Err(HcaError::QueueFull | HcaError::InvalidParameter))
                    );
                    is_expected
                        .then_some(())
                        .ok_or_else(|| format!("{posted:?}"))?;
                }
                6 => {
                    if let Some(qp) = self.qps.last() {
                        let _ = qp.poll_cq(hca);
                    }
                }
                _ => {
                    let is_enough = self.qps.len() == 8 || number % 16 == 7;
                    if is_enough && let Some(qp) = self.qps.pop() {
                        qp.destroy(hca);
                    }
                    if self.regions.len() > 4 {
                        let region = self.regions.remove(0);
                        self.deregister(hca, region)?;
                    }
                }
            }
            Ok(())
        })
    }
}

/// Both VFs of the program that asks.
struct Pair {
    shared: Shared,
    neighbour: Neighbour,
    attacker: Option<Attacker>,
}

impl Pair {
    /// Polls everything in turns, until a write of the neighbour's is complete.
    fn completed(&mut self) -> Result<usize> {
        let patience = Instant::now() + PATIENCE;
        loop {
            self.shared.turn()?;
            if let Some(attacker) = &mut self.attacker {
                attacker.call(&mut self.shared)?;
            }
            match self.neighbour.completed(&mut self.shared)? {
                0 if Instant::now() > patience => return Err("no write completes".into()),
                0 => {}
                count => return Ok(count),
            }
        }
    }

    /// Prints half of the times that writes of 8 bytes take.
    fn times(&mut self, write: SendOp<'_>) -> Result<()> {
        let end = Instant::now() + SPAN;
        let mut times = Vec::new();
        while Instant::now() < end {
            let begun = Instant::now();
            self.neighbour.send(&mut self.shared, write, 8)?;
            self.completed()?;
            times.push(begun.elapsed() / 2);
        }
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 1000].as_secs_f64() * 1e6;
        let longest = times
            .last()
            .map_or(0.0, |longest| longest.as_secs_f64() * 1e6);
        let (median, most) = (at(500), at(990));
        println!("8 bytes: {median:.1} us, 99 of 100 in {most:.1}, the longest {longest:.1}");
        Ok(())
    }

    /// Prints the median time that the SA takes for a request, and the name of the request.
    fn searches(&mut self, name: &str, request: impl Fn() -> SaRequest) -> Result<()> {
        let vf = self.neighbour.vf;
        let mut times = Vec::new();
        for _ in 0..2000 {
            let begun = Instant::now();
            let now = self.shared.now();
            self.shared.port(vf)?.query(now, request());
            self.shared.until(|shared| {
                let event = shared.port(vf)?.poll_event();
                let is_answer = |event| matches!(event, EndPortEvent::Sa(SaEvent::Answered { .. }));
                Ok(event.is_some_and(is_answer).then_some(()))
            })?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        let median = times[times.len() / 2].as_secs_f64() * 1e6;
        println!("{name}: {median:.1} us");
        Ok(())
    }

    /// Prints how many bytes a second are written by writes of a length.
    fn rate(&mut self, write: SendOp<'_>, len: u32) -> Result<()> {
        let begun = Instant::now();
        let (mut under_way, mut bytes) = (0, 0);
        while begun.elapsed() < SPAN || under_way > 0 {
            while under_way < WINDOW && begun.elapsed() < SPAN {
                self.neighbour.send(&mut self.shared, write, len)?;
                under_way += 1;
            }
            let count = self.completed()?;
            under_way -= count;
            bytes += count as u64 * u64::from(len);
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate has three digits")]
        let rate = bytes as f64 / begun.elapsed().as_secs_f64() / 1e6;
        println!("{len} bytes: {rate:.0} MB/s");
        Ok(())
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [
        device,
        port,
        role @ ("answer" | "alone" | "attacked"),
        own,
        peer,
    ] = words[..]
    else {
        return Err("which device and port; answer, alone or attacked; and by which files?".into());
    };
    let mut shared = Shared::open(device, port.parse()?, 2, Some(MappedFiles::default()))?;
    let gids = shared.bring_up()?;
    let [vf, second] = [shared.vfs[0], shared.vfs[1]];
    let (neighbour, address) = Neighbour::open(&mut shared, vf, gids[&vf])?;
    if role == "answer" {
        let list = &[Sge {
            addr: neighbour.buffer.addr,
            len: 8,
            lkey: neighbour.region.lkey,
        }];
        shared.with(vf, |hca| Ok(neighbour.qp.post_recv(hca, 0, list)?))?;
    }
    fs::write(own, address.text())?;
    let peer = peer_in(peer, Address::read)?;
    neighbour.connect(&mut shared, &peer)?;
    if role == "answer" {
        return shared.until(|shared| Ok((neighbour.completed(shared)? > 0).then_some(())));
    }
    let attacker = match role {
        "attacked" => Some(Attacker::open(&mut shared, second)?),
        _ => None,
    };
    let mut pair = Pair {
        shared,
        neighbour,
        attacker,
    };
    let write = SendOp::RdmaWrite(peer.memory);
    // The first one may be there before its queue pair is ready, and is repeated.
    pair.neighbour.send(&mut pair.shared, write, 8)?;
    pair.completed()?;
    pair.times(write)?;
    for len in [1 << 16, 1 << 20] {
        pair.rate(write, len)?;
    }
    match pair.attacker.take() {
        Some(Attacker {
            calls, received, ..
        }) => println!("{calls} calls of the other VF, {received} of its receives"),
        None => {
            pair.searches("paths", || {
                SaRequest::path_by_gids(gids[&vf], peer.gid, None)
            })?;
            let node = NodeRecord {
                lid: peer.lid,
                ..NodeRecord::default()
            };
            pair.searches("nodes", || SaRequest::get(&node, NodeRecord::LID))?;
        }
    }
    pair.neighbour.send(&mut pair.shared, SendOp::Send, 8)?;
    pair.completed()?;
    Ok(())
}

fn main() -> ExitCode {
    ended(run())
}
