//! A host: the software on the ports of its adapter.

use std::collections::VecDeque;

use emulated_hca::NodeId;
use hca_api::{Hca, HcaError, HcaEvent};
use ib_endpoint::{
    Datagram, DatagramQp, DatagramQpSpec, EndPort, EndPortConfig, EndPortError, EndPortEvent,
    MadCounters, SmaError,
};
use ib_vtime::Instant;
use ib_wire::PortNum;
use subnet_lite::sm::SmEvent;
use subnet_lite::{OpenError, SubnetConfig, SubnetManager};

/// A datagram queue pair and what it received.
#[derive(Debug)]
pub struct Socket {
    pub(super) qp: DatagramQp,
    received: VecDeque<Datagram>,
}

impl Socket {
    pub(super) fn open(hca: &mut dyn Hca, spec: DatagramQpSpec) -> Result<Self, HcaError> {
        Ok(Self {
            qp: DatagramQp::open(hca, spec)?,
            received: VecDeque::new(),
        })
    }

    /// The queue pair.
    #[must_use]
    pub const fn qp(&self) -> &DatagramQp {
        &self.qp
    }

    /// The next received message.
    pub fn receive(&mut self) -> Option<Datagram> {
        self.received.pop_front()
    }

    fn poll(&mut self, hca: &mut dyn Hca) {
        while let Some(datagram) = self.qp.poll(hca) {
            self.received.push_back(datagram);
        }
    }
}

/// A host of a world.
#[derive(Debug)]
pub struct Host {
    node: NodeId,
    pub(super) ports: Vec<EndPort>,
    /// Events of the ports that wait to be pulled, in the order of the ports.
    pub(super) events: Vec<VecDeque<EndPortEvent>>,
    pub(super) sockets: Vec<Socket>,
    manager: Option<SubnetManager>,
    /// What happened in the subnet since the manager was started.
    subnet_events: Vec<SmEvent>,
    trouble: Option<SmaError>,
}

impl Host {
    pub(super) fn start(
        now: Instant,
        node: NodeId,
        hca: &mut dyn Hca,
        seed: u64,
    ) -> Result<Self, EndPortError> {
        let ports = (1..=hca.attributes().num_ports)
            .map(|port| {
                let seed = seed.wrapping_add(u64::from(port));
                EndPort::open(now, hca, EndPortConfig::host(PortNum(port), seed))
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            node,
            events: ports.iter().map(|_| VecDeque::new()).collect(),
            ports,
            sockets: Vec::new(),
            manager: None,
            subnet_events: Vec::new(),
            trouble: None,
        })
    }

    /// The node that the host's adapter is.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// The software of all ports, in the order of the ports.
    #[must_use]
    pub fn ports(&self) -> &[EndPort] {
        &self.ports
    }

    /// The subnet manager that runs here.
    #[must_use]
    pub const fn manager(&self) -> Option<&SubnetManager> {
        self.manager.as_ref()
    }

    /// What the subnet manager has told of the subnet since it was started.
    #[must_use]
    pub fn subnet_events(&self) -> &[SmEvent] {
        &self.subnet_events
    }

    pub(super) fn start_manager(
        &mut self,
        hca: &mut dyn Hca,
        port: PortNum,
        config: SubnetConfig,
        seed: u64,
    ) -> Result<(), OpenError> {
        self.stop_manager(hca)?;
        let gsi = self.ports[port.index() - 1].gsi();
        self.manager = Some(SubnetManager::open(hca, gsi, port, config, seed)?);
        self.subnet_events.clear();
        Ok(())
    }

    pub(super) fn stop_manager(&mut self, hca: &mut dyn Hca) -> Result<(), HcaError> {
        let Some(manager) = self.manager.take() else {
            return Ok(());
        };
        let gsi = self.ports[manager.port().index() - 1].gsi();
        manager.close(hca, gsi)
    }

    /// Why a port could not be read anew after a change, if one could not: a fault of the emulated
    /// device.
    #[must_use]
    pub const fn trouble(&self) -> Option<SmaError> {
        self.trouble
    }

    /// Does everything that is due. Whether a MAD was received or sent, so that there may be more to
    /// do at once.
    pub(super) fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        let before = self.mads_passed();
        while let Some(event) = hca.poll_event() {
            self.take_event(now, hca, &event);
        }
        for port in &mut self.ports {
            while port.poll(now, hca) {}
        }
        self.collect_events(now);
        for socket in &mut self.sockets {
            socket.poll(hca);
        }
        if let Some(manager) = &mut self.manager {
            let gsi = self.ports[manager.port().index() - 1].gsi();
            while manager.poll(now, hca, gsi) {}
            let events = std::iter::from_fn(|| manager.poll_event());
            self.subnet_events.extend(events);
        }
        self.mads_passed() != before
    }

    fn take_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        for port in &mut self.ports {
            if let Err(error) = port.handle_hca_event(now, hca, event) {
                self.trouble = Some(error);
            }
        }
        if let Some(manager) = &mut self.manager {
            manager.handle_hca_event(now, event);
        }
    }

    /// Pulls the ports' events: requests to the SA go to the manager, everything else waits for the
    /// host's user.
    fn collect_events(&mut self, now: Instant) {
        for (port, events) in self.ports.iter_mut().zip(&mut self.events) {
            while let Some(event) = port.poll_event() {
                let manager = self.manager.as_mut();
                let manager = manager.filter(|manager| manager.port() == port.port());
                let left = match (event, manager) {
                    (EndPortEvent::Gsi(event), Some(manager)) => manager
                        .handle_event(now, port.gsi(), event)
                        .map(EndPortEvent::Gsi),
                    (event, _) => Some(event),
                };
                events.extend(left);
            }
        }
    }

    fn mads_passed(&mut self) -> u64 {
        let passed = |counters: &MadCounters| counters.received + counters.sent;
        let by_manager = self.manager.as_ref().map(|m| passed(m.sm().mad_counters()));
        let by_ports: u64 = self
            .ports
            .iter_mut()
            .map(|p| passed(p.gsi().counters()))
            .sum();
        by_ports + by_manager.unwrap_or(0)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter_map(EndPort::poll_timeout);
        let manager = self.manager.as_ref().and_then(SubnetManager::poll_timeout);
        ports.chain(manager).min()
    }
}
