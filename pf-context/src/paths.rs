//! Requests for paths, which the SA need not see when it answered them lately.

use ib_vtime::Instant;
use ib_wire::Qpn;
use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::notice::{GidDetails, NoticeReport, TrapNumber};
use ib_wire::sa::{PortInfoRecord, SaMad};
use mad_mux::path_cache::{Lookup, Transaction};
use mad_mux::policy::ClassRoute;
use mad_mux::steering::Owner;
use vf_tunnel::{DropReason, SpecialQp, ToPf, VfId, VfTid};
use zerocopy::FromBytes;

use crate::egress::{Checked, Step};
use crate::mux::PortMux;
use crate::output::{Cause, WireSource};

/// A request that waits for the answer to another one's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) cause: Cause,
    pub(crate) qp: SpecialQp,
    pub(crate) frame: ToPf,
}

impl PortMux {
    /// Looks for the answer to what a VF asks the SA.
    pub(crate) fn look_up_path(
        &mut self,
        now: Instant,
        vf: VfId,
        checked: &Checked<'_>,
        mad: &mut Mad,
    ) -> Step {
        let Some(record) = self.vfs.get(vf).filter(|_| self.asks_path(checked, mad)) else {
            return Step::Send;
        };
        match self.paths.ask(now, vf, record.pkeys.keys(), mad) {
            Lookup::Answered => {
                record.adapt(mad);
                Step::Answered
            }
            Lookup::UnderWay => Step::Wait,
            Lookup::Miss => Step::Send,
        }
    }

    /// Gives what begins or continues a transaction its wire TID.
    pub(crate) fn map_tid(
        &mut self,
        now: Instant,
        vf: VfId,
        checked: &Checked<'_>,
        mad: &mut Mad,
    ) -> Result<(), DropReason> {
        let (owner, peer) = (Owner::Vf(vf), checked.peer());
        if !self.asks_path(checked, mad) {
            self.tids.egress(now, owner, mad, &peer)?;
            return Ok(());
        }
        let tid = VfTid(mad.header.tid);
        let is_new = !self.tids.is_known(owner, &mad.header, &peer);
        let wire = self.tids.egress(now, owner, mad, &peer)?;
        let transaction = Transaction {
            vf,
            tid,
            wire,
            is_new,
        };
        self.paths.asked(now, &transaction, mad);
        Ok(())
    }

    /// Whether a frame asks the SA itself for one path.
    fn asks_path(&self, checked: &Checked<'_>, mad: &Mad) -> bool {
        let header = &mad.header;
        checked.route == ClassRoute::SubnAdm
            && checked.dlid() == self.port.sm_lid
            && checked.dqpn() == Qpn::GSI
            && header.attribute_id == AttributeId::PATH_RECORD
            && header.method == Method::GET
    }

    /// Takes note of the LMC of a port in an answer of the SA. A port's own word is not taken: it could claim its neighbours'
    /// LIDs.
    pub(crate) fn note_port_info(&mut self, source: &WireSource, mad: &Mad) {
        let header = &mad.header;
        let is_port_info = header.mgmt_class == MgmtClass::SUBN_ADM
            && header.method == Method::GET_RESP
            && header.attribute_id == AttributeId::PORT_INFO_RECORD
            && header.status == MadStatus::OK;
        if is_port_info && source.slid == self.port.sm_lid && source.sqpn == Qpn::GSI {
            let PortInfoRecord {
                end_port_lid,
                port_info,
                ..
            } = mad.view::<SaMad>().record();
            if end_port_lid == port_info.lid {
                self.with_lmcs(|lmcs| lmcs.learn(end_port_lid, port_info.lmc()));
            }
        }
    }

    /// Takes note of a report that a port came or went, whoever it is for.
    pub(crate) fn note_report(&mut self, source: &WireSource, mad: &Mad) {
        let header = &mad.header;
        let is_report = header.mgmt_class == MgmtClass::SUBN_ADM
            && header.method == Method::REPORT
            && header.attribute_id == AttributeId::NOTICE;
        if !is_report || !self.is_sa(source.slid) || source.sqpn != Qpn::GSI {
            return;
        }
        let Ok((report, _)) = NoticeReport::read_from_prefix(&mad.view::<SaMad>().data) else {
            return;
        };
        let notice = &report.notice;
        let traps = [TrapNumber::GID_IN_SERVICE, TrapNumber::GID_OUT_OF_SERVICE];
        if notice.is_generic() && traps.contains(&notice.trap_number) {
            let gid = notice.details::<GidDetails>().gid;
            self.paths.invalidate_guid(gid.interface_id());
        }
    }

    /// Looks anew at the requests that waited for the answer to another one's.
    pub(crate) fn resume_requests(&mut self, now: Instant, cause: Cause) {
        while let Some((vf, asked)) = self.paths.poll_resumed() {
            let mut own = asked.cause;
            let ToPf { header, mut mad } = asked.frame;
            match self.check(vf, asked.qp, &header, &mad.header) {
                Ok(checked) => {
                    let waited_for = Some(cause);
                    let passed = self.dispatch(now, &mut own, vf, &checked, &mut mad, waited_for);
                    self.emit_passed(own, passed, &mad);
                }
                Err(reason) => self.drop_frame(own, Some(vf), reason),
            }
        }
    }
}
