//! Memory regions, windows and connected queue pairs, and what becomes of them at the end.

use std::collections::BTreeMap;

use hca_api::{AsyncEvent, Hca, HcaEvent, MrHandle, MwHandle, PdHandle};

use super::shared_completions::SharedCompletions;
use super::{
    ConnectedQp, ConnectedQpId, FastRegion, MemoryRegion, MemoryWindow, SharedCompletionsId,
    VfPortError, VfPortEvent,
};

/// The memory regions, windows and connected queue pairs of a port, in one protection domain.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// `None` until something needs it.
    pd: Option<PdHandle>,
    pub(super) regions: BTreeMap<MrHandle, MemoryRegion>,
    pub(super) fast_regions: BTreeMap<MrHandle, FastRegion>,
    pub(super) windows: BTreeMap<MwHandle, MemoryWindow>,
    pub(super) qps: BTreeMap<ConnectedQpId, ConnectedQp>,
    pub(super) shared: BTreeMap<SharedCompletionsId, SharedCompletions>,
}

impl Connections {
    /// Returns the protection domain, which the first call makes.
    pub(super) fn pd(&mut self, hca: &mut dyn Hca) -> Result<PdHandle, VfPortError> {
        if let Some(pd) = self.pd {
            return Ok(pd);
        }
        let pd = hca.alloc_pd()?;
        self.pd = Some(pd);
        Ok(pd)
    }

    /// Returns the events for the port's program that follow from an event of the function.
    pub(super) fn events(&self, event: &HcaEvent) -> Vec<VfPortEvent> {
        let those = |are_they: &dyn Fn(&ConnectedQp) -> bool, say: fn(ConnectedQpId) -> _| {
            let qps = self.qps.iter().filter(|(_, qp)| are_they(qp));
            qps.map(|(id, _)| say(*id)).collect()
        };
        match event {
            HcaEvent::Completion(cq) => {
                let mut shared = self.shared.iter();
                match shared.find(|(_, shared)| shared.cq() == *cq) {
                    Some((id, _)) => vec![VfPortEvent::SharedCompletionsReady(*id)],
                    None => those(&|qp| qp.cq() == *cq, VfPortEvent::CompletionsReady),
                }
            }
            HcaEvent::Async(AsyncEvent::CqError(cq)) => {
                those(&|qp| qp.cq() == *cq, VfPortEvent::ConnectionFailed)
            }
            HcaEvent::Async(
                AsyncEvent::QpFatal(qp)
                | AsyncEvent::QpRequestError(qp)
                | AsyncEvent::QpAccessError(qp),
            ) => those(&|own| own.handle() == *qp, VfPortEvent::ConnectionFailed),
            HcaEvent::Async(_) => Vec::new(),
        }
    }

    /// Destroys all that was made on the function.
    pub(super) fn close(&mut self, hca: &mut dyn Hca) {
        for qp in core::mem::take(&mut self.qps).into_values() {
            qp.destroy(hca);
        }
        for shared in core::mem::take(&mut self.shared).into_values() {
            let _ = hca.destroy_cq(shared.cq());
        }
        for window in core::mem::take(&mut self.windows).into_values() {
            let _ = window.deallocate(hca);
        }
        for region in core::mem::take(&mut self.regions).into_values() {
            // Only a reset can have taken it away before.
            let _ = region.deregister(hca);
        }
        for region in core::mem::take(&mut self.fast_regions).into_values() {
            let _ = region.deregister(hca);
        }
        if let Some(pd) = self.pd.take() {
            let _ = hca.dealloc_pd(pd);
        }
    }
}
