//! Adapters, as their hosts hold them.

use hca_api::{Adapter, FunctionId};

use super::{Fabric, NodeId};
use crate::hca::{Device, Function};

/// A node's adapter, which its fabric lends.
#[derive(Debug)]
pub struct NodeAdapter<'f> {
    fabric: &'f mut Fabric,
    node: NodeId,
}

impl Fabric {
    /// Lends a node's adapter; that of a switch has no function. What is sent leaves with the next poll.
    pub const fn adapter(&mut self, node: NodeId) -> NodeAdapter<'_> {
        NodeAdapter { fabric: self, node }
    }
}

impl Adapter for NodeAdapter<'_> {
    type Function<'a>
        = Function<'a>
    where
        Self: 'a;

    fn function(&mut self, id: FunctionId) -> Option<Function<'_>> {
        self.fabric.hca(self.node, id)
    }

    fn poll_ready(&mut self) -> Option<FunctionId> {
        self.fabric.poll_ready(self.node)
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
