//! The verbs.

use hca_api::{
    AddressVector, ArmKind, AvHandle, Completion, CompletionOp, CqHandle, DeviceAttributes,
    DeviceCaps, DmaBuffer, DmaFault, FunctionAttributes, FunctionId, Hca, HcaError, HcaEvent,
    Limits, LocalMad, MadView, MrHandle, MrKeys, MrSpec, Payload, PdHandle, PortAttributes,
    PortModify, Privileges, QpAttributes, QpHandle, QpModify, QpNumbers, QpSpec, QpState,
    RecvRequest, SendFlags, SendOp, SendRequest, SrqAttributes, SrqHandle, SrqSpec,
};
use ib_vtime::Secret;
use ib_wire::mad::Mad;
use ib_wire::{Gid, GidIndex, Lid, PKey, PKeyIndex, PortNum, Qpn};

use super::{LinuxHca, check_port, firmware, physical_state, port_state};
use crate::attributes::{PORT, qp_type, refused};
use crate::data::Data;
use crate::gsi::{self, Gsi, MAX_INLINE, MAX_SGE, MAX_WR, NUMBERS};
use crate::local_mad::link_speed;
use crate::memory::MAX_OBJECTS;
use crate::pair::shared_name;
use crate::queue::{CompletionQueue, MAX_ENTRIES};
use crate::umad::PortFiles;

/// Objects of a kind that there may be.
#[expect(clippy::cast_possible_truncation, reason = "65,536")]
const OBJECTS: u32 = MAX_OBJECTS as u32;

/// The function's bounds, 0 for objects that it cannot have.
const LIMITS: Limits = Limits {
    max_qp: 1,
    max_qp_wr: MAX_WR,
    max_sge: MAX_SGE,
    max_inline: MAX_INLINE,
    max_cq: OBJECTS,
    max_cqe: MAX_ENTRIES,
    max_srq: 0,
    max_srq_wr: 0,
    max_mr: OBJECTS,
    max_mr_size: u64::MAX,
    max_mw: 0,
    max_pd: OBJECTS,
    max_av: OBJECTS,
    max_qp_rd_atom: 0,
    max_qp_init_rd_atom: 0,
    max_mcast_grp: 0,
    max_mcast_qp_attach: 0,
    max_fast_reg_pages: 0,
};

impl<F: PortFiles> Hca for LinuxHca<F> {
    fn attributes(&self) -> DeviceAttributes {
        let (adapter, data) = (&self.facts.adapter, self.data.as_ref());
        DeviceAttributes {
            vendor_id: self.facts.vendor_id,
            vendor_part_id: self.facts.device_id.into(),
            hw_rev: adapter.revision,
            fw_version: firmware(&adapter.firmware),
            node_guid: adapter.node_guid,
            system_image_guid: adapter.system_image_guid,
            num_ports: 1,
            caps: DeviceCaps::RESIZE_CQ
                | DeviceCaps::PORT_ACTIVE_EVENT
                | DeviceCaps::SYSTEM_IMAGE_GUID
                | data.map_or(DeviceCaps::empty(), Data::caps),
            limits: data.map_or(LIMITS, |data| data.limits(LIMITS)),
        }
    }

    fn function(&self) -> FunctionAttributes {
        FunctionAttributes {
            id: FunctionId::PF,
            privileges: Privileges::SPECIAL_QP
                | Privileges::CONTROLLED_QKEY
                | Privileges::ANY_SOURCE,
        }
    }

    fn query_port(&self, port: PortNum) -> Result<PortAttributes, HcaError> {
        check_port(port)?;
        let (port, link) = (&self.facts.port, &self.facts.link);
        Ok(PortAttributes {
            state: port_state(port.state),
            physical_state: physical_state(port.physical_state),
            lid: port.lid,
            lmc: port.lmc,
            sm_lid: port.sm_lid,
            sm_sl: port.sm_sl,
            subnet_prefix: self.facts.prefix(),
            max_mtu: link.max_mtu,
            active_mtu: link.active_mtu,
            gid_table_len: u16::try_from(port.gids.len()).unwrap_or(u16::MAX),
            pkey_table_len: u16::try_from(port.pkeys.len()).unwrap_or(u16::MAX),
            capability_mask: port.capability_mask,
            smi_permitted: false,
            subnet_timeout: link.subnet_timeout,
            active_width: port.width,
            active_speed: link_speed(port.speed).get(),
            bad_pkey_counter: 0,
            bad_qkey_counter: 0,
        })
    }

    fn modify_port(&mut self, port: PortNum, _: &PortModify) -> Result<(), HcaError> {
        check_port(port)?;
        Err(HcaError::Unsupported)
    }

    fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Gid, HcaError> {
        check_port(port)?;
        let gid = self.facts.port.gids.get(usize::from(index.0));
        gid.copied().ok_or(HcaError::InvalidIndex)
    }

    fn query_pkey(&self, port: PortNum, index: PKeyIndex) -> Result<PKey, HcaError> {
        check_port(port)?;
        let pkey = self.facts.port.pkeys.get(usize::from(index.0));
        pkey.copied().ok_or(HcaError::InvalidIndex)
    }

    fn allocate_dma(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        self.memory.space().allocate(len)
    }

    fn free_dma(&mut self, buffer: DmaBuffer) {
        self.memory.space().free(buffer);
    }

    fn dma_read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.memory.read(addr, buf)
    }

    fn dma_write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.memory.write(addr, bytes)
    }

    fn set_bus_master(&mut self, enabled: bool) {
        self.memory.set_reachable(enabled);
    }

    fn alloc_pd(&mut self) -> Result<PdHandle, HcaError> {
        self.memory.add_pd()
    }

    fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), HcaError> {
        let of_qp = self.gsi.as_ref().is_some_and(|gsi| gsi.pd == pd);
        if of_qp || self.addresses.values().any(|(owner, _)| *owner == pd) {
            return Err(HcaError::InUse);
        }
        if let Some(data) = &mut self.data {
            data.forget_addresses(pd);
        }
        self.memory.remove_pd(pd)
    }

    fn register_mr(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        self.memory.register(spec)
    }

    fn deregister_mr(&mut self, mr: MrHandle) -> Result<(), HcaError> {
        self.memory.deregister(mr)
    }

    fn create_av(&mut self, pd: PdHandle, vector: &AddressVector) -> Result<AvHandle, HcaError> {
        self.memory.check_pd(pd)?;
        self.check_address(vector)?;
        self.addresses.add((pd, *vector)).map(AvHandle)
    }

    fn destroy_av(&mut self, av: AvHandle) -> Result<(), HcaError> {
        self.addresses.remove(av.0).map(drop)
    }

    fn create_cq(&mut self, entries: u32) -> Result<CqHandle, HcaError> {
        let mut queue = CompletionQueue::new(entries)?;
        let number = self.queues.next();
        queue.host = self.create_host_queue(entries, number)?;
        self.queues.add(queue).map(CqHandle)
    }

    fn resize_cq(&mut self, cq: CqHandle, entries: u32) -> Result<(), HcaError> {
        let queue = self.queues.get_mut(cq.0)?;
        if let Some(host) = &queue.host {
            let entries = i32::try_from(entries).map_err(|_| HcaError::InvalidParameter)?;
            host.resize(entries).map_err(|error| refused(&error))?;
        }
        queue.resize(entries)
    }

    fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), HcaError> {
        let uses = |gsi: &Gsi| gsi.send_cq == cq || gsi.recv_cq == cq;
        let host = self.queues.get(cq.0)?.host.as_ref();
        let has_pairs = host.is_some_and(|host| !host.users.is_empty());
        if has_pairs || self.gsi.as_ref().is_some_and(uses) {
            return Err(HcaError::InUse);
        }
        self.queues.remove(cq.0).map(drop)
    }

    fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, HcaError> {
        self.fetch(cq);
        self.queues.get_mut(cq.0).map(|queue| queue.poll(out))
    }

    fn peek_cq(&self, cq: CqHandle, at_most: usize) -> Result<usize, HcaError> {
        let waiting = self.queues.get(cq.0)?.waiting();
        Ok(waiting.min(at_most))
    }

    fn arm_cq(&mut self, cq: CqHandle, kind: ArmKind) -> Result<bool, HcaError> {
        self.fetch(cq);
        let has_some = self.queues.get_mut(cq.0)?.arm(kind);
        self.arm_host(cq);
        Ok(has_some)
    }

    fn create_srq(&mut self, spec: SrqSpec) -> Result<SrqHandle, HcaError> {
        self.create_shared_queue(&spec)
    }

    fn modify_srq(
        &mut self,
        srq: SrqHandle,
        limit: u32,
        max_wr: Option<u32>,
    ) -> Result<(), HcaError> {
        self.shared(srq)?.modify(limit, max_wr)
    }

    fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttributes, HcaError> {
        let data = self.data.as_ref().ok_or(HcaError::InvalidHandle)?;
        data.srqs.get(srq.0)?.query()
    }

    fn destroy_srq(&mut self, srq: SrqHandle) -> Result<(), HcaError> {
        if !self.shared(srq)?.host.users.is_empty() {
            return Err(HcaError::InUse);
        }
        self.data()?.srqs.remove(srq.0).map(drop)
    }

    fn post_srq_recv(&mut self, srq: SrqHandle, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        let queue = self.shared(srq)?;
        queue.post(request, |number| shared_name(srq, number))
    }

    fn reserve_qpns(&mut self, _: u32, _: u32) -> Result<Qpn, HcaError> {
        Err(HcaError::Unsupported)
    }

    fn release_qpns(&mut self, _: Qpn, _: u32) -> Result<(), HcaError> {
        Err(HcaError::InvalidParameter)
    }

    fn create_qp(&mut self, spec: QpSpec) -> Result<(QpHandle, QpNumbers), HcaError> {
        let handle = QpHandle(self.next_qp);
        let next = self.next_qp.checked_add(1);
        let next = next.ok_or(HcaError::InsufficientResources)?;
        if self.data.is_some() && qp_type(spec.kind).is_some() {
            let number = self.create_pair(handle, &spec)?;
            self.next_qp = next;
            let numbers = QpNumbers {
                external: number,
                real: number,
            };
            return Ok((handle, numbers));
        }
        let gsi = Gsi::new(handle, PORT, &spec)?;
        self.memory.check_pd(spec.pd)?;
        self.queues.get(spec.send_cq.0)?;
        self.queues.get(spec.recv_cq.0)?;
        if self.gsi.is_some() {
            return Err(HcaError::SpecialQpTaken);
        }
        self.next_qp = next;
        self.gsi = Some(gsi);
        Ok((handle, NUMBERS))
    }

    fn modify_qp(&mut self, qp: QpHandle, change: &QpModify) -> Result<(), HcaError> {
        if self.pair(qp).is_some() {
            let mut change = *change;
            let primary = change.primary.map(|path| self.host_vector(&path));
            change.primary = primary.transpose()?;
            let (pair, port) = self.pair_mut(qp).ok_or(HcaError::InvalidHandle)?;
            return pair.modify(port, &change);
        }
        let pkeys = self.facts.port.pkeys.len();
        let gsi = self.gsi_mut(qp)?;
        gsi.modify(PORT, pkeys, change)?;
        if gsi.state == QpState::Error {
            self.fail();
        }
        Ok(())
    }

    fn query_qp(&self, qp: QpHandle) -> Result<QpAttributes, HcaError> {
        let Some(pair) = self.pair(qp) else {
            return self.gsi(qp).map(|gsi| gsi.attributes(PORT));
        };
        let mut attributes = pair.query()?;
        if let (Some(roce), Some(path)) = (&self.roce, &mut attributes.primary) {
            let route = path.grh.as_ref();
            path.grh = route.and_then(|route| roce.addresses.own_route(route));
        }
        Ok(attributes)
    }

    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), HcaError> {
        if self.pair(qp).is_some() {
            return self.destroy_pair(qp);
        }
        self.gsi(qp)?;
        self.fail();
        self.gsi = None;
        Ok(())
    }

    fn post_send(&mut self, qp: QpHandle, request: &SendRequest<'_>) -> Result<(), HcaError> {
        if self.pair(qp).is_some() {
            return self.send_by_host(qp, request);
        }
        let gsi = self.gsi(qp)?;
        let (pd, cq, caps) = (gsi.pd, gsi.send_cq, gsi.caps);
        let is_signalled = gsi.signal_all || request.flags.contains(SendFlags::SIGNALED);
        match gsi.state {
            QpState::ReadyToSend => {}
            QpState::Error => {
                let flushed = gsi::completion(request.wr_id, CompletionOp::Send, gsi::FLUSHED);
                self.complete(cq, flushed);
                return Ok(());
            }
            _ => return Err(HcaError::InvalidQpState),
        }
        let (inline, list) = match request.payload {
            Payload::Inline(bytes) => (bytes.len(), 0),
            Payload::Gather(list) => (0, list.len()),
            Payload::Headed(bytes, list) => (bytes.len(), list.len()),
        };
        if inline > caps.max_inline as usize || list > caps.max_send_sge as usize {
            return Err(HcaError::TooManySges);
        }
        if request.op != SendOp::Send {
            return Err(HcaError::InvalidQpKind);
        }
        let to = request.destination.ok_or(HcaError::InvalidParameter)?;
        let to = self.address(pd, &to)?;
        if self.is_dead {
            return Err(HcaError::DeviceFailed);
        }
        match self.mad(pd, &request.payload) {
            Ok(mad) => {
                if is_signalled {
                    let done = gsi::completion(request.wr_id, CompletionOp::Send, None);
                    self.complete(cq, done);
                }
                self.send(&to, &mad);
            }
            Err(failure) => {
                let failed = gsi::completion(request.wr_id, CompletionOp::Send, Some(failure));
                self.complete(cq, failed);
                self.fail();
            }
        }
        Ok(())
    }

    fn post_recv(&mut self, qp: QpHandle, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        if let Some((pair, _)) = self.pair_mut(qp) {
            return pair.receive(request);
        }
        let gsi = self.gsi_mut(qp)?;
        gsi.post(request)?;
        if gsi.state == QpState::Error {
            self.fail();
        }
        Ok(())
    }

    fn attach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        if let Some((pair, _)) = self.pair_mut(qp) {
            return pair.attach((mgid, mlid), true);
        }
        self.gsi(qp)?;
        Err(HcaError::InvalidQpKind)
    }

    fn detach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        if let Some((pair, _)) = self.pair_mut(qp) {
            return pair.attach((mgid, mlid), false);
        }
        self.gsi(qp)?;
        Err(HcaError::InvalidParameter)
    }

    fn process_local_mad(
        &mut self,
        port: PortNum,
        _: MadView,
        mad: &Mad,
    ) -> Result<LocalMad, HcaError> {
        check_port(port)?;
        let counter = |name: &str| {
            let text = self.files.attribute(&format!("counters/{name}"))?;
            text.trim().parse().ok()
        };
        Ok(self.facts.answer(port, &counter, mad))
    }

    fn draw_secret(&mut self) -> Result<Secret, HcaError> {
        Ok(self.secrets.secret())
    }

    fn poll_event(&mut self) -> Option<HcaEvent> {
        self.events.pop_front()
    }
}
