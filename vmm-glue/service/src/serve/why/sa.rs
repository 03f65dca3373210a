//! Questions to SAs, to the ports of SMs and to SMs, by which diagnoses find out if an SA can be used, and why not.

use std::collections::{BTreeMap, BTreeSet};

use emulated_hca::Endpoint;
use hca_api::SpecialQp;
use ib_endpoint::sa_client::QueryId;
use ib_endpoint::{
    AgentEvent, AgentId, EndPortEvent, MadAddress, Message, Registration, RetryPolicy, SaError,
    SaEvent, SaRequest,
};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::sa::NodeRecord;
use ib_wire::smp::{DirectedRouteSmp, SmInfo, SmState, SmpAttribute};

use crate::serve::lab::Lab;
use vhca::world::{HostId, HostPortId, World};

/// Intervals at which a port asks: two seconds in all. A busy SA answers within the first of these times, and six questions are not lost on links
/// that lose a tenth of what passes.
const POLICY: RetryPolicy = RetryPolicy::new(Duration::from_millis(333), 5);

/// Time after which a question counts as not answered, whatever became of it: more than all its transmissions take.
const GIVEN_UP: Duration = Duration::from_secs(3);

/// Time for which an answer of a subnet manager counts.
const FRESH: Duration = Duration::from_secs(10);

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
    /// The question that the SM's port is being asked at the same time.
    reaching: Option<Question>,
    /// `true` if the SM's port answered when it was asked last.
    reached: Option<bool>,
}

/// A question for which an agent was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Question {
    at: Endpoint,
    on: SpecialQp,
    agent: AgentId,
    /// Time from which on no answer is awaited: a port whose software was made anew has none.
    until: Instant,
}

/// The state of a subnet manager, as it said.
#[derive(Clone, Copy, Debug, Default)]
struct ManagerProbe {
    asking: Option<Question>,
    /// Time and state; no state if it did not answer.
    said: Option<(Instant, Option<SmState>)>,
}

/// The SAs of the ports of PFs, and subnet managers, as far as they were asked.
#[derive(Debug, Default)]
pub(in crate::serve) struct SaProbes {
    ports: BTreeMap<HostPortId, Probe>,
    managers: BTreeMap<Endpoint, ManagerProbe>,
}

impl SaProbes {
    /// Takes an event of a PF's own software.
    pub(in crate::serve) fn note(&mut self, at: HostPortId, now: Instant, event: &EndPortEvent) {
        let EndPortEvent::Sa(SaEvent::Answered { query, result }) = event else {
            return;
        };
        let probe = self.ports.get_mut(&at);
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
        let probe = self.ports.get(&at);
        probe.is_some_and(|probe| probe.asking.is_some() || probe.reaching.is_some())
    }

    /// Takes the answers of SMs' ports, and of SMs, that have come in.
    pub(in crate::serve) fn take_answers(&mut self, world: &mut World) {
        for probe in self.ports.values_mut() {
            if let Some(answer) = probe.reaching.and_then(|question| question.answer(world)) {
                (probe.reaching, probe.reached) = (None, Some(answer.is_some()));
            }
        }
        for probe in self.managers.values_mut() {
            if let Some(answer) = probe.asking.and_then(|question| question.answer(world)) {
                let state =
                    answer.map(|mad| mad.view::<DirectedRouteSmp>().attribute::<SmInfo>().state());
                (probe.asking, probe.said) = (None, Some((world.now(), state)));
            }
        }
    }

    fn answers(&self, at: HostPortId) -> Option<bool> {
        self.ports.get(&at)?.answers
    }
}

impl Question {
    /// Asks. Returns `None` if the port's agent takes no question.
    fn ask(
        world: &mut World,
        at: Endpoint,
        on: SpecialQp,
        to: MadAddress,
        header: MadHeader,
    ) -> Option<Self> {
        let now = world.now();
        let agents = world.port_agents_mut(at)?.on(on)?;
        let agent = agents.register(Registration::sender().apart()).ok()?;
        let message = Message::single(Mad::new(header));
        if agents
            .send_request(now, agent, to, message, POLICY)
            .is_err()
        {
            agents.unregister(agent);
            return None;
        }
        let until = now + GIVEN_UP;
        Some(Self {
            at,
            on,
            agent,
            until,
        })
    }

    /// Returns the answer once it is there, or that there was none.
    fn answer(self, world: &mut World) -> Option<Option<Mad>> {
        let event = world.poll_agent_event(self.at, self.on, self.agent);
        if event.is_none() && world.now() < self.until {
            return None;
        }
        let agents = world.port_agents_mut(self.at);
        if let Some(agents) = agents.and_then(|agents| agents.on(self.on)) {
            agents.unregister(self.agent);
        }
        Some(match event {
            Some(AgentEvent::Response { message, .. })
                if message.status().without_direction() == MadStatus::OK =>
            {
                Some(*message.mad())
            }
            _ => None,
        })
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
            let Some(sa) = port.sa().sa() else {
                let probe = self.sa_probes.ports.entry(at).or_default();
                (probe.answers, probe.reached) = (None, None);
                continue;
            };
            let record = NodeRecord {
                lid: port.view().lid,
                ..NodeRecord::default()
            };
            let request = SaRequest::get(&record, NodeRecord::LID);
            let query = self
                .world_mut()
                .port_mut(at)
                .query_with(now, request, POLICY);
            // A GMP, as the SA's are: QP0 may be the VFs' alone, and SMPs pass where no partition is shared.
            let mad = MadHeader::new(MgmtClass::PERF, Method::GET, AttributeId::CLASS_PORT_INFO);
            let own = self.world().host(at.host).node().port(at.port.0);
            let reaching = Question::ask(self.world_mut(), own, SpecialQp::Gsi, sa, mad);
            let probe = self.sa_probes.ports.entry(at).or_default();
            (probe.asking, probe.reaching) = (Some(query), reaching);
        }
        self.is_asking_sa(ports)
    }

    /// Asks the subnet managers of all ports for their states, each on its own node, except the service's own.
    /// Returns `true` if any answer is waited for: see [`Self::is_asking_managers`].
    pub(in crate::serve) fn ask_managers(&mut self) -> bool {
        let own = self.manager_port();
        for at in self.manager_ports() {
            let probe = self.sa_probes.managers.entry(at).or_default();
            if Some(at) == own || probe.asking.is_some() {
                continue;
            }
            // Refused while a PF context has QP0 for its VFs: then nothing is known.
            if self.world_mut().open_qp0(at).is_err() {
                continue;
            }
            let class = MgmtClass::SUBN_DIRECTED_ROUTE;
            let mad = MadHeader::new(class, Method::GET, SmInfo::ID);
            let to = MadAddress::directed();
            let asking = Question::ask(self.world_mut(), at, SpecialQp::Smi, to, mad);
            self.sa_probes.managers.entry(at).or_default().asking = asking;
        }
        self.is_asking_managers()
    }

    /// Returns `true` as long as a subnet manager may still say its state.
    pub(in crate::serve) fn is_asking_managers(&self) -> bool {
        let mut probes = self.sa_probes.managers.values();
        probes.any(|probe| probe.asking.is_some())
    }

    /// Returns what subnet managers said lately: their states; no state of one that did not answer.
    pub(in crate::serve) fn manager_states(
        &self,
    ) -> impl Iterator<Item = (Endpoint, Option<SmState>)> {
        let now = self.world().now();
        let probes = self.sa_probes.managers.iter();
        probes.filter_map(move |(at, probe)| {
            let (said, state) = probe.said?;
            (now < said + FRESH).then_some((*at, state))
        })
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

    /// Returns `true` if the SM's port answered the port when it was asked last, `false` if it did not; `None` if it was not asked.
    pub(in crate::serve) fn reaches_sm_port(&self, of: HostPortId) -> Option<bool> {
        self.sa_probes.ports.get(&of)?.reached
    }

    /// Returns how long ago the SA last answered a question that the port asked it for diagnoses and metrics.
    pub(in crate::serve) fn sa_answer_age(&self, of: HostPortId) -> Option<Duration> {
        let answered = self.sa_probes.ports.get(&of)?.answered?;
        Some(self.world().now().saturating_duration_since(answered))
    }
}
