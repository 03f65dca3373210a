//! Metrics of the service itself: its build, its subnet manager, and the programs that use it.

use ib_vtime::Duration;
use subnet_lite::sm::SmStats;

use super::snapshot::Snapshot;
use super::{Family, Kind, Samples};
use crate::show::TrunkRow;

/// The service itself.
#[derive(Clone, Debug, Default)]
pub struct ServiceFacts {
    /// When it was started, since the Unix epoch.
    pub started: Duration,
    /// The embedded subnet manager, if there is one.
    pub manager: Option<ManagerFacts>,
    /// Programs that use Linux' umad.
    pub programs: Programs,
    /// Trunks to the fabrics of other services.
    pub trunks: Vec<TrunkRow>,
}

/// The embedded subnet manager.
#[derive(Clone, Copy, Debug, Default)]
pub struct ManagerFacts {
    /// Its state, as SMInfo has it: 3 is master.
    pub state: u8,
    /// What it counts.
    pub stats: SmStats,
    /// How long its complete heavy sweeps took together.
    pub sweep_time: Duration,
    /// How long the last of them took.
    pub last_sweep: Option<Duration>,
    /// How long ago that ended.
    pub last_sweep_age: Option<Duration>,
}

/// Programs that use Linux' umad, counted by the umad files that they open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// Files that are open.
    pub open: u64,
    /// Files that were opened.
    pub opened: u64,
    /// MADs that programs sent.
    pub sent: u64,
    /// MADs for programs.
    pub received: u64,
    /// Requests of programs that were not answered.
    pub timed_out: u64,
    /// MADs for programs that were dropped because too many were unread.
    pub unread: u64,
    /// MADs of programs that could not be sent.
    pub refused: u64,
}

/// Declares a metric of the subnet manager.
macro_rules! manager {
    ($name:literal, $kind:ident, $help:literal, $write:expr) => {
        Family {
            name: $name,
            kind: Kind::$kind,
            help: $help,
            part: |snapshot, place, samples| {
                let write: fn(&ManagerFacts, &mut Samples<'_>) = $write;
                let manager = once(snapshot, place)?.manager?;
                write(&manager, samples);
                Some(())
            },
        }
    };
}

/// Declares a metric of the service.
macro_rules! service {
    ($name:literal, $kind:ident, $help:literal, $write:expr) => {
        Family {
            name: $name,
            kind: Kind::$kind,
            help: $help,
            part: |snapshot, place, samples| {
                let write: fn(&ServiceFacts, &mut Samples<'_>) = $write;
                write(once(snapshot, place)?, samples);
                Some(())
            },
        }
    };
}

pub(super) const FAMILIES: &[Family] = &[
    service!(
        "vhca_build_info",
        Gauge,
        "The version of vhca, and what it was built for.",
        |_, samples| {
            let build = [
                ("version", env!("CARGO_PKG_VERSION")),
                ("arch", std::env::consts::ARCH),
            ];
            samples.sample("", &build, 1);
        }
    ),
    service!(
        "process_start_time_seconds",
        Gauge,
        "Start of the service, in seconds since the Unix epoch.",
        |service, samples| samples.sample("", &[], service.started.as_secs_f64())
    ),
    manager!(
        "vhca_sm_state_id",
        Gauge,
        "State of the embedded subnet manager: 0 not active, 1 discovering, 2 standby, 3 master.",
        |manager, samples| samples.sample("", &[], manager.state)
    ),
    manager!(
        "vhca_sm_sweeps_total",
        Counter,
        "Sweeps begun: heavy ones read and write everything, light ones look for changes.",
        |manager, samples| {
            for (kind, sweeps) in [
                ("heavy", manager.stats.heavy_sweeps),
                ("light", manager.stats.light_sweeps),
            ] {
                samples.sample("", &[("kind", kind)], sweeps);
            }
        }
    ),
    manager!(
        "vhca_sm_sweep_seconds_total",
        Counter,
        "How long complete heavy sweeps took together.",
        |manager, samples| samples.sample("", &[], manager.sweep_time.as_secs_f64())
    ),
    manager!(
        "vhca_sm_last_sweep_seconds",
        Gauge,
        "How long the last complete heavy sweep took.",
        |manager, samples| {
            if let Some(time) = manager.last_sweep {
                samples.sample("", &[], time.as_secs_f64());
            }
        }
    ),
    manager!(
        "vhca_sm_last_sweep_age_seconds",
        Gauge,
        "How long ago the last complete heavy sweep ended.",
        |manager, samples| {
            if let Some(age) = manager.last_sweep_age {
                samples.sample("", &[], age.as_secs_f64());
            }
        }
    ),
    manager!(
        "vhca_sm_errors_total",
        Counter,
        "Requests without an answer, answers with an error, requests that were not understood, events without room.",
        |manager, samples| {
            let stats = manager.stats;
            for (error, count) in [
                ("timeout", stats.timeouts),
                ("refused", stats.refused),
                ("ignored", stats.ignored),
                ("overflow", stats.overflows),
            ] {
                samples.sample("", &[("error", error)], count);
            }
        }
    ),
    manager!(
        "vhca_sm_traps_total",
        Counter,
        "Traps received.",
        |manager, samples| samples.sample("", &[], manager.stats.traps)
    ),
    manager!(
        "vhca_sm_noisy_traps_total",
        Counter,
        "Traps not acted upon because they came too often.",
        |manager, samples| samples.sample("", &[], manager.stats.noisy_traps)
    ),
    service!(
        "vhca_umad_files",
        Gauge,
        "Umad files that programs have open.",
        |service, samples| samples.sample("", &[], service.programs.open)
    ),
    service!(
        "vhca_umad_files_opened_total",
        Counter,
        "Umad files that programs opened.",
        |service, samples| samples.sample("", &[], service.programs.opened)
    ),
    service!(
        "vhca_umad_mads_total",
        Counter,
        "MADs that programs sent, and MADs for them.",
        |service, samples| {
            samples.sample("", &[("dir", "tx")], service.programs.sent);
            samples.sample("", &[("dir", "rx")], service.programs.received);
        }
    ),
    service!(
        "vhca_umad_errors_total",
        Counter,
        "Requests of programs without an answer, MADs that could not be sent, MADs that nobody read.",
        |service, samples| {
            let programs = service.programs;
            for (error, count) in [
                ("timeout", programs.timed_out),
                ("refused", programs.refused),
                ("unread", programs.unread),
            ] {
                samples.sample("", &[("error", error)], count);
            }
        }
    ),
];

/// Returns the service, which has one part.
fn once(snapshot: &Snapshot, place: usize) -> Option<&ServiceFacts> {
    snapshot.service.as_ref().filter(|_| place == 0)
}
