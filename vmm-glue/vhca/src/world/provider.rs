//! A world as the provider of a VMM's devices.

#[cfg(feature = "trunk")]
use std::os::fd::{AsFd, BorrowedFd};

use hca_api::{AddressSpace, Hca};
use ib_vtime::Instant;
use vf_pci::PciDevice;
use vf_tunnel::VfId;

use super::run::TURN;
use super::{Host, HostFunction, World};
use crate::device::Provider;
use crate::{Driven, Slice};

impl World {
    /// Returns `true` if a function has no turns, by [`Provider::hold`].
    #[must_use]
    pub fn is_held(&self, at: HostFunction) -> bool {
        self.held.contains(&at)
    }
}

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
        let slice = Slice::of(TURN);
        self.set_pace(&slice);
        self.poll_function(at, &slice);
        // The function was lent, so the fabric has its adapter to serve. That is done at once unless there is more.
        if !self.adapters.fabric.is_behind(now) {
            self.adapters.fabric.poll(now);
            self.record_taps();
        }
        // What the turn has brought others is looked at with the next poll.
        self.is_unfinished |= self.line_up_stirred(vec![at.host]) | !self.turns.is_empty();
        while let Some(node) = self.adapters.fabric.poll_port0_ready() {
            self.wake_switch(node);
            self.is_unfinished = true;
        }
    }

    fn poll_for(&mut self, now: Instant, slice: &mut Slice) {
        Self::poll_for(self, now, slice);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Driven::poll_timeout(self)
    }

    fn poll_changed(&mut self) -> Option<HostFunction> {
        let changed = self.changed.pop_first();
        changed.or_else(|| self.interrupting.pop_first())
    }

    fn hold(&mut self, at: HostFunction, held: bool) {
        if Provider::device(self, at).is_none() {
            return;
        }
        let node = self.hosts[at.host.0].node();
        if let Some(adapter) = self.adapters.fabric.device_mut(node) {
            adapter.hold(at.function, held);
        }
        if held {
            self.held.insert(at);
        } else {
            self.held.remove(&at);
            self.wake(at);
        }
    }

    #[cfg(feature = "trunk")]
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.trunks().map(AsFd::as_fd)
    }

    fn detach(&mut self, at: HostFunction) -> Option<Box<dyn AddressSpace>> {
        Provider::device(self, at)?;
        let vf = VfId::new(at.function.0)?;
        self.hosts.get(at.host.0).and_then(Host::pf)?;
        self.remove_vf(at.host, vf).ok()
    }
}
