//! What nodes are made from.

use ib_wire::smp::{CapabilityMask, LinkSpeed, LinkSpeedExt, LinkWidth};
use ib_wire::{Guid, Mtu, SubnetPrefix};

/// What every port of a node supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Widths.
    pub widths: LinkWidth,
    /// Speeds.
    pub speeds: LinkSpeed,
    /// Extended speeds.
    pub extended_speeds: LinkSpeedExt,
    /// Largest MTU.
    pub mtu: Mtu,
    /// PortInfo:VLCap: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14.
    pub vl_cap: u8,
}

impl Default for PortConfig {
    /// 4x FDR, 4096 bytes, 8 data lanes.
    fn default() -> Self {
        Self {
            widths: LinkWidth(LinkWidth::X1.0 | LinkWidth::X4.0),
            speeds: LinkSpeed::from_low_bits(7),
            extended_speeds: LinkSpeedExt::FDR,
            mtu: Mtu::MTU_4096,
            vl_cap: 4,
        }
    }
}

/// What a channel adapter is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaConfig {
    /// NodeInfo:NodeGUID.
    pub node_guid: Guid,
    /// The ports' GUIDs in order; port `n` that has none here takes the node GUID plus `n`.
    pub port_guids: Vec<Guid>,
    /// NodeInfo:SystemImageGUID; [`Guid::NONE`] takes the node GUID plus 255.
    pub system_image_guid: Guid,
    /// The node's name at its own site, and NodeDescription if it has none; UTF-8.
    pub description: String,
    /// The site, of a fabric that may be joined with others: NodeDescription is `description@site` then. Cut after 64 bytes.
    pub site: Option<String>,
    /// Number of ports, 1 to [`HcaConfig::MAX_PORTS`].
    pub ports: u8,
    /// What the ports support.
    pub port: PortConfig,
    /// NodeInfo:VendorID, an IEEE OUI.
    pub vendor_id: u32,
    /// NodeInfo:DeviceID.
    pub device_id: u16,
    /// NodeInfo:Revision.
    pub revision: u32,
    /// Entries of each port's GID table, 255 at most since PortInfo:GUIDCap has eight bits; bounds the number of
    /// functions with a GID of their own.
    pub guid_table_len: u16,
    /// Entries of each port's P_Key table.
    pub pkey_table_len: u16,
    /// Initial capability mask of each port.
    pub capabilities: CapabilityMask,
    /// The subnet prefix before any SM set one.
    pub subnet_prefix: SubnetPrefix,
    /// Highest function number besides the PF.
    pub max_functions: u16,
}

impl HcaConfig {
    /// Ports of an adapter at most.
    pub const MAX_PORTS: u8 = 2;

    /// The GUID of a port.
    #[must_use]
    pub fn port_guid(&self, port: u8) -> Guid {
        let given = usize::from(port)
            .checked_sub(1)
            .and_then(|at| self.port_guids.get(at));
        match given {
            Some(guid) if !guid.is_none() => *guid,
            _ => Guid::new(self.node_guid.get().wrapping_add(u64::from(port))),
        }
    }

    /// A two-port adapter with the identity of a ConnectX-3 and the given node GUID.
    #[must_use]
    pub fn new(node_guid: Guid, description: &str) -> Self {
        Self {
            node_guid,
            port_guids: Vec::new(),
            system_image_guid: Guid::NONE,
            description: description.to_owned(),
            site: None,
            ports: 2,
            port: PortConfig::default(),
            vendor_id: 0x02c9,
            device_id: 0x1003,
            revision: 0,
            guid_table_len: 255,
            pkey_table_len: 128,
            capabilities: CapabilityMask::IS_TRAP_SUPPORTED
                | CapabilityMask::IS_SL_MAPPING_SUPPORTED
                | CapabilityMask::IS_SYSTEM_IMAGE_GUID_SUPPORTED
                | CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED
                | CapabilityMask::IS_CAPABILITY_MASK_NOTICE_SUPPORTED
                | CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED
                | CapabilityMask::IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED,
            subnet_prefix: SubnetPrefix::DEFAULT,
            max_functions: 254,
        }
    }
}

/// What a switch is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// NodeInfo:NodeGUID, and the GUID of port 0.
    pub node_guid: Guid,
    /// NodeInfo:SystemImageGUID; [`Guid::NONE`] takes the node GUID.
    pub system_image_guid: Guid,
    /// The node's name at its own site, and NodeDescription if it has none; UTF-8.
    pub description: String,
    /// The site, of a fabric that may be joined with others: NodeDescription is `description@site` then. Cut after 64 bytes.
    pub site: Option<String>,
    /// External ports, 1 to [`SwitchConfig::MAX_PORTS`]; more are not made.
    pub ports: u8,
    /// What the ports support.
    pub port: PortConfig,
    /// NodeInfo:VendorID, an IEEE OUI.
    pub vendor_id: u32,
    /// NodeInfo:DeviceID.
    pub device_id: u16,
    /// NodeInfo:Revision.
    pub revision: u32,
    /// SwitchInfo:LinearFDBCap: entries of the linear forwarding table.
    pub linear_fdb_cap: u16,
    /// SwitchInfo:MulticastFDBCap: entries of the multicast forwarding table.
    pub multicast_fdb_cap: u16,
    /// Entries of each external port's P_Key table.
    pub pkey_table_len: u16,
    /// Whether port 0 is an enhanced one, an end port like a channel adapter's.
    pub enhanced_port0: bool,
    /// The subnet prefix before any SM set one.
    pub subnet_prefix: SubnetPrefix,
}

impl SwitchConfig {
    /// External ports of a switch at most: 255 is the port number that drops packets (IBA 14.2.5.10).
    pub const MAX_PORTS: u8 = 254;

    /// A switch with the given node GUID and number of external ports.
    #[must_use]
    pub fn new(node_guid: Guid, description: &str, ports: u8) -> Self {
        Self {
            node_guid,
            system_image_guid: Guid::NONE,
            description: description.to_owned(),
            site: None,
            ports,
            port: PortConfig::default(),
            vendor_id: 0x02c9,
            device_id: 0xc738,
            revision: 0,
            linear_fdb_cap: 0xc000,
            multicast_fdb_cap: 0x1000,
            pkey_table_len: 32,
            enhanced_port0: false,
            subnet_prefix: SubnetPrefix::DEFAULT,
        }
    }
}
