//! The software on a function that has its ports to itself: a plain host, or a guest on a VF.

use std::collections::VecDeque;

use hca_api::{Hca, HcaEvent};
use ib_endpoint::{EndPort, EndPortEvent, MadAgent, SmaError};
use ib_vtime::Instant;
use ib_wire::PortNum;

use super::manager::ManagerPlace;
use super::socket::Sockets;
use crate::Slice;

/// What runs on a function: an [`EndPort`] on each port, sockets, perhaps a subnet manager.
#[derive(Debug)]
pub(super) struct Software {
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

    pub(super) fn port(&self, port: PortNum) -> Option<&EndPort> {
        self.ports.get(port.index().checked_sub(1)?)
    }

    pub(super) fn port_mut(&mut self, port: PortNum) -> Option<&mut EndPort> {
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

    pub(super) fn poll_event(&mut self, port: PortNum) -> Option<EndPortEvent> {
        self.events
            .get_mut(port.index().checked_sub(1)?)?
            .pop_front()
    }

    /// Does what is due, until the slice is over. Whether there may be more.
    pub(super) fn poll(&mut self, now: Instant, hca: &mut dyn Hca, slice: &mut Slice) -> bool {
        while let Some(event) = hca.poll_event() {
            self.take_event(now, hca, &event);
        }
        let mut has_more = false;
        for port in &mut self.ports {
            let mut is_busy = port.poll(now, hca);
            while is_busy && !slice.is_over() {
                is_busy = port.poll(now, hca);
            }
            has_more |= is_busy;
        }
        self.collect_events(now);
        self.sockets.poll(hca);
        let managed = self.manager.port();
        if let Some((gsi, manager)) = managed.and_then(|port| self.gsi_and_manager(port)) {
            has_more |= manager.poll(now, hca, gsi, slice);
        }
        has_more
    }

    fn take_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        for port in &mut self.ports {
            if let Err(error) = port.handle_hca_event(now, hca, event) {
                self.trouble = Some(error);
            }
        }
        self.manager.handle_hca_event(now, event);
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

    /// When to poll at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter_map(EndPort::poll_timeout);
        ports.chain(self.manager.poll_timeout()).min()
    }

    /// Gives all that it has on the adapter back.
    pub(super) fn close(mut self, hca: &mut dyn Hca) {
        self.sockets.clear(hca);
        for port in self.ports {
            port.close(hca);
        }
    }
}
