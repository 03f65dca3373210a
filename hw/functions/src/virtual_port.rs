//! The device and its ports as a virtual function sees and changes them, and its questions to the device's agents.

use hca_api::{
    DeviceAttributes, DeviceCaps, Hca, HcaError, Limits, LocalMad, MadView, PortAttributes,
    PortModify, SourceAddress,
};
use ib_wire::mad::{Mad, MadStatus, Method, MgmtClass};
use ib_wire::smp::CapabilityMask;
use ib_wire::{PKey, PKeyIndex, PortNum};

use crate::function::MAX_CQE;
use crate::functions::Function;
use crate::tunnel::{MAX_INLINE, MAX_SGE, MAX_WR};
use crate::vf::Vf;
use crate::virtual_view::{physical_request, virtual_answer};

/// Abilities of the device that virtual functions have, too.
const CAPS: DeviceCaps = DeviceCaps::BAD_PKEY_COUNTER
    .union(DeviceCaps::BAD_QKEY_COUNTER)
    .union(DeviceCaps::PORT_ACTIVE_EVENT)
    .union(DeviceCaps::SYSTEM_IMAGE_GUID)
    .union(DeviceCaps::INIT_TYPE)
    .union(DeviceCaps::BLOCK_MULTICAST_LOOPBACK)
    .union(DeviceCaps::SRQ)
    .union(DeviceCaps::MW_TYPE_1)
    .union(DeviceCaps::MW_TYPE_2)
    .union(DeviceCaps::RC_RNR_NAK)
    .union(DeviceCaps::RC)
    .union(DeviceCaps::UC)
    .union(DeviceCaps::UD)
    .union(DeviceCaps::ATOMIC)
    .union(DeviceCaps::ATOMIC_WRITE)
    .union(DeviceCaps::FLUSH_GLOBAL);

/// Capability bits that announce a manager behind QP0 or QP1; a VF has neither.
const GUARDED: u32 =
    CapabilityMask::IS_SM.get() | CapabilityMask::IS_DEVICE_MANAGEMENT_SUPPORTED.get();

impl Vf {
    pub(crate) fn attributes(&self, hca: &dyn Hca) -> DeviceAttributes {
        let physical = hca.attributes();
        let quota = &self.quota;
        DeviceAttributes {
            node_guid: self.node_guid,
            caps: physical.caps & CAPS | DeviceCaps::RESIZE_CQ,
            limits: Limits {
                max_qp: quota.qps,
                max_qp_wr: physical.limits.max_qp_wr.min(MAX_WR),
                max_sge: physical.limits.max_sge.min(MAX_SGE),
                max_inline: physical.limits.max_inline.min(MAX_INLINE),
                max_cq: quota.cqs,
                max_cqe: MAX_CQE,
                max_srq: quota.srqs,
                max_mr: quota.mrs,
                max_mw: quota.mws,
                max_pd: quota.pds,
                max_av: quota.avs,
                max_mcast_grp: quota.attachments.min(physical.limits.max_mcast_grp),
                max_mcast_qp_attach: quota.attachments.min(physical.limits.max_mcast_qp_attach),
                max_fast_reg_pages: 0,
                ..physical.limits
            },
            ..physical
        }
    }

    pub(crate) fn query_port(
        &self,
        hca: &dyn Hca,
        port: PortNum,
    ) -> Result<PortAttributes, HcaError> {
        let own = self.port(port)?;
        let physical = hca.query_port(port)?;
        Ok(PortAttributes {
            state: own.view.state.min(physical.state),
            gid_table_len: 1,
            pkey_table_len: u16::try_from(own.view.pkeys.len()).unwrap_or(u16::MAX),
            capability_mask: own.capabilities | physical.capability_mask & !GUARDED,
            smi_permitted: own.view.smi_enabled,
            ..physical
        })
    }

    /// Keeps the capabilities that the consumer set; the port does not show them to the subnet.
    pub(crate) fn modify_port(
        &mut self,
        port: PortNum,
        change: &PortModify,
    ) -> Result<(), HcaError> {
        let own = self.port_mut(port)?;
        let is_physical =
            change.reset_qkey_counter || change.shutdown.is_some() || change.init_type.is_some();
        if is_physical || change.set_capabilities & GUARDED != 0 {
            return Err(HcaError::PermissionDenied);
        }
        own.capabilities =
            (own.capabilities | change.set_capabilities) & !change.clear_capabilities;
        Ok(())
    }

    pub(crate) fn query_pkey(
        &self,
        hca: &dyn Hca,
        port: PortNum,
        index: PKeyIndex,
    ) -> Result<PKey, HcaError> {
        let own = self.port(port)?;
        if usize::from(index.0) >= own.view.pkeys.len() {
            return Err(HcaError::InvalidIndex);
        }
        let physical = own.physical_pkey(index);
        Ok(physical
            .and_then(|index| hca.query_pkey(port, index).ok())
            .unwrap_or(PKey::INVALID))
    }
}

impl<H: Hca> Function<'_, H> {
    /// Asks the device's agents for a virtual function.
    pub(crate) fn process_mad_of_vf(
        &mut self,
        port: PortNum,
        view: MadView,
        mad: &Mad,
    ) -> Result<LocalMad, HcaError> {
        let smi_enabled = self.vf()?.port(port)?.view.smi_enabled;
        let is_get = mad.header.method == Method::GET;
        let class = mad.header.mgmt_class;
        if class == MgmtClass::PERF {
            return if is_get {
                self.hca.process_local_mad(port, MadView::Host, mad)
            } else {
                Ok(refused(mad))
            };
        }
        if !class.is_smp() {
            return Ok(LocalMad::NotHandled);
        }
        if view == MadView::Host && is_get && class == MgmtClass::SUBN_LID_ROUTED {
            let request = physical_request(port, mad);
            let answer = self.hca.process_local_mad(port, MadView::Host, &request)?;
            return Ok(virtual_answer(self, port, mad, answer));
        }
        if !smi_enabled {
            return Ok(refused(mad));
        }
        // It could send the same SMP to the port through the subnet, so it gets the same answer, and needs the same key.
        let view = MadView::Network(SourceAddress::local(port));
        self.hca.process_local_mad(port, view, mad)
    }
}

/// Returns the answer to a question that a function may not ask its device's agents.
fn refused(mad: &Mad) -> LocalMad {
    if mad.header.method.is_response() {
        return LocalMad::NotHandled;
    }
    let mut reply = *mad;
    reply.header.method = mad.header.method.response();
    reply.header.status = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
    LocalMad::Reply(reply)
}
