//! A host: an adapter, and the software on its functions.

use emulated_hca::{Fabric, NodeId};
use hca_api::{FunctionId, HcaError};
use ib_endpoint::{EndPort, EndPortConfig, EndPortError, EndPortEvent, MadAgent, SmaError};
use ib_vtime::Instant;
use ib_wire::PortNum;
use pf_context::PfContext;
use subnet_lite::sm::SmEvent;
use subnet_lite::{OpenError, SubnetConfig, SubnetManager};
use vf_tunnel::VfId;

use super::devices::device_of;
use super::function_of;
use super::manager::{ManagerPlace, Sweeps};
use super::pf_host::PfHost;
use super::socket::Sockets;
use super::software::Software;
use super::user::PortSoftware;
use crate::Slice;

/// Who uses the adapter.
#[derive(Debug)]
enum Tenancy {
    /// The host alone.
    Alone(Software),
    /// A PF context, and the guests to which it gives VFs.
    Shared(Box<PfHost>),
}

/// What runs on a function: the PF's side of a shared adapter, or what has its ports to itself.
enum User<'h> {
    Pf(&'h PfHost),
    Software(&'h Software),
}

/// As [`User`], to be used.
enum UserMut<'h> {
    Pf(&'h mut PfHost),
    Software(&'h mut Software),
}

/// A host of a world.
#[derive(Debug)]
pub struct Host {
    node: NodeId,
    tenancy: Tenancy,
}

impl Host {
    /// Starts the software of a host that has its adapter to itself.
    pub(super) fn alone(
        now: Instant,
        fabric: &mut Fabric,
        node: NodeId,
        seed: u64,
    ) -> Result<Self, EndPortError> {
        let mut hca = function_of(fabric, node, FunctionId::PF)?;
        let ports = (1..=hca_api::Hca::attributes(&hca).num_ports)
            .map(|port| {
                let seed = seed.wrapping_add(u64::from(port));
                EndPort::open(now, &mut hca, EndPortConfig::host(PortNum(port), seed))
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            node,
            tenancy: Tenancy::Alone(Software::new(ports)),
        })
    }

    pub(super) fn shared(node: NodeId, context: PfContext) -> Self {
        Self {
            node,
            tenancy: Tenancy::Shared(Box::new(PfHost::new(context))),
        }
    }

    /// The node that the host's adapter is.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// The subnet manager that runs here.
    #[must_use]
    pub fn manager(&self) -> Option<&SubnetManager> {
        self.manager_place().get()
    }

    /// What the subnet manager has told of the subnet since it was started: of very much the latest.
    #[must_use]
    pub fn subnet_events(&self) -> &[SmEvent] {
        self.manager_place().events()
    }

    /// The PF context, if the adapter is shared.
    #[must_use]
    pub fn context(&self) -> Option<&PfContext> {
        self.pf().map(|pf| &pf.context)
    }

    /// The VFs on which a guest's software runs, in the order of their numbers.
    pub fn guests(&self) -> impl Iterator<Item = VfId> {
        self.pf()
            .into_iter()
            .flat_map(|pf| pf.guests.keys().copied())
    }

    /// Why a port could not be read anew after a change, if one could not: a fault of the emulated
    /// device.
    #[must_use]
    pub fn trouble(&self) -> Option<SmaError> {
        match &self.tenancy {
            Tenancy::Alone(software) => software.trouble,
            Tenancy::Shared(pf) => {
                let guests = pf.guests.values().filter_map(|guest| guest.trouble);
                pf.trouble.into_iter().chain(guests).next()
            }
        }
    }

    /// Returns how long the sweeps of the subnet manager took that runs here.
    #[must_use]
    pub fn sweeps(&self) -> Sweeps {
        self.manager_place().sweeps()
    }

    fn manager_place(&self) -> &ManagerPlace {
        match &self.tenancy {
            Tenancy::Alone(software) => &software.manager,
            Tenancy::Shared(pf) => &pf.manager,
        }
    }

    pub(super) fn pf(&self) -> Option<&PfHost> {
        match &self.tenancy {
            Tenancy::Alone(_) => None,
            Tenancy::Shared(pf) => Some(pf),
        }
    }

    pub(super) fn pf_mut(&mut self) -> Option<&mut PfHost> {
        match &mut self.tenancy {
            Tenancy::Alone(_) => None,
            Tenancy::Shared(pf) => Some(pf),
        }
    }

    /// What runs on a function.
    fn user(&self, function: FunctionId) -> Option<User<'_>> {
        match &self.tenancy {
            Tenancy::Alone(software) => {
                (function == FunctionId::PF).then_some(User::Software(software))
            }
            Tenancy::Shared(pf) => match VfId::new(function.0) {
                Some(vf) => pf.guests.get(&vf).map(User::Software),
                None => (function == FunctionId::PF).then_some(User::Pf(pf)),
            },
        }
    }

    /// What runs on a function, to be used.
    fn user_mut(&mut self, function: FunctionId) -> Option<UserMut<'_>> {
        match &mut self.tenancy {
            Tenancy::Alone(software) => {
                (function == FunctionId::PF).then_some(UserMut::Software(software))
            }
            Tenancy::Shared(pf) => match VfId::new(function.0) {
                Some(vf) => pf.guests.get_mut(&vf).map(UserMut::Software),
                None => (function == FunctionId::PF).then_some(UserMut::Pf(pf)),
            },
        }
    }

    /// A port of a function.
    pub(super) fn port(&self, function: FunctionId, port: PortNum) -> Option<&dyn PortSoftware> {
        match self.user(function)? {
            User::Pf(pf) => {
                let port = pf.context.ports().get(port.index().checked_sub(1)?)?;
                Some(port.own())
            }
            User::Software(software) => software.port(port).map(|port| port as _),
        }
    }

    /// A port of a function, to be used.
    pub(super) fn port_mut(
        &mut self,
        function: FunctionId,
        port: PortNum,
    ) -> Option<&mut dyn PortSoftware> {
        match self.user_mut(function)? {
            UserMut::Pf(pf) => pf.context.port_mut(port).map(|port| port.own_mut() as _),
            UserMut::Software(software) => software.port_mut(port).map(|port| port as _),
        }
    }

    pub(super) fn poll_event(
        &mut self,
        function: FunctionId,
        port: PortNum,
    ) -> Option<EndPortEvent> {
        match self.user_mut(function)? {
            UserMut::Pf(pf) => pf.poll_event(port),
            UserMut::Software(software) => software.poll_event(port),
        }
    }

    pub(super) fn sockets(&self, function: FunctionId) -> Option<&Sockets> {
        Some(match self.user(function)? {
            User::Pf(pf) => &pf.sockets,
            User::Software(software) => &software.sockets,
        })
    }

    pub(super) fn sockets_mut(&mut self, function: FunctionId) -> Option<&mut Sockets> {
        Some(match self.user_mut(function)? {
            UserMut::Pf(pf) => &mut pf.sockets,
            UserMut::Software(software) => &mut software.sockets,
        })
    }

    pub(super) fn start_manager(
        &mut self,
        fabric: &mut Fabric,
        port: PortNum,
        config: SubnetConfig,
        seed: u64,
    ) -> Result<(), OpenError> {
        self.stop_manager(fabric)?;
        let mut hca = function_of(fabric, self.node, FunctionId::PF)?;
        let (gsi, manager) = self
            .gsi_and_manager(port)
            .ok_or(OpenError::Hca(HcaError::InvalidPort))?;
        manager.start(&mut hca, gsi, port, config, seed)
    }

    pub(super) fn stop_manager(&mut self, fabric: &mut Fabric) -> Result<(), HcaError> {
        let mut hca = function_of(fabric, self.node, FunctionId::PF)?;
        let port = self.manager_place().port();
        match port.and_then(|port| self.gsi_and_manager(port)) {
            Some((gsi, manager)) => manager.stop(&mut hca, gsi),
            None => Ok(()),
        }
    }

    /// The agent on a port's QP1, and the manager that may use it.
    pub(super) fn gsi_and_manager(
        &mut self,
        port: PortNum,
    ) -> Option<(&mut MadAgent, &mut ManagerPlace)> {
        match self.user_mut(FunctionId::PF)? {
            UserMut::Pf(pf) => {
                let own = pf.context.port_mut(port)?.own_mut();
                Some((own.gsi(), &mut pf.manager))
            }
            UserMut::Software(software) => software.gsi_and_manager(port),
        }
    }

    /// Lets the software on a function do what is due, until the slice is over. Whether there may be more.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        function: FunctionId,
        slice: &mut Slice,
    ) -> bool {
        let Ok(mut hca) = function_of(fabric, self.node, function) else {
            return false;
        };
        match self.user_mut(function) {
            Some(UserMut::Pf(pf)) => pf.poll(now, &mut hca, slice),
            Some(UserMut::Software(software)) => software.poll(now, &mut hca, slice),
            None => false,
        }
    }

    /// When to poll the software on a function at the latest.
    pub(super) fn poll_timeout(&self, function: FunctionId) -> Option<Instant> {
        if let Some(device) = device_of(self, function) {
            return device.poll_timeout();
        }
        match self.user(function)? {
            User::Pf(pf) => pf.poll_timeout(),
            User::Software(software) => software.poll_timeout(),
        }
    }
}
