//! The faults of many VFs at once.

use core::fmt;
use std::collections::BTreeSet;

use ib_wire::PortNum;
use pf_context::inspect::Inspect;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use super::Diagnosis;
use crate::serve::{Lab, LabHost, NamedVf};
use crate::show::FaultCodes;

/// The faults of VFs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// VFs that were looked at.
    pub vfs: usize,
    /// The diagnoses of those that have a fault.
    pub faults: Vec<Diagnosis>,
}

impl Lab {
    /// Returns the diagnoses of all ports of the VFs of a host, or of all hosts.
    fn diagnoses<'l>(&'l self, host: Option<&'l LabHost>) -> impl Iterator<Item = Diagnosis> + 'l {
        let hosts = self.pf_hosts();
        let wanted = hosts.filter(move |pf| host.is_none_or(|only| only == *pf));
        wanted.flat_map(move |pf| {
            let context = self.world().context(pf.id);
            let ports = (1..).zip(context.ports());
            let of_ports: Vec<_> = ports
                .map(|(number, _)| self.why_port(pf.id.port(number)))
                .collect();
            let rows = Inspect::vfs(context, self.world().now());
            rows.map(move |row| {
                let vf = NamedVf {
                    host_name: pf.name.clone(),
                    host: pf.id,
                    vf: row.vf,
                };
                let of_port = row.port.index().checked_sub(1);
                let of_port = of_port.and_then(|index| of_ports.get(index)?.as_ref());
                self.diagnosis(&vf, row.port, Some(&row), of_port)
            })
        })
    }

    /// Returns the faults of the VFs of a host, or of all hosts: on one of their ports, or on all.
    #[must_use]
    pub fn faults(&self, host: Option<&LabHost>, port: Option<PortNum>) -> Faults {
        let wanted = self.diagnoses(host);
        let (mut vfs, mut faults) = (BTreeSet::new(), Vec::new());
        for found in wanted.filter(|found| port.is_none_or(|port| port.0 == found.port)) {
            vfs.insert((found.host.clone(), found.vf));
            if found.code != "ok" {
                faults.push(found);
            }
        }
        Faults {
            vfs: vfs.len(),
            faults,
        }
    }

    /// Returns the codes of the faults of a host's VFs, for tables.
    #[must_use]
    pub fn fault_codes(&self, host: &LabHost) -> FaultCodes {
        let faults = self
            .diagnoses(Some(host))
            .filter(|found| found.code != "ok");
        faults
            .map(|found| ((found.vf, found.port), found.code))
            .collect()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vfs, faults } = self;
        if faults.is_empty() {
            return write!(f, "no fault on {vfs} VFs");
        }
        let name = |found: &Diagnosis| format!("{}/{}", found.host, found.vf);
        let names = faults.iter().map(|found| name(found).width());
        let codes = faults.iter().map(|found| found.code.len());
        let (names, codes) = (names.max().unwrap_or(0), codes.max().unwrap_or(0));
        let mut faulty = BTreeSet::new();
        for found in faults {
            let (name, code) = (name(found), found.code);
            let Diagnosis { port, summary, .. } = found;
            let blanks = names.saturating_sub(name.width());
            writeln!(
                f,
                "{name}{:blanks$}  port {port}  {code:<codes$}  {summary}",
                ""
            )?;
            faulty.insert(name);
        }
        write!(
            f,
            "{} of {vfs} VFs have a fault; vhca why HOST/N tells what to do",
            faulty.len()
        )
    }
}
