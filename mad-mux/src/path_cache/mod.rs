//! Answers of the SA to requests for a path, kept for who asks again.
//!
//! A guest asks for the same path whenever it opens a connection, and every VF of a port that starts
//! asks at once. What the SA answered lately is answered here, in its own bytes under the asker's TID;
//! what it is being asked is not asked twice.
//!
//! ```text
//!               a request leaves           path: lifetime, 30 s
//!   (unknown) ──────────────────▶ asked ────────────────────────▶ path ───┐
//!       ▲                          │  └──────────────────────▶ error ─────┤
//!       │                     10 s │       error: at most 1 s             │
//!       └──────────────────────────┴──────────────────────────────────────┘
//!                     time, a change of the subnet, or no room
//! ```
//!
//! # What is kept
//!
//! Answers to `Get(PathRecord)` that name both ends by GID: one port to one port, without RMPP, SM_Key
//! or anything else that is unusual. Two requests are the same if component mask and record are, byte
//! by byte. Everything else passes, and so does whatever is in doubt: the cache never ends a frame.
//!
//! | the answer | is kept |
//! | --- | --- |
//! | a path that agrees with its request | for [`PathCacheConfig::lifetime_ms`] |
//! | an error | for a second, or the lifetime if that is less |
//! | busy, a redirection, a path that was not asked for | not |
//!
//! It is kept under the wire TID of a transaction that began with this very request, so the caller's
//! TID map has made sure who answered what. A TID that its VF uses for a second request while the
//! first is open is no longer believed.
//!
//! # Whose it is
//!
//! A path is for every VF that is a member of its partition: the SA knows the port alone, and would
//! tell all of them the same. An entry counts in the share of the VF that asked. A VF beyond its share
//! replaces its own entries, those first that end first; so it does when the whole cache is full, unless
//! it has none there and takes the place of the one that ends first.
//!
//! # Who waits
//!
//! A request for what another one asks already waits for that one's answer, half a second at most:
//! less than any guest waits before it asks again (Linux's IPoIB and `ib_cm` users: 1 s and more). After
//! that, or when the answer does not come or may not be used, it goes by itself: each request that
//! waited comes out of [`PathCache::poll_resumed`] once, to be looked at anew. A VF that asks again under
//! the same TID waits no longer, and one asks again for what it asked first itself as ever.
//!
//! # When it ends
//!
//! The caller says what changed: [`PathCache::invalidate`] for what may change any path (LID, SM,
//! P_Keys, reregister), [`PathCache::invalidate_guid`] for a port that came or went (traps 64 and 65).
//! What the SA is being asked at that moment is not kept either. A path to a multicast group is never
//! kept, so groups that come or go (traps 66 and 67) change nothing here.
//!
//! The SA reports ports only to who subscribed. The cache subscribes to nothing itself: it learns of
//! them when a VF or the PF's own software does, and is bounded by the lifetime otherwise.

mod request;
mod table;

use std::collections::VecDeque;
use std::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadStatus, Method};
use ib_wire::sa::{PathRecord, SaMad};
use ib_wire::{Guid, PKey, Tid};
use vf_tunnel::{VfId, VfTid, WireTid};

use request::PathRequest;
use table::{Entry, State, Table};

/// How long a request may wait for the answer to another one.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long an answer of the SA is waited for in order to keep it.
const ASKED: Duration = Duration::from_secs(10);
/// How long an error is kept.
const ERROR: Duration = Duration::from_secs(1);
/// Requests that wait at a time, of all VFs and of one.
const MOST_WAITING: usize = 256;
const MOST_WAITING_OF_VF: usize = 16;

/// Limits. A zero in any of them turns the cache off: every request goes to the SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathCacheConfig {
    /// How long a path is kept, in milliseconds.
    pub lifetime_ms: u32,
    /// Paths at a time, about 550 bytes each.
    pub entries: u32,
    /// Of these, how many for what one VF asked.
    pub per_vf: u32,
}

impl Default for PathCacheConfig {
    fn default() -> Self {
        Self {
            lifetime_ms: 30_000,
            entries: 32_768,
            per_vf: 256,
        }
    }
}

impl PathCacheConfig {
    const fn is_off(&self) -> bool {
        self.lifetime_ms == 0 || self.entries == 0 || self.per_vf == 0
    }

    fn lifetime(&self) -> Duration {
        Duration::from_millis(self.lifetime_ms.into())
    }
}

/// What the cache makes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The MAD is the answer now.
    Answered,
    /// The SA is being asked the same: the request may [wait](PathCache::wait).
    UnderWay,
    /// It goes to the SA.
    Miss,
}

/// A request's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Whose it is.
    pub vf: VfId,
    /// The TID that the VF wrote.
    pub tid: VfTid,
    /// The TID that the SA sees.
    pub wire: WireTid,
    /// Whether it began with this request: no other one went out under its wire TID.
    pub is_new: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting<W> {
    deadline: Instant,
    slot: u32,
    vf: VfId,
    tid: Tid,
    request: W,
}

/// The paths that a port's VFs asked for. `W` is what the caller needs to look anew at a request that
/// has waited.
#[derive(Clone, Debug)]
pub struct PathCache<W> {
    config: PathCacheConfig,
    table: Table,
    /// The one that waits longest first.
    waiting: VecDeque<Waiting<W>>,
    resumed: VecDeque<(VfId, W)>,
}

impl<W> PathCache<W> {
    /// An empty cache. The seed keeps guests from choosing requests that collide.
    #[must_use]
    pub fn new(config: PathCacheConfig, seed: u64) -> Self {
        Self {
            config,
            table: Table::new(seed),
            waiting: VecDeque::new(),
            resumed: VecDeque::new(),
        }
    }

    /// Takes an SA request of a VF, which is a member of the partitions of `pkeys`.
    pub fn ask(&mut self, now: Instant, vf: VfId, pkeys: &[PKey], mad: &mut Mad) -> Lookup {
        if self.table.is_empty() {
            return Lookup::Miss;
        }
        let found = PathRequest::of(mad.view()).and_then(|request| self.table.find(&request));
        let Some((slot, entry)) = found.and_then(|slot| Some((slot, self.table.get(slot)?))) else {
            return Lookup::Miss;
        };
        if entry.deadline <= now {
            return Lookup::Miss;
        }
        let tid = mad.header.tid;
        match entry.state {
            State::Path if !may_use(pkeys, path_in(&entry.answer).pkey) => Lookup::Miss,
            State::Path | State::Error => {
                *mad = entry.answer;
                mad.header.tid = tid;
                Lookup::Answered
            }
            State::Asked {
                since, tid: first, ..
            } => {
                let repeats = entry.vf == vf && first.0 == tid;
                if repeats || since + PATIENCE <= now || self.waited(slot, vf, tid) {
                    return Lookup::Miss;
                }
                let own = self.waiting.iter().filter(|waiting| waiting.vf == vf);
                if self.waiting.len() >= MOST_WAITING || own.count() >= MOST_WAITING_OF_VF {
                    return Lookup::Miss;
                }
                Lookup::UnderWay
            }
        }
    }

    /// Lets a request wait of which [`PathCache::ask`] said that it may.
    pub fn wait(&mut self, now: Instant, vf: VfId, mad: &Mad, request: W) {
        let slot = PathRequest::of(mad.view()).and_then(|request| self.table.find(&request));
        let Some(slot) = slot else {
            self.resumed.push_back((vf, request));
            return;
        };
        self.waiting.push_back(Waiting {
            deadline: now + PATIENCE,
            slot,
            vf,
            tid: mad.header.tid,
            request,
        });
    }

    /// Takes note of a VF's request to the SA that goes out, whatever it is. Its TID is not looked at.
    pub fn asked(&mut self, now: Instant, transaction: &Transaction, mad: &Mad) {
        if self.config.is_off() {
            return;
        }
        self.expire(now);
        let request = PathRequest::of(mad.view());
        if let Some(slot) = self.table.asked_under(transaction.wire) {
            let known = self.table.get(slot).map(|entry| entry.request);
            if known != request {
                self.remove(slot);
            }
            return;
        }
        let Some(request) = request.filter(|_| transaction.is_new) else {
            return;
        };
        if let Some(slot) = self.table.find(&request) {
            let state = self.table.get(slot).map(|entry| entry.state);
            if !matches!(state, Some(State::Asked { since, .. }) if since + PATIENCE <= now) {
                return;
            }
            // Nobody will answer that one any more.
            self.remove(slot);
        }
        self.make_room(transaction.vf);
        self.table.insert(Entry {
            request,
            vf: transaction.vf,
            state: State::Asked {
                since: now,
                tid: transaction.tid,
                wire: transaction.wire,
            },
            deadline: now + ASKED,
            answer: *mad,
        });
    }

    /// Takes note of an answer, whatever it is, that came under a wire TID from the one who was asked.
    pub fn answered(&mut self, now: Instant, wire: WireTid, answer: &Mad) {
        let header = &answer.header;
        let is_path = header.attribute_id == AttributeId::PATH_RECORD
            && header.method == Method::GET_RESP
            && !answer.view::<SaMad>().rmpp.is_active();
        let Some(slot) = self.table.asked_under(wire).filter(|_| is_path) else {
            return;
        };
        let lifetime = self.config.lifetime();
        let kept = match header.status {
            MadStatus::OK => self.table.get(slot).and_then(|entry| {
                let agrees = entry.request.is_answered_by(&path_in(answer));
                agrees.then_some((State::Path, lifetime))
            }),
            status => {
                let elsewhere = MadStatus::BUSY.get() | MadStatus::REDIRECT.get();
                let is_final = status.get() & elsewhere == 0;
                is_final.then_some((State::Error, lifetime.min(ERROR)))
            }
        };
        match kept {
            Some((state, life)) => {
                self.resume(|waiting| waiting.slot == slot);
                self.table.settle(slot, state, answer, now + life);
            }
            None => self.remove(slot),
        }
    }

    /// Forgets every path.
    pub fn invalidate(&mut self) {
        while let Some((_, slot)) = self.table.first() {
            self.remove(slot);
        }
    }

    /// Forgets the paths from and to the port with this GUID, under whatever prefix.
    pub fn invalidate_guid(&mut self, guid: Guid) {
        self.remove_all(self.table.of_end(guid).collect());
    }

    /// Forgets what a VF was asking for, and gives its requests that waited.
    pub fn reset(&mut self, vf: VfId) -> Vec<W> {
        let (own, others) = core::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(|waiting| waiting.vf == vf);
        self.waiting = others;
        let is_asked = |&slot: &u32| {
            let state = self.table.get(slot).map(|entry| entry.state);
            matches!(state, Some(State::Asked { .. }))
        };
        self.remove_all(self.table.of(vf).filter(is_asked).collect());
        own.into_iter().map(|waiting| waiting.request).collect()
    }

    /// A request that has waited and is to be looked at anew. Poll after every call but
    /// [`PathCache::ask`].
    pub fn poll_resumed(&mut self) -> Option<(VfId, W)> {
        self.resumed.pop_front()
    }

    /// When [`PathCache::expire`] has something to do, or a resumed request to be taken.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let resumed = self.resumed.front().map(|_| Instant::ZERO);
        let waiting = self.waiting.front().map(|waiting| waiting.deadline);
        let entry = self.table.first().map(|(deadline, _)| deadline);
        [resumed, waiting, entry].into_iter().flatten().min()
    }

    /// Ends what is too old, and the waiting of who waited long enough.
    pub fn expire(&mut self, now: Instant) {
        while let Some((deadline, slot)) = self.table.first()
            && deadline <= now
        {
            self.remove(slot);
        }
        let waits_too_long = |waiting: &Waiting<W>| waiting.deadline <= now;
        if self.waiting.front().is_some_and(waits_too_long) {
            self.resume(waits_too_long);
        }
    }

    /// Paths that are known or being asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests that wait for the answer to another one.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Ends the waiting of a request that its VF sends again. Whether it did wait.
    fn waited(&mut self, slot: u32, vf: VfId, tid: Tid) -> bool {
        let is_it = |w: &Waiting<W>| w.slot == slot && w.vf == vf && w.tid == tid;
        let at = self.waiting.iter().position(is_it);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// Makes sure that there is room for one more entry of a VF.
    fn make_room(&mut self, vf: VfId) {
        let reaches = |len: usize, most: u32| u32::try_from(len).is_ok_and(|len| len >= most);
        let is_full = reaches(self.table.of(vf).count(), self.config.per_vf)
            || reaches(self.table.len(), self.config.entries);
        let own = self.table.of(vf).next();
        let first = self.table.first().map(|(_, slot)| slot);
        if let Some(slot) = own.or(first).filter(|_| is_full) {
            self.remove(slot);
        }
    }

    fn remove_all(&mut self, slots: Vec<u32>) {
        for slot in slots {
            self.remove(slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        self.table.remove(slot);
        self.resume(|waiting| waiting.slot == slot);
    }

    /// Ends the waiting of some, in the order in which they came.
    fn resume(&mut self, concerned: impl Fn(&Waiting<W>) -> bool) {
        if self.waiting.is_empty() {
            return;
        }
        for waiting in core::mem::take(&mut self.waiting) {
            if concerned(&waiting) {
                self.resumed.push_back((waiting.vf, waiting.request));
            } else {
                self.waiting.push_back(waiting);
            }
        }
    }
}

fn path_in(answer: &Mad) -> PathRecord {
    answer.view::<SaMad>().record()
}

/// Whether somebody with these keys is a member of a path's partition, and no less than the path says.
fn may_use(pkeys: &[PKey], path: PKey) -> bool {
    let covers = |key: &PKey| key.base() == path.base() && (key.is_full() || !path.is_full());
    path.is_valid() && pkeys.iter().any(covers)
}
