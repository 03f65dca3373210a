//! Memory regions and connected queue pairs, and what becomes of them at the end.

use std::collections::BTreeMap;

use hca_api::{AsyncEvent, Hca, HcaEvent, MrHandle, PdHandle};

use super::{ConnectedQp, ConnectedQpId, FastRegion, MemoryRegion, VfPortError, VfPortEvent};

/// The memory regions and connected queue pairs of a port, in one protection domain.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// `None` until something needs it.
    pd: Option<PdHandle>,
    pub(super) regions: BTreeMap<MrHandle, MemoryRegion>,
    pub(super) fast_regions: BTreeMap<MrHandle, FastRegion>,
    pub(super) qps: BTreeMap<ConnectedQpId, ConnectedQp>,
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

    /// Returns the event that the port's program is told of an event of the function, if any.
    pub(super) fn event(&self, event: &HcaEvent) -> Option<VfPortEvent> {
        let find = |is_it: &dyn Fn(&ConnectedQp) -> bool| {
            let mut qps = self.qps.iter();
            qps.find(|(_, qp)| is_it(qp)).map(|(id, _)| *id)
        };
        match event {
            HcaEvent::Completion(cq) => {
                find(&|qp| qp.cq() == *cq).map(VfPortEvent::CompletionsReady)
            }
            HcaEvent::Async(AsyncEvent::CqError(cq)) => {
                find(&|qp| qp.cq() == *cq).map(VfPortEvent::ConnectionFailed)
            }
            HcaEvent::Async(
                AsyncEvent::QpFatal(qp)
                | AsyncEvent::QpRequestError(qp)
                | AsyncEvent::QpAccessError(qp),
            ) => find(&|own| own.handle() == *qp).map(VfPortEvent::ConnectionFailed),
            HcaEvent::Async(_) => None,
        }
    }

    /// Destroys all that was made on the function.
    pub(super) fn close(&mut self, hca: &mut dyn Hca) {
        for qp in core::mem::take(&mut self.qps).into_values() {
            qp.destroy(hca);
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
