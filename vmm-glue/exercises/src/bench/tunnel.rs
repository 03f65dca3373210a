//! MADs from VFs through the PF context to the wire, and the answers back, on an emulated adapter.
//!
//! A VF's request passes its proxy QP, the tunnel, the mux and QP1, and leaves as a packet with both
//! checksums; the answer comes as one. The peer, which turns packets around, is a few lines of this
//! module and is counted, too.

use anyhow::{Context, ensure};
use emulated_hca::hca::{Device, Function};
use emulated_hca::{EndNode, Frame, FrameWriter, HcaConfig};
use hca_api::{FunctionId, Hca, HostMemory, PortState, ResourceCounts, SpecialQp};
use ib_endpoint::{MadAddress, MadTransport};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::packet::{Packet, UdFrame};
use ib_wire::{Guid, Lid, PortNum, Psn, QKey, Qpn, Tid};
use mad_mux::tid::TidConfig;
use pf_context::context::{PfConfig, VfSpec};
use pf_context::{EgressLimit, Limits, PfContext};
use vf_proxy::native::ProxyQp;
use vf_tunnel::VfId;
use zerocopy::IntoBytes;

use super::clock::Stopwatch;
use super::{Measured, Sample, nanos_per};

const PORT: PortNum = PortNum(1);
const PEER: Lid = Lid::new(9);
/// Virtual time between two rounds: answered transactions are kept for 15 s, so a thousand rounds of
/// them.
const INTERVAL: Duration = Duration::from_millis(15);
const LEAST_REQUESTS: u32 = 100_000;

/// VFs with requests to send, and the adapter that they share.
struct Host {
    device: Device,
    pf: PfContext,
    proxies: Vec<(FunctionId, ProxyQp)>,
    request: Mad,
    /// The peer writes answers into the buffers of requests.
    answers: FrameWriter,
    sent: u64,
    now: Instant,
}

pub(super) fn prepare(vfs: u16) -> anyhow::Result<Measured> {
    let mut host = Host::new(vfs)?;
    let rounds = LEAST_REQUESTS.div_ceil(u32::from(vfs));
    let mads = 2 * u64::from(rounds) * u64::from(vfs);
    Ok(Measured {
        setup: format!(
            "a DevMgt request of each of {vfs} VFs: proxy QP, PF, packet on the wire, and back; per MAD"
        ),
        ops: mads,
        mads_per_op: Some(1),
        run: Box::new(move |_| {
            let began = Stopwatch::start();
            for _ in 0..rounds {
                host.round()?;
            }
            Ok(Sample::of(nanos_per(began.elapsed(), mads)))
        }),
    })
}

impl Host {
    fn new(vfs: u16) -> anyhow::Result<Self> {
        let mut config = HcaConfig::new(Guid::new(0x1000), "host");
        config.max_functions = vfs + 1;
        let mut device = Device::new(&config, 1);
        let port = device.node_mut().port_mut(PORT).context("no port")?;
        port.state = PortState::Active;
        port.lid = Lid::new(3);
        port.sm_lid = Lid::new(1);
        let mut config = PfConfig::new(7);
        config.limits = Limits {
            tids: TidConfig {
                per_vf: u32::MAX,
                ..TidConfig::default()
            },
            egress: EgressLimit {
                mads_per_second: 0,
                ..EgressLimit::default()
            },
            ..Limits::default()
        };
        let mut hca = function(&mut device, FunctionId::PF)?;
        let mut pf = PfContext::open(Instant::ZERO, &mut hca, &config)?;
        let mut proxies = Vec::new();
        for vf in (1..=vfs).filter_map(VfId::new) {
            let mut hca = function(&mut device, FunctionId::PF)?;
            let spec = VfSpec {
                node_guid: Guid::new(0x2000 + u64::from(vf.get())),
                memory: Box::new(HostMemory::new()),
                quota: ResourceCounts {
                    pds: 1,
                    cqs: 1,
                    qps: 1,
                    mrs: 1,
                    ..ResourceCounts::default()
                },
                ports: Vec::new(),
            };
            pf.add_vf(Instant::ZERO, &mut hca, vf, spec)?;
            let id = FunctionId::from(vf);
            let mut hca = function(&mut device, id)?;
            proxies.push((id, ProxyQp::open(&mut hca, SpecialQp::Gsi, PORT, 64)?));
        }
        let header = MadHeader::new(MgmtClass::DEV_MGT, Method::GET, AttributeId::new(0x10));
        Ok(Self {
            device,
            pf,
            proxies,
            request: Mad::new(header),
            answers: FrameWriter::default(),
            sent: 0,
            now: Instant::ZERO,
        })
    }

    /// A request of each VF, and its answer.
    fn round(&mut self) -> anyhow::Result<()> {
        self.now += INTERVAL;
        let first = self.sent;
        for (id, proxy) in &mut self.proxies {
            self.sent += 1;
            self.request.header.tid = Tid::new(self.sent);
            let mut hca = function(&mut self.device, *id)?;
            proxy.send(&mut hca, &MadAddress::gsi(PEER), &self.request)?;
        }
        self.drive()?;
        while let Some(packet) = self.device.poll_transmit(self.now, PORT) {
            let answer = answer(&packet, &mut self.answers)?;
            self.answers.take_back(packet);
            self.device.receive(self.now, PORT, answer);
        }
        self.drive()?;
        for ((id, proxy), tid) in self.proxies.iter_mut().zip(first + 1..) {
            let mut hca = function(&mut self.device, *id)?;
            let answered = proxy.poll(&mut hca).map(|(_, mad)| mad.header.tid);
            ensure!(answered == Some(Tid::new(tid)), "{id:?} got {answered:?}");
        }
        Ok(())
    }

    /// Lets the context take what came.
    fn drive(&mut self) -> anyhow::Result<()> {
        let mut hca = function(&mut self.device, FunctionId::PF)?;
        while let Some(event) = hca.poll_event() {
            self.pf.handle_hca_event(self.now, &mut hca, &event);
        }
        while self.pf.poll(self.now, &mut hca) {}
        Ok(())
    }
}

fn function(device: &mut Device, id: FunctionId) -> anyhow::Result<Function<'_>> {
    device.function(id).context("no such function")
}

/// The packet that answers a request.
fn answer(request: &Frame, answers: &mut FrameWriter) -> anyhow::Result<Frame> {
    let packet = Packet::parse(request.bytes())?;
    let transport = packet.transport().context("no transport packet")?;
    let deth = transport.extended.deth.context("no datagram")?;
    let mut mad = Mad::from_bytes(transport.payload).context("no MAD")?;
    mad.header.method = mad.header.method.response();
    let answer = UdFrame {
        vl: packet.lrh.vl(),
        sl: packet.lrh.sl(),
        slid: packet.lrh.dlid,
        dlid: packet.lrh.slid,
        grh: None,
        pkey: transport.bth.pkey,
        dest_qp: deth.src_qp,
        src_qp: Qpn::GSI,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: mad.as_bytes(),
    };
    Ok(answers.write(&answer.transport(&answer.extended()))?)
}
