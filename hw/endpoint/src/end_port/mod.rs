//! Everything that a host runs on one port: the MAD agents on the port's special QPs, and on them
//! the SA client, the CM and the reading of the port itself.
//!
//! The owner keeps the HCA and lends it to each call. It passes on the HCA's events with
//! [`EndPort::handle_hca_event`], calls [`EndPort::poll`] after an [`HcaEvent::Completion`] and when
//! [`EndPort::poll_timeout`] says so, and pulls what happened from [`EndPort::poll_event`].
//!
//! A function that has no special QPs of its own gives a [`MadTransport`] that reaches them
//! ([`EndPort::open_on`]); all else is the same. With a [`QueuedMads`](crate::QueuedMads) the owner itself is
//! what carries the MADs.

mod bound;

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use hca_api::{AsyncEvent, Hca, HcaError, HcaEvent, PortChange, SpecialQp};
use ib_vtime::{Instant, Secret};
use ib_wire::PortNum;
use ib_wire::mad::{BASE_VERSION, Method, MgmtClass};
use ib_wire::notice::ClassPortInfo;

pub use bound::{BoundAgent, LinkCounters};

use crate::cm::{Cm, CmConfig, CmEvent};
use crate::sa_client::{QueryId, StandingId, Wish};
use crate::{
    AgentEvent, AgentId, MadAgent, MadAgentConfig, MadQp, MadTransport, MethodSet, PortView,
    RegisterError, Registration, RetryPolicy, SaClient, SaEvent, SaRequest, SmaClient, SmaError,
};
/// What an [`EndPort`] is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndPortConfig {
    /// The port.
    pub port: PortNum,
    /// The agent on QP1.
    pub gsi: MadAgentConfig,
    /// The agent on QP0, for who manages the subnet; `None` leaves QP0 alone.
    pub smi: Option<MadAgentConfig>,
    /// Buffers of each QP, each way.
    pub depth: u32,
    /// The most MADs that one call to [`EndPort::poll`] receives, and sends, on each QP.
    pub budget: usize,
    /// Events of the owner's own registrations that may wait to be pulled; requests beyond are
    /// dropped.
    pub max_pending: usize,
    /// Communication ids follow from it.
    pub secret: Secret,
}

impl EndPortConfig {
    /// A host's port: QP1, 512 buffers.
    #[must_use]
    pub fn host(port: PortNum, secret: impl Into<Secret>) -> Self {
        let secret = secret.into();
        Self {
            port,
            gsi: MadAgentConfig::gsi(secret.of(b"GSI tids").seed()),
            smi: None,
            depth: 512,
            budget: 256,
            max_pending: 4096,
            secret,
        }
    }

    /// A port from which the subnet is managed: QP0 as well.
    #[must_use]
    pub fn manager(port: PortNum, secret: impl Into<Secret>) -> Self {
        let secret = secret.into();
        Self {
            smi: Some(MadAgentConfig::smi(secret.of(b"SMI tids").seed())),
            ..Self::host(port, secret)
        }
    }
}

/// Why a port could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndPortError {
    /// The HCA refused.
    #[error(transparent)]
    Hca(#[from] HcaError),
    /// The port could not be read.
    #[error(transparent)]
    Sma(#[from] SmaError),
    /// A class could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// What happened on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndPortEvent {
    /// The port changed; [`EndPort::view`] shows it as it is now.
    Port(PortChange),
    /// For the SA client's user.
    Sa(SaEvent),
    /// For the CM's user.
    Cm(CmEvent),
    /// For a registration that the owner made with the agent on QP1.
    Gsi(AgentEvent),
    /// For a registration that the owner made with the agent on QP0.
    Smi(AgentEvent),
    /// The function was reset or the device failed: nothing works any more but
    /// [`EndPort::close`].
    Dead,
}

/// All that a host runs on one port. See the [module](self).
#[derive(Debug)]
pub struct EndPort<G = Box<dyn MadTransport>> {
    config: EndPortConfig,
    gsi: BoundAgent<G>,
    smi: Option<BoundAgent<Box<dyn MadTransport>>>,
    sa: SaClient,
    cm: Cm,
    cm_agent: AgentId,
    sma: SmaClient,
    events: VecDeque<EndPortEvent>,
    dropped_requests: u64,
    is_dead: bool,
}

impl EndPort {
    /// Takes a port's special QPs and reads the port.
    ///
    /// # Errors
    /// See [`EndPortError`]. Nothing is left behind.
    pub fn open(
        now: Instant,
        hca: &mut dyn Hca,
        config: EndPortConfig,
    ) -> Result<Self, EndPortError> {
        let EndPortConfig { port, depth, .. } = config;
        let gsi = MadQp::open(hca, SpecialQp::Gsi, port, depth)?;
        let smi = config
            .smi
            .map(|_| MadQp::open(hca, SpecialQp::Smi, port, depth));
        match smi.transpose() {
            Ok(smi) => {
                let smi = smi.map(|smi| Box::new(smi) as Box<dyn MadTransport>);
                Self::open_on(now, hca, config, Box::new(gsi), smi)
            }
            Err(refused) => {
                gsi.close(hca);
                Err(refused.into())
            }
        }
    }
}

impl<G: MadTransport> EndPort<G> {
    /// Reads a port whose QP1, and QP0 if the configuration has an agent for it, are reached by
    /// transports that the caller made.
    ///
    /// # Errors
    /// See [`EndPortError`]. The transports are closed then.
    pub fn open_on(
        now: Instant,
        hca: &mut dyn Hca,
        config: EndPortConfig,
        gsi: G,
        smi: Option<Box<dyn MadTransport>>,
    ) -> Result<Self, EndPortError> {
        let mut mads = MadAgent::new(config.gsi);
        let clients = register(&mut mads).map_err(EndPortError::from);
        let opened = clients.and_then(|clients| {
            let sma = SmaClient::open(hca, config.port)?;
            Ok((clients, sma))
        });
        let ((sa, cm_agent), sma) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                Box::new(gsi).close(hca);
                if let Some(smi) = smi {
                    smi.close(hca);
                }
                return Err(error);
            }
        };
        let gsi = BoundAgent::new(gsi, mads);
        let smi = smi
            .zip(config.smi)
            .map(|(smi, agent)| BoundAgent::new(smi, MadAgent::new(agent)));
        let cm = Cm::new(CmConfig {
            tid_high: cm_agent.get(),
            ..CmConfig::new(hca.attributes().node_guid, config.secret)
        });
        let mut this = Self {
            config,
            gsi,
            smi,
            sa,
            cm,
            cm_agent,
            sma,
            events: VecDeque::new(),
            dropped_requests: 0,
            is_dead: false,
        };
        this.follow_sm(now);
        Ok(this)
    }

    /// Receives, runs timers, and sends, within the budget. Whether there may be more to do at once;
    /// if not, the HCA raises [`HcaEvent::Completion`] when there is.
    pub fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        if self.is_dead {
            return false;
        }
        let budget = self.config.budget;
        let mut left = self.gsi.receive(now, hca, budget);
        if let Some(smi) = &mut self.smi {
            left = left.min(smi.receive(now, hca, budget));
        }
        self.handle_timeout(now);
        self.route_events(now);
        let cm = &mut self.cm;
        let mut from_cm = || cm.poll_transmit();
        left = left.min(self.gsi.send(now, hca, budget, &mut from_cm));
        if let Some(smi) = &mut self.smi {
            left = left.min(smi.send(now, hca, budget, &mut || None));
        }
        // What the port's own agents answered on the spot.
        self.route_events(now);
        let mut waits = self.gsi.arm(hca);
        if let Some(smi) = &self.smi {
            waits |= smi.arm(hca);
        }
        waits || left == 0
    }

    /// Takes an event of the HCA.
    ///
    /// # Errors
    /// See [`SmaError`]; what was known of the port before stays.
    pub fn handle_hca_event(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        event: &HcaEvent,
    ) -> Result<(), SmaError> {
        match event {
            HcaEvent::Async(AsyncEvent::FunctionReset | AsyncEvent::DeviceFatal) => {
                self.is_dead = true;
                self.events.push_back(EndPortEvent::Dead);
                Ok(())
            }
            HcaEvent::Async(event) => {
                let change = self.sma.handle_event(hca, event)?;
                self.port_changed(now, change);
                Ok(())
            }
            HcaEvent::Completion(_) => Ok(()),
        }
    }

    /// Reads the port again, event or not.
    ///
    /// # Errors
    /// See [`SmaError`]; what was known of the port before stays.
    pub fn refresh(&mut self, now: Instant, hca: &mut dyn Hca) -> Result<(), SmaError> {
        let change = self.sma.refresh(hca)?;
        self.port_changed(now, change);
        Ok(())
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<EndPortEvent> {
        self.events
            .pop_front()
            .or_else(|| self.sa.poll_event().map(EndPortEvent::Sa))
            .or_else(|| self.cm.poll_event().map(EndPortEvent::Cm))
    }

    /// When to call [`Self::poll`] at the latest; a time that has passed means at once, because
    /// something waits to be sent.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_dead {
            return None;
        }
        let smi_waits = self.smi.as_ref().is_some_and(|smi| smi.can_go_on(false));
        if smi_waits || self.gsi.can_go_on(self.cm.has_transmit()) {
            return Some(Instant::ZERO);
        }
        let smi = self.smi.as_ref().and_then(|smi| smi.mads.poll_timeout());
        [
            self.gsi.mads.poll_timeout(),
            self.sa.poll_timeout(),
            self.cm.poll_timeout(),
            smi,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Which port it is.
    #[must_use]
    pub const fn port(&self) -> PortNum {
        self.config.port
    }

    /// The port as it was read last.
    #[must_use]
    pub const fn view(&self) -> &PortView {
        self.sma.view()
    }

    /// What carries the MADs of QP1.
    pub const fn gsi_transport(&mut self) -> &mut G {
        &mut self.gsi.qp
    }

    /// The agent on QP1, for registrations of the owner's own.
    pub const fn gsi(&mut self) -> &mut MadAgent {
        &mut self.gsi.mads
    }

    /// The agent on QP0, if the port is managed from.
    pub fn smi(&mut self) -> Option<&mut MadAgent> {
        self.smi.as_mut().map(|smi| &mut smi.mads)
    }

    /// Takes the port's QP0, unless this software has it already, and gives the agent on it.
    ///
    /// # Errors
    /// [`HcaError::SpecialQpTaken`] if somebody else has it, such as a subnet manager that runs on the
    /// port.
    pub fn open_smi(
        &mut self,
        hca: &mut dyn Hca,
        config: MadAgentConfig,
    ) -> Result<&mut MadAgent, HcaError> {
        let smi = match self.smi.take() {
            Some(smi) => smi,
            None => {
                let EndPortConfig { port, depth, .. } = self.config;
                let qp: Box<dyn MadTransport> =
                    Box::new(MadQp::open(hca, SpecialQp::Smi, port, depth)?);
                BoundAgent::new(qp, MadAgent::new(config))
            }
        };
        Ok(&mut self.smi.insert(smi).mads)
    }

    /// The agents on QP1, and on QP0 if it is open.
    pub fn agents(&mut self) -> (&mut MadAgent, Option<&mut MadAgent>) {
        let smi = self.smi.as_mut().map(|smi| &mut smi.mads);
        (&mut self.gsi.mads, smi)
    }

    /// The connection manager. Its events come by [`Self::poll_event`].
    pub const fn cm(&mut self) -> &mut Cm {
        &mut self.cm
    }

    /// The SA client, to be looked at.
    #[must_use]
    pub const fn sa(&self) -> &SaClient {
        &self.sa
    }

    /// Asks the SA; see [`SaClient::query`].
    pub fn query(&mut self, now: Instant, request: SaRequest) -> QueryId {
        self.sa.query(now, &mut self.gsi.mads, request)
    }

    /// Asks the SA; see [`SaClient::query_with`].
    pub fn query_with(&mut self, now: Instant, request: SaRequest, policy: RetryPolicy) -> QueryId {
        self.sa.query_with(now, &mut self.gsi.mads, request, policy)
    }

    /// Gives a query up; see [`SaClient::cancel`].
    pub fn cancel_query(&mut self, query: QueryId) -> bool {
        self.sa.cancel(&mut self.gsi.mads, query)
    }

    /// Makes a standing wish; see [`SaClient::wish`].
    pub fn wish(&mut self, now: Instant, wish: Wish) -> StandingId {
        self.sa.wish(now, &mut self.gsi.mads, wish)
    }

    /// Ends a standing wish; see [`SaClient::withdraw`].
    pub fn withdraw(&mut self, now: Instant, standing: StandingId) -> bool {
        self.sa.withdraw(now, &mut self.gsi.mads, standing)
    }

    /// MADs that did not pass between QP1 and its agent.
    #[must_use]
    pub const fn gsi_counters(&self) -> LinkCounters {
        self.gsi.counters()
    }

    /// Requests for the owner's registrations that were dropped because too many events waited.
    #[must_use]
    pub const fn dropped_requests(&self) -> u64 {
        self.dropped_requests
    }

    /// Gives the queue pairs up. What was under way ends; its buffers are freed.
    pub fn close(self, hca: &mut dyn Hca) {
        self.gsi.close(hca);
        if let Some(smi) = self.smi {
            smi.close(hca);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.gsi.mads.handle_timeout(now);
        if let Some(smi) = &mut self.smi {
            smi.mads.handle_timeout(now);
        }
        self.route_events(now);
        self.sa.handle_timeout(now, &mut self.gsi.mads);
        self.cm.handle_timeout(now);
    }

    /// Hands the agents' events to who takes them.
    fn route_events(&mut self, now: Instant) {
        while let Some(event) = self.gsi.mads.poll_event() {
            let mads = &mut self.gsi.mads;
            let Some(event) = self.sa.handle_event(now, mads, event) else {
                continue;
            };
            match event {
                AgentEvent::Request {
                    agent,
                    from,
                    message,
                } if agent == self.cm_agent => {
                    self.cm.handle_mad(now, &from, message.mad());
                }
                event => self.tell(event, EndPortEvent::Gsi),
            }
        }
        while let Some(event) = self.smi.as_mut().and_then(|smi| smi.mads.poll_event()) {
            self.tell(event, EndPortEvent::Smi);
        }
    }

    fn tell(&mut self, event: AgentEvent, wrap: fn(AgentEvent) -> EndPortEvent) {
        let is_request = matches!(event, AgentEvent::Request { .. });
        if is_request && self.events.len() >= self.config.max_pending {
            self.dropped_requests += 1;
        } else {
            self.events.push_back(wrap(event));
        }
    }

    fn port_changed(&mut self, now: Instant, change: PortChange) {
        if change.is_empty() {
            return;
        }
        let moved = self.follow_sm(now);
        // As Linux does for multicast groups: a new LID counts like a request to register again.
        if !moved && change.intersects(PortChange::CLIENT_REREGISTER | PortChange::LID) {
            self.sa.reregister(now, &mut self.gsi.mads);
        }
        self.events.push_back(EndPortEvent::Port(change));
    }

    fn follow_sm(&mut self, now: Instant) -> bool {
        let sa = self.sma.view().sa_address();
        self.sa.sm_changed(now, &mut self.gsi.mads, sa)
    }
}

/// Registers the clients of QP1: the SA client, and the CM's class.
fn register(mads: &mut MadAgent) -> Result<(SaClient, AgentId), RegisterError> {
    let sa = SaClient::new(mads)?;
    let methods = MethodSet::of(&[Method::SEND]);
    let cm = Registration::new(MgmtClass::COM_MGT, methods)
        .with_class_port_info(Some(cm_class_port_info()));
    Ok((sa, mads.register(cm)?))
}

/// Which services the CM connects (IBA 16.7.3.1, ClassPortInfo:CapabilityMask): reliable and
/// unreliable connections, and SIDR.
fn cm_class_port_info() -> ClassPortInfo {
    const RELIABLE: u16 = 1 << 9;
    const UNRELIABLE: u16 = 1 << 12;
    const SIDR: u16 = 1 << 13;
    ClassPortInfo {
        base_version: BASE_VERSION,
        class_version: MgmtClass::COM_MGT.supported_version(),
        capability_mask: (RELIABLE | UNRELIABLE | SIDR).into(),
        ..ClassPortInfo::default()
    }
}
