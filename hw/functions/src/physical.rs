//! Objects of virtual functions that are the adapter's.

use hca_api::{
    DeviceCaps, FunctionId, Hca, HcaError, LKey, MrKeys, MrSpec, MwKeys, MwType, PdHandle,
    ReceiveMode, SrqHandle, SrqSpec,
};

use crate::event::EventSource;
use crate::functions::Functions;
use crate::pulled::{PulledQueue, QueueId};
use crate::remains::Remain;
use crate::side::FIRST_END;
use crate::vf::Vf;

impl Vf {
    /// Refuses a protection domain that is not the function's, or that the adapter does not know.
    pub(crate) fn own_pd(&self, pd: PdHandle) -> Result<(), HcaError> {
        let is_own = pd.0 < FIRST_END && self.side.pds.contains_key(&pd);
        is_own.then_some(()).ok_or(HcaError::InvalidHandle)
    }
}

impl Functions {
    /// Registers memory of a virtual function with the adapter, at the addresses that the memory has there.
    pub(crate) fn register(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        spec: &MrSpec<'_>,
    ) -> Result<MrKeys, HcaError> {
        let caps = hca.attributes().caps;
        let vf = self.vf_mut(id)?;
        let region = vf.describe(spec)?;
        let pages = vf.memory.pages(&spec.kind)?;
        let keys = hca.register_mr(&MrSpec {
            pd: spec.pd,
            kind: vf.memory.kind(&spec.kind, &pages)?,
            access: spec.access,
            key: spec.key.filter(|_| caps.contains(DeviceCaps::CHOSEN_NAMES)),
        })?;
        let lkey = spec.key.unwrap_or(keys.lkey.0);
        if vf.side.regions.contains_key(lkey) {
            // The consumer chose the key that the adapter would give now.
            match hca.deregister_mr(keys.handle) {
                Err(HcaError::Pending) => self.remains.extend([Remain::Region(keys.handle)]),
                gone => gone?,
            }
            return Err(HcaError::InsufficientResources);
        }
        let region = region.known_as(keys.lkey);
        vf.insert_region(keys.handle, (LKey(lkey), keys.rkey), region)
    }

    /// Makes a shared receive queue of a virtual function.
    pub(crate) fn create_srq(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        mut spec: SrqSpec,
    ) -> Result<SrqHandle, HcaError> {
        // The adapter does not know the memory that a source reads.
        let receives = core::mem::take(&mut spec.receives);
        let (max_wr, max_sge, limit) = (spec.max_wr, spec.max_sge, spec.limit);
        self.check_quota(id, |counts| counts.srqs)?;
        self.vf(id)?.own_pd(spec.pd)?;
        let srq = hca.create_srq(spec)?;
        self.srq_owners.insert(srq, id);
        let vf = self.vf_mut(id)?;
        vf.srqs.insert(srq);
        if let ReceiveMode::Pulled(source) = receives {
            let queue = PulledQueue::new(source, max_wr, max_sge).shared(limit);
            vf.pulled.insert(QueueId::Shared(srq), queue);
            self.read_queue(hca, id, QueueId::Shared(srq));
        }
        Ok(srq)
    }

    pub(crate) fn destroy_srq(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        srq: SrqHandle,
    ) -> Result<(), HcaError> {
        hca.destroy_srq(self.vf(id)?.own_srq(srq)?)?;
        self.srq_owners.remove(&srq);
        self.forget_queue(id, QueueId::Shared(srq));
        let vf = self.vf_mut(id)?;
        vf.srqs.remove(&srq);
        vf.side.events.forget(EventSource::Srq(srq));
        Ok(())
    }

    /// Makes a memory window of a virtual function.
    pub(crate) fn alloc_mw(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        (pd, kind): (PdHandle, MwType),
    ) -> Result<MwKeys, HcaError> {
        self.check_quota(id, |counts| counts.mws)?;
        self.vf(id)?.own_pd(pd)?;
        let keys = hca.alloc_mw(pd, kind)?;
        self.vf_mut(id)?.windows.insert(keys.handle);
        Ok(keys)
    }

    /// Destroys the queue pairs of a virtual function, so that nothing reaches its memory, and as many of its other objects that are the
    /// adapter's as a call may. The rest remains for [`Self::handle_timeout`]. None of them completes.
    pub(crate) fn destroy_physical(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
    ) -> Result<(), HcaError> {
        self.forget_queues(id);
        let vf = self.vfs.get_mut(&id).ok_or(HcaError::InvalidHandle)?;
        for (qp, mgid, mlid) in core::mem::take(&mut vf.attachments) {
            hca.detach_multicast(qp, mgid, mlid)?;
        }
        for qp in core::mem::take(&mut vf.pairs).into_keys() {
            hca.destroy_qp(qp)?;
            self.qp_owners.remove(&qp);
        }
        let is_adapters = |handle: u32| handle < FIRST_END;
        let srqs = core::mem::take(&mut vf.srqs);
        let windows = core::mem::take(&mut vf.windows);
        let avs = core::mem::take(&mut vf.avs);
        let regions = vf.side.regions.handles().filter(|mr| is_adapters(mr.0));
        let cqs = vf.side.cqs.keys().filter(|cq| is_adapters(cq.0));
        let pds = vf.side.pds.keys().filter(|pd| is_adapters(pd.0));
        // Each one's users are before it.
        self.remains.extend(srqs.into_iter().map(Remain::Srq));
        self.remains.extend(windows.into_iter().map(Remain::Window));
        self.remains.extend(avs.into_iter().map(Remain::Av));
        self.remains.extend(regions.map(Remain::Region));
        self.remains.extend(cqs.copied().map(Remain::Cq));
        self.remains.extend(pds.copied().map(Remain::Pd));
        self.destroy_remains(hca);
        Ok(())
    }

    /// Destroys as many objects of functions that were reset as a call may.
    pub(crate) fn destroy_remains(&mut self, hca: &mut dyn Hca) {
        for remain in self.remains.destroy(self.now, |remain| remain.destroy(hca)) {
            match remain {
                Remain::Srq(srq) => drop(self.srq_owners.remove(&srq)),
                Remain::Cq(cq) => drop(self.cq_owners.remove(&cq)),
                _ => {}
            }
        }
    }
}
