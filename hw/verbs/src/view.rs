//! The device as programs see it before they open it.

use hca_api::{Hca, PhysicalState, PortAttributes, PortState, QpAttributes, QpState};
use ib_wire::{Gid, GidIndex, Guid, PKey, PKeyIndex, PortNum, Qpn};

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// Name.
    pub name: String,
    /// Number of its `uverbsN`.
    pub number: u32,
    /// Node GUID.
    pub node_guid: Guid,
    /// System image GUID.
    pub system_image_guid: Guid,
    /// Hardware revision.
    pub hw_rev: u32,
    /// Firmware version.
    pub firmware: String,
    /// Node description.
    pub description: String,
    /// Ports, in order.
    pub ports: Vec<PortView>,
    /// Objects.
    pub resources: Resources,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Number.
    pub number: PortNum,
    /// Attributes.
    pub attributes: PortAttributes,
    /// GID table; empty entries are zero.
    pub gids: Vec<Gid>,
    /// P_Key table; empty entries are 0.
    pub pkeys: Vec<PKey>,
    /// Counters of the port, by the names of their files in sysfs.
    pub counters: Vec<(&'static str, u64)>,
    /// Counters of the function's connections, by the names of their files in sysfs.
    pub hw_counters: Vec<(&'static str, u64)>,
}

/// Objects of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Process that has the device.
    pub pid: Option<u32>,
    /// Open files with a context.
    pub contexts: usize,
    /// Protection domains.
    pub pds: usize,
    /// Memory regions.
    pub mrs: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Ids of the RDMA CM.
    pub cm_ids: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// The first queue pairs, with the numbers by which the program knows them.
    pub first_qps: Vec<(Qpn, QpAttributes)>,
    /// The first completion queues: handle, entries, and work queues that complete there.
    pub first_cqs: Vec<(u32, u32, u32)>,
    /// Handles of the first protection domains.
    pub first_pds: Vec<u32>,
}

impl DeviceView {
    /// Reads a function.
    #[must_use]
    pub fn of(hca: &dyn Hca, name: String, number: u32, description: String) -> Self {
        let device = hca.attributes();
        let ports = (1..=device.num_ports).filter_map(|number| PortView::of(hca, PortNum(number)));
        Self {
            name,
            number,
            node_guid: device.node_guid,
            system_image_guid: device.system_image_guid,
            hw_rev: device.hw_rev,
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            description,
            ports: ports.collect(),
            resources: Resources::default(),
        }
    }
}

impl PortView {
    fn of(hca: &dyn Hca, number: PortNum) -> Option<Self> {
        let attributes = hca.query_port(number).ok()?;
        let gids = (0..attributes.gid_table_len).map(|index| {
            let gid = hca.query_gid(number, GidIndex(index));
            gid.unwrap_or(Gid::NONE)
        });
        let pkeys = (0..attributes.pkey_table_len).map(|index| {
            let pkey = hca.query_pkey(number, PKeyIndex(index));
            pkey.unwrap_or(PKey::INVALID)
        });
        Some(Self {
            number,
            attributes,
            gids: gids.collect(),
            pkeys: pkeys.collect(),
            counters: Vec::new(),
            hw_counters: Vec::new(),
        })
    }
}

/// Returns the number of a logical state (`enum ibv_port_state`).
#[must_use]
pub const fn port_state(state: PortState) -> u8 {
    match state {
        PortState::Down => 1,
        PortState::Init => 2,
        PortState::Armed => 3,
        PortState::Active => 4,
    }
}

/// Returns the number of a physical state (`phys_state` of `struct ibv_port_attr`).
#[must_use]
pub const fn physical_state(state: PhysicalState) -> u8 {
    match state {
        PhysicalState::Sleep => 1,
        PhysicalState::Polling => 2,
        PhysicalState::Disabled => 3,
        PhysicalState::Training => 4,
        PhysicalState::LinkUp => 5,
        PhysicalState::ErrorRecovery => 6,
    }
}

/// Returns the number of a queue pair's state (`enum ib_qp_state`).
#[must_use]
pub const fn qp_state(state: QpState) -> u8 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::ReadyToReceive => 2,
        QpState::ReadyToSend => 3,
        QpState::SendQueueDrain => 4,
        QpState::SendQueueError => 5,
        QpState::Error => 6,
    }
}
