//! What a virtual function sees when it asks its port's SMA (`mad-paravirt` conformance statements
//! 174 to 178).

use hca_api::{FunctionId, LocalMad, MadView, PortState};
use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::smp::{
    CapabilityMask, GuidInfo, LidRoutedSmp, NodeInfo, PKeyTable, PortInfo,
    PortState as WirePortState, SmpAttribute,
};
use ib_wire::{GidIndex, Guid, PKey, PKeyIndex, PortNum};

use super::Device;
use crate::sma;

impl Device {
    /// Answers a LID-routed Get of a virtual function.
    pub(super) fn virtual_view(
        &mut self,
        function: FunctionId,
        port: PortNum,
        mad: &Mad,
    ) -> LocalMad {
        let request = match mad.header.attribute_id {
            // Whose port it is, is decided here, not by the guest's modifier.
            PortInfo::ID => with_modifier(mad, u32::from(port.0)),
            GuidInfo::ID => with_modifier(mad, 0),
            PKeyTable::ID => with_modifier(mad, 0),
            _ => *mad,
        };
        let LocalMad::Reply(mut reply) =
            sma::process(&mut self.node, port, &MadView::Host, &request)
        else {
            return LocalMad::NotHandled;
        };
        let block = mad.header.attribute_modifier.get();
        reply.header.attribute_modifier = mad.header.attribute_modifier;
        if reply.header.status == MadStatus::OK {
            self.rewrite(function, port, block, reply.view_mut());
        }
        LocalMad::Reply(reply)
    }

    fn rewrite(&self, function: FunctionId, port: PortNum, block: u32, smp: &mut LidRoutedSmp) {
        match smp.header.attribute_id {
            NodeInfo::ID => {
                if let Ok(state) = self.state(function) {
                    smp.attribute_mut::<NodeInfo>().node_guid = state.node_guid;
                }
            }
            PortInfo::ID => self.rewrite_port_info(function, port, smp.attribute_mut()),
            GuidInfo::ID => {
                let own = self
                    .node
                    .port(port)
                    .and_then(|physical| physical.guid_at(GidIndex(function.0)))
                    .filter(|_| block == 0);
                let guids = &mut smp.attribute_mut::<GuidInfo>().guids;
                *guids = [Guid::NONE; GuidInfo::ENTRIES];
                guids[0] = own.unwrap_or(Guid::NONE);
            }
            PKeyTable::ID => {
                let pkeys = &mut smp.attribute_mut::<PKeyTable>().pkeys;
                for (entry, pkey) in (0..).zip(pkeys) {
                    *pkey = self.virtual_pkey(function, port, block, entry);
                }
            }
            _ => {}
        }
    }

    fn rewrite_port_info(&self, function: FunctionId, port: PortNum, info: &mut PortInfo) {
        let Ok(seen) = self.query_port(function, port) else {
            return;
        };
        info.set_port_state(match seen.state {
            PortState::Down => WirePortState::DOWN,
            PortState::Init => WirePortState::INIT,
            PortState::Armed => WirePortState::ARMED,
            PortState::Active => WirePortState::ACTIVE,
        });
        info.capability_mask = CapabilityMask::new(seen.capability_mask);
        // The key guards the physical port; it is nobody else's business.
        info.mkey = ib_wire::MKey::default();
    }

    /// An entry of a block of the virtual P_Key table; entries beyond the table are empty.
    fn virtual_pkey(&self, function: FunctionId, port: PortNum, block: u32, entry: u32) -> PKey {
        const ENTRIES: u32 = 32;

        block
            .checked_mul(ENTRIES)
            .and_then(|first| u16::try_from(first + entry).ok())
            .and_then(|index| self.query_pkey(function, port, PKeyIndex(index)).ok())
            .unwrap_or(PKey::INVALID)
    }
}

fn with_modifier(mad: &Mad, modifier: u32) -> Mad {
    let mut changed = *mad;
    changed.header.attribute_modifier = modifier.into();
    changed.header.method = Method::GET;
    changed
}
