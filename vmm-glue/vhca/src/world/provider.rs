//! A world as the provider of a VMM's devices.

use hca_api::{AddressSpace, Hca};
use ib_vtime::Instant;
use vf_proxy::PciDevice;
use vf_tunnel::VfId;

use super::run::TURN;
use super::{Host, HostFunction, World};
use crate::device::Provider;
use crate::{Driven, Slice};

impl Provider for World {
    type At = HostFunction;

    fn now(&self) -> Instant {
        self.now
    }

    fn device(&mut self, at: HostFunction) -> Option<&mut PciDevice> {
        let consumer = self.hosts.get_mut(at.host.0)?.consumer_mut(at.function)?;
        consumer.downcast_mut()
    }

    fn lend(
        &mut self,
        now: Instant,
        at: HostFunction,
        call: &mut dyn FnMut(&mut PciDevice, &mut dyn Hca),
    ) -> bool {
        self.now = self.now.max(now);
        self.with_consumer(at, |device: &mut PciDevice, hca, _| call(device, hca))
            .is_some()
    }

    fn take_turn(&mut self, now: Instant, at: HostFunction) {
        self.now = self.now.max(now);
        if Provider::device(self, at).is_none() {
            return;
        }
        self.woken.retain(|woken| *woken != at);
        self.poll_function(at, &Slice::of(TURN));
        // For what is left of its work it waits in the line, at which only a poll looks.
        if !self.turns.is_empty() {
            self.wake(at);
        }
        // What the turn has brought others on the adapter is looked at with the next poll.
        let node = self.hosts[at.host.0].node();
        while let Some(function) = self.fabric.poll_ready(node) {
            let host = at.host;
            self.wake(HostFunction { host, function });
        }
    }

    fn poll_for(&mut self, now: Instant, slice: &mut Slice) {
        Self::poll_for(self, self.now.max(now), slice);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Driven::poll_timeout(self)
    }

    fn poll_changed(&mut self) -> Option<HostFunction> {
        let changed = self.changed.pop_first();
        changed.or_else(|| self.interrupting.pop_first())
    }

    fn detach(&mut self, at: HostFunction) -> Option<Box<dyn AddressSpace>> {
        Provider::device(self, at)?;
        let vf = VfId::new(at.function.0)?;
        self.hosts.get(at.host.0).and_then(Host::pf)?;
        self.remove_vf(at.host, vf).ok()
    }
}
