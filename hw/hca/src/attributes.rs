//! The device and its ports, as a function sees them.

use alloc::string::String;

use bitflags::bitflags;
use ib_wire::{Guid, Lid, Lmc, Mtu, Sl, SubnetPrefix};

bitflags! {
    /// Optional abilities of a device (IBA 11.2.1.2, Query HCA, modifier list).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DeviceCaps: u32 {
        /// Completion queues can be resized.
        const RESIZE_CQ = 1 << 0;
        /// Shared receive queues.
        const SRQ = 1 << 1;
        /// Base memory management extensions: fast registration, local invalidate, send with
        /// invalidate.
        const MEM_MGT_EXTENSIONS = 1 << 2;
        /// Type 1 memory windows.
        const MW_TYPE_1 = 1 << 3;
        /// Type 2 memory windows.
        const MW_TYPE_2 = 1 << 4;
        /// Automatic path migration.
        const AUTO_PATH_MIG = 1 << 5;
        /// Bad P_Key counter.
        const BAD_PKEY_COUNTER = 1 << 6;
        /// Bad Q_Key counter.
        const BAD_QKEY_COUNTER = 1 << 7;
        /// Port-active event.
        const PORT_ACTIVE_EVENT = 1 << 8;
        /// System image GUID.
        const SYSTEM_IMAGE_GUID = 1 << 9;
        /// RNR NAK generation for RC.
        const RC_RNR_NAK = 1 << 10;
        /// The subnet's init type can be set.
        const INIT_TYPE = 1 << 11;
        /// Loopback of a sender's own multicast can be blocked.
        const BLOCK_MULTICAST_LOOPBACK = 1 << 12;
        /// Transports: reliable connection.
        const RC = 1 << 16;
        /// Transports: unreliable connection.
        const UC = 1 << 17;
        /// Transports: unreliable datagram.
        const UD = 1 << 18;
        /// Atomic operations, atomic at least among this device's QPs.
        const ATOMIC = 1 << 19;
        /// Atomic writes.
        const ATOMIC_WRITE = 1 << 20;
        /// Consumers choose keys of memory regions ([`MrSpec::key`](crate::MrSpec::key)) and numbers of queue pairs
        /// ([`QpSpec::qpn`](crate::QpSpec::qpn)). Without it both are the provider's, whatever the consumer asks for.
        const CHOSEN_NAMES = 1 << 21;
        /// Flushes that make writes visible to all that read the memory ([`AccessFlags::FLUSH_GLOBAL`](crate::AccessFlags::FLUSH_GLOBAL)).
        const FLUSH_GLOBAL = 1 << 22;
    }
}

/// Upper bounds of a function (IBA 11.2.1.2). Counts of objects unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of one work queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of one work request.
    pub max_sge: u32,
    /// Bytes of inline payload of one send.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of one memory region.
    pub max_mr_size: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_av: u32,
    /// RDMA reads and atomics outstanding at a QP as responder.
    pub max_qp_rd_atom: u8,
    /// RDMA reads and atomics outstanding at a QP as initiator.
    pub max_qp_init_rd_atom: u8,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// QPs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Pages of one fast registration.
    pub max_fast_reg_pages: u32,
}

/// A device, as one of its functions sees it (IBA 11.2.1.2, Query HCA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Vendor id (IEEE OUI, 24 bits).
    pub vendor_id: u32,
    /// Vendor's part number.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_rev: u32,
    /// Firmware version, in the vendor's encoding.
    pub fw_version: u64,
    /// The node GUID that this function shows; a VF has one of its own.
    pub node_guid: Guid,
    /// The system image GUID.
    pub system_image_guid: Guid,
    /// Physical ports of the function.
    pub num_ports: u8,
    /// What the device can do.
    pub caps: DeviceCaps,
    /// Upper bounds.
    pub limits: Limits,
}

/// A change to a device (IBA 11.2.1.3, Modify HCA).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceModify {
    /// A new system image GUID.
    pub system_image_guid: Option<Guid>,
    /// A new node description, UTF-8, at most 64 bytes.
    pub node_description: Option<String>,
}

/// Logical state of a port (IBA 14.2.5.6, PortInfo:PortState).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortState {
    /// Down: no packet passes.
    #[default]
    Down,
    /// Initialize: only SMPs pass.
    Init,
    /// Armed: SMPs pass; data is accepted and turns the port active.
    Armed,
    /// Active: everything passes.
    Active,
}

/// Physical state of a port (IBA 14.2.5.6, PortInfo:PortPhysicalState).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhysicalState {
    /// Asleep.
    Sleep,
    /// Looking for a link partner.
    #[default]
    Polling,
    /// Disabled.
    Disabled,
    /// Link training.
    Training,
    /// The link is up.
    LinkUp,
    /// Recovering from link errors.
    ErrorRecovery,
}

/// A port as a function sees it (IBA 11.2.1.2, port attributes).
///
/// For a VF, `state` is that of its virtual port, which the PF controls; the rest are the physical
/// port's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Logical state.
    pub state: PortState,
    /// Physical state.
    pub physical_state: PhysicalState,
    /// Base LID; [`Lid::NONE`] until the SM assigned one.
    pub lid: Lid,
    /// LID mask count.
    pub lmc: Lmc,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    /// Service level at which the subnet manager is reached.
    pub sm_sl: Sl,
    /// Subnet prefix.
    pub subnet_prefix: SubnetPrefix,
    /// Largest MTU that the port supports.
    pub max_mtu: Mtu,
    /// MTU that the link uses.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_table_len: u16,
    /// Entries of the P_Key table.
    pub pkey_table_len: u16,
    /// PortInfo:CapabilityMask, host byte order; a VF sees its own.
    pub capability_mask: u32,
    /// Whether the function may use QP0: of a VF, whether the PF lets its proxy QP0 do anything.
    pub smi_permitted: bool,
    /// Subnet timeout code: 4.096 us x 2^code bounds the fabric's delay.
    pub subnet_timeout: u8,
    /// PortInfo:LinkWidthActive, the wire's code.
    pub active_width: u8,
    /// PortInfo:LinkSpeedActive, the wire's code.
    pub active_speed: u8,
    /// Packets refused for a wrong P_Key.
    pub bad_pkey_counter: u32,
    /// Packets refused for a wrong Q_Key.
    pub bad_qkey_counter: u32,
}

/// A change to a port (IBA 11.2.1.3, Modify HCA, port part).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortModify {
    /// Bits of CapabilityMask to set. IsSM and IsDeviceManagement need a privilege.
    pub set_capabilities: u32,
    /// Bits of CapabilityMask to clear.
    pub clear_capabilities: u32,
    /// Resets the bad-Q_Key counter.
    pub reset_qkey_counter: bool,
    /// Takes the port down (`true`) or lets it come up (`false`).
    pub shutdown: Option<bool>,
    /// The init type the host wants from the SM, 4 bits.
    pub init_type: Option<u8>,
}
