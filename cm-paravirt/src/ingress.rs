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
use crate::party::{GidOwner, Ingress, Named, PeerAddress};
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

/// The exchange that a message for a VF belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// None: a request for information.
    None,
    /// The one that a REQ begins or repeats.
    Req,
    /// The one that a SIDR_REQ begins or repeats.
    SidrReq,
    /// The connection whose wire id the message names.
    Connected { slot: u32, message: Message },
    /// The request that a SIDR_REP answers.
    SidrRep { slot: u32 },
    /// The request that its peer gives up before it knows the VF's id.
    Abandoned { slot: u32 },
}

impl CmParavirt {
    pub(crate) fn find_exchange(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        dgid: Option<Gid>,
        owner: impl Fn(&Gid) -> GidOwner,
    ) -> Result<Ingress, Refusal> {
        let message = match classify(&mad.header)? {
            Kind::InfoRequest => return steer_by_gid(dgid, owner, Exchange::None),
            Kind::InfoAnswer => return Err(DropReason::UnknownTid.into()),
            Kind::Message(message) => message,
        };
        match message {
            Message::Req => self.find_req(now, mad, from, dgid, owner),
            Message::SidrReq => self.find_sidr_req(mad.view(), dgid, owner),
            Message::SidrRep => self.find_sidr_rep(mad.view(), from),
            Message::Lap => {
                let target = owner(&mad.view::<CmLap>().alternate_remote_gid);
                self.find_connected(now, mad, from, message, Some(target))
            }
            _ => self.find_connected(now, mad, from, message, None),
        }
    }

    /// Notes a message that its VF is to get, and gives it the VF's own id.
    pub(crate) fn note(
        &mut self,
        named: Named,
        mad: &mut Mad,
        from: &PeerAddress,
    ) -> Result<(), DropReason> {
        let Named { vf, exchange } = named;
        match exchange {
            Exchange::None => {}
            Exchange::Req => self.track_req(vf, mad.view(), from)?,
            Exchange::SidrReq => self.track_sidr_req(vf, mad.view(), from)?,
            Exchange::Connected { slot, message } => {
                self.note_connected(vf, slot, message, mad, from);
            }
            Exchange::SidrRep { slot } => {
                let guest = self.table.store.hot(slot).guest;
                self.table.pass(slot, Way::Rcvd, Message::SidrRep);
                mad.view_mut::<CmSidrRep>().request_id = guest.0;
            }
            Exchange::Abandoned { slot } => self.table.pass(slot, Way::Rcvd, Message::Rej),
        }
        Ok(())
    }

    fn find_req(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        dgid: Option<Gid>,
        owner: impl Fn(&Gid) -> GidOwner,
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
            GidOwner::Vf(vf) => Ok(Ingress::to(vf, Exchange::Req)),
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
    fn find_connected(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        message: Message,
        lap_target: Option<GidOwner>,
    ) -> Result<Ingress, Refusal> {
        let ids: &CmIds = mad.view();
        let (local, wire) = (RemoteCommId(ids.local), WireCommId(ids.remote));
        let slot = self.table.store.by_wire(wire).filter(|&slot| {
            let hot = self.table.store.hot(slot);
            hot.has(Flags::BOUND) && !hot.has(Flags::SIDR) && !hot.has(Flags::SUPERSEDED)
        });
        let Some(slot) = slot else {
            return self.find_unknown(now, mad, from, message);
        };
        let Hot { vf, .. } = *self.table.store.hot(slot);
        let refuse = |reason| Refusal::of(vf, reason);
        if !self.table.is_from_peer(slot, from) || !self.is_peers_id(slot, local, message, mad) {
            return Err(refuse(DropReason::WrongPeer));
        }
        if lap_target.is_some_and(|target| target != GidOwner::Vf(vf)) {
            return Err(refuse(DropReason::TargetMismatch));
        }
        Ok(Ingress::to(vf, Exchange::Connected { slot, message }))
    }

    fn note_connected(
        &mut self,
        vf: VfId,
        slot: u32,
        message: Message,
        mad: &mut Mad,
        from: &PeerAddress,
    ) {
        // To pass the message on can end the exchange.
        let guest = self.table.store.hot(slot).guest;
        self.learn(slot, from, message, mad);
        if message == Message::Rep {
            let peers = RemoteCommId(mad.view::<CmIds>().local);
            self.forget_crossed_request(vf, from, peers);
        }
        self.table.pass(slot, Way::Rcvd, message);
        if message == Message::Mra {
            let timeout = mad.view::<CmMra>().service_timeout();
            self.table.grant(slot, timeout_nanos(timeout));
        }
        mad.view_mut::<CmIds>().remote = guest.0;
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
    fn find_unknown(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &PeerAddress,
        message: Message,
    ) -> Result<Ingress, Refusal> {
        if message == Message::Rej
            && let Some(slot) = self.abandoned_request(mad.view(), from)
        {
            let vf = self.table.store.hot(slot).vf;
            return Ok(Ingress::to(vf, Exchange::Abandoned { slot }));
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

    fn find_sidr_req(
        &self,
        req: &CmSidrReq,
        dgid: Option<Gid>,
        owner: impl Fn(&Gid) -> GidOwner,
    ) -> Result<Ingress, Refusal> {
        if dgid.is_some() {
            return steer_by_gid(dgid, owner, Exchange::SidrReq);
        }
        if let Some(vf) = self.sidr.target(req) {
            return Ok(Ingress::to(vf, Exchange::SidrReq));
        }
        let mut gids = sidr::gids_of_destination(req).into_iter().flatten();
        let known = gids.find(|gid| owner(gid) != GidOwner::Unknown);
        steer_by_gid(known, owner, Exchange::SidrReq)
    }

    fn track_sidr_req(
        &mut self,
        vf: VfId,
        req: &CmSidrReq,
        from: &PeerAddress,
    ) -> Result<(), DropReason> {
        let id = RemoteCommId(req.request_id);
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

    fn find_sidr_rep(&self, rep: &CmSidrRep, from: &PeerAddress) -> Result<Ingress, Refusal> {
        let wire = WireCommId(rep.request_id);
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
        let Hot { vf, .. } = *self.table.store.hot(slot);
        if !self.table.is_from_peer(slot, from) {
            return Err(Refusal::of(vf, DropReason::WrongPeer));
        }
        Ok(Ingress::to(vf, Exchange::SidrRep { slot }))
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

/// Steers a request without ids to the destination GID's owner, or to the PF if there is no GID.
fn steer_by_gid(
    dgid: Option<Gid>,
    owner: impl Fn(&Gid) -> GidOwner,
    exchange: Exchange,
) -> Result<Ingress, Refusal> {
    match dgid.map(|gid| owner(&gid)) {
        None | Some(GidOwner::Pf) => Ok(Ingress::ToPf),
        Some(GidOwner::Vf(vf)) => Ok(Ingress::to(vf, exchange)),
        Some(GidOwner::VfDown(vf)) => Err(Refusal::of(vf, DropReason::VfDown)),
        Some(GidOwner::Unknown) => Err(DropReason::UnknownGid.into()),
    }
}
