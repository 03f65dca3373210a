//! The subnet manager: a state machine that sweeps the subnet with SMPs.
//!
//! A **heavy sweep** discovers everything anew, decides with other managers who is master, and
//! writes what differs: P_Key tables, LIDs and port settings, forwarding tables, port states.
//! It runs at start, when a trap or a light sweep reports a change, and on demand; then it also reads
//! forwarding and GUID tables back, which another sender of SMPs may have written. A **light sweep**
//! asks all switches at an interval whether a port changed.
//!
//! Requests travel by directed route in a window ([`SmpLimits`]); one that gets no answer after its
//! retries is given up, so that a dead node delays a sweep but never stops it. The ends of links
//! behind which nobody answered are asked again at every light sweep.

mod answer;
mod configure;
mod discovery;
mod election;
mod follow_up;
mod forwarding;
mod job;
mod queue;
mod read_back;
mod settings;
mod trap;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ib_endpoint::{MadAddress, MadAgent, MadCounters, Transmit};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, MadStatus};
use ib_wire::notice::NoticeReport;
use ib_wire::smp::{DirectedRouteSmp, PortInfo, PortPhysState, SmInfo, SmState, SwitchInfo};
use ib_wire::{Guid, Lid, PortNum};

use crate::config::SubnetConfig;
use crate::lid::LidManager;
use crate::topology::{DrPath, Node, PortId, Topology};
use configure::Step;
use discovery::{Discovery, OtherManager};
use follow_up::FollowUps;
use forwarding::{Members, Programmed};
use job::{GuidBlock, Job, get, get_port};
use queue::{QueueEvent, SmpQueue};
use trap::TrapFilter;

pub use discovery::MAX_NODES;
pub(crate) use forwarding::{last_position, lft_block, lft_blocks, mft_block, mft_place};
pub use queue::SmpLimits;

/// Events that wait to be fetched at the same time; more are dropped and counted.
pub const MAX_EVENTS: usize = 64 * 1024;

/// What happened in the subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmEvent {
    /// A heavy sweep as master is complete: the subnet is up.
    SubnetUp,
    /// An end port was not there before.
    PortAppeared(Guid),
    /// An end port is gone.
    PortVanished(Guid),
    /// A port sent a trap.
    Trap(NoticeReport),
    /// The manager's state changed.
    StateChanged(SmState),
}

/// Counters since the manager was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmStats {
    /// Requests that got no answer after all retries.
    pub timeouts: u64,
    /// Answers with a status that is not 0.
    pub refused: u64,
    /// Requests that are not understood. What the agent drops before is counted there.
    pub ignored: u64,
    /// Heavy sweeps begun.
    pub heavy_sweeps: u64,
    /// Light sweeps begun.
    pub light_sweeps: u64,
    /// Traps received.
    pub traps: u64,
    /// Traps not acted upon because they come too often.
    pub noisy_traps: u64,
    /// Events and replies dropped because their queue was full.
    pub overflows: u64,
}

/// What the manager is doing.
#[derive(Debug)]
enum Phase {
    /// Waiting for the next sweep. Requests for single groups or GUID blocks may be under way.
    Idle,
    /// Heavy sweep, first part.
    Discovering(Box<Discovery>),
    /// Heavy sweep, second part.
    Configuring(Step),
    /// Light sweep, or a look at switches that sent traps; whether a change was found.
    Watching(bool),
    /// Asking a better manager to take over.
    HandingOver(OtherManager),
}

/// The subnet manager of one port.
#[derive(Debug)]
pub struct Sm {
    config: SubnetConfig,
    guid: Guid,
    port: PortNum,
    state: SmState,
    phase: Phase,
    queue: SmpQueue<Job>,
    events: VecDeque<SmEvent>,
    topology: Topology,
    local: Option<PortId>,
    lids: LidManager,
    groups: BTreeMap<Lid, Members>,
    dirty_groups: BTreeSet<Lid>,
    /// Wanted contents of blocks of ports' GUID tables; without an entry, the port's own GUID only.
    guids: BTreeMap<(Guid, u8), GuidBlock>,
    programmed: BTreeMap<Guid, Programmed>,
    managers: Vec<OtherManager>,
    unanswered: Vec<DrPath>,
    duplicates: Vec<Guid>,
    /// The master that a standby watches, and how many questions in a row it left unanswered.
    master: Option<(OtherManager, u32)>,
    traps: TrapFilter,
    follow_ups: FollowUps,
    /// No heavy sweep was completed since the manager became master.
    first_sweep: bool,
    /// A heavy sweep is wanted as soon as possible.
    sweep_wanted: bool,
    /// The next sweep as master reads tables back.
    read_back_wanted: bool,
    /// A request that writes a forwarding table was not answered: it may come after a newer one.
    has_lost_writes: bool,
    /// The sweep under way left something undone.
    trouble: bool,
    /// Ports that appeared in the sweep under way.
    appeared: BTreeSet<Guid>,
    next_check: Instant,
    act_count: u32,
    stats: SmStats,
}

impl Sm {
    /// A manager on a port. It starts with a heavy sweep. `seed` is that of the transaction ids.
    #[must_use]
    pub fn new(config: SubnetConfig, port: PortNum, guid: Guid, seed: u64) -> Self {
        Self {
            guid,
            port,
            state: SmState::DISCOVERING,
            phase: Phase::Idle,
            queue: SmpQueue::new(config.smp, seed),
            events: VecDeque::new(),
            topology: Topology::new(config.prefix),
            local: None,
            lids: LidManager::with_known(config.known_lids.iter().copied()),
            groups: BTreeMap::new(),
            dirty_groups: BTreeSet::new(),
            guids: BTreeMap::new(),
            programmed: BTreeMap::new(),
            managers: Vec::new(),
            unanswered: Vec::new(),
            duplicates: Vec::new(),
            master: None,
            traps: TrapFilter::default(),
            follow_ups: FollowUps::default(),
            first_sweep: true,
            sweep_wanted: true,
            read_back_wanted: false,
            has_lost_writes: false,
            trouble: false,
            appeared: BTreeSet::new(),
            next_check: Instant::ZERO,
            act_count: 0,
            stats: SmStats::default(),
            config,
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &SubnetConfig {
        &self.config
    }

    /// The manager's state.
    #[must_use]
    pub fn state(&self) -> SmState {
        self.state
    }

    /// Whether the SA may answer: the manager is master and brought the subnet up once.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.state == SmState::MASTER && !self.first_sweep
    }

    /// Whether nothing is under way and nothing is due before the next light sweep.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.queue.is_idle() && !self.sweep_wanted
    }

    /// The subnet as of the last discovery.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The GUID of the manager's port.
    #[must_use]
    pub fn port_guid(&self) -> Guid {
        self.guid
    }

    /// The LID of the manager's port, [`Lid::NONE`] before the first sweep.
    #[must_use]
    pub fn lid(&self) -> Lid {
        self.local
            .and_then(|id| self.topology.port(id))
            .map_or(Lid::NONE, |port| port.info.lid)
    }

    /// The assignments of LIDs, to be saved and given to a later run.
    #[must_use]
    pub fn lids(&self) -> &LidManager {
        &self.lids
    }

    /// The last multicast LID that all switches can forward.
    #[must_use]
    pub fn last_mlid(&self) -> Lid {
        forwarding::last_mlid(&self.topology)
    }

    /// GUIDs that more than one node claims, as of the last discovery.
    #[must_use]
    pub fn duplicate_guids(&self) -> &[Guid] {
        &self.duplicates
    }

    /// Ends of live links behind which nobody answered, as of the last discovery.
    #[must_use]
    pub fn unanswered(&self) -> &[DrPath] {
        &self.unanswered
    }

    /// What this manager says of itself.
    #[must_use]
    pub fn sm_info(&self) -> SmInfo {
        let mut info = SmInfo {
            guid: self.guid,
            act_count: self.act_count.into(),
            ..SmInfo::default()
        };
        info.set_priority(self.config.priority);
        info.set_state(self.state);
        info
    }

    /// What other managers said of themselves, with the GUIDs of their ports.
    pub fn other_managers(&self) -> impl Iterator<Item = (Guid, SmInfo)> + '_ {
        self.managers.iter().map(|other| (other.guid, other.info))
    }

    /// Counters of the MADs on QP0.
    #[must_use]
    pub fn mad_counters(&self) -> &MadCounters {
        self.queue.counters()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> SmStats {
        self.stats
    }

    /// Asks for a heavy sweep that also reads back forwarding tables and GUID tables, and writes what
    /// differs from what the manager computed and the SA granted.
    pub fn request_sweep(&mut self) {
        self.sweep_wanted = true;
        self.read_back_wanted = true;
    }

    /// Does the next light sweep, or a standby's question to the master, now instead of at the
    /// interval; for instance because the manager's own port changed.
    pub fn look_around(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Idle) {
            self.next_check = self.next_check.min(now);
        }
    }

    /// Sets the members of a multicast group: the GUIDs of ports (not aliases), and whether each
    /// receives. An empty map takes the group out of the switches.
    pub fn set_group(&mut self, mlid: Lid, members: BTreeMap<Guid, bool>) {
        if members.is_empty() {
            self.groups.remove(&mlid);
        } else {
            self.groups.insert(mlid, members);
        }
        self.dirty_groups.insert(mlid);
    }

    /// Writes a block of a port's GUID table, and keeps it for sweeps that read tables back.
    pub fn write_guids(&mut self, port: Guid, block: u8, guids: &[Guid; 8]) {
        if self.topology.port_by_guid(port).is_some() {
            self.guids.insert((port, block), *guids);
            self.set_guids(port, block, *guids);
        }
    }

    /// The agent on QP0, for programs beside the manager: their registrations must be
    /// [apart](ib_endpoint::Registration::apart). What they send leaves by [`Self::poll_transmit`].
    pub const fn smi(&mut self) -> &mut MadAgent {
        self.queue.agent()
    }

    /// Takes an SMP that arrived on QP0, or came back from the device's own agent.
    pub fn handle_smp(&mut self, now: Instant, from: &MadAddress, mad: &Mad) {
        self.queue.handle_mad(now, from, mad);
        self.process(now);
    }

    /// The next SMP to send at `now`; one without hops is for the device's own agent. Call until it
    /// gives `None`, after every other call.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.process(now);
        let transmit = self.queue.poll_transmit(now)?;
        self.act_count = self.act_count.wrapping_add(1);
        Some(transmit)
    }

    /// Whether [`Self::poll_transmit`] may have something, without asking it.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        self.queue.has_transmit()
    }

    /// The next event. Call until it gives `None`, after every other call.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<SmEvent> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let is_idle = matches!(self.phase, Phase::Idle);
        let check = is_idle.then_some(self.next_check);
        [check, self.follow_ups.next(), self.queue.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.queue.handle_timeout(now);
        self.process(now);
        if matches!(self.phase, Phase::Idle) && now >= self.next_check {
            self.check(now);
            self.process(now);
        }
        if self.follow_ups.next().is_some_and(|next| next <= now) {
            self.look_at_switches(now);
            self.process(now);
        }
    }

    fn process(&mut self, now: Instant) {
        while let Some(event) = self.queue.poll_event() {
            match event {
                QueueEvent::Answered(job, mad) => {
                    self.follow_ups.note_answer(now);
                    self.on_answer(now, job, &mad);
                }
                QueueEvent::Failed(job) => {
                    self.stats.timeouts += 1;
                    self.read_back_wanted |= job.is_read_back();
                    self.has_lost_writes |= job.writes_routes();
                    self.on_failure(now, job);
                }
                QueueEvent::Request(from, mad) => self.on_request(now, &from, &mad),
            }
        }
        self.advance(now);
    }

    /// What is due at the interval: a light sweep of the master, a sign of life of the master for a
    /// standby.
    fn check(&mut self, now: Instant) {
        match self.state {
            SmState::STANDBY => {
                self.next_check = now + self.config.master_poll_interval;
                self.poll_master();
            }
            SmState::NOT_ACTIVE => self.next_check = Instant::FAR_FUTURE,
            // A packet that was late has arrived, an interval after the sweep that lost it.
            _ if self.has_lost_writes => {
                self.has_lost_writes = false;
                self.read_back_wanted = true;
                self.sweep_wanted = true;
            }
            _ if self.trouble => self.sweep_wanted = true,
            _ => self.start_light_sweep(now),
        }
    }

    fn start_light_sweep(&mut self, now: Instant) {
        self.next_check = now + self.config.sweep_interval;
        self.stats.light_sweeps += 1;
        self.watch_all();
        let request = get_port::<PortInfo>(&DrPath::LOCAL, self.port);
        self.queue.push(request, Job::WatchLocal);
        for node in self.topology.switches() {
            if let Some(port) = self.topology.node(*node).port(PortNum::SWITCH_MANAGEMENT) {
                self.queue
                    .push(get::<SwitchInfo>(&port.path, 0), Job::WatchSwitch(*node));
            }
        }
        for path in &self.unanswered {
            self.queue
                .push(get::<ib_wire::smp::NodeInfo>(path, 0), Job::Probe);
        }
    }

    fn start_heavy_sweep(&mut self, now: Instant) {
        self.next_check = now + self.config.sweep_interval;
        self.sweep_wanted = false;
        self.trouble = false;
        self.stats.heavy_sweeps += 1;
        self.phase = Phase::Discovering(Box::new(Discovery::start(
            self.config.prefix,
            self.config.mkey,
            self.state == SmState::MASTER,
            &self.topology,
            &mut self.queue,
        )));
    }

    /// Goes on to whatever the end of the present requests makes possible.
    fn advance(&mut self, now: Instant) {
        while self.queue.is_idle() {
            match core::mem::replace(&mut self.phase, Phase::Idle) {
                Phase::Idle => {
                    let may_sweep = !matches!(self.state, SmState::NOT_ACTIVE);
                    if self.sweep_wanted && may_sweep {
                        self.start_heavy_sweep(now);
                    } else if !self.dirty_groups.is_empty() && self.state == SmState::MASTER {
                        self.route_dirty_groups();
                    } else {
                        return;
                    }
                }
                Phase::Discovering(discovery) => self.discovered(now, *discovery),
                Phase::Configuring(step) => self.next_step(now, step),
                Phase::Watching(changed) => self.sweep_wanted |= changed,
                Phase::HandingOver(other) => self.stand_by(now, other),
            }
        }
    }

    fn on_answer(&mut self, now: Instant, job: Job, mad: &Mad) {
        let smp = mad.view::<DirectedRouteSmp>();
        if smp.status() != MadStatus::OK {
            self.stats.refused += 1;
            match job {
                // No such block: no Set would change it.
                Job::ReadLft { .. } | Job::ReadMft { .. } | Job::ReadGuids { .. } => {
                    self.read_next(job);
                }
                _ => self.on_failure(now, job),
            }
            return;
        }
        match job {
            Job::ReadLft { .. } | Job::ReadMft { .. } | Job::ReadGuids { .. } => {
                self.was_read(job, smp);
            }
            Job::SetGuids { port, block, guids } => self.guids_were_set(port, block, guids),
            Job::SetPortInfo(port) => {
                if let Some(known) = self.topology.port_mut(port) {
                    known.info = *smp.attribute::<PortInfo>();
                }
            }
            Job::SetSwitchInfo(node) => {
                if let Some(switch) = &mut self.topology.node_mut(node).switch {
                    let info = *smp.attribute::<SwitchInfo>();
                    let was_marked = core::mem::replace(&mut switch.info, info).port_state_change();
                    if was_marked {
                        self.look_again(node);
                    }
                }
            }
            Job::LookAgain(port) => {
                let is_up = smp.attribute::<PortInfo>().phys_state() == PortPhysState::LINK_UP;
                let known = self.topology.port(port);
                self.sweep_wanted |= known.is_some_and(|known| known.link_up() != is_up);
            }
            Job::SetPKeys { .. } | Job::SetLft { .. } | Job::SetMft { .. } => {
                self.programmed_block(job, smp);
            }
            Job::WatchSwitch(_) => {
                if smp.attribute::<SwitchInfo>().port_state_change() {
                    self.switch_changed();
                }
            }
            Job::WatchLocal => self.watch_local(smp.attribute::<PortInfo>()),
            Job::Probe => self.phase = Phase::Watching(true),
            Job::PollMaster => self.master_answered(now, smp.attribute::<SmInfo>()),
            Job::HandOver(_) => {}
            _ => {
                if let Phase::Discovering(discovery) = &mut self.phase {
                    discovery.answer(job, mad, &mut self.queue);
                }
            }
        }
    }

    fn on_failure(&mut self, now: Instant, job: Job) {
        match job {
            Job::SetPortInfo(_)
            | Job::SetSwitchInfo(_)
            | Job::LookAgain(_)
            | Job::SetPKeys { .. }
            | Job::SetLft { .. }
            | Job::SetMft { .. }
            | Job::SetGuids { .. }
            | Job::ReadLft { .. }
            | Job::ReadMft { .. }
            | Job::ReadGuids { .. } => self.trouble = true,
            Job::WatchSwitch(_) => self.switch_silent(),
            Job::WatchLocal => self.phase = Phase::Watching(true),
            Job::Probe => {}
            Job::PollMaster => self.master_missed(now),
            Job::HandOver(_) => self.phase = Phase::Configuring(Step::Start),
            _ => {
                if let Phase::Discovering(discovery) = &mut self.phase {
                    discovery.failure(job, &mut self.queue);
                }
            }
        }
    }

    /// The manager's own port changed if its link or its address is not what the last sweep left.
    fn watch_local(&mut self, info: &PortInfo) {
        let known = self
            .local
            .and_then(|id| self.topology.port(id))
            .map(|port| &port.info);
        let same = known.is_some_and(|known| {
            known.port_state() == info.port_state()
                && known.phys_state() == info.phys_state()
                && known.lid == info.lid
        });
        if !same {
            self.phase = Phase::Watching(true);
        }
    }

    fn path_of(&self, node: &Node) -> Option<DrPath> {
        Some(node.port(PortNum::SWITCH_MANAGEMENT)?.path)
    }

    fn event(&mut self, event: SmEvent) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        } else {
            self.stats.overflows += 1;
        }
    }

    fn set_state(&mut self, state: SmState) {
        if self.state != state {
            self.state = state;
            if matches!(state, SmState::STANDBY | SmState::NOT_ACTIVE) {
                // Members and owners of aliases register with the new master.
                self.groups.clear();
                self.guids.clear();
                self.follow_ups.clear();
            }
            self.event(SmEvent::StateChanged(state));
        }
    }
}

#[cfg(test)]
mod tests;
