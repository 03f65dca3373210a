//! A subnet manager that runs on a port of a host.

use hca_api::{Hca, HcaError, HcaEvent};
use ib_endpoint::{EndPortEvent, MadAgent};
use ib_vtime::{Duration, Instant, Secret};
use ib_wire::PortNum;
use subnet_lite::sm::SmEvent;
use subnet_lite::{OpenError, SubnetConfig, SubnetManager};

/// Events of the subnet that are kept; when there are more, the older half goes.
const MAX_EVENTS: usize = 4096;

/// How long the heavy sweeps of a subnet manager took that were completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweeps {
    /// All of them together.
    pub time: Duration,
    /// The last one, and when it ended.
    pub last: Option<(Duration, Instant)>,
    /// When the one under way began.
    begun: Option<Instant>,
    /// Those that were begun.
    count: u64,
}

/// The place of a subnet manager on a host: one, or none.
#[derive(Debug, Default)]
pub(super) struct ManagerPlace {
    manager: Option<Box<SubnetManager>>,
    /// What happened in the subnet lately, since the manager was started at most.
    events: Vec<SmEvent>,
    sweeps: Sweeps,
}

impl Sweeps {
    /// Notes that so many were begun until now.
    const fn begin(&mut self, now: Instant, count: u64) {
        if self.count != count {
            self.count = count;
            self.begun = Some(now);
        }
    }

    /// Notes that one is complete.
    fn end(&mut self, now: Instant) {
        if let Some(begun) = self.begun.take() {
            let time = now - begun;
            self.time += time;
            self.last = Some((time, now));
        }
    }
}

impl ManagerPlace {
    pub(super) fn start(
        &mut self,
        hca: &mut dyn Hca,
        gsi: &mut MadAgent,
        port: PortNum,
        config: SubnetConfig,
        secret: Secret,
    ) -> Result<(), OpenError> {
        let manager = SubnetManager::open(hca, gsi, port, config, secret)?;
        self.manager = Some(Box::new(manager));
        self.events.clear();
        self.sweeps = Sweeps::default();
        Ok(())
    }

    pub(super) fn stop(&mut self, hca: &mut dyn Hca, gsi: &mut MadAgent) -> Result<(), HcaError> {
        match self.manager.take() {
            Some(manager) => manager.close(hca, gsi),
            None => Ok(()),
        }
    }

    pub(super) fn get(&self) -> Option<&SubnetManager> {
        self.manager.as_deref()
    }

    /// The agent on the QP0 of the manager that runs on a port.
    pub(super) fn smi(&mut self, port: PortNum) -> Option<&mut MadAgent> {
        let manager = self.manager.as_deref_mut();
        manager.filter(|m| m.port() == port).map(SubnetManager::smi)
    }

    /// Asks the manager for a heavy sweep. Returns `false` if there is none.
    pub(super) fn request_sweep(&mut self, now: Instant) -> bool {
        let manager = self.manager.as_deref_mut();
        manager.map(|manager| manager.request_sweep(now)).is_some()
    }

    /// The port of the manager that runs.
    pub(super) fn port(&self) -> Option<PortNum> {
        self.manager.as_deref().map(SubnetManager::port)
    }

    pub(super) fn events(&self) -> &[SmEvent] {
        &self.events
    }

    pub(super) const fn sweeps(&self) -> Sweeps {
        self.sweeps
    }

    pub(super) fn handle_hca_event(&mut self, now: Instant, event: &HcaEvent) {
        if let Some(manager) = &mut self.manager {
            manager.handle_hca_event(now, event);
        }
    }

    /// Takes an event of the software on the manager's port. Gives back what is not the manager's.
    pub(super) fn handle_port_event(
        &mut self,
        now: Instant,
        gsi: &mut MadAgent,
        event: EndPortEvent,
    ) -> Option<EndPortEvent> {
        match (event, &mut self.manager) {
            (EndPortEvent::Gsi(event), Some(manager)) => {
                manager.handle_event(now, gsi, event).map(EndPortEvent::Gsi)
            }
            (event, _) => Some(event),
        }
    }

    /// Lets the manager do what is due, until `is_over`. Returns `true` if there may be more.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        gsi: &mut MadAgent,
        is_over: &mut dyn FnMut() -> bool,
    ) -> bool {
        let Some(manager) = &mut self.manager else {
            return false;
        };
        let mut has_more = manager.poll(now, hca, gsi);
        while has_more && !is_over() {
            has_more = manager.poll(now, hca, gsi);
        }
        self.sweeps.begin(now, manager.sm().stats().heavy_sweeps);
        while let Some(event) = manager.poll_event() {
            if event == SmEvent::SubnetUp {
                self.sweeps.end(now);
            }
            self.events.push(event);
        }
        if self.events.len() > MAX_EVENTS {
            self.events.drain(..MAX_EVENTS / 2);
        }
        has_more
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.manager
            .as_deref()
            .and_then(SubnetManager::poll_timeout)
    }
}
