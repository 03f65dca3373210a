//! The attributes that are tables or plain facts.

use hca_api::PortChange;
use ib_wire::mad::{BASE_VERSION, MadStatus};
use ib_wire::smp::{
    CapabilityMask, CapabilityMask2, GuidInfo, LedInfo, MlnxExtPortInfo, NodeDescription, NodeInfo,
    NodeType, PKeyTable, PKeyTableModifier, PortInfoModifier, SlToVlMappingTable, SlToVlModifier,
    VlArbitrationModifier, VlArbitrationTable,
};
use ib_wire::{GidIndex, Guid, PKey, PKeyIndex, PortNum, Sl, Vl};
use zerocopy::IntoBytes;

use super::Answer;
use super::access::Access;
use crate::port::data_vls;
use crate::{Node, NodeKind};

/// NodeDescription (IBA 14.2.5.2).
pub(super) fn node_description(
    node: &mut Node,
    access: &Access,
    data: &mut NodeDescription,
) -> Answer {
    if access.set {
        let writable = node.port(access.port).is_some_and(|port| {
            port.capabilities2
                .contains(CapabilityMask2::IS_SET_NODE_DESCRIPTION_SUPPORTED)
        });
        if !writable {
            return access.read_only();
        }
        node.set_description(*data);
    }
    *data = node.description;
    Ok(())
}

/// NodeInfo (IBA 14.2.5.3).
pub(super) fn node_info(node: &Node, access: &Access, data: &mut NodeInfo) -> Answer {
    access.read_only()?;
    let end_port = node.end_port(access.port).ok_or(MadStatus::INVALID_FIELD)?;
    let [_, vendor_id @ ..] = node.vendor_id.to_be_bytes();
    *data = NodeInfo {
        base_version: BASE_VERSION,
        class_version: 1,
        node_type: match node.kind() {
            NodeKind::ChannelAdapter => NodeType::CA,
            NodeKind::Switch => NodeType::SWITCH,
        },
        num_ports: node.port_count(),
        system_image_guid: node.system_image_guid,
        node_guid: node.node_guid,
        port_guid: end_port.guid,
        partition_cap: end_port.pkey_cap.into(),
        device_id: node.device_id.into(),
        revision: node.revision.into(),
        local_port: access.port,
        vendor_id,
        ..NodeInfo::default()
    };
    Ok(())
}

/// GUIDInfo (IBA 14.2.5.5). Entry 0 is the port GUID, whatever a Set says.
pub(super) fn guid_info(node: &mut Node, access: &Access, data: &mut GuidInfo) -> Answer {
    let port = node
        .end_port_mut(access.port)
        .ok_or(MadStatus::INVALID_FIELD)?;
    let indices = block(access.modifier.get(), GuidInfo::ENTRIES, port.guid_cap)?;
    if access.set {
        let mut changed = false;
        for (index, guid) in indices.clone().zip(data.guids) {
            changed |= index != 0 && port.set_alias_guid(GidIndex(index), guid);
        }
        if changed {
            port.note(PortChange::GID_TABLE);
        }
    }
    data.guids = [Guid::NONE; GuidInfo::ENTRIES];
    for (slot, index) in data.guids.iter_mut().zip(indices) {
        *slot = port.guid_at(GidIndex(index)).unwrap_or(Guid::NONE);
    }
    Ok(())
}

/// P_KeyTable (IBA 14.2.5.7).
pub(super) fn pkey_table(node: &mut Node, access: &Access, data: &mut PKeyTable) -> Answer {
    let modifier = PKeyTableModifier::decode(access.modifier);
    let port = access.table_port(node, modifier.port)?;
    let indices = block(u32::from(modifier.block), PKeyTable::ENTRIES, port.pkey_cap)?;
    if access.set {
        let mut changed = false;
        for (index, pkey) in indices.clone().zip(data.pkeys) {
            changed |= port.set_pkey(PKeyIndex(index), pkey);
        }
        if changed {
            port.note(PortChange::PKEY_TABLE);
        }
    }
    data.pkeys = [PKey::INVALID; PKeyTable::ENTRIES];
    for (slot, index) in data.pkeys.iter_mut().zip(indices) {
        *slot = port.pkey(PKeyIndex(index)).unwrap_or(PKey::INVALID);
    }
    Ok(())
}

/// The table indices of a block.
fn block(number: u32, entries: usize, cap: u16) -> Result<core::ops::Range<u16>, MadStatus> {
    let entries = u32::try_from(entries).map_err(|_| MadStatus::INVALID_FIELD)?;
    let first = number
        .checked_mul(entries)
        .and_then(|first| u16::try_from(first).ok())
        .filter(|first| *first < cap)
        .ok_or(MadStatus::INVALID_FIELD)?;
    let last = u16::try_from(u32::from(first) + entries).unwrap_or(u16::MAX);
    Ok(first..last.min(cap))
}

/// SLtoVLMappingTable (IBA 14.2.5.8). On a switch there is one per pair of ports.
pub(super) fn sl_to_vl(node: &mut Node, access: &Access, data: &mut SlToVlMappingTable) -> Answer {
    let modifier = SlToVlModifier::decode(access.modifier);
    let lanes: Option<[Vl; 16]> = access.set.then(|| {
        core::array::from_fn(|sl| data.vl(Sl::from_low_bits(u8::try_from(sl).unwrap_or(0))))
    });
    let stored = if node.kind() == NodeKind::Switch {
        if modifier.all_inputs || modifier.all_outputs {
            return Err(MadStatus::INVALID_FIELD);
        }
        node.switch_sl2vl(modifier.input, modifier.output, lanes)
            .ok_or(MadStatus::INVALID_FIELD)?
    } else {
        let port = node.port_mut(access.port).ok_or(MadStatus::INVALID_FIELD)?;
        if let Some(lanes) = lanes {
            port.set_sl2vl(lanes);
            port.note(PortChange::QOS);
        }
        core::array::from_fn(|sl| port.vl_for_sl(Sl::from_low_bits(u8::try_from(sl).unwrap_or(0))))
    };
    *data = SlToVlMappingTable::default();
    for (sl, vl) in (0..16).zip(stored) {
        data.set_vl(Sl::from_low_bits(sl), vl);
    }
    Ok(())
}

/// VLArbitrationTable (IBA 14.2.5.9). Stored; lanes do not compete on an emulated link.
pub(super) fn vl_arbitration(
    node: &mut Node,
    access: &Access,
    data: &mut VlArbitrationTable,
) -> Answer {
    let modifier = VlArbitrationModifier::decode(access.modifier);
    let port = access.table_port(node, modifier.port)?;
    let block = usize::from(modifier.block)
        .checked_sub(1)
        .filter(|block| *block < 4)
        .ok_or(MadStatus::INVALID_FIELD)?;
    if access.set {
        let default = default_arbitration(port.vl_cap);
        let tables = port.vl_arbitration.get_or_insert_with(|| Box::new(default));
        tables[block].copy_from_slice(data.as_bytes());
        port.note(PortChange::QOS);
    }
    let stored = match &port.vl_arbitration {
        Some(tables) => tables[block],
        None => default_arbitration(port.vl_cap)[block],
    };
    data.as_mut_bytes().copy_from_slice(&stored);
    Ok(())
}

/// The tables before a manager writes any: in low priority, every data lane weighs the same.
fn default_arbitration(vl_cap: u8) -> [[u8; 64]; 4] {
    const WEIGHT: u8 = 4;

    let mut tables = [[0; 64]; 4];
    for (vl, entry) in (0..data_vls(vl_cap)).zip(tables[0].chunks_exact_mut(2)) {
        entry.copy_from_slice(&[vl, WEIGHT]);
    }
    tables
}

/// LedInfo (IBA 14.2.5.15), on ports whose capability mask announces it.
pub(super) fn led_info(node: &mut Node, access: &Access, data: &mut LedInfo) -> Answer {
    let port = node
        .end_port_mut(access.port)
        .filter(|p| {
            p.capabilities
                .contains(CapabilityMask::IS_LED_INFO_SUPPORTED)
        })
        .ok_or(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE)?;
    if access.set {
        port.led_on = data.led_on();
    }
    *data = LedInfo::default();
    data.set_led_on(port.led_on);
    Ok(())
}

/// Mellanox's ExtendedPortInfo, which OpenSM reads and writes on nodes of that vendor. FDR10 is not
/// among the speeds of an emulated link, so there is nothing to enable.
pub(super) fn extended_port_info(
    node: &mut Node,
    access: &Access,
    data: &mut MlnxExtPortInfo,
) -> Answer {
    const MELLANOX: u32 = 0x02c9;
    let named = PortInfoModifier::decode(access.modifier).port;
    if node.vendor_id != MELLANOX {
        return Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
    }
    if named != PortNum(0) && node.port(named).is_none() {
        return Err(MadStatus::INVALID_FIELD);
    }
    *data = MlnxExtPortInfo::default();
    Ok(())
}
