//! Why a VF's port is as it is: the fault, what was seen of it, and what to do next.

mod hampered;
mod history;
mod port;
#[cfg(test)]
mod tests;

use core::fmt;

use ib_vtime::Duration;
use ib_wire::PortNum;
use serde::Serialize;

use super::{Lab, NamedVf};

pub(super) use history::History;

/// What is wrong with a VF's port, or that nothing is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The name of the VF's host.
    pub host: String,
    /// The VF.
    pub vf: u16,
    /// The port.
    pub port: u8,
    /// Whether the port is up.
    pub up: bool,
    /// The fault in a stable word; `ok` if there is none.
    pub code: &'static str,
    /// The fault in a sentence.
    pub summary: String,
    /// What was seen of it.
    pub seen: Vec<String>,
    /// How long the port has been up, or down for the reason that it is, in milliseconds.
    pub since_ms: Option<u64>,
    /// What to do next.
    pub next: String,
}

/// A fault, before it is known whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Fault {
    pub(in crate::serve) code: &'static str,
    summary: String,
    seen: Vec<String>,
    next: String,
}

impl Fault {
    pub(in crate::serve) fn new(code: &'static str, summary: impl Into<String>) -> Self {
        Self {
            code,
            summary: summary.into(),
            seen: Vec::new(),
            next: String::new(),
        }
    }

    pub(in crate::serve) fn seen(mut self, what: impl Into<String>) -> Self {
        self.seen.push(what.into());
        self
    }

    pub(in crate::serve) fn next(mut self, what: impl Into<String>) -> Self {
        self.next = what.into();
        self
    }
}

impl Lab {
    /// Tells why a VF's port is as it is. The VF need not exist.
    #[must_use]
    pub fn why(&self, vf: &NamedVf, port: PortNum) -> Diagnosis {
        let at = super::set::at(vf, port);
        let since = self.history.since(at, self.world().now());
        let down = self.why_down(vf, port, since);
        let up = down.is_none();
        let fault = down
            .or_else(|| self.why_unused(vf))
            .or_else(|| self.why_hampered(vf, port))
            .unwrap_or_else(|| Fault::new("ok", "the port is up").next("nothing"));
        Diagnosis {
            host: vf.host_name.clone(),
            vf: vf.vf.get(),
            port: port.0,
            up,
            code: fault.code,
            summary: fault.summary,
            seen: fault.seen,
            since_ms: since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            next: fault.next,
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, vf, port, .. } = self;
        let state = if self.up { "up" } else { "down" };
        write!(f, "{host}/{vf} port {port}: {state}, {}", self.code)?;
        if let Some(since) = self.since_ms {
            let since = Duration::from_millis(since);
            write!(f, ", {state} for {:.1} s", since.as_secs_f64())?;
        }
        write!(f, "\n  what:  {}", self.summary)?;
        for seen in &self.seen {
            write!(f, "\n  seen:  {seen}")?;
        }
        write!(f, "\n  next:  {}", self.next)
    }
}
