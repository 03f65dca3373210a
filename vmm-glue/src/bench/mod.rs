//! `vhca bench`: measurements that anybody can repeat.
//!
//! Each case runs several times; what is reported is the median with the minimum and the maximum.

mod fat_tree;
mod mad_rtt;
mod subnet;
mod ud_hop;

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// UD datagrams through chains of switches: the cost of a packet and of a hop.
    UdHop,
    /// A request and its response between two hosts, all layers included.
    MadRtt,
    /// A fat tree of 1,000 HCAs, from power-on until the subnet is up.
    FatTree,
}

impl Case {
    /// All cases.
    pub const ALL: [Self; 3] = [Self::UdHop, Self::MadRtt, Self::FatTree];

    const fn name(self) -> &'static str {
        match self {
            Self::UdHop => "ud-hop",
            Self::MadRtt => "mad-rtt",
            Self::FatTree => "fat-tree",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The middle and the ends of a set of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of at least one measurement.
    fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        Some(Self {
            median: *samples.get(samples.len() / 2)?,
            min: *samples.first()?,
            max: *samples.last()?,
        })
    }
}

/// A named figure of a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What it is, with its unit.
    pub name: &'static str,
    /// The measurements of all runs.
    #[serde(flatten)]
    pub spread: Spread,
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchResult {
    /// The case.
    pub case: &'static str,
    /// What was measured, in words and numbers.
    pub setup: String,
    /// Operations in each run.
    pub ops: u64,
    /// Runs.
    pub runs: u32,
    /// The figures.
    pub figures: Vec<Figure>,
}

impl fmt::Display for BenchResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} ({} ops, {} runs)",
            self.case, self.setup, self.ops, self.runs
        )?;
        for Figure { name, spread } in &self.figures {
            write!(
                f,
                "\n  {name:<24} median {:>12.1}  min {:>12.1}  max {:>12.1}",
                spread.median, spread.min, spread.max
            )?;
        }
        Ok(())
    }
}

/// What one run of a case measured.
struct Run {
    ops: u64,
    figures: Vec<(&'static str, f64)>,
}

/// Runs a case so many times.
///
/// # Errors
/// What was to be measured did not work: a packet was lost, or the subnet did not come up.
pub fn run(case: Case, runs: u32) -> anyhow::Result<BenchResult> {
    let (setup, measure): (String, fn(u32) -> anyhow::Result<Run>) = match case {
        Case::UdHop => (ud_hop::setup(), ud_hop::run),
        Case::MadRtt => (mad_rtt::setup(), mad_rtt::run),
        Case::FatTree => (fat_tree::setup(), fat_tree::run),
    };
    let results = (0..runs).map(measure).collect::<anyhow::Result<Vec<_>>>()?;
    let first = results.first().context("at least one run is needed")?;
    let figures = first
        .figures
        .iter()
        .enumerate()
        .filter_map(|(i, (name, _))| {
            let samples = results.iter().map(|run| run.figures[i].1).collect();
            let spread = Spread::of(samples)?;
            Some(Figure { name, spread })
        });
    Ok(BenchResult {
        case: case.name(),
        setup,
        ops: first.ops,
        runs,
        figures: figures.collect(),
    })
}

/// Nanoseconds for each of so many operations.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn nanos_per(elapsed: Duration, ops: u64) -> f64 {
    elapsed.as_secs_f64() * 1e9 / ops as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_the_ends() {
        let spread = Spread::of(vec![5.0, 1.0, 3.0]).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 3.0, 5.0));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
