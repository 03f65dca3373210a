//! Measurements of guests, in the form of `vhca bench`: what is compared is of the same run.

use std::error::Error;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::Host;
use crate::console::Boot;
use crate::modes::{COMMANDS, DOORBELLS, Verdict};
use crate::siege::{END, start_vm};

const RUNS: usize = 5;

/// Time in which a guest does nothing.
const IDLE: Duration = Duration::from_secs(2);

/// Most of a core that an idle VF may take.
const IDLE_SHARE: f64 = 0.0005;

/// One case.
struct Case {
    name: &'static str,
    setup: &'static str,
    /// Operations of a run.
    ops: u32,
    /// Nanoseconds for an operation, of each run.
    own: Vec<f64>,
    /// The same of what it is compared with, if that is measured.
    other: Option<(&'static str, Vec<f64>)>,
    /// The target of each run.
    targets: Vec<f64>,
}

/// Returns the median, the least and the greatest.
fn spread(samples: &[f64]) -> [f64; 3] {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    [sorted.len() / 2, 0, last].map(|at| sorted.get(at).copied().unwrap_or(f64::NAN))
}

impl Case {
    /// Measures something, and what it may at most be `factor` times as long as.
    fn compared(
        (name, setup, ops): (&'static str, &'static str, u32),
        factor: f64,
        other: &'static str,
        measure: impl Fn(bool) -> Result<f64, Box<dyn Error>>,
    ) -> Result<Self, Box<dyn Error>> {
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            others.push(measure(true)?);
            own.push(measure(false)?);
        }
        Ok(Self {
            name,
            setup,
            ops,
            own,
            targets: others.iter().map(|nanos| nanos * factor).collect(),
            other: Some((other, others)),
        })
    }

    fn print(&self, is_json: bool) {
        let Self {
            name, setup, ops, ..
        } = self;
        let [median, min, max] = spread(&self.own);
        let ratios = self.own.iter().zip(&self.targets);
        let ratios: Vec<_> = ratios.map(|(own, target)| own / target).collect();
        let ([target, ..], [ratio, ..]) = (spread(&self.targets), spread(&ratios));
        let other = self.other.as_ref().map(|(name, all)| (name, spread(all)));
        if !is_json {
            println!("{name}: {setup} ({ops} ops, {RUNS} runs)");
            let own = Some((&"ns/op", [median, min, max]));
            for (name, [median, min, max]) in own.into_iter().chain(other) {
                println!("  {name:<28} median {median:>12.1}  min {min:>12.1}  max {max:>12.1}");
            }
            return println!("  {:<28} {target:>19.1}  ratio {ratio:.2}", "target ns/op");
        }
        let figures = other.map(|(name, [median, min, max])| {
            format!(
                r#","figures":[{{"name":"{name}","median":{median:.1},"min":{min:.1},"max":{max:.1}}}]"#
            )
        });
        println!(
            r#"{{"case":"{name}","setup":"{setup}","ops":{ops},"runs":{RUNS},"ns_per_op":{median:.1},"min":{min:.1},"max":{max:.1},"target_ns":{target:.1},"ratio":{ratio:.3}{}}}"#,
            figures.unwrap_or_default()
        );
    }
}

/// Processor time of all threads of this process.
fn running_time() -> Result<Duration, Box<dyn Error>> {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task")? {
        // A thread may have ended meanwhile.
        let times = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        let time = times.split(' ').next().and_then(|time| time.parse().ok());
        nanos += time.unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanos))
}

/// Measures what a guest that does nothing costs, in nanoseconds of processor time in a second.
fn idle(host: &Host) -> Result<Case, Box<dyn Error>> {
    let vm = start_vm(host, 0, false)?;
    let mut own = Vec::new();
    for _ in 0..RUNS {
        let (before, begun) = (running_time()?, Instant::now());
        thread::sleep(IDLE);
        let spent = running_time()?.saturating_sub(before);
        own.push(1e9 * spent.as_secs_f64() / begun.elapsed().as_secs_f64());
    }
    vm.order(END);
    vm.end()?;
    Ok(Case {
        name: "embed-idle",
        setup: "a second of a VM whose guest does nothing",
        ops: 1,
        targets: vec![1e9 * IDLE_SHARE; own.len()],
        own,
        other: None,
    })
}

/// Returns the nanoseconds of an operation, as a guest measured them.
fn ns(boot: Result<Boot, Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    Ok(Duration::from_nanos(boot?.measured).as_secs_f64() * 1e9)
}

/// Measures a VF of another process beside one of this one.
#[cfg(all(feature = "remote", feature = "trunk"))]
pub(crate) fn bench_remote(
    host: &Host,
    boot: impl Fn([u64; 2]) -> Result<Boot, Box<dyn Error>>,
    is_json: bool,
) -> Verdict {
    for (case, factor, arguments) in [
        (
            (
                "remote-command",
                "commands that do nothing, each ended by an interrupt, at a VF of a service",
                300,
            ),
            1.2,
            [COMMANDS, 0],
        ),
        (
            (
                "remote-doorbell",
                "doorbells of sends by ioeventfd, as the guest sees them, at a VF of a service",
                10_000,
            ),
            1.2,
            [DOORBELLS, 0],
        ),
    ] {
        let case = Case::compared(case, factor, "in process, ns", |is_other| match is_other {
            true => ns(host.boot(arguments, false)),
            false => ns(boot(arguments)),
        });
        case?.print(is_json);
    }
    Ok(true)
}

pub(crate) fn bench(host: &Host, is_json: bool) -> Verdict {
    let doorbell = (
        "embed-doorbell",
        "doorbells of sends by ioeventfd, as the guest sees them",
        10_000,
    );
    Case::compared(doorbell, 0.3, "trapped, ns", |is_other| {
        ns(host.boot([DOORBELLS, 0], is_other))
    })?
    .print(is_json);
    let command = (
        "embed-command",
        "commands that do nothing, each ended by an interrupt",
        300,
    );
    Case::compared(command, 1.1, "polled, ns", |is_other| {
        ns(host.boot([COMMANDS, u64::from(is_other)], false))
    })?
    .print(is_json);
    idle(host)?.print(is_json);
    Ok(true)
}
