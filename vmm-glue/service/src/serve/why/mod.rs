//! `vhca why`: questions to the SA, and the history of ports, for diagnoses of the lab's VFs.

pub(super) mod awaited;
pub(super) mod history;
pub(super) mod pair;
pub(super) mod sa;
#[cfg(test)]
mod tests;

use ib_wire::PortNum;
use vhca_control::Refusal;
use vhca_diagnosis::{Diagnosis, Faults, PairDiagnosis};

use super::inventory::LabHost;
use super::inventory::NamedVf;
use super::lab::Lab;
use crate::show::FaultCodes;

pub(super) use history::History;
pub(super) use sa::SaProbes;

impl Lab {
    /// Returns why a VF's port is as it is. The VF need not exist.
    ///
    /// Whether the SA answers is known as far as the port asked it before.
    #[must_use]
    pub fn why(&self, vf: &NamedVf, port: PortNum) -> Diagnosis {
        let host = self.inventory.pf_hosts().filter(|host| host.id == vf.host);
        vhca_diagnosis::why(&self.snapshot(host), &vf.host_name, vf.vf.get(), port)
    }

    /// Returns why the first port of a VF with a fault is as it is, or its first port if there is none.
    pub(super) fn why_any_port(&self, vf: &NamedVf) -> Diagnosis {
        let host = self.inventory.pf_hosts().filter(|host| host.id == vf.host);
        let snapshot = self.snapshot(host);
        let ports = self.world().context(vf.host).ports().len();
        let ports = (1..).take(ports).map(PortNum);
        let mut found =
            ports.map(|port| vhca_diagnosis::why(&snapshot, &vf.host_name, vf.vf.get(), port));
        let first = || vhca_diagnosis::why(&snapshot, &vf.host_name, vf.vf.get(), PortNum(1));
        found.find(|found| found.code != "ok").unwrap_or_else(first)
    }

    /// Returns why two VFs (`HOST/N`), or ports of nodes without VFs (`NODE/PORT`), cannot talk; `port` is the port of VFs. Whether SAs
    /// answer is known as far as ports asked before.
    ///
    /// # Errors
    /// A refusal if there is no such VF or port.
    pub fn why_pair(
        &self,
        ends: [&str; 2],
        port: Option<PortNum>,
    ) -> Result<PairDiagnosis, Refusal> {
        pair::why(self, ends, port)
    }

    /// Returns the faults of the VFs of a host, or of all hosts: on one of their ports, or on all.
    #[must_use]
    pub fn faults(&self, host: Option<&LabHost>, port: Option<PortNum>) -> Faults {
        let hosts = self.inventory.pf_hosts();
        let hosts = hosts.filter(|pf| host.is_none_or(|only| only == *pf));
        Faults::of(&self.snapshot(hosts), port)
    }

    /// Returns the codes of the faults of a host's VFs, for tables.
    #[must_use]
    pub fn fault_codes(&self, host: &LabHost) -> FaultCodes {
        let faults = self.faults(Some(host), None).faults.into_iter();
        faults
            .map(|found| ((found.vf, found.port), found.code))
            .collect()
    }
}
