//! Data of a VF on a port of a Linux HCA, by hca-linux, hca-functions and libibverbs.
//!
//! ```text
//! linux_data DEVICE PORT (ask|answer) OWN PEER
//! ```
//!
//! Two of these programs exchange their addresses by the files OWN and PEER. The one that asks sends messages to the other, writes to its
//! memory and reads it back, and changes a number there; the one that answers checks what it got. Both destroy everything
//! at the end and print their steps. An error is one line, with exit status 2.

use std::collections::VecDeque;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;

use hca_api::{
    AccessFlags, ArmKind, AsyncEvent, Completion, CompletionFlags, CompletionOp, CompletionStatus,
    CqHandle, DmaBuffer, MrHandle, MrKeys, MrKind, MrSpec, Payload, PdHandle, QpCaps, QpHandle,
    QpKind, QpModify, QpSpec, QpState, RKey, ReceiveMode, RecvRequest, RemoteAddress, SendFlags,
    SendOp, SendRequest, Sge, SrqHandle, SrqSpec, UdAddress, UdDestination,
};
use hca_linux::{MappedFiles, PORT};
use ib_wire::{Gid, Lid, Mtu, PKeyIndex, Psn, QKey, Qpn};
use vf_tunnel::VfId;
use vhca_tests::live::linux_pf::{Result, Shared, ended, peer_in, vector};

/// Bytes of the messages.
const SIZES: [u32; 6] = [1, 2, 4095, 4096, 65_536, 1 << 20];

/// Bytes of each program's buffer: messages in the lower half, the peer's writes in the upper one, and its number behind both.
const HALF: u32 = 1 << 21;
const NUMBER: u32 = 2 * HALF;

/// Pages whose order is the reverse in a region of their own, at this address, and where they are in the buffer.
const PAGES: u32 = 256;
const PAGE: u32 = 4096;
const REVERSED: u32 = NUMBER + PAGE;
const IOVA: u64 = 0x7000_0000;

/// Bytes of a datagram, and the route in front of it.
const DATAGRAM: u32 = 2000;
const ROUTE: u32 = 40;

const QKEY: QKey = QKey::new(0x1111);

/// The kinds of queue pairs, in the order in which the programs have them.
const KINDS: [QpKind; 3] = [QpKind::Rc, QpKind::Uc, QpKind::Ud];

/// Addresses of a program.
#[derive(Clone, Copy, Debug)]
struct Address {
    gid: Gid,
    lid: Lid,
    qps: [Qpn; 3],
    memory: RemoteAddress,
}

impl Address {
    fn text(&self) -> String {
        let [rc, uc, ud] = self.qps.map(Qpn::get);
        let (gid, memory) = (u128::from_be_bytes(self.gid.0), &self.memory);
        let (addr, key) = (memory.addr, memory.rkey.0);
        format!("{gid} {} {rc} {uc} {ud} {addr} {key}\n", self.lid.get())
    }

    fn read(text: &str) -> Option<Self> {
        let mut numbers = text.strip_suffix('\n')?.split(' ');
        let gid: u128 = numbers.next()?.parse().ok()?;
        let mut next = || numbers.next()?.parse::<u64>().ok();
        let lid = Lid::new(next()?.try_into().ok()?);
        let mut qp = || Some(Qpn::from_low_bits(next()?.try_into().ok()?));
        let qps = [qp()?, qp()?, qp()?];
        let memory = RemoteAddress {
            addr: next()?,
            rkey: RKey(next()?.try_into().ok()?),
        };
        Some(Self {
            gid: Gid(gid.to_be_bytes()),
            lid,
            qps,
            memory,
        })
    }
}

/// Bytes of a message of this length, none like another's.
fn message(len: u32) -> Vec<u8> {
    let byte = |at: u32| (at + len % 241).to_le_bytes()[0] ^ at.to_le_bytes()[1];
    (0..len).map(byte).collect()
}

/// A program with its objects.
struct Program {
    shared: Shared,
    vf: VfId,
    pd: PdHandle,
    cq: CqHandle,
    buffer: DmaBuffer,
    region: MrKeys,
    reversed: MrKeys,
    /// Of the one that answers: receives of its RC and UD.
    srq: Option<SrqHandle>,
    qps: [QpHandle; 3],
    completions: VecDeque<Completion>,
}

impl Program {
    fn open(device: &str, port: u8, shares: bool) -> Result<(Self, Address)> {
        let mut shared = Shared::open(device, port, 1, Some(MappedFiles::default()))?;
        let vf = shared.vfs[0];
        let gids = shared.bring_up()?;
        let (pd, cq, buffer) = shared.with(vf, |hca| {
            let pd = hca.alloc_pd()?;
            let cq = hca.create_cq(64)?;
            let buffer = hca.allocate_dma((REVERSED + PAGES * PAGE) as usize)?;
            Ok((pd, cq, buffer))
        })?;
        // More than 4 MiB: a thread registers them.
        let region = shared.register(
            vf,
            &MrSpec {
                pd,
                kind: MrKind::Virtual {
                    addr: buffer.addr,
                    len: buffer.len as u64,
                },
                access: AccessFlags::LOCAL_WRITE
                    | AccessFlags::REMOTE_WRITE
                    | AccessFlags::REMOTE_READ
                    | AccessFlags::REMOTE_ATOMIC,
                key: None,
            },
        )?;
        let pages = (0..PAGES).rev();
        let pages = pages.map(|page| buffer.addr + u64::from(REVERSED + page * PAGE));
        let reversed = shared.register(
            vf,
            &MrSpec {
                pd,
                kind: MrKind::Physical {
                    pages: &Arc::new(pages.collect()),
                    page_shift: 12,
                    iova: IOVA,
                    first_offset: 0,
                    len: u64::from(PAGES * PAGE),
                },
                access: AccessFlags::LOCAL_WRITE,
                key: None,
            },
        )?;
        let (made, address) = shared.with(vf, |hca| {
            let caps = QpCaps {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline: 64,
            };
            let srq = shares.then(|| {
                hca.create_srq(SrqSpec {
                    pd,
                    max_wr: 16,
                    max_sge: 2,
                    limit: 0,
                    receives: ReceiveMode::Posted,
                })
            });
            let srq = srq.transpose()?;
            let mut made = Vec::new();
            for kind in KINDS {
                made.push(hca.create_qp(QpSpec {
                    kind,
                    pd,
                    send_cq: cq,
                    recv_cq: cq,
                    srq: srq.filter(|_| kind != QpKind::Uc),
                    caps,
                    signal_all: false,
                    receives: ReceiveMode::Posted,
                    qpn: None,
                    block_multicast_loopback: false,
                })?);
            }
            let numbers = [0, 1, 2].map(|at: usize| made[at].1.real);
            let shown = hca.query_port(PORT)?;
            let mtu = shown.active_mtu.bytes().unwrap_or(0);
            println!("MTU {mtu}, SubnetTimeOut {}", shown.subnet_timeout);
            let address = Address {
                gid: gids[&vf],
                lid: shown.lid,
                qps: numbers,
                memory: RemoteAddress {
                    addr: buffer.addr,
                    rkey: region.rkey,
                },
            };
            let qps = [0, 1, 2].map(|at: usize| made[at].0);
            Ok(((srq, qps), address))
        })?;
        let (srq, qps) = made;
        let program = Self {
            shared,
            vf,
            pd,
            cq,
            buffer,
            region,
            reversed,
            srq,
            qps,
            completions: VecDeque::new(),
        };
        Ok((program, address))
    }

    /// Takes the queue pairs to the state in which they have receives.
    fn initialize(&mut self) -> Result<()> {
        let qps = self.qps;
        self.shared.with(self.vf, |hca| {
            for (kind, qp) in KINDS.into_iter().zip(qps) {
                let rights = match kind {
                    QpKind::Rc => {
                        AccessFlags::REMOTE_WRITE
                            | AccessFlags::REMOTE_READ
                            | AccessFlags::REMOTE_ATOMIC
                    }
                    _ => AccessFlags::REMOTE_WRITE,
                };
                let init = QpModify {
                    state: Some(QpState::Init),
                    port: Some(PORT),
                    pkey_index: Some(PKeyIndex(0)),
                    qkey: kind.is_datagram().then_some(QKEY),
                    access: (!kind.is_datagram()).then_some(rights),
                    ..QpModify::default()
                };
                hca.modify_qp(qp, &init)?;
            }
            Ok(())
        })
    }

    /// Takes the queue pairs to the state in which they send.
    fn connect(&mut self, peer: &Address) -> Result<()> {
        let qps = self.qps;
        self.shared.with(self.vf, |hca| {
            // The connection comes last: once the peer answers on it, all of the peer's are there.
            for ((kind, qp), number) in KINDS.into_iter().zip(qps).zip(peer.qps).rev() {
                let (is_rc, is_ud) = (kind == QpKind::Rc, kind == QpKind::Ud);
                let first = Psn::from_low_bits(7);
                let receive = QpModify {
                    state: Some(QpState::ReadyToReceive),
                    primary: (!is_ud).then(|| vector(peer.gid, peer.lid)),
                    path_mtu: (!is_ud).then_some(Mtu::MTU_2048),
                    dest_qpn: (!is_ud).then_some(number),
                    rq_psn: (!is_ud).then_some(first),
                    max_dest_rd_atomic: is_rc.then_some(4),
                    min_rnr_timer: is_rc.then_some(14),
                    ..QpModify::default()
                };
                let send = QpModify {
                    state: Some(QpState::ReadyToSend),
                    sq_psn: Some(first),
                    timeout: is_rc.then_some(16),
                    retry_count: is_rc.then_some(7),
                    rnr_retry: is_rc.then_some(7),
                    max_rd_atomic: is_rc.then_some(4),
                    ..QpModify::default()
                };
                for change in [receive, send] {
                    hca.modify_qp(qp, &change)?;
                }
                let shown = hca.query_qp(qp)?;
                if shown.state != QpState::ReadyToSend {
                    return Err(format!("{shown:?}").into());
                }
            }
            Ok(())
        })
    }

    fn sge(&self, at: u32, len: u32) -> Sge {
        Sge {
            addr: self.buffer.addr + u64::from(at),
            len,
            lkey: self.region.lkey,
        }
    }

    fn receive(&mut self, qp: usize, wr_id: u64, sge: Sge) -> Result<()> {
        let (qp, srq) = (self.qps[qp], self.srq.filter(|_| KINDS[qp] != QpKind::Uc));
        self.shared.with(self.vf, |hca| {
            let scatter = &[sge];
            let request = RecvRequest { wr_id, scatter };
            match srq {
                Some(srq) => hca.post_srq_recv(srq, &request)?,
                None => hca.post_recv(qp, &request)?,
            }
            Ok(())
        })
    }

    /// Posts a send, and waits until it is complete.
    fn send(
        &mut self,
        qp: usize,
        op: SendOp<'_>,
        payload: Payload<'_>,
        destination: Option<UdDestination>,
    ) -> Result<Completion> {
        let handle = self.qps[qp];
        let wr_id = 0xfeed_0000_0000_0000;
        self.shared.with(self.vf, |hca| {
            Ok(hca.post_send(
                handle,
                &SendRequest {
                    wr_id,
                    op,
                    payload,
                    flags: SendFlags::SIGNALED,
                    destination,
                },
            )?)
        })?;
        let completion = self.completion()?;
        match (completion.wr_id, completion.status) {
            (id, CompletionStatus::Success) if id == wr_id => Ok(completion),
            _ => Err(format!("{completion:?}").into()),
        }
    }

    /// Waits for a completion, by the announcement of the queue.
    fn completion(&mut self) -> Result<Completion> {
        let (vf, cq) = (self.vf, self.cq);
        while self.completions.is_empty() {
            self.shared.software(vf)?.announced.clear();
            let waits = self
                .shared
                .with(vf, |hca| Ok(hca.arm_cq(cq, ArmKind::Next)?))?;
            if !waits {
                self.shared.until(|shared| {
                    let announced = &shared.software(vf)?.announced;
                    Ok(announced.contains(&cq).then_some(()))
                })?;
            }
            let mut out = [Completion::BLANK; 8];
            let count = self.shared.with(vf, |hca| Ok(hca.poll_cq(cq, &mut out)?))?;
            self.completions.extend(&out[..count]);
        }
        self.completions.pop_front().ok_or_else(|| "none".into())
    }

    fn bytes(&mut self, at: u32, len: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        let addr = self.buffer.addr + u64::from(at);
        self.shared
            .with(self.vf, |hca| Ok(hca.dma_read(addr, &mut bytes)?))?;
        Ok(bytes)
    }

    fn write(&mut self, at: u32, bytes: &[u8]) -> Result<()> {
        let addr = self.buffer.addr + u64::from(at);
        self.shared
            .with(self.vf, |hca| Ok(hca.dma_write(addr, bytes)?))
    }

    fn ask(&mut self, peer: &Address) -> Result<()> {
        let at = |offset: u32| RemoteAddress {
            addr: peer.memory.addr + u64::from(offset),
            ..peer.memory
        };
        for len in SIZES {
            for (page, bytes) in (0..PAGES).rev().zip(message(len).chunks(PAGE as usize)) {
                self.write(REVERSED + page * PAGE, bytes)?;
            }
            let list = &[Sge {
                addr: IOVA,
                len,
                lkey: self.reversed.lkey,
            }];
            self.send(0, SendOp::Send, Payload::Gather(list), None)?;
            self.send(0, SendOp::RdmaWrite(at(HALF)), Payload::Gather(list), None)?;
            let back = &[self.sge(HALF, len)];
            let read = SendOp::RdmaRead(at(HALF));
            let done = self.send(0, read, Payload::Gather(back), None)?;
            if self.bytes(HALF, len)? != message(len) || done.op != CompletionOp::RdmaRead {
                return Err(format!("{len} bytes read are others: {done:?}").into());
            }
        }
        println!("{} messages, writes and reads", SIZES.len());
        let list = &[self.sge(NUMBER, 8)];
        let mut olds = Vec::new();
        for op in [
            SendOp::FetchAdd {
                remote: at(NUMBER),
                add: 5,
            },
            SendOp::CompareSwap {
                remote: at(NUMBER),
                compare: 105,
                swap: 7,
            },
            SendOp::FetchAdd {
                remote: at(NUMBER),
                add: 0,
            },
        ] {
            self.send(0, op, Payload::Gather(list), None)?;
            let old = self.bytes(NUMBER, 8)?;
            olds.push(u64::from_ne_bytes(old.as_slice().try_into()?));
        }
        println!("the number was {olds:?}");
        self.write(0, &message(DATAGRAM))?;
        let list = &[self.sge(0, DATAGRAM)];
        self.send(1, SendOp::Send, Payload::Gather(list), None)?;
        let to = UdDestination {
            address: UdAddress::Vector(vector(peer.gid, peer.lid)),
            qpn: peer.qps[2],
            qkey: QKEY,
            pkey_index: None,
        };
        self.send(2, SendOp::Send, Payload::Gather(list), Some(to))?;
        let last = SendOp::SendImmediate(0x1234_5678);
        self.send(0, last, Payload::Inline(b"the end"), None)?;
        println!("UC, UD and an end");
        let beyond = SendOp::RdmaWrite(at(REVERSED + PAGES * PAGE - 7));
        let refused = self.send(0, beyond, Payload::Gather(&[self.sge(0, 8)]), None);
        let refused = refused.err().ok_or("a write beyond the region is done")?;
        let is_refused = refused.to_string().contains("RemoteAccess");
        println!("a write beyond the region is refused: {is_refused}");
        Ok(())
    }

    fn answer(&mut self, peer: &Address) -> Result<()> {
        for len in SIZES {
            let completion = self.completion()?;
            let got = (completion.wr_id, completion.op, completion.byte_len);
            let at = u32::try_from(completion.wr_id)?;
            let bytes = self.bytes(at, len)?;
            if got.1 != CompletionOp::Recv || got.2 != len || bytes != message(len) {
                return Err(format!("{len} bytes received are others: {completion:?}").into());
            }
        }
        println!("{} messages", SIZES.len());
        for _ in 0..3 {
            let completion = self.completion()?;
            let at = u32::try_from(completion.wr_id)?;
            if completion.flags.contains(CompletionFlags::IMMEDIATE) {
                let text = String::from_utf8(self.bytes(at, completion.byte_len)?)?;
                println!("{text}, {:x}", completion.immediate);
            } else {
                let source = completion.source;
                let route = source.and_then(|source| source.grh);
                let start = if source.is_some() { ROUTE } else { 0 };
                let is_whole = self.bytes(at + start, DATAGRAM)? == message(DATAGRAM);
                let is_peers = route.map(|route| route.remote_gid == peer.gid);
                println!("{is_whole}, from the peer: {is_peers:?}");
            }
        }
        let (vf, srq) = (self.vf, self.srq.ok_or("no shared receives")?);
        let limit = AsyncEvent::SrqLimitReached(srq);
        self.shared.until(|shared| {
            let raised = &shared.software(vf)?.raised;
            Ok(raised.contains(&limit).then_some(()))
        })?;
        println!("and was reached");
        let largest = SIZES[SIZES.len() - 1];
        let is_written = self.bytes(HALF, largest)? == message(largest);
        println!("written: {is_written}");
        Ok(())
    }

    /// Posts the receives for all that the peer sends.
    fn prepare(&mut self) -> Result<()> {
        self.initialize()?;
        self.write(NUMBER, &100_u64.to_ne_bytes())?;
        let mut at = 0;
        let messages = SIZES.map(|len| (0, len)).into_iter();
        // Receives that are shared are taken in the order in which messages come.
        for (qp, len) in messages.chain([(1, DATAGRAM), (2, ROUTE + DATAGRAM), (0, 64)]) {
            self.receive(qp, at.into(), self.sge(at, len))?;
            at = (at + len).next_multiple_of(8);
        }
        if let Some(srq) = self.srq {
            self.shared.with(self.vf, |hca| {
                hca.modify_srq(srq, 2, None)?;
                println!("the limit is {}", hca.query_srq(srq)?.limit);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn close(mut self) -> Result<()> {
        let (qps, cq, pd, region) = (self.qps, self.cq, self.pd, self.region.handle);
        let (buffer, srq, reversed) = (self.buffer, self.srq, self.reversed.handle);
        let in_use = self.shared.with(self.vf, |hca| {
            let in_use = (hca.destroy_cq(cq).is_err(), hca.dealloc_pd(pd).is_err());
            for qp in qps {
                hca.destroy_qp(qp)?;
            }
            if let Some(srq) = srq {
                hca.destroy_srq(srq)?;
            }
            hca.destroy_cq(cq)?;
            Ok(in_use)
        })?;
        for region in [reversed, region] {
            self.shared.deregister(self.vf, pd, region)?;
        }
        self.shared.with(self.vf, |hca| {
            hca.dealloc_pd(pd)?;
            hca.free_dma(buffer);
            let gone = hca.deregister_mr(MrHandle(region.0)).is_err();
            println!("destroyed: {in_use:?}, {gone}");
            Ok(())
        })
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [device, port, role, own, peer] = words.as_slice() else {
        return Err("which device and port, ask or answer, and by which files?".into());
    };
    let (mut program, address) = Program::open(device, port.parse()?, *role == "answer")?;
    program.prepare()?;
    fs::write(own, address.text())?;
    let peer = peer_in(peer, Address::read)?;
    program.connect(&peer)?;
    match *role {
        "ask" => program.ask(&peer)?,
        "answer" => program.answer(&peer)?,
        _ => return Err("ask or answer?".into()),
    }
    program.close()
}

fn main() -> ExitCode {
    ended(run())
}
