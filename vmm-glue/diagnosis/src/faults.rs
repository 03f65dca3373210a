//! The faults of many VFs at once.

use core::fmt;
use std::collections::BTreeSet;

use ib_wire::PortNum;
use serde::{Deserialize, Serialize};
use unicode_width::UnicodeWidthStr;

use crate::commands::vf_name;
use crate::diagnosis::{Diagnosis, of_pf};
use crate::snapshot::Snapshot;

/// The faults of VFs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Number of VFs that were looked at.
    pub vfs: usize,
    /// The diagnoses of VFs that have a fault.
    pub faults: Vec<Diagnosis>,
}

impl Faults {
    /// Returns the faults of all VFs of a snapshot: on one of their ports, or on all.
    #[must_use]
    pub fn of(snapshot: &Snapshot, port: Option<PortNum>) -> Self {
        let all = snapshot.pfs.iter().flat_map(|pf| of_pf(snapshot, pf));
        let (mut vfs, mut faults) = (BTreeSet::new(), Vec::new());
        for found in all.filter(|found| port.is_none_or(|port| port.0 == found.port)) {
            vfs.insert((found.host.clone(), found.vf));
            if found.code != "ok" {
                faults.push(found);
            }
        }
        Self {
            vfs: vfs.len(),
            faults,
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vfs, faults } = self;
        if faults.is_empty() {
            return write!(f, "no fault on {vfs} VFs");
        }
        let name = |found: &Diagnosis| vf_name(&found.host, found.vf);
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
