//! What programs reach through umad: adapters with ports, and the MAD agents on these.

use hca_api::SpecialQp;
use ib_endpoint::{AgentEvent, AgentId, MadAgent};
use ib_wire::PortNum;
use linux_abi::sysfs::Device;

use crate::sysfs::Ca;

/// Names an adapter, or a switch with its management port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub u32);

/// Names a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// Whose port.
    pub adapter: AdapterId,
    /// Which one; 0 of a switch.
    pub port: PortNum,
}

/// Names a device on libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerbsId(pub u32);

/// The classes of libibverbs, as a program sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Verbs {
    /// The device, unless it can have none now.
    pub device: Option<VerbsId>,
    /// The device is the first adapter, and none beside it.
    pub is_adapter: bool,
}

/// The adapters that programs may use. The server lends it to each call.
pub trait Adapters {
    /// The adapter of a name: a node description or a GUID. The empty name is the adapter of who
    /// names none.
    fn find(&mut self, name: &str) -> Option<AdapterId>;

    /// An adapter as it is now.
    fn view(&mut self, adapter: AdapterId) -> Option<Ca>;

    /// Returns the device on libibverbs of the program that asks: the one that it has, or else the one at the first of these
    /// adapters that the next program would get. `None` if the server has none for programs.
    fn verbs(&mut self, adapters: &str) -> Option<Verbs>;

    /// Returns a device on libibverbs as it is now, under a name.
    fn verbs_device(&mut self, id: VerbsId, name: String) -> Option<Device>;

    /// Returns the names of the ports that a program at this adapter will use and that a subnet manager has yet to make
    /// active: none where no subnet manager would.
    fn pending_ports(&mut self, name: &str) -> Vec<String>;

    /// The agent on a port's queue pair, to be used: it may have something to send afterwards. QP0
    /// is opened if it was not. `None` if there is none to be had.
    fn agent(&mut self, port: PortId, qp: SpecialQp) -> Option<&mut MadAgent>;

    /// The next event of a registration with that agent.
    fn poll_event(&mut self, port: PortId, qp: SpecialQp, agent: AgentId) -> Option<AgentEvent>;

    /// Tells the subnet whether an SM is on the port (PortInfo:CapabilityMask.IsSM). `false` if the
    /// port refuses.
    fn set_is_sm(&mut self, port: PortId, is_sm: bool) -> bool;
}
