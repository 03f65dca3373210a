//! The answers of a port's SMA to a virtual function (`mad-paravirt` conformance statements
//! 174 to 178).

use hca_api::{Hca, LocalMad, PortState};
use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::smp::{
    CapabilityMask, GuidInfo, LidRoutedSmp, NodeInfo, PKeyTable, PortInfo,
    PortState as WirePortState, SmpAttribute,
};
use ib_wire::{GidIndex, Guid, PKey, PKeyIndex, PortNum};

/// Entries of a block of the P_Key table.
const PKEYS: u32 = 32;

/// Returns the SMP with which the adapter's SMA is asked, in place of a LID-routed Get of a virtual function. Whose port it is
/// about is decided here, not by the guest's modifier.
#[must_use]
pub fn physical_request(port: PortNum, mad: &Mad) -> Mad {
    let modifier = match mad.header.attribute_id {
        PortInfo::ID => u32::from(port.0),
        GuidInfo::ID | PKeyTable::ID => 0,
        _ => return *mad,
    };
    let mut request = *mad;
    request.header.attribute_modifier = modifier.into();
    request.header.method = Method::GET;
    request
}

/// Returns the answer to a LID-routed Get of a virtual function: the SMA's `answer` to [`physical_request`], with the view of
/// the function `vf` in place of the physical port's values.
#[must_use]
pub fn virtual_answer(vf: &dyn Hca, port: PortNum, mad: &Mad, answer: LocalMad) -> LocalMad {
    let LocalMad::Reply(mut reply) = answer else {
        return LocalMad::NotHandled;
    };
    reply.header.attribute_modifier = mad.header.attribute_modifier;
    if reply.header.status == MadStatus::OK {
        let block = mad.header.attribute_modifier.get();
        rewrite(vf, port, block, reply.view_mut());
    }
    LocalMad::Reply(reply)
}

fn rewrite(vf: &dyn Hca, port: PortNum, block: u32, smp: &mut LidRoutedSmp) {
    match smp.header.attribute_id {
        NodeInfo::ID => smp.attribute_mut::<NodeInfo>().node_guid = vf.attributes().node_guid,
        PortInfo::ID => rewrite_port_info(vf, port, smp.attribute_mut()),
        GuidInfo::ID => {
            let own = vf.query_gid(port, GidIndex(0)).ok();
            let own = own.filter(|_| block == 0).map(|gid| gid.interface_id());
            let guids = &mut smp.attribute_mut::<GuidInfo>().guids;
            *guids = [Guid::NONE; GuidInfo::ENTRIES];
            guids[0] = own.unwrap_or(Guid::NONE);
        }
        PKeyTable::ID => {
            let pkeys = &mut smp.attribute_mut::<PKeyTable>().pkeys;
            for (entry, pkey) in (0..).zip(pkeys) {
                *pkey = virtual_pkey(vf, port, block, entry);
            }
        }
        _ => {}
    }
}

fn rewrite_port_info(vf: &dyn Hca, port: PortNum, info: &mut PortInfo) {
    let Ok(seen) = vf.query_port(port) else {
        return;
    };
    info.set_port_state(match seen.state {
        PortState::Down => WirePortState::DOWN,
        PortState::Init => WirePortState::INIT,
        PortState::Armed => WirePortState::ARMED,
        PortState::Active => WirePortState::ACTIVE,
    });
    info.capability_mask = CapabilityMask::new(seen.capability_mask);
    // The key guards the physical port alone.
    info.mkey = ib_wire::MKey::default();
}

/// Returns an entry of a block of the virtual P_Key table; entries beyond the table are empty.
fn virtual_pkey(vf: &dyn Hca, port: PortNum, block: u32, entry: u32) -> PKey {
    block
        .checked_mul(PKEYS)
        .and_then(|first| u16::try_from(first + entry).ok())
        .and_then(|index| vf.query_pkey(port, PKeyIndex(index)).ok())
        .unwrap_or(PKey::INVALID)
}
