//! The table of ids: slots, the two ways to find one, the VFs' lists and the clocks.
//!
//! Everything here keeps the parts consistent with each other; what messages mean is decided in
//! `egress` and `ingress`.

use ib_vtime::{Duration, Instant};
use ib_wire::{Gid, Guid, Lid, PortNum, Qpn, Sl};
use vf_tunnel::wire_id::{Index, KeyedHash, Trail};
use vf_tunnel::{DropReason, RemoteCommId, SubnetLmcs, VfCommId, VfId};

use crate::config::Ticks;
use crate::lists::{List, a_slot};
use crate::machine::Offer;
use crate::party::PeerAddress;
use crate::state::{Clock, Message, State, Way};
use crate::statistics::VfStatistics;
use crate::store::{Cold, Flags, Hot, Store, Terms};
use crate::wheel::{self, Wheel};

/// Communication ids and SIDR request ids are numbers of two separate spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Connection,
    Sidr,
}

/// Who got the request that carried a peer's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// This VF; the slot tracks it.
    Own(u32),
    /// Another VF.
    Other,
    /// Nobody, as far as the table goes back.
    Nobody,
}

/// Slots of peers that say they have the same id and LID. More of them than this can only be made
/// up.
const NAMESAKES: usize = 64;

/// What the table knows of a VF.
#[derive(Clone, Debug)]
pub(crate) struct VfRecord {
    pub(crate) statistics: VfStatistics,
    /// Limit on [`VfStatistics::ids`].
    pub(crate) quota: u32,
    pub(crate) slots: List,
    /// The slots in [`State::Quiet`], the one that was silent for the longest time last.
    pub(crate) quiet: List,
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) store: Store,
    wheel: Wheel,
    by_guest: Index,
    by_peer: Index,
    hash: KeyedHash,
    vfs: Vec<VfRecord>,
    quota: u32,
    pending: u32,
    ticks: Ticks,
    /// By port.
    lmcs: Vec<SubnetLmcs>,
    /// The tick of the latest call.
    now: u64,
}

fn guest_key(vf: VfId, guest: VfCommId, space: Space) -> u64 {
    u64::from(guest.0.get())
        | u64::from(space == Space::Sidr) << 32
        | u64::from(vf.get()) << 33
        | 1 << 63
}

fn peer_key(peer: &PeerAddress, id: RemoteCommId, space: Space) -> u64 {
    u64::from(id.0.get())
        | u64::from(peer.lid.get()) << 32
        | u64::from(peer.port.0) << 48
        | u64::from(space == Space::Sidr) << 56
}

impl Table {
    pub(crate) fn new(
        store: Store,
        hash: KeyedHash,
        ticks: Ticks,
        quota: u32,
        pending: u32,
    ) -> Self {
        Self {
            store,
            wheel: Wheel::new(),
            by_guest: Index::new(),
            by_peer: Index::new(),
            hash,
            vfs: Vec::new(),
            quota,
            pending,
            ticks,
            lmcs: Vec::new(),
            now: 0,
        }
    }

    /// Bytes of everything that grows with the number of ids.
    pub(crate) const fn bytes(&self) -> usize {
        self.store.bytes() + self.by_guest.bytes() + self.by_peer.bytes() + self.wheel.bytes()
    }

    pub(crate) const fn indexed(&self) -> usize {
        self.by_guest.len() + self.by_peer.len()
    }

    pub(crate) fn vf(&self, vf: VfId) -> Option<&VfRecord> {
        self.vfs.get(vf.index())
    }

    pub(crate) fn vf_mut(&mut self, vf: VfId) -> &mut VfRecord {
        if self.vfs.len() <= vf.index() {
            let record = VfRecord {
                statistics: VfStatistics::NEW,
                quota: self.quota,
                slots: List::EMPTY,
                quiet: List::EMPTY,
            };
            self.vfs.resize(vf.index() + 1, record);
        }
        &mut self.vfs[vf.index()]
    }

    // Finding.

    /// The slot of a VF's own id, used on a port. A VF numbers its connections on all ports together;
    /// the PF has other software on each port, and each numbers its own.
    pub(crate) fn by_guest(
        &self,
        vf: VfId,
        guest: VfCommId,
        space: Space,
        port: PortNum,
    ) -> Option<u32> {
        let hash = self.guest_hash(vf, guest, space);
        self.by_guest.matches(hash).find(|&slot| {
            let hot = self.store.hot(slot);
            hot.guest == guest
                && hot.vf == vf
                && hot.has(Flags::SIDR) == (space == Space::Sidr)
                && hot.is_reached_by(port)
        })
    }

    fn guest_hash(&self, vf: VfId, guest: VfCommId, space: Space) -> u32 {
        self.hash.hash(guest_key(vf, guest, space))
    }

    /// Begins a trail to the slot of a VF's own id.
    pub(crate) fn approach_guest(&self, vf: VfId, guest: VfCommId, space: Space) -> Trail {
        self.by_guest.approach(self.guest_hash(vf, guest, space))
    }

    /// Takes a trail through the index of the VFs' own ids.
    pub(crate) fn follow_guest(&self, trail: Trail) -> Trail {
        self.by_guest.follow(trail)
    }

    /// The slots of requests that came from a peer under an id, the one asked last at the end.
    pub(crate) fn by_peer(
        &self,
        peer: &PeerAddress,
        id: RemoteCommId,
        space: Space,
    ) -> impl Iterator<Item = u32> {
        let (lid, port) = (peer.lid, peer.port);
        let hash = self.hash.hash(peer_key(peer, id, space));
        self.by_peer.matches(hash).filter(move |&slot| {
            let hot = self.store.hot(slot);
            hot.remote == id
                && hot.lid == lid
                && hot.port == port
                && hot.has(Flags::SIDR) == (space == Space::Sidr)
        })
    }

    /// Who got the request that a VF means to answer. Of several, one without an answer counts
    /// before the others.
    pub(crate) fn claim(
        &self,
        vf: VfId,
        peer: &PeerAddress,
        id: RemoteCommId,
        space: Space,
    ) -> Claim {
        let mut claim = Claim::Nobody;
        for slot in self.by_peer(peer, id, space) {
            let hot = self.store.hot(slot);
            if hot.vf != vf {
                if claim == Claim::Nobody {
                    claim = Claim::Other;
                }
            } else if !hot.has(Flags::BOUND) {
                return Claim::Own(slot);
            } else if !matches!(claim, Claim::Own(_)) {
                claim = Claim::Own(slot);
            }
        }
        claim
    }

    // Opening and closing.

    /// Sees to it that the VF may have another id of its own. Quiet connections make place, the one
    /// that was silent for the longest time first, but for `spared`.
    pub(crate) fn make_place(&mut self, vf: VfId, spared: Option<u32>) -> Result<(), DropReason> {
        loop {
            let record = self.vf_mut(vf);
            if record.statistics.ids < record.quota {
                return Ok(());
            }
            let last = a_slot(record.quiet.last).ok_or(DropReason::CmQuota)?;
            let oldest = if spared == Some(last) {
                a_slot(self.store.cold(last).siblings.prev).ok_or(DropReason::CmQuota)?
            } else {
                last
            };
            self.close(oldest);
        }
    }

    /// Opens a slot that nothing leads to yet.
    fn open(
        &mut self,
        vf: VfId,
        state: State,
        space: Space,
        peer: &PeerAddress,
    ) -> Result<u32, DropReason> {
        let slot = self.store.open(vf).ok_or(DropReason::CmQuota)?;
        let hot = self.store.hot_mut(slot);
        hot.state = state;
        hot.lid = peer.lid;
        hot.port = peer.port;
        hot.sl = peer.sl.get();
        hot.flags.set(Flags::SIDR, space == Space::Sidr);
        hot.flags.set(Flags::GLOBAL, peer.gid.is_some());
        if let Some(gid) = peer.gid {
            self.store.cold_mut(slot).gid = gid;
        }
        let record = self.vf_mut(vf);
        record.statistics.enter(state);
        record.statistics.pending += 1;
        self.attach(slot);
        // What a REQ says that was not seen is not known: the most, so that nothing ends early.
        self.set_terms(slot, &Offer::UNKNOWN, false);
        Ok(slot)
    }

    /// Opens a slot for an id that a VF just used for the first time.
    pub(crate) fn open_for_guest(
        &mut self,
        vf: VfId,
        guest: VfCommId,
        state: State,
        space: Space,
        peer: &PeerAddress,
    ) -> Result<u32, DropReason> {
        self.make_place(vf, None)?;
        let slot = self.open(vf, state, space, peer)?;
        self.bind(slot, guest);
        Ok(slot)
    }

    /// Opens a slot for a peer's request.
    pub(crate) fn open_for_peer(
        &mut self,
        vf: VfId,
        id: RemoteCommId,
        state: State,
        space: Space,
        peer: &PeerAddress,
    ) -> Result<u32, DropReason> {
        let namesakes = self.by_peer(peer, id, space).take(NAMESAKES).count();
        let pending = self.vf_mut(vf).statistics.pending;
        if namesakes == NAMESAKES || pending >= self.pending {
            return Err(DropReason::CmQuota);
        }
        let slot = self.open(vf, state, space, peer)?;
        self.learn_remote(slot, id);
        self.index_peer(slot);
        Ok(slot)
    }

    /// Puts the slot into the index of peers' requests, as the newest of its peer and id.
    pub(crate) fn index_peer(&mut self, slot: u32) {
        self.unindex_peer(slot);
        let hot = self.store.hot_mut(slot);
        hot.flags.insert(Flags::BY_PEER);
        let key = peer_key(&address_of(hot), hot.remote, space_of(hot));
        self.by_peer.insert(self.hash.hash(key), slot);
    }

    /// Gives a slot its VF's id. The quota was checked.
    pub(crate) fn bind(&mut self, slot: u32, guest: VfCommId) {
        let hot = self.store.hot_mut(slot);
        hot.guest = guest;
        hot.flags.insert(Flags::BOUND);
        let (vf, key) = (hot.vf, guest_key(hot.vf, guest, space_of(hot)));
        self.by_guest.insert(self.hash.hash(key), slot);
        let statistics = &mut self.vf_mut(vf).statistics;
        statistics.pending -= 1;
        statistics.ids += 1;
    }

    pub(crate) fn learn_remote(&mut self, slot: u32, remote: RemoteCommId) {
        let hot = self.store.hot_mut(slot);
        hot.remote = remote;
        hot.flags.insert(Flags::REMOTE);
    }

    /// The VF uses the slot's id for something new: only the peer can name the slot any more, until
    /// its quarantine ends.
    pub(crate) fn supersede(&mut self, slot: u32) {
        self.unindex_guest(slot);
        self.store.hot_mut(slot).flags.insert(Flags::SUPERSEDED);
        if self.store.hot(slot).state.clock() != Clock::Quarantine {
            self.enter(slot, State::Closed);
        }
    }

    fn unindex_guest(&mut self, slot: u32) {
        let hot = self.store.hot(slot);
        if hot.has(Flags::BOUND) && !hot.has(Flags::SUPERSEDED) {
            let key = guest_key(hot.vf, hot.guest, space_of(hot));
            self.by_guest.remove(self.hash.hash(key), slot);
        }
    }

    /// Takes the slot out of the index of peers' requests.
    pub(crate) fn unindex_peer(&mut self, slot: u32) {
        let hot = self.store.hot_mut(slot);
        if hot.has(Flags::BY_PEER) {
            hot.flags.remove(Flags::BY_PEER);
            let peer = address_of(hot);
            let key = peer_key(&peer, hot.remote, space_of(hot));
            self.by_peer.remove(self.hash.hash(key), slot);
        }
    }

    /// Ends a slot: its wire id means nothing from now on.
    pub(crate) fn close(&mut self, slot: u32) {
        self.unindex_guest(slot);
        self.unindex_peer(slot);
        if self.store.hot(slot).has(Flags::TIMED) {
            self.wheel.unlink(&mut self.store, slot);
        }
        self.detach(slot);
        let Hot {
            vf, state, flags, ..
        } = *self.store.hot(slot);
        let record = self.vf_mut(vf);
        record.statistics.leave(state);
        if flags.contains(Flags::BOUND) {
            record.statistics.ids -= 1;
        } else {
            record.statistics.pending -= 1;
        }
        self.store.close(slot);
    }

    // Time.

    /// Ends what is due at `now`.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(wheel::tick_at(now));
        if self.wheel.is_due(self.now) {
            self.expire();
        }
    }

    pub(crate) const fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next()
    }

    fn expire(&mut self) {
        while let Some(first) = self.wheel.take_due(self.now) {
            let mut slot = first;
            while !wheel::is_end(slot) {
                let next = self.store.cold(slot).timer.next;
                let hot = self.store.hot_mut(slot);
                hot.flags.remove(Flags::TIMED);
                let Hot {
                    state, deadline, ..
                } = *hot;
                if wheel::before(wheel::low(self.now), deadline) {
                    if state.clock() != Clock::Never {
                        self.wheel.link(&mut self.store, slot, self.now);
                    }
                } else {
                    self.run_out(slot);
                }
                slot = next;
            }
        }
    }

    /// A slot's clock has run out.
    fn run_out(&mut self, slot: u32) {
        let hot = self.store.hot(slot);
        match hot.state {
            State::Established => {}
            // Who stops to repeat a REP before it may no more has no need of an answer: data came.
            State::RepSent | State::RepRcvd if hot.terms().reps > 0 => {
                self.enter(slot, State::Quiet);
            }
            state => {
                if matches!(state.clock(), Clock::Handshake | Clock::Sidr) {
                    let vf = hot.vf;
                    self.vf_mut(vf).statistics.abandoned += 1;
                }
                self.close(slot);
            }
        }
    }

    /// Moves the slot on by a message and starts or extends the clock of the state it is in then.
    pub(crate) fn pass(&mut self, slot: u32, way: Way, message: Message) {
        let hot = self.store.hot(slot);
        let terms = hot.terms();
        let next = match hot.state.next(way, message) {
            State::Established if terms.is_xrc_target => State::Quiet,
            next => next,
        };
        self.enter(slot, next);
        if message == Message::Rep && next.in_handshake() {
            self.store.hot_mut(slot).limit = Terms {
                reps: terms.reps.saturating_sub(1),
                ..terms
            }
            .to_word();
        }
    }

    pub(crate) fn enter(&mut self, slot: u32, state: State) {
        let Hot {
            vf, state: before, ..
        } = *self.store.hot(slot);
        // The list of quiet connections is in the order of their last messages.
        let changes_place = before == State::Quiet || state == State::Quiet;
        if changes_place {
            self.detach(slot);
        }
        if state != before {
            self.store.hot_mut(slot).state = state;
            let statistics = &mut self.vf_mut(vf).statistics;
            statistics.leave(before);
            statistics.enter(state);
        }
        if changes_place {
            self.attach(slot);
        }
        let another_clock = state.clock() != before.clock();
        let now = wheel::low(self.now);
        match state.clock() {
            // A peer that has an answer never names the VF by its own id alone again.
            Clock::Never => self.unindex_peer(slot),
            Clock::Silence => {
                self.unindex_peer(slot);
                self.wind(slot, now.wrapping_add(self.ticks.silence), another_clock);
            }
            Clock::Handshake => {
                let budget = u32::from(self.store.hot(slot).terms().ticks);
                self.wind(slot, now.wrapping_add(budget), another_clock);
            }
            Clock::Sidr => self.wind(slot, now.wrapping_add(self.ticks.sidr), another_clock),
            Clock::Quarantine => {
                if another_clock {
                    self.store.hot_mut(slot).limit = now.wrapping_add(self.ticks.quarantine_max);
                }
                let cap = self.store.hot(slot).limit;
                let deadline = now.wrapping_add(self.ticks.quarantine);
                let deadline = if wheel::before(cap, deadline) {
                    cap
                } else {
                    deadline
                };
                self.wind(slot, deadline, another_clock);
            }
        }
    }

    /// Sets the slot's deadline; a clock that runs already is never shortened.
    fn wind(&mut self, slot: u32, deadline: u32, afresh: bool) {
        let hot = self.store.hot(slot);
        if !afresh && hot.has(Flags::TIMED) && !wheel::before(hot.deadline, deadline) {
            return;
        }
        self.wheel.set(&mut self.store, slot, self.now, deadline);
    }

    /// Sets what a handshake is given, within the configured bounds.
    pub(crate) fn set_terms(&mut self, slot: u32, offer: &Offer, vf_is_passive: bool) {
        let budget = wheel::ticks(Duration::from_nanos(offer.nanos)) + 1;
        let Ticks {
            handshake_min,
            handshake_max,
            ..
        } = self.ticks;
        let ticks = budget.max(handshake_min).min(handshake_max);
        let terms = Terms {
            ticks: u16::try_from(ticks).unwrap_or(u16::MAX),
            reps: offer.sends,
            is_xrc_target: offer.is_xrc && vf_is_passive,
        };
        self.store.hot_mut(slot).limit = terms.to_word();
    }

    /// Gives a handshake more time, once: what an MRA asks for.
    pub(crate) fn grant(&mut self, slot: u32, nanos: u64) {
        let hot = self.store.hot(slot);
        if hot.state.in_handshake() {
            let extra = wheel::ticks(Duration::from_nanos(nanos));
            let time = (u32::from(hot.terms().ticks) + extra).min(self.ticks.handshake_max);
            self.wind(slot, wheel::low(self.now).wrapping_add(time), false);
        }
    }

    /// When the slot ends, if its clock runs.
    pub(crate) fn remaining(&self, now: Instant, slot: u32) -> Option<Duration> {
        let hot = self.store.hot(slot);
        (hot.state.clock() != Clock::Never)
            .then(|| wheel::duration(self.ticks_until(now, hot.deadline)))
    }

    /// How long the slot's exchange has not moved, if its clock runs: what has run off it.
    pub(crate) fn idle(&self, now: Instant, slot: u32) -> Option<Duration> {
        let hot = self.store.hot(slot);
        let (whole, end) = match hot.state.clock() {
            Clock::Never | Clock::Silence => return None,
            Clock::Handshake => (u32::from(hot.terms().ticks), hot.deadline),
            Clock::Sidr => (self.ticks.sidr, hot.deadline),
            Clock::Quarantine => (self.ticks.quarantine_max, hot.limit),
        };
        let left = self.ticks_until(now, end);
        Some(wheel::duration(whole.saturating_sub(left)))
    }

    /// Ticks from now to a tick that is not over; 0 if it is.
    fn ticks_until(&self, now: Instant, tick: u32) -> u32 {
        let now = self.now.max(wheel::tick_at(now));
        wheel::ticks_until(wheel::low(now), tick)
    }

    // The peer's address.

    /// Returns the LMCs of the subnet behind a port.
    pub(crate) fn lmcs_mut(&mut self, port: PortNum) -> &mut SubnetLmcs {
        if port.index() >= self.lmcs.len() {
            let subnets = port.index() + 1;
            self.lmcs.resize_with(subnets, SubnetLmcs::default);
        }
        &mut self.lmcs[port.index()]
    }

    /// Whether a message comes from where the slot's peer is known to be: its LID, the one of its
    /// alternate path, either with any path bits, or, if the exchange goes through routers, its GID.
    pub(crate) fn is_from_peer(&self, slot: u32, from: &PeerAddress) -> bool {
        let hot = self.store.hot(slot);
        let lmcs = self.lmcs.get(from.port.index());
        let is_at = |lid: Lid| {
            lid == from.lid || lmcs.is_some_and(|lmcs| lmcs.are_one_ports(lid, from.lid))
        };
        let is_at_peers_gid = |gid: Gid| !gid.is_none() && gid == self.store.cold(slot).gid;
        let is_where_the_peer_is = (is_at(hot.lid) && hot.port == from.port)
            || hot.lid == Lid::NONE
            || (is_at(hot.alternate_lid) && hot.alternate_lid != Lid::NONE)
            || (hot.has(Flags::GLOBAL) && from.gid.is_some_and(is_at_peers_gid));
        is_where_the_peer_is && hot.is_reached_by(from.port)
    }

    /// Remembers where a message of the slot's peer came from, if that was forgotten.
    pub(crate) fn learn_address(&mut self, slot: u32, from: &PeerAddress) {
        let hot = self.store.hot_mut(slot);
        if hot.lid == Lid::NONE {
            hot.lid = from.lid;
            hot.port = from.port;
            hot.sl = from.sl.get();
        }
    }

    /// A LAP passed: the path that it travelled on is the one in use, and the peer's end of the
    /// alternate path is `alternate`.
    pub(crate) fn load_alternate_path(&mut self, slot: u32, via: &PeerAddress, alternate: Lid) {
        let hot = self.store.hot_mut(slot);
        if hot.lid != via.lid && hot.alternate_lid == via.lid && !hot.has(Flags::BY_PEER) {
            hot.lid = via.lid;
            hot.port = via.port;
        }
        hot.alternate_lid = alternate;
    }

    pub(crate) fn cold_mut(&mut self, slot: u32) -> &mut Cold {
        self.store.cold_mut(slot)
    }

    pub(crate) fn ca_guid(&self, slot: u32) -> Guid {
        self.store.cold(slot).ca_guid
    }
}

fn space_of(hot: &Hot) -> Space {
    if hot.has(Flags::SIDR) {
        Space::Sidr
    } else {
        Space::Connection
    }
}

/// The slot's peer, as far as the key of the index of peers goes.
fn address_of(hot: &Hot) -> PeerAddress {
    PeerAddress {
        port: hot.port,
        lid: hot.lid,
        qpn: Qpn::GSI,
        sl: Sl::from_low_bits(hot.sl),
        gid: None,
    }
}

#[cfg(test)]
mod tests;
