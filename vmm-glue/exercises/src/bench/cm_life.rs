//! Connections opened and closed through the mux while others live.

use anyhow::ensure;
use ib_vtime::Duration;

use super::clock::Stopwatch;
use super::cm_hit::limits;
use super::connections::Connections;
use super::rig::{BATCH, Rig};
use super::{Measured, Sample, Scale, nanos_per};

const ROUNDS: u32 = 100_000;
const MESSAGES: u64 = 5;

#[expect(clippy::cast_possible_truncation, reason = "few")]
const PER_BATCH: u32 = BATCH as u32;

/// Virtual time between two batches of connections: as many are in quarantine, for 30 s each, as are opened in
/// a run, so each run ends as many ids as it begins.
const INTERVAL: Duration = Duration::from_micros(30_000_000 / (ROUNDS / PER_BATCH) as u64);

pub(super) fn prepare(scale: Scale) -> anyhow::Result<Measured> {
    let mut rig = Rig::new(scale.vfs, limits())?;
    let mut maker = Connections::new(scale.vfs);
    maker.open_many(&mut rig, scale.live)?;
    let mut round = move |_| {
        let began = Stopwatch::start();
        for _ in 0..ROUNDS / PER_BATCH {
            let mut connections = maker.open(&mut rig, BATCH)?;
            maker.close(&mut rig, &mut connections)?;
            rig.wait(INTERVAL);
            rig.mux.handle_timeout(rig.now);
        }
        let elapsed = began.elapsed();
        ensure!(rig.is_quiet(), "more came out than went in");
        let resting = rig.mux.sizes().cm_ids - scale.live as usize;
        ensure!(
            resting <= ROUNDS as usize + ROUNDS as usize / 100,
            "{resting} ids are in quarantine"
        );
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let bytes = rig.mux.state_bytes().cm_ids as f64 / rig.mux.sizes().cm_ids as f64;
        Ok(Sample {
            nanos: nanos_per(elapsed, u64::from(ROUNDS) * MESSAGES),
            bytes_per_live: Some(bytes),
            figures: Vec::new(),
        })
    };
    // From here on as many leave quarantine as enter it.
    round(0)?;
    Ok(Measured {
        setup: format!(
            "REQ, REP, RTU, DREQ, DREP with GRH, cold frames, {ROUNDS} more in quarantine, timers \
             included"
        ),
        ops: u64::from(ROUNDS) * MESSAGES,
        mads_per_op: Some(1),
        run: Box::new(round),
    })
}
