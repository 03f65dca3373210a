//! `vhca drain`: random conversations between the VFs of two hosts over a faulty fabric, and then
//! quiet. Nothing may have come to somebody else, and nothing may be left over.
//!
//! Connections are completed, refused, abandoned and disconnected at every point, by guests that all
//! use the same communication and transaction ids; links lose, damage, repeat, delay and reorder;
//! VFs are reset in the middle. Everything goes through real queue pairs, tunnels and the PF contexts of both
//! hosts, in virtual time.

pub(crate) mod network;
mod queries;

use core::fmt;
use std::collections::BTreeMap;
use std::time::Duration;

use emulated_hca::{Fault, FaultPlan, PacketFilter, When};
use hca_api::HcaError;
use ib_endpoint::EndPortError;
use ib_vtime::Instant;
use ib_wire::mad::MgmtClass;
use pf_context::context::{PfConfig, PfError};
use pf_context::{PlaceError, PortReason};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use subnet_lite::OpenError;
use thiserror::Error;
use vf_tunnel::VfId;

use crate::conversations::{Driver, Ending, Plan};
use network::Network;

pub use network::Leaks;

/// Conversations that run at once.
const BATCH: u64 = 2_000;
/// The time within which those of a batch begin.
const SPAN: Duration = Duration::from_secs(2);
/// Steps in which a batch is at rest, or never.
const MOST_STEPS: u64 = 100_000_000;
/// The time after which nothing of what is over may be left.
const QUIET: Duration = Duration::from_secs(660);

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Conversations.
    pub conversations: u64,
    /// VFs of each host.
    pub vfs: u16,
    /// Everything random follows from it.
    pub seed: u64,
}

/// Why a run could not be made.
#[derive(Debug, Error)]
pub enum DrainError {
    /// An adapter refused.
    #[error("an adapter refused: {0}")]
    Hca(#[from] HcaError),
    /// A PF context refused.
    #[error(transparent)]
    Pf(#[from] PfError),
    /// A VF cannot be given to its guest.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A host could not be started.
    #[error("a host could not be started")]
    Host(#[from] EndPortError),
    /// The subnet manager could not be started.
    #[error("the subnet manager could not be started")]
    Manager(#[from] OpenError),
    /// A VF did not come up.
    #[error("{vf} did not come up: {reason}")]
    Down {
        /// Which.
        vf: VfId,
        /// Why.
        reason: PortReason,
    },
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Whether nothing was delivered wrongly, nothing was left over, and every conversation ended as
    /// it should.
    pub ok: bool,
    /// Conversations.
    pub conversations: u64,
    /// Those that were established and disconnected on both sides.
    pub completed: u64,
    /// Those in which a message was never answered.
    pub timed_out: u64,
    /// VFs of each host.
    pub vfs: u16,
    /// Resets of VFs.
    pub resets: u64,
    /// Path queries, and those of them that were answered.
    pub queries: [u64; 2],
    /// CM messages that guests sent.
    pub messages: u64,
    /// Packets that the links lost, damaged, repeated, delayed or reordered.
    pub faults: u64,
    /// Frames that the PFs dropped, by reason: late, repeated and damaged ones.
    pub drops: BTreeMap<&'static str, u64>,
    /// Most communication ids that were live at once.
    pub most_cm_ids: usize,
    /// Virtual seconds.
    pub seconds: u64,
    /// Messages that came to somebody whom they were not for.
    pub wrong_deliveries: u64,
    /// Other ways in which conversations went wrong.
    pub violations: u64,
    /// The first of them, in words.
    pub examples: Vec<String>,
    /// What was left over.
    pub leaks: Leaks,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for example in &self.examples {
            writeln!(f, "{example}")?;
        }
        writeln!(
            f,
            "{} conversations between 2 x {} VFs in {} s of virtual time: {} completed, {} with a \
             timeout, {} VF resets, {} of {} path queries answered",
            self.conversations,
            self.vfs,
            self.seconds,
            self.completed,
            self.timed_out,
            self.resets,
            self.queries[1],
            self.queries[0],
        )?;
        writeln!(
            f,
            "{} CM messages, {} faults of links, at most {} communication ids live",
            self.messages, self.faults, self.most_cm_ids
        )?;
        write!(f, "dropped by the PFs:")?;
        for (reason, times) in &self.drops {
            write!(f, " {reason} {times}")?;
        }
        writeln!(f)?;
        write!(
            f,
            "{}: wrong deliveries {}, other violations {}, leaks {} (tids {}, cm ids {}, \
             memberships {}, paths {}, queued {}, buffers {}, objects {})",
            if self.ok { "ok" } else { "FAILED" },
            self.wrong_deliveries,
            self.violations,
            self.leaks.total(),
            self.leaks.tids,
            self.leaks.cm_ids,
            self.leaks.memberships,
            self.leaks.paths,
            self.leaks.queued,
            self.leaks.buffers,
            self.leaks.objects,
        )
    }
}

/// Runs it all. `progress` is called with the number of conversations that are over.
///
/// # Errors
/// [`DrainError`].
pub fn run(options: Options, progress: &mut dyn FnMut(u64)) -> Result<Report, DrainError> {
    let mut network = Network::start(options.vfs, &PfConfig::new(options.seed))?;
    network.set_faults(|n| bad_weather(options.seed.wrapping_mul(1000).wrapping_add(n)));
    let mut dice = ChaCha8Rng::seed_from_u64(options.seed);
    let mut report = Report {
        vfs: options.vfs,
        ..Report::default()
    };
    while report.conversations < options.conversations {
        let count = BATCH.min(options.conversations - report.conversations);
        network = batch(network, count, &mut dice, &mut report)?;
        progress(report.conversations);
    }
    report.leaks = network.settle(QUIET)?;
    let (asked, answered, wrong) = network.queries();
    report.queries = [asked, answered];
    report.drops = network.drops();
    report.wrong_deliveries += wrong;
    let faults = network.faults();
    report.faults =
        faults.dropped + faults.delayed + faults.duplicated + faults.reordered + faults.corrupted;
    report.ok = report.wrong_deliveries == 0 && report.violations == 0 && report.leaks.total() == 0;
    Ok(report)
}

fn batch(
    mut network: Network,
    count: u64,
    dice: &mut ChaCha8Rng,
    report: &mut Report,
) -> Result<Network, DrainError> {
    network.rebase();
    let places = network.places();
    let mut driver = Driver::new(dice.random(), &places, network);
    for _ in 0..count {
        driver.add(Plan::roll(dice, places.len(), SPAN));
    }
    for step in 1..=20 {
        driver.run_until(Instant::ZERO + SPAN * step / 20);
        let now = driver.now();
        for _ in 0..count / 100 {
            let (from, to) = (
                dice.random_range(0..places.len()),
                dice.random_range(0..places.len()),
            );
            driver.channel().ask_path(now, from, to);
        }
        if dice.random_bool(0.2) {
            let node = dice.random_range(0..places.len());
            driver.channel().reset(node)?;
            driver.reset(node);
            report.resets += 1;
        }
    }
    let ids = driver.channel().sizes().map(|sizes| sizes.cm_ids).sum();
    report.most_cm_ids = report.most_cm_ids.max(ids);
    driver.run(MOST_STEPS);
    let totals = driver.finish();
    report.conversations += count;
    report.messages += totals.mads;
    report.seconds += totals.elapsed.as_secs();
    for ((_, a, b), times) in &totals.endings {
        let times = u64::try_from(*times).unwrap_or(u64::MAX);
        let ends = [*a, *b];
        report.completed += times * u64::from(ends == [Ending::Closed; 2]);
        report.timed_out += times * u64::from(ends.contains(&Ending::TimedOut));
    }
    report.wrong_deliveries += totals.wrong_deliveries;
    report.violations += u64::try_from(totals.violations.len()).unwrap_or(u64::MAX);
    let room = 10_usize.saturating_sub(report.examples.len());
    report
        .examples
        .extend(totals.violations.into_iter().take(room));
    Ok(driver.into_channel())
}

/// What goes wrong in one direction of one link. No message is held for more than a millisecond.
fn bad_weather(seed: u64) -> FaultPlan {
    let of_class = |class| PacketFilter {
        class: Some(class),
        ..PacketFilter::default()
    };
    let (short, long) = (Duration::from_micros(300), Duration::from_millis(1));
    let reorder = Fault::Reorder {
        behind: 2,
        at_latest: long,
    };
    [MgmtClass::COM_MGT, MgmtClass::SUBN_ADM]
        .into_iter()
        .map(of_class)
        .fold(FaultPlan::new(seed), |plan, class| {
            plan.rule(class, When::PerMillion(30_000), Fault::Drop)
                .rule(
                    class,
                    When::PerMillion(4_000),
                    Fault::CorruptOnWire { bits: 3 },
                )
                .rule(class, When::PerMillion(50_000), Fault::Duplicate)
                .rule(class, When::PerMillion(50_000), reorder)
                .rule(class, When::PerMillion(100_000), Fault::Delay(short))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_through_two_pfs_leave_nothing_and_reach_nobody_else() {
        let options = Options {
            conversations: 4_000,
            vfs: 16,
            seed: 7,
        };
        let report = run(options, &mut |_| {}).expect("a network");
        assert!(report.ok, "{report}");
        assert!(report.completed > 1_000 && report.timed_out > 0, "{report}");
        assert!(report.resets > 0 && report.faults > 1_000, "{report}");
        assert!(
            report.queries[1] > 0 && report.most_cm_ids > 1_000,
            "{report}"
        );
    }
}
