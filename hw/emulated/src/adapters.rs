//! Adapters of a fabric, as their hosts hold them.

use hca_api::{Adapter, FunctionId};

use crate::NodeId;
use crate::hca::{Device, Function};

/// A fabric whose channel adapters are [`Device`]s, unless a test or a tool brings other
/// [`EndNode`](crate::EndNode)s.
pub type Fabric<D = Device> = ib_fabric::Fabric<D>;

/// The adapters of a fabric and their functions.
pub trait Adapters {
    /// Returns a function of a channel adapter, or `None` if the node has no such function. Packets that it sends leave with
    /// the next poll.
    fn hca(&mut self, node: NodeId, function: FunctionId) -> Option<Function<'_>>;

    /// Returns the next function of a channel adapter that has events; see [`Device::poll_ready`]. The fabric does not serve
    /// the node for the question.
    fn poll_ready(&mut self, node: NodeId) -> Option<FunctionId>;

    /// Allows or forbids that the adapters which are there send packets of connections in whole runs; see
    /// [`Device::set_whole_runs`].
    fn set_whole_runs(&mut self, allowed: bool);
}

impl Adapters for Fabric {
    fn hca(&mut self, node: NodeId, function: FunctionId) -> Option<Function<'_>> {
        self.device_mut(node)?.function(function)
    }

    fn poll_ready(&mut self, node: NodeId) -> Option<FunctionId> {
        self.unserved_device_mut(node)?.poll_ready()
    }

    fn set_whole_runs(&mut self, allowed: bool) {
        let nodes: Vec<_> = self.nodes().map(|(node, _)| node).collect();
        for node in nodes {
            if let Some(device) = self.unserved_device_mut(node) {
                device.set_whole_runs(allowed);
            }
        }
    }
}

/// An adapter without a fabric: its owner carries the packets, by [`EndNode`](crate::EndNode).
impl Adapter for Device {
    type Function<'a> = Function<'a>;

    fn function(&mut self, id: FunctionId) -> Option<Function<'_>> {
        self.function(id)
    }

    fn poll_ready(&mut self) -> Option<FunctionId> {
        self.poll_ready()
    }
}
