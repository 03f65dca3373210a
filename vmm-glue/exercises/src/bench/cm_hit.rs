//! A CM message of a known connection through the mux, one way.

use anyhow::ensure;
use ib_vtime::SplitMix64;
use pf_context::Limits;

use super::clock::Stopwatch;
use super::connections::{Connection, Connections, apr_frame, ids_of, rtu_frame};
use super::pool::{POOL, Pool, below};
use super::rig::{BATCH, From, Rig};
use super::{LEAST_OPS, Measured, Sample, Scale, nanos_per};

/// Which way the message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From a VF to the wire.
    Egress,
    /// From the wire to a VF.
    Ingress,
}

/// Connections for comparison: their state fits into near caches.
const FEW: u32 = 1_000;

/// Established connections in random order.
struct Known {
    rig: Rig,
    way: Way,
    frames: Pool,
    connections: Vec<Connection>,
}

pub(super) fn prepare(way: Way, scale: Scale) -> anyhow::Result<Measured> {
    let mut many = Known::new(way, scale.vfs, scale.live)?;
    let mut few = Known::new(way, scale.vfs, FEW.min(scale.live))?;
    Ok(Measured {
        setup: format!(
            "{} of known connections with GRH, in random order, cold frames",
            match way {
                Way::Egress => "RTUs from VFs",
                Way::Ingress => "APRs from peers",
            }
        ),
        ops: many.ops(),
        mads_per_op: Some(1),
        run: Box::new(move |_| {
            let nanos = many.pass()?;
            let few_nanos = few.pass()?;
            Ok(Sample {
                nanos,
                bytes_per_live: Some(many.bytes_per_live()),
                figures: vec![
                    ("ns/MAD, 1,000 live", few_nanos),
                    ("times 1,000 live", nanos / few_nanos),
                ],
            })
        }),
    })
}

impl Known {
    fn new(way: Way, vfs: u16, live: u32) -> anyhow::Result<Self> {
        let mut rig = Rig::new(vfs, limits())?;
        let mut connections = Connections::new(vfs).open_many(&mut rig, live)?;
        ensure!(
            rig.mux.sizes().cm_ids == connections.len(),
            "ids are missing"
        );
        shuffle(&mut connections, &mut SplitMix64::new(9));
        let frame = match way {
            Way::Egress => rtu_frame(),
            Way::Ingress => apr_frame(),
        };
        Ok(Self {
            rig,
            way,
            frames: Pool::new(10, &frame, POOL),
            connections,
        })
    }

    /// Each connection has as many messages as any other.
    fn rounds(&self) -> u64 {
        u64::from(LEAST_OPS).div_ceil(self.connections.len() as u64)
    }

    fn ops(&self) -> u64 {
        self.rounds() * self.connections.len() as u64
    }

    /// Nanoseconds for each frame.
    fn pass(&mut self) -> anyhow::Result<f64> {
        let began = Stopwatch::start();
        for _ in 0..self.rounds() {
            for batch in self.connections.chunks(BATCH) {
                pass(&mut self.rig, self.way, &mut self.frames, batch)?;
            }
        }
        let elapsed = began.elapsed();
        ensure!(self.rig.is_quiet(), "more came out than went in");
        Ok(nanos_per(elapsed, self.ops()))
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn bytes_per_live(&self) -> f64 {
        let mux = &self.rig.mux;
        mux.state_bytes().cm_ids as f64 / mux.sizes().cm_ids as f64
    }
}

fn pass(rig: &mut Rig, way: Way, frames: &mut Pool, batch: &[Connection]) -> anyhow::Result<()> {
    for connection in batch {
        let from = match way {
            Way::Egress => From::Vf(connection.vf),
            Way::Ingress => From::Wire(connection.lid),
        };
        rig.load(from, frames.place());
    }
    for (at, connection) in batch.iter().enumerate() {
        let slot = rig.loaded(at)?;
        match way {
            Way::Egress => connection.write_from_vf(slot)?,
            Way::Ingress => connection.write_from_wire(slot)?,
        }
    }
    rig.flush()?;
    for (at, connection) in batch.iter().enumerate() {
        let ids = ids_of(rig.sent(at)?);
        let rewritten = match way {
            Way::Egress => ids.local_comm_id.get() == connection.wire,
            Way::Ingress => ids.remote_comm_id.get() == connection.guest,
        };
        ensure!(rewritten, "{connection:?} has another id");
    }
    Ok(())
}

/// Room for any number of connections.
pub(super) fn limits() -> Limits {
    Limits {
        cm: cm_paravirt::Config {
            ids_per_vf: u32::MAX,
            pending_per_vf: u32::MAX,
            ..cm_paravirt::Config::default()
        },
        ..Limits::default()
    }
}

/// Puts things into a random order.
pub(super) fn shuffle<T>(things: &mut [T], random: &mut SplitMix64) {
    for i in (1..things.len()).rev() {
        things.swap(i, below(random, i + 1));
    }
}
