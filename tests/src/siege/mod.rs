//! A siege in real time: what well-behaved guests of a service wait for while others do their worst.
//!
//! A real service with real sockets is attacked by processes of their own, each on a VF beside the victims' on the
//! same adapter. The victims' register reads, MADs, datagrams, an administrator's requests and a sweep's SMPs are
//! timed three times: alone, beside as many processes that only burn processor time, and attacked. What an attack adds
//! to the burning is what the service lets one guest take from another.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a siege fails where its surroundings do"
)]

mod attacks;
mod raw;
mod sweeper;
mod victims;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use attacks::Attack;
pub use victims::{Probe, Trouble};

use crate::live::Lab;
use sweeper::Sweeper;
use victims::Victims;

/// The hidden argument of a process that attacks. The seconds after which it ends, the attack's name and a socket follow.
const ATTACKER: &str = "--attacker";

/// The hidden argument of a process that only burns processor time. The seconds after which it ends follow.
const BURNER: &str = "--burner";

/// Between two measurements.
const PAUSE: Duration = Duration::from_millis(1);

/// How long attackers have to get going.
const APPROACH: Duration = Duration::from_millis(700);

/// What is to be done.
#[derive(Clone, Debug)]
pub struct SiegePlan {
    /// The attacks.
    pub attacks: Vec<Attack>,
    /// How many attack at a time.
    pub counts: Vec<usize>,
    /// How long is measured each time.
    pub length: Duration,
    /// The program that leaves it to [`lend_a_hand`] when it is started.
    pub program: PathBuf,
}

/// What goes on around the victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Nothing.
    Alone,
    /// So many processes burn processor time.
    Burning(usize),
    /// So many attack.
    Attacked(Attack, usize),
}

/// How long something took, in one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// What a siege showed.
#[derive(Debug, Default)]
pub struct Siege {
    /// All figures, in the order of the plan.
    pub figures: Vec<Figures>,
}

/// A process of ours, which does not outlive the siege.
struct Hand(Child);

impl Drop for Hand {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does what a process of a siege is there for, if this is one; then it does not come back, or tells why not.
///
/// # Errors
/// What keeps it from attacking.
pub fn lend_a_hand(arguments: &[&str]) -> Result<(), Trouble> {
    match *arguments {
        [ATTACKER, life, attack, socket] => {
            end_in(life)?;
            attack.parse::<Attack>()?.carry_out(Path::new(socket))
        }
        [BURNER, life] => {
            end_in(life)?;
            let mut number = 1_u64;
            loop {
                number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005));
            }
        }
        _ => Ok(()),
    }
}

/// Has this process end after so many seconds, whatever it waits for, and whoever forgot it.
fn end_in(seconds: &str) -> Result<(), Trouble> {
    let life = Duration::try_from_secs_f64(seconds.parse()?)?;
    std::thread::spawn(move || {
        std::thread::sleep(life);
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
        let vfs = (most + 1).to_string();
        let path = folder.path().to_str().expect("a temporary folder");
        let arguments = [
            "--topology",
            "two-switch",
            "--vfs",
            &vfs,
            "--vfio-user",
            path,
        ];
        let mut lab = Lab::serve(&arguments);
        let socket = |host: &str, vf| folder.path().join(format!("{host}-vf{vf}.sock"));
        let control = lab.dir().join("control");
        let ends = [socket("H1-1", 1), socket("H2-1", 1)];
        let sweeper = Sweeper::open(&lab.dir().join("umad"), "H2-2")?;
        let mut victims = Victims::start([&ends[0], &ends[1]], &control, sweeper)?;
        let mut siege = Siege::default();
        for setting in self.settings() {
            let sockets = (2..).map(|vf| socket("H1-1", vf));
            let hands = self.start(setting, sockets);
            victims.idle(APPROACH)?;
            let figures = self.measure(setting, &mut victims)?;
            drop(hands);
            figures.iter().for_each(&mut tell);
            siege.figures.extend(figures);
            wait_until_free(&lab);
        }
        assert!(lab.service().ended().is_none(), "the service is gone");
        Ok(siege)
    }

    fn settings(&self) -> Vec<Setting> {
        let burning = self.counts.iter().map(|count| Setting::Burning(*count));
        let attacked = self.attacks.iter().flat_map(|attack| {
            let counts = self.counts.iter();
            counts.map(|count| Setting::Attacked(*attack, *count))
        });
        [Setting::Alone]
            .into_iter()
            .chain(burning)
            .chain(attacked)
            .collect()
    }

    fn start(&self, setting: Setting, sockets: impl Iterator<Item = PathBuf>) -> Vec<Hand> {
        let life = (2 * APPROACH + self.length).as_secs_f64().to_string();
        let hand = |kind: &str, attack: Option<Attack>, socket: Option<&Path>| {
            let mut command = Command::new(&self.program);
            command
                .args([kind, &life])
                .args(attack.map(Attack::name))
                .args(socket)
                .stdout(Stdio::null())
                .stdin(Stdio::null());
            Hand(command.spawn().expect("a process"))
        };
        match setting {
            Setting::Alone => Vec::new(),
            Setting::Burning(count) => (0..count).map(|_| hand(BURNER, None, None)).collect(),
            Setting::Attacked(attack, count) => sockets
                .take(count)
                .map(|socket| hand(ATTACKER, Some(attack), Some(&socket)))
                .collect(),
        }
    }

    fn measure(&self, setting: Setting, victims: &mut Victims) -> Result<Vec<Figures>, Trouble> {
        let mut samples = Probe::ALL.map(|probe| (probe, Vec::new()));
        let begun = Instant::now();
        while begun.elapsed() < self.length {
            for (probe, samples) in &mut samples {
                samples.push(victims.measure(*probe)?);
                victims.idle(PAUSE)?;
            }
        }
        let figures = samples.map(|(probe, samples)| Figures::of(setting, probe, samples));
        Ok(figures.to_vec())
    }
}

/// Waits until no VF but the victims' has a VMM.
fn wait_until_free(lab: &Lab) {
    lab.wait_until(&["show", "vfs"], |shown| {
        let vmms = shown["vmms"].as_array().into_iter().flatten();
        vmms.filter(|vmm| vmm["attached"] == true).count() <= 2
    });
}

impl Figures {
    fn of(setting: Setting, probe: Probe, mut samples: Vec<Duration>) -> Self {
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
        }
    }

    /// A line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let (name, count) = match self.setting {
            Setting::Alone => ("alone", 0),
            Setting::Burning(count) => ("burning", count),
            Setting::Attacked(attack, count) => (attack.name(), count),
        };
        let [p50, p99, max] = [self.p50, self.p99, self.max].map(|time| time.as_secs_f64() * 1e3);
        format!(
            "{name:18} {count:3} {:9} {:6} {p50:9.3} {p99:9.3} {max:9.3}",
            self.probe.name(),
            self.count,
        )
    }

    fn json(&self) -> Value {
        let (name, count) = match self.setting {
            Setting::Alone => ("alone", 0),
            Setting::Burning(count) => ("burning", count),
            Setting::Attacked(attack, count) => (attack.name(), count),
        };
        let us = |time: Duration| time.as_micros();
        json!({
            "setting": name, "processes": count, "probe": self.probe.name(), "samples": self.count,
            "p50_us": us(self.p50), "p99_us": us(self.p99), "max_us": us(self.max),
        })
    }
}

/// The heading of the table.
#[must_use]
pub fn heading() -> String {
    format!(
        "{:18} {:>3} {:9} {:>6} {:>9} {:>9} {:>9}",
        "setting", "n", "probe", "count", "p50/ms", "p99/ms", "max/ms"
    )
}

impl Siege {
    /// The figures beside as many processes that only burn.
    fn burning(&self, probe: Probe, count: usize) -> Option<&Figures> {
        let setting = Setting::Burning(count);
        let mut figures = self.figures.iter();
        figures.find(|other| other.probe == probe && other.setting == setting)
    }

    /// The attacks under which the victims wait longer than they may: `bound` makes that of what they wait beside
    /// processes that burn.
    pub fn missed(
        &self,
        bound: impl Fn(&Figures) -> Duration,
    ) -> impl Iterator<Item = (&Figures, Duration)> {
        self.figures.iter().filter_map(move |figures| {
            let Setting::Attacked(_, count) = figures.setting else {
                return None;
            };
            let bound = bound(self.burning(figures.probe, count)?);
            (figures.p99 > bound).then_some((figures, bound))
        })
    }

    /// All figures as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        self.figures.iter().map(Figures::json).collect()
    }
}

/// How long one in a hundred may take: 5 ms more than beside processes that burn, or three times as long.
#[must_use]
pub fn promise(burning: &Figures) -> Duration {
    (burning.p99 + Duration::from_millis(5)).max(3 * burning.p99)
}
