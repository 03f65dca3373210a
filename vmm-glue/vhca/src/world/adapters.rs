//! The adapters of a world's hosts: nodes of its fabric, and adapters outside, which a layer of software divides.

use core::fmt;
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use emulated_hca::{Adapters as _, Fabric, NodeId};
use hca_api::{Adapter, FunctionId, FunctionManager, Hca, HcaError};
use hca_functions::Functions;
use ib_vtime::Instant;

/// An adapter outside of a world's fabric that has one function, such as the port of a Linux HCA.
///
/// The world divides it among VFs and drives it: it polls the adapter with every poll of its own. The owner of the world watches the
/// adapter's files.
pub trait OutsideHca: Hca + Any + Send + fmt::Debug {
    /// Does everything that is due. Returns `true` if there may be more to do at once.
    fn poll(&mut self, now: Instant) -> bool;

    /// Returns when to poll the adapter at the latest; `None` if nothing is due by itself.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Returns `true` once the adapter is gone for good.
    fn is_gone(&self) -> bool;
}

/// An adapter outside, and its functions.
#[derive(Debug)]
pub(super) struct Outside {
    hca: Box<dyn OutsideHca>,
    functions: Functions,
}

impl Outside {
    pub(super) fn new(hca: Box<dyn OutsideHca>, functions: Functions) -> Self {
        Self { hca, functions }
    }

    /// Returns when to poll the adapter and its functions at the latest.
    fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [self.hca.poll_timeout(), self.functions.poll_timeout()];
        timeouts.into_iter().flatten().min()
    }

    pub(super) fn hca(&self) -> &dyn OutsideHca {
        self.hca.as_ref()
    }

    /// Returns the adapter if it is of a type.
    pub(super) fn hca_mut<H: OutsideHca>(&mut self) -> Option<&mut H> {
        (self.hca.as_mut() as &mut dyn Any).downcast_mut()
    }
}

/// The fabric of a world, and the adapters outside. A host's adapter outside has a gateway in the fabric, which names it.
#[derive(Debug)]
pub(super) struct Adapters {
    pub(super) fabric: Fabric,
    outside: BTreeMap<NodeId, Outside>,
}

impl Adapters {
    pub(super) const fn new(fabric: Fabric) -> Self {
        Self {
            fabric,
            outside: BTreeMap::new(),
        }
    }

    /// Adds the adapter that a gateway stands for.
    pub(super) fn add_outside(&mut self, gateway: NodeId, outside: Outside) {
        self.outside.insert(gateway, outside);
    }

    pub(super) fn outside(&self, node: NodeId) -> Option<&Outside> {
        self.outside.get(&node)
    }

    pub(super) fn outside_mut(&mut self, node: NodeId) -> Option<&mut Outside> {
        self.outside.get_mut(&node)
    }

    /// Lends a function of a host's adapter.
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] if the node has no such function.
    pub(super) fn function(
        &mut self,
        node: NodeId,
        function: FunctionId,
    ) -> Result<LentFunction<'_>, HcaError> {
        let lent = match self.outside.get_mut(&node) {
            Some(Outside { hca, functions }) => {
                let hca: &mut dyn Hca = hca.as_mut();
                functions.function(hca, function).map(LentFunction::Outside)
            }
            None => self.fabric.hca(node, function).map(LentFunction::Emulated),
        };
        lent.ok_or(HcaError::InvalidParameter)
    }

    /// Returns the next function of a host's adapter that has events.
    pub(super) fn poll_ready(&mut self, node: NodeId) -> Option<FunctionId> {
        match self.outside.get_mut(&node) {
            Some(Outside { hca, functions }) => functions.poll_ready(hca.as_mut()),
            None => self.fabric.poll_ready(node),
        }
    }

    /// Polls the adapters outside. Returns the nodes of the adapters for which something was due.
    pub(super) fn poll_outside(&mut self, now: Instant) -> Vec<NodeId> {
        let due = self.outside.iter_mut().filter_map(|(node, outside)| {
            let is_due = outside.poll_timeout().is_some_and(|due| due <= now);
            while outside.hca.poll(now) {}
            outside.functions.handle_timeout(outside.hca.as_mut(), now);
            is_due.then_some(*node)
        });
        due.collect()
    }

    /// Returns the node that stands for an adapter outside which is gone.
    pub(super) fn gone(&self) -> Option<NodeId> {
        let mut outside = self.outside.iter();
        let gone = outside.find(|(_, outside)| outside.hca.is_gone());
        gone.map(|(node, _)| *node)
    }

    /// Returns when to poll the adapters outside at the latest.
    pub(super) fn outside_timeout(&self) -> Option<Instant> {
        let outside = self.outside.values();
        outside.filter_map(Outside::poll_timeout).min()
    }

    /// Returns a host's adapter.
    pub(super) const fn of(&mut self, node: NodeId) -> HostAdapter<'_> {
        HostAdapter {
            adapters: self,
            node,
        }
    }
}

/// A host's adapter, lent for a call.
#[derive(Debug)]
pub(super) struct HostAdapter<'w> {
    adapters: &'w mut Adapters,
    node: NodeId,
}

impl Adapter for HostAdapter<'_> {
    type Function<'a>
        = LentFunction<'a>
    where
        Self: 'a;

    fn function(&mut self, id: FunctionId) -> Option<LentFunction<'_>> {
        self.adapters.function(self.node, id).ok()
    }

    fn poll_ready(&mut self) -> Option<FunctionId> {
        self.adapters.poll_ready(self.node)
    }
}

/// A function of either kind of adapter: an [`Hca`] and a [`FunctionManager`], since it points to one.
#[derive(Debug)]
pub(super) enum LentFunction<'a> {
    Emulated(emulated_hca::hca::Function<'a>),
    Outside(hca_functions::Function<'a, &'a mut dyn Hca>),
}

impl<'a> Deref for LentFunction<'a> {
    type Target = dyn FunctionManager + 'a;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Emulated(function) => function,
            Self::Outside(function) => function,
        }
    }
}

impl DerefMut for LentFunction<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Emulated(function) => function,
            Self::Outside(function) => function,
        }
    }
}
