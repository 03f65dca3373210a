//! The text that Prometheus reads (its exposition format 0.0.4). `docs/serve.md` lists the metrics.
//!
//! A page is made of a snapshot, which is collected host by host and node by node, and then written metric by metric, so
//! that it can be made in many turns.

mod connections;
mod ports;
mod service;
mod snapshot;
mod trunks;
mod vfs;
mod vmms;

use std::fmt::{Display, Write};

use super::Scene;
use super::table::Filter;
use snapshot::Snapshot;
use vhca::Slice;

pub use service::{ManagerFacts, Programs, ServiceFacts};
use vhca_control::By;

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

/// A metric with all its samples.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    /// Writes the samples of one host or node by its place, and returns `None` behind the last one.
    part: fn(&Snapshot, usize, &mut Samples<'_>) -> Option<()>,
}

/// Where samples of a metric are written.
struct Samples<'o> {
    out: &'o mut Vec<u8>,
    family: &'static Family,
    /// Its help and type are written.
    is_begun: bool,
}

impl Samples<'_> {
    /// Writes a sample with labels that are text already, and others behind them.
    fn sample(&mut self, labels: &str, more: &[(&str, &str)], value: impl Display) {
        let Family {
            name, kind, help, ..
        } = self.family;
        let mut line = String::new();
        if !core::mem::replace(&mut self.is_begun, true) {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            line = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
        line.push_str(name);
        let mut labels = labels.to_owned();
        for (label, value) in more {
            add_label(&mut labels, label, value);
        }
        // A string takes everything.
        let _ = if labels.is_empty() {
            writeln!(line, " {value}")
        } else {
            writeln!(line, "{{{labels}}} {value}")
        };
        self.out.extend_from_slice(line.as_bytes());
    }
}

/// Adds a label to a list. Its value may hold anything.
fn add_label(labels: &mut String, name: &str, value: impl Display) {
    if !labels.is_empty() {
        labels.push(',');
    }
    let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"");
    let value = value.replace('\n', "\\n");
    // A string takes everything.
    let _ = write!(labels, "{name}=\"{value}\"");
}

/// Returns all metrics in the order of the page.
fn families() -> impl Iterator<Item = &'static Family> {
    let all = [
        service::FAMILIES,
        trunks::FAMILIES,
        vfs::FAMILIES,
        ports::FAMILIES,
        connections::FAMILIES,
        vmms::FAMILIES,
    ];
    all.into_iter().flatten()
}

/// Metrics on their way to a reader.
#[derive(Debug)]
pub struct Metrics {
    snapshot: Snapshot,
    /// The metric that is written next, and its part.
    family: usize,
    part: usize,
    is_begun: bool,
}

impl Metrics {
    /// Returns metrics of what a filter leaves. A filter for a VF implies [`By::Vf`].
    #[must_use]
    pub fn new(by: By, filter: Filter) -> Self {
        let by = if filter.vf.is_some() { By::Vf } else { by };
        Self {
            snapshot: Snapshot::new(by, filter),
            family: 0,
            part: 0,
            is_begun: false,
        }
    }

    /// Appends what comes next, until the slice is over. Returns true if that was all.
    pub fn write(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>, slice: &mut Slice) -> bool {
        loop {
            let is_over = !self.snapshot.collect(scene) && !self.step(out);
            if is_over || slice.is_over() {
                return is_over;
            }
        }
    }

    /// Writes a part of a metric. Returns `false` behind the last metric.
    fn step(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(family) = families().nth(self.family) else {
            return false;
        };
        let mut samples = Samples {
            out,
            family,
            is_begun: self.is_begun,
        };
        let more = (family.part)(&self.snapshot, self.part, &mut samples);
        self.is_begun = samples.is_begun;
        self.part += 1;
        if more.is_none() {
            self.family += 1;
            self.part = 0;
            self.is_begun = false;
        }
        true
    }
}

#[cfg(test)]
mod tests;
