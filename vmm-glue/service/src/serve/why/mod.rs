//! Why a VF's port is as it is: the fault, what was seen of it, and what to do next.

mod awaited;
mod fabric;
mod faults;
mod foreign_peers;
mod hampered;
mod history;
mod known;
mod links;
mod m_keys;
mod managers;
mod partitions;
mod port;
mod sa;
#[cfg(test)]
mod tests;

use core::fmt;

use hca_api::FunctionId;
use ib_vtime::Duration;
use ib_wire::PortNum;
use pf_context::inspect::{Inspect, VfRow};
use serde::Serialize;

use super::{Lab, NamedVf};
use crate::shell::quoted;
use vhca::world::{HostFunction, HostPortId};

pub(super) use awaited::Awaited;
pub use faults::Faults;
pub(super) use history::History;
pub use known::{KNOWN_FAULTS, KnownFault};
pub(super) use sa::SaProbes;

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
    /// Remedy: a command to be pasted into a shell, or words.
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
        debug_assert!(
            known::is_known(code),
            "{code} is not among the known faults"
        );
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

    /// A command, quoted for a shell, or, where none helps, what to do in words.
    pub(in crate::serve) fn next(mut self, what: impl Into<String>) -> Self {
        self.next = what.into();
        self
    }

    /// Words behind a command, which the shell takes for a comment.
    pub(in crate::serve) fn remark(mut self, words: impl fmt::Display) -> Self {
        self.next = format!("{} # {words}", self.next);
        self
    }

    /// What was seen and what to do next are the same for another fault, of which this one is the cause.
    fn called(mut self, code: &'static str, summary: impl Into<String>) -> Self {
        debug_assert!(
            known::is_known(code),
            "{code} is not among the known faults"
        );
        self.code = code;
        self.summary = summary.into();
        self
    }
}

impl Lab {
    /// Returns why a VF's port is as it is. The VF need not exist.
    ///
    /// Whether the SA answers is known as far as the port asked it before.
    #[must_use]
    pub fn why(&self, vf: &NamedVf, port: PortNum) -> Diagnosis {
        let context = self.world().context(vf.host);
        let mut rows = Inspect::vfs(context, self.world().now());
        let row = rows.find(|row| row.vf == vf.vf && row.port == port);
        let of_port = row
            .as_ref()
            .and_then(|_| self.why_port(vf.host.port(port.0)));
        self.diagnosis(vf, port, row.as_ref(), of_port.as_ref())
    }

    /// Returns that the client which had the VF made the service stand, if that was in the last hour.
    fn seen_of_stall(&self, vf: &NamedVf) -> Option<String> {
        const REMEMBERED: Duration = Duration::from_secs(3600);
        let of_vf = |(at, _): &(&HostFunction, _)| {
            at.host == vf.host && at.function == FunctionId(vf.vf.get())
        };
        let (_, (stall, since)) = self.stalled.iter().find(of_vf)?;
        let ago = self.world().now() - *since;
        (ago < REMEMBERED).then(|| {
            format!(
                "{} s ago the service stood still for {stall}, which had the VF: its connection was shut down",
                ago.as_secs()
            )
        })
    }

    /// Returns what is wrong with the port of a PF that is up: all its VFs have that fault.
    fn why_port(&self, of: HostPortId) -> Option<Fault> {
        let silent = || self.why_sa_is_silent(of);
        self.why_flapping(of).or_else(silent).or_else(|| {
            let at = self.endpoint(of);
            let sm = self.owner(self.fabric().port(at)?.sm_lid)?;
            self.foreign_m_key(&self.managed_between(at, sm))
        })
    }

    fn diagnosis(
        &self,
        vf: &NamedVf,
        port: PortNum,
        row: Option<&VfRow>,
        of_port: Option<&Fault>,
    ) -> Diagnosis {
        let at = super::set::at(vf, port);
        let since = self.history.since(at, self.world().now());
        let down = self.why_down(vf, port, since);
        let up = down.is_none();
        let fault = down
            .or_else(|| of_port.cloned())
            .or_else(|| self.why_unused(vf))
            .or_else(|| self.why_hampered(vf, port, row?))
            .or_else(|| self.why_below_support(vf.host.port(port.0)))
            .unwrap_or_else(|| {
                let ok = Fault::new("ok", "the port is up").next("nothing");
                match self.seen_of_program(vf) {
                    Some(seen) => ok.seen(seen),
                    None => ok,
                }
            });
        let fault = match self.seen_of_stall(vf) {
            Some(seen) => fault.seen(seen),
            None => fault,
        };
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

/// The command that changes a VF's port.
fn set_command(vf: &NamedVf, port: PortNum) -> String {
    let name = format!("{}/{}", vf.host_name, vf.vf.get());
    let name = format!("vhca set vf {}", quoted(&name));
    match port {
        PortNum(1) => name,
        PortNum(port) => format!("{name} --port {port}"),
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
