//! `vhca bench`: measurements that anybody can repeat.
//!
//! Each case runs several times; what is reported is the median with the minimum and the maximum.

mod clock;
mod cm_hit;
mod cm_life;
mod connections;
mod embed;
mod fat_tree;
mod floors;
mod functions;
mod join;
mod mad_rtt;
mod path;
mod pool;
mod rdma;
mod rig;
mod subnet;
mod tid;
mod trunk;
mod tunnel;
mod ud_hop;

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use floors::{FloorTimes, Floors};

/// Operations of a run at least: as many as those of the floors, so that the pools, of the same size,
/// are as warm.
const LEAST_OPS: u32 = 1_000_000;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// A floor: 296 bytes copied between random places of two pools of 64 MiB.
    FloorCopy,
    /// A floor: one random probe of a table of a million entries.
    FloorLookup,
    /// A floor: a hash over a frame that is in the near cache.
    FloorCompute,
    /// CM messages of known connections from VFs to the wire.
    CmEgressHit,
    /// CM messages of known connections from the wire to VFs.
    CmIngressHit,
    /// Connections opened and closed while others live; per message.
    CmOpenClose,
    /// A request out and its answer in while others are outstanding.
    TidRoundtrip,
    /// Joins of groups that the port is in already.
    McastJoinLocal,
    /// Requests for paths that the SA answered lately.
    PathCached,
    /// MADs of VFs through the PF context to the wire and back, on an emulated adapter.
    TunnelRtt,
    /// UD datagrams through chains of switches: the cost of a packet and of a hop.
    UdHop,
    /// A request and its response between two hosts, all layers included.
    MadRtt,
    /// Datagrams between virtual functions in software: the time that these add to a request.
    FunctionsDatagram,
    /// A fat tree of 1,000 HCAs, from power-on until the subnet is up.
    FatTree,
    /// RDMA writes of a reliable connection between VFs of two hosts.
    RcWrite,
    /// RDMA reads of a reliable connection.
    RcRead,
    /// Sends of a reliable connection.
    RcSend,
    /// Sends of a reliable connection, there and back.
    RcLat,
    /// RDMA writes of an unreliable connection.
    UcWrite,
    /// Doorbells of a guest beside a busy one, over a device that its VMM links.
    EmbedPostedWrite,
    /// Register reads of a guest beside a busy one.
    EmbedRegisterRead,
    /// Register writes to a device in the process, against those by vfio-user messages.
    EmbedRegisterWrite,
    /// RDMA writes of 1 MiB to another world, by a trunk.
    #[value(name = "trunk-write-1m")]
    TrunkWriteLarge,
    /// RDMA writes of 8 bytes to another world and back, by a trunk.
    #[value(name = "trunk-write-8b")]
    TrunkWriteSmall,
}

/// Cases that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Accesses of guests to devices that their VMM links.
    Embed,
}

impl Group {
    /// Returns the cases of the group.
    #[must_use]
    pub const fn cases(self) -> &'static [Case] {
        match self {
            Self::Embed => &[
                Case::EmbedPostedWrite,
                Case::EmbedRegisterRead,
                Case::EmbedRegisterWrite,
            ],
        }
    }
}

/// How fast a case is meant to be, in floors of the same run: a machine that is slow at memory or at
/// computing moves its floors as well.
#[derive(Clone, Copy, Debug)]
struct Target {
    copies: f64,
    lookups: f64,
    computes: f64,
}

impl Target {
    const fn computes(computes: f64) -> Self {
        Self {
            copies: 0.0,
            lookups: 0.0,
            computes,
        }
    }

    fn nanos(&self, floors: &FloorTimes) -> f64 {
        self.copies * floors.copy + self.lookups * floors.lookup + self.computes * floors.compute
    }
}

impl Case {
    /// All cases.
    pub const ALL: [Self; 24] = [
        Self::FloorCopy,
        Self::FloorLookup,
        Self::FloorCompute,
        Self::CmEgressHit,
        Self::CmIngressHit,
        Self::CmOpenClose,
        Self::TidRoundtrip,
        Self::McastJoinLocal,
        Self::PathCached,
        Self::TunnelRtt,
        Self::UdHop,
        Self::MadRtt,
        Self::FunctionsDatagram,
        Self::FatTree,
        Self::RcWrite,
        Self::RcRead,
        Self::RcSend,
        Self::RcLat,
        Self::UcWrite,
        Self::EmbedPostedWrite,
        Self::EmbedRegisterRead,
        Self::EmbedRegisterWrite,
        Self::TrunkWriteLarge,
        Self::TrunkWriteSmall,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::FloorCopy => "floor-copy",
            Self::FloorLookup => "floor-lookup",
            Self::FloorCompute => "floor-compute",
            Self::CmEgressHit => "cm-egress-hit",
            Self::CmIngressHit => "cm-ingress-hit",
            Self::CmOpenClose => "cm-open-close",
            Self::TidRoundtrip => "tid-roundtrip",
            Self::McastJoinLocal => "mcast-join-local",
            Self::PathCached => "path-cached",
            Self::TunnelRtt => "tunnel-rtt",
            Self::UdHop => "ud-hop",
            Self::MadRtt => "mad-rtt",
            Self::FunctionsDatagram => "functions-datagram",
            Self::FatTree => "fat-tree",
            Self::RcWrite => "rc-write",
            Self::RcRead => "rc-read",
            Self::RcSend => "rc-send",
            Self::RcLat => "rc-lat",
            Self::UcWrite => "uc-write",
            Self::EmbedPostedWrite => "embed-posted-write",
            Self::EmbedRegisterRead => "embed-register-read",
            Self::EmbedRegisterWrite => "embed-register-write",
            Self::TrunkWriteLarge => "trunk-write-1m",
            Self::TrunkWriteSmall => "trunk-write-8b",
        }
    }

    /// How many objects live unless somebody says otherwise; `None` for cases without such.
    const fn usual_live(self) -> Option<u32> {
        match self {
            Self::CmEgressHit | Self::CmIngressHit => Some(1_000_000),
            Self::CmOpenClose => Some(100_000),
            Self::TidRoundtrip | Self::McastJoinLocal | Self::PathCached => Some(10_000),
            _ => None,
        }
    }

    /// The most objects that the tables have place for, with those that rest.
    const fn most_live(self) -> u32 {
        match self {
            Self::TidRoundtrip => 400_000,
            Self::McastJoinLocal => 60_000,
            Self::PathCached => 1_000_000,
            _ => 8_000_000,
        }
    }

    const fn target(self) -> Option<Target> {
        match self {
            Self::CmEgressHit | Self::CmIngressHit => Some(Target {
                copies: 2.0,
                lookups: 2.0,
                computes: 0.0,
            }),
            Self::CmOpenClose => Some(Target::computes(8.0)),
            Self::TidRoundtrip => Some(Target {
                copies: 2.0,
                lookups: 0.0,
                computes: 4.0,
            }),
            Self::McastJoinLocal => Some(Target::computes(4.0)),
            Self::PathCached => Some(Target::computes(5.5)),
            Self::TunnelRtt => Some(Target::computes(14.0)),
            _ => None,
        }
    }

    /// The target in nanoseconds of a case whose target is not counted in floors.
    fn own_target(self, sample: &Sample) -> Option<f64> {
        match self {
            Self::FunctionsDatagram => Some(300.0),
            Self::EmbedPostedWrite => Some(20_000.0),
            Self::EmbedRegisterRead => Some(1_000_000.0),
            // 2 GB/s.
            Self::TrunkWriteLarge => Some(524_288.0),
            Self::TrunkWriteSmall => Some(15_000.0),
            Self::EmbedRegisterWrite => {
                let mut figures = sample.figures.iter();
                let message = figures.find(|(name, _)| *name == embed::MESSAGE)?;
                Some(0.1 * message.1)
            }
            _ => None,
        }
    }

    /// Bytes of state that a live object is meant to have at most.
    const fn target_bytes(self) -> Option<f64> {
        match self {
            Self::CmEgressHit | Self::CmIngressHit | Self::CmOpenClose => Some(96.0),
            Self::TidRoundtrip => Some(72.0),
            Self::McastJoinLocal => Some(32.0),
            _ => None,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What to measure on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// VFs of the port.
    pub vfs: u16,
    /// Live objects; each case has a number of its own by default.
    pub live: Option<u32>,
    /// Runs of each case.
    pub runs: u32,
}

/// A number of live objects that a case has no place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("case {case} has place for {most} live objects, not for {live}")]
pub struct TooManyLive {
    /// The case.
    pub case: Case,
    /// What it has place for.
    pub most: u32,
    /// What was asked for.
    pub live: u32,
}

impl Options {
    /// Finds out whether a case can be run with these.
    ///
    /// # Errors
    /// [`TooManyLive`].
    pub fn check(&self, case: Case) -> Result<(), TooManyLive> {
        let most = case.most_live();
        match self.live {
            Some(live) if live > most && case.usual_live().is_some() => {
                Err(TooManyLive { case, most, live })
            }
            _ => Ok(()),
        }
    }
}

/// How large the port's tables are.
#[derive(Clone, Copy, Debug)]
struct Scale {
    vfs: u16,
    live: u32,
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
    fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut samples: Vec<f64> = samples.into_iter().collect();
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

/// A target, and how a case compares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The target in nanoseconds, from the floors of the same run where it depends on them.
    pub target_ns: f64,
    /// The median of a run's time over its target; at most 1 is what is wanted.
    pub ratio: f64,
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchResult {
    /// The case.
    pub case: &'static str,
    /// What was measured, in words and numbers.
    pub setup: String,
    /// VFs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vfs: Option<u16>,
    /// Live objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<u32>,
    /// Operations in each run.
    pub ops: u64,
    /// Runs.
    pub runs: u32,
    /// Nanoseconds for an operation, the median of the runs.
    pub ns_per_op: f64,
    /// The least of the runs.
    pub min: f64,
    /// The greatest of the runs.
    pub max: f64,
    /// MADs in a second, by the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mads_per_s: Option<f64>,
    /// Bytes of the tables for each live object in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_live: Option<f64>,
    /// What these bytes are meant to be at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<f64>,
    /// The target, if the case has one.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub compared: Option<Compared>,
    /// More figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
}

impl fmt::Display for BenchResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.setup)?;
        if let Some(vfs) = self.vfs {
            write!(f, ", {vfs} VFs")?;
        }
        if let Some(live) = self.live {
            write!(f, ", {live} live")?;
        }
        write!(f, " ({} ops, {} runs)", self.ops, self.runs)?;
        let own = Figure {
            name: "ns/op",
            spread: Spread {
                median: self.ns_per_op,
                min: self.min,
                max: self.max,
            },
        };
        for Figure { name, spread } in [&own].into_iter().chain(&self.figures) {
            write!(
                f,
                "\n  {name:<28} median {:>12.1}  min {:>12.1}  max {:>12.1}",
                spread.median, spread.min, spread.max
            )?;
        }
        if let Some(Compared { target_ns, ratio }) = self.compared {
            write!(
                f,
                "\n  {:<28} {target_ns:>19.1}  ratio {ratio:.2}",
                "target ns/op"
            )?;
        }
        if let Some(rate) = self.mads_per_s {
            write!(f, "\n  {:<28} {rate:>19.0}", "MADs/s")?;
        }
        if let (Some(bytes), Some(target)) = (self.bytes_per_live, self.target_bytes) {
            write!(
                f,
                "\n  {:<28} {bytes:>19.1}  target {target:.0}",
                "bytes/live"
            )?;
        }
        Ok(())
    }
}

/// A case that is ready to run.
struct Measured {
    setup: String,
    /// Operations of a run.
    ops: u64,
    mads_per_op: Option<u32>,
    /// Runs it, given the number of the run.
    run: Box<dyn FnMut(u32) -> anyhow::Result<Sample>>,
}

/// What one run of a case measured.
struct Sample {
    /// Nanoseconds for an operation.
    nanos: f64,
    bytes_per_live: Option<f64>,
    figures: Vec<(&'static str, f64)>,
}

impl Sample {
    const fn of(nanos: f64) -> Self {
        Self {
            nanos,
            bytes_per_live: None,
            figures: Vec::new(),
        }
    }
}

/// Runs cases one after the other.
#[derive(Debug)]
pub struct Bench {
    options: Options,
    /// The memory that the floors are measured on, once a case has needed them.
    floors: Option<Floors>,
}

impl Bench {
    /// Nothing has run yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            floors: None,
        }
    }

    /// Runs a case.
    ///
    /// # Errors
    /// What was to be measured did not work: a packet was lost, or the subnet did not come up.
    pub fn run(&mut self, case: Case) -> anyhow::Result<BenchResult> {
        let live = case
            .usual_live()
            .map(|usual| self.options.live.unwrap_or(usual));
        let Measured {
            setup,
            ops,
            mads_per_op,
            mut run,
        } = prepare(case, self.options.vfs, live.unwrap_or(0))?;
        let (mut samples, mut targets) = (Vec::new(), Vec::new());
        for number in 0..self.options.runs {
            // The machine may be faster now and slower then, so each run has floors of its own.
            if let Some(target) = case.target() {
                let floors = self.floors.get_or_insert_with(Floors::new);
                targets.push(target.nanos(&floors.measure()));
            }
            let sample = run(number)?;
            targets.extend(case.own_target(&sample));
            samples.push(sample);
        }
        let first = samples.first().context("at least one run is needed")?;
        let names = first.figures.iter().map(|(name, _)| *name);
        let figures = names.enumerate().filter_map(|(i, name)| {
            let spread = Spread::of(samples.iter().map(|sample| sample.figures[i].1))?;
            Some(Figure { name, spread })
        });
        let own = Spread::of(samples.iter().map(|sample| sample.nanos)).context("no run")?;
        let ratios = samples.iter().zip(&targets);
        let ratios = ratios.map(|(sample, target)| sample.nanos / target);
        let compared = Spread::of(targets.iter().copied())
            .zip(Spread::of(ratios))
            .map(|(target, ratio)| Compared {
                target_ns: target.median,
                ratio: ratio.median,
            });
        Ok(BenchResult {
            case: case.name(),
            setup,
            vfs: (live.is_some() || case == Case::TunnelRtt).then_some(self.options.vfs),
            live,
            ops,
            runs: self.options.runs,
            ns_per_op: own.median,
            min: own.min,
            max: own.max,
            mads_per_s: mads_per_op.map(|mads| f64::from(mads) * 1e9 / own.median),
            bytes_per_live: samples.last().and_then(|sample| sample.bytes_per_live),
            target_bytes: case.target_bytes(),
            compared,
            figures: figures.collect(),
        })
    }
}

fn prepare(case: Case, vfs: u16, live: u32) -> anyhow::Result<Measured> {
    let scale = Scale { vfs, live };
    Ok(match case {
        Case::FloorCopy => floors::prepare_copy(),
        Case::FloorLookup => floors::prepare_lookup(),
        Case::FloorCompute => floors::prepare_compute(),
        Case::CmEgressHit => cm_hit::prepare(cm_hit::Way::Egress, scale)?,
        Case::CmIngressHit => cm_hit::prepare(cm_hit::Way::Ingress, scale)?,
        Case::CmOpenClose => cm_life::prepare(scale)?,
        Case::TidRoundtrip => tid::prepare(scale)?,
        Case::McastJoinLocal => join::prepare(scale)?,
        Case::PathCached => path::prepare(scale)?,
        Case::TunnelRtt => tunnel::prepare(vfs)?,
        Case::UdHop => ud_hop::prepare(),
        Case::MadRtt => mad_rtt::prepare(),
        Case::FunctionsDatagram => functions::prepare(),
        Case::FatTree => fat_tree::prepare(),
        Case::RcWrite => rdma::prepare(rdma::Traffic::Write)?,
        Case::RcRead => rdma::prepare(rdma::Traffic::Read)?,
        Case::RcSend => rdma::prepare(rdma::Traffic::Send)?,
        Case::RcLat => rdma::prepare(rdma::Traffic::Latency)?,
        Case::UcWrite => rdma::prepare(rdma::Traffic::UnreliableWrite)?,
        Case::EmbedPostedWrite => embed::prepare_beside(embed::Access::PostedWrite),
        Case::EmbedRegisterRead => embed::prepare_beside(embed::Access::Read),
        Case::EmbedRegisterWrite => embed::prepare_writes(),
        Case::TrunkWriteLarge => trunk::prepare_large(),
        Case::TrunkWriteSmall => trunk::prepare_small(),
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
        let spread = Spread::of([5.0, 1.0, 3.0]).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 3.0, 5.0));
        assert_eq!(Spread::of([]), None);
    }
}
