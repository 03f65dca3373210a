//! QUERY_QP, and the objects as RDMA netlink shows them.

use hca_api::{Hca, MigrationState};
use verbs_link::abi::AnsweredHandleCommand;
use verbs_link::abi::queue_pair::{QpDestination, QueryQpAnswer};
use verbs_link::{Answer, Command, Errno};
use verbs_link::{Resources, qp_state};

use super::{ContextId, ProcessDevice};

/// Objects of a kind that are shown one by one: as many as the answers of one question have room for.
const MOST: usize = 256;

impl ProcessDevice {
    /// Returns the objects. The caller adds the process, and the number of ids of the RDMA CM.
    #[must_use]
    pub fn resources(&self, hca: &dyn Hca) -> Resources {
        let qps = self.qps.0.values().map(|owned| &owned.object);
        let qps = qps.filter_map(|qp| Some((qp.number(), qp.query(hca).ok()?)));
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

    pub(super) fn query_qp(
        &self,
        hca: &dyn Hca,
        context: ContextId,
        command: &Command<'_>,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<AnsweredHandleCommand>()?;
        let qp = self.qps.get(context, asked.handle.get())?;
        let is = qp.query(hca)?;
        let dest = is.primary.as_ref().map(QpDestination::of);
        let state = qp_state(is.state);
        Ok(Answer::new(&QueryQpAnswer {
            dest: dest.unwrap_or_default(),
            caps: qp.caps,
            qkey: is.qkey.get().into(),
            rq_psn: is.rq_psn.get().into(),
            sq_psn: is.sq_psn.get().into(),
            dest_qp_num: is.dest_qpn.get().into(),
            qp_access_flags: u32::from(is.access.bits()).into(),
            pkey_index: is.pkey_index.0.into(),
            qp_state: state,
            cur_qp_state: state,
            path_mtu: is.path_mtu.get(),
            path_mig_state: match is.migration {
                MigrationState::Migrated => 0,
                MigrationState::Rearm => 1,
                MigrationState::Armed => 2,
            },
            sq_draining: is.draining.into(),
            max_rd_atomic: is.max_rd_atomic,
            max_dest_rd_atomic: is.max_dest_rd_atomic,
            min_rnr_timer: is.min_rnr_timer,
            port_num: is.port.map_or(0, |port| port.0),
            timeout: is.timeout,
            retry_cnt: is.retry_count,
            rnr_retry: is.rnr_retry,
            sq_sig_all: qp.signal_all.into(),
            ..QueryQpAnswer::default()
        }))
    }
}
