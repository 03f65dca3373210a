//! What a datagram costs: from posting the send to polling the receive.
//!
//! ```text
//! cargo run --release -p emulated-hca --example datagram_cost
//! ```
//!
//! Prints one JSON object per case, with the median, the least and the greatest of the runs.

use std::error::Error;
use std::time::Instant as WallClock;

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AccessFlags, AddressVector, Completion, CompletionFlags, CompletionOp, CompletionStatus,
    CqHandle, FunctionId, FunctionManager, FunctionSpec, Hca, HostMemory, LKey, MrKind, MrSpec,
    Payload, PortState, QpCaps, QpHandle, QpKind, QpModify, QpNumbers, QpSpec, QpState,
    ReceiveMode, RecvRequest, ResourceCounts, SendFlags, SendOp, SendRequest, Sge, SpecialQp,
    UdAddress, UdDestination, VirtualPort,
};
use ib_vtime::Instant;
use ib_wire::{Guid, Lid, Mtu, PKeyIndex, PortNum, Psn, QKey, Qpn, Sl};

const PORT: PortNum = PortNum(1);
const VF: FunctionId = FunctionId(1);
const QKEY: QKey = QKey::new(1);
/// Many short runs: on a busy machine most fit between two interruptions.
const RUNS: usize = 301;
const OPS: u32 = 2_000;
/// Bytes of a tunnel message: header and MAD.
const TUNNEL_MESSAGE: u32 = 312;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    for size in [64, 256, 2048] {
        report("ud-loopback", size, || loopback(size))?;
        report("ud-wire", size, || wire(size))?;
    }
    report("proxy-to-tunnel", TUNNEL_MESSAGE, tunnel)?;
    report("proxy-pf-wire-pf-proxy", TUNNEL_MESSAGE, round_trip)
}

/// Runs a case and prints its cost.
fn report(case: &str, bytes: u32, run: impl Fn() -> Outcome<f64>) -> Outcome<()> {
    let mut runs = (0..RUNS).map(|_| run()).collect::<Outcome<Vec<f64>>>()?;
    runs.sort_by(f64::total_cmp);
    println!(
        "{{\"case\":\"{case}\",\"bytes\":{bytes},\"ops\":{OPS},\"ns_per_op\":{:.1},\"min\":{:.1},\"max\":{:.1}}}",
        runs[RUNS / 2],
        runs[0],
        runs[RUNS - 1]
    );
    Ok(())
}

/// Nanoseconds per call.
fn time(mut op: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    for _ in 0..200 {
        op()?;
    }
    let start = WallClock::now();
    for _ in 0..OPS {
        op()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(OPS))
}

fn device(lid: u16) -> Outcome<Device> {
    let guid = Guid::new(0x0002_c903_0000_0000 + u64::from(lid) * 0x100);
    let mut device = Device::new(&HcaConfig::new(guid, "cost"), 1);
    let port = device.node_mut().port_mut(PORT).ok_or("no port")?;
    port.state = PortState::Active;
    port.lid = Lid::new(lid);
    port.neighbor_mtu = Mtu::MTU_4096;
    Ok(device)
}

/// A queue pair with one buffer to send from and one to receive into.
#[derive(Clone, Copy)]
struct End {
    function: FunctionId,
    qp: QpHandle,
    cq: CqHandle,
    numbers: QpNumbers,
    addr: u64,
    lkey: LKey,
}

const RECEIVE_AT: u64 = 8192;
const BLANK: Completion = Completion {
    wr_id: 0,
    status: CompletionStatus::Aborted,
    op: CompletionOp::Recv,
    qpn: Qpn::SMI,
    byte_len: 0,
    immediate: 0,
    flags: CompletionFlags::empty(),
    source: None,
};

impl End {
    fn open(device: &mut Device, function: FunctionId, kind: QpKind) -> Outcome<Self> {
        let mut hca = device.function(function).ok_or("no function")?;
        let memory = hca.allocate_dma(16384)?;
        let pd = hca.alloc_pd()?;
        let region = hca.register_mr(&MrSpec {
            pd,
            kind: MrKind::Virtual {
                addr: memory.addr,
                len: memory.len as u64,
            },
            access: AccessFlags::LOCAL_WRITE,
            key: None,
        })?;
        let cq = hca.create_cq(64)?;
        let (qp, numbers) = hca.create_qp(QpSpec {
            kind,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: QpCaps {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: false,
            receives: ReceiveMode::Posted,
            qpn: None,
            block_multicast_loopback: false,
        })?;
        let change = |state, sq_psn| QpModify {
            state: Some(state),
            sq_psn,
            ..QpModify::default()
        };
        let qkey = if kind == QpKind::Ud { QKEY } else { QKey::GSI };
        hca.modify_qp(
            qp,
            &QpModify {
                port: Some(PORT),
                pkey_index: Some(PKeyIndex(0)),
                qkey: Some(qkey),
                ..change(QpState::Init, None)
            },
        )?;
        hca.modify_qp(qp, &change(QpState::ReadyToReceive, None))?;
        hca.modify_qp(qp, &change(QpState::ReadyToSend, Some(Psn::default())))?;
        Ok(Self {
            function,
            qp,
            cq,
            numbers,
            addr: memory.addr,
            lkey: region.lkey,
        })
    }

    fn post_recv(&self, device: &mut Device) -> Outcome<()> {
        let scatter = [Sge {
            addr: self.addr + RECEIVE_AT,
            len: 8192,
            lkey: self.lkey,
        }];
        let mut hca = device.function(self.function).ok_or("no function")?;
        hca.post_recv(
            self.qp,
            &RecvRequest {
                wr_id: 1,
                scatter: &scatter,
            },
        )?;
        Ok(())
    }

    /// Sends from the front of the buffer.
    fn send(&self, device: &mut Device, to: Option<UdDestination>, bytes: u32) -> Outcome<()> {
        let gather = [Sge {
            addr: self.addr,
            len: bytes,
            lkey: self.lkey,
        }];
        let mut hca = device.function(self.function).ok_or("no function")?;
        hca.post_send(
            self.qp,
            &SendRequest {
                wr_id: 2,
                op: SendOp::Send,
                payload: Payload::Gather(&gather),
                flags: SendFlags::empty(),
                destination: to,
            },
        )?;
        Ok(())
    }

    /// Takes the one message that has arrived.
    fn take(&self, device: &mut Device) -> Outcome<Completion> {
        let mut out = [BLANK; 4];
        let mut hca = device.function(self.function).ok_or("no function")?;
        match hca.poll_cq(self.cq, &mut out)? {
            1 if out[0].status == CompletionStatus::Success => Ok(out[0]),
            count => Err(format!("{count} completions, the first {:?}", out[0]).into()),
        }
    }

    /// Copies what was received last to where it is sent from, as software that rewrites it does.
    fn turn_around(&self, device: &mut Device, bytes: usize) -> Outcome<()> {
        let mut message = [0; TUNNEL_MESSAGE as usize];
        let mut hca = device.function(self.function).ok_or("no function")?;
        hca.dma_read(self.addr + RECEIVE_AT + 40, &mut message[..bytes])?;
        hca.dma_write(self.addr, &message[..bytes])?;
        Ok(())
    }
}

fn address(dlid: u16, qpn: Qpn, qkey: QKey) -> UdDestination {
    UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: PORT,
            dlid: Lid::new(dlid),
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        }),
        qpn,
        qkey,
        pkey_index: None,
    }
}

fn pipe(from: &mut Device, to: &mut Device) {
    while let Some(frame) = from.poll_transmit(Instant::ZERO, PORT) {
        to.receive(Instant::ZERO, PORT, frame);
    }
}

fn loopback(bytes: u32) -> Outcome<f64> {
    let mut device = device(1)?;
    let a = End::open(&mut device, FunctionId::PF, QpKind::Ud)?;
    let b = End::open(&mut device, FunctionId::PF, QpKind::Ud)?;
    let to = address(1, b.numbers.real, QKEY);
    time(|| {
        b.post_recv(&mut device)?;
        a.send(&mut device, Some(to), bytes)?;
        b.take(&mut device).map(drop)
    })
}

fn wire(bytes: u32) -> Outcome<f64> {
    let (mut left, mut right) = (device(1)?, device(2)?);
    let a = End::open(&mut left, FunctionId::PF, QpKind::Ud)?;
    let b = End::open(&mut right, FunctionId::PF, QpKind::Ud)?;
    let to = address(2, b.numbers.real, QKEY);
    time(|| {
        b.post_recv(&mut right)?;
        a.send(&mut left, Some(to), bytes)?;
        pipe(&mut left, &mut right);
        b.take(&mut right).map(drop)
    })
}

/// A proxy and its tunnel queue pair.
fn open_tunnel(device: &mut Device) -> Outcome<(End, End)> {
    let (special, port) = (SpecialQp::Gsi, PORT);
    let mut pf = device.function(FunctionId::PF).ok_or("no function")?;
    pf.create_function(FunctionSpec {
        id: VF,
        node_guid: Guid::new(1),
        memory: Box::new(HostMemory::new()),
        quota: ResourceCounts {
            pds: 1,
            cqs: 1,
            qps: 1,
            mrs: 1,
            ..ResourceCounts::default()
        },
    })?;
    let view = VirtualPort {
        state: PortState::Active,
        pkeys: vec![Some(PKeyIndex(0))],
        smi_enabled: false,
    };
    pf.set_virtual_port(VF, PORT, view)?;
    let proxy = End::open(device, VF, QpKind::Proxy { special, port })?;
    let kind = QpKind::Tunnel {
        function: VF,
        special,
        port,
    };
    Ok((proxy, End::open(device, FunctionId::PF, kind)?))
}

fn tunnel() -> Outcome<f64> {
    let mut device = device(1)?;
    let (proxy, tunnel) = open_tunnel(&mut device)?;
    time(|| {
        tunnel.post_recv(&mut device)?;
        proxy.send(&mut device, None, TUNNEL_MESSAGE)?;
        tunnel.take(&mut device).map(drop)
    })
}

/// A MAD from a VF's proxy through the PF to a peer on the wire, and its answer back.
fn round_trip() -> Outcome<f64> {
    let (mut left, mut right) = (device(1)?, device(2)?);
    let (proxy, tunnel) = open_tunnel(&mut left)?;
    let special = QpKind::Special {
        special: SpecialQp::Gsi,
        port: PORT,
    };
    let near = End::open(&mut left, FunctionId::PF, special)?;
    let far = End::open(&mut right, FunctionId::PF, special)?;
    time(|| {
        for end in [&proxy, &tunnel, &near] {
            end.post_recv(&mut left)?;
        }
        far.post_recv(&mut right)?;
        proxy.send(&mut left, None, TUNNEL_MESSAGE)?;
        tunnel.take(&mut left)?;
        tunnel.turn_around(&mut left, 312)?;
        near.send(&mut left, Some(address(2, Qpn::GSI, QKey::GSI)), 256)?;
        pipe(&mut left, &mut right);
        far.take(&mut right)?;
        far.turn_around(&mut right, 256)?;
        far.send(&mut right, Some(address(1, Qpn::GSI, QKey::GSI)), 256)?;
        pipe(&mut right, &mut left);
        near.take(&mut left)?;
        near.turn_around(&mut left, 256)?;
        tunnel.send(&mut left, None, TUNNEL_MESSAGE)?;
        proxy.take(&mut left).map(drop)
    })
}
