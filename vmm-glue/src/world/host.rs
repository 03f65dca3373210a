//! A host: the software on the ports of its adapter.

use std::collections::VecDeque;

use emulated_hca::NodeId;
use hca_api::{Hca, HcaError, HcaEvent};
use ib_endpoint::{
    Datagram, DatagramQp, DatagramQpSpec, EndPort, EndPortConfig, EndPortError, EndPortEvent,
    SmaError,
};
use ib_vtime::Instant;
use ib_wire::PortNum;

use super::Manager;

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
    pub(super) manager: Option<Manager>,
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
        self.collect_events();
        for socket in &mut self.sockets {
            socket.poll(hca);
        }
        let managed = self.manager.as_mut().is_some_and(|manager| {
            let port = self.ports.get_mut(manager.port().index() - 1);
            port.is_some_and(|port| manager.poll(now, hca, port))
        });
        managed || self.mads_passed() != before
    }

    /// Pulls the ports' events: requests to the SA go to the manager, everything else waits for the
    /// host's user.
    fn collect_events(&mut self) {
        for (port, events) in self.ports.iter_mut().zip(&mut self.events) {
            while let Some(event) = port.poll_event() {
                let manager = self.manager.as_mut();
                let manager = manager.filter(|manager| manager.port() == port.port());
                let left = match (event, manager) {
                    (EndPortEvent::Gsi(event), Some(manager)) => {
                        manager.take_event(event).map(EndPortEvent::Gsi)
                    }
                    (event, _) => Some(event),
                };
                events.extend(left);
            }
        }
    }

    fn take_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        for port in &mut self.ports {
            if let Err(error) = port.handle_hca_event(now, hca, event) {
                self.trouble = Some(error);
            }
        }
    }

    fn mads_passed(&mut self) -> u64 {
        let passed = |port: &mut EndPort| {
            let counters = port.gsi().counters();
            counters.received + counters.sent
        };
        self.ports.iter_mut().map(passed).sum()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter_map(EndPort::poll_timeout);
        let manager = self.manager.as_ref().and_then(Manager::poll_timeout);
        ports.chain(manager).min()
    }
}
