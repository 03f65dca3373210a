//! A host: an adapter, and what runs on its functions.

use emulated_hca::NodeId;
use hca_api::{Consumer, FunctionId, Hca, HcaError};
use ib_endpoint::{
    EndPort, EndPortConfig, EndPortError, EndPortEvent, MadAgent, MadAgentConfig, SmaError,
};
use ib_vtime::{Instant, Secret};
use ib_wire::PortNum;
use pf_context::{PfContext, VfTurn};
use subnet_lite::sm::SmEvent;
use subnet_lite::{OpenError, SubnetConfig, SubnetManager};
use vf_tunnel::VfId;

use super::adapters::Adapters;
use super::bare::BareNode;
use super::manager::{ManagerPlace, Sweeps};
use super::shared::SharedHost;
use super::socket::Sockets;
use super::software::Software;
use super::user::PortSoftware;

/// Who uses the adapter.
#[derive(Debug)]
enum Tenancy {
    /// One consumer, which has the physical function to itself.
    Alone(Box<dyn Consumer>),
    /// A PF, which gives VFs to consumers.
    Shared(Box<SharedHost>),
}

/// A host of a world.
#[derive(Debug)]
pub struct Host {
    node: NodeId,
    tenancy: Tenancy,
}

impl Host {
    /// Makes a host whose adapter one consumer has to itself.
    pub(super) const fn alone(node: NodeId, consumer: Box<dyn Consumer>) -> Self {
        Self {
            node,
            tenancy: Tenancy::Alone(consumer),
        }
    }

    pub(super) fn shared(node: NodeId, context: PfContext) -> Self {
        Self {
            node,
            tenancy: Tenancy::Shared(Box::new(SharedHost::new(context))),
        }
    }

    /// Returns the node that the host's adapter is.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the subnet manager that runs here.
    #[must_use]
    pub fn manager(&self) -> Option<&SubnetManager> {
        self.manager_place()?.get()
    }

    /// Returns the subnet events since the manager started; only the most recent are kept.
    #[must_use]
    pub fn subnet_events(&self) -> &[SmEvent] {
        self.manager_place().map_or(&[], ManagerPlace::events)
    }

    /// Returns `true` for a host on whose ports nothing runs; see [`World::add_bare_host`](super::World::add_bare_host).
    #[must_use]
    pub fn is_bare(&self) -> bool {
        let consumer = self.consumer(FunctionId::PF);
        consumer.is_some_and(|consumer| consumer.is::<BareNode>())
    }

    pub(super) fn bare_mut(&mut self) -> Option<&mut BareNode> {
        self.consumer_mut(FunctionId::PF)?.downcast_mut()
    }

    /// Returns the PF context, if the adapter is shared.
    #[must_use]
    pub fn context(&self) -> Option<&PfContext> {
        self.pf().map(|pf| pf.host.context())
    }

    /// Returns the VFs on which a guest's software runs, in the order of their numbers.
    pub fn guests(&self) -> impl Iterator<Item = VfId> {
        let consumers = self.pf().into_iter().flat_map(|pf| pf.host.consumers());
        consumers
            .filter(|(_, consumer)| consumer.is::<Software>())
            .map(|(vf, _)| vf)
    }

    /// Returns why a port could not be read anew after a change, if one could not: a fault of the emulated device.
    #[must_use]
    pub fn trouble(&self) -> Option<SmaError> {
        let trouble_of = |consumer: &dyn Consumer| consumer.downcast_ref::<Software>()?.trouble;
        match &self.tenancy {
            Tenancy::Alone(consumer) => trouble_of(consumer.as_ref()),
            Tenancy::Shared(pf) => {
                let guests = pf.host.consumers();
                let guests = guests.filter_map(|(_, consumer)| trouble_of(consumer));
                pf.trouble.into_iter().chain(guests).next()
            }
        }
    }

    /// Returns how long the sweeps of the subnet manager took that runs here.
    #[must_use]
    pub fn sweeps(&self) -> Sweeps {
        self.manager_place()
            .map_or_else(Sweeps::default, ManagerPlace::sweeps)
    }

    fn manager_place(&self) -> Option<&ManagerPlace> {
        match &self.tenancy {
            Tenancy::Alone(_) => Some(&self.software(FunctionId::PF)?.manager),
            Tenancy::Shared(pf) => Some(&pf.manager),
        }
    }

    pub(super) fn pf(&self) -> Option<&SharedHost> {
        match &self.tenancy {
            Tenancy::Alone(_) => None,
            Tenancy::Shared(pf) => Some(pf),
        }
    }

    pub(super) fn pf_mut(&mut self) -> Option<&mut SharedHost> {
        match &mut self.tenancy {
            Tenancy::Alone(_) => None,
            Tenancy::Shared(pf) => Some(pf),
        }
    }

    /// Returns what has a function to itself: a VF, or the physical function of an adapter that is not shared.
    pub(super) fn consumer(&self, function: FunctionId) -> Option<&dyn Consumer> {
        match &self.tenancy {
            Tenancy::Alone(consumer) => {
                (function == FunctionId::PF).then_some(consumer.as_ref() as _)
            }
            Tenancy::Shared(pf) => pf.host.consumer(VfId::new(function.0)?),
        }
    }

    /// Returns what has a function to itself, to be used.
    pub(super) fn consumer_mut(&mut self, function: FunctionId) -> Option<&mut dyn Consumer> {
        match &mut self.tenancy {
            Tenancy::Alone(consumer) => {
                (function == FunctionId::PF).then_some(consumer.as_mut() as _)
            }
            Tenancy::Shared(pf) => pf.host.consumer_mut(VfId::new(function.0)?),
        }
    }

    /// Returns the consumer of a function, or the one beside the agents of a bare node, if it is of a type.
    pub(super) fn consumer_as<C: Consumer>(&self, function: FunctionId) -> Option<&C> {
        let consumer = self.consumer(function)?;
        let bare = || {
            consumer
                .downcast_ref::<BareNode>()?
                .program()?
                .downcast_ref()
        };
        consumer.downcast_ref().or_else(bare)
    }

    /// Returns the same, to be used.
    pub(super) fn consumer_as_mut<C: Consumer>(&mut self, function: FunctionId) -> Option<&mut C> {
        let consumer = self.consumer_mut(function)?;
        if consumer.is::<C>() {
            return consumer.downcast_mut();
        }
        let bare = consumer.downcast_mut::<BareNode>()?;
        bare.program_mut().as_mut()?.downcast_mut()
    }

    fn software(&self, function: FunctionId) -> Option<&Software> {
        self.consumer(function)?.downcast_ref()
    }

    fn software_mut(&mut self, function: FunctionId) -> Option<&mut Software> {
        self.consumer_mut(function)?.downcast_mut()
    }

    /// Returns the PF of a shared adapter, if it is what the function is.
    fn own_of(&mut self, function: FunctionId) -> Option<&mut SharedHost> {
        self.pf_mut().filter(|_| function == FunctionId::PF)
    }

    /// Returns a port of a function.
    pub(super) fn port(&self, function: FunctionId, port: PortNum) -> Option<&dyn PortSoftware> {
        match self.pf().filter(|_| function == FunctionId::PF) {
            Some(pf) => {
                let ports = pf.host.context().ports();
                Some(ports.get(port.index().checked_sub(1)?)?.own())
            }
            None => self.software(function)?.port(port).map(|port| port as _),
        }
    }

    /// Returns a port of a function, to be used.
    pub(super) fn port_mut(
        &mut self,
        function: FunctionId,
        port: PortNum,
    ) -> Option<&mut dyn PortSoftware> {
        if self.own_of(function).is_some() {
            let port = self.pf_mut()?.host.context_mut().port_mut(port)?;
            return Some(port.own_mut());
        }
        let port = self.software_mut(function)?.port_mut(port)?;
        Some(port)
    }

    /// Returns the agents on a port's QP1, and on its QP0 if it is open.
    pub(super) fn agents_mut(
        &mut self,
        port: PortNum,
    ) -> Option<(&mut MadAgent, Option<&mut MadAgent>)> {
        if self.is_bare() {
            return self.bare_mut()?.agents(port);
        }
        Some(self.port_mut(FunctionId::PF, port)?.agents())
    }

    /// Takes a port's QP0, unless the software on the port has it already.
    pub(super) fn open_smi(
        &mut self,
        hca: &mut dyn Hca,
        port: PortNum,
        config: MadAgentConfig,
    ) -> Result<(), HcaError> {
        if let Some(bare) = self.bare_mut() {
            return bare.open_smi(hca, port, config);
        }
        let software = self.port_mut(FunctionId::PF, port);
        let software = software.ok_or(HcaError::InvalidPort)?;
        software.open_smi(hca, config).map(|_| ())
    }

    pub(super) fn poll_event(
        &mut self,
        function: FunctionId,
        port: PortNum,
    ) -> Option<EndPortEvent> {
        match self.own_of(function) {
            Some(pf) => pf.poll_event(port),
            None => self.software_mut(function)?.poll_event(port),
        }
    }

    pub(super) fn sockets(&self, function: FunctionId) -> Option<&Sockets> {
        match self.pf().filter(|_| function == FunctionId::PF) {
            Some(pf) => Some(&pf.sockets),
            None => Some(&self.software(function)?.sockets),
        }
    }

    pub(super) fn sockets_mut(&mut self, function: FunctionId) -> Option<&mut Sockets> {
        if self.own_of(function).is_some() {
            return Some(&mut self.pf_mut()?.sockets);
        }
        Some(&mut self.software_mut(function)?.sockets)
    }

    pub(super) fn start_manager(
        &mut self,
        adapters: &mut Adapters,
        port: PortNum,
        config: SubnetConfig,
        secret: Secret,
    ) -> Result<(), OpenError> {
        self.stop_manager(adapters)?;
        let mut hca = adapters.function(self.node, FunctionId::PF)?;
        let (gsi, manager) = self
            .gsi_and_manager(port)
            .ok_or(OpenError::Hca(HcaError::InvalidPort))?;
        manager.start(&mut hca, gsi, port, config, secret)
    }

    pub(super) fn stop_manager(&mut self, adapters: &mut Adapters) -> Result<(), HcaError> {
        let mut hca = adapters.function(self.node, FunctionId::PF)?;
        let port = self.manager_place().and_then(ManagerPlace::port);
        match port.and_then(|port| self.gsi_and_manager(port)) {
            Some((gsi, manager)) => manager.stop(&mut hca, gsi),
            None => Ok(()),
        }
    }

    /// Asks the subnet manager that runs here for a heavy sweep. Returns `false` if there is none.
    pub(super) fn request_sweep(&mut self, now: Instant) -> bool {
        let port = self.manager_place().and_then(ManagerPlace::port);
        let place = port.and_then(|port| self.gsi_and_manager(port));
        place.is_some_and(|(_, manager)| manager.request_sweep(now))
    }

    /// Returns the agent on a port's QP1, and the manager that may use it.
    pub(super) fn gsi_and_manager(
        &mut self,
        port: PortNum,
    ) -> Option<(&mut MadAgent, &mut ManagerPlace)> {
        match &mut self.tenancy {
            Tenancy::Alone(consumer) => consumer.downcast_mut::<Software>()?.gsi_and_manager(port),
            Tenancy::Shared(pf) => {
                let own = pf.host.context_mut().port_mut(port)?.own_mut();
                Some((own.gsi(), &mut pf.manager))
            }
        }
    }

    /// Lets what runs on a function do what is due, until `is_over`.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        adapters: &mut Adapters,
        function: FunctionId,
        is_over: &mut dyn FnMut() -> bool,
    ) -> VfTurn {
        if let (Tenancy::Shared(pf), Some(vf)) = (&mut self.tenancy, VfId::new(function.0)) {
            let mut adapter = adapters.of(self.node);
            return pf.host.poll_vf(now, &mut adapter, vf, is_over);
        }
        let Ok(mut hca) = adapters.function(self.node, function) else {
            return VfTurn::default();
        };
        let has_more = match &mut self.tenancy {
            Tenancy::Alone(consumer) => consumer.take_turn(now, &mut hca, is_over),
            Tenancy::Shared(pf) => pf.poll(now, &mut hca, is_over),
        };
        VfTurn {
            has_more,
            reset: None,
        }
    }

    /// Returns when to poll what runs on a function at the latest.
    pub(super) fn poll_timeout(&self, function: FunctionId) -> Option<Instant> {
        match self.pf().filter(|_| function == FunctionId::PF) {
            Some(pf) => pf.poll_timeout(),
            None => self.consumer(function)?.poll_timeout(),
        }
    }
}

/// Starts the software of a host that has its adapter to itself: an [`EndPort`] on each port.
pub(super) fn start_software(
    now: Instant,
    adapters: &mut Adapters,
    node: NodeId,
    secret: Secret,
) -> Result<Software, EndPortError> {
    let mut hca = adapters.function(node, FunctionId::PF)?;
    let mut secrets = secret.numbers();
    let ports = (1..=hca.attributes().num_ports).map(|port| {
        let secret = secrets.secret();
        EndPort::open(now, &mut hca, EndPortConfig::host(PortNum(port), secret))
    });
    Ok(Software::new(ports.collect::<Result<_, _>>()?))
}
