//! A subnet manager and its SA on a host's port.

use std::collections::VecDeque;

use hca_api::{Hca, HcaError, PortModify, SpecialQp};
use ib_endpoint::{
    AgentEvent, AgentId, EndPort, EndPortError, MadAddress, MadQp, Message, MethodSet,
    Registration, RetryPolicy,
};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{Method, MgmtClass};
use ib_wire::smp::CapabilityMask;
use ib_wire::{Guid, PortNum};
use subnet_lite::SubnetConfig;
use subnet_lite::sa::{Sa, SubnetView};
use subnet_lite::sm::{Sm, SmEvent};

/// SMPs that fit into QP0's queues, each way.
const QUEUE_DEPTH: u32 = 512;

/// How a report is repeated until its subscriber answers.
const REPORT_POLICY: RetryPolicy = RetryPolicy::new(Duration::from_millis(500), 3);

/// What the SA takes.
const SA_METHODS: &[Method] = &[
    Method::GET,
    Method::SET,
    Method::GET_TABLE,
    Method::DELETE,
    Method::GET_MULTI,
];

/// A subnet manager on a port's QP0, and its SA on the port's QP1.
#[derive(Debug)]
pub struct Manager {
    /// The subnet manager.
    pub sm: Sm,
    /// The subnet administration.
    pub sa: Sa,
    qp0: MadQp,
    agent: AgentId,
    requests: VecDeque<(MadAddress, Message)>,
    events: Vec<SmEvent>,
    unsent: u64,
}

impl Manager {
    pub(super) fn start(
        hca: &mut dyn Hca,
        port: &mut EndPort,
        config: SubnetConfig,
        seed: u64,
    ) -> Result<Self, EndPortError> {
        let number = port.port();
        let guid = port.view().guids.first().copied().unwrap_or(Guid::NONE);
        let qp0 = MadQp::open(hca, SpecialQp::Smi, number, QUEUE_DEPTH)?;
        let registration = Registration::new(MgmtClass::SUBN_ADM, MethodSet::of(SA_METHODS));
        let started = announce(hca, number, true)
            .map_err(EndPortError::from)
            .and_then(|()| Ok(port.gsi().register(registration)?));
        match started {
            Ok(agent) => Ok(Self {
                sa: Sa::new(config.clone()),
                sm: Sm::new(config, number, guid, seed),
                qp0,
                agent,
                requests: VecDeque::new(),
                events: Vec::new(),
                unsent: 0,
            }),
            Err(refused) => {
                qp0.close(hca);
                Err(refused)
            }
        }
    }

    pub(super) fn stop(self, hca: &mut dyn Hca, port: &mut EndPort) -> Result<(), HcaError> {
        port.gsi().unregister(self.agent);
        let number = self.qp0.port();
        self.qp0.close(hca);
        announce(hca, number, false)
    }

    /// The port it runs on.
    #[must_use]
    pub const fn port(&self) -> PortNum {
        self.qp0.port()
    }

    /// What has happened in the subnet since it was started.
    #[must_use]
    pub fn events(&self) -> &[SmEvent] {
        &self.events
    }

    /// MADs that QP0 or the port's agent did not take.
    #[must_use]
    pub const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Takes an event of the port's agent on QP1; gives it back if it is somebody else's.
    pub(super) fn take_event(&mut self, event: AgentEvent) -> Option<AgentEvent> {
        if event.agent() != self.agent {
            return Some(event);
        }
        if let AgentEvent::Request { from, message, .. } = event {
            self.requests.push_back((from, message));
        }
        None
    }

    /// Does everything that is due. Whether there was anything.
    pub(super) fn poll(&mut self, now: Instant, hca: &mut dyn Hca, port: &mut EndPort) -> bool {
        let mut busy = self.poll_timeout().is_some_and(|at| at <= now);
        if busy {
            self.sm.handle_timeout(now);
            self.sa.handle_timeout(now);
        }
        while let Some((from, mad)) = self.qp0.poll(hca) {
            self.sm.handle_smp(now, &from, &mad);
            busy = true;
        }
        self.tell_sa();
        busy |= self.answer_requests(now, port);
        self.follow_sa(now, port);
        while self.qp0.can_send()
            && let Some(transmit) = self.sm.poll_transmit(now)
        {
            let sent = self.qp0.send(hca, &transmit.to, &transmit.mad);
            self.unsent += u64::from(sent.is_err());
            busy = true;
        }
        busy
    }

    /// Tells the SA what the manager saw.
    fn tell_sa(&mut self) {
        while let Some(event) = self.sm.poll_event() {
            let others: Vec<_> = self.sm.other_managers().collect();
            let view = view_of(&self.sm, &others);
            match &event {
                SmEvent::SubnetUp => self.sa.set_last_mlid(self.sm.last_mlid()),
                SmEvent::PortAppeared(guid) => self.sa.handle_port_appeared(&view, *guid),
                SmEvent::PortVanished(guid) => self.sa.handle_port_vanished(&view, *guid),
                SmEvent::Trap(report) => self.sa.handle_trap(&view, report),
                SmEvent::StateChanged(_) => {}
            }
            self.events.push(event);
        }
    }

    /// Answers what the SA was asked; a manager that does not serve keeps silent.
    fn answer_requests(&mut self, now: Instant, port: &mut EndPort) -> bool {
        let busy = !self.requests.is_empty();
        let others: Vec<_> = self.sm.other_managers().collect();
        for (from, request) in self.requests.drain(..) {
            if !self.sm.is_serving() {
                continue;
            }
            let view = view_of(&self.sm, &others);
            if let Some(answer) = self.sa.handle(now, &view, &from, &request) {
                let taken = port.gsi().respond(now, self.agent, from, answer);
                self.unsent += u64::from(taken.is_err());
            }
        }
        busy
    }

    /// Lets the manager write what the SA granted, and sends the SA's reports.
    fn follow_sa(&mut self, now: Instant, port: &mut EndPort) {
        while let Some((mlid, members)) = self.sa.poll_group_change() {
            self.sm.set_group(mlid, members);
        }
        while let Some((guid, block, guids)) = self.sa.poll_guid_change() {
            self.sm.write_guids(guid, block, &guids);
        }
        while let Some(report) = self.sa.poll_report() {
            let message = Message::single(report.mad);
            let mads = port.gsi();
            let taken = mads.send_request(now, self.agent, report.to, message, REPORT_POLICY);
            self.unsent += u64::from(taken.is_err());
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let sa = self.sa.poll_timeout();
        self.sm.poll_timeout().into_iter().chain(sa).min()
    }
}

fn view_of<'a>(sm: &'a Sm, others: &'a [(Guid, ib_wire::smp::SmInfo)]) -> SubnetView<'a> {
    SubnetView {
        topology: sm.topology(),
        manager: sm.sm_info(),
        other_managers: others,
    }
}

/// Sets or clears PortInfo:CapabilityMask.IsSM, as the kernel does when a program opens or closes
/// `/dev/infiniband/issm`.
fn announce(hca: &mut dyn Hca, port: PortNum, is_sm: bool) -> Result<(), HcaError> {
    let bit = CapabilityMask::IS_SM.get();
    let change = PortModify {
        set_capabilities: if is_sm { bit } else { 0 },
        clear_capabilities: if is_sm { 0 } else { bit },
        ..PortModify::default()
    };
    hca.modify_port(port, &change)
}
