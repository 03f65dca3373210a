//! From a VF to the wire.

use cm_paravirt::{Egress, IdentityCheck, PeerAddress, Transmit, VfIdentity};
use ib_vtime::Instant;
use ib_wire::cm::CmReq;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::rmpp::{RmppHeader, RmppMad, RmppStatus, RmppType};
use ib_wire::{Gid, Lid, PKey, PKeyIndex, QKey, Qpn};
use mad_mux::policy::{self, ClassRoute};
use mad_mux::tid::{CutTransfer, Peer, TidMap};
use vf_tunnel::{DropReason, SpecialQp, ToPf, ToPfHeader, VfId, VirtualPKeyIndex};

use crate::cm::AdapterCm;
use crate::config::Strictness;
use crate::join_routes::WayBack;
use crate::limiter::{Admission, Held};
use crate::mux::PortMux;
use crate::output::{Cause, Passed, Route, WireSend, WireSource};
use crate::paths::WaitingRequest;
use crate::pf_software;
use crate::sa;
use crate::vf::Vf;

/// A frame that passed all that can be said without any table of exchanges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked<'a> {
    pub(crate) route: ClassRoute,
    /// The partition that the VF chose, where its answers belong.
    pub(crate) pkey_index: VirtualPKeyIndex,
    qp: SpecialQp,
    pkey: PKey,
    qkey: QKey,
    path_bits: u8,
    /// The VF's own, if there is to be a GRH.
    sgid: Option<Gid>,
    header: &'a ToPfHeader,
}

impl Checked<'_> {
    pub(crate) const fn dlid(&self) -> Lid {
        self.header.av.dlid
    }

    pub(crate) const fn dqpn(&self) -> Qpn {
        self.header.remote_qpn
    }

    fn dgid(&self) -> Option<Gid> {
        self.sgid.map(|_| self.header.av.dgid)
    }

    /// The peer as a transaction knows it.
    #[inline(always)]
    pub(crate) fn peer(&self) -> Peer {
        Peer {
            lid: self.dlid(),
            qpn: self.dqpn(),
            gid: self.dgid().unwrap_or(Gid::NONE),
        }
    }

    /// The GRH, if there is to be one.
    #[inline(always)]
    pub(crate) fn grh(&self) -> Option<Route> {
        let av = &self.header.av;
        self.sgid.map(|sgid| Route {
            sgid,
            dgid: av.dgid,
            traffic_class: av.traffic_class(),
            flow_label: av.flow_label(),
            hop_limit: av.hop_limit,
        })
    }

    /// How it goes to the wire: everything that the PF decides in place of the VF.
    #[inline(always)]
    fn send_for(&self, vf: VfId) -> WireSend {
        WireSend {
            vf: Some(vf),
            qp: self.qp,
            dlid: self.dlid(),
            dqpn: self.dqpn(),
            qkey: self.qkey,
            sl: self.header.av.sl(),
            pkey: self.pkey,
            path_bits: self.path_bits,
            grh: self.grh(),
        }
    }

    /// The frame again, with its MAD as it is now.
    const fn frame(&self, mad: &Mad) -> ToPf {
        ToPf {
            header: *self.header,
            mad: *mad,
        }
    }
}

/// What a class's machine made of a frame that it did not drop.
pub(crate) enum Step {
    /// It goes out.
    Send,
    /// The MAD is the SA's answer now.
    Answered,
    /// A machine has it.
    Absorbed,
    /// Another one asks the same: it can wait for that one's answer.
    Wait,
}

impl PortMux {
    /// Takes what came through a VF's tunnel, as bytes.
    pub fn from_vf_bytes(
        &mut self,
        now: Instant,
        cause: Cause,
        vf: VfId,
        qp: SpecialQp,
        bytes: &[u8],
    ) {
        match ToPf::from_bytes(bytes) {
            Ok(frame) => self.from_vf(now, cause, vf, qp, &frame),
            Err(_) => self.drop_frame(cause, Some(vf), DropReason::BadLength),
        }
    }

    /// Takes a frame that came through a VF's tunnel.
    pub fn from_vf(&mut self, now: Instant, cause: Cause, vf: VfId, qp: SpecialQp, frame: &ToPf) {
        let mut frame = *frame;
        let passed = self.judge_from_vf(now, cause, vf, qp, &mut frame);
        self.emit_passed(cause, passed, &frame.mad);
        self.pump(now, cause);
    }

    /// As [`PortMux::from_vf`], with the MAD judged and rewritten where it lies: what goes on is said
    /// rather than put among the outputs, and the frame's MAD is what is to be sent. The frame must be
    /// the PF's own copy, which no guest can change. Outputs that are there afterwards go first.
    pub fn from_vf_in_place(
        &mut self,
        now: Instant,
        cause: Cause,
        vf: VfId,
        qp: SpecialQp,
        frame: &mut ToPf,
    ) -> Passed {
        let passed = self.judge_from_vf(now, cause, vf, qp, frame);
        self.pump(now, cause);
        passed
    }

    #[inline(always)]
    fn judge_from_vf(
        &mut self,
        now: Instant,
        cause: Cause,
        vf: VfId,
        qp: SpecialQp,
        frame: &mut ToPf,
    ) -> Passed {
        self.release(now);
        let ToPf { header, mad } = frame;
        let checked = match self.check(vf, qp, header, &mad.header) {
            Ok(checked) => checked,
            Err(reason) => return self.end(cause, Some(vf), reason),
        };
        if vf != VfId::PF {
            let held = || Held {
                since: now,
                cause,
                qp,
                frame: checked.frame(mad),
            };
            match self.limiter.offer(now, vf, held) {
                Admission::Now => {}
                Admission::Held => return Passed::Nothing,
                Admission::Refused(reason) => return self.end(cause, Some(vf), reason),
            }
        }
        let mut cause = cause;
        self.dispatch(now, &mut cause, vf, &checked, mad, None)
    }

    /// Sends the frames that have waited long enough.
    #[inline]
    pub(crate) fn release(&mut self, now: Instant) {
        if self.limiter.queued() > 0 {
            self.release_queued(now);
        }
    }

    fn release_queued(&mut self, now: Instant) {
        while let Some((vf, held)) = self.limiter.pop_ready(now) {
            let Held {
                mut cause,
                qp,
                frame: ToPf { header, mut mad },
                ..
            } = held;
            let passed = match self.check(vf, qp, &header, &mad.header) {
                Ok(checked) => self.dispatch(now, &mut cause, vf, &checked, &mut mad, None),
                Err(reason) => self.end(cause, Some(vf), reason),
            };
            self.emit_passed(cause, passed, &mad);
            self.pump(now, cause);
        }
    }

    /// Does with a frame what its class is due, and gives what goes on of it, because of `cause`. One
    /// that has waited for another one's answer does so once; it is due to `waited_for` if it is
    /// answered now.
    #[inline(always)]
    pub(crate) fn dispatch(
        &mut self,
        now: Instant,
        cause: &mut Cause,
        vf: VfId,
        checked: &Checked<'_>,
        mad: &mut Mad,
        waited_for: Option<Cause>,
    ) -> Passed {
        match self.hand_to_machine(now, vf, checked, mad, waited_for.is_some()) {
            Ok(Step::Send) => self.transmit(now, *cause, checked.send_for(vf), mad),
            Ok(Step::Answered) => {
                self.statistics_of(Some(vf))
                    .of(mad.header.mgmt_class)
                    .answered += 1;
                *cause = waited_for.unwrap_or(*cause);
                let way_back = WayBack {
                    from: checked.dlid(),
                    grh: checked.grh().map(Route::reversed),
                };
                self.answer_as_sa(*cause, vf, checked.pkey_index, way_back)
            }
            Ok(Step::Absorbed) => {
                self.statistics_of(Some(vf))
                    .of(mad.header.mgmt_class)
                    .absorbed += 1;
                Passed::Nothing
            }
            Ok(Step::Wait) => {
                let request = WaitingRequest {
                    cause: *cause,
                    qp: checked.qp,
                    frame: checked.frame(mad),
                };
                self.paths.wait(now, vf, mad, request);
                Passed::Nothing
            }
            Err(reason) => self.end(*cause, Some(vf), reason),
        }
    }

    /// Everything about a frame that needs no table of exchanges, in the order of the design.
    #[inline(always)]
    pub(crate) fn check<'a>(
        &self,
        vf: VfId,
        qp: SpecialQp,
        header: &'a ToPfHeader,
        mad: &MadHeader,
    ) -> Result<Checked<'a>, DropReason> {
        let record = self.vfs.active(vf).ok_or(DropReason::VfInReset)?;
        let route = if record.is_pf {
            pf_software::route(mad)
        } else {
            policy::egress(mad, qp, record.rights)?
        };
        let pkey_index = match qp {
            // SMPs have no partition of their own (IBA 10.9.4).
            SpecialQp::Smi => VirtualPKeyIndex(PKeyIndex(0)),
            SpecialQp::Gsi => header.virtual_pkey_index(),
        };
        let pkey = record.pkeys.value(pkey_index)?;
        let av = &header.av;
        // The VF's own source GID, whatever the frame says.
        let sgid = if av.grh() {
            let own = record.gid(self.gids.prefix());
            Some(own.ok_or(DropReason::NoGuid)?)
        } else {
            None
        };
        if av.port() != record.port {
            return Err(DropReason::BadPort);
        }
        self.check_destination(record, qp, av.dlid, mad)?;
        if qp == SpecialQp::Gsi && !record.may_use(av.sl()) {
            return Err(DropReason::BadSl);
        }
        let qkey = self.remote_qkey(record, qp, header)?;
        Ok(Checked {
            route,
            pkey_index,
            qp,
            pkey,
            qkey,
            path_bits: match av.path_bits() & self.path_bits() {
                0 => record.asked.path_bits(av.dlid, mad),
                given => given,
            },
            sgid,
            header,
        })
    }

    #[inline(always)]
    fn check_destination(
        &self,
        record: &Vf,
        qp: SpecialQp,
        dlid: Lid,
        mad: &MadHeader,
    ) -> Result<(), DropReason> {
        let reachable = dlid.is_unicast() || (qp == SpecialQp::Smi && dlid == Lid::PERMISSIVE);
        if !reachable {
            return Err(DropReason::NoTarget);
        }
        // Whoever serves a class serves others: what claims to come from the SA to the port itself is
        // forged.
        let as_sa = mad.method.is_answer() || mad.method == Method::REPORT;
        let is_from_sa = mad.mgmt_class == MgmtClass::SUBN_ADM && as_sa;
        if is_from_sa && self.port.owns(dlid) && !record.is_pf {
            return Err(DropReason::ResponseNotPermitted);
        }
        Ok(())
    }

    /// The Q_Key that is sent, if the VF may speak to that QP with it. A key with the top bit set
    /// means the sending QP's own (IBA 10.2.5).
    #[inline(always)]
    fn remote_qkey(
        &self,
        record: &Vf,
        qp: SpecialQp,
        header: &ToPfHeader,
    ) -> Result<QKey, DropReason> {
        let qpn = header.remote_qpn;
        // Linux sends every MAD so: its MAD layer leaves the key to the queue pair.
        let wish = match header.remote_qkey {
            own if own.is_privileged() => QKey::GSI,
            other => other,
        };
        if qp == SpecialQp::Smi {
            return if qpn == Qpn::SMI {
                Ok(QKey::SMI)
            } else {
                Err(DropReason::BadRemoteQp)
            };
        }
        let is_usual = qpn == Qpn::GSI && wish == QKey::GSI;
        if !is_usual && self.policy.remote_qp == Strictness::Strict && !record.is_pf {
            let mut told = record.redirects.qkeys(header.av.dlid, qpn).peekable();
            if qpn != Qpn::GSI && told.peek().is_none() {
                return Err(DropReason::BadRemoteQp);
            }
            if wish != QKey::GSI && !told.any(|qkey| qkey == wish) {
                return Err(DropReason::BadQKey);
            }
        }
        Ok(wish)
    }

    fn path_bits(&self) -> u8 {
        u8::try_from(self.port.lmc.mask()).unwrap_or(u8::MAX)
    }

    #[inline(always)]
    fn hand_to_machine(
        &mut self,
        now: Instant,
        vf: VfId,
        checked: &Checked<'_>,
        mad: &mut Mad,
        waited: bool,
    ) -> Result<Step, DropReason> {
        match checked.route {
            ClassRoute::Cm => return self.send_cm(now, vf, checked, mad),
            ClassRoute::SubnAdm if self.is_sa(checked.dlid()) || sa::is_aggregated(&mad.header) => {
                match self.ask_sa(now, vf, checked, mad)? {
                    Step::Send => {}
                    Step::Wait if waited => {}
                    done => return Ok(done),
                }
            }
            ClassRoute::SubnAdm => self.guard_sa_request(now, vf, mad)?,
            ClassRoute::Smp | ClassRoute::Transaction => {}
        }
        if TidMap::is_mapped(mad.header.method) {
            self.map_tid(now, vf, checked, mad)?;
            if checked.route == ClassRoute::SubnAdm && vf != VfId::PF {
                let is_to_sa = self.is_sa(checked.dlid());
                self.services.note(now, vf, mad, mad.header.tid, is_to_sa);
            }
        }
        Ok(Step::Send)
    }

    #[inline(always)]
    fn send_cm(
        &mut self,
        now: Instant,
        vf: VfId,
        checked: &Checked<'_>,
        mad: &mut Mad,
    ) -> Result<Step, DropReason> {
        let record = self.vfs.get(vf).ok_or(DropReason::VfInReset)?;
        let own = record.gids(self.gids.prefix());
        let own = own.as_ref().map_or(&[][..], |gids| &gids[..]);
        let AdapterCm { machine, gids } = &mut *self.cm.lock();
        let elsewhere = self.gids_elsewhere(gids, vf, mad.header.attribute_id);
        let everywhere;
        let gids = if elsewhere.is_empty() {
            own
        } else {
            everywhere = [own, &elsewhere].concat();
            &everywhere
        };
        let who = VfIdentity {
            gids,
            ca_guid: record.ca_guid,
            pkeys: record.pkeys.keys(),
            check: match self.policy.cm_identity {
                Strictness::Strict => IdentityCheck::Strict,
                Strictness::Compat => IdentityCheck::Compat,
            },
        };
        let to = PeerAddress {
            port: self.number,
            lid: checked.dlid(),
            qpn: checked.dqpn(),
            sl: checked.header.av.sl(),
            gid: checked.dgid(),
        };
        let verdict = machine.egress(now, vf, mad, &to, &who);
        if let Egress::Drop(reason) = verdict {
            return Err(reason);
        }
        if mad.header.attribute_id == AttributeId::CM_REQ
            && let Some(record) = self.vfs.get_mut(vf)
        {
            record.claimed_ca = Some(mad.view::<CmReq>().local_ca_guid);
        }
        Ok(Step::Send)
    }

    /// Sends a MAD: to the wire, or straight back if it is for the port's own LID.
    #[inline(always)]
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        cause: Cause,
        out: WireSend,
        mad: &mut Mad,
    ) -> Passed {
        let comes_back = out.qp == SpecialQp::Gsi
            && self.port.owns(out.dlid)
            && !self.is_answered_below(out.dlid, &mad.header);
        if comes_back {
            return self.loop_back(now, cause, &out, mad);
        }
        self.statistics_of(out.vf).of(mad.header.mgmt_class).to_wire += 1;
        Passed::ToWire(out)
    }

    /// Takes in what the port itself sends to its own LID.
    #[inline(never)]
    fn loop_back(&mut self, now: Instant, cause: Cause, out: &WireSend, mad: &mut Mad) -> Passed {
        self.statistics_of(out.vf)
            .of(mad.header.mgmt_class)
            .loopback += 1;
        let source = WireSource {
            slid: Lid::new(self.port.lid.get() | u16::from(out.path_bits)),
            sqpn: Qpn::GSI,
            sl: out.sl,
            pkey: out.pkey,
            grh: out.grh,
            path_bits: out.dlid.get().to_be_bytes()[1] & self.path_bits(),
        };
        self.receive(now, cause, out.qp, &source, mad)
    }

    /// Whether somebody takes a MAD to the port's own LID before QP1 has it.
    fn is_answered_below(&self, dlid: Lid, mad: &MadHeader) -> bool {
        // Without software of the PF's own the SM of this port is reached by its QP1 alone.
        let asks_sm_here =
            mad.mgmt_class == MgmtClass::SUBN_ADM && self.is_sa(dlid) && !self.has_pf_software();
        // The adapter itself answers these before QP1.
        let asks_adapter = mad.mgmt_class == MgmtClass::PERF && !mad.method.is_response();
        asks_sm_here || asks_adapter
    }

    /// Sends a MAD of the mux's own making.
    pub(crate) fn transmit_own(&mut self, now: Instant, cause: Cause, out: WireSend, mut mad: Mad) {
        let passed = self.transmit(now, cause, out, &mut mad);
        self.emit_passed(cause, passed, &mad);
    }

    /// Tells the peer of a transfer that a reset cut that nobody waits any more.
    pub(crate) fn abort(&mut self, now: Instant, cause: Cause, vf: VfId, cut: &CutTransfer) {
        let mut mad = Mad::new(MadHeader::new(cut.class, cut.method, cut.attribute));
        mad.header.tid = cut.tid.0;
        mad.view_mut::<RmppMad>().rmpp = RmppHeader::end(RmppType::ABORT, RmppStatus::UNSPECIFIED);
        let gid = (!cut.peer.gid.is_none()).then_some(cut.peer.gid);
        let out = WireSend {
            dlid: cut.peer.lid,
            dqpn: cut.peer.qpn,
            ..self.in_name_of(vf, gid, PKey::INVALID)
        };
        self.transmit_own(now, cause, out, mad);
    }

    /// Sends what cm-paravirt has to say to a peer of a VF that was reset.
    pub(crate) fn farewell(&mut self, now: Instant, cause: Cause, message: &Transmit) {
        let out = WireSend {
            dlid: message.to.lid,
            dqpn: message.to.qpn,
            sl: message.to.sl,
            ..self.in_name_of(message.vf, message.to.gid, message.pkey)
        };
        self.transmit_own(now, cause, out, message.mad);
    }

    /// The address of a GMP that the mux sends for a VF.
    fn in_name_of(&self, vf: VfId, gid: Option<Gid>, exchange: PKey) -> WireSend {
        let own = self
            .vfs
            .get(vf)
            .and_then(|record| record.gid(self.gids.prefix()));
        WireSend {
            vf: Some(vf),
            qp: SpecialQp::Gsi,
            dlid: Lid::NONE,
            dqpn: Qpn::GSI,
            qkey: QKey::GSI,
            sl: self.port.sm_sl,
            pkey: self.pkey_for(vf, exchange),
            path_bits: 0,
            grh: gid.zip(own).map(|(dgid, sgid)| Route {
                sgid,
                dgid,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: u8::MAX,
            }),
        }
    }
}
