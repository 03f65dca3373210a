//! Functions: how an adapter is divided among those who use it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU16;

use bitflags::bitflags;
use ib_wire::{Guid, PKeyIndex, PortNum};

use crate::{AddressSpace, AsyncEvent, Hca, HcaError, PortState, SpecialQp};

/// Which function of an adapter. Also the index of the function's own entry in the physical GID
/// table of each port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u16);

impl FunctionId {
    /// The physical function.
    pub const PF: Self = Self(0);
}

impl fmt::Display for FunctionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::PF {
            f.write_str("pf")
        } else {
            write!(f, "vf:{}", self.0)
        }
    }
}

bitflags! {
    /// What a function may do beyond the ordinary. A VF has none of these.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Privileges: u8 {
        /// Create the ports' special QPs.
        const SPECIAL_QP = 1 << 0;
        /// Send on VL15.
        const VL15 = 1 << 1;
        /// Set Q_Keys whose top bit is set.
        const CONTROLLED_QKEY = 1 << 2;
        /// Create, configure and reset other functions, and create tunnel QPs.
        const MANAGE_FUNCTIONS = 1 << 3;
        /// Pass Set and directed-route SMPs to the device's own agents.
        const LOCAL_SMA_WRITE = 1 << 4;
        /// Choose the source GID and the P_Key of a datagram freely.
        const ANY_SOURCE = 1 << 5;
    }
}

/// A function, as it is asked about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// Which.
    pub id: FunctionId,
    /// Its privileges.
    pub privileges: Privileges,
}

/// What a virtual function is made from.
#[derive(Debug)]
pub struct FunctionSpec {
    /// Its number, at least 1 and unused.
    pub id: FunctionId,
    /// The node GUID that it shows.
    pub node_guid: Guid,
    /// The memory that it reaches.
    pub memory: Box<dyn AddressSpace>,
    /// Upper bounds on what it may own.
    pub quota: ResourceCounts,
}

/// A VF's view of a physical port, set by the PF.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualPort {
    /// The state that the VF sees; at most the physical port's. Unless it is active, the VF's
    /// datagrams are discarded both ways; tunnels work in any state.
    pub state: PortState,
    /// For each of the VF's P_Key indices the physical index behind it; `None` shows an invalid key.
    pub pkeys: Vec<Option<PKeyIndex>>,
    /// Whether the proxy QP0 does anything, and the device's own agents answer the VF's SMPs as they answer the subnet's.
    pub smi_enabled: bool,
}

/// Objects that a function owns, or may own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceCounts {
    /// Protection domains.
    pub pds: u32,
    /// Address handles.
    pub avs: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Memory windows.
    pub mws: u32,
    /// Multicast attachments.
    pub attachments: u32,
}

/// What a physical function can do with the other functions of its adapter.
///
/// How a function is opened, so that its consumer gets an [`Hca`], is the provider's own: a
/// software device lends a view, VFIO opens a file.
pub trait FunctionManager: Hca {
    /// Makes a virtual function. Its ports are down and its tables empty until
    /// [`FunctionManager::set_virtual_port`].
    ///
    /// # Errors
    /// [`HcaError::InvalidParameter`] for a number that is taken or beyond the device's,
    /// [`HcaError::InsufficientResources`], [`HcaError::PermissionDenied`].
    fn create_function(&mut self, spec: FunctionSpec) -> Result<(), HcaError>;

    /// Resets a virtual function: everything that it owns is destroyed, nothing completes any more,
    /// and its consumer finds [`AsyncEvent::FunctionReset`] as the only event. Ports, tables and
    /// memory stay.
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`], [`HcaError::PermissionDenied`].
    fn reset_function(&mut self, id: FunctionId) -> Result<(), HcaError>;

    /// Resets and removes a virtual function; gives its memory back.
    ///
    /// # Errors
    /// As [`FunctionManager::reset_function`].
    fn destroy_function(&mut self, id: FunctionId) -> Result<Box<dyn AddressSpace>, HcaError>;

    /// Sets what a VF sees of a port. Raises no event by itself; the PF decides what the VF is told
    /// with [`FunctionManager::notify`].
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`], [`HcaError::InvalidPort`], [`HcaError::InvalidIndex`] for a
    /// physical P_Key index beyond the port's table, [`HcaError::PermissionDenied`].
    fn set_virtual_port(
        &mut self,
        id: FunctionId,
        port: PortNum,
        view: VirtualPort,
    ) -> Result<(), HcaError>;

    /// Sets a VF's share of the bytes that leave by a port while several functions have something to send, relative to the
    /// weights of the others. Each function has weight 1 at first.
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`], [`HcaError::InvalidPort`], [`HcaError::PermissionDenied`].
    fn set_egress_weight(
        &mut self,
        id: FunctionId,
        port: PortNum,
        weight: NonZeroU16,
    ) -> Result<(), HcaError>;

    /// Puts an event into a VF's event queue. Port changes merge with one that already waits.
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`], [`HcaError::PermissionDenied`].
    fn notify(&mut self, id: FunctionId, event: AsyncEvent) -> Result<(), HcaError>;

    /// What a function owns now.
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`], [`HcaError::PermissionDenied`].
    fn resources(&self, id: FunctionId) -> Result<ResourceCounts, HcaError>;

    /// The numbers of a VF's proxy QP, if the VF has created it.
    ///
    /// # Errors
    /// [`HcaError::InvalidHandle`], [`HcaError::InvalidPort`], [`HcaError::PermissionDenied`].
    fn proxy_qp(
        &self,
        id: FunctionId,
        special: SpecialQp,
        port: PortNum,
    ) -> Result<Option<crate::QpNumbers>, HcaError>;
}
