//! MADs that the owner of the machines carries itself.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use hca_api::{Hca, HcaError};
use ib_wire::PortNum;
use ib_wire::mad::Mad;

use crate::{MadAddress, MadTransport};

/// A [`MadTransport`] whose other end is the program: what the machines send waits to be taken, and
/// what the program delivers waits to be received. For whoever shares a special QP among several.
#[derive(Debug)]
pub struct QueuedMads {
    port: PortNum,
    depth: usize,
    sent: VecDeque<(MadAddress, Mad)>,
    delivered: VecDeque<(MadAddress, Mad)>,
    overrun: u64,
}

impl QueuedMads {
    /// Two empty queues of so many MADs each.
    #[must_use]
    pub const fn new(port: PortNum, depth: usize) -> Self {
        Self {
            port,
            depth,
            sent: VecDeque::new(),
            delivered: VecDeque::new(),
            overrun: 0,
        }
    }

    /// The next MAD that the machines sent, and where to.
    pub fn take_sent(&mut self) -> Option<(MadAddress, Mad)> {
        self.sent.pop_front()
    }

    /// Delivers a MAD. One that finds the queue full is lost, as it would be on a QP without
    /// receives.
    pub fn deliver(&mut self, from: MadAddress, mad: Mad) {
        if self.delivered.len() < self.depth {
            self.delivered.push_back((from, mad));
        } else {
            self.overrun += 1;
        }
    }

    /// Delivered MADs that found the queue full.
    #[must_use]
    pub const fn overrun(&self) -> u64 {
        self.overrun
    }
}

impl MadTransport for QueuedMads {
    fn port(&self) -> PortNum {
        self.port
    }

    fn can_send(&self) -> bool {
        self.sent.len() < self.depth
    }

    fn send(&mut self, _: &mut dyn Hca, to: &MadAddress, mad: &Mad) -> Result<(), HcaError> {
        if !self.can_send() {
            return Err(HcaError::QueueFull);
        }
        self.sent.push_back((*to, *mad));
        Ok(())
    }

    fn poll(&mut self, _: &mut dyn Hca) -> Option<(MadAddress, Mad)> {
        self.delivered.pop_front()
    }

    fn arm(&self, _: &mut dyn Hca) -> bool {
        !self.delivered.is_empty()
    }

    fn close(self: Box<Self>, _: &mut dyn Hca) {}
}

#[cfg(test)]
mod tests {
    use ib_wire::Lid;

    use super::*;

    #[test]
    fn what_finds_the_queue_full_is_counted_and_lost() {
        let mut queue = QueuedMads::new(PortNum(1), 1);
        let from = MadAddress::gsi(Lid::new(1));
        queue.deliver(from, Mad::default());
        queue.deliver(from, Mad::default());
        assert_eq!(queue.delivered.len(), 1);
        assert_eq!(queue.overrun(), 1);
    }
}
