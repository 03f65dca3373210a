//! Objects of virtual functions that were reset, which the adapter still has.

use hca_api::{
    AvHandle, CqHandle, FunctionId, Hca, HcaError, MrHandle, MwHandle, PdHandle, SrqHandle,
};

use crate::functions::Functions;
use crate::side::FIRST_END;

/// Objects that a call destroys: each may be a system call.
const AT_ONCE: usize = 256;

/// An object without users.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remain {
    Srq(SrqHandle),
    Window(MwHandle),
    Av(AvHandle),
    Region(MrHandle),
    Cq(CqHandle),
    Pd(PdHandle),
}

impl Functions {
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
        for _ in 0..AT_ONCE {
            let Some(remain) = self.remains.pop_front() else {
                return;
            };
            // An adapter refuses none of them, unless it has failed.
            let _ = match remain {
                Remain::Srq(srq) => {
                    self.srq_owners.remove(&srq);
                    hca.destroy_srq(srq)
                }
                Remain::Window(window) => hca.dealloc_mw(window),
                Remain::Av(av) => hca.destroy_av(av),
                Remain::Region(region) => hca.deregister_mr(region),
                Remain::Cq(cq) => {
                    self.cq_owners.remove(&cq);
                    hca.destroy_cq(cq)
                }
                Remain::Pd(pd) => hca.dealloc_pd(pd),
            };
        }
    }
}
