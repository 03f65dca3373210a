//! A CM message of a known connection through the mux, one way.

use anyhow::ensure;
use ib_vtime::SplitMix64;
use pf_context::Limits;

use super::clock::Stopwatch;
use super::connections::{Connection, Connections, apr_frame, ids_of, rtu_frame};
use super::floors::below;
use super::rig::{BATCH, From, Place, Rig};
use super::{Measured, Sample, Scale, nanos_per};

/// Which way the message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From a VF to the wire.
    Egress,
    /// From the wire to a VF.
    Ingress,
}

/// So many frames fill a pool of 64 MiB at least.
const LEAST_FRAMES: usize = 210_000;
const MOST_FRAMES: usize = 1_000_000;
/// Connections for comparison: their state fits into near caches.
const FEW: u32 = 1_000;
const CHECKED: usize = 10_000;

struct Step {
    frame: u32,
    from: From,
}

/// Established connections and a frame of each, in random order.
struct Known {
    rig: Rig,
    way: Way,
    frames: Vec<Place>,
    steps: Vec<Step>,
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
        ops: many.steps.len() as u64,
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
        let mut maker = Connections::new(vfs);
        let connections = maker.open_many(&mut rig, live)?;
        ensure!(
            rig.mux.sizes().cm_ids == connections.len(),
            "ids are missing"
        );
        let count = connections.len().clamp(LEAST_FRAMES, MOST_FRAMES);
        let mut random = SplitMix64::new(9);
        let mut chosen = connections;
        shuffle(&mut chosen, &mut random);
        let mut known = Self {
            rig,
            way,
            frames: Vec::with_capacity(count),
            steps: Vec::with_capacity(count),
        };
        for (frame, connection) in (0..).zip(chosen.iter().cycle().take(count)) {
            known.frames.push(match way {
                Way::Egress => rtu_frame(connection),
                Way::Ingress => apr_frame(connection),
            });
            let from = match way {
                Way::Egress => From::Vf(connection.vf),
                Way::Ingress => From::Wire(connection.lid),
            };
            known.steps.push(Step { frame, from });
        }
        shuffle(&mut known.steps, &mut random);
        known.check(&chosen)?;
        Ok(known)
    }

    /// Makes sure that what is measured does what it should.
    fn check(&mut self, connections: &[Connection]) -> anyhow::Result<()> {
        for step in self.steps.iter().take(CHECKED) {
            let frame = step.frame as usize;
            let connection = &connections[frame % connections.len()];
            self.rig.load(step.from, &self.frames[frame]);
            self.rig.flush()?;
            let ids = ids_of(self.rig.sent(0)?);
            let rewritten = match self.way {
                Way::Egress => ids.local_comm_id.get() == connection.wire,
                Way::Ingress => ids.remote_comm_id.get() == connection.guest,
            };
            ensure!(rewritten, "{connection:?} has another id");
        }
        Ok(())
    }

    /// Nanoseconds for each frame.
    fn pass(&mut self) -> anyhow::Result<f64> {
        let began = Stopwatch::start();
        for batch in self.steps.chunks(BATCH) {
            for step in batch {
                self.rig.load(step.from, &self.frames[step.frame as usize]);
            }
            self.rig.flush()?;
        }
        let elapsed = began.elapsed();
        ensure!(self.rig.is_quiet(), "more came out than went in");
        Ok(nanos_per(elapsed, self.steps.len() as u64))
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn bytes_per_live(&self) -> f64 {
        let mux = &self.rig.mux;
        mux.state_bytes().cm_ids as f64 / mux.sizes().cm_ids as f64
    }
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
