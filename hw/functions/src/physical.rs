//! Objects of virtual functions that are the adapter's.

use hca_api::{
    DeviceCaps, FunctionId, Hca, HcaError, LKey, MrKeys, MrSpec, MwKeys, MwType, PdHandle,
    ReceiveMode, SrqHandle, SrqSpec,
};

use crate::event::EventSource;
use crate::functions::Functions;
use crate::pulled::{PulledQueue, QueueId};
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
            hca.deregister_mr(keys.handle)?;
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
}
