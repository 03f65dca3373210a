//! Objects of virtual functions that are the adapter's.

use hca_api::{DeviceCaps, FunctionId, Hca, HcaError, LKey, MrKeys, MrSpec};

use crate::functions::Functions;
use crate::side::FIRST_END;

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

    /// Destroys the objects of a virtual function that are the adapter's. None of them completes then.
    pub(crate) fn destroy_physical(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
    ) -> Result<(), HcaError> {
        let vf = self.vfs.get_mut(&id).ok_or(HcaError::InvalidHandle)?;
        for (qp, mgid, mlid) in core::mem::take(&mut vf.attachments) {
            hca.detach_multicast(qp, mgid, mlid)?;
        }
        for qp in core::mem::take(&mut vf.pairs).into_keys() {
            hca.destroy_qp(qp)?;
            self.qp_owners.remove(&qp);
        }
        for av in core::mem::take(&mut vf.avs) {
            hca.destroy_av(av)?;
        }
        let is_adapters = |handle: u32| handle < FIRST_END;
        let regions = vf.side.regions.handles().filter(|mr| is_adapters(mr.0));
        for mr in regions {
            hca.deregister_mr(mr)?;
        }
        for cq in vf.side.cqs.keys().filter(|cq| is_adapters(cq.0)) {
            hca.destroy_cq(*cq)?;
            self.cq_owners.remove(cq);
        }
        for pd in vf.side.pds.keys().filter(|pd| is_adapters(pd.0)) {
            hca.dealloc_pd(*pd)?;
        }
        Ok(())
    }
}
