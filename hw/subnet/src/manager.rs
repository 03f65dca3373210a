//! The subnet manager and the SA on a port of an HCA.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hca_api::{
    AsyncEvent, Hca, HcaError, HcaEvent, LocalMad, MadView, PortChange, PortModify, SourceAddress,
    SpecialQp,
};
use ib_endpoint::smi::{self, SmiIncoming, SmiOutgoing};
use ib_endpoint::{
    AgentEvent, AgentId, MadAddress, MadAgent, MadQp, Message, MethodSet, RegisterError,
    Registration, RequestId, RetryPolicy, TransferId, Transmit,
};
use ib_vtime::{Duration, Instant, Secret};
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::smp::{CapabilityMask, SmInfo, SmState};
use ib_wire::{GidIndex, Guid, PortNum};

use crate::config::SubnetConfig;
use crate::sa::{Sa, SubnetView};
use crate::sm::{Sm, SmEvent};

/// Buffers of QP0, each way: more than any window of requests.
const QP0_DEPTH: u32 = 512;

/// SMPs that one call to [`SubnetManager::poll`] receives, and sends, at most.
const BUDGET: usize = 64;

/// Reports under way at the same time; the others wait in the SA.
const MAX_REPORTS_UNDER_WAY: usize = 256;

/// How long a subscriber may take to answer a report, and how often it is sent again.
const REPORT_POLICY: RetryPolicy = RetryPolicy::new(Duration::from_millis(500), 3);

/// Why a manager cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The HCA refused.
    #[error(transparent)]
    Hca(#[from] HcaError),
    /// Somebody answers for the SA on this port already.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Counters of what did not pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagerStats {
    /// SMPs that the HCA refused; retries cover them.
    pub refused_sends: u64,
    /// Directed-route SMPs with an impossible route.
    pub bad_routes: u64,
    /// SA requests ignored because the manager is not master or has not brought the subnet up.
    pub not_serving: u64,
    /// SA answers for which the MAD agent had no room.
    pub unsent_answers: u64,
    /// Reports that no subscriber acknowledged.
    pub unanswered_reports: u64,
}

/// A subnet manager with its SA on a port of an HCA: it owns the port's QP0 and shares the MAD agent
/// of its QP1.
///
/// The owner keeps the HCA and the agent and lends them to each call. It passes on the HCA's
/// events ([`Self::handle_hca_event`]) and those of the agent ([`Self::handle_event`]), and calls
/// [`Self::poll`] after a completion and when [`Self::poll_timeout`] says so. To restart, close it
/// and open a new one: what must last is in the subnet itself.
#[derive(Debug)]
pub struct SubnetManager {
    sm: Sm,
    sa: Sa,
    qp0: MadQp,
    /// Taken from the manager, not yet taken by QP0.
    held: Option<Transmit>,
    agent: AgentId,
    reports: BTreeSet<RequestId>,
    /// Answers under RMPP: the port that asked, and the bytes of records.
    answers: BTreeMap<TransferId, (Guid, usize)>,
    events: VecDeque<SmEvent>,
    stats: ManagerStats,
}

impl SubnetManager {
    /// Takes a port's QP0, registers the SA with the agent of its QP1, and announces itself in the
    /// port's capability mask (the kernel's `issm` file does the same).
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing is left behind.
    pub fn open(
        hca: &mut dyn Hca,
        gsi: &mut MadAgent,
        port: PortNum,
        config: SubnetConfig,
        secret: impl Into<Secret>,
    ) -> Result<Self, OpenError> {
        let guid = hca.query_gid(port, GidIndex(0))?.interface_id();
        let agent = gsi.register(sa_registration())?;
        let qp0 = match open_qp0(hca, port) {
            Ok(qp0) => qp0,
            Err(refused) => {
                gsi.unregister(agent);
                return Err(refused.into());
            }
        };
        Ok(Self {
            sa: Sa::new(config.clone()),
            sm: Sm::new(config, port, guid, secret.into().seed()),
            qp0,
            held: None,
            agent,
            reports: BTreeSet::new(),
            answers: BTreeMap::new(),
            events: VecDeque::new(),
            stats: ManagerStats::default(),
        })
    }

    /// Gives QP0 and the registration up, without telling anybody: the subnet stays as it is.
    ///
    /// # Errors
    /// Those of [`Hca::modify_port`], when the announcement is withdrawn.
    pub fn close(self, hca: &mut dyn Hca, gsi: &mut MadAgent) -> Result<(), HcaError> {
        let port = self.qp0.port();
        gsi.unregister(self.agent);
        self.qp0.close(hca);
        announce(hca, port, false)
    }

    /// The subnet manager, to be looked at.
    #[must_use]
    pub const fn sm(&self) -> &Sm {
        &self.sm
    }

    /// The SA, to be looked at.
    #[must_use]
    pub const fn sa(&self) -> &Sa {
        &self.sa
    }

    /// The port it runs on.
    #[must_use]
    pub fn port(&self) -> PortNum {
        self.qp0.port()
    }

    /// Counters.
    #[must_use]
    pub const fn stats(&self) -> ManagerStats {
        self.stats
    }

    /// The agent on QP0, for programs beside the manager: see [`Sm::smi`]. Their registrations end
    /// with the manager.
    pub const fn smi(&mut self) -> &mut MadAgent {
        self.sm.smi()
    }

    /// Asks for a heavy sweep, which begins with the next poll, reads forwarding and GUID tables back, and
    /// writes what differs.
    pub fn request_sweep(&mut self, now: Instant) {
        self.sm.request_sweep();
        self.sm.look_around(now);
    }

    /// Receives and sends SMPs, runs timers, and lets the SA's changes reach the subnet. Whether
    /// there may be more to do at once; if not, the HCA raises a completion when there is.
    pub fn poll(&mut self, now: Instant, hca: &mut dyn Hca, gsi: &mut MadAgent) -> bool {
        let received = self.receive(now, hca);
        if self.sm.poll_timeout().is_some_and(|at| at <= now) {
            self.sm.handle_timeout(now);
        }
        self.sa.handle_timeout(now);
        self.exchange();
        let sent = self.send(now, hca);
        self.exchange();
        self.send_reports(now, gsi);
        self.serve_piece(now, gsi);
        let waits = self.qp0.arm(hca);
        waits || received == BUDGET || sent == BUDGET || self.has_unfinished()
    }

    /// Takes an event of the agent on QP1. Gives back one that is not the SA's.
    #[must_use]
    pub fn handle_event(
        &mut self,
        now: Instant,
        gsi: &mut MadAgent,
        event: AgentEvent,
    ) -> Option<AgentEvent> {
        if event.agent() != self.agent {
            return Some(event);
        }
        match event {
            AgentEvent::Request { from, message, .. } => {
                self.serve(now, gsi, from, &message);
                self.exchange();
                self.send_reports(now, gsi);
            }
            AgentEvent::Response { request, .. } => {
                self.reports.remove(&request);
                self.send_reports(now, gsi);
            }
            AgentEvent::RequestFailed { request, .. } => {
                self.reports.remove(&request);
                self.stats.unanswered_reports += 1;
                self.send_reports(now, gsi);
            }
            AgentEvent::TransferEnded { transfer, .. } => {
                if let Some((port, bytes)) = self.answers.remove(&transfer) {
                    self.sa.answer_ended(port, bytes);
                }
            }
        }
        None
    }

    /// Takes an event of the HCA: a change of the own port is reason to look around at once.
    pub fn handle_hca_event(&mut self, now: Instant, event: &HcaEvent) {
        if let HcaEvent::Async(AsyncEvent::Port { port, change }) = event
            && *port == self.qp0.port()
            && change.intersects(PortChange::ACTIVE | PortChange::DOWN)
        {
            self.sm.look_around(now);
        }
    }

    /// The next event of the subnet.
    pub fn poll_event(&mut self) -> Option<SmEvent> {
        self.events.pop_front()
    }

    /// When to call [`Self::poll`] at the latest; a time that has passed means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let can_send = (self.held.is_some() || self.sm.has_transmit()) && self.qp0.can_send();
        if can_send || self.has_unfinished() {
            return Some(Instant::ZERO);
        }
        [self.sm.poll_timeout(), self.sa.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    fn receive(&mut self, now: Instant, hca: &mut dyn Hca) -> usize {
        let mut received = 0;
        while received < BUDGET
            && let Some((from, mut mad)) = self.qp0.poll(hca)
        {
            received += 1;
            match smi::incoming(&mut mad, self.qp0.port()) {
                SmiIncoming::Deliver => self.sm.handle_smp(now, &from, &mad),
                SmiIncoming::Discard => self.stats.bad_routes += 1,
            }
        }
        received
    }

    fn send(&mut self, now: Instant, hca: &mut dyn Hca) -> usize {
        let mut sent = 0;
        while sent < BUDGET && self.qp0.can_send() {
            let Some(transmit) = self.held.take().or_else(|| self.sm.poll_transmit(now)) else {
                break;
            };
            self.send_one(now, hca, transmit);
            sent += 1;
        }
        sent
    }

    fn send_one(&mut self, now: Instant, hca: &mut dyn Hca, transmit: Transmit) {
        let port = self.qp0.port();
        let mut mad = transmit.mad;
        match smi::outgoing(&mut mad, port) {
            SmiOutgoing::Send => match self.qp0.send(hca, &transmit.to, &mad) {
                Ok(()) => {}
                Err(HcaError::QueueFull) => self.held = Some(transmit),
                Err(_) => self.stats.refused_sends += 1,
            },
            SmiOutgoing::LocalAgents => {
                if let Some(reply) = local_reply(hca, port, &mad) {
                    self.sm.handle_smp(now, &MadAddress::directed(), &reply);
                }
            }
            SmiOutgoing::LocalManager => self.sm.handle_smp(now, &MadAddress::directed(), &mad),
            SmiOutgoing::Discard => self.stats.bad_routes += 1,
        }
    }

    fn serve(&mut self, now: Instant, gsi: &mut MadAgent, from: MadAddress, message: &Message) {
        if !self.sm.is_serving() {
            self.stats.not_serving += 1;
            return;
        }
        let managers: Vec<(Guid, SmInfo)> = self.sm.other_managers().collect();
        let view = view(&self.sm, &managers);
        if let Some(answer) = self.sa.handle(now, &view, &from, message) {
            self.respond(now, gsi, from, answer);
        }
    }

    /// Makes a piece of a table that clients wait for.
    fn serve_piece(&mut self, now: Instant, gsi: &mut MadAgent) {
        if !self.has_unfinished() {
            return;
        }
        let managers: Vec<(Guid, SmInfo)> = self.sm.other_managers().collect();
        let view = view(&self.sm, &managers);
        if let Some((to, answer)) = self.sa.make_piece(now, &view) {
            self.respond(now, gsi, to, answer);
        }
    }

    /// Returns `true` if clients wait for a table of which the next piece can be made.
    fn has_unfinished(&self) -> bool {
        self.sa.has_unfinished() && self.sm.is_serving()
    }

    fn respond(&mut self, now: Instant, gsi: &mut MadAgent, to: MadAddress, answer: Message) {
        let bytes = answer.data().len();
        let topology = self.sm.topology();
        let port = topology.port_by_lid(to.lid);
        let port = port.and_then(|id| topology.port(id)).map(|port| port.guid);
        match gsi.respond(now, self.agent, to, answer) {
            Ok(Some(transfer)) => {
                let port = port.unwrap_or(Guid::NONE);
                // One that runs already is not begun again.
                if let Entry::Vacant(entry) = self.answers.entry(transfer) {
                    entry.insert((port, bytes));
                    self.sa.answer_begun(port, bytes);
                }
            }
            Ok(None) => {}
            Err(_) => self.stats.unsent_answers += 1,
        }
    }

    /// Tells the SA what happened in the subnet, and the manager what the SA changed.
    fn exchange(&mut self) {
        while let Some(event) = self.sm.poll_event() {
            self.tell_sa(&event);
            if self.events.len() < crate::sm::MAX_EVENTS {
                self.events.push_back(event);
            }
        }
        while let Some((mlid, members)) = self.sa.poll_group_change() {
            self.sm.set_group(mlid, members);
        }
        while let Some((port, block, guids)) = self.sa.poll_guid_change() {
            self.sm.write_guids(port, block, &guids);
        }
    }

    fn tell_sa(&mut self, event: &SmEvent) {
        let managers: Vec<(Guid, SmInfo)> = self.sm.other_managers().collect();
        let view = view(&self.sm, &managers);
        match event {
            SmEvent::SubnetUp => self.sa.set_last_mlid(self.sm.last_mlid()),
            SmEvent::PortAppeared(guid) => self.sa.handle_port_appeared(&view, *guid),
            SmEvent::PortVanished(guid) => self.sa.handle_port_vanished(&view, *guid),
            SmEvent::Trap(report) => self.sa.handle_trap(&view, report),
            // Another manager keeps the memberships now; its clients registered there.
            SmEvent::StateChanged(SmState::STANDBY | SmState::NOT_ACTIVE) => {
                self.sa = Sa::new(self.sm.config().clone());
            }
            SmEvent::StateChanged(_) => {}
        }
    }

    fn send_reports(&mut self, now: Instant, gsi: &mut MadAgent) {
        while self.reports.len() < MAX_REPORTS_UNDER_WAY
            && let Some(report) = self.sa.poll_report()
        {
            let message = Message::single(report.mad);
            match gsi.send_request(now, self.agent, report.to, message, REPORT_POLICY) {
                Ok(request) => {
                    self.reports.insert(request);
                }
                Err(_) => self.stats.unanswered_reports += 1,
            }
        }
    }
}

/// What the SA answers to by itself; ClassPortInfo is the SA's own, too.
fn sa_registration() -> Registration {
    let methods = MethodSet::of(&[
        Method::GET,
        Method::SET,
        Method::GET_TABLE,
        Method::GET_MULTI,
        Method::DELETE,
    ]);
    Registration::new(MgmtClass::SUBN_ADM, methods).with_class_port_info(None)
}

fn open_qp0(hca: &mut dyn Hca, port: PortNum) -> Result<MadQp, HcaError> {
    let qp0 = MadQp::open(hca, SpecialQp::Smi, port, QP0_DEPTH)?;
    match announce(hca, port, true) {
        Ok(()) => Ok(qp0),
        Err(refused) => {
            qp0.close(hca);
            Err(refused)
        }
    }
}

/// Sets or clears PortInfo:CapabilityMask.IsSM.
fn announce(hca: &mut dyn Hca, port: PortNum, is_sm: bool) -> Result<(), HcaError> {
    let bit = CapabilityMask::IS_SM.get();
    let (set_capabilities, clear_capabilities) = if is_sm { (bit, 0) } else { (0, bit) };
    let change = PortModify {
        set_capabilities,
        clear_capabilities,
        ..PortModify::default()
    };
    hca.modify_port(port, &change)
}

/// The answer of the port's own agents, as it comes back over a route without hops.
fn local_reply(hca: &mut dyn Hca, port: PortNum, mad: &Mad) -> Option<Mad> {
    let view = MadView::Network(SourceAddress::local(port));
    match hca.process_local_mad(port, view, mad) {
        Ok(LocalMad::Reply(mut reply)) => {
            let back = smi::outgoing(&mut reply, port);
            (back == SmiOutgoing::LocalManager).then_some(reply)
        }
        _ => None,
    }
}

fn view<'a>(sm: &'a Sm, other_managers: &'a [(Guid, SmInfo)]) -> SubnetView<'a> {
    SubnetView {
        topology: sm.topology(),
        manager: sm.sm_info(),
        other_managers,
    }
}
