//! `vhca flood`: connections of one VF while others of both hosts offer a million MADs per second of
//! whatever could hurt it, and how much longer the connections take for that.
//!
//! The flood is random headers, forged communication ids, requests of every class, to every LID, in
//! every partition and with every key, at the same PF contexts that carry the connections. Time is
//! virtual: what counts is what limits, queues and links make of the flood.

mod attacker;
mod victim;

use core::fmt;
use std::collections::BTreeMap;
use std::time::Duration;

use ib_vtime::Instant;
use pf_context::context::PfConfig;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::conversations::Channel;
use crate::drain::DrainError;
use crate::drain::network::Network;

use attacker::Attacker;
use victim::Pair;

/// VFs of each host: the first talks, the others flood.
const VFS: u16 = 4;
/// The time between two connections.
const PACE: Duration = Duration::from_millis(1);
/// The time in which attackers send a batch.
const BATCH: Duration = Duration::from_micros(10);

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Connections, a thousand in a second.
    pub connections: u32,
    /// MADs that the flood offers in a second, of both hosts together.
    pub rate: u32,
    /// Everything random follows from it.
    pub seed: u64,
}

/// How long the exchanges of connections took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Exchanges: REQ to REP, and DREQ to DREP.
    pub exchanges: usize,
    /// The median, in virtual microseconds.
    pub p50_us: f64,
    /// What 99 of 100 stay within, in virtual microseconds.
    pub p99_us: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Whether every connection was made and ended, 99 of 100 exchanges within twice the time that
    /// they take alone, and no table grew beyond its quotas.
    pub ok: bool,
    /// MADs that the flood offered.
    pub offered: u64,
    /// Without the flood.
    pub alone: Latency,
    /// With it.
    pub flooded: Latency,
    /// How many times as long 99 of 100 exchanges take.
    pub ratio: f64,
    /// Connections that did not come about as they should.
    pub failed: u32,
    /// The most of each table of a host's port: transactions, communication ids, groups,
    /// memberships, subscriptions, waiting frames.
    pub most: [usize; 6],
    /// What quotas allow of each.
    pub quotas: [usize; 6],
    /// Frames that the PFs dropped, by reason.
    pub drops: BTreeMap<&'static str, u64>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency {
            exchanges,
            p50_us,
            p99_us,
        } = self.alone;
        writeln!(
            f,
            "alone:   {exchanges} exchanges, median {p50_us:.1} us, p99 {p99_us:.1} us"
        )?;
        let Latency {
            exchanges,
            p50_us,
            p99_us,
        } = self.flooded;
        writeln!(
            f,
            "flooded: {exchanges} exchanges, median {p50_us:.1} us, p99 {p99_us:.1} us, while {} MADs were \
             offered",
            self.offered
        )?;
        let names = [
            "tids",
            "cm ids",
            "groups",
            "members",
            "subscriptions",
            "queued",
        ];
        write!(f, "most, of what quotas allow:")?;
        for ((name, most), quota) in names.iter().zip(self.most).zip(self.quotas) {
            write!(f, " {name} {most} of {quota}")?;
        }
        write!(f, "\ndropped by the PFs:")?;
        for (reason, times) in &self.drops {
            write!(f, " {reason} {times}")?;
        }
        write!(
            f,
            "\n{}: p99 {:.2} times that alone, {} connections failed",
            if self.ok { "ok" } else { "FAILED" },
            self.ratio,
            self.failed
        )
    }
}

/// Runs it all.
///
/// # Errors
/// [`DrainError`].
pub fn run(options: Options) -> Result<Report, DrainError> {
    let config = PfConfig::new(options.seed);
    let quotas = quotas(&config);
    let alone = Run::new(&config, options)?.all(0);
    let flooded = Run::new(&config, options)?.all(options.rate);
    let mut report = Report {
        offered: flooded.offered,
        alone: latency(alone.pair.latencies()),
        flooded: latency(flooded.pair.latencies()),
        failed: alone.pair.failed() + flooded.pair.failed(),
        most: flooded.most,
        quotas,
        drops: flooded.network.drops(),
        ..Report::default()
    };
    report.ratio = report.flooded.p99_us / report.alone.p99_us;
    let bounded = report
        .most
        .iter()
        .zip(quotas)
        .all(|(most, quota)| *most <= quota);
    report.ok = report.failed == 0 && report.ratio <= 2.0 && bounded;
    Ok(report)
}

/// What all VFs of a port and its own software may have together.
fn quotas(config: &PfConfig) -> [usize; 6] {
    let limits = &config.limits;
    let tenants = usize::from(VFS) + 1;
    let each = |of_one: usize| of_one * tenants;
    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    [
        each(count(limits.tids.per_vf)),
        each(count(limits.cm.ids_per_vf + limits.cm.pending_per_vf)),
        each(count(u32::from(limits.mcast.groups_per_member))),
        each(count(u32::from(limits.mcast.groups_per_member))),
        each(count(u32::from(limits.notices.subscriptions_per_member))),
        each(limits.egress.queue),
    ]
}

struct Run {
    network: Network,
    pair: Pair,
    attackers: Vec<Attacker>,
    connections: u32,
    dice: ChaCha8Rng,
    offered: u64,
    most: [usize; 6],
}

impl Run {
    fn new(config: &PfConfig, options: Options) -> Result<Self, DrainError> {
        let network = Network::start(VFS, config)?;
        let places = network.places();
        let peer = usize::from(VFS);
        let attackers = (0..places.len()).filter(|node| ![0, peer].contains(node));
        Ok(Self {
            pair: Pair::new([0, peer], [places[0], places[peer]]),
            attackers: attackers.map(|node| Attacker::new(node, &places)).collect(),
            network,
            connections: options.connections,
            dice: ChaCha8Rng::seed_from_u64(options.seed),
            offered: 0,
            most: [0; 6],
        })
    }

    /// Makes all connections while so many MADs are offered in a second.
    fn all(mut self, rate: u32) -> Self {
        let batches = u32::try_from(PACE.as_micros() / BATCH.as_micros()).unwrap_or(u32::MAX);
        let per_second = u32::try_from(Duration::from_secs(1).as_micros() / BATCH.as_micros());
        let each = rate / per_second.unwrap_or(u32::MAX);
        let mut now = Instant::ZERO;
        for _ in 0..self.connections {
            self.pair.connect(now, &mut self.network);
            for _ in 0..batches {
                for _ in 0..each {
                    let attacker = self.dice.random_range(0..self.attackers.len());
                    self.attackers[attacker].strike(now, &mut self.network, &mut self.dice);
                    self.offered += 1;
                }
                now += BATCH;
                self.run_until(now);
            }
            self.measure();
        }
        // The last ones need their time, too.
        self.run_until(now + Duration::from_secs(1));
        self
    }

    fn run_until(&mut self, end: Instant) {
        while let Some(next) = self.network.next_time().filter(|next| *next <= end) {
            self.step(next);
        }
        self.step(end);
    }

    fn step(&mut self, now: Instant) {
        while let Some(arrival) = self.network.receive(now) {
            self.pair.take(now, &mut self.network, &arrival);
        }
        self.pair.handle_timeout(now, &mut self.network);
    }

    fn measure(&mut self) {
        for sizes in self.network.sizes() {
            let now = [
                sizes.tids,
                sizes.cm_ids,
                sizes.mcast_groups,
                sizes.mcast_members,
                sizes.subscriptions,
                sizes.queued,
            ];
            for (most, now) in self.most.iter_mut().zip(now) {
                *most = now.max(*most);
            }
        }
    }
}

fn latency(mut times: Vec<Duration>) -> Latency {
    times.sort_unstable();
    let at = |share: usize| {
        let place = (times.len() * share / 100).min(times.len().saturating_sub(1));
        times
            .get(place)
            .map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    Latency {
        exchanges: times.len(),
        p50_us: at(50),
        p99_us: at(99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_its_neighbours_does_not_slow_a_vfs_connections() {
        let options = Options {
            connections: 100,
            rate: 1_000_000,
            seed: 3,
        };
        let report = run(options).expect("a network");
        assert!(report.ok, "{report}");
        assert_eq!(report.offered, 100_000);
        assert_eq!(report.flooded.exchanges, 200);
        assert!(report.drops.len() > 10, "{report}");
    }
}
