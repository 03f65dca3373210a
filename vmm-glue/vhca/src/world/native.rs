//! VFs that programs of this process hold themselves.

use hca_api::Hca;
use ib_vtime::Instant;
use pf_context::PlaceError;
use vf_proxy::native::{VfPort, VirtualHca, VirtualHcaConfig, VirtualHcaEvent};
use vf_tunnel::VfId;

use super::{HostFunction, HostId, HostPortId, VfError, World};

impl World {
    /// Opens a VF on which nothing runs for a program of this process, which uses it by [`World::with_vf_port`], or by
    /// [`World::with_consumer`] as a [`VirtualHca`].
    ///
    /// # Errors
    /// [`VfError`]; nothing is left behind then.
    pub fn open_vf(
        &mut self,
        host: HostId,
        vf: VfId,
        config: VirtualHcaConfig,
    ) -> Result<HostFunction, VfError> {
        let at = host.vf(vf);
        let owner = self.hosts.get(host.0).ok_or(PlaceError::NoVf(vf))?;
        if owner.consumer(at.function).is_some() {
            return Err(VfError::InUse(vf));
        }
        let mut hca = self.adapters.function(owner.node(), at.function)?;
        let opened = VirtualHca::open(self.now, &mut hca, config)?;
        Ok(self.add_consumer(host, vf, Box::new(opened))?)
    }

    /// Calls something with a port of a VF that a program holds, the VF's function, and the time. Packets leave with the next
    /// poll. Returns `None` if no program holds the VF, or it has no such port.
    pub fn with_vf_port<T>(
        &mut self,
        at: HostPortId,
        call: impl FnOnce(&mut VfPort, &mut dyn Hca, Instant) -> T,
    ) -> Option<T> {
        let called = self.with_consumer(at.on(), |program: &mut VirtualHca, hca, now| {
            Some(call(program.port_mut(at.port)?, hca, now))
        });
        called.flatten()
    }

    /// Returns the next event of a VF that a program holds. To be polled after each run.
    #[must_use]
    pub fn poll_vf_event(&mut self, at: HostFunction) -> Option<VirtualHcaEvent> {
        let consumer = self.hosts.get_mut(at.host.0)?.consumer_mut(at.function)?;
        consumer.downcast_mut::<VirtualHca>()?.poll_event()
    }
}

#[cfg(test)]
mod tests {
    use emulated_hca::Topology;
    use hca_api::PortChange;
    use ib_vtime::Duration;
    use ib_wire::Guid;
    use pf_context::context::PfConfig;
    use subnet_lite::SubnetConfig;
    use vf_proxy::native::VfPortEvent;

    use super::*;
    use crate::world::{Outcome, vf_spec};

    #[test]
    fn a_vf_that_a_program_holds_comes_up_and_is_nobody_elses() {
        let (fabric, built) = Topology::two_switches(1).build(1);
        let mut world = World::new(fabric, 1);
        let manager = world.add_host(built.hcas[0]).unwrap();
        let config = SubnetConfig::default();
        world.start_manager(manager.port(1), config).unwrap();
        let host = world.add_pf_host(built.hcas[1], &PfConfig::new(1)).unwrap();
        let [vf, other] = [1, 2].map(|n| VfId::new(n).unwrap());
        world.add_idle_vf(host, vf, vf_spec(Guid::new(7))).unwrap();
        let config = VirtualHcaConfig::new(1);
        let at = world.open_vf(host, vf, config).unwrap();
        assert_eq!(world.open_vf(host, vf, config), Err(VfError::InUse(vf)));
        assert!(world.open_vf(host, other, config).is_err());
        let up = world.run_until(Duration::from_secs(10), |world| {
            let events = core::iter::from_fn(|| world.poll_vf_event(at));
            events.into_iter().any(|event| {
                matches!(event, VirtualHcaEvent::Port { event: VfPortEvent::Changed(change), .. }
                    if change.contains(PortChange::ACTIVE))
            })
        });
        assert_eq!(up, Outcome::Reached);
        let gid = world.with_vf_port(at.port(1), |port, _, _| port.gid());
        assert!(gid.flatten().is_some());
        for nothing in [at.port(2), manager.port(1)] {
            assert_eq!(world.with_vf_port(nothing, |_, _, _| ()), None);
        }
    }
}
