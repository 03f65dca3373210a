//! The verbs of a function. The physical one's are the adapter's, except for the ends of tunnels.

use hca_api::{
    AddressSpace, AddressVector, ArmKind, AvHandle, Completion, CqHandle, DeviceAttributes,
    DeviceCaps, DeviceModify, DmaBuffer, DmaFault, FunctionAttributes, FunctionId, Hca, HcaError,
    HcaEvent, LocalMad, MadView, MrHandle, MrKeys, MrSpec, MwHandle, MwKeys, MwType, PdHandle,
    PortAttributes, PortModify, Privileges, QpAttributes, QpHandle, QpKind, QpModify, QpNumbers,
    QpSpec, RecvRequest, SendRequest, SrqAttributes, SrqHandle, SrqSpec,
};
use ib_vtime::Secret;
use ib_wire::mad::Mad;
use ib_wire::{Gid, GidIndex, Lid, PKey, PKeyIndex, PortNum, Qpn};

use crate::cq::CompletionQueue;
use crate::event::EventSource;
use crate::functions::Function;
use crate::pair::virtual_vector;
use crate::side::FIRST_END;
use crate::vf::Vf;

/// Most completions of a queue of a virtual function.
pub(crate) const MAX_CQE: u32 = 1 << 23;

impl<H: Hca> Function<'_, H> {
    pub(crate) fn is_physical(&self) -> bool {
        self.id == FunctionId::PF
    }

    pub(crate) fn vf(&self) -> Result<&Vf, HcaError> {
        self.functions.vf(self.id)
    }

    pub(crate) fn vf_mut(&mut self) -> Result<&mut Vf, HcaError> {
        self.functions.vf_mut(self.id)
    }

    /// Returns `true` if a queue pair is an end of a tunnel, and not the adapter's.
    fn is_end(&self, qp: QpHandle) -> bool {
        let side = self.functions.side(self.id);
        side.is_ok_and(|side| side.ends.contains_key(&qp))
    }

    /// Returns `true` if virtual functions have data: their objects are the adapter's then.
    fn has_data(&self) -> bool {
        self.hca.attributes().caps.contains(DeviceCaps::UD)
    }

    /// Returns `true` if a new object of the function is made by the adapter.
    fn is_shared(&self) -> bool {
        self.is_physical() || self.has_data()
    }

    /// Returns `true` if an object of the function is the adapter's, by its handle.
    fn is_adapters(&self, handle: u32) -> bool {
        self.is_physical() || handle < FIRST_END
    }

    /// Returns `true` if a queue pair is a virtual function's, and the adapter's.
    fn is_pair(&self, qp: QpHandle) -> bool {
        self.vf().is_ok_and(|vf| vf.pairs.contains_key(&qp))
    }

    /// Refuses a shared receive queue of another function.
    fn check_srq(&self, srq: SrqHandle) -> Result<(), HcaError> {
        match self.vf() {
            Ok(vf) => vf.own_srq(srq).map(|_| ()),
            Err(_) => Ok(()),
        }
    }

    /// Returns the adapter for a verb that virtual functions lack.
    fn physical(&mut self) -> Result<&mut H, HcaError> {
        if self.is_physical() {
            Ok(&mut self.hca)
        } else {
            Err(HcaError::Unsupported)
        }
    }
}

impl<H: Hca> Hca for Function<'_, H> {
    fn attributes(&self) -> DeviceAttributes {
        match self.vf() {
            Ok(vf) => vf.attributes(&self.hca),
            Err(_) => self.hca.attributes(),
        }
    }

    fn function(&self) -> FunctionAttributes {
        let privileges = if self.is_physical() {
            self.hca.function().privileges | Privileges::MANAGE_FUNCTIONS
        } else {
            Privileges::empty()
        };
        FunctionAttributes {
            id: self.id,
            privileges,
        }
    }

    fn modify_device(&mut self, change: &DeviceModify) -> Result<(), HcaError> {
        if self.is_physical() {
            self.hca.modify_device(change)
        } else {
            Err(HcaError::PermissionDenied)
        }
    }

    fn query_port(&self, port: PortNum) -> Result<PortAttributes, HcaError> {
        match self.vf() {
            Ok(vf) => vf.query_port(&self.hca, port),
            Err(_) => self.hca.query_port(port),
        }
    }

    fn modify_port(&mut self, port: PortNum, change: &PortModify) -> Result<(), HcaError> {
        match self.functions.vf_mut(self.id) {
            Ok(vf) => vf.modify_port(port, change),
            Err(_) => self.hca.modify_port(port, change),
        }
    }

    fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Gid, HcaError> {
        if self.is_physical() {
            return self.hca.query_gid(port, index);
        }
        self.vf()?.port(port)?;
        match index {
            GidIndex(0) => self.hca.query_gid(port, GidIndex(self.id.0)),
            _ => Err(HcaError::InvalidIndex),
        }
    }

    fn query_pkey(&self, port: PortNum, index: PKeyIndex) -> Result<PKey, HcaError> {
        match self.vf() {
            Ok(vf) => vf.query_pkey(&self.hca, port, index),
            Err(_) => self.hca.query_pkey(port, index),
        }
    }

    fn allocate_dma(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        match self.functions.vf_mut(self.id) {
            Ok(vf) => vf.memory.allocate(len),
            Err(_) => self.hca.allocate_dma(len),
        }
    }

    fn free_dma(&mut self, buffer: DmaBuffer) {
        match self.functions.vf_mut(self.id) {
            Ok(vf) => vf.memory.free(buffer),
            Err(_) => self.hca.free_dma(buffer),
        }
    }

    fn dma_read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        match self.vf() {
            Ok(vf) => vf.memory.read(addr, buf),
            Err(_) => self.hca.dma_read(addr, buf),
        }
    }

    fn dma_write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        match self.functions.vf_mut(self.id) {
            Ok(vf) => vf.memory.write(addr, bytes),
            Err(_) => self.hca.dma_write(addr, bytes),
        }
    }

    fn set_bus_master(&mut self, enabled: bool) {
        match self.functions.vf_mut(self.id) {
            Ok(vf) => vf.memory.set_open(enabled),
            Err(_) => self.hca.set_bus_master(enabled),
        }
    }

    fn alloc_pd(&mut self) -> Result<PdHandle, HcaError> {
        self.functions.check_quota(self.id, |counts| counts.pds)?;
        let pd = if self.is_shared() {
            self.hca.alloc_pd()?
        } else {
            PdHandle(self.vf_mut()?.side.draw_handle()?)
        };
        self.functions.side_mut(self.id)?.pds.insert(pd, 0);
        Ok(pd)
    }

    fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), HcaError> {
        let pds = &self.functions.side_mut(self.id)?.pds;
        if *pds.get(&pd).ok_or(HcaError::InvalidHandle)? != 0 {
            return Err(HcaError::InUse);
        }
        if self.is_adapters(pd.0) {
            self.hca.dealloc_pd(pd)?;
        }
        self.functions.side_mut(self.id)?.pds.remove(&pd);
        Ok(())
    }

    fn register_mr(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        if !self.is_physical() {
            self.functions.check_quota(self.id, |counts| counts.mrs)?;
            if !self.has_data() {
                return self.vf_mut()?.register(spec);
            }
            return self.functions.register(&mut self.hca, self.id, spec);
        }
        let keys = self.hca.register_mr(spec)?;
        self.functions.note_region(spec, &keys);
        self.functions.owned.mrs += 1;
        Ok(keys)
    }

    fn reregister_mr(&mut self, mr: MrHandle, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError> {
        let keys = self.physical()?.reregister_mr(mr, spec)?;
        self.functions.forget_region(mr);
        self.functions.note_region(spec, &keys);
        Ok(keys)
    }

    fn deregister_mr(&mut self, mr: MrHandle) -> Result<(), HcaError> {
        if !self.is_physical() {
            if !self.vf()?.side.regions.contains(mr) {
                return Err(HcaError::InvalidHandle);
            }
            if self.is_adapters(mr.0) {
                self.hca.deregister_mr(mr)?;
            }
            return self.vf_mut()?.deregister(mr);
        }
        self.hca.deregister_mr(mr)?;
        self.functions.forget_region(mr);
        self.functions.owned.mrs -= 1;
        Ok(())
    }

    fn alloc_mw(&mut self, pd: PdHandle, kind: MwType) -> Result<MwKeys, HcaError> {
        if !self.is_physical() {
            let functions = &mut *self.functions;
            return functions.alloc_mw(&mut self.hca, self.id, (pd, kind));
        }
        let keys = self.hca.alloc_mw(pd, kind)?;
        self.functions.owned.mws += 1;
        Ok(keys)
    }

    fn dealloc_mw(&mut self, mw: MwHandle) -> Result<(), HcaError> {
        let Ok(vf) = self.functions.vf_mut(self.id) else {
            self.hca.dealloc_mw(mw)?;
            self.functions.owned.mws -= 1;
            return Ok(());
        };
        if !vf.windows.contains(&mw) {
            return Err(HcaError::InvalidHandle);
        }
        self.hca.dealloc_mw(mw)?;
        vf.windows.remove(&mw);
        Ok(())
    }

    fn create_av(&mut self, pd: PdHandle, vector: &AddressVector) -> Result<AvHandle, HcaError> {
        if self.is_physical() {
            let av = self.hca.create_av(pd, vector)?;
            self.functions.owned.avs += 1;
            return Ok(av);
        }
        self.functions.check_quota(self.id, |counts| counts.avs)?;
        let vf = self.functions.vf_mut(self.id)?;
        vf.own_pd(pd)?;
        let vector = vf.physical_vector(self.id, vector)?;
        let av = self.hca.create_av(pd, &vector)?;
        vf.avs.insert(av);
        Ok(av)
    }

    fn modify_av(&mut self, av: AvHandle, vector: &AddressVector) -> Result<(), HcaError> {
        let Ok(vf) = self.functions.vf(self.id) else {
            return self.hca.modify_av(av, vector);
        };
        let vector = vf.physical_vector(self.id, vector)?;
        self.hca.modify_av(vf.own_av(av)?, &vector)
    }

    fn query_av(&self, av: AvHandle) -> Result<AddressVector, HcaError> {
        let Ok(vf) = self.vf() else {
            return self.hca.query_av(av);
        };
        Ok(virtual_vector(self.hca.query_av(vf.own_av(av)?)?))
    }

    fn destroy_av(&mut self, av: AvHandle) -> Result<(), HcaError> {
        let Ok(vf) = self.functions.vf_mut(self.id) else {
            self.hca.destroy_av(av)?;
            self.functions.owned.avs -= 1;
            return Ok(());
        };
        self.hca.destroy_av(vf.own_av(av)?)?;
        vf.avs.remove(&av);
        Ok(())
    }

    fn create_cq(&mut self, entries: u32) -> Result<CqHandle, HcaError> {
        self.functions.check_quota(self.id, |counts| counts.cqs)?;
        let cq = if self.is_shared() {
            self.hca.create_cq(entries)?
        } else {
            check_entries(entries)?;
            CqHandle(self.vf_mut()?.side.draw_handle()?)
        };
        if !self.is_physical() && self.is_adapters(cq.0) {
            self.functions.cq_owners.insert(cq, self.id);
        }
        let queue = CompletionQueue::new(entries as usize);
        self.functions.side_mut(self.id)?.cqs.insert(cq, queue);
        Ok(cq)
    }

    fn resize_cq(&mut self, cq: CqHandle, entries: u32) -> Result<(), HcaError> {
        if self.functions.side_mut(self.id)?.cq_mut(cq)?.len() > entries as usize {
            return Err(HcaError::InvalidParameter);
        }
        if self.is_adapters(cq.0) {
            self.hca.resize_cq(cq, entries)?;
        } else {
            check_entries(entries)?;
        }
        let queue = self.functions.side_mut(self.id)?.cq_mut(cq)?;
        queue.resize(entries as usize)
    }

    fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), HcaError> {
        if self.functions.side_mut(self.id)?.cq_mut(cq)?.users != 0 {
            return Err(HcaError::InUse);
        }
        if self.is_adapters(cq.0) {
            self.hca.destroy_cq(cq)?;
            self.functions.cq_owners.remove(&cq);
        }
        if let Ok(vf) = self.functions.vf_mut(self.id) {
            vf.pulled.forget_cq(cq);
        }
        let side = self.functions.side_mut(self.id)?;
        side.cqs.remove(&cq);
        side.events.forget(EventSource::Cq(cq));
        Ok(())
    }

    fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, HcaError> {
        let count = self.functions.side_mut(self.id)?.cq_mut(cq)?.poll(out);
        if !self.is_adapters(cq.0) || count == out.len() {
            return Ok(count);
        }
        let more = self.hca.poll_cq(cq, &mut out[count..])?;
        if let Ok(vf) = self.vf() {
            for completion in &mut out[count..count + more] {
                vf.rewrite(completion);
            }
            let (functions, polled) = (&mut *self.functions, &out[count..count + more]);
            functions.note_polled(&mut self.hca, self.id, cq, polled);
        }
        Ok(count + more)
    }

    fn peek_cq(&self, cq: CqHandle, at_most: usize) -> Result<usize, HcaError> {
        let queue = self.functions.side(self.id)?.cqs.get(&cq);
        let count = queue.ok_or(HcaError::InvalidHandle)?.len().min(at_most);
        if !self.is_adapters(cq.0) || count == at_most {
            return Ok(count);
        }
        Ok(count + self.hca.peek_cq(cq, at_most - count)?)
    }

    fn arm_cq(&mut self, cq: CqHandle, kind: ArmKind) -> Result<bool, HcaError> {
        let has_some = self.functions.side_mut(self.id)?.cq_mut(cq)?.arm(kind);
        if !self.is_adapters(cq.0) {
            return Ok(has_some);
        }
        Ok(self.hca.arm_cq(cq, kind)? || has_some)
    }

    fn create_srq(&mut self, spec: SrqSpec) -> Result<SrqHandle, HcaError> {
        if !self.is_physical() {
            let functions = &mut *self.functions;
            return functions.create_srq(&mut self.hca, self.id, spec);
        }
        let srq = self.hca.create_srq(spec)?;
        self.functions.owned.srqs += 1;
        Ok(srq)
    }

    fn modify_srq(
        &mut self,
        srq: SrqHandle,
        limit: u32,
        max_wr: Option<u32>,
    ) -> Result<(), HcaError> {
        self.check_srq(srq)?;
        if self.is_physical() {
            return self.hca.modify_srq(srq, limit, max_wr);
        }
        let functions = &mut *self.functions;
        functions.modify_shared(&mut self.hca, self.id, srq, (limit, max_wr))
    }

    fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttributes, HcaError> {
        self.check_srq(srq)?;
        self.hca.query_srq(srq)
    }

    fn destroy_srq(&mut self, srq: SrqHandle) -> Result<(), HcaError> {
        if !self.is_physical() {
            let functions = &mut *self.functions;
            return functions.destroy_srq(&mut self.hca, self.id, srq);
        }
        self.hca.destroy_srq(srq)?;
        self.functions.owned.srqs -= 1;
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: SrqHandle, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        if self.is_physical() {
            return self.hca.post_srq_recv(srq, request);
        }
        let functions = &mut *self.functions;
        functions.receive_shared(&mut self.hca, self.id, srq, request)
    }

    fn reserve_qpns(&mut self, count: u32, align: u32) -> Result<Qpn, HcaError> {
        if self.is_physical() {
            return self.hca.reserve_qpns(count, align);
        }
        let most = self.vf()?.quota.qps;
        let numbers = &mut self.functions.numbers;
        numbers.reserve(self.id, (count, align), most)
    }

    fn release_qpns(&mut self, first: Qpn, count: u32) -> Result<(), HcaError> {
        if self.is_physical() {
            return self.hca.release_qpns(first, count);
        }
        self.functions.numbers.release(self.id, first, count)
    }

    fn create_qp(&mut self, spec: QpSpec) -> Result<(QpHandle, QpNumbers), HcaError> {
        if let QpKind::Proxy { .. } | QpKind::Tunnel { .. } = spec.kind {
            return self.functions.create_end(self.id, spec);
        }
        if let (QpKind::Special { .. }, false) = (spec.kind, self.is_physical()) {
            return Err(HcaError::PermissionDenied);
        }
        if !self.is_physical() && self.has_data() {
            return self.functions.create_pair(&mut self.hca, self.id, spec);
        }
        let (qp, numbers) = self.physical()?.create_qp(spec)?;
        if qp.0 >= FIRST_END {
            // It would be taken for an end of a tunnel.
            self.hca.destroy_qp(qp)?;
            return Err(HcaError::InsufficientResources);
        }
        self.functions.owned.qps += 1;
        Ok((qp, numbers))
    }

    fn modify_qp(&mut self, qp: QpHandle, change: &QpModify) -> Result<(), HcaError> {
        if self.is_physical() && !self.is_end(qp) {
            return self.hca.modify_qp(qp, change);
        }
        if self.is_pair(qp) {
            let functions = &mut *self.functions;
            return functions.modify_pair(&mut self.hca, self.id, qp, change);
        }
        self.functions
            .modify_end(&mut self.hca, self.id, qp, change)
    }

    fn query_qp(&self, qp: QpHandle) -> Result<QpAttributes, HcaError> {
        if self.is_physical() && !self.is_end(qp) {
            return self.hca.query_qp(qp);
        }
        if let Some(pair) = self.vf().ok().and_then(|vf| vf.pairs.get(&qp)) {
            return Ok(pair.show(self.hca.query_qp(qp)?));
        }
        Ok(self.functions.side(self.id)?.end(qp)?.attributes())
    }

    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), HcaError> {
        if self.is_physical() && !self.is_end(qp) {
            self.hca.destroy_qp(qp)?;
            self.functions.owned.qps -= 1;
            return Ok(());
        }
        if self.is_pair(qp) {
            self.hca.destroy_qp(qp)?;
            return self.functions.forget_pair(&mut self.hca, self.id, qp);
        }
        self.functions.destroy_end(&mut self.hca, self.id, qp)
    }

    fn post_send(&mut self, qp: QpHandle, request: &SendRequest<'_>) -> Result<(), HcaError> {
        if self.is_physical() && qp.0 < FIRST_END {
            return self.hca.post_send(qp, request);
        }
        let functions = &mut *self.functions;
        if qp.0 < FIRST_END {
            return functions.send(&mut self.hca, self.id, qp, request);
        }
        functions.send_through_tunnel(&mut self.hca, self.id, qp, request)
    }

    fn post_recv(&mut self, qp: QpHandle, request: &RecvRequest<'_>) -> Result<(), HcaError> {
        if self.is_physical() && qp.0 < FIRST_END {
            return self.hca.post_recv(qp, request);
        }
        if qp.0 < FIRST_END {
            let functions = &mut *self.functions;
            return functions.receive(&mut self.hca, self.id, qp, request);
        }
        self.functions.post_receive(self.id, qp, request)
    }

    fn attach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        if !self.is_physical() {
            return self
                .functions
                .attach(&mut self.hca, self.id, (qp, mgid, mlid));
        }
        self.hca.attach_multicast(qp, mgid, mlid)
    }

    fn detach_multicast(&mut self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), HcaError> {
        if !self.is_physical() {
            return self
                .functions
                .detach(&mut self.hca, self.id, (qp, mgid, mlid));
        }
        self.hca.detach_multicast(qp, mgid, mlid)
    }

    fn process_local_mad(
        &mut self,
        port: PortNum,
        view: MadView,
        mad: &Mad,
    ) -> Result<LocalMad, HcaError> {
        if self.is_physical() {
            self.hca.process_local_mad(port, view, mad)
        } else {
            self.process_mad_of_vf(port, view, mad)
        }
    }

    fn draw_secret(&mut self) -> Result<Secret, HcaError> {
        match self.functions.vf_mut(self.id) {
            Ok(vf) => Ok(vf.draw_secret()),
            Err(_) => self.hca.draw_secret(),
        }
    }

    fn poll_event(&mut self) -> Option<HcaEvent> {
        self.functions.take_events(&mut self.hca);
        self.functions.side_mut(self.id).ok()?.poll_event()
    }
}

fn check_entries(entries: u32) -> Result<(), HcaError> {
    if entries == 0 || entries > MAX_CQE {
        Err(HcaError::InvalidParameter)
    } else {
        Ok(())
    }
}
