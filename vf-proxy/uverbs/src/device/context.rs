//! Open files, and which command does what.

use hca_api::{DeviceCaps, Hca};
use ib_wire::PortNum;
use verbs_link::abi::command;
use verbs_link::abi::completion_queue::CreateCompChannelAnswer;
use verbs_link::abi::device::{
    ExtendedQueryDeviceAnswer, GetContextAnswer, LINK_LAYER_INFINIBAND, QueryDeviceAnswer,
    QueryPort, QueryPortAnswer,
};
use verbs_link::{Answer, Command, Errno, Reply};
use verbs_link::{physical_state, port_state};

use super::completion_queue::max_entries;
use super::{ClosedFile, Context, ContextId, Kind, Objects, ProcessDevice};

/// Open files of a process at most.
const MAX_CONTEXTS: usize = 256;

/// Objects that a step of the end of a file looks at.
const END_STEP: usize = 32;

impl<T> Objects<T> {
    /// Returns the objects of a file among the next ones from a handle on, and the handle of those behind, if there are any.
    fn part_of(&self, context: ContextId, from: u32) -> (Vec<u32>, Option<u32>) {
        let mut next = self.0.range(from..);
        let part = next.by_ref().take(END_STEP);
        let own = part.filter(|(_, owned)| owned.context == context);
        let own = own.map(|(handle, _)| *handle).collect();
        (own, next.next().map(|(handle, _)| *handle))
    }
}

/// Bits of `device_cap_flags` (`enum ibv_device_cap_flags`).
mod cap {
    pub(super) const BAD_PKEY_CNTR: u32 = 1 << 1;
    pub(super) const BAD_QKEY_CNTR: u32 = 1 << 2;
    pub(super) const CURR_QP_STATE_MOD: u32 = 1 << 7;
    pub(super) const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub(super) const SYS_IMAGE_GUID: u32 = 1 << 11;
    pub(super) const RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub(super) const MEM_WINDOW: u32 = 1 << 17;
    pub(super) const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    /// Of `device_cap_flags_ex`.
    pub(super) const FLUSH_GLOBAL: u64 = 1 << 38;
    pub(super) const ATOMIC_WRITE: u64 = 1 << 40;
}

impl ProcessDevice {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] if there are too many, [`Errno::EIO`] without a process.
    pub fn open(&mut self) -> Result<ContextId, Errno> {
        self.rings()?;
        if self.contexts.len() >= MAX_CONTEXTS {
            return Err(Errno::ENOMEM);
        }
        let id = ContextId(self.next_context);
        self.next_context = self.next_context.wrapping_add(1);
        self.contexts.insert(id, Context { events: None });
        Ok(id)
    }

    /// Closes a file and destroys its first objects. The next polls destroy the others.
    pub fn close(&mut self, hca: &mut dyn Hca, context: ContextId) {
        if self.contexts.remove(&context).is_none() {
            return;
        }
        self.closed.push_back(ClosedFile::of(context));
        // A file has objects of a few kinds, and few of each.
        for _ in 0..=Kind::Domains as u8 {
            self.end_closed(hca);
        }
    }

    /// Destroys a part of the objects of the file that was closed first: looks at so many objects of a kind. Returns `false` if
    /// there is no closed file.
    pub(super) fn end_closed(&mut self, hca: &mut dyn Hca) -> bool {
        let Some(file) = self.closed.front().copied() else {
            return false;
        };
        let ClosedFile {
            context,
            kind,
            handle: from,
        } = file;
        let (behind, next_kind) = match kind {
            Kind::QueuePairs => {
                let (part, behind) = self.qps.part_of(context, from);
                part.iter().for_each(|handle| self.end_qp(hca, *handle));
                (behind, Some(Kind::SharedReceiveQueues))
            }
            Kind::SharedReceiveQueues => {
                let (part, behind) = self.srqs.part_of(context, from);
                part.iter().for_each(|handle| self.end_srq(hca, *handle));
                (behind, Some(Kind::CompletionQueues))
            }
            Kind::CompletionQueues => {
                let (part, behind) = self.cqs.part_of(context, from);
                part.iter().for_each(|handle| self.end_cq(hca, *handle));
                (behind, Some(Kind::Windows))
            }
            Kind::Windows => {
                let (part, behind) = self.mws.part_of(context, from);
                part.iter().for_each(|handle| self.end_window(hca, *handle));
                (behind, Some(Kind::Regions))
            }
            Kind::Regions => {
                let (part, behind) = self.mrs.part_of(context, from);
                part.iter().for_each(|handle| self.end_region(hca, *handle));
                (behind, Some(Kind::Addresses))
            }
            Kind::Addresses => {
                let (part, behind) = self.ahs.part_of(context, from);
                part.iter()
                    .for_each(|handle| self.end_address(hca, *handle));
                (behind, Some(Kind::Domains))
            }
            Kind::Domains => {
                let (part, behind) = self.pds.part_of(context, from);
                part.iter().for_each(|handle| self.end_domain(hca, *handle));
                (behind, None)
            }
        };
        let next = match (behind, next_kind) {
            (Some(handle), _) => Some((kind, handle)),
            (None, Some(kind)) => Some((kind, 0)),
            (None, None) => None,
        };
        if let (Some((kind, handle)), Some(file)) = (next, self.closed.front_mut()) {
            (file.kind, file.handle) = (kind, handle);
        } else {
            self.channels
                .retain(|_, channel| channel.context != context);
            self.closed.pop_front();
        }
        true
    }

    pub(super) fn carry_out(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<(Answer, Reply), Errno> {
        let known = self.contexts.get(&context).ok_or(Errno::EIO)?;
        if command.number == command::GET_CONTEXT && !command.extended {
            return self.get_context(context);
        }
        if known.events.is_none() {
            return Err(Errno::EINVAL);
        }
        let plain = |answer: Answer| (answer, Reply::default());
        match (command.number, command.extended) {
            (command::QUERY_DEVICE, extended) => Ok(plain(query_device(hca, extended, command))),
            (command::QUERY_PORT, false) => query_port(hca, command).map(plain),
            (command::ALLOC_PD, false) => self.alloc_pd(hca, context).map(plain),
            (command::DEALLOC_PD, false) => self.dealloc_pd(hca, context, command).map(plain),
            (command::CREATE_AH, false) => self.create_ah(hca, context, command).map(plain),
            (command::DESTROY_AH, false) => self.destroy_ah(hca, context, command).map(plain),
            (command::REG_MR, false) => self.reg_mr(hca, context, command).map(plain),
            (command::DEREG_MR, false) => self.dereg_mr(hca, context, command).map(plain),
            (command::ALLOC_MW, false) => self.alloc_mw(hca, context, command).map(plain),
            (command::DEALLOC_MW, false) => self.dealloc_mw(hca, context, command).map(plain),
            (command::CREATE_COMP_CHANNEL, false) => self.create_comp_channel(context),
            (command::CREATE_CQ, extended) => {
                let made = self.create_cq(hca, context, command, extended);
                made.map(plain)
            }
            (command::RESIZE_CQ, false) => self.resize_cq(hca, context, command).map(plain),
            (command::REQ_NOTIFY_CQ, false) => self.req_notify_cq(context, command).map(plain),
            (command::DESTROY_CQ, false) => self.destroy_cq(hca, context, command),
            (command::CREATE_QP, extended) => {
                let made = self.create_qp(hca, context, command, extended);
                made.map(plain)
            }
            (command::QUERY_QP, false) => self.query_qp(hca, context, command).map(plain),
            (command::MODIFY_QP, extended) => {
                let modified = self.modify_qp(hca, context, command, extended);
                modified.map(plain)
            }
            (command::DESTROY_QP, false) => self.destroy_qp(hca, context, command),
            (command::POST_SEND, false) => self.post_send(hca, context, command).map(plain),
            (command::ATTACH_MCAST, false) => self.attach(hca, context, command).map(plain),
            (command::DETACH_MCAST, false) => self.detach(hca, context, command).map(plain),
            (command::CREATE_SRQ | command::CREATE_XSRQ, false) => {
                self.create_srq(hca, context, command).map(plain)
            }
            (command::MODIFY_SRQ, false) => self.modify_srq(hca, context, command).map(plain),
            (command::QUERY_SRQ, false) => self.query_srq(hca, context, command).map(plain),
            (command::DESTROY_SRQ, false) => self.destroy_srq(hca, context, command),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn get_context(&mut self, context: ContextId) -> Result<(Answer, Reply), Errno> {
        let known = self.contexts.get(&context).ok_or(Errno::EIO)?;
        if known.events.is_some() {
            return Err(Errno::EINVAL);
        }
        let channel = self.open_channel(context)?;
        self.contexts.insert(
            context,
            Context {
                events: Some(channel),
            },
        );
        let answer = GetContextAnswer {
            async_fd: channel.0.into(),
            num_comp_vectors: 1.into(),
        };
        let reply = Reply {
            opened: Some(channel),
            ..Reply::default()
        };
        Ok((Answer::new(&answer), reply))
    }

    fn create_comp_channel(&mut self, context: ContextId) -> Result<(Answer, Reply), Errno> {
        let channel = self.open_channel(context)?;
        let answer = CreateCompChannelAnswer {
            fd: channel.0.into(),
        };
        let reply = Reply {
            opened: Some(channel),
            ..Reply::default()
        };
        Ok((Answer::new(&answer), reply))
    }
}

fn query_device(hca: &dyn Hca, extended: bool, command: &Command<'_>) -> Answer {
    let base = device_attributes(hca);
    if !extended {
        return Answer::new(&base);
    }
    // As in the kernel the length counts whole groups of fields that the program has room for.
    let length = command.room().min(size_of::<ExtendedQueryDeviceAnswer>());
    let mut flags = u64::from(base.device_cap_flags.get());
    let caps = hca.attributes().caps;
    for (has, flag) in [
        (DeviceCaps::FLUSH_GLOBAL, cap::FLUSH_GLOBAL),
        (DeviceCaps::ATOMIC_WRITE, cap::ATOMIC_WRITE),
    ] {
        if caps.contains(has) {
            flags |= flag;
        }
    }
    Answer::new(&ExtendedQueryDeviceAnswer {
        device_cap_flags_ex: flags.into(),
        base,
        response_length: u32::try_from(length).unwrap_or(0).into(),
        ..ExtendedQueryDeviceAnswer::default()
    })
}

fn device_attributes(hca: &dyn Hca) -> QueryDeviceAnswer {
    let device = hca.attributes();
    let limits = &device.limits;
    let mut flags = cap::CURR_QP_STATE_MOD;
    for (has, flag) in [
        (DeviceCaps::BAD_PKEY_COUNTER, cap::BAD_PKEY_CNTR),
        (DeviceCaps::BAD_QKEY_COUNTER, cap::BAD_QKEY_CNTR),
        (DeviceCaps::PORT_ACTIVE_EVENT, cap::PORT_ACTIVE_EVENT),
        (DeviceCaps::SYSTEM_IMAGE_GUID, cap::SYS_IMAGE_GUID),
        (DeviceCaps::RC_RNR_NAK, cap::RC_RNR_NAK_GEN),
        (DeviceCaps::MW_TYPE_1, cap::MEM_WINDOW),
        (DeviceCaps::MW_TYPE_2, cap::MEM_WINDOW_TYPE_2B),
    ] {
        if device.caps.contains(has) {
            flags |= flag;
        }
    }
    let max_pkeys = hca.query_port(PortNum(1));
    let max_pkeys = max_pkeys.map_or(0, |port| port.pkey_table_len);
    let groups = limits.max_mcast_grp;
    QueryDeviceAnswer {
        fw_ver: device.fw_version.into(),
        node_guid: device.node_guid,
        sys_image_guid: device.system_image_guid,
        max_mr_size: limits.max_mr_size.into(),
        page_size_cap: 0xffff_f000.into(),
        vendor_id: device.vendor_id.into(),
        vendor_part_id: device.vendor_part_id.into(),
        hw_ver: device.hw_rev.into(),
        max_qp: limits.max_qp.into(),
        max_qp_wr: (limits.max_qp_wr - 1).into(),
        device_cap_flags: flags.into(),
        max_sge: limits.max_sge.into(),
        max_sge_rd: limits.max_sge.into(),
        max_cq: limits.max_cq.into(),
        max_cqe: max_entries(hca).into(),
        max_mr: limits.max_mr.into(),
        max_mw: limits.max_mw.into(),
        max_pd: limits.max_pd.into(),
        max_qp_rd_atom: u32::from(limits.max_qp_rd_atom).into(),
        max_res_rd_atom: (u32::from(limits.max_qp_rd_atom) * limits.max_qp).into(),
        max_qp_init_rd_atom: u32::from(limits.max_qp_init_rd_atom).into(),
        atomic_cap: u32::from(device.caps.contains(DeviceCaps::ATOMIC)).into(),
        max_mcast_grp: groups.into(),
        max_mcast_qp_attach: limits.max_mcast_qp_attach.into(),
        max_total_mcast_qp_attach: groups.saturating_mul(limits.max_mcast_qp_attach).into(),
        max_ah: limits.max_av.into(),
        max_srq: limits.max_srq.into(),
        max_srq_wr: (limits.max_srq_wr - 1).into(),
        max_srq_sge: limits.max_sge.into(),
        max_pkeys: max_pkeys.into(),
        local_ca_ack_delay: 15,
        phys_port_cnt: device.num_ports,
        ..QueryDeviceAnswer::default()
    }
}

/// Bytes of the longest message.
const MAX_MESSAGE: u32 = 1 << 30;

fn query_port(hca: &dyn Hca, command: &Command<'_>) -> Result<Answer, Errno> {
    let (asked, _) = command.read::<QueryPort>()?;
    let port = hca.query_port(PortNum(asked.port_num))?;
    Ok(Answer::new(&QueryPortAnswer {
        port_cap_flags: port.capability_mask.into(),
        max_msg_sz: MAX_MESSAGE.into(),
        bad_pkey_cntr: port.bad_pkey_counter.into(),
        qkey_viol_cntr: port.bad_qkey_counter.into(),
        gid_tbl_len: u32::from(port.gid_table_len).into(),
        pkey_tbl_len: port.pkey_table_len.into(),
        lid: port.lid.get().into(),
        sm_lid: port.sm_lid.get().into(),
        state: port_state(port.state),
        max_mtu: port.max_mtu.get(),
        active_mtu: port.active_mtu.get(),
        lmc: port.lmc.get(),
        max_vl_num: 1,
        sm_sl: port.sm_sl.get(),
        subnet_timeout: port.subnet_timeout,
        active_width: port.active_width,
        active_speed: port.active_speed,
        phys_state: physical_state(port.physical_state),
        link_layer: LINK_LAYER_INFINIBAND,
        ..QueryPortAnswer::default()
    }))
}
