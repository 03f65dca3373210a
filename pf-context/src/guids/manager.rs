//! The manager: its inputs, its time, and the requests that follow.

use std::collections::{BTreeMap, VecDeque};

use ib_endpoint::RetryPolicy;
use ib_vtime::{Duration, Instant, SplitMix64, TimerKey, TimerQueue};
use ib_wire::{Guid, Lid};
use mad_mux::steering::SA_WELL_KNOWN;
use vf_tunnel::VfId;

use super::api::{
    GuidConfig, GuidOutput, GuidSizes, GuidState, GuidToken, GuidView, GuidWish, WishRefusal,
};
use super::entry::{Entry, Wait, WaitReason};
use super::request::{BLOCK, InFlight};

/// What is known of the SA's support of additional GUIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    Unknown,
    Yes,
    No,
}

#[derive(Clone, Copy, Debug)]
enum Timer {
    /// The wait of an entry is over.
    Entry(usize),
    /// Time to look at the port.
    CheckPort,
    /// Time to ask for the SA's ClassPortInfo again.
    Support,
}

/// The alias GUIDs of one port: see the [module](super).
#[derive(Clone, Debug)]
pub struct GuidManager {
    pub(super) config: GuidConfig,
    random: SplitMix64,
    active: bool,
    pub(super) lid: Lid,
    pub(super) support: Support,
    /// Everything was withdrawn: what the SA does not take back soon is left to it.
    pub(super) closing: bool,
    /// By table index, as far as anybody spoke of it; the port's own is the first.
    pub(super) entries: Vec<Entry>,
    /// Blocks that have something to ask, in the order of their turns.
    pub(super) ready: VecDeque<u8>,
    pub(super) in_flight: BTreeMap<GuidToken, InFlight>,
    pub(super) next_token: u64,
    timers: TimerQueue<Timer>,
    check_port: Option<TimerKey>,
    pub(super) support_retry: Option<TimerKey>,
    events: VecDeque<GuidOutput>,
}

impl GuidManager {
    /// How each request is best sent: as mlx4 does, 10 times within a second (`alias_GUID.c`,
    /// `sa_query.c`).
    pub const REQUEST_POLICY: RetryPolicy = RetryPolicy::new(Duration::from_millis(100), 9);

    /// Requests under way at a time: mlx4 has one, which a block without answer keeps from the others.
    pub const MAX_IN_FLIGHT: usize = 4;

    /// Tries to delete an entry once everything is withdrawn.
    pub const RELEASE_TRIES: u32 = 3;

    /// The time between looks at a port that is not active (mlx4 `alias_GUID.c`).
    const PORT_CHECK: Duration = Duration::from_secs(5);

    /// The wait after a request that failed (mlx4 `alias_GUID.c`).
    const FAILURE_WAIT: Duration = Duration::from_secs(1);

    /// At most so much is added to it, lest all hosts ask at once when an SA comes back.
    const FAILURE_JITTER: Duration = Duration::from_millis(250);

    /// The wait after a refusal doubles up to this (mlx4 `alias_GUID.c`).
    const LONGEST_WAIT: Duration = Duration::from_secs(60);

    /// How long an alias may take to leave its groups before the SA is asked to delete it all the
    /// same. Long enough for several tries of mcast-agg (1, 2, 4, 8 s).
    const LEAVE_WAIT: Duration = Duration::from_secs(15);

    /// The manager of a port that is not active, has no LID, and has nothing in its table. Nothing is
    /// asked before [`GuidManager::set_lid`] and [`GuidManager::port_active`].
    #[must_use]
    pub fn new(config: GuidConfig) -> Self {
        Self {
            config,
            random: SplitMix64::new(config.seed),
            active: false,
            lid: Lid::default(),
            support: Support::Unknown,
            closing: false,
            entries: Vec::new(),
            ready: VecDeque::new(),
            in_flight: BTreeMap::new(),
            next_token: 0,
            timers: TimerQueue::new(),
            check_port: None,
            support_retry: None,
            events: VecDeque::new(),
        }
    }

    /// Takes what is wanted for a VF from now on. It need not be new: said again, it ends a wait.
    ///
    /// # Errors
    /// [`WishRefusal`]; the wish before stays then.
    pub fn want(&mut self, now: Instant, vf: VfId, wish: GuidWish) -> Result<(), WishRefusal> {
        if vf == VfId::PF {
            return Err(WishRefusal::PortGuid);
        }
        if let GuidWish::Admin(guid) = wish {
            self.check(vf, guid)?;
        }
        let index = vf.index();
        self.entry(index);
        self.forget_taken_choice(index);
        self.closing &= wish == GuidWish::None;
        self.change_wish(index, wish);
        self.give_way(index);
        self.settle(now, index);
        self.conclude(now);
        Ok(())
    }

    /// The VF has stopped: its GUID is deleted at the SA, if it had one. The same as to want none.
    pub fn withdraw(&mut self, now: Instant, vf: VfId) {
        if vf != VfId::PF {
            self.change_wish(vf.index(), GuidWish::None);
            self.settle(now, vf.index());
            self.conclude(now);
        }
    }

    /// The PF shuts down: all GUIDs are given back. What the SA does not take back in
    /// [`GuidManager::RELEASE_TRIES`] tries is left to it, and so is everything while the port is not
    /// active. [`GuidManager::sizes`] tell when that is done: no request, no timer.
    pub fn withdraw_all(&mut self, now: Instant) {
        self.closing = true;
        if let Some(timer) = self.support_retry.take() {
            self.timers.cancel(timer);
        }
        for index in 1..self.entries.len() {
            if self.entries[index].wish != GuidWish::None || self.entries[index].is_held() {
                self.change_wish(index, GuidWish::None);
                self.settle(now, index);
            }
        }
        self.conclude(now);
    }

    /// The hardware's GUID table has this GUID at an index; zero for none. Entry 0 is the port's own.
    /// Saying what was said before changes nothing.
    pub fn hardware(&mut self, now: Instant, index: u16, guid: Guid) {
        let index = usize::from(index);
        if index > usize::from(VfId::MAX) {
            return;
        }
        let entry = self.entry(index);
        let lost = entry.take_hardware(guid);
        if index == 0 {
            return;
        }
        let returned = entry.granted() == Some(guid);
        let waits_for_it = entry.wait.is_some_and(|w| w.reason == WaitReason::Lost);
        if waits_for_it && returned {
            self.stop_waiting(index);
        } else if lost && !waits_for_it {
            let at = now + self.failure_wait();
            self.wait(index, at, WaitReason::Lost);
        }
        self.settle(now, index);
        self.conclude(now);
    }

    /// Whether the port is active. Once it comes up, everything that is wanted is asked for again.
    pub fn port_active(&mut self, now: Instant, active: bool) {
        if active != self.active {
            self.active = active;
            if active {
                self.ask_again(now);
            }
        }
        self.conclude(now);
    }

    /// The port's base LID.
    pub fn set_lid(&mut self, now: Instant, lid: Lid) {
        self.lid = lid;
        self.conclude(now);
    }

    /// Another SM has taken over, or the same one at another place: it may know nothing, and may be
    /// able to do what the last one could not. Requests that are under way count as asked before.
    pub fn sm_changed(&mut self, now: Instant) {
        self.support = Support::Unknown;
        self.ask_again(now);
        self.conclude(now);
    }

    /// The SM asks for re-registration: it may have forgotten everything.
    pub fn client_reregister(&mut self, now: Instant) {
        if self.support == Support::No {
            self.support = Support::Unknown;
        }
        self.ask_again(now);
        self.conclude(now);
    }

    /// The VF's alias has left its multicast groups, or was in none: the answer to
    /// [`GuidOutput::LeaveGroups`]. It is deleted now; but if the SA refused that twice it has other
    /// reasons, and the time that refusals take must pass.
    pub fn groups_left(&mut self, now: Instant, vf: VfId) {
        let index = vf.index();
        let wait = self.entries.get(index).and_then(|entry| entry.wait);
        if wait.is_some_and(|wait| wait.reason == WaitReason::Leaving) {
            self.entries[index].left = true;
            if self.entries[index].refusals <= 1 {
                self.stop_waiting(index);
                self.settle(now, index);
            }
        }
        self.conclude(now);
    }

    /// Fires what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Entry(index) => self.wait_is_over(now, index),
                Timer::Support => self.support_retry = None,
                Timer::CheckPort => {
                    self.check_port = None;
                    self.events.push_back(GuidOutput::CheckPort);
                }
            }
        }
        self.conclude(now);
    }

    /// When [`GuidManager::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Takes the next output. Poll until `None` after every other call.
    pub fn poll_output(&mut self) -> Option<GuidOutput> {
        self.events.pop_front().or_else(|| self.next_request())
    }

    /// How far a VF's GUID is.
    #[must_use]
    pub fn state(&self, vf: VfId) -> GuidState {
        let entry = self.entries.get(vf.index());
        entry.map_or(GuidState::NotRequested, |entry| entry.told)
    }

    /// Whether the SA, which may have forgotten the VF's GUID, is being asked to take it again.
    #[must_use]
    pub fn is_being_confirmed(&self, vf: VfId) -> bool {
        let entry = self.entries.get(vf.index());
        self.may_ask() && entry.is_some_and(Entry::is_being_confirmed)
    }

    /// A VF's GUID as an administrator sees it: what is wanted, and what there is.
    #[must_use]
    pub fn view(&self, vf: VfId) -> GuidView {
        let entry = self.entries.get(vf.index()).cloned().unwrap_or_default();
        GuidView {
            wish: entry.wish,
            granted: entry.granted(),
            hardware: entry.hardware,
            state: entry.told,
            declines: entry.refusals,
        }
    }

    /// Live objects.
    #[must_use]
    pub fn sizes(&self) -> GuidSizes {
        let entries = || self.entries.iter().skip(1);
        GuidSizes {
            wanted: entries().filter(|e| e.wish != GuidWish::None).count(),
            held: entries().filter(|entry| entry.is_held()).count(),
            requests: self.in_flight.len(),
            timers: self.timers.len(),
        }
    }

    fn check(&self, vf: VfId, guid: Guid) -> Result<(), WishRefusal> {
        if guid.is_none() || guid == Guid::new(u64::MAX) || guid == SA_WELL_KNOWN {
            return Err(WishRefusal::Reserved);
        }
        if self
            .entries
            .first()
            .is_some_and(|port| port.hardware == guid)
        {
            return Err(WishRefusal::PortGuid);
        }
        self.claimant(vf.index(), guid)
            .map_or(Ok(()), |other| Err(WishRefusal::Taken(other)))
    }

    /// The VF of another entry that has a GUID or wants it.
    fn claimant(&self, index: usize, guid: Guid) -> Option<VfId> {
        let mut entries = self.entries.iter().enumerate().skip(1);
        let (other, _) = entries.find(|(other, entry)| *other != index && entry.claims(guid))?;
        vf_at(other)
    }

    /// What the SA chose for a VF earlier is not asked for if another VF has it by now.
    fn forget_taken_choice(&mut self, index: usize) {
        let choice = self.entries[index].chosen;
        if choice.is_some_and(|guid| self.claimant(index, guid).is_some()) {
            self.entries[index].chosen = None;
        }
    }

    /// Surrenders the entry's GUID if another VF wants it and this one no longer asks for exactly that GUID.
    /// Otherwise the SA would decline two VFs that want each other's GUIDs for ever.
    pub(super) fn give_way(&mut self, index: usize) {
        let entry = &self.entries[index];
        let is_dear =
            |guid: &Guid| matches!(entry.wish, GuidWish::Admin(wanted) if wanted == *guid);
        let held = entry
            .granted()
            .filter(|guid| entry.wish != GuidWish::None && !is_dear(guid));
        if held.is_some_and(|guid| self.claimant(index, guid).is_some()) {
            self.entries[index].surrender();
        }
    }

    fn change_wish(&mut self, index: usize, wish: GuidWish) {
        let entry = self.entry(index);
        entry.take_wish(wish);
        let leaving = entry.wait.is_some_and(|w| w.reason == WaitReason::Leaving);
        if !leaving || wish != GuidWish::None {
            self.stop_waiting(index);
        }
    }

    /// Everything that is wanted is asked for again, and nothing waits. Aliases that are leaving their
    /// groups go on with that.
    fn ask_again(&mut self, now: Instant) {
        for request in self.in_flight.values_mut() {
            request.stale = true;
        }
        if let Some(timer) = self.support_retry.take() {
            self.timers.cancel(timer);
        }
        for index in 1..self.entries.len() {
            let entry = &mut self.entries[index];
            entry.confirmed = false;
            entry.refusals = 0;
            if !entry.wait.is_some_and(|w| w.reason == WaitReason::Leaving) {
                self.stop_waiting(index);
            }
            self.settle(now, index);
        }
    }

    fn wait_is_over(&mut self, now: Instant, index: usize) {
        let entry = &mut self.entries[index];
        match entry.wait.take().map(|wait| wait.reason) {
            Some(WaitReason::Lost) => entry.confirmed = false,
            Some(WaitReason::Leaving) => entry.left = true,
            Some(WaitReason::Declined | WaitReason::Failed) | None => {}
        }
        self.settle(now, index);
    }

    /// Brings everything that follows from an entry in step with it: the VF's GUID, its state, and
    /// whether its block has something to ask.
    pub(super) fn settle(&mut self, now: Instant, index: usize) {
        if self.config.alias_members && self.entries[index].gives_up_alias() {
            self.leave_groups(index, now + Self::LEAVE_WAIT);
        }
        let change = self.entries[index].refresh();
        if let Some(guid) = change.gained {
            self.take_from_others(index, guid);
        }
        if change.lost {
            self.tell_guid(index, None);
        }
        if change.gained.is_some() {
            self.tell_guid(index, change.gained);
        }
        self.tell_state(index);
        self.mark(index / BLOCK);
    }

    /// Has an alias leave its groups before it is deleted; if nobody says that it has, it is deleted
    /// all the same at some time.
    pub(super) fn leave_groups(&mut self, index: usize, until: Instant) {
        if self.entries[index].left {
            return;
        }
        self.wait(index, until, WaitReason::Leaving);
        if let Some(vf) = vf_at(index) {
            let entry = &self.entries[index];
            let alias = entry.granted().unwrap_or(entry.hardware);
            self.events.push_back(GuidOutput::LeaveGroups { vf, alias });
        }
    }

    /// A GUID that comes to an entry has gone from any other: the SA gives it out once.
    fn take_from_others(&mut self, index: usize, guid: Guid) {
        let others = 1..self.entries.len();
        for other in others.filter(|&other| other != index) {
            if self.entries[other].current == Some(guid) {
                self.entries[other].current = None;
                self.tell_guid(other, None);
                self.tell_state(other);
            }
        }
    }

    fn tell_guid(&mut self, index: usize, guid: Option<Guid>) {
        if let Some(vf) = vf_at(index) {
            self.events.push_back(GuidOutput::Guid { vf, guid });
        }
    }

    fn tell_state(&mut self, index: usize) {
        let entry = &self.entries[index];
        let state = match entry.state() {
            state @ (GuidState::NotRequested | GuidState::InHardware(_)) => state,
            _ if !self.is_in_table(index) => GuidState::TableTooSmall,
            _ if self.support == Support::No => GuidState::NotSupported,
            state => state,
        };
        if state != entry.told {
            self.entries[index].told = state;
            if let Some(vf) = vf_at(index) {
                self.events.push_back(GuidOutput::State { vf, state });
            }
        }
    }

    /// What is known of the SA's support has changed.
    pub(super) fn set_support(&mut self, support: Support) {
        self.support = support;
        for index in 1..self.entries.len() {
            self.tell_state(index);
        }
    }

    /// The end of every input: gives up what cannot be done, and looks at the port now and then.
    pub(super) fn conclude(&mut self, now: Instant) {
        if self.closing && !self.may_ask() {
            for index in 1..self.entries.len() {
                self.entries[index].abandoned = true;
                self.stop_waiting(index);
            }
        }
        let look = !self.is_port_usable() && self.support != Support::No && self.has_work();
        match self.check_port {
            None if look => {
                let at = now + Self::PORT_CHECK;
                self.check_port = Some(self.timers.set(at, Timer::CheckPort));
            }
            Some(timer) if !look => {
                self.timers.cancel(timer);
                self.check_port = None;
            }
            _ => {}
        }
    }

    fn is_port_usable(&self) -> bool {
        self.active && self.lid.is_unicast()
    }

    pub(super) fn may_ask(&self) -> bool {
        self.is_port_usable() && self.support != Support::No
    }

    fn is_in_table(&self, index: usize) -> bool {
        index < usize::from(self.config.table_len)
    }

    /// Has an entry wait; an earlier wait of its ends.
    pub(super) fn wait(&mut self, index: usize, until: Instant, reason: WaitReason) {
        self.stop_waiting(index);
        let timer = self.timers.set(until, Timer::Entry(index));
        self.entries[index].wait = Some(Wait { timer, reason });
    }

    fn stop_waiting(&mut self, index: usize) {
        if let Some(wait) = self.entries[index].wait.take() {
            self.timers.cancel(wait.timer);
        }
    }

    /// How long to wait after a failure.
    pub(super) fn failure_wait(&mut self) -> Duration {
        let jitter = u64::try_from(Self::FAILURE_JITTER.as_nanos()).unwrap_or(u64::MAX);
        Self::FAILURE_WAIT + Duration::from_nanos(self.random.below(jitter))
    }

    /// How long to wait after so many refusals in a row, this one included.
    pub(super) fn refusal_wait(refusals: u32) -> Duration {
        Duration::from_secs(1 << refusals.saturating_sub(1).min(6)).min(Self::LONGEST_WAIT)
    }

    pub(super) fn retry_support(&mut self, now: Instant) {
        let at = now + self.failure_wait();
        self.support_retry = Some(self.timers.set(at, Timer::Support));
    }

    fn entry(&mut self, index: usize) -> &mut Entry {
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, Entry::default);
        }
        &mut self.entries[index]
    }
}

fn vf_at(index: usize) -> Option<VfId> {
    VfId::new(u16::try_from(index).ok()?)
}
