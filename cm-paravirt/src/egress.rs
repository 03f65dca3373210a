//! From a VF to the wire.

use ib_wire::cm::{CmLap, CmMessage, CmMra, CmRej, CmReq, CmSidrRep, CmSidrReq, RejReason};
use ib_wire::cm::{CmRep, timeout_nanos};
use ib_wire::mad::Mad;
use ib_wire::{CommId, Guid, PKey};
use vf_tunnel::{DropReason, RemoteCommId, VfCommId, VfId};

use crate::ids::CmIds;
use crate::machine::{CmParavirt, Kind, Offer, classify};
use crate::party::{IdentityCheck, PeerAddress, VfIdentity};
use crate::state::{Clock, Message, State, Way};
use crate::store::Flags;
use crate::table::{Claim, Space};

impl CmParavirt {
    pub(crate) fn send(
        &mut self,
        vf: VfId,
        mad: &mut Mad,
        to: &PeerAddress,
        who: &VfIdentity<'_>,
    ) -> Result<(), DropReason> {
        let message = match classify(&mad.header)? {
            Kind::InfoRequest | Kind::InfoAnswer => return Ok(()),
            Kind::Message(message) => message,
        };
        match message {
            Message::Req => self.send_req(vf, mad, to, who),
            Message::Rep | Message::Mra => self.send_answer(vf, mad, to, who, message),
            Message::Rej => self.send_rej(vf, mad, to),
            Message::Lap => self.send_lap(vf, mad, to, who),
            Message::Rtu | Message::Dreq | Message::Drep | Message::Apr => {
                self.send_connected(vf, mad, to, message).map(|_| ())
            }
            Message::SidrReq => self.send_sidr_req(vf, mad, to, who),
            Message::SidrRep => self.send_sidr_rep(vf, mad, to),
        }
    }

    /// Judges something that a VF says of itself.
    fn check_claim(
        &mut self,
        vf: VfId,
        who: &VfIdentity<'_>,
        is_true: bool,
    ) -> Result<(), DropReason> {
        match who.check {
            _ if is_true => Ok(()),
            IdentityCheck::Strict => Err(DropReason::ForeignIdentity),
            IdentityCheck::Compat => {
                self.table.vf_mut(vf).statistics.false_claims += 1;
                Ok(())
            }
        }
    }

    fn send_req(
        &mut self,
        vf: VfId,
        mad: &mut Mad,
        to: &PeerAddress,
        who: &VfIdentity<'_>,
    ) -> Result<(), DropReason> {
        let req: &CmReq = mad.view();
        if !who.owns_pkey(req.pkey) {
            return Err(DropReason::ForeignPKey);
        }
        let own_ca = is_own_ca(who, req.local_ca_guid);
        let own_paths = who.owns_gid(&req.primary.local_gid)
            && (req.alternate.is_none() || who.owns_gid(&req.alternate.local_gid));
        self.check_claim(vf, who, own_ca && own_paths)?;

        let guest = VfCommId(req.local_comm_id);
        let known = self.table.by_guest(vf, guest, Space::Connection, to.port);
        let slot = match known.filter(|&slot| self.is_repeated_req(slot, to)) {
            Some(slot) => slot,
            None => {
                self.table.make_place(vf, known)?;
                if let Some(old) = known {
                    self.table.supersede(old);
                }
                let state = State::ReqSent;
                let slot = self
                    .table
                    .open_for_guest(vf, guest, state, Space::Connection, to)?;
                self.table.set_terms(slot, &Offer::from(req), false);
                self.table.cold_mut(slot).gid = req.primary.remote_gid;
                let hot = self.table.store.hot_mut(slot);
                hot.pkey = req.pkey;
                hot.alternate_lid = req.alternate.remote_lid;
                slot
            }
        };
        self.table.pass(slot, Way::Sent, Message::Req);
        mad.view_mut::<CmReq>().local_comm_id = self.table.store.hot(slot).wire.0;
        Ok(())
    }

    /// Whether a REQ under an id in use is that exchange's REQ once more. Anything else is a new
    /// exchange.
    fn is_repeated_req(&self, slot: u32, to: &PeerAddress) -> bool {
        let hot = self.table.store.hot(slot);
        matches!(hot.state, State::ReqSent | State::RepRcvd)
            && hot.lid == to.lid
            && hot.port == to.port
    }

    /// REP and MRA may be the first messages that show a VF's id for an exchange.
    fn send_answer(
        &mut self,
        vf: VfId,
        mad: &mut Mad,
        to: &PeerAddress,
        who: &VfIdentity<'_>,
        message: Message,
    ) -> Result<(), DropReason> {
        if message == Message::Rep {
            let own_ca = is_own_ca(who, mad.view::<CmRep>().local_ca_guid);
            self.check_claim(vf, who, own_ca)?;
        }
        let ids: &CmIds = mad.view();
        let (guest, remote) = (VfCommId(ids.local), RemoteCommId(ids.remote));
        let slot = self.slot_of_answer(vf, guest, remote, to)?;
        self.table.pass(slot, Way::Sent, message);
        if message == Message::Mra {
            let timeout = mad.view::<CmMra>().service_timeout();
            self.table.grant(slot, timeout_nanos(timeout));
        }
        self.put_wire_id(mad, slot);
        Ok(())
    }

    fn slot_of_answer(
        &mut self,
        vf: VfId,
        guest: VfCommId,
        remote: RemoteCommId,
        to: &PeerAddress,
    ) -> Result<u32, DropReason> {
        let bound = self.table.by_guest(vf, guest, Space::Connection, to.port);
        let talking = bound.filter(|&slot| self.talks_with(slot, remote));
        // An exchange that is about to end is not answered any more if there is another request.
        if let Some(slot) = talking
            && self.table.store.hot(slot).state.clock() != Clock::Quarantine
        {
            return Ok(slot);
        }
        match (self.table.claim(vf, to, remote, Space::Connection), bound) {
            (Claim::Own(half), _) if !self.table.store.hot(half).has(Flags::BOUND) => {
                self.join(half, guest, bound)
            }
            (Claim::Other, _) => Err(DropReason::WrongPeer),
            // A late repetition.
            _ if talking.is_some() => talking.ok_or(DropReason::UnknownCommId),
            (_, Some(slot)) if !self.table.store.hot(slot).state.is_over() => {
                Err(DropReason::WrongPeer)
            }
            (_, old) => self.open_untracked(vf, guest, remote, to, old),
        }
    }

    /// Gives a peer's request the id under which its VF answers.
    fn join(&mut self, half: u32, guest: VfCommId, bound: Option<u32>) -> Result<u32, DropReason> {
        let vf = self.table.store.hot(half).vf;
        match bound {
            // Both asked each other, and the VF answers under the id of its own request: the two
            // requests were one connection.
            Some(slot) if self.is_unanswered(slot) => {
                let remote = self.table.store.hot(half).remote;
                let peer = *self.table.store.cold(half);
                self.table.close(half);
                self.table.learn_remote(slot, remote);
                let cold = self.table.cold_mut(slot);
                cold.ca_guid = peer.ca_guid;
                cold.qpn = peer.qpn;
                Ok(slot)
            }
            old => {
                self.table.make_place(vf, old)?;
                if let Some(old) = old {
                    self.table.supersede(old);
                }
                self.table.bind(half, guest);
                Ok(half)
            }
        }
    }

    /// Whether the VF asked and the peer has not shown its id.
    fn is_unanswered(&self, slot: u32) -> bool {
        let hot = self.table.store.hot(slot);
        hot.state == State::ReqSent && !hot.has(Flags::REMOTE)
    }

    /// Opens a slot for an answer to a request that is older than the table's memory.
    fn open_untracked(
        &mut self,
        vf: VfId,
        guest: VfCommId,
        remote: RemoteCommId,
        to: &PeerAddress,
        old: Option<u32>,
    ) -> Result<u32, DropReason> {
        self.table.make_place(vf, old)?;
        if let Some(old) = old {
            self.table.supersede(old);
        }
        let slot = self
            .table
            .open_for_guest(vf, guest, State::ReqRcvd, Space::Connection, to)?;
        self.table.learn_remote(slot, remote);
        self.table.vf_mut(vf).statistics.untracked += 1;
        Ok(slot)
    }

    fn send_rej(&mut self, vf: VfId, mad: &mut Mad, to: &PeerAddress) -> Result<(), DropReason> {
        let rej: &CmRej = mad.view();
        let (guest, remote) = (
            VfCommId(rej.local_comm_id),
            RemoteCommId(rej.remote_comm_id),
        );
        let bound = self.table.by_guest(vf, guest, Space::Connection, to.port);
        if let Some(slot) = bound.filter(|&slot| self.may_reject(slot, remote)) {
            self.table.pass(slot, Way::Sent, Message::Rej);
            self.put_wire_id(mad, slot);
            return Ok(());
        }
        // Who gives up has no id of its peer's yet, and 0 is an id as well.
        let gives_up = rej.reason == RejReason::TIMEOUT && remote.0 == CommId::NONE;
        let claim = if gives_up {
            Claim::Nobody
        } else {
            self.table.claim(vf, to, remote, Space::Connection)
        };
        match claim {
            Claim::Own(half) => {
                // An id that was never shown needs no mapping to end with, but it must not pass for
                // somebody else's either.
                self.table.pass(half, Way::Sent, Message::Rej);
                if guest.0 != CommId::NONE {
                    self.put_wire_id(mad, half);
                }
                Ok(())
            }
            Claim::Other => Err(DropReason::WrongPeer),
            // Peers match such a REJ by their own id alone.
            Claim::Nobody
                if rej.message_rejected() == CmMessage::REQ && rej.reason != RejReason::TIMEOUT =>
            {
                self.table.vf_mut(vf).statistics.untracked += 1;
                Ok(())
            }
            Claim::Nobody => Err(DropReason::UnknownCommId),
        }
    }

    /// Whether a REJ with this remote id can be about the slot's exchange. Before the peer has
    /// answered there is no remote id.
    fn may_reject(&self, slot: u32, remote: RemoteCommId) -> bool {
        let hot = self.table.store.hot(slot);
        self.talks_with(slot, remote)
            || (remote.0 == CommId::NONE && (hot.state.in_handshake() || hot.state.is_over()))
    }

    fn send_lap(
        &mut self,
        vf: VfId,
        mad: &mut Mad,
        to: &PeerAddress,
        who: &VfIdentity<'_>,
    ) -> Result<(), DropReason> {
        let lap: &CmLap = mad.view();
        if !who.owns_gid(&lap.alternate_local_gid) {
            return Err(DropReason::ForeignIdentity);
        }
        let alternate = lap.alternate_remote_lid;
        let slot = self.send_connected(vf, mad, to, Message::Lap)?;
        self.table.load_alternate_path(slot, to, alternate);
        Ok(())
    }

    /// Messages that only follow others.
    fn send_connected(
        &mut self,
        vf: VfId,
        mad: &mut Mad,
        to: &PeerAddress,
        message: Message,
    ) -> Result<u32, DropReason> {
        let ids: &CmIds = mad.view();
        let (guest, remote) = (VfCommId(ids.local), RemoteCommId(ids.remote));
        let slot = self
            .table
            .by_guest(vf, guest, Space::Connection, to.port)
            .ok_or(DropReason::UnknownCommId)?;
        if !self.talks_with(slot, remote) {
            return Err(DropReason::WrongPeer);
        }
        self.table.pass(slot, Way::Sent, message);
        self.put_wire_id(mad, slot);
        Ok(slot)
    }

    fn send_sidr_req(
        &mut self,
        vf: VfId,
        mad: &mut Mad,
        to: &PeerAddress,
        who: &VfIdentity<'_>,
    ) -> Result<(), DropReason> {
        let req: &CmSidrReq = mad.view();
        if !who.owns_pkey(req.pkey) {
            return Err(DropReason::ForeignPKey);
        }
        let guest = VfCommId(req.request_id);
        let known = self.table.by_guest(vf, guest, Space::Sidr, to.port);
        let repeated = known.filter(|&slot| {
            let hot = self.table.store.hot(slot);
            hot.state == State::SidrSent && hot.lid == to.lid && hot.port == to.port
        });
        let slot = match repeated {
            Some(slot) => slot,
            None => self.open_sidr(vf, guest, req.pkey, to, known)?,
        };
        self.table.pass(slot, Way::Sent, Message::SidrReq);
        mad.view_mut::<CmSidrReq>().request_id = self.table.store.hot(slot).wire.0;
        Ok(())
    }

    fn open_sidr(
        &mut self,
        vf: VfId,
        guest: VfCommId,
        pkey: PKey,
        to: &PeerAddress,
        old: Option<u32>,
    ) -> Result<u32, DropReason> {
        self.table.make_place(vf, old)?;
        if let Some(old) = old {
            self.table.supersede(old);
        }
        let slot = self
            .table
            .open_for_guest(vf, guest, State::SidrSent, Space::Sidr, to)?;
        self.table.store.hot_mut(slot).pkey = pkey;
        Ok(slot)
    }

    /// The request id is the asker's own and stays. Nobody answers what a sibling was asked.
    fn send_sidr_rep(&mut self, vf: VfId, mad: &Mad, to: &PeerAddress) -> Result<(), DropReason> {
        let asked = RemoteCommId(mad.view::<CmSidrRep>().request_id);
        match self.table.claim(vf, to, asked, Space::Sidr) {
            Claim::Own(slot) => self.table.pass(slot, Way::Sent, Message::SidrRep),
            Claim::Other => return Err(DropReason::WrongPeer),
            Claim::Nobody => self.table.vf_mut(vf).statistics.untracked += 1,
        }
        Ok(())
    }

    /// Whether the slot's peer is known by this id.
    fn talks_with(&self, slot: u32, remote: RemoteCommId) -> bool {
        let hot = self.table.store.hot(slot);
        hot.has(Flags::REMOTE) && hot.remote == remote
    }

    fn put_wire_id(&self, mad: &mut Mad, slot: u32) {
        mad.view_mut::<CmIds>().local = self.table.store.hot(slot).wire.0;
    }
}

fn is_own_ca(who: &VfIdentity<'_>, claimed: Guid) -> bool {
    who.ca_guid.is_none_or(|own| own == claimed)
}
