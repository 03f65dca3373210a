//! What VFs ask the SA, and what the port itself asks it for them.

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::sa::{McMemberRecord, MultiPathRecord, PathRecord, SaMad, ServiceRecord};
use ib_wire::{Gid, Guid, Lid, PKeyIndex, QKey, Qpn, SmKey, Tid};
use mad_mux::rmpp::RmppRole;
use mad_mux::steering::Owner;
use mad_mux::tid::Peer;
use mcast_agg::{MemberId, Outcome, Requester, Token};
use vf_tunnel::{DropReason, SpecialQp, VfId, VirtualPKeyIndex};

use crate::config::Strictness;
use crate::egress::{Checked, Step};
use crate::join_routes::WayBack;
use crate::mux::PortMux;
use crate::output::{Cause, Passed, Route, VfDelivery, VfEvent, WireSend};
use crate::pf_software;
use crate::services;

/// A transaction of the port's own with the SA, by the machine that wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortTransaction {
    Membership(Token),
    Subscription(Token),
    /// The deletion of a service.
    Service(Token),
}

/// The port's own TIDs: the machine's token in the low bits, then which machine, and above it the
/// transmission.
const TOKEN_BITS: u32 = 46;
const SUBSCRIPTION: u64 = 1 << TOKEN_BITS;
const SERVICE: u64 = 2 << TOKEN_BITS;
const TRANSMISSION_SHIFT: u32 = TOKEN_BITS + 2;

impl PortTransaction {
    pub(crate) const fn from_tid(tid: Tid) -> Self {
        let token = Token(tid.get() & (SUBSCRIPTION - 1));
        if tid.get() & SERVICE != 0 {
            Self::Service(token)
        } else if tid.get() & SUBSCRIPTION != 0 {
            Self::Subscription(token)
        } else {
            Self::Membership(token)
        }
    }

    const fn tid(self, transmission: u16) -> Tid {
        let low = match self {
            Self::Membership(token) => token.0,
            Self::Subscription(token) => token.0 | SUBSCRIPTION,
            Self::Service(token) => token.0 | SERVICE,
        };
        Tid::new((transmission as u64) << TRANSMISSION_SHIFT | low)
    }
}

/// Whether a request changes what the port holds at the SA for all its VFs. There is one SA in a subnet:
/// whatever LID such a request names, another one of the SM's port or one that the SM had before, it
/// reaches that SA or nobody, and must not reach it in a VF's own name.
pub(crate) fn is_aggregated(mad: &MadHeader) -> bool {
    matches!(
        (mad.attribute_id, mad.method),
        (AttributeId::MC_MEMBER_RECORD, Method::SET | Method::DELETE)
            | (AttributeId::INFORM_INFO, Method::SET)
    )
}

/// Returns `true` if an MCMemberRecord names the membership of another port than the one with `guid`.
fn is_for_another(guid: Guid, mad: &Mad) -> bool {
    let sa: &SaMad = mad.view();
    sa.component_mask.contains(McMemberRecord::PORT_GID)
        && sa.record::<McMemberRecord>().port_gid.interface_id() != guid
}

impl PortMux {
    /// Where the SA is.
    pub(crate) const fn sa(&self) -> Peer {
        Peer {
            lid: self.port.sm_lid,
            qpn: Qpn::GSI,
            gid: Gid::NONE,
        }
    }

    /// Whether the SA is known to answer at a LID: the one that the SM announced, or any of this
    /// port's if the SM's is one of them.
    pub(crate) fn is_sa(&self, lid: Lid) -> bool {
        let sm = self.port.sm_lid;
        lid.is_unicast() && (lid == sm || (self.port.owns(sm) && self.port.owns(lid)))
    }

    /// Keeps from a VF's SA request to another LID what would not go to the SA either: if the SM's
    /// port has several LIDs, this may be one of them after all, or the one that the SM had before.
    pub(crate) fn guard_sa_request(
        &mut self,
        now: Instant,
        vf: VfId,
        mad: &mut Mad,
    ) -> Result<(), DropReason> {
        let trusted = self.vfs.get(vf).is_some_and(|record| record.is_pf);
        if trusted || mad.header.method.is_answer() {
            return Ok(());
        }
        self.clear_sm_key(mad)?;
        self.check_record(vf, mad)?;
        if self.services.permits(now, vf, mad) {
            Ok(())
        } else {
            Err(DropReason::SaQuota)
        }
    }

    /// Takes an SA MAD of a VF to the SM's LID, or one that [`is_aggregated`] to any.
    pub(crate) fn ask_sa(
        &mut self,
        now: Instant,
        vf: VfId,
        checked: &Checked<'_>,
        mad: &mut Mad,
    ) -> Result<Step, DropReason> {
        let trusted = self.vfs.get(vf).is_some_and(|record| record.is_pf);
        if !trusted {
            self.clear_sm_key(mad)?;
        }
        if mad.header.method.is_response() {
            let consumed = self.notices.report_response(vf.into(), mad.view());
            // What is no copy's answer answers a report that the SA sent to the VF itself.
            return Ok(if consumed == Outcome::Absorbed {
                Step::Absorbed
            } else {
                Step::Send
            });
        }
        if !trusted {
            self.check_record(vf, mad)?;
            if !self.services.permits(now, vf, mad) {
                services::refuse(mad);
                return Ok(Step::Answered);
            }
        }
        let record = self.vfs.get(vf).ok_or(DropReason::VfInReset)?;
        let requester = Requester {
            id: vf.into(),
            guid: record.guid.unwrap_or_default(),
            pkeys: record.pkeys.keys(),
            pkey_index: checked.pkey_index,
        };
        let outcome = match mad.header.attribute_id {
            // What the PF's software does for another port is no business of this one's groups: the SA
            // judges by the partitions of both (IBA 15.2.5.17.1).
            AttributeId::MC_MEMBER_RECORD if trusted && is_for_another(requester.guid, mad) => {
                Outcome::Pass
            }
            AttributeId::MC_MEMBER_RECORD => self.mcast.request(now, &requester, mad.view_mut()),
            AttributeId::INFORM_INFO => self.notices.request(now, &requester, mad.view_mut()),
            AttributeId::PATH_RECORD => return Ok(self.look_up_path(now, vf, checked, mad)),
            _ => Outcome::Pass,
        };
        match outcome {
            Outcome::Answered => Ok(Step::Answered),
            Outcome::Absorbed => {
                let way_back = WayBack {
                    from: checked.dlid(),
                    grh: checked.grh().map(Route::reversed),
                };
                if way_back != self.usual_way_back() {
                    self.join_routes.remember(vf, mad.header.tid, way_back);
                }
                Ok(Step::Absorbed)
            }
            Outcome::Pass => Ok(Step::Send),
            Outcome::Dropped(reason) => Err(reason),
        }
    }

    /// No VF is a trusted requester, whatever key it found.
    fn clear_sm_key(&self, mad: &mut Mad) -> Result<(), DropReason> {
        let sa: &mut SaMad = mad.view_mut();
        if sa.sm_key.get() != 0 {
            if self.policy.refuse_sm_key {
                return Err(DropReason::SmKeyNotPermitted);
            }
            sa.sm_key = SmKey::new(0);
        }
        Ok(())
    }

    /// Refuses records by which a VF would speak or ask for somebody else. The SA could not tell: it
    /// knows requesters by LID.
    fn check_record(&self, vf: VfId, mad: &Mad) -> Result<(), DropReason> {
        let sa: &SaMad = mad.view();
        let changes = matches!(sa.header.method, Method::SET | Method::DELETE);
        match sa.header.attribute_id {
            AttributeId::GUID_INFO_RECORD if changes => Err(DropReason::GuidInfoNotPermitted),
            AttributeId::SERVICE_RECORD if changes => {
                let gid = sa.record::<ServiceRecord>().service_gid;
                let own = self.vfs.get(vf).and_then(|record| record.guid);
                if own == Some(gid.interface_id()) {
                    Ok(())
                } else {
                    Err(DropReason::ForeignIdentity)
                }
            }
            AttributeId::PATH_RECORD | AttributeId::MULTI_PATH_RECORD
                if !self.policy.third_party_paths && !RmppRole::of(mad).is_control() =>
            {
                self.check_path_sources(vf, sa)
            }
            _ => Ok(()),
        }
    }

    /// Paths are asked for from the VF's own GID, or from one that no sibling has.
    fn check_path_sources(&self, vf: VfId, sa: &SaMad) -> Result<(), DropReason> {
        let own = self.vfs.get(vf).and_then(|record| record.guid);
        let is_siblings = |gid: &Gid| {
            own != Some(gid.interface_id())
                && matches!(self.gids.owner(*gid), Ok(Owner::Vf(owner)) if owner != vf)
        };
        let foreign = if sa.header.attribute_id == AttributeId::PATH_RECORD {
            sa.component_mask.contains(PathRecord::SGID)
                && is_siblings(&sa.record::<PathRecord>().sgid)
        } else {
            let record: MultiPathRecord = sa.record();
            // Only what the first segment holds is looked at: a request has at most eleven GIDs in it.
            record
                .endpoints()
                .is_some_and(|(sources, _)| sources.iter().any(is_siblings))
        };
        if foreign {
            Err(DropReason::ForeignIdentity)
        } else {
            Ok(())
        }
    }

    /// How an answer of the SA comes to who asked at the SM's LID without a GRH.
    const fn usual_way_back(&self) -> WayBack {
        WayBack {
            from: self.port.sm_lid,
            grh: None,
        }
    }

    /// Delivers an answer that the SA would have given.
    pub(crate) fn answer_as_sa(
        &mut self,
        cause: Cause,
        vf: VfId,
        pkey_index: VirtualPKeyIndex,
        way_back: WayBack,
    ) -> Passed {
        let Some(record) = self.vfs.get_mut(vf).filter(|record| record.active) else {
            return self.end(cause, Some(vf), DropReason::VfDown);
        };
        record.statistics.of(MgmtClass::SUBN_ADM).delivered += 1;
        Passed::ToVf(VfDelivery {
            vf,
            qp: SpecialQp::Gsi,
            slid: way_back.from,
            sqpn: Qpn::GSI,
            sl: self.port.sm_sl,
            pkey_index,
            grh: way_back.grh,
        })
    }

    /// The same for an answer that lies elsewhere.
    fn deliver_as_sa(
        &mut self,
        cause: Cause,
        vf: VfId,
        pkey_index: VirtualPKeyIndex,
        way_back: WayBack,
        answer: &SaMad,
    ) {
        let passed = self.answer_as_sa(cause, vf, pkey_index, way_back);
        self.emit_passed(cause, passed, &Mad::from_layout(answer));
    }

    /// Does what the two machines of mcast-agg and the path cache want done.
    pub(crate) fn pump(&mut self, now: Instant, cause: Cause) {
        while let Some(output) = self.mcast.poll_output() {
            use mcast_agg::Output as O;
            match output {
                O::SaRequest { token, request } => {
                    let transaction = PortTransaction::Membership(token);
                    self.ask_for_port(now, cause, transaction, &request);
                }
                O::Answer {
                    member,
                    pkey_index,
                    answer,
                } => self.answer_member(cause, member, pkey_index, &answer),
                O::Changed { members, .. } | O::Lost { members, .. } => {
                    self.ask_to_register(cause, members);
                }
                O::Left { member } => self.groups_left.extend(member.vf()),
            }
        }
        while let Some(output) = self.notices.poll_output() {
            use mcast_agg::notices::Output as O;
            match output {
                O::SaRequest { token, request } => {
                    let transaction = PortTransaction::Subscription(token);
                    self.ask_for_port(now, cause, transaction, &request);
                }
                O::Answer {
                    member,
                    pkey_index,
                    answer,
                } => self.answer_member(cause, member, pkey_index, &answer),
                O::Deliver { member, report } => self.copy_report(cause, member, &report),
                O::Lost { members, .. } => self.ask_to_register(cause, members),
            }
        }
        while let Some((token, request)) = self.services.poll_deletion(now) {
            let transaction = PortTransaction::Service(Token(token));
            self.ask_for_port(now, cause, transaction, &request);
        }
        self.resume_requests(now, cause);
    }

    fn answer_member(
        &mut self,
        cause: Cause,
        member: MemberId,
        pkey_index: VirtualPKeyIndex,
        answer: &SaMad,
    ) {
        let vf = pf_software::tenant_of(member);
        let known = self.join_routes.take(vf, answer.header.tid);
        let way_back = known.unwrap_or_else(|| self.usual_way_back());
        self.deliver_as_sa(cause, vf, pkey_index, way_back, answer);
    }

    /// Gives a subscriber its copy of a report, in the partition in which the port hears the SA, or
    /// in the VF's first.
    fn copy_report(&mut self, cause: Cause, member: MemberId, report: &SaMad) {
        let vf = pf_software::tenant_of(member);
        if vf == VfId::PF && !self.has_pf_software() {
            return;
        }
        let key = self.pkeys.for_management();
        let found = self
            .vfs
            .get(vf)
            .and_then(|record| record.pkeys.find(key, Strictness::Compat));
        let pkey_index = found.unwrap_or(VirtualPKeyIndex(PKeyIndex(0)));
        let way_back = self.usual_way_back();
        self.deliver_as_sa(cause, vf, pkey_index, way_back, report);
    }

    /// Tells VFs that something they had registered is gone or different.
    fn ask_to_register(&mut self, cause: Cause, members: Vec<MemberId>) {
        for vf in members.into_iter().filter_map(MemberId::vf) {
            self.tell(cause, vf, VfEvent::ClientReregister);
        }
    }

    /// Sends a request of the port's own. Every transmission is a transaction with a wire TID of its
    /// own; one that finds no room is lost like any packet, and mcast-agg sends another.
    fn ask_for_port(
        &mut self,
        now: Instant,
        cause: Cause,
        transaction: PortTransaction,
        request: &SaMad,
    ) {
        self.sa_transmissions = self.sa_transmissions.wrapping_add(1);
        let mut mad = Mad::from_layout(request);
        mad.header.tid = transaction.tid(self.sa_transmissions);
        let sa = self.sa();
        if self.tids.egress(now, Owner::Pf, &mut mad, &sa).is_err() {
            return;
        }
        let out = WireSend {
            vf: None,
            qp: SpecialQp::Gsi,
            dlid: sa.lid,
            dqpn: sa.qpn,
            qkey: QKey::GSI,
            sl: self.port.sm_sl,
            pkey: self.pkeys.for_management(),
            path_bits: 0,
            grh: None,
        };
        self.transmit_own(now, cause, out, mad);
    }
}
