//! The attributes that only switches have.

use ib_wire::mad::MadStatus;
use ib_wire::smp::{
    LinearForwardingTable, MulticastForwardingTable, MulticastTableModifier, SwitchInfo,
};
use ib_wire::{Lid, PortNum};

use super::Answer;
use super::access::Access;
use crate::Node;
use crate::switch::Tables;

fn tables(node: &mut Node) -> Result<&mut Tables, MadStatus> {
    node.tables_mut()
        .ok_or(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE)
}

/// SwitchInfo (IBA 14.2.5.4). PortStateChange is cleared by writing 1.
pub(super) fn switch_info(node: &mut Node, access: &Access, data: &mut SwitchInfo) -> Answer {
    let tables = tables(node)?;
    if access.set {
        let info = &mut tables.info;
        let top = data.multicast_fdb_top;
        let last = Lid::FIRST_MULTICAST.get() + info.multicast_fdb_cap.get().saturating_sub(1);
        let fits = |lid: Lid| lid.get() == 0 || lid.get() == 0xbfff || lid.get() <= last;
        if data.linear_fdb_top.get() >= info.linear_fdb_cap.get() || !fits(top) {
            return Err(MadStatus::INVALID_FIELD);
        }
        info.linear_fdb_top = data.linear_fdb_top;
        info.default_port = data.default_port;
        info.default_multicast_primary_port = data.default_multicast_primary_port;
        info.default_multicast_not_primary_port = data.default_multicast_not_primary_port;
        info.multicast_fdb_top = top;
        info.set_life_time_value(data.life_time_value());
        if data.port_state_change() {
            info.set_port_state_change(false);
        }
    }
    *data = tables.info;
    Ok(())
}

/// LinearForwardingTable (IBA 14.2.5.10).
pub(super) fn linear_table(
    node: &mut Node,
    access: &Access,
    data: &mut LinearForwardingTable,
) -> Answer {
    let ports = node.port_count();
    let tables = tables(node)?;
    let first = usize::try_from(access.modifier.get())
        .ok()
        .and_then(|block| block.checked_mul(LinearForwardingTable::ENTRIES))
        .filter(|first| *first < usize::from(tables.info.linear_fdb_cap.get()))
        .ok_or(MadStatus::INVALID_FIELD)?;
    if access.set {
        for (lid, port) in (first..).zip(data.ports) {
            // A port that does not exist drops, as an unset entry does.
            let port = if port.0 <= ports {
                port
            } else {
                LinearForwardingTable::DROP
            };
            tables.set_unicast(lid, port);
        }
    }
    for (lid, port) in (first..).zip(&mut data.ports) {
        *port = tables.unicast(lid);
    }
    Ok(())
}

/// MulticastForwardingTable (IBA 14.2.5.12).
pub(super) fn multicast_table(
    node: &mut Node,
    access: &Access,
    data: &mut MulticastForwardingTable,
) -> Answer {
    let ports = node.port_count();
    let tables = tables(node)?;
    let modifier = MulticastTableModifier::decode(access.modifier);
    let first = usize::from(modifier.block) * MulticastForwardingTable::ENTRIES;
    let first_port = usize::from(modifier.position) * MulticastForwardingTable::PORTS;
    if first >= usize::from(tables.info.multicast_fdb_cap.get())
        || first_port > PortNum(ports).index()
    {
        return Err(MadStatus::INVALID_FIELD);
    }
    if access.set {
        for (entry, mask) in (first..).zip(data.masks) {
            tables.set_multicast(entry, modifier.position, mask.get());
        }
    }
    for (entry, mask) in (first..).zip(&mut data.masks) {
        mask.set(tables.multicast(entry, modifier.position));
    }
    Ok(())
}
