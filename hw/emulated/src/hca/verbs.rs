//! The verbs of a function.

use hca_api::{
    AddressVector, ArmKind, AvHandle, Completion, CqHandle, DeviceAttributes, DeviceModify,
    DmaBuffer, DmaFault, FastRegister, FunctionAttributes, Hca, HcaError, HcaEvent, LocalMad,
    MadView, MrHandle, MrKeys, MrSpec, MwHandle, MwKeys, MwType, PageList, PdHandle,
    PortAttributes, PortModify, Privileges, QpAttributes, QpHandle, QpModify, QpNumbers, QpSpec,
    QpState, RecvRequest, SendOp, SendRequest, SrqAttributes, SrqHandle, SrqSpec,
};
use hca_functions::{CompletionQueue, EventSource, ReceiveQueue};
use ib_vtime::Secret;
use ib_wire::mad::Mad;
use ib_wire::{Gid, GidIndex, Lid, PKey, PKeyIndex, PortNum, Qpn};

use super::function::{Av, FLUSHED, FunctionState, slot};
use super::qp::Side;
use super::srq::Srq;
use super::{Function, LIMITS};

impl Function<'_> {
    fn state(&self) -> Result<&FunctionState, HcaError> {
        self.device.state(self.id)
    }

    fn state_mut(&mut self) -> Result<&mut FunctionState, HcaError> {
        self.device.state_mut(self.id)
    }

    /// Checks an address vector (IBA 11.2.2.1). The source GID of a function that may not choose is
    /// not looked at.
    fn check_vector(&self, vector: &AddressVector) -> Result<(), HcaError> {
        let port = self
            .device
            .node
            .port(vector.port)
            .ok_or(HcaError::InvalidPort)?;
        let chooses = self.state()?.has(Privileges::ANY_SOURCE);
        match vector.grh {
            Some(route) if chooses && port.gid(route.sgid_index).is_none() => {
                Err(HcaError::InvalidIndex)
            }
            _ => Ok(()),
        }
    }
}

impl Hca for Function<'_> {
    fn attributes(&self) -> DeviceAttributes {
        self.device.attributes(self.id)
    }

    fn function(&self) -> FunctionAttributes {
        FunctionAttributes {
            id: self.id,
            privileges: self
                .state()
                .map_or(Privileges::empty(), |state| state.privileges),
        }
    }

    fn modify_device(&mut self, change: &DeviceModify) -> Result<(), HcaError> {
        self.device.modify_device(self.id, change)
    }

    fn query_port(&self, port: PortNum) -> Result<PortAttributes, HcaError> {
        self.device.query_port(self.id, port)
    }

    fn modify_port(&mut self, port: PortNum, change: &PortModify) -> Result<(), HcaError> {
        self.device.modify_port(self.id, port, change)
    }

    fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Gid, HcaError> {
        self.device.query_gid(self.id, port, index)
    }

    fn query_pkey(&self, port: PortNum, index: PKeyIndex) -> Result<PKey, HcaError> {
        self.device.query_pkey(self.id, port, index)
    }

    fn allocate_dma(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        self.state_mut()?.memory.space_mut().allocate(len)
    }

    fn free_dma(&mut self, buffer: DmaBuffer) {
        if let Ok(state) = self.state_mut() {
            state.memory.space_mut().free(buffer);
        }
    }

    fn dma_read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let fault = DmaFault {
            addr,
            len: buf.len(),
        };
        self.state()
            .map_err(|_| fault)?
            .memory
            .space()
            .read(addr, buf)
    }

    fn dma_write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        let fault = DmaFault {
            addr,
            len: bytes.len(),
        };
        self.state_mut()
            .map_err(|_| fault)?
            .memory
            .space_mut()
            .write(addr, bytes)
    }

    fn set_bus_master(&mut self, enabled: bool) {
        if let Ok(state) = self.state_mut() {
            state.memory.set_open(enabled);
        }
    }

    fn alloc_pd(&mut self) -> Result<PdHandle, HcaError> {
        self.state_mut()?.alloc_pd()
    }

    fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), HcaError> {
        self.state_mut()?.dealloc_pd(pd)
    }

    fn register_mr(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        let state = self.state_mut()?;
        state.check_pd(spec.pd)?;
        state.check_quota(|r| r.mrs)?;
        let keys = state.memory.register(spec, &LIMITS)?;
        state.hold_pd(spec.pd);
        Ok(keys)
    }

    fn reregister_mr(&mut self, mr: MrHandle, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        let state = self.state_mut()?;
        state.check_pd(spec.pd)?;
        let before = state.memory.region_pd(mr)?;
        let keys = state.memory.reregister(mr, spec, &LIMITS)?;
        state.hold_pd(spec.pd);
        state.release_pd(before);
        Ok(keys)
    }

    fn deregister_mr(&mut self, mr: MrHandle) -> Result<(), HcaError> {
        let state = self.state_mut()?;
        let pd = state.memory.deregister(mr)?;
        state.release_pd(pd);
        Ok(())
    }

    fn alloc_mw(&mut self, pd: PdHandle, kind: MwType) -> Result<MwKeys, HcaError> {
        let state = self.state_mut()?;
        state.check_pd(pd)?;
        state.check_quota(|r| r.mws)?;
        let keys = state.memory.alloc_window(pd, kind)?;
        state.hold_pd(pd);
        Ok(keys)
    }

    fn dealloc_mw(&mut self, mw: MwHandle) -> Result<(), HcaError> {
        let state = self.state_mut()?;
        let pd = state.memory.dealloc_window(mw)?;
        state.release_pd(pd);
        Ok(())
    }

    fn create_av(&mut self, pd: PdHandle, vector: &AddressVector) -> Result<AvHandle, HcaError> {
        self.check_vector(vector)?;
        let state = self.state_mut()?;
        state.check_pd(pd)?;
        state.check_quota(|r| r.avs)?;
        let av = Av {
            pd,
            vector: *vector,
        };
        let handle = slot(state.avs.insert(av)).map(AvHandle)?;
        state.hold_pd(pd);
        Ok(handle)
    }

    fn destroy_av(&mut self, av: AvHandle) -> Result<(), HcaError> {
        let state = self.state_mut()?;
        let av = state
            .avs
            .try_remove(av.0 as usize)
            .ok_or(HcaError::InvalidHandle)?;
        state.release_pd(av.pd);
        Ok(())
    }

    fn create_cq(&mut self, entries: u32) -> Result<CqHandle, HcaError> {
        check_entries(entries)?;
        let state = self.state_mut()?;
        state.check_quota(|r| r.cqs)?;
        slot(state.cqs.insert(CompletionQueue::new(entries as usize))).map(CqHandle)
    }

    fn resize_cq(&mut self, cq: CqHandle, entries: u32) -> Result<(), HcaError> {
        let queue = self.state_mut()?.cq_mut(cq)?;
        check_entries(entries)?;
        queue.resize(entries as usize)
    }

    fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), HcaError> {
        let state = self.state_mut()?;
        if state.cq(cq)?.users != 0 {
            return Err(HcaError::InUse);
        }
        state.cqs.remove(cq.0 as usize);
        state.events.forget(EventSource::Cq(cq));
        Ok(())
    }

    fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, HcaError> {
        Ok(self.state_mut()?.cq_mut(cq)?.poll(out))
    }

    fn peek_cq(&self, cq: CqHandle, at_most: usize) -> Result<usize, HcaError> {
        Ok(self.state()?.cq(cq)?.len().min(at_most))
    }

    fn arm_cq(&mut self, cq: CqHandle, kind: ArmKind) -> Result<bool, HcaError> {
        Ok(self.state_mut()?.cq_mut(cq)?.arm(kind))
    }

    fn create_srq(&mut self, spec: SrqSpec) -> Result<SrqHandle, HcaError> {
        if spec.max_wr == 0
            || spec.max_wr > LIMITS.max_srq_wr
            || spec.max_sge > LIMITS.max_sge
            || spec.limit > spec.max_wr
        {
            return Err(HcaError::InvalidParameter);
        }
        let state = self.state_mut()?;
        state.check_pd(spec.pd)?;
        state.check_quota(|r| r.srqs)?;
        let queue = ReceiveQueue::new(spec.receives, spec.max_wr, spec.max_sge);
        let srq = Srq::new(spec.pd, queue, spec.limit);
        let handle = slot(state.srqs.insert(srq)).map(SrqHandle)?;
        state.hold_pd(spec.pd);
        Ok(handle)
    }

    fn modify_srq(
        &mut self,
        srq: SrqHandle,
        limit: u32,
        max_wr: Option<u32>,
    ) -> Result<(), HcaError> {
        if max_wr.is_some_and(|size| size == 0 || size > LIMITS.max_srq_wr) {
            return Err(HcaError::InvalidParameter);
        }
        self.state_mut()?.modify_srq(srq, limit, max_wr)
    }

    fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttributes, HcaError> {
        Ok(self.state()?.srq(srq)?.attributes())
    }

    fn destroy_srq(&mut self, srq: SrqHandle) -> Result<(), HcaError> {
        let state = self.state_mut()?;
        if state.srq(srq)?.users != 0 {
            return Err(HcaError::InUse);
        }
        let queue = state.srqs.remove(srq.0 as usize);
        state.release_pd(queue.pd);
        state.events.forget(EventSource::Srq(srq));
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: SrqHandle, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        self.state_mut()?.srq_mut(srq)?.queue.post(request)
    }

    fn reserve_qpns(&mut self, count: u32, align: u32) -> Result<Qpn, HcaError> {
        self.device.reserve_qpns(self.id, count, align)
    }

    fn release_qpns(&mut self, first: Qpn, count: u32) -> Result<(), HcaError> {
        self.device.release_qpns(self.id, first, count)
    }

    fn create_qp(&mut self, spec: QpSpec) -> Result<(QpHandle, QpNumbers), HcaError> {
        self.device.create_qp(self.id, spec)
    }

    fn modify_qp(&mut self, qp: QpHandle, change: &QpModify) -> Result<(), HcaError> {
        self.device.modify_qp(self.id, qp, change)
    }

    fn query_qp(&self, qp: QpHandle) -> Result<QpAttributes, HcaError> {
        Ok(self.state()?.qp(qp)?.attributes())
    }

    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), HcaError> {
        self.device.destroy_qp(self.id, qp)
    }

    fn post_send(&mut self, qp: QpHandle, request: &SendRequest<'_>) -> Result<(), HcaError> {
        check_pages(request)?;
        self.device.post_send(self.id, qp, request)
    }

    fn post_recv(&mut self, qp: QpHandle, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        let state = self.state_mut()?;
        let pair = state.qp_mut(qp)?;
        if pair.srq.is_some() {
            return Err(HcaError::InvalidParameter);
        }
        match pair.state {
            QpState::Reset => Err(HcaError::InvalidQpState),
            QpState::Error => {
                pair.receives.check(request)?;
                state.complete_failed(qp.0, Side::Receive, request.wr_id, FLUSHED);
                Ok(())
            }
            _ => pair.receives.post(request),
        }
    }

    fn attach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.device.attach_multicast(self.id, qp, mgid, mlid)
    }

    fn detach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        self.device.detach_multicast(self.id, qp, mgid, mlid)
    }

    fn process_local_mad(
        &mut self,
        port: PortNum,
        view: MadView,
        mad: &Mad,
    ) -> Result<LocalMad, HcaError> {
        self.device.process_local_mad(self.id, port, view, mad)
    }

    fn draw_secret(&mut self) -> Result<Secret, HcaError> {
        Ok(self.state_mut()?.memory.draw_secret())
    }

    fn poll_event(&mut self) -> Option<HcaEvent> {
        let state = self.state_mut().ok()?;
        let event = state.events.poll()?;
        if let HcaEvent::Completion(cq) = event
            && let Ok(queue) = state.cq_mut(cq)
        {
            queue.announcement_taken();
        }
        Some(event)
    }
}

/// Refuses a page list that no region can hold: the adapter keeps the list until the request has its turn.
fn check_pages(request: &SendRequest<'_>) -> Result<(), HcaError> {
    match &request.op {
        SendOp::FastRegister(FastRegister {
            pages: PageList::Given(pages),
            ..
        }) if pages.len() > LIMITS.max_fast_reg_pages as usize => Err(HcaError::InvalidParameter),
        _ => Ok(()),
    }
}

fn check_entries(entries: u32) -> Result<(), HcaError> {
    if entries == 0 || entries > LIMITS.max_cqe {
        Err(HcaError::InvalidParameter)
    } else {
        Ok(())
    }
}
