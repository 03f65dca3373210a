//! The diagnosis of a VF's port.

use core::fmt;

use hca_api::PortState;
use ib_vtime::Duration;
use ib_wire::{Lid, PortNum};
use pf_context::PortReason;
use serde::{Deserialize, Serialize};

use crate::commands::vf_name;
use crate::fault::Fault;
use crate::known::{Code, code};
use crate::snapshot::{OnPort, Pf, Snapshot, Vf};
use crate::{duplicates, hampered, links, m_keys, port, sa, slow_memory, trunks, unmanaged};

/// Time for which a stand of the service is remembered.
const STALL_REMEMBERED: Duration = Duration::from_secs(3600);

/// The fault of a VF's port, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The name of the VF's host.
    pub host: String,
    /// The VF.
    pub vf: u16,
    /// The port.
    pub port: u8,
    /// `true` if the port is up.
    pub up: bool,
    /// The fault in a stable word; `ok` if there is none.
    #[serde(deserialize_with = "code")]
    pub code: Code,
    /// The fault in a sentence.
    pub summary: String,
    /// Evidence of it.
    pub seen: Vec<String>,
    /// Time for which the port has been up, or down for the reason that it is, in milliseconds.
    pub since_ms: Option<u64>,
    /// Remedy: a command to be pasted into a shell, or words.
    pub next: String,
    /// All faults of the port, the one that is to be mended first at the start, which is the diagnosis' own; none of a port that is
    /// well.
    #[serde(default)]
    pub reasons: Vec<Fault>,
}

/// Returns the diagnosis of a VF's port. Neither the VF nor the port need exist.
#[must_use]
pub fn why(snapshot: &Snapshot, host: &str, vf: u16, port: PortNum) -> Diagnosis {
    let unknown = Pf {
        host: host.to_owned(),
        ..Pf::default()
    };
    let pf = snapshot.pfs.iter().find(|pf| pf.host == host);
    let on = OnPort {
        snapshot,
        pf: pf.unwrap_or(&unknown),
        number: port,
    };
    diagnose(on, vf, &of_port(on))
}

/// Returns the diagnoses of all ports of a PF's VFs, port by port.
pub(crate) fn of_pf<'s>(
    snapshot: &'s Snapshot,
    pf: &'s Pf,
) -> impl Iterator<Item = Diagnosis> + use<'s> {
    (1..).zip(&pf.ports).flat_map(move |(number, _)| {
        let number = PortNum(number);
        let on = OnPort {
            snapshot,
            pf,
            number,
        };
        let faults = of_port(on);
        let vfs = pf.vfs.iter();
        let vfs = vfs.filter(move |(_, vf)| vf.ports.contains_key(&number));
        vfs.map(move |(vf, _)| diagnose(on, *vf, &faults))
    })
}

/// Returns the faults of a PF's port, which all its VFs have, the one that is to be mended first at the start.
fn of_port(on: OnPort<'_>) -> Vec<Fault> {
    let (subnet, at) = (on.subnet(), on.at());
    let Some((port, _)) = on.physical().zip(on.facts()) else {
        return Vec::new();
    };
    if let Some(cut) = links::flapping(on).or_else(|| links::down(subnet, at)) {
        return vec![cut];
    }
    let mut faults = Vec::from_iter(links::planned(on));
    faults.extend(duplicates::of(on));
    if port.state != PortState::Active {
        faults.push(unmanaged::why(on, port.lid != Lid::NONE));
        return faults;
    }
    let silent = sa::silent(on);
    if silent.is_empty() {
        let sm = subnet.owner(port.sm_lid);
        faults.extend(
            sm.and_then(|sm| m_keys::foreign(subnet, &m_keys::managed_between(subnet, at, sm))),
        );
    }
    faults.extend(silent);
    faults
}

fn diagnose(on: OnPort<'_>, number: u16, of_port: &[Fault]) -> Diagnosis {
    let vf = on.pf.vfs.get(&number);
    let row = on.of_vf(number);
    let name = vf_name(&on.pf.host, number);
    let mut reasons: Vec<Fault> = Vec::new();
    let mut add = |fault: Fault| {
        // The first of a code is the nearest to its cause.
        if reasons.iter().all(|known| known.code() != fault.code()) {
            reasons.push(fault);
        }
    };
    let unused = || vf?.offer.as_ref()?.why_unused(&name, on.snapshot.taken);
    let is_up = row.is_some_and(|row| row.reason == PortReason::Up);
    match row.filter(|_| on.facts().is_some()) {
        None => add(port::missing(on, number)),
        Some(row) => {
            port::disabled(on, number, row)
                .into_iter()
                .for_each(&mut add);
            of_port.iter().cloned().for_each(&mut add);
            port::down(on, number, row).into_iter().for_each(&mut add);
            if is_up {
                unused().into_iter().for_each(&mut add);
                hampered::why(on, number, row)
                    .into_iter()
                    .for_each(&mut add);
                links::below_support(on).into_iter().for_each(&mut add);
                slow_memory::why(on, number).into_iter().for_each(&mut add);
                trunks::why(on.subnet()).into_iter().for_each(&mut add);
            }
            links::erroneous(on).into_iter().for_each(&mut add);
            if row.reason == PortReason::PhysicalDown && reasons.is_empty() {
                // The PF has not read the port again yet.
                let has_lid = on.physical().is_some_and(|port| port.lid != Lid::NONE);
                reasons.push(unmanaged::why(on, has_lid));
            }
        }
    }
    let fault = reasons.first().cloned().unwrap_or_else(|| {
        let ok = Fault::new("ok", "the port is up").next("nothing");
        match vf.and_then(|vf| vf.program) {
            Some(program) => ok.seen(program.seen()),
            None => ok,
        }
    });
    let fault = match vf.and_then(|vf| seen_of_stall(on, vf)) {
        Some(seen) => fault.seen(seen),
        None => fault,
    };
    let since = row.and_then(|row| row.since);
    Diagnosis {
        host: on.pf.host.clone(),
        vf: number,
        port: on.number.0,
        up: is_up,
        code: fault.code,
        summary: fault.summary,
        seen: fault.seen,
        since_ms: since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        next: fault.next,
        reasons,
    }
}

/// Returns that the client which had the VF made the service stand, if that was in the last hour.
fn seen_of_stall(on: OnPort<'_>, vf: &Vf) -> Option<String> {
    let stall = vf.stall.as_ref()?;
    let (ago, work) = (on.ago(stall.ended), &stall.work);
    (ago < STALL_REMEMBERED).then(|| {
        format!(
            "{} s ago the service stood still for {work}, which had the VF: its connection was shut down",
            ago.as_secs()
        )
    })
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
        write!(f, "\n  next:  {}", self.next)?;
        for also in self.reasons.iter().skip(1) {
            write!(f, "\n  also:  {}: {}", also.code, also.summary)?;
        }
        Ok(())
    }
}
