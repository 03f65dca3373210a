//! The transaction ids of a port's VFs, and of the PF's own requests.
//!
//! A request leaves under a *wire TID* of ours, which fits in 32 bits (the kernel's umad owns the
//! upper half), is unguessable, and names one slot of the table: the answer finds its transaction
//! without any search and gets the guest's 64 bits back. The same request sent again (same VF, TID,
//! class and destination) gets the same wire TID, and so do the control packets of its RMPP
//! transfer, which never make a transaction. Another question under the same TID takes the place of
//! the one before, as it would for the peer of a native host.
//!
//! ```text
//!              request                answer                  15 s
//!   (free) ─────────────▶ open ─────────────────▶ answered ──────────▶ quarantine
//!                          │  RMPP      last, STOP, ABORT ▲               ▲
//!                          ├─────────────▶ transfer ──────┘               │
//!                          │ 60 s              │ 45 s without progress    │
//!                          └───────────────────┴──────────────────────────┘
//! ```
//!
//! | time | why |
//! | --- | --- |
//! | 60 s in `open` | longer than any guest waits for one transmission |
//! | 45 s in `transfer` | Linux gives a transfer up after 40 s without progress (`mad_rmpp.c`) |
//! | 15 s in `answered` | late duplicates; Linux keeps a finished transfer for 10 s |
//!
//! A VF at its quota ends the oldest of its answered transactions by its next request, so what it asks
//! and gets answers to is limited by no time of ours. Only what is open, or in a transfer, is refused
//! more.

mod inspect;
mod lists;
mod slots;

use ib_vtime::{Instant, SplitMix64};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::{Gid, Lid, Qpn, Tid};
use vf_tunnel::wire_id::{KeyedHash, Permutation};
use vf_tunnel::{DropReason, SubnetLmcs, VfId, VfTid, WireTid};

use crate::rmpp::RmppRole;
use crate::steering::Owner;
pub use inspect::{Transaction, TransactionState};
use slots::{Slot, SlotOwner, SlotState, Slots};

/// The other end of a transaction: where a request goes, or where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its LID.
    pub lid: Lid,
    /// Its QP.
    pub qpn: Qpn,
    /// Its GID, or [`Gid::NONE`] without a global route.
    pub gid: Gid,
}

/// Limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TidConfig {
    /// Transactions of one VF. Beyond it answered ones make place, the oldest first; if there are none
    /// the VF's request is dropped.
    pub per_vf: u32,
    /// SA requests of one VF that wait for their answer.
    pub sa_per_vf: u32,
}

impl TidConfig {
    /// What holds for an owner: neither the port itself nor the PF's own software has a quota.
    #[must_use]
    pub fn of(&self, owner: Owner) -> Self {
        match owner {
            Owner::Vf(vf) if vf != VfId::PF => *self,
            Owner::Vf(_) | Owner::Pf => Self {
                per_vf: u32::MAX,
                sa_per_vf: u32::MAX,
            },
        }
    }
}

impl Default for TidConfig {
    fn default() -> Self {
        Self {
            per_vf: 4096,
            sa_per_vf: 1024,
        }
    }
}

/// A live transaction that a wire TID names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    slot: u32,
    /// Whose it is.
    pub owner: Owner,
}

/// A transfer that a reset cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutTransfer {
    /// The id under which the peer knows it.
    pub tid: WireTid,
    /// The peer.
    pub peer: Peer,
    /// The class.
    pub class: MgmtClass,
    /// The method of the request.
    pub method: Method,
    /// The attribute of the request.
    pub attribute: AttributeId,
}

/// What an owner has in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TidUse {
    /// Transactions.
    pub live: u32,
    /// SA requests among them that wait for their answer.
    pub waiting_for_sa: u32,
}

/// The transactions of a port.
#[derive(Clone, Debug)]
pub struct TidMap {
    config: TidConfig,
    slots: Slots,
    hash: KeyedHash,
    permutation: Permutation,
    lmcs: SubnetLmcs,
    /// Per owner, the PF first.
    usage: Vec<TidUse>,
}

impl TidMap {
    /// A table without transactions. Wire TIDs are a function of the seed and of what is asked.
    #[must_use]
    pub fn new(config: TidConfig, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        // Recorded traces hold the wire TIDs that the last of these words gives.
        let words: [u64; 11] = std::array::from_fn(|_| random.next());
        Self {
            config,
            slots: Slots::default(),
            hash: KeyedHash::new([words[0], words[1]]),
            permutation: Permutation::new(words[10]),
            lmcs: SubnetLmcs::default(),
            usage: Vec::new(),
        }
    }

    /// Returns the known LMCs of the subnet: an answer comes from the LID asked, or the base LID of its port.
    pub const fn lmcs_mut(&mut self) -> &mut SubnetLmcs {
        &mut self.lmcs
    }

    /// Whether a MAD belongs to a transaction of its sender's, so that its TID is mapped on the way
    /// out. Answers keep the TID that the other side chose, and so do messages without answer.
    #[must_use]
    pub fn is_mapped(method: Method) -> bool {
        !method.is_answer() && method != Method::SEND
    }

    /// Gives a MAD that [`TidMap::is_mapped`] its wire TID.
    ///
    /// # Errors
    /// [`DropReason::UnknownTransfer`] for RMPP control of no transfer, [`DropReason::TidQuota`],
    /// [`DropReason::SaQuota`], and [`DropReason::Backpressure`] when all of the port's are in use.
    pub fn egress(
        &mut self,
        now: Instant,
        owner: Owner,
        mad: &mut Mad,
        to: &Peer,
    ) -> Result<WireTid, DropReason> {
        self.expire(now);
        let role = RmppRole::of(mad);
        let hash = self.hash_of(owner, &mad.header, to);
        let tid = match self.find_request(hash, owner, &mad.header, to) {
            Some(slot) => {
                if !role.is_control() {
                    self.ask_again(slot, role, owner, &mad.header)?;
                }
                self.progress(slot, role, false);
                self.wire_tid(slot)
            }
            None if role.is_control() => return Err(DropReason::UnknownTransfer),
            None => self.open(owner, hash, role, &mad.header, to)?,
        };
        mad.header.tid = tid.0;
        Ok(tid)
    }

    /// Whether a request would go out under the wire TID of one before it.
    #[must_use]
    pub fn is_known(&self, owner: Owner, header: &MadHeader, to: &Peer) -> bool {
        self.find_request(self.hash_of(owner, header, to), owner, header, to)
            .is_some()
    }

    /// Gives an answer back its owner's TID, and says who that is.
    ///
    /// # Errors
    /// [`DropReason::UnknownTid`], [`DropReason::WrongPeer`], [`DropReason::AnswerMismatch`]. The
    /// transaction is then as it was.
    pub fn ingress(
        &mut self,
        now: Instant,
        mad: &mut Mad,
        from: &Peer,
    ) -> Result<Owner, DropReason> {
        self.expire(now);
        let named = self
            .named(WireTid(mad.header.tid))
            .ok_or(DropReason::UnknownTid)?;
        self.answer(now, named, mad, from)?;
        Ok(named.owner)
    }

    /// The transaction that a wire TID names. Changes nothing, so that the caller can look at an
    /// answer's other sides before [`TidMap::answer`] takes it.
    #[must_use]
    pub fn named(&self, tid: WireTid) -> Option<Named> {
        let id = u32::try_from(tid.0.get()).ok()?;
        let slot = self.slots.named(self.permutation.decode(id))?;
        let owner = self.slots[slot].owner.get();
        Some(Named { slot, owner })
    }

    /// Gives an answer to a transaction its owner's TID. Nothing else may have been done since
    /// [`TidMap::named`] found it.
    ///
    /// # Errors
    /// [`DropReason::WrongPeer`], [`DropReason::AnswerMismatch`]. The transaction is then as it was.
    pub fn answer(
        &mut self,
        now: Instant,
        named: Named,
        mad: &mut Mad,
        from: &Peer,
    ) -> Result<(), DropReason> {
        let entry = &self.slots[named.slot];
        if !entry.is_peer(from, &self.lmcs) {
            return Err(DropReason::WrongPeer);
        }
        if !entry.is_answered_by(&mad.header) {
            return Err(DropReason::AnswerMismatch);
        }
        mad.header.tid = entry.tid.0;
        self.slots.see(now);
        self.progress(named.slot, RmppRole::of(mad), true);
        Ok(())
    }

    /// Forgets a VF's transactions. Gives the transfers that were under way: their peers may be told
    /// with an ABORT.
    pub fn reset(&mut self, now: Instant, vf: VfId) -> Vec<CutTransfer> {
        self.slots.see(now);
        let mut cut = Vec::new();
        for slot in self.slots.of(Owner::Vf(vf)) {
            let entry = &self.slots[slot];
            if entry.state == SlotState::Transfer {
                cut.push(CutTransfer {
                    tid: self.wire_tid(slot),
                    peer: entry.peer,
                    class: entry.class,
                    method: entry.method,
                    attribute: entry.attribute,
                });
            }
            self.close(slot);
        }
        cut
    }

    /// When [`TidMap::expire`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.slots.next_deadline()
    }

    /// Ends the transactions whose time is over.
    pub fn expire(&mut self, now: Instant) {
        self.slots.see(now);
        while let Some(slot) = self.slots.first_due() {
            self.close(slot);
        }
    }

    /// Live transactions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no live transaction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What one owner has in the table.
    #[must_use]
    pub fn usage(&self, owner: Owner) -> TidUse {
        let place = SlotOwner::from(owner).index();
        self.usage.get(place).copied().unwrap_or_default()
    }

    /// The limits.
    #[must_use]
    pub const fn config(&self) -> &TidConfig {
        &self.config
    }

    /// Bytes of state, for what is live and what was.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    fn open(
        &mut self,
        owner: Owner,
        hash: u32,
        role: RmppRole,
        header: &MadHeader,
        to: &Peer,
    ) -> Result<WireTid, DropReason> {
        let state = match role {
            RmppRole::Single => SlotState::Open,
            _ => SlotState::Transfer,
        };
        let waits_for_sa = header.mgmt_class == MgmtClass::SUBN_ADM && state == SlotState::Open;
        self.check_sa_quota(owner, header.mgmt_class)?;
        self.make_place(owner)?;
        let entry = Slot {
            tid: VfTid(header.tid),
            peer: *to,
            owner: owner.into(),
            class: header.mgmt_class,
            method: header.method,
            attribute: header.attribute_id,
            state,
        };
        let slot = self.slots.open(hash, entry);
        let slot = slot.ok_or(DropReason::Backpressure)?;
        let usage = self.usage_mut(owner);
        usage.live += 1;
        usage.waiting_for_sa += u32::from(waits_for_sa);
        Ok(self.wire_tid(slot))
    }

    /// A request that is known already comes again, or another under its TID.
    fn ask_again(
        &mut self,
        slot: u32,
        role: RmppRole,
        owner: Owner,
        header: &MadHeader,
    ) -> Result<(), DropReason> {
        // Once it was answered it did not wait any more, and now it does again.
        if role == RmppRole::Single && self.slots[slot].state == SlotState::Answered {
            self.check_sa_quota(owner, header.mgmt_class)?;
        }
        self.slots.ask(slot, header);
        Ok(())
    }

    /// Ends an owner's oldest answered transaction if the owner has as many as it may have.
    fn make_place(&mut self, owner: Owner) -> Result<(), DropReason> {
        if self.usage(owner).live < self.config.of(owner).per_vf {
            return Ok(());
        }
        let oldest = self.slots.oldest_answered(owner);
        self.close(oldest.ok_or(DropReason::TidQuota)?);
        Ok(())
    }

    /// Whether one more of an owner's requests may wait for the SA, if it asks that.
    fn check_sa_quota(&self, owner: Owner, class: MgmtClass) -> Result<(), DropReason> {
        let quota = self.config.of(owner).sa_per_vf;
        if class == MgmtClass::SUBN_ADM && self.usage(owner).waiting_for_sa >= quota {
            return Err(DropReason::SaQuota);
        }
        Ok(())
    }

    /// Moves the transaction on for a MAD that passes, in either direction.
    fn progress(&mut self, slot: u32, role: RmppRole, inward: bool) {
        let state = self.slots[slot].state;
        let next = match role {
            // Nothing more is asked for, unless a segment before it was lost.
            RmppRole::Last if inward => SlotState::Answered,
            RmppRole::Ack if !inward && state == SlotState::Answered => SlotState::Answered,
            RmppRole::Data | RmppRole::Last | RmppRole::Ack => SlotState::Transfer,
            RmppRole::End => SlotState::Answered,
            RmppRole::Single if inward => SlotState::Answered,
            // The request again: the answer may have been lost, so all is open once more.
            RmppRole::Single if state == SlotState::Transfer => SlotState::Transfer,
            RmppRole::Single => SlotState::Open,
        };
        self.count_sa_wait(slot, next);
        self.slots.touch(slot, next);
    }

    fn close(&mut self, slot: u32) {
        let owner = self.slots[slot].owner.get();
        self.count_sa_wait(slot, SlotState::Free);
        self.usage_mut(owner).live -= 1;
        self.slots.close(slot);
    }

    /// Keeps the number of SA requests that wait for an answer: those in `open`.
    #[inline]
    fn count_sa_wait(&mut self, slot: u32, next: SlotState) {
        if self.slots[slot].class == MgmtClass::SUBN_ADM {
            self.recount_sa_wait(slot, next);
        }
    }

    #[inline(never)]
    fn recount_sa_wait(&mut self, slot: u32, next: SlotState) {
        let entry = &self.slots[slot];
        let (waited, owner) = (entry.state == SlotState::Open, entry.owner.get());
        let usage = self.usage_mut(owner);
        usage.waiting_for_sa -= u32::from(waited);
        usage.waiting_for_sa += u32::from(next == SlotState::Open);
    }

    fn usage_mut(&mut self, owner: Owner) -> &mut TidUse {
        let place = SlotOwner::from(owner).index();
        if place >= self.usage.len() {
            self.usage.resize(place + 1, TidUse::default());
        }
        &mut self.usage[place]
    }

    fn wire_tid(&self, slot: u32) -> WireTid {
        let id = self.permutation.encode(self.slots.name(slot));
        WireTid(Tid::new(u64::from(id)))
    }

    fn find_request(&self, hash: u32, owner: Owner, header: &MadHeader, to: &Peer) -> Option<u32> {
        self.slots
            .find(hash, |slot| slot.is_request(owner, header, to))
    }

    fn hash_of(&self, owner: Owner, header: &MadHeader, to: &Peer) -> u32 {
        let place = u64::try_from(SlotOwner::from(owner).index()).unwrap_or(u64::MAX);
        let tid = header.tid.get();
        let rest = place << 48
            | u64::from(header.mgmt_class.get()) << 40
            | u64::from(to.lid.get()) << 24
            | u64::from(to.qpn.get());
        if to.gid.is_none() {
            return self.hash.hash_all([tid, rest]);
        }
        let (prefix, id) = (to.gid.prefix().get(), to.gid.interface_id().get());
        self.hash.hash_all([tid, rest, prefix, id])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ib_wire::{Guid, SubnetPrefix};

    use super::*;

    #[test]
    fn requests_that_differ_in_anything_hash_apart() {
        let map = TidMap::new(TidConfig::default(), 7);
        let (class, method) = (MgmtClass::SUBN_ADM, Method::GET);
        let header = MadHeader::new(class, method, AttributeId::PATH_RECORD);
        let to = Peer {
            lid: Lid::new(3),
            qpn: Qpn::GSI,
            gid: Gid::NONE,
        };
        let vf = |number| Owner::Vf(VfId::new(number).expect("a VF"));
        let gid = |prefix, id| Gid::from_parts(SubnetPrefix::new(prefix), Guid::new(id));
        let mut hashes = BTreeSet::from([map.hash_of(vf(1), &header, &to)]);
        for n in 0..1_000 {
            let mut asked = header;
            asked.tid = Tid::new(1 << (n % 64));
            hashes.insert(map.hash_of(vf(1), &asked, &to));
            hashes.insert(map.hash_of(vf(n % 1_000 + 2), &header, &to));
            let mut asked = header;
            asked.mgmt_class = MgmtClass::new(u8::try_from(n % 256).expect("a byte"));
            hashes.insert(map.hash_of(vf(1), &asked, &to));
            let lid = Lid::new(n + 10);
            hashes.insert(map.hash_of(vf(1), &header, &Peer { lid, ..to }));
            let qpn = Qpn::from_low_bits(u32::from(n) + 2);
            hashes.insert(map.hash_of(vf(1), &header, &Peer { qpn, ..to }));
            for gid in [gid(1, u64::from(n) + 1), gid(u64::from(n) + 2, 1)] {
                hashes.insert(map.hash_of(vf(1), &header, &Peer { gid, ..to }));
            }
        }
        // One, 64 TIDs, the other classes, and a thousand of all else: but for a collision or two.
        let different = 1 + 64 + 255 + 5 * 1_000;
        assert!(
            hashes.len() > different - 10,
            "{} of {different}",
            hashes.len()
        );
    }
}
