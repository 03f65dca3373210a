//! Datagram sockets: UD queue pairs whose messages the world collects.

use std::collections::{BTreeMap, VecDeque};

use hca_api::{Hca, HcaError};
use ib_endpoint::{Datagram, DatagramQp, DatagramQpSpec};

/// A datagram queue pair and what it received.
#[derive(Debug)]
pub struct Socket {
    pub(super) qp: DatagramQp,
    received: VecDeque<Datagram>,
}

impl Socket {
    /// The queue pair.
    #[must_use]
    pub const fn qp(&self) -> &DatagramQp {
        &self.qp
    }

    /// The next received message.
    pub fn receive(&mut self) -> Option<Datagram> {
        self.received.pop_front()
    }

    /// Takes what arrived, and asks to be told when there is more.
    fn poll(&mut self, hca: &mut dyn Hca) {
        loop {
            while let Some(datagram) = self.qp.poll(hca) {
                self.received.push_back(datagram);
            }
            if !self.qp.arm(hca) {
                return;
            }
        }
    }
}

/// The sockets of a function. A serial number is used once.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    open: BTreeMap<u32, Socket>,
    next: u32,
}

impl Sockets {
    pub(super) fn open(
        &mut self,
        hca: &mut dyn Hca,
        spec: DatagramQpSpec,
    ) -> Result<u32, HcaError> {
        let socket = Socket {
            qp: DatagramQp::open(hca, spec)?,
            received: VecDeque::new(),
        };
        let serial = self.next;
        self.next += 1;
        self.open.insert(serial, socket);
        Ok(serial)
    }

    pub(super) fn get(&self, serial: u32) -> Option<&Socket> {
        self.open.get(&serial)
    }

    pub(super) fn get_mut(&mut self, serial: u32) -> Option<&mut Socket> {
        self.open.get_mut(&serial)
    }

    pub(super) fn poll(&mut self, hca: &mut dyn Hca) {
        for socket in self.open.values_mut() {
            socket.poll(hca);
        }
    }

    pub(super) fn close(&mut self, hca: &mut dyn Hca, serial: u32) {
        if let Some(socket) = self.open.remove(&serial) {
            socket.qp.close(hca);
        }
    }

    /// Closes all.
    pub(super) fn clear(&mut self, hca: &mut dyn Hca) {
        for socket in core::mem::take(&mut self.open).into_values() {
            socket.qp.close(hca);
        }
    }
}
