//! What runs on the functions of a world's adapters: anything that is a [`Consumer`].

use emulated_hca::NodeId;
use hca_api::{Consumer, Hca};
use ib_vtime::Instant;
use pf_context::PlaceError;
use vf_tunnel::VfId;

use super::bare::BareNode;
use super::{Host, HostFunction, HostId, World};
use crate::Slice;

impl World {
    /// Adds a host that has a node's adapter to itself, with what runs on it.
    pub fn add_host_of(&mut self, node: NodeId, consumer: Box<dyn Consumer>) -> HostId {
        self.admit(Host::alone(node, consumer))
    }

    /// Gives a VF on which nothing runs to a consumer.
    ///
    /// # Errors
    /// [`PlaceError`], also for a host that has no PF or is of another world.
    pub fn add_consumer(
        &mut self,
        host: HostId,
        vf: VfId,
        consumer: Box<dyn Consumer>,
    ) -> Result<HostFunction, PlaceError> {
        let pf = self.hosts.get_mut(host.0).and_then(Host::pf_mut);
        pf.ok_or(PlaceError::NoVf(vf))?.host.place(vf, consumer)?;
        self.wake(host.vf(vf));
        Ok(host.vf(vf))
    }

    /// Adds a consumer of the function of a bare host's adapter, beside the agents of programs.
    ///
    /// # Errors
    /// The consumer, if the host is not bare, or another one has the function.
    pub fn add_to_bare_host(
        &mut self,
        host: HostId,
        consumer: Box<dyn Consumer>,
    ) -> Result<HostFunction, Box<dyn Consumer>> {
        let bare = self.hosts.get_mut(host.0).and_then(Host::bare_mut);
        let free = bare
            .map(BareNode::program_mut)
            .filter(|program| program.is_none());
        let Some(program) = free else {
            return Err(consumer);
        };
        *program = Some(consumer);
        self.wake(host.pf());
        Ok(host.pf())
    }

    /// Returns what runs on a function: a VF, or the physical function of an adapter that is not shared. `None` if it is
    /// of another type.
    #[must_use]
    pub fn consumer<C: Consumer>(&self, at: impl Into<HostFunction>) -> Option<&C> {
        let at = at.into();
        self.hosts.get(at.host.0)?.consumer_as(at.function)
    }

    /// Returns what runs on a function, to be used without the function. `None` if it is of another type.
    pub fn consumer_mut<C: Consumer>(&mut self, at: impl Into<HostFunction>) -> Option<&mut C> {
        let at = at.into();
        self.hosts.get(at.host.0)?;
        self.wake(at);
        self.hosts[at.host.0].consumer_as_mut(at.function)
    }

    /// Carries out the reset of a VF for which what runs on it asks, if it does: when this returns, its queue pairs are gone, and
    /// nothing that they did reaches memory or answers peers from it.
    pub fn carry_out_reset(&mut self, at: HostFunction) {
        if self.hosts.get(at.host.0).is_some() {
            self.poll_function(at, &Slice::of_steps(1));
        }
    }

    /// Calls something with what runs on a function, and the function. What that makes of it comes with the next poll.
    /// `None` if it is of another type.
    pub fn with_consumer<C: Consumer, T>(
        &mut self,
        at: impl Into<HostFunction>,
        call: impl FnOnce(&mut C, &mut dyn Hca, Instant) -> T,
    ) -> Option<T> {
        let at = at.into();
        self.hosts.get(at.host.0)?;
        self.wake(at);
        let host = &mut self.hosts[at.host.0];
        let mut hca = self.adapters.function(host.node(), at.function).ok()?;
        let consumer = host.consumer_as_mut(at.function)?;
        Some(call(consumer, &mut hca, self.now))
    }
}
