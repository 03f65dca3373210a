//! What the demo reports: the same facts as lines of text or as JSON lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ib_vtime::Instant;
use serde::Serialize;
use vhca_control::{Facts, milliseconds};

use vhca_service::show::Totals;

/// Characters of a line of text at most.
const WIDTH: usize = 120;

/// Blanks before a line that goes on.
const INDENT: usize = 7;

/// How one step went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepReport {
    /// The step's name.
    pub step: &'static str,
    /// Whether everything came as it should.
    pub ok: bool,
    /// When it began, in milliseconds of the demo's clock.
    pub at_ms: f64,
    /// How long it took on that clock, in milliseconds.
    pub took_ms: f64,
    /// What was seen; of a failed step, nothing.
    #[serde(skip_serializing_if = "facts_are_empty")]
    pub facts: Facts,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn facts_are_empty(facts: &Facts) -> bool {
    facts.is_empty()
}

impl StepReport {
    /// The report of a step that began and ended at these times.
    #[must_use]
    pub fn new(
        step: &'static str,
        began: Instant,
        ended: Instant,
        outcome: Result<Facts, String>,
    ) -> Self {
        let (facts, error) = match outcome {
            Ok(facts) => (facts, None),
            Err(error) => (Facts::new(), Some(error)),
        };
        Self {
            step,
            ok: error.is_none(),
            at_ms: milliseconds(began - Instant::ZERO),
            took_ms: milliseconds(ended - began),
            facts,
            error,
        }
    }
}

impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.ok { "ok    " } else { "FAILED" };
        let head = format!(
            "{verdict} {:<16} at {:>11.3} ms, took {:>11.3} ms: ",
            self.step, self.at_ms, self.took_ms
        );
        let text = match &self.error {
            Some(error) => error.clone(),
            None => self.facts.to_string(),
        };
        f.write_str(&head)?;
        write_wrapped(f, head.chars().count(), &text)
    }
}

/// Writes facts that begin in a column. They go on in further lines where one would be too long: between facts, or, where
/// a fact has more than a line, behind its commas and blanks.
fn write_wrapped(f: &mut fmt::Formatter<'_>, mut column: usize, text: &str) -> fmt::Result {
    let mut is_first = true;
    for fact in text.split("  ") {
        let length = fact.chars().count();
        let gap = if is_first { "" } else { "  " };
        is_first = false;
        if column + gap.len() + length <= WIDTH {
            write!(f, "{gap}{fact}")?;
            column += gap.len() + length;
            continue;
        }
        write!(f, "\n{:INDENT$}", "")?;
        column = INDENT;
        for piece in fact.split_inclusive([',', ' ']) {
            let length = piece.chars().count();
            if column + length > WIDTH {
                write!(f, "\n{:INDENT$}  ", "")?;
                column = INDENT + 2;
            }
            f.write_str(piece)?;
            column += length;
        }
    }
    Ok(())
}

/// What became of the MADs of a port that VFs share, and how full its tables are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PortTotals {
    /// The host and the port.
    pub port: String,
    /// The sums.
    #[serde(flatten)]
    pub totals: Totals,
}

/// A table with a column for each port.
struct Table<'t>(&'t [PortTotals]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Why MADs were dropped stands below how many were.
        const DROPPED: &str = "dropped";

        self.head(f, "VERDICT")?;
        for drops in [false, true] {
            self.lines(f, "", move |totals| {
                let verdicts = totals.verdicts.iter().map(|(k, v)| (*k, *v));
                verdicts.filter(move |(name, _)| (*name == DROPPED) == drops)
            })?;
        }
        self.lines(f, "  ", |totals| totals.drops.iter().map(|(k, v)| (*k, *v)))?;
        self.head(f, "LIVE")?;
        self.lines(f, "", |totals| {
            totals.sizes.iter().map(|(k, v)| (*k, *v as u64))
        })
    }
}

impl Table<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>, title: &str) -> fmt::Result {
        write!(f, "{title:<24}")?;
        for port in self.0 {
            write!(f, " {:>10}", port.port)?;
        }
        writeln!(f)
    }

    /// A line for each name that any of the ports has, with the ports' values.
    fn lines<'t, I: Iterator<Item = (&'static str, u64)>>(
        &'t self,
        f: &mut fmt::Formatter<'_>,
        indent: &str,
        values: impl Fn(&'t Totals) -> I,
    ) -> fmt::Result {
        let of_ports: Vec<BTreeMap<_, _>> = self
            .0
            .iter()
            .map(|port| values(&port.totals).collect())
            .collect();
        let names: BTreeSet<_> = of_ports.iter().flat_map(BTreeMap::keys).collect();
        for name in names {
            write!(f, "{:<24}", format!("{indent}{name}"))?;
            for of_port in &of_ports {
                write!(f, " {:>10}", of_port.get(name).unwrap_or(&0))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// How the whole demo went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Whether every step went well.
    pub ok: bool,
    /// Steps that were run.
    pub steps: usize,
    /// The step that failed; the demo ends with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<&'static str>,
    /// The seed of everything random.
    pub seed: u64,
    /// `virtual` or `real`.
    pub clock: &'static str,
    /// Milliseconds on that clock.
    pub took_ms: f64,
    /// The ports that VFs share.
    pub ports: Vec<PortTotals>,
    /// Frames written to the capture file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured_frames: Option<u64>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}\n", Table(&self.ports))?;
        match self.failed {
            None => write!(f, "all {} steps passed", self.steps)?,
            Some(step) => write!(f, "step {} of the demo FAILED: {step}", self.steps)?,
        }
        write!(
            f,
            " in {:.3} ms of {} time, seed {}",
            self.took_ms, self.clock, self.seed
        )?;
        match self.captured_frames {
            Some(frames) => write!(f, ", {frames} frames captured"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts::new()
            .with("ports", 5)
            .show("lid", ib_wire::Lid::new(3))
            .list("lids", [1, 2])
    }

    #[test]
    fn a_step_that_passed_prints_its_facts_in_order() {
        let report = StepReport::new(
            "subnet-up",
            Instant::from_millis(1),
            Instant::from_millis(3),
            Ok(facts()),
        );
        assert_eq!(
            report.to_string(),
            "ok     subnet-up        at       1.000 ms, took       2.000 ms: \
             ports=5  lid=0x0003  lids=1,2"
        );
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"step":"subnet-up","ok":true,"at_ms":1.0,"took_ms":2.0,"facts":{"ports":5,"lid":"0x0003","lids":["1","2"]}}"#
        );
    }

    #[test]
    fn facts_that_a_line_has_no_room_for_go_on_in_the_next() {
        let numbers = |count| (0..count).map(|number| 1000 + number);
        let facts = Facts::new()
            .with("few", 1)
            .list("some", numbers(12))
            .list("many", numbers(40));
        let report = StepReport::new("step", Instant::ZERO, Instant::ZERO, Ok(facts.clone()));
        let text = report.to_string();
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        assert!(lines[0].ends_with(": few=1"), "{text}");
        assert!(lines[1].starts_with("       some=1000,"), "{text}");
        assert!(lines[2].starts_with("       many=1000,"), "{text}");
        assert!(lines[3].starts_with("         10"), "{text}");
        let words = |text: &str| text.split_whitespace().collect::<String>();
        assert!(words(&text).ends_with(&words(&facts.to_string())), "{text}");
    }

    #[test]
    fn a_step_that_failed_prints_why() {
        let failure = Err("no answer".to_owned());
        let report = StepReport::new("path-query", Instant::ZERO, Instant::ZERO, failure);
        assert!(report.to_string().starts_with("FAILED path-query"));
        assert!(report.to_string().ends_with(": no answer"));
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"step":"path-query","ok":false,"at_ms":0.0,"took_ms":0.0,"error":"no answer"}"#
        );
    }
}
