//! Whether the SA can be used from a port: it is asked for the sake of a diagnosis, and what is known of the fabric tells
//! why it does not answer.

use std::collections::{BTreeMap, BTreeSet};

use emulated_hca::{Endpoint, Travelling};
use ib_endpoint::sa_client::QueryId;
use ib_endpoint::{EndPortEvent, RetryPolicy, SaError, SaEvent, SaRequest};
use ib_vtime::{Duration, Instant};
use ib_wire::Lid;
use ib_wire::mad::MadStatus;
use ib_wire::sa::NodeRecord;

use super::Fault;
use crate::serve::Lab;
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

    /// Returns `true` if the SA answered the port when it was asked last.
    pub(super) fn sa_answers(&self, of: HostPortId) -> bool {
        self.sa_probes.answers(of) == Some(true)
    }

    /// Returns how long ago the SA last answered a question that the port asked it for diagnoses and metrics.
    pub(in crate::serve) fn sa_answer_age(&self, of: HostPortId) -> Option<Duration> {
        let answered = self.sa_probes.0.get(&of)?.answered?;
        Some(self.world().now().saturating_duration_since(answered))
    }

    /// Returns the fault that keeps the SA from being used, if it did not answer when it was asked last.
    pub(super) fn why_sa_is_silent(&self, of: HostPortId) -> Option<Fault> {
        let silent = self.sa_probes.answers(of) == Some(false);
        silent.then(|| self.why_no_answer(of))
    }

    /// The fault that keeps the SA from answering a port.
    pub(super) fn why_no_answer(&self, of: HostPortId) -> Fault {
        let at = self.endpoint(of);
        let fabric = self.fabric();
        let sm_lid = fabric.port(at).map_or(Lid::NONE, |port| port.sm_lid);
        let fault = Fault::new("sa_not_answering", "the SA does not answer");
        if self.is_attached(at) {
            return fault
                .seen(format!("the SA is at LID {}", sm_lid.get()))
                .next("start the subnet manager of the simulator's fabric, or see its log");
        }
        let Some(sm) = self.owner(sm_lid) else {
            let fault = fault.seen(format!(
                "the SA is at LID {}, which no port has",
                sm_lid.get()
            ));
            return self.why_no_manager(fault, at, sm_lid);
        };
        if let Some(cut) = self.why_cut_off(at, sm) {
            return cut;
        }
        let managed = self.managed_between(at, sm);
        let foreign = self.foreign_m_key(&managed);
        if let Some(foreign) = foreign.or_else(|| self.refused_m_key(&managed)) {
            return foreign;
        }
        let fault = fault.seen(format!(
            "the SA is at LID {}, which is {}",
            sm_lid.get(),
            self.port_name(sm)
        ));
        self.why_no_manager(fault, at, sm_lid)
    }

    /// Returns why packets between a port and the SM's port do not arrive, if the fabric lets none pass.
    fn why_cut_off(&self, at: Endpoint, sm: Endpoint) -> Option<Fault> {
        let name = self.port_name(sm);
        let unreachable = || Fault::new("sa_unreachable", "the SA cannot be reached");
        let fabric = self.fabric();
        if let Some(link) = self.link_fault(sm) {
            return Some(link.called(
                "sa_unreachable",
                "the SA cannot be reached: the link of its port is down",
            ));
        }
        for (from, to) in [(at, sm), (sm, at)] {
            let lid = fabric.port(to).map_or(Lid::NONE, |port| port.lid);
            let Err(end) = fabric.follow_lid(from, lid, Travelling::Data) else {
                continue;
            };
            let way = format!(
                "packets from {} to {} end at {}",
                self.port_name(from),
                self.port_name(to),
                self.port_name(end)
            );
            if let Some(link) = self.link_fault(end) {
                let cut = "the SA cannot be reached: a link on the way is down";
                return Some(link.called("sa_unreachable", cut).seen(way));
            }
            if let Some(link) = self.cut_between(at, sm) {
                let cut = "the SA cannot be reached: the fabric is cut in two";
                return Some(link.called("sa_unreachable", cut).seen(way));
            }
            return Some(unreachable().seen(way).next(format!(
                "have the subnet manager on {name} route anew: it does so when it is restarted, OpenSM also on kill -HUP"
            )));
        }
        self.why_no_partition(at, sm)
    }

    /// Returns `true` if an end port stands for one of a fabric that is not ours.
    pub(super) fn is_attached(&self, at: Endpoint) -> bool {
        let peer = self.fabric().peer(at);
        peer.is_some_and(|peer| self.fabric().is_gateway(peer.node))
    }
}
