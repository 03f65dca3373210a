//! Questions to the SA, by which a port finds out for a diagnosis if the SA can be used.

use std::collections::{BTreeMap, BTreeSet};

use ib_endpoint::sa_client::QueryId;
use ib_endpoint::{EndPortEvent, RetryPolicy, SaError, SaEvent, SaRequest};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::MadStatus;
use ib_wire::sa::NodeRecord;

use crate::serve::lab::Lab;
use vhca::world::{HostId, HostPortId};

/// How a port asks. A busy SA answers within the first of these times.
const POLICY: RetryPolicy = RetryPolicy::new(Duration::from_millis(400), 2);

/// Answers that no SA gives to a question for a NodeRecord.
const NO_SA: [MadStatus; 2] = [
    MadStatus::UNSUPPORTED_METHOD,
    MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE,
];

/// What is known of the SA of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Probe {
    /// The question that it is being asked. Meanwhile what was found last still counts.
    asking: Option<QueryId>,
    /// `true` if it answered when it was asked last.
    answers: Option<bool>,
    /// When it last answered.
    answered: Option<Instant>,
}

/// The SAs of the ports of PFs, as far as they were asked.
#[derive(Debug, Default)]
pub(in crate::serve) struct SaProbes(BTreeMap<HostPortId, Probe>);

impl SaProbes {
    /// Takes an event of a PF's own software.
    pub(in crate::serve) fn note(&mut self, at: HostPortId, now: Instant, event: &EndPortEvent) {
        let EndPortEvent::Sa(SaEvent::Answered { query, result }) = event else {
            return;
        };
        let probe = self.0.get_mut(&at);
        let Some(probe) = probe.filter(|probe| probe.asking == Some(*query)) else {
            return;
        };
        probe.asking = None;
        probe.answers = match result {
            // The agents of a host without an SA refuse what nobody there is registered for.
            Err(SaError::Status(status)) if NO_SA.contains(status) => Some(false),
            Ok(_) | Err(SaError::Status(_)) => Some(true),
            Err(SaError::Transfer(_)) => Some(false),
            Err(SaError::NoSa | SaError::Send(_)) => None,
        };
        if probe.answers == Some(true) {
            probe.answered = Some(now);
        }
    }

    fn asking(&self, at: HostPortId) -> bool {
        self.0.get(&at).is_some_and(|probe| probe.asking.is_some())
    }

    fn answers(&self, at: HostPortId) -> Option<bool> {
        self.0.get(&at)?.answers
    }
}

impl Lab {
    /// Asks the SAs of ports whether they know the port, unless that is being done. Returns `true` if any answer is
    /// waited for: see [`Self::is_asking_sa`].
    pub(in crate::serve) fn ask_sa(&mut self, ports: &[HostPortId]) -> bool {
        let now = self.world().now();
        for &at in ports {
            if self.sa_probes.asking(at) {
                continue;
            }
            let port = self.world().port(at);
            if port.sa().sa().is_none() {
                self.sa_probes.0.entry(at).or_default().answers = None;
                continue;
            }
            let record = NodeRecord {
                lid: port.view().lid,
                ..NodeRecord::default()
            };
            let request = SaRequest::get(&record, NodeRecord::LID);
            let query = self
                .world_mut()
                .port_mut(at)
                .query_with(now, request, POLICY);
            self.sa_probes.0.entry(at).or_default().asking = Some(query);
        }
        self.is_asking_sa(ports)
    }

    /// Returns `true` as long as the SA of one of these ports may still answer.
    pub(in crate::serve) fn is_asking_sa(&self, ports: &[HostPortId]) -> bool {
        ports.iter().any(|at| self.sa_probes.asking(*at))
    }

    /// The ports of some PFs.
    pub(in crate::serve) fn ports_of(&self, hosts: BTreeSet<HostId>) -> Vec<HostPortId> {
        let ports = hosts.into_iter().flat_map(|host| {
            let ports = (1..).zip(self.world().context(host).ports());
            ports.map(move |(number, _)| host.port(number))
        });
        ports.collect()
    }

    /// Returns `true` if the SA answered the port when it was asked last, `false` if it did not; `None` if it was not asked.
    pub(in crate::serve) fn sa_answers(&self, of: HostPortId) -> Option<bool> {
        self.sa_probes.answers(of)
    }

    /// Returns how long ago the SA last answered a question that the port asked it for diagnoses and metrics.
    pub(in crate::serve) fn sa_answer_age(&self, of: HostPortId) -> Option<Duration> {
        let answered = self.sa_probes.0.get(&of)?.answered?;
        Some(self.world().now().saturating_duration_since(answered))
    }
}
