//! From the wire to a VF.

use cm_paravirt::{Ingress, PeerAddress};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, Method, MgmtClass};
use ib_wire::{Gid, PKeyIndex, QKey, Qpn};
use mad_mux::policy::{self, ClassRoute, Rights};
use mad_mux::steering::Owner;
use mad_mux::tid::Peer;
use mcast_agg::MemberId;
use vf_tunnel::{DropReason, SpecialQp, VfId, VirtualPKeyIndex, WireTid};

use crate::cm::AdapterCm;
use crate::config::Strictness;
use crate::mux::PortMux;
use crate::output::{Cause, Passed, Route, VfDelivery, WireSend, WireSource};
use crate::pf_software;
use crate::sa::PortTransaction;
use crate::vf::Vf;

/// A frame that ended, and whom it was for.
#[derive(Clone, Copy)]
struct Refused {
    vf: Option<VfId>,
    reason: DropReason,
}

impl Refused {
    const fn of(vf: VfId, reason: DropReason) -> Self {
        Self {
            vf: Some(vf),
            reason,
        }
    }
}

impl From<DropReason> for Refused {
    fn from(reason: DropReason) -> Self {
        Self { vf: None, reason }
    }
}

/// Where a MAD goes that was not refused.
#[derive(Clone, Copy)]
enum Target {
    Vf(VfId, VirtualPKeyIndex),
    /// The MAD is an answer to its sender now.
    Sender,
    /// It answers a request of the port's own.
    Port,
}

/// What some VF may get: what not even that is, nobody gets.
const ANY_RIGHTS: Rights = Rights {
    smi: true,
    perf_mgt: true,
    serve: true,
    trap: true,
    vendor: true,
};

impl PortMux {
    /// Takes a packet that came to a special QP of the port.
    pub fn from_wire(
        &mut self,
        now: Instant,
        cause: Cause,
        qp: SpecialQp,
        source: &WireSource,
        mad: &[u8],
    ) {
        self.release(now);
        match Mad::from_bytes(mad) {
            Some(mut mad) => {
                let passed = self.receive(now, cause, qp, source, &mut mad);
                self.emit_passed(cause, passed, &mad);
            }
            None => self.drop_frame(cause, None, DropReason::BadLength),
        }
        self.pump(now, cause);
    }

    /// As [`PortMux::from_wire`], with the MAD judged and rewritten where it lies: what goes on is said
    /// rather than put among the outputs, and `mad` is what is to be sent. Outputs that are there
    /// afterwards go first.
    pub fn from_wire_in_place(
        &mut self,
        now: Instant,
        cause: Cause,
        qp: SpecialQp,
        source: &WireSource,
        mad: &mut Mad,
    ) -> Passed {
        self.release(now);
        let passed = self.receive(now, cause, qp, source, mad);
        self.pump(now, cause);
        passed
    }

    pub(crate) fn receive(
        &mut self,
        now: Instant,
        cause: Cause,
        qp: SpecialQp,
        source: &WireSource,
        mad: &mut Mad,
    ) -> Passed {
        match self.steer(now, qp, source, mad) {
            Ok(Target::Vf(vf, pkey_index)) => {
                if let Some(record) = self.vfs.get_mut(vf) {
                    record.statistics.of(mad.header.mgmt_class).delivered += 1;
                    if mad.header.method.is_response() {
                        record.redirects.learn(mad);
                        record.adapt(mad);
                    } else {
                        record
                            .asked
                            .note(source.slid, source.path_bits, &mad.header);
                    }
                }
                Passed::ToVf(VfDelivery {
                    vf,
                    qp,
                    slid: source.slid,
                    sqpn: source.sqpn,
                    sl: source.sl,
                    pkey_index,
                    grh: source.grh,
                })
            }
            Ok(Target::Sender) => {
                self.statistics.of(mad.header.mgmt_class).answered += 1;
                self.answer_sender(now, cause, source, mad)
            }
            Ok(Target::Port) => {
                let answer = mad.view();
                let taken = match PortTransaction::from_tid(mad.header.tid) {
                    PortTransaction::Membership(token) => {
                        self.mcast.handle_response(now, token, answer)
                    }
                    PortTransaction::Subscription(token) => {
                        self.notices.handle_response(now, token, answer)
                    }
                    PortTransaction::Service(token) => {
                        self.services.deleted(token.0, answer.header.status)
                    }
                };
                if taken {
                    self.statistics.of(mad.header.mgmt_class).absorbed += 1;
                    Passed::Nothing
                } else {
                    self.end(cause, None, DropReason::NoTransaction)
                }
            }
            Err(Refused { vf, reason }) => self.end(cause, vf, reason),
        }
    }

    fn steer(
        &mut self,
        now: Instant,
        qp: SpecialQp,
        source: &WireSource,
        mad: &mut Mad,
    ) -> Result<Target, Refused> {
        let route = policy::ingress(&mad.header, qp, ANY_RIGHTS);
        if route.is_err() && !self.has_pf_software() {
            route?;
        }
        if mad.header.method.is_answer() {
            return self.steer_answer(now, qp, source, mad);
        }
        if route == Ok(ClassRoute::Cm) {
            return self.steer_cm(now, source, mad);
        }
        self.note_report(source, mad);
        let dgid = source.grh.map(|route| route.dgid);
        match dgid.map(|gid| self.gids.owner(gid)).transpose()? {
            Some(Owner::Vf(vf)) => self.admit(vf, qp, source, mad),
            Some(Owner::Pf) | None => match self.take_report(now, source, mad) {
                Err(_) if self.has_pf_software() => self.admit(VfId::PF, qp, source, mad),
                taken => taken,
            },
        }
    }

    /// Takes a report of the SA to the port.
    fn take_report(
        &mut self,
        now: Instant,
        source: &WireSource,
        mad: &mut Mad,
    ) -> Result<Target, Refused> {
        let is_report =
            mad.header.mgmt_class == MgmtClass::SUBN_ADM && mad.header.method == Method::REPORT;
        let from_sa = self.is_sa(source.slid) && source.sqpn == Qpn::GSI;
        if !is_report || !from_sa {
            return Err(DropReason::NoTarget.into());
        }
        let vfs = &self.vfs;
        let may_hear = |member: MemberId| {
            member.vf().is_none_or(|vf| {
                let record = vfs.active(vf);
                let find = |record: &Vf| record.pkeys.find(source.pkey, Strictness::Compat);
                record.and_then(find).is_some()
            })
        };
        let answer = self
            .notices
            .report(now, mad.view(), may_hear)
            .ok_or(DropReason::NoTarget)?;
        *mad = Mad::from_layout(&answer);
        Ok(Target::Sender)
    }

    /// Answers go to who asked; a GRH must not say otherwise.
    fn steer_answer(
        &mut self,
        now: Instant,
        qp: SpecialQp,
        source: &WireSource,
        mad: &mut Mad,
    ) -> Result<Target, Refused> {
        self.tids.expire(now);
        let wire_tid = WireTid(mad.header.tid);
        let named = self.tids.named(wire_tid).ok_or(DropReason::UnknownTid)?;
        let owner = named.owner;
        if let Some(route) = source.grh
            && pf_software::tenant(self.gids.owner(route.dgid)?) != pf_software::tenant(owner)
        {
            return Err(DropReason::TargetMismatch.into());
        }
        let target = match owner {
            Owner::Vf(vf) => self.admit(vf, qp, source, mad)?,
            Owner::Pf if source.slid == self.port.sm_lid => Target::Port,
            // A manager that is the SM no longer.
            Owner::Pf => return Err(DropReason::WrongPeer.into()),
        };
        let from = Peer {
            lid: source.slid,
            qpn: source.sqpn,
            gid: source.grh.map_or(Gid::NONE, |route| route.sgid),
        };
        let vf = match owner {
            Owner::Vf(vf) => Some(vf),
            Owner::Pf => None,
        };
        self.tids
            .answer(now, named, mad, &from)
            .map_err(|reason| Refused { vf, reason })?;
        self.paths.answered(now, wire_tid, mad);
        self.note_port_info(source, mad);
        self.services.answered(wire_tid.0, &mad.header);
        Ok(target)
    }

    fn steer_cm(
        &mut self,
        now: Instant,
        source: &WireSource,
        mad: &mut Mad,
    ) -> Result<Target, Refused> {
        let from = PeerAddress {
            port: self.number,
            lid: source.slid,
            qpn: source.sqpn,
            sl: source.sl,
            gid: source.grh.map(|route| route.sgid),
        };
        let AdapterCm { machine, gids } = &mut *self.cm.lock();
        let owner = |gid: &Gid| self.cm_owner(gids, *gid);
        let dgid = source.grh.map(|route| route.dgid);
        match machine.find(now, mad, &from, dgid, owner) {
            Ingress::Vf(named) => match self.admit(named.vf, SpecialQp::Gsi, source, mad) {
                Ok(target) => {
                    machine.accept(named, mad, &from)?;
                    Ok(target)
                }
                Err(refused) => {
                    machine.refuse(named, refused.reason);
                    Err(refused)
                }
            },
            Ingress::Answer => Ok(Target::Sender),
            Ingress::ToPf if self.has_pf_software() => {
                self.admit(VfId::PF, SpecialQp::Gsi, source, mad)
            }
            Ingress::ToPf => Err(DropReason::NoTarget.into()),
            Ingress::Drop(reason) => Err(reason.into()),
        }
    }

    /// Lets a MAD in to a VF: if its tunnel works, the VF may get such a thing, and its partition is
    /// one of the VF's.
    fn admit(
        &self,
        vf: VfId,
        qp: SpecialQp,
        source: &WireSource,
        mad: &Mad,
    ) -> Result<Target, Refused> {
        let refuse = |reason| Refused::of(vf, reason);
        let record = self
            .vfs
            .active(vf)
            .ok_or_else(|| refuse(DropReason::VfDown))?;
        if !record.is_pf {
            policy::ingress(&mad.header, qp, record.rights).map_err(refuse)?;
        }
        let index = match qp {
            SpecialQp::Smi => Some(VirtualPKeyIndex(PKeyIndex(0))),
            SpecialQp::Gsi => record.pkeys.find(source.pkey, self.policy.limited_pkeys),
        };
        index
            .map(|index| Target::Vf(vf, index))
            .ok_or_else(|| refuse(DropReason::PKeyMismatch))
    }

    /// Sends an answer of cm-paravirt back where the message came from.
    fn answer_sender(
        &mut self,
        now: Instant,
        cause: Cause,
        source: &WireSource,
        mad: &mut Mad,
    ) -> Passed {
        let out = WireSend {
            vf: None,
            qp: SpecialQp::Gsi,
            dlid: source.slid,
            dqpn: source.sqpn,
            qkey: QKey::GSI,
            sl: source.sl,
            pkey: self.pkeys.of_partition(source.pkey).unwrap_or_default(),
            path_bits: source.path_bits,
            grh: source.grh.map(Route::reversed),
        };
        self.transmit(now, cause, out, mad)
    }
}
