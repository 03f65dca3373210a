//! From the wire to a VF.

use ib_vtime::Instant;
use ib_wire::cm::{CmLap, CmMessage, CmMra, CmRej, CmRep, CmReq, CmSidrRep, CmSidrReq};
use ib_wire::cm::{RejReason, timeout_nanos};
use ib_wire::mad::Mad;
use ib_wire::{CommId, Gid};
use vf_tunnel::{DropReason, RemoteCommId, VfId, WireCommId};

use crate::answer;
use crate::ids::CmIds;
use crate::machine::{CmParavirt, Kind, Offer, classify};
use crate::party::{GidOwner, Ingress, PeerAddress};
use crate::sidr;
use crate::state::{Clock, Message, State, Way};
use crate::statistics::Refusal;
use crate::store::{Flags, Hot};
use crate::table::{Claim, Space};

/// An answer of the machine's own.
#[derive(Clone, Copy)]
enum Answer {
    Rej(RejReason),
    Drep,
}

impl CmParavirt {
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        dgid: Option<Gid>,
        owner: impl Fn(&Gid) -> GidOwner,
        mut admit: impl FnMut(VfId) -> Result<(), DropReason>,
    ) -> Result<Ingress, Refusal> {
        let admit = |vf| admit(vf).map_err(|reason| Refusal::of(vf, reason));
        let message = match classify(&mad.header)? {
            Kind::InfoRequest => return steer_by_gid(dgid, owner, admit),
            Kind::InfoAnswer => return Err(DropReason::UnknownTid.into()),
            Kind::Message(message) => message,
        };
        match message {
            Message::Req => self.receive_req(now, mad, from, dgid, owner, admit),
            Message::SidrReq => self.receive_sidr_req(mad, from, dgid, owner, admit),
            Message::SidrRep => self.receive_sidr_rep(mad, from, admit),
            Message::Lap => {
                let target = owner(&mad.view::<CmLap>().alternate_remote_gid);
                self.receive_connected(now, mad, from, message, Some(target), admit)
            }
            _ => self.receive_connected(now, mad, from, message, None, admit),
        }
    }

    fn receive_req(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        dgid: Option<Gid>,
        owner: impl Fn(&Gid) -> GidOwner,
        mut admit: impl FnMut(VfId) -> Result<(), Refusal>,
    ) -> Result<Ingress, Refusal> {
        let req: &CmReq = mad.view();
        let target = owner(&req.primary.remote_gid);
        if dgid.is_some_and(|dgid| owner(&dgid) != target) {
            return Err(DropReason::TargetMismatch.into());
        }
        match target {
            GidOwner::Pf => Ok(Ingress::ToPf),
            GidOwner::Unknown => self
                .answer(now, mad, from, Answer::Rej(RejReason::PRIMARY_GID))
                .ok_or_else(|| DropReason::UnknownGid.into()),
            GidOwner::VfDown(vf) => {
                let answer = Answer::Rej(RejReason::NO_RESOURCES);
                self.config
                    .reject_for_down_vf
                    .then(|| self.answer(now, mad, from, answer))
                    .flatten()
                    .ok_or_else(|| Refusal::of(vf, DropReason::VfDown))
            }
            GidOwner::Vf(vf) => {
                admit(vf)?;
                self.track_req(vf, req, from)
                    .map_err(|reason| Refusal::of(vf, reason))?;
                Ok(Ingress::Deliver(vf))
            }
        }
    }

    /// Remembers that a VF got a REQ, or that it got it once more.
    fn track_req(&mut self, vf: VfId, req: &CmReq, from: &PeerAddress) -> Result<(), DropReason> {
        let id = RemoteCommId(req.local_comm_id);
        let known = self
            .table
            .by_peer(from, id, Space::Connection)
            .find(|&slot| {
                self.table.store.hot(slot).vf == vf && self.table.ca_guid(slot) == req.local_ca_guid
            });
        if let Some(slot) = known {
            let hot = self.table.store.hot(slot);
            if !(hot.state.clock() == Clock::Quarantine && hot.has(Flags::BOUND)) {
                if hot.state == State::Rejected {
                    self.table.set_terms(slot, &Offer::from(req), true);
                    self.table.index_peer(slot);
                }
                self.table.pass(slot, Way::Rcvd, Message::Req);
                return Ok(());
            }
            // The peer's id begins another exchange.
            self.table.unindex_peer(slot);
        }
        let slot = self
            .table
            .open_for_peer(vf, id, State::ReqRcvd, Space::Connection, from)?;
        self.table.set_terms(slot, &Offer::from(req), true);
        let hot = self.table.store.hot_mut(slot);
        hot.pkey = req.pkey;
        hot.alternate_lid = req.alternate.local_lid;
        let cold = self.table.cold_mut(slot);
        cold.gid = req.primary.local_gid;
        cold.ca_guid = req.local_ca_guid;
        cold.qpn = req.local_qpn;
        self.table.pass(slot, Way::Rcvd, Message::Req);
        Ok(())
    }

    /// Messages that name the VF by its wire id.
    fn receive_connected(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        message: Message,
        lap_target: Option<GidOwner>,
        mut admit: impl FnMut(VfId) -> Result<(), Refusal>,
    ) -> Result<Ingress, Refusal> {
        let ids: &CmIds = mad.view();
        let (local, wire) = (RemoteCommId(ids.local), WireCommId(ids.remote));
        let slot = self.table.store.by_wire(wire).filter(|&slot| {
            let hot = self.table.store.hot(slot);
            hot.has(Flags::BOUND) && !hot.has(Flags::SIDR) && !hot.has(Flags::SUPERSEDED)
        });
        let Some(slot) = slot else {
            return self.receive_unknown(now, mad, from, message, admit);
        };
        let Hot { vf, guest, .. } = *self.table.store.hot(slot);
        let refuse = |reason| Refusal::of(vf, reason);
        if !self.table.is_from_peer(slot, from) || !self.is_peers_id(slot, local, message, mad) {
            return Err(refuse(DropReason::WrongPeer));
        }
        if lap_target.is_some_and(|target| target != GidOwner::Vf(vf)) {
            return Err(refuse(DropReason::TargetMismatch));
        }
        admit(vf)?;
        self.learn(slot, from, message, mad);
        if message == Message::Rep {
            self.forget_crossed_request(vf, from, local);
        }
        self.table.pass(slot, Way::Rcvd, message);
        if message == Message::Mra {
            let timeout = mad.view::<CmMra>().service_timeout();
            self.table.grant(slot, timeout_nanos(timeout));
        }
        mad.view_mut::<CmIds>().remote = guest.0;
        Ok(Ingress::Deliver(vf))
    }

    /// Whether the sender's id is the one of the slot's peer, or may become it.
    fn is_peers_id(&self, slot: u32, local: RemoteCommId, message: Message, mad: &Mad) -> bool {
        let hot = self.table.store.hot(slot);
        if hot.has(Flags::REMOTE) {
            return hot.remote == local;
        }
        match message {
            Message::Rep => true,
            Message::Mra => mad.view::<CmMra>().message_mraed() == CmMessage::REQ,
            // Who refuses a REQ need not have an id for it.
            Message::Rej => true,
            _ => false,
        }
    }

    fn learn(&mut self, slot: u32, from: &PeerAddress, message: Message, mad: &Mad) {
        self.table.learn_address(slot, from);
        match message {
            Message::Rep => {
                let rep: &CmRep = mad.view();
                self.table
                    .learn_remote(slot, RemoteCommId(rep.local_comm_id));
                let cold = self.table.cold_mut(slot);
                cold.ca_guid = rep.local_ca_guid;
                cold.qpn = rep.local_qpn;
            }
            Message::Mra => {
                let id = mad.view::<CmMra>().local_comm_id;
                self.table.learn_remote(slot, RemoteCommId(id));
            }
            Message::Lap => {
                let alternate = mad.view::<CmLap>().alternate_local_lid;
                self.table.load_alternate_path(slot, from, alternate);
            }
            _ => {}
        }
    }

    /// Both ends asked each other and the peer answered: its own request is settled by that, and the
    /// VF will not answer it.
    fn forget_crossed_request(&mut self, vf: VfId, from: &PeerAddress, id: RemoteCommId) {
        if let Claim::Own(half) = self.table.claim(vf, from, id, Space::Connection)
            && !self.table.store.hot(half).has(Flags::BOUND)
        {
            self.table.close(half);
        }
    }

    /// A message that names no id of a VF.
    fn receive_unknown(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        message: Message,
        mut admit: impl FnMut(VfId) -> Result<(), Refusal>,
    ) -> Result<Ingress, Refusal> {
        if message == Message::Rej
            && let Some(slot) = self.abandoned_request(mad.view(), from)
        {
            let vf = self.table.store.hot(slot).vf;
            admit(vf)?;
            self.table.pass(slot, Way::Rcvd, message);
            return Ok(Ingress::Deliver(vf));
        }
        if self.config.pf_has_cm {
            return Ok(Ingress::ToPf);
        }
        (message == Message::Dreq)
            .then(|| self.answer(now, mad, from, Answer::Drep))
            .flatten()
            .ok_or_else(|| DropReason::UnknownCommId.into())
    }

    /// The request that its peer gives up before it learned the VF's id: the REJ for timeout then
    /// names it by the peer's own id and CA (IBA 12.6.7.2, code 4). Without a CA, only one VF can be
    /// meant.
    fn abandoned_request(&self, rej: &CmRej, from: &PeerAddress) -> Option<u32> {
        if rej.reason != RejReason::TIMEOUT || rej.remote_comm_id != CommId::NONE {
            return None;
        }
        let id = RemoteCommId(rej.local_comm_id);
        let of_peer = || self.table.by_peer(from, id, Space::Connection);
        let vf_of = |slot| self.table.store.hot(slot).vf;
        match rej.timeout_ca_guid() {
            Some(guid) => of_peer()
                .filter(|&slot| self.table.ca_guid(slot) == guid)
                .max_by_key(|&slot| self.table.store.hot(slot).state.in_handshake()),
            None => of_peer()
                .last()
                .filter(|&last| of_peer().all(|slot| vf_of(slot) == vf_of(last))),
        }
    }

    fn receive_sidr_req(
        &mut self,
        mad: &Mad,
        from: &PeerAddress,
        dgid: Option<Gid>,
        owner: impl Fn(&Gid) -> GidOwner,
        mut admit: impl FnMut(VfId) -> Result<(), Refusal>,
    ) -> Result<Ingress, Refusal> {
        let req: &CmSidrReq = mad.view();
        let verdict = match (dgid, self.sidr.target(req)) {
            (None, Some(vf)) => {
                admit(vf)?;
                Ingress::Deliver(vf)
            }
            (None, None) => {
                let mut gids = sidr::gids_of_destination(req).into_iter().flatten();
                let known = gids.find(|gid| owner(gid) != GidOwner::Unknown);
                steer_by_gid(known, owner, admit)?
            }
            (Some(_), _) => steer_by_gid(dgid, owner, admit)?,
        };
        if let Ingress::Deliver(vf) = verdict {
            let id = RemoteCommId(req.request_id);
            self.track_sidr_req(vf, id, from)
                .map_err(|reason| Refusal::of(vf, reason))?;
        }
        Ok(verdict)
    }

    fn track_sidr_req(
        &mut self,
        vf: VfId,
        id: RemoteCommId,
        from: &PeerAddress,
    ) -> Result<(), DropReason> {
        let known = self
            .table
            .by_peer(from, id, Space::Sidr)
            .find(|&slot| self.table.store.hot(slot).vf == vf);
        let slot = match known {
            Some(slot) => slot,
            None => self
                .table
                .open_for_peer(vf, id, State::SidrRcvd, Space::Sidr, from)?,
        };
        self.table.pass(slot, Way::Rcvd, Message::SidrReq);
        Ok(())
    }

    fn receive_sidr_rep(
        &mut self,
        mad: &mut Mad,
        from: &PeerAddress,
        mut admit: impl FnMut(VfId) -> Result<(), Refusal>,
    ) -> Result<Ingress, Refusal> {
        let wire = WireCommId(mad.view::<CmSidrRep>().request_id);
        let slot = self.table.store.by_wire(wire).filter(|&slot| {
            let hot = self.table.store.hot(slot);
            hot.has(Flags::BOUND) && hot.has(Flags::SIDR) && !hot.has(Flags::SUPERSEDED)
        });
        let Some(slot) = slot else {
            return if self.config.pf_has_cm {
                Ok(Ingress::ToPf)
            } else {
                Err(DropReason::UnknownCommId.into())
            };
        };
        let Hot { vf, guest, .. } = *self.table.store.hot(slot);
        if !self.table.is_from_peer(slot, from) {
            return Err(Refusal::of(vf, DropReason::WrongPeer));
        }
        admit(vf)?;
        self.table.pass(slot, Way::Rcvd, Message::SidrRep);
        mad.view_mut::<CmSidrRep>().request_id = guest.0;
        Ok(Ingress::Deliver(vf))
    }

    /// Puts an answer in the message's place, unless its sender cannot get it or had enough of them.
    fn answer(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        answer: Answer,
    ) -> Option<Ingress> {
        if !from.lid.is_unicast() || !self.answers.allow(now, from.lid) {
            self.statistics.answers_withheld += 1;
            return None;
        }
        match answer {
            Answer::Rej(reason) => {
                answer::reject_req(mad, reason);
                self.statistics.answered_rej += 1;
            }
            Answer::Drep => {
                answer::reply_to_dreq(mad);
                self.statistics.answered_drep += 1;
            }
        }
        Some(Ingress::Answer)
    }
}

/// Whom a request without ids is for: the destination GID's owner, or the PF if there is none.
fn steer_by_gid(
    dgid: Option<Gid>,
    owner: impl Fn(&Gid) -> GidOwner,
    mut admit: impl FnMut(VfId) -> Result<(), Refusal>,
) -> Result<Ingress, Refusal> {
    match dgid.map(|gid| owner(&gid)) {
        None | Some(GidOwner::Pf) => Ok(Ingress::ToPf),
        Some(GidOwner::Vf(vf)) => {
            admit(vf)?;
            Ok(Ingress::Deliver(vf))
        }
        Some(GidOwner::VfDown(vf)) => Err(Refusal::of(vf, DropReason::VfDown)),
        Some(GidOwner::Unknown) => Err(DropReason::UnknownGid.into()),
    }
}
