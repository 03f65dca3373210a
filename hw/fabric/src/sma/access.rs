//! What a request wants, apart from its data.

use ib_wire::PortNum;
use ib_wire::mad::{AttributeModifier, MadStatus};

use crate::{Node, NodeKind, PhysicalPort};

/// A Get or Set of some attribute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    /// The attribute modifier.
    pub(super) modifier: AttributeModifier,
    /// Whether it is a Set.
    pub(super) set: bool,
    /// The port by which the request came; of a switch its management port.
    pub(super) port: PortNum,
}

impl Access {
    /// For attributes that cannot be written.
    pub(super) fn read_only(&self) -> Result<(), MadStatus> {
        if self.set {
            Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE)
        } else {
            Ok(())
        }
    }

    /// The port of a table: the modifier names it on switches, and on channel adapters it is the
    /// one that received the SMP.
    pub(super) fn table_port<'n>(
        &self,
        node: &'n mut Node,
        named: u16,
    ) -> Result<&'n mut PhysicalPort, MadStatus> {
        let port = match node.kind() {
            NodeKind::ChannelAdapter => Some(self.port),
            NodeKind::Switch => u8::try_from(named).ok().map(PortNum),
        };
        port.and_then(|port| node.port_mut(port))
            .ok_or(MadStatus::INVALID_FIELD)
    }
}
