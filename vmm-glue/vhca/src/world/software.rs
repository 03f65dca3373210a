//! The software on a function that has its ports to itself: a plain host, or a guest on a VF.

use std::collections::VecDeque;

use hca_api::{Consumer, Hca, HcaEvent};
use ib_endpoint::{EndPort, EndPortEvent, MadAgent, SmaError};
use ib_vtime::Instant;
use ib_wire::PortNum;

use super::manager::ManagerPlace;
use super::socket::Sockets;

/// What runs on a function: an [`EndPort`] on each port, sockets, perhaps a subnet manager.
#[derive(Debug)]
pub struct Software {
    ports: Vec<EndPort>,
    /// Events of the ports that wait to be pulled, in the order of the ports.
    events: Vec<VecDeque<EndPortEvent>>,
    pub(super) sockets: Sockets,
    pub(super) manager: ManagerPlace,
    pub(super) trouble: Option<SmaError>,
}

impl Software {
    pub(super) fn new(ports: Vec<EndPort>) -> Self {
        Self {
            events: ports.iter().map(|_| VecDeque::new()).collect(),
            ports,
            sockets: Sockets::default(),
            manager: ManagerPlace::default(),
            trouble: None,
        }
    }

    /// Returns a port.
    #[must_use]
    pub fn port(&self, port: PortNum) -> Option<&EndPort> {
        self.ports.get(port.index().checked_sub(1)?)
    }

    /// Returns a port, to be used.
    pub fn port_mut(&mut self, port: PortNum) -> Option<&mut EndPort> {
        self.ports.get_mut(port.index().checked_sub(1)?)
    }

    /// The agent on a port's QP1, and the manager that may use it.
    pub(super) fn gsi_and_manager(
        &mut self,
        port: PortNum,
    ) -> Option<(&mut MadAgent, &mut ManagerPlace)> {
        let port = self.ports.get_mut(port.index().checked_sub(1)?)?;
        Some((port.gsi(), &mut self.manager))
    }

    /// Returns the next event of a port that no subnet manager took. To be polled after each turn.
    pub fn poll_event(&mut self, port: PortNum) -> Option<EndPortEvent> {
        self.events
            .get_mut(port.index().checked_sub(1)?)?
            .pop_front()
    }

    /// Pulls the ports' events: requests to the SA go to the manager, everything else waits for the
    /// function's user.
    fn collect_events(&mut self, now: Instant) {
        let managed = self.manager.port();
        for (port, events) in self.ports.iter_mut().zip(&mut self.events) {
            while let Some(event) = port.poll_event() {
                let left = if managed == Some(port.port()) {
                    self.manager.handle_port_event(now, port.gsi(), event)
                } else {
                    Some(event)
                };
                events.extend(left);
            }
        }
    }

    /// Gives all that it has on the adapter back.
    pub(super) fn close(&mut self, hca: &mut dyn Hca) {
        self.sockets.clear(hca);
        for port in self.ports.drain(..) {
            port.close(hca);
        }
    }
}

impl Consumer for Software {
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        for port in &mut self.ports {
            if let Err(error) = port.handle_hca_event(now, hca, event) {
                self.trouble = Some(error);
            }
        }
        self.manager.handle_hca_event(now, event);
    }

    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        self.take_turn(now, hca, &mut || true)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter_map(EndPort::poll_timeout);
        ports.chain(self.manager.poll_timeout()).min()
    }

    fn take_turn(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        is_over: &mut dyn FnMut() -> bool,
    ) -> bool {
        while let Some(event) = hca.poll_event() {
            self.handle_hca_event(now, hca, &event);
        }
        let mut has_more = false;
        for port in &mut self.ports {
            let mut is_busy = port.poll(now, hca);
            while is_busy && !is_over() {
                is_busy = port.poll(now, hca);
            }
            has_more |= is_busy;
        }
        self.collect_events(now);
        self.sockets.poll(hca);
        let managed = self.manager.port();
        if let Some((gsi, manager)) = managed.and_then(|port| self.gsi_and_manager(port)) {
            has_more |= manager.poll(now, hca, gsi, is_over);
        }
        has_more
    }
}
