//! Data through connected queue pairs of two hosts' guests.

use emulated_hca::{Fault, FaultPlan, PacketFilter, When};
use hca_api::{
    AccessFlags, Completion, CompletionOp, CompletionStatus, Hca, HcaError, Payload, PdHandle,
    SendFlags, SendOp,
};
use ib_endpoint::PortPath;
use ib_vtime::Duration;
use ib_wire::Psn;
use vf_proxy::native::{ConnectedQp, ConnectedQpSpec, MemoryRegion, Partition, Peer};
use vhca_control::Facts;

use crate::demo::network::NamedPort;
use crate::demo::stage::{SOON, Stage, StepError, StepResult, ensure};

/// Bytes of a region, and of the message that is written and read.
const REGION: u32 = 256 * 1024;

/// Packets in a million that the lossy link drops each way.
const LOSS: u32 = 100_000;

/// Between two looks at a completion queue.
const INTERVAL: Duration = Duration::from_micros(100);

/// A guest's queue pair with a region that its peer may read and write.
struct End {
    guest: NamedPort,
    pd: PdHandle,
    region: MemoryRegion,
    qp: ConnectedQp,
}

impl End {
    fn open(
        stage: &mut Stage,
        guest: NamedPort,
        path: &PortPath,
        spec: fn(Partition) -> ConnectedQpSpec,
        psn: u32,
    ) -> StepResult<Self> {
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let spec = ConnectedQpSpec {
            sq_psn: Psn::from_low_bits(psn),
            // 1 ms, so that losses cost little time.
            timeout: 8,
            ..spec(Partition::Index(path.pkey_index()))
        };
        let opened = stage.world()?.with_hca(guest.at.on(), |hca| {
            let pd = hca.alloc_pd()?;
            let region = MemoryRegion::register(hca, pd, REGION as usize, access)?;
            let port = guest.at.port;
            let qp = ConnectedQp::create(hca, pd, port, path.pkey_index(), &spec)?;
            Ok(Self {
                guest,
                pd,
                region,
                qp,
            })
        });
        Ok(opened?)
    }

    fn connect(&self, stage: &mut Stage, path: &PortPath, peer: &Self) -> StepResult<()> {
        let peer = Peer::new(path, peer.qp.qpn(), peer.qp.psn());
        self.with_hca(stage, |end, hca| end.qp.connect(hca, &peer))
    }

    fn with_hca<T>(
        &self,
        stage: &mut Stage,
        call: impl FnOnce(&Self, &mut dyn Hca) -> Result<T, HcaError>,
    ) -> StepResult<T> {
        let world = stage.world()?;
        Ok(world.with_hca(self.guest.at.on(), |hca| call(self, hca))?)
    }

    fn write(&self, stage: &mut Stage, bytes: &[u8]) -> StepResult<()> {
        self.with_hca(stage, |end, hca| Ok(end.region.write(hca, 0, bytes)?))
    }

    fn read(&self, stage: &mut Stage, len: usize) -> StepResult<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.with_hca(stage, |end, hca| Ok(end.region.read(hca, 0, &mut bytes)?))?;
        Ok(bytes)
    }

    fn post(&self, stage: &mut Stage, op: SendOp<'_>, len: u32) -> StepResult<()> {
        let payload = [self.region.sge(0, len)];
        self.with_hca(stage, |end, hca| {
            let payload = Payload::Gather(&payload);
            end.qp.post_send(hca, 1, op, payload, SendFlags::empty())
        })
    }

    /// Waits for the next completion, which must be a success.
    fn wait(&self, stage: &mut Stage) -> StepResult<Completion> {
        let end = stage.now()? + SOON;
        while stage.now()? < end {
            if let Some(done) = self.with_hca(stage, |end, hca| Ok(end.qp.poll_cq(hca)))? {
                ensure(done.status == CompletionStatus::Success, || {
                    format!("{:?} of {}: {:?}", done.op, self.guest.name, done.status)
                })?;
                return Ok(done);
            }
            stage.pass(INTERVAL)?;
        }
        Err(StepError::Failed(format!(
            "{} has no completion within {SOON:?}",
            self.guest.name
        )))
    }

    fn close(self, stage: &mut Stage) -> StepResult<()> {
        let on = self.guest.at.on();
        Ok(stage.world()?.with_hca(on, |hca| {
            self.qp.destroy(hca);
            self.region.deregister(hca)?;
            hca.dealloc_pd(self.pd)
        })?)
    }
}

/// Connects queue pairs of a guest of each host.
fn connect(stage: &mut Stage, spec: fn(Partition) -> ConnectedQpSpec) -> StepResult<[End; 2]> {
    let (a, b) = (stage.network.a(1), stage.network.b(1));
    let (there, back) = (stage.path(a, b)?, stage.path(b, a)?);
    let a = End::open(stage, a, &there, spec, 0xff_fff0)?;
    let b = End::open(stage, b, &back, spec, 0x00_1000)?;
    a.connect(stage, &there, &b)?;
    b.connect(stage, &back, &a)?;
    Ok([a, b])
}

fn close(stage: &mut Stage, ends: [End; 2]) -> StepResult<()> {
    ends.into_iter().try_for_each(|end| end.close(stage))
}

/// Bytes of which no two neighbours that a packet could mix up are alike.
fn pattern() -> Vec<u8> {
    (0..=250).cycle().take(REGION as usize).collect()
}

pub(super) fn write(stage: &mut Stage) -> StepResult {
    let ends = connect(stage, ConnectedQpSpec::rc)?;
    let [a, b] = &ends;
    a.write(stage, &pattern())?;
    a.post(stage, SendOp::RdmaWrite(b.region.remote(0)), REGION)?;
    a.wait(stage)?;
    ensure(b.read(stage, REGION as usize)? == pattern(), || {
        format!("{} has other bytes than were written", b.guest.name)
    })?;
    let facts = Facts::new()
        .show("from", a.guest.name)
        .show("to", b.guest.name)
        .with("bytes", REGION);
    close(stage, ends)?;
    Ok(facts)
}

pub(super) fn read_across_a_lossy_link(stage: &mut Stage) -> StepResult {
    let ends = connect(stage, ConnectedQpSpec::rc)?;
    let [a, b] = &ends;
    b.write(stage, &pattern())?;
    let link = stage.network.direct_link;
    let fabric = stage.world()?.fabric_mut();
    let directions = fabric.link_ends(link).into_iter().flatten();
    let directions: Vec<_> = directions.collect();
    // Management goes on undisturbed: only what is for the two queue pairs is lost.
    for (seed, from) in (1..).zip(&directions) {
        let plan = [a, b].into_iter().fold(FaultPlan::new(seed), |plan, end| {
            let filter = PacketFilter {
                dest_qpn: Some(end.qp.qpn()),
                ..PacketFilter::default()
            };
            plan.rule(filter, When::PerMillion(LOSS), Fault::Drop)
        });
        fabric.set_faults(*from, Some(&plan));
    }
    let begun = stage.now()?;
    a.post(stage, SendOp::RdmaRead(b.region.remote(0)), REGION)?;
    a.wait(stage)?;
    let took = stage.now()? - begun;
    let fabric = stage.world()?.fabric_mut();
    let mut lost = 0;
    for from in directions {
        lost += fabric.fault_counters(from).dropped;
        fabric.set_faults(from, None);
    }
    let intact = a.read(stage, REGION as usize)? == pattern();
    ensure(intact && lost > 0, || {
        format!("{lost} packets were lost, and the bytes are the same: {intact}")
    })?;
    let facts = Facts::new()
        .show("from", b.guest.name)
        .show("to", a.guest.name)
        .with("bytes", REGION)
        .with("lost_packets", lost)
        .millis("completed_after_ms", took);
    close(stage, ends)?;
    Ok(facts)
}

pub(super) fn unreliable_send(stage: &mut Stage) -> StepResult {
    const MESSAGE: &[u8] = b"over an unreliable connection";
    let ends = connect(stage, ConnectedQpSpec::uc)?;
    let [a, b] = &ends;
    let scatter = [b.region.sge(0, REGION)];
    b.with_hca(stage, |end, hca| end.qp.post_recv(hca, 2, &scatter))?;
    a.with_hca(stage, |end, hca| {
        let payload = Payload::Inline(MESSAGE);
        (end.qp).post_send(hca, 1, SendOp::Send, payload, SendFlags::empty())
    })?;
    a.wait(stage)?;
    let received = b.wait(stage)?;
    let bytes = b.read(stage, MESSAGE.len())?;
    ensure(
        received.op == CompletionOp::Recv
            && received.byte_len as usize == MESSAGE.len()
            && bytes == MESSAGE,
        || format!("{} received another message: {received:?}", b.guest.name),
    )?;
    let facts = Facts::new()
        .show("from", a.guest.name)
        .show("to", b.guest.name)
        .with("bytes", MESSAGE.len());
    close(stage, ends)?;
    Ok(facts)
}
