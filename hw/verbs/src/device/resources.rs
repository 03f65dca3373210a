//! Objects of a device, as RDMA netlink shows them.

use hca_api::{Hca, QpAttributes};
use ib_wire::Qpn;

use super::ProcessDevice;

/// Objects of a kind that are shown one by one: as many as the answers of one question have room for.
const MOST: usize = 256;

/// Objects of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Process that has the device.
    pub pid: Option<u32>,
    /// Open files with a context.
    pub contexts: usize,
    /// Protection domains.
    pub pds: usize,
    /// Memory regions.
    pub mrs: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Ids of the RDMA CM.
    pub cm_ids: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// The first queue pairs, with the numbers by which the program knows them.
    pub first_qps: Vec<(Qpn, QpAttributes)>,
    /// The first completion queues: handle, entries, and work queues that complete there.
    pub first_cqs: Vec<(u32, u32, u32)>,
    /// Handles of the first protection domains.
    pub first_pds: Vec<u32>,
}

impl ProcessDevice {
    /// Returns the objects. Those of the RDMA CM, and the process, are the caller's to fill in.
    #[must_use]
    pub fn resources(&self, hca: &dyn Hca) -> Resources {
        let qps = self.qps.0.values().map(|owned| &owned.object);
        let qps = qps.filter_map(|qp| Some((qp.number(), hca.query_qp(qp.provider).ok()?)));
        let cqs = self.cqs.0.iter();
        let cqs = cqs.map(|(handle, owned)| (*handle, owned.object.entries(), owned.object.users));
        Resources {
            pid: None,
            cm_ids: 0,
            contexts: self.contexts.len(),
            pds: self.pds.0.len(),
            mrs: self.mrs.0.len(),
            srqs: self.srqs.0.len(),
            cqs: self.cqs.0.len(),
            qps: self.qps.0.len(),
            first_qps: qps.take(MOST).collect(),
            first_cqs: cqs.take(MOST).collect(),
            first_pds: self.pds.0.keys().copied().take(MOST).collect(),
        }
    }
}
