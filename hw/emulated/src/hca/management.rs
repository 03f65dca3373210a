//! What a function sees and changes of the device and its ports, and the device's agents.

use hca_api::{
    DeviceAttributes, DeviceCaps, DeviceModify, FunctionId, HcaError, Limits, LocalMad, MadView,
    PortAttributes, PortModify, Privileges, SourceAddress,
};
use hca_functions::{physical_request, virtual_answer};
use ib_wire::mad::{Mad, MadStatus, Method, MgmtClass};
use ib_wire::smp::{CapabilityMask, NodeDescription};
use ib_wire::{Gid, GidIndex, PKey, PKeyIndex, PortNum};

use super::function::FunctionState;
use super::{Device, Function, LIMITS};
use crate::{Node, pma, sma};

/// Abilities of the device.
const CAPS: DeviceCaps = DeviceCaps::RESIZE_CQ
    .union(DeviceCaps::SRQ)
    .union(DeviceCaps::MEM_MGT_EXTENSIONS)
    .union(DeviceCaps::MW_TYPE_1)
    .union(DeviceCaps::MW_TYPE_2)
    .union(DeviceCaps::BAD_PKEY_COUNTER)
    .union(DeviceCaps::BAD_QKEY_COUNTER)
    .union(DeviceCaps::PORT_ACTIVE_EVENT)
    .union(DeviceCaps::SYSTEM_IMAGE_GUID)
    .union(DeviceCaps::INIT_TYPE)
    .union(DeviceCaps::BLOCK_MULTICAST_LOOPBACK)
    .union(DeviceCaps::RC_RNR_NAK)
    .union(DeviceCaps::RC)
    .union(DeviceCaps::UC)
    .union(DeviceCaps::UD)
    .union(DeviceCaps::ATOMIC)
    .union(DeviceCaps::ATOMIC_WRITE.union(DeviceCaps::FLUSH_GLOBAL))
    .union(DeviceCaps::CHOSEN_NAMES);

/// Queue pairs of one VF in one multicast group. It bounds what a packet of a group that all VFs are in costs the adapter,
/// and is the least for which Linux' `mlx4_core` sets an adapter up (`MLX4_MIN_MGM_LOG_ENTRY_SIZE`).
const VF_QPS_PER_GROUP: u32 = 24;

/// Capability bits that announce a manager behind QP0 or QP1; a VF has neither.
const GUARDED: u32 =
    CapabilityMask::IS_SM.get() | CapabilityMask::IS_DEVICE_MANAGEMENT_SUPPORTED.get();

impl Device {
    pub(super) fn attributes(&self, function: FunctionId) -> DeviceAttributes {
        let state = self.state(function).ok();
        DeviceAttributes {
            vendor_id: self.node.vendor_id,
            vendor_part_id: u32::from(self.node.device_id),
            hw_rev: self.node.revision,
            fw_version: 0,
            node_guid: state.map_or(self.node.node_guid, |state| state.node_guid),
            system_image_guid: self.node.system_image_guid,
            num_ports: self.node.port_count(),
            caps: CAPS,
            limits: state.map_or(LIMITS, limits),
        }
    }

    pub(super) fn modify_device(
        &mut self,
        function: FunctionId,
        change: &DeviceModify,
    ) -> Result<(), HcaError> {
        if !self.state(function)?.has(Privileges::MANAGE_FUNCTIONS) {
            return Err(HcaError::PermissionDenied);
        }
        let description = change.node_description.as_deref();
        if description.is_some_and(|text| text.len() > NodeDescription::default().text.len()) {
            return Err(HcaError::InvalidParameter);
        }
        if let Some(guid) = change.system_image_guid {
            self.node.set_system_image_guid(guid);
        }
        if let Some(text) = description {
            self.node.set_description(NodeDescription::new(text));
        }
        Ok(())
    }

    pub(super) fn query_port(
        &self,
        function: FunctionId,
        port: PortNum,
    ) -> Result<PortAttributes, HcaError> {
        let state = self.state(function)?;
        let physical = self.node.port(port).ok_or(HcaError::InvalidPort)?;
        let own = state.port(port).ok_or(HcaError::InvalidPort)?;
        let privileged = state.has(Privileges::ANY_SOURCE);
        let pkeys = self.pkey_table_len(state, port)?;
        Ok(PortAttributes {
            state: if privileged {
                physical.state
            } else {
                own.view.state.min(physical.state)
            },
            physical_state: physical.physical_state,
            lid: physical.lid,
            lmc: physical.lmc,
            sm_lid: physical.sm_lid,
            sm_sl: physical.sm_sl,
            subnet_prefix: physical.subnet_prefix,
            max_mtu: physical.mtu_cap,
            active_mtu: physical.neighbor_mtu,
            gid_table_len: if privileged { physical.guid_cap } else { 1 },
            pkey_table_len: u16::try_from(pkeys).unwrap_or(u16::MAX),
            capability_mask: self.capabilities_of(state, port),
            smi_permitted: own.view.smi_enabled || state.has(Privileges::SPECIAL_QP),
            subnet_timeout: physical.subnet_timeout,
            active_width: physical.width_active.0,
            active_speed: physical.speed_active.get(),
            bad_pkey_counter: u32::from(physical.p_key_violations),
            bad_qkey_counter: u32::from(physical.q_key_violations),
        })
    }

    pub(super) fn modify_port(
        &mut self,
        function: FunctionId,
        port: PortNum,
        change: &PortModify,
    ) -> Result<(), HcaError> {
        let state = self.state(function)?;
        state.port(port).ok_or(HcaError::InvalidPort)?;
        let (set, clear) = (change.set_capabilities, change.clear_capabilities);
        let physical_change =
            change.reset_qkey_counter || change.shutdown.is_some() || change.init_type.is_some();
        if (set & GUARDED != 0 && !state.has(Privileges::SPECIAL_QP))
            || (physical_change && !state.has(Privileges::MANAGE_FUNCTIONS))
        {
            return Err(HcaError::PermissionDenied);
        }
        if change.init_type.is_some_and(|kind| kind > 0x0f) {
            return Err(HcaError::InvalidParameter);
        }
        if let Some(own) = self.state_mut(function)?.port_mut(port) {
            own.capabilities = (own.capabilities | set) & !clear;
        }
        self.merge_capabilities(port);
        apply(&mut self.node, port, change);
        Ok(())
    }

    /// The port shows what any function has set.
    pub(super) fn merge_capabilities(&mut self, port: PortNum) {
        let merged = self
            .functions
            .iter()
            .flatten()
            .filter_map(|state| state.port(port))
            .fold(0, |all, own| all | own.capabilities);
        self.node.change_capabilities(port, merged, !merged);
    }

    /// The capability mask that a function sees: the device's own abilities, and what the function
    /// has set.
    fn capabilities_of(&self, state: &FunctionState, port: PortNum) -> u32 {
        let of = |state: &FunctionState| state.port(port).map_or(0, |own| own.capabilities);
        of(state) | self.state(FunctionId::PF).map_or(0, of) & !GUARDED
    }

    pub(super) fn query_gid(
        &self,
        function: FunctionId,
        port: PortNum,
        index: GidIndex,
    ) -> Result<Gid, HcaError> {
        let state = self.state(function)?;
        let physical = self.node.port(port).ok_or(HcaError::InvalidPort)?;
        let index = if state.has(Privileges::ANY_SOURCE) {
            index
        } else if index.0 == 0 {
            GidIndex(function.0)
        } else {
            return Err(HcaError::InvalidIndex);
        };
        physical.gid(index).ok_or(HcaError::InvalidIndex)
    }

    pub(super) fn query_pkey(
        &self,
        function: FunctionId,
        port: PortNum,
        index: PKeyIndex,
    ) -> Result<PKey, HcaError> {
        let state = self.state(function)?;
        self.check_pkey_index(state, port, index)?;
        let physical = self.node.port(port).ok_or(HcaError::InvalidPort)?;
        Ok(state
            .physical_pkey(port, index)
            .and_then(|index| physical.pkey(index))
            .unwrap_or(PKey::INVALID))
    }

    /// Entries of the P_Key table that a function sees.
    pub(super) fn pkey_table_len(
        &self,
        state: &FunctionState,
        port: PortNum,
    ) -> Result<usize, HcaError> {
        let physical = self.node.port(port).ok_or(HcaError::InvalidPort)?;
        if state.has(Privileges::ANY_SOURCE) {
            return Ok(usize::from(physical.pkey_cap));
        }
        state
            .port(port)
            .map(|own| own.view.pkeys.len())
            .ok_or(HcaError::InvalidPort)
    }

    pub(super) fn process_local_mad(
        &mut self,
        function: FunctionId,
        port: PortNum,
        view: MadView,
        mad: &Mad,
    ) -> Result<LocalMad, HcaError> {
        let state = self.state(function)?;
        let own = state.port(port).ok_or(HcaError::InvalidPort)?;
        let smi_enabled = own.view.smi_enabled;
        let privileged = state.has(Privileges::LOCAL_SMA_WRITE);
        if mad.header.mgmt_class == MgmtClass::PERF {
            let reads = mad.header.method == Method::GET;
            if !privileged && !reads {
                return Ok(refused(mad));
            }
            return Ok(pma::process(&mut self.node, port, mad));
        }
        if !mad.header.mgmt_class.is_smp() {
            return Ok(LocalMad::NotHandled);
        }
        if privileged {
            return Ok(sma::process(&mut self.node, port, &view, mad));
        }
        let host_view = view == MadView::Host;
        let lid_routed = mad.header.mgmt_class == MgmtClass::SUBN_LID_ROUTED;
        if host_view && lid_routed && mad.header.method == Method::GET {
            let request = physical_request(port, mad);
            let answer = sma::process(&mut self.node, port, &MadView::Host, &request);
            let vf = Function {
                device: self,
                id: function,
            };
            return Ok(virtual_answer(&vf, port, mad, answer));
        }
        if !smi_enabled {
            return Ok(refused(mad));
        }
        // It could send the same SMP to the port through the subnet, so it gets the same answer, and needs the same
        // key.
        let view = MadView::Network(SourceAddress::local(port));
        Ok(sma::process(&mut self.node, port, &view, mad))
    }
}

/// The answer to what a function may not ask its device's agents.
fn refused(mad: &Mad) -> LocalMad {
    if mad.header.method.is_response() {
        return LocalMad::NotHandled;
    }
    let mut reply = *mad;
    reply.header.method = mad.header.method.response();
    reply.header.status = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
    LocalMad::Reply(reply)
}

/// What a function may have: of each object its quota, within what the adapter's tables keep for it.
pub(super) fn limits(state: &FunctionState) -> Limits {
    let quota = state.quota();
    let per_group = if state.id == FunctionId::PF {
        LIMITS.max_mcast_qp_attach
    } else {
        VF_QPS_PER_GROUP
    };
    Limits {
        max_qp: quota.qps.min(LIMITS.max_qp),
        max_cq: quota.cqs.min(LIMITS.max_cq),
        max_srq: quota.srqs.min(LIMITS.max_srq),
        max_mr: quota.mrs.min(LIMITS.max_mr),
        max_mw: quota.mws.min(LIMITS.max_mw),
        max_pd: quota.pds.min(LIMITS.max_pd),
        max_av: quota.avs.min(LIMITS.max_av),
        max_mcast_grp: quota.attachments.min(LIMITS.max_mcast_grp),
        max_mcast_qp_attach: quota.attachments.min(per_group),
        ..LIMITS
    }
}

fn apply(node: &mut Node, number: PortNum, change: &PortModify) {
    let Some(port) = node.port_mut(number) else {
        return;
    };
    if change.reset_qkey_counter {
        port.q_key_violations = 0;
    }
    if let Some(kind) = change.init_type {
        port.init_type = kind;
    }
    if let Some(shutdown) = change.shutdown {
        node.set_port_enabled(number, !shutdown);
    }
}
