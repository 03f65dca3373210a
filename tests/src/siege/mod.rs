//! A siege in real time: what well-behaved guests of a service wait for while others do their worst.
//!
//! A real service with real sockets is attacked by processes of their own, each on a VF beside the victims' on the
//! same adapter. The victims' register reads, MADs, datagrams and RDMA writes, an administrator's requests and a sweep's
//! SMPs are due at times, and timed from then on, in three settings: alone, beside as many processes that send as many
//! messages without effect, and beside attackers. The difference is the time that one guest can take from another. At the end
//! an administrator stops the service beside the last setting's attackers.
#![expect(
    clippy::unwrap_used,
    reason = "a siege fails where its surroundings do"
)]

mod attacks;
mod connections;
mod passing;
mod put_back;
mod raw;
mod rings;
mod signals;
mod sweeper;
mod trunks;
mod victims;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

pub use attacks::{Attack, Target};
pub use victims::{Probe, Trouble};

use vhca_control::Remote;

use crate::live::{Lab, MemoryCgroup, wait_for};
use victims::{INTERVAL, Places, Victims};

/// The hidden argument of a process that attacks. The seconds after which it ends, the attack's name, the bytes of memory that it
/// may have, the sockets of its two VFs, the folder of the service's other sockets, and a file for its progress follow.
const ATTACKER: &str = "--attacker";

/// The hidden argument of a process that does what an attack does to sockets of its own. The seconds after which it ends, the
/// attack's name, and a file for its progress follow.
const OWN: &str = "--own";

/// How long attackers have to get going.
const APPROACH: Duration = Duration::from_millis(700);

/// Niceness of attackers, those whose messages mean nothing included. What they compute themselves is for the host's
/// scheduler to share, and on few processors victims would wait for that rather than for the service.
const NICENESS: i32 = 19;

/// How often an attacker tells of its progress.
const TELL: Duration = Duration::from_millis(20);

/// Time in which an attacker has to take one more step of its attack.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long attackers may live beyond the measurement, which lasts longer where victims wait.
const REST: Duration = Duration::from_secs(200);

/// VFs of the attacked adapter that are victims'.
const NEAR: usize = 5;

/// Time in which the service has ended after an administrator's `stop`, while others attack it.
const STOP: Duration = Duration::from_secs(10);

/// A longer wait counts as late.
pub const LATE: Duration = Duration::from_millis(5);

/// What is to be done.
#[derive(Clone, Debug)]
pub struct SiegePlan {
    /// The attacks.
    pub attacks: Vec<Attack>,
    /// How many attack at a time.
    pub counts: Vec<usize>,
    /// How long is measured each time.
    pub length: Duration,
    /// Bytes of memory that the service may have, if they are bounded.
    pub memory: Option<u64>,
    /// The program that leaves it to [`lend_a_hand`] when it is started.
    pub program: PathBuf,
}

/// What goes on around the victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Nothing.
    Alone,
    /// So many send messages that mean nothing.
    Calm(usize),
    /// So many do what the attack does, to sockets of their own.
    Own(Attack, usize),
    /// So many begin to attack. The service learns from the first access that takes long, so nothing is promised of it.
    First(Attack, usize),
    /// So many attack.
    Attacked(Attack, usize),
}

/// How long something took, in one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// In which setting.
    pub setting: Setting,
    /// What.
    pub probe: Probe,
    /// How often it was measured.
    pub count: usize,
    /// The median.
    pub p50: Duration,
    /// What one in a hundred took longer than.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
    /// The part that took longer than [`LATE`], of 1.
    pub late: f64,
    /// All of them, in the order in which they were due.
    waits: Vec<Duration>,
}

/// How long something may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// All but one in a hundred.
    pub p99: Duration,
    /// Each.
    pub max: Duration,
    /// The part of the time, of 1, in which something is due for longer than all but one in a hundred may take.
    pub stalled: f64,
}

impl Bound {
    fn is_kept(&self, figures: &Figures) -> bool {
        figures.p99 <= self.p99
            && figures.max <= self.max
            && figures.stalled(self.p99) <= self.stalled
    }
}

/// What a siege showed.
#[derive(Debug, Default)]
pub struct Siege {
    /// All figures, in the order of the plan.
    pub figures: Vec<Figures>,
    /// Time that the service took to end after an administrator's `stop`, beside the last setting's processes.
    pub stop: Option<Figures>,
    /// The most bytes of memory that the service had, where they were bounded and the kernel counts them.
    pub memory: Option<u64>,
}

/// A process of ours, which does not outlive the siege.
struct Hand {
    name: String,
    process: Child,
    progress: NamedTempFile,
}

impl Hand {
    /// Returns what it has done.
    fn progress(&self) -> Result<u64, Trouble> {
        let mut bytes = [0; 8];
        // Nothing is written before the first thing is done.
        let _ = self.progress.as_file().read_at(&mut bytes, 0)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Checks that it still attacks, and has since it had done so much. On a busy machine it is waited for.
    fn check(&mut self, before: u64) -> Result<(), Trouble> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Err(format!("{} ended early: {status}", self.name).into());
            }
            if self.progress()? != before {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("{} came no further than {before}", self.name).into());
            }
            sleep(TELL);
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Does what a process of a siege is there for, if this is one; then it does not come back, or tells why not.
///
/// # Errors
/// What keeps it from attacking.
pub fn lend_a_hand(arguments: &[&str]) -> Result<(), Trouble> {
    match *arguments {
        [ATTACKER, life, attack, share, vf, second_vf, lab, progress] => {
            end_in(life, File::options().write(true).open(progress)?)?;
            rustix::process::setpriority_process(None, NICENESS)?;
            let target = Target {
                share: share.parse()?,
                vf: Path::new(vf),
                second_vf: Path::new(second_vf),
                lab: Path::new(lab),
            };
            attack.parse::<Attack>()?.carry_out(target)
        }
        [OWN, life, attack, progress] => {
            end_in(life, File::options().write(true).open(progress)?)?;
            rustix::process::setpriority_process(None, NICENESS)?;
            attack.parse::<Attack>()?.carry_out_on_own()
        }
        _ => Ok(()),
    }
}

/// Starts a thread that reports this process's progress, and ends the process after so many seconds.
fn end_in(seconds: &str, progress: File) -> Result<(), Trouble> {
    let end = Instant::now() + Duration::try_from_secs_f64(seconds.parse()?)?;
    std::thread::spawn(move || {
        while Instant::now() < end {
            let bytes = attacks::progress().to_le_bytes();
            if progress.write_all_at(&bytes, 0).is_err() {
                break;
            }
            sleep(TELL);
        }
        std::process::exit(0);
    });
    Ok(())
}

impl SiegePlan {
    /// Carries the plan out. Each setting's figures are told as soon as they are known.
    ///
    /// # Errors
    /// What kept a victim from going on: that is worse than any wait.
    ///
    /// # Panics
    /// If the service or a process cannot be started.
    pub fn carry_out(&self, mut tell: impl FnMut(&Figures)) -> Result<Siege, Trouble> {
        let most = self.counts.iter().copied().max().unwrap_or(0);
        let folder = tempfile::tempdir()?;
        let programs = most.max(1);
        let vfs = (2 * most + NEAR + programs).to_string();
        let programs = programs.to_string();
        let path = folder.path().to_str().ok_or("no temporary folder")?;
        let arguments = [
            "--topology",
            "two-switch",
            "--vfs",
            &vfs,
            "--vfio-user",
            path,
            "--verbs",
            "--program-vfs",
            &programs,
        ];
        let trunks = trunks::options(folder.path());
        let arguments = [&arguments[..], &trunks.each_ref().map(String::as_str)].concat();
        let group = self.memory.map(MemoryCgroup::new).transpose()?;
        let mut lab = match &group {
            Some(group) => Lab::serve_in(group, &arguments),
            None => Lab::serve(&arguments),
        };
        let socket = |host: &str, vf| folder.path().join(format!("{host}-vf{vf}.sock"));
        let near: [PathBuf; NEAR] = std::array::from_fn(|nth| socket("H1-1", nth + 1));
        let mut victims = Victims::start(&Places {
            near: near.each_ref().map(PathBuf::as_path),
            far: &socket("H2-1", 1),
            control: &lab.dir().join("control"),
            umad: (&lab.dir().join("umad"), "H2-2"),
        })?;
        let mut siege = Siege::default();
        let settings = self.settings();
        let last = settings.last().copied();
        for setting in settings {
            let numbers = (NEAR + 1..=NEAR + most).map(|vf| [vf, vf + most]);
            let sockets = numbers.map(|both| both.map(|vf| socket("H1-1", vf)));
            let mut hands = self.start(setting, lab.dir(), sockets)?;
            victims.idle(APPROACH)?;
            approach(&hands, &mut victims)?;
            let before: Vec<u64> = hands.iter().map(Hand::progress).collect::<Result<_, _>>()?;
            let waits = victims.watch(self.length)?;
            for (hand, before) in hands.iter_mut().zip(before) {
                hand.check(before)?;
            }
            let figures = waits
                .into_iter()
                .map(|(probe, waits)| Figures::of(setting, probe, waits));
            let figures: Vec<Figures> = figures.collect();
            figures.iter().for_each(&mut tell);
            siege.figures.extend(figures);
            if lab.service().ended().is_some() {
                return Err("the service is gone".into());
            }
            if Some(setting) == last {
                let stop = Figures::of(setting, Probe::Stop, vec![stop(&mut lab)?]);
                tell(&stop);
                siege.stop = Some(stop);
            } else {
                drop(hands);
                wait_until_free(&lab);
            }
        }
        siege.memory = group.and_then(|group| group.peak().ok());
        Ok(siege)
    }

    fn settings(&self) -> Vec<Setting> {
        let calm = self.counts.iter().map(|count| Setting::Calm(*count));
        let attacked = self.attacks.iter().flat_map(|attack| {
            let own = attack.is_of_the_kernel().then(|| {
                self.counts
                    .iter()
                    .map(|count| Setting::Own(*attack, *count))
            });
            let attacked = self.counts.iter().flat_map(|count| {
                let first = (attack.is_learnt()).then_some(Setting::First(*attack, *count));
                first
                    .into_iter()
                    .chain([Setting::Attacked(*attack, *count)])
            });
            own.into_iter().flatten().chain(attacked)
        });
        [Setting::Alone]
            .into_iter()
            .chain(calm)
            .chain(attacked)
            .collect()
    }

    fn start(
        &self,
        setting: Setting,
        lab: &Path,
        sockets: impl Iterator<Item = [PathBuf; 2]>,
    ) -> Result<Vec<Hand>, Trouble> {
        let life = (APPROACH + self.length + REST).as_secs_f64().to_string();
        let (attack, count, is_own) = match setting {
            Setting::Alone => return Ok(Vec::new()),
            Setting::Calm(count) => (Attack::Nops, count, false),
            Setting::Own(attack, count) => (attack, count, true),
            Setting::First(attack, count) | Setting::Attacked(attack, count) => {
                (attack, count, false)
            }
        };
        let share = attacks::punched() / count.max(1);
        if let Setting::First(..) = setting {
            eprintln!("{attack}: {count} processes have {} MiB each", share >> 20);
        }
        let share = share.to_string();
        let hand = |[socket, second]: [PathBuf; 2]| {
            let progress = NamedTempFile::new()?;
            let mut command = Command::new(&self.program);
            if is_own {
                command.args([OWN, &life, attack.name()]);
            } else {
                command.args([ATTACKER, &life, attack.name(), &share]);
                command.args([&socket, &second, lab]);
            }
            command
                .arg(progress.path())
                .stdout(Stdio::null())
                .stdin(Stdio::null());
            Ok(Hand {
                name: format!("{attack} at {}", socket.display()),
                process: command.spawn()?,
                progress,
            })
        };
        sockets.take(count).map(hand).collect()
    }
}

/// Waits until all attackers have done something.
fn approach(hands: &[Hand], victims: &mut Victims) -> Result<(), Trouble> {
    let begun = Instant::now();
    for hand in hands {
        while hand.progress()? == 0 {
            if begun.elapsed() > REST / 2 {
                return Err(format!("{} does not get going", hand.name).into());
            }
            victims.idle(APPROACH / 7)?;
        }
    }
    Ok(())
}

/// Stops the service as an administrator does. Returns how long it took to end, from the request on.
fn stop(lab: &mut Lab) -> Result<Duration, Trouble> {
    let control = Remote::connect(&lab.dir().join("control"))?;
    let begun = Instant::now();
    control.stop()?;
    let ended = wait_for(REST, || lab.service().ended());
    let took = begun.elapsed();
    match ended {
        Some(status) if status.success() && took <= STOP => Ok(took),
        Some(status) => Err(format!("the service ended {took:?} after a stop, {status}").into()),
        None => Err(format!("the service did not end within {took:?} of a stop").into()),
    }
}

/// Waits until no VF but the victims' has a VMM.
fn wait_until_free(lab: &Lab) {
    lab.wait_until(&["show", "vfs"], |shown| {
        let vmms = shown["vmms"].as_array().into_iter().flatten();
        vmms.filter(|vmm| vmm["attached"] == true).count() <= NEAR + 1
    });
}

impl Figures {
    fn of(setting: Setting, probe: Probe, waits: Vec<Duration>) -> Self {
        let mut samples = waits.clone();
        samples.sort_unstable();
        let at = |part: usize| {
            let index = (samples.len() * part / 100).min(samples.len() - 1);
            samples[index]
        };
        Self {
            setting,
            probe,
            count: samples.len(),
            p50: at(50),
            p99: at(99),
            max: *samples.last().unwrap(),
            late: samples.iter().filter(|wait| **wait > LATE).count() as f64 / samples.len() as f64,
            waits,
        }
    }

    /// Returns the part of the time in which something was due for longer than a bound.
    fn stalled(&self, bound: Duration) -> f64 {
        let (mut stalled, mut until) = (Duration::ZERO, Duration::ZERO);
        for (nth, wait) in (0..).zip(&self.waits) {
            let due = nth * INTERVAL;
            let from = (due + bound).max(until);
            stalled += (due + *wait).saturating_sub(from);
            until = until.max(due + *wait);
        }
        let all = INTERVAL.as_secs_f64() * self.waits.len().max(1) as f64;
        stalled.as_secs_f64() / all
    }

    fn setting(&self) -> (String, usize) {
        match self.setting {
            Setting::Alone => ("alone".to_owned(), 0),
            Setting::Calm(count) => (Attack::Nops.name().to_owned(), count),
            Setting::Own(attack, count) => (format!("own-{attack}"), count),
            Setting::First(attack, count) => (format!("first-{attack}"), count),
            Setting::Attacked(attack, count) => (attack.name().to_owned(), count),
        }
    }

    /// A line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let (name, count) = self.setting();
        let [p50, p99, max] = [self.p50, self.p99, self.max].map(|time| time.as_secs_f64() * 1e3);
        format!(
            "{name:20} {count:3} {:9} {:6} {p50:9.3} {p99:9.3} {max:9.3} {:6.2}",
            self.probe.name(),
            self.count,
            self.late * 100.0,
        )
    }

    fn json(&self) -> Value {
        let (name, count) = self.setting();
        let us = |time: Duration| time.as_micros();
        json!({
            "setting": name, "processes": count, "probe": self.probe.name(), "samples": self.count,
            "p50_us": us(self.p50), "p99_us": us(self.p99), "max_us": us(self.max), "late": self.late,
        })
    }
}

/// The heading of the table.
#[must_use]
pub fn heading() -> String {
    format!(
        "{:20} {:>3} {:9} {:>6} {:>9} {:>9} {:>9} {:>6}",
        "setting", "n", "probe", "count", "p50/ms", "p99/ms", "max/ms", "late/%"
    )
}

impl Siege {
    /// The figures that an attack's are compared with: beside as many processes that send messages which mean nothing, or that
    /// do the same to sockets of their own.
    fn calm(&self, probe: Probe, attack: Attack, count: usize) -> Option<&Figures> {
        let setting = if attack.is_of_the_kernel() {
            Setting::Own(attack, count)
        } else {
            Setting::Calm(count)
        };
        let mut figures = self.figures.iter();
        figures.find(|other| other.probe == probe && other.setting == setting)
    }

    /// Returns the settings in which the victims wait longer than they may: `bound` makes what they may under attack of what
    /// they wait beside processes whose messages mean nothing, of which there is none for the settings without an attack.
    pub fn missed(
        &self,
        bound: impl Fn(Option<&Figures>) -> Bound,
    ) -> impl Iterator<Item = (&Figures, Bound)> {
        self.figures.iter().filter_map(move |figures| {
            let calm = match figures.setting {
                // What the kernel takes is no promise of the service, nor is the access that teaches it.
                Setting::Own(..) | Setting::First(..) => return None,
                Setting::Alone | Setting::Calm(_) => None,
                Setting::Attacked(attack, count) => {
                    Some(self.calm(figures.probe, attack, count)?)
                }
            };
            let bound = bound(calm);
            (!bound.is_kept(figures)).then_some((figures, bound))
        })
    }

    /// Returns a plan that carries out again what missed a bound, if anything did.
    pub fn again(
        &self,
        plan: &SiegePlan,
        bound: impl Fn(Option<&Figures>) -> Bound,
    ) -> Option<SiegePlan> {
        let mut again = SiegePlan {
            attacks: Vec::new(),
            counts: Vec::new(),
            ..plan.clone()
        };
        let mut missed = false;
        for (figures, _) in self.missed(bound) {
            missed = true;
            if let Setting::Attacked(attack, count) = figures.setting {
                if !again.attacks.contains(&attack) {
                    again.attacks.push(attack);
                }
                if !again.counts.contains(&count) {
                    again.counts.push(count);
                }
            }
        }
        missed.then_some(again)
    }

    /// Returns true if no figures of the same probe and setting miss a bound.
    #[must_use]
    pub fn keeps(&self, figures: &Figures, bound: impl Fn(Option<&Figures>) -> Bound) -> bool {
        !self
            .missed(bound)
            .any(|(missed, _)| missed.probe == figures.probe && missed.setting == figures.setting)
    }

    /// All figures as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let all = self.figures.iter().chain(&self.stop);
        all.map(Figures::json).collect()
    }
}

/// How long something may take: under attack 5 ms more for all but one in a hundred, or three times as long, as beside
/// processes whose messages mean nothing; 50 ms more, or three times as long, at the longest; and in one part in a hundred of
/// the time something may be due for longer. Without an attack what a service has to keep whose host has two processors.
#[must_use]
pub fn promise(calm: Option<&Figures>) -> Bound {
    let Some(calm) = calm else {
        return Bound {
            p99: Duration::from_millis(20),
            max: Duration::from_millis(100),
            stalled: 0.01,
        };
    };
    Bound {
        p99: (calm.p99 + Duration::from_millis(5)).max(3 * calm.p99),
        max: (calm.max + Duration::from_millis(50)).max(3 * calm.max),
        stalled: 0.01,
    }
}
