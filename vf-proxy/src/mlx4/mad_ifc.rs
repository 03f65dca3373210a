//! The driver's questions to its port's management agent.
//!
//! The adapter's own agents answer them in the virtual view of the VF
//! ([`Hca::process_local_mad`]). What stands here is who may ask what, as the PF's driver decides it
//! (`mlx4_MAD_IFC_wrapper`), and what the guest's view of a port adds.

use hca_api::{GlobalRoute, Hca, LocalMad, MadView, SourceAddress};
use ib_wire::mad::{Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{
    CapabilityMask, LidRoutedSmp, PortInfo, PortState as WirePortState, SmpAttribute,
};
use ib_wire::{GidIndex, Lid, PKeyIndex, PortNum};
use mlx4_defs::mad_ifc::{MadIfcInput, MadIfcModifier, MadIfcOp, MadIfcPacket};
use mlx4_defs::{Mailbox, Status};

use super::pd::status_of;

/// A question.
#[derive(Clone, Debug)]
pub(super) struct MadRequest {
    port: PortNum,
    pub(super) view: MadView,
    mad: Mad,
}

impl MadRequest {
    /// What the command says.
    pub(super) fn parse(modifier: u32, op_modifier: u8, mailbox: &Mailbox) -> Self {
        let modifier: MadIfcModifier = zerocopy::transmute!(modifier.to_be_bytes());
        let op = MadIfcOp { bits: op_modifier };
        let input: &MadIfcInput = mailbox.view();
        let port = PortNum(modifier.port);
        let packet = op.has_packet().then_some(&input.packet);
        Self {
            port,
            view: if op.network_view() {
                MadView::Network(source(port, modifier.slid, packet))
            } else {
                MadView::Host
            },
            mad: input.mad,
        }
    }

    /// Whose port it is about.
    pub(super) const fn port(&self) -> PortNum {
        self.port
    }

    /// Asks the adapter. `qkey_violations` is how many violations the port had counted when the guest
    /// set its counter back.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for a port that the function does not have and for MADs that no agent
    /// answers, [`Status::BAD_OP`] for those that the guest may not ask.
    pub(super) fn ask(&self, hca: &mut dyn Hca, qkey_violations: u16) -> Result<Mad, Status> {
        let attributes = hca.query_port(self.port).map_err(status_of)?;
        if !self.asks_about_itself() && !attributes.smi_permitted {
            return Err(Status::BAD_OP);
        }
        let answer = hca
            .process_local_mad(self.port, self.view, &self.mad)
            .map_err(status_of)?;
        match answer {
            LocalMad::Reply(mut reply) => {
                if self.asks_about_itself() {
                    show_to_guest(reply.view_mut(), qkey_violations);
                }
                Ok(reply)
            }
            // Nobody waits for the answer to what is only taken.
            LocalMad::Consumed => Ok(Mad::default()),
            LocalMad::NotHandled => Err(Status::BAD_PARAM),
        }
    }

    /// Whether this is the host's question about its own port, which every VF may ask.
    fn asks_about_itself(&self) -> bool {
        let header = &self.mad.header;
        self.view == MadView::Host
            && header.mgmt_class == MgmtClass::SUBN_LID_ROUTED
            && header.method == Method::GET
    }
}

/// What a port's agent says of the port.
///
/// # Errors
/// [`Status::INTERNAL_ERR`] if it says nothing.
pub(super) fn port_info(hca: &mut dyn Hca, port: PortNum) -> Result<PortInfo, Status> {
    let mut header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, PortInfo::ID);
    header.attribute_modifier = u32::from(port.0).into();
    let asked = hca.process_local_mad(port, MadView::Host, &Mad::new(header));
    match asked.map_err(status_of)? {
        LocalMad::Reply(reply) if reply.header.status == MadStatus::OK => {
            Ok(*reply.view::<LidRoutedSmp>().attribute())
        }
        _ => Err(Status::INTERNAL_ERR),
    }
}

/// Where a MAD came from. One that the guest's host made itself came from nowhere.
fn source(port: PortNum, slid: Lid, packet: Option<&MadIfcPacket>) -> SourceAddress {
    let local = SourceAddress::local(port);
    packet.map_or(local, |packet| SourceAddress {
        slid,
        src_qpn: packet.remote_qpn,
        sl: packet.sl(),
        dlid_path_bits: packet.path_bits(),
        pkey_index: PKeyIndex(packet.pkey_index.get()),
        grh: packet.grh_present().then(|| GlobalRoute {
            remote_gid: packet.grh.sgid,
            sgid_index: GidIndex(0),
            flow_label: packet.grh.flow_label(),
            hop_limit: packet.grh.hop_limit,
            traffic_class: packet.grh.traffic_class(),
        }),
        ..local
    })
}

/// Capability bits that announce a manager behind the port's QP0 or QP1; a guest's port never has one.
pub(super) const MANAGERS: CapabilityMask =
    CapabilityMask::IS_SM.union(CapabilityMask::IS_DEVICE_MANAGEMENT_SUPPORTED);

/// What a guest's port adds to the virtual view of the adapter.
fn show_to_guest(smp: &mut LidRoutedSmp, qkey_violations: u16) {
    if smp.header.attribute_id != PortInfo::ID || smp.header.status != MadStatus::OK {
        return;
    }
    let info: &mut PortInfo = smp.attribute_mut();
    // The states between are the subnet manager's affair and would say nothing to a guest.
    if info.port_state() != WirePortState::ACTIVE {
        info.set_port_state(WirePortState::DOWN);
    }
    info.capability_mask = info.capability_mask.difference(MANAGERS);
    let counted = info.qkey_violations.get();
    info.qkey_violations
        .set(counted.checked_sub(qkey_violations).unwrap_or(counted));
}
