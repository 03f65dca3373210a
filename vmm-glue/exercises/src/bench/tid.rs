//! Transactions through the mux: an answer in and the next request out.

use anyhow::ensure;
use ib_vtime::{Duration, SplitMix64};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::{Lid, Tid};
use mad_mux::tid::TidConfig;
use pf_context::Limits;
use vf_tunnel::VfId;

use super::clock::Stopwatch;
use super::cm_hit::shuffle;
use super::pool::{POOL, Pool};
use super::rig::{BATCH, From, Rig, batch_mad, tunnel_frame, vf_of, wire_frame};
use super::{LEAST_OPS, Measured, Sample, Scale, nanos_per};

const PEER: Lid = Lid::new(9);

/// An answered transaction is kept for so long.
const KEPT: Duration = Duration::from_secs(15);

/// A transaction that waits for its answer.
#[derive(Clone, Copy)]
struct Waiting {
    vf: VfId,
    guest: Tid,
    wire: Tid,
}

struct Transactions {
    rig: Rig,
    requests: Pool,
    answers: Pool,
    waiting: Vec<Waiting>,
    next: u64,
}

pub(super) fn prepare(scale: Scale) -> anyhow::Result<Measured> {
    let limits = Limits {
        tids: TidConfig {
            per_vf: u32::MAX,
            ..TidConfig::default()
        },
        ..Limits::default()
    };
    let header = |method| {
        Mad::new(MadHeader::new(
            MgmtClass::DEV_MGT,
            method,
            AttributeId::new(0x10),
        ))
    };
    let mut all = Transactions {
        rig: Rig::new(scale.vfs, limits)?,
        requests: Pool::new(8, &tunnel_frame(PEER, None, &header(Method::GET)), POOL / 2),
        answers: Pool::new(
            9,
            &wire_frame(PEER, None, &header(Method::GET_RESP)),
            POOL / 2,
        ),
        waiting: Vec::new(),
        next: 1,
    };
    for number in 0..scale.live {
        all.waiting.push(Waiting {
            vf: vf_of(number, scale.vfs)?,
            guest: Tid::default(),
            wire: Tid::default(),
        });
    }
    for first in (0..all.waiting.len()).step_by(BATCH) {
        all.ask(first)?;
    }
    shuffle(&mut all.waiting, &mut SplitMix64::new(10));
    // Each answered transaction rests while all others are answered: as many rest as wait.
    all.rig.pace = KEPT / scale.live / 2;
    let rounds = LEAST_OPS.div_ceil(scale.live);
    let ops = u64::from(rounds) * u64::from(scale.live);
    let mut run = move |_| {
        let began = Stopwatch::start();
        for _ in 0..rounds {
            all.round()?;
        }
        let nanos = nanos_per(began.elapsed(), ops);
        ensure!(all.rig.is_quiet(), "more came out than went in");
        let mux = &all.rig.mux;
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let bytes = mux.state_bytes().tids as f64 / mux.sizes().tids as f64;
        Ok(Sample {
            nanos,
            bytes_per_live: Some(bytes),
            figures: Vec::new(),
        })
    };
    run(0)?;
    Ok(Measured {
        setup:
            "a DevMgt answer in and the next request out, cold frames, as many answered ones kept \
                as wait, timers included"
                .into(),
        ops,
        mads_per_op: Some(2),
        run: Box::new(run),
    })
}

impl Transactions {
    /// Answers each transaction that waits, and begins another in its place.
    fn round(&mut self) -> anyhow::Result<()> {
        for first in (0..self.waiting.len()).step_by(BATCH) {
            self.answer(first)?;
            self.ask(first)?;
        }
        Ok(())
    }

    /// Lets the owners of a batch ask.
    fn ask(&mut self, first: usize) -> anyhow::Result<()> {
        let batch = batch(&mut self.waiting, first);
        for waiting in &mut *batch {
            waiting.guest = Tid::new(self.next << 32 | self.next);
            self.next += 1;
            self.rig.load(From::Vf(waiting.vf), self.requests.place());
        }
        for (at, waiting) in batch.iter().enumerate() {
            batch_mad(self.rig.loaded(at)?)?.header.tid = waiting.guest;
        }
        self.rig.flush()?;
        for (at, waiting) in batch.iter_mut().enumerate() {
            waiting.wire = self.rig.sent(at)?.header.tid;
        }
        Ok(())
    }

    /// Answers a batch.
    fn answer(&mut self, first: usize) -> anyhow::Result<()> {
        let batch = batch(&mut self.waiting, first);
        for _ in &*batch {
            self.rig.load(From::Wire(PEER), self.answers.place());
        }
        for (at, waiting) in batch.iter().enumerate() {
            batch_mad(self.rig.loaded(at)?)?.header.tid = waiting.wire;
        }
        self.rig.flush()?;
        for (at, waiting) in batch.iter().enumerate() {
            let got = self.rig.sent(at)?.header.tid;
            ensure!(got == waiting.guest, "an answer has another TID");
        }
        Ok(())
    }
}

/// The transactions of a batch.
fn batch(waiting: &mut [Waiting], first: usize) -> &mut [Waiting] {
    let end = waiting.len().min(first + BATCH);
    &mut waiting[first..end]
}
