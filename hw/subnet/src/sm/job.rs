//! The requests that the manager sends.

use ib_wire::mad::{AttributeModifier, Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{DirectedRouteSmp, GuidInfo, SmpAttribute};
use ib_wire::{Guid, MKey, PortNum};

use crate::topology::{DrPath, NodeId, PortId};

/// The GUIDs of a block of a port's table (IBA 14.2.5.5).
pub(super) type GuidBlock = [Guid; GuidInfo::ENTRIES];

/// What a request is for, to act on its answer or its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Discovery: who is at the end of this path, behind this port.
    NodeInfo { path: DrPath, via: Option<PortId> },
    /// Discovery: a node's description.
    NodeDescription(NodeId),
    /// Discovery: a switch's data.
    SwitchInfo { node: NodeId, path: DrPath },
    /// Discovery: clear a switch's state change mark before its ports are read.
    ClearStateChange { node: NodeId, path: DrPath },
    /// Discovery: a port.
    PortInfo {
        port: PortId,
        guid: Guid,
        path: DrPath,
    },
    /// Discovery: a block of a port's P_Key table.
    PKeys { port: PortId, block: u16 },
    /// Discovery: another manager.
    Manager { guid: Guid, path: DrPath },

    /// Configuration of a port.
    SetPortInfo(PortId),
    /// Configuration of a switch.
    SetSwitchInfo(NodeId),
    /// A port of a switch whose mark of changes was cleared after its ports were read.
    LookAgain(PortId),
    /// Configuration of a block of a port's P_Key table.
    SetPKeys { port: PortId, block: u16 },
    /// A block of a switch's linear forwarding table.
    SetLft { switch: Guid, block: usize },
    /// A block of a switch's multicast forwarding table.
    SetMft {
        switch: Guid,
        position: u8,
        block: u16,
    },
    /// A block of a port's GUID table, with its new content.
    SetGuids {
        port: Guid,
        block: u8,
        guids: GuidBlock,
    },

    /// Sweep on demand: what does a block of a switch's linear forwarding table hold?
    ReadLft { node: NodeId, block: u16 },
    /// Sweep on demand: what does a block of a switch's multicast forwarding table hold?
    ReadMft { node: NodeId, at: u16 },
    /// Sweep on demand: what does a block of a port's GUID table hold?
    ReadGuids { port: Guid, block: u8 },

    /// Light sweep: has a switch's port changed?
    WatchSwitch(NodeId),
    /// Light sweep: has the manager's own port changed?
    WatchLocal,
    /// Light sweep: does a port answer that did not?
    Probe,

    /// Standby: is the master alive?
    PollMaster,
    /// Master: hand over to a better manager.
    HandOver(Guid),
}

impl Job {
    /// Returns `true` if the request writes a forwarding table. One without an answer may be late, and then write over a newer one.
    pub(super) const fn writes_routes(self) -> bool {
        matches!(self, Self::SetLft { .. } | Self::SetMft { .. })
    }

    /// Returns `true` if a node's silence leaves open what a table holds that ordinary sweeps do not
    /// look at.
    pub(super) const fn is_read_back(self) -> bool {
        matches!(
            self,
            Self::SetGuids { .. }
                | Self::ReadLft { .. }
                | Self::ReadMft { .. }
                | Self::ReadGuids { .. }
        )
    }
}

/// A directed-route request.
pub(super) fn request<T: SmpAttribute>(
    method: Method,
    path: &DrPath,
    modifier: AttributeModifier,
    mkey: MKey,
) -> Mad {
    let mut mad = Mad::new(MadHeader {
        attribute_modifier: modifier,
        ..MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, method, T::ID)
    });
    let smp = mad.view_mut::<DirectedRouteSmp>();
    smp.mkey = mkey;
    // A DrPath is never longer than an SMP's.
    smp.set_path(path.hops());
    mad
}

/// A Get.
pub(super) fn get<T: SmpAttribute>(path: &DrPath, modifier: u32) -> Mad {
    request::<T>(
        Method::GET,
        path,
        AttributeModifier::new(modifier),
        MKey::default(),
    )
}

/// A Get of an attribute whose modifier is a port number.
pub(super) fn get_port<T: SmpAttribute>(path: &DrPath, port: PortNum) -> Mad {
    get::<T>(path, u32::from(port.0))
}

/// A Set.
pub(super) fn set<T: SmpAttribute + Copy>(
    path: &DrPath,
    modifier: AttributeModifier,
    mkey: MKey,
    attribute: &T,
) -> Mad {
    let mut mad = request::<T>(Method::SET, path, modifier, mkey);
    *mad.view_mut::<DirectedRouteSmp>().attribute_mut::<T>() = *attribute;
    mad
}
