//! Looks at switches that reported a change: others follow that no trap reports in time.
//!
//! A port sends one trap per SubnetTimeOut at most (IBA 14.2.5.6), a second by default. A host that is taken from one port of a switch
//! and comes back at another changes two, and a requester with an ACK timeout of 67 ms and seven retries waits for it half a second. So
//! the manager asks a switch for its mark of changes for as long as that keeps its next trap.
//!
//! A node that goes away amid a sweep leaves requests behind, which time out after most of a second. If a switch has a new mark by then,
//! the sweep begins anew, without the node.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant};
use ib_wire::smp::SwitchInfo;
use ib_wire::{Guid, Lid, PortNum};

use super::job::{Job, get};
use super::{Phase, Sm};

/// Time from one look to the next.
const INTERVAL: Duration = Duration::from_millis(50);

/// Time without an answer after which a sweep is taken for one that waits for a node that is gone.
const STALL: Duration = Duration::from_millis(25);

/// Sweeps in a row that begin anew, so that changes without end do not keep the manager from completing one.
const MAX_RESTARTS: u32 = 3;

/// Longest time for which a switch is asked after a trap, with SubnetTimeOuts of minutes.
const LONGEST: Duration = Duration::from_secs(5);

/// Switches that reported a change.
#[derive(Debug, Default)]
pub(super) struct FollowUps {
    /// Times from which on a switch is not asked again, by its GUID.
    until: BTreeMap<Guid, Instant>,
    next: Option<Instant>,
    /// Time of the last answer to any request.
    answered: Instant,
    /// The manager watches because of a look, and not in a light sweep.
    is_look: bool,
    /// Sweeps that began anew since the last one that was completed.
    restarts: u32,
}

impl FollowUps {
    /// Returns the time of the next look.
    pub(super) const fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Notes an answer.
    pub(super) const fn note_answer(&mut self, now: Instant) {
        self.answered = now;
    }

    /// Notes that a sweep was completed.
    pub(super) const fn note_completed(&mut self) {
        self.restarts = 0;
    }

    fn add(&mut self, now: Instant, switch: Guid, time: Duration) {
        self.until.insert(switch, now + time.min(LONGEST));
        self.next.get_or_insert(now + INTERVAL);
    }

    /// Begins a look. Returns the switches to ask; each is asked once after its time has passed, too.
    fn begin(&mut self, now: Instant) -> Vec<Guid> {
        let asked = self.until.keys().copied().collect();
        self.until.retain(|_, until| now < *until);
        self.next = (!self.until.is_empty()).then(|| now + INTERVAL);
        asked
    }

    /// Forgets all switches.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Sm {
    /// Notes the sender of a trap about links, whether or not the trap is acted upon. Others than switches of the subnet are not noted.
    pub(super) fn follow_up(&mut self, now: Instant, from: Lid) {
        let Some(id) = self.topology.port_by_lid(from) else {
            return;
        };
        let node = self.topology.node(id.node);
        if node.is_switch() {
            let nanos = ib_wire::cm::timeout_nanos(self.config.subnet_timeout);
            let time = Duration::from_nanos(nanos);
            self.follow_ups.add(now, node.info.node_guid, time);
        }
    }

    /// Asks the switches that reported changes whether there are others. During a sweep it does so if that waits for a node.
    pub(super) fn look_at_switches(&mut self, now: Instant) {
        let asked = self.follow_ups.begin(now);
        match self.phase {
            Phase::Idle => {
                self.phase = Phase::Watching(false);
                self.follow_ups.is_look = true;
            }
            _ if now < self.follow_ups.answered + STALL => return,
            _ => {}
        }
        for guid in asked {
            let Some(node) = self.topology.node_by_guid(guid) else {
                continue;
            };
            if let Some(port) = self.topology.node(node).port(PortNum::SWITCH_MANAGEMENT) {
                let request = get::<SwitchInfo>(&port.path, 0);
                self.queue.push(request, Job::WatchSwitch(node));
            }
        }
    }

    /// Begins a light sweep, in which silence is a change.
    pub(super) fn watch_all(&mut self) {
        self.follow_ups.is_look = false;
        self.phase = Phase::Watching(false);
    }

    /// Acts upon a change that a switch has marked.
    pub(super) fn switch_changed(&mut self) {
        match self.phase {
            Phase::Watching(_) => self.phase = Phase::Watching(true),
            Phase::Discovering(_) | Phase::Configuring(_) => {
                self.sweep_wanted = true;
                if self.follow_ups.restarts < MAX_RESTARTS {
                    self.follow_ups.restarts += 1;
                    self.restart_sweep();
                }
            }
            Phase::Idle | Phase::HandingOver(_) => self.sweep_wanted = true,
        }
    }

    /// Acts upon a switch that has not answered. To a look that says nothing: packets may be slow, and the next light sweep asks again.
    pub(super) fn switch_silent(&mut self) {
        if matches!(self.phase, Phase::Watching(_)) && !self.follow_ups.is_look {
            self.phase = Phase::Watching(true);
        }
    }

    /// Drops all requests. The next sweep sends the writes among them again.
    fn restart_sweep(&mut self) {
        self.read_back_wanted |= self.queue.contexts().any(|job| job.is_read_back());
        self.has_lost_writes |= self.queue.contexts().any(|job| job.writes_routes());
        self.queue.clear();
        self.phase = Phase::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_asked_until_its_next_trap_may_come_and_once_more() {
        let mut follow_ups = FollowUps::default();
        let switch = Guid::new(1);
        follow_ups.add(Instant::ZERO, switch, INTERVAL * 3);
        let mut looks = Vec::new();
        while let Some(next) = follow_ups.next() {
            assert_eq!(follow_ups.begin(next), [switch]);
            looks.push(next.as_millis());
        }
        assert_eq!(looks, [50, 100, 150]);
    }

    #[test]
    fn a_further_trap_goes_on_with_the_looks_without_a_pause_between_them() {
        let mut follow_ups = FollowUps::default();
        let [early, late] = [0, 49].map(Instant::from_millis);
        follow_ups.add(early, Guid::new(1), INTERVAL);
        follow_ups.add(late, Guid::new(1), Duration::from_secs(3600));
        let first = Instant::from_millis(50);
        assert_eq!(follow_ups.next(), Some(first));
        follow_ups.begin(first);
        let second = first + INTERVAL;
        assert_eq!(follow_ups.next(), Some(second));
        let mut now = second;
        while follow_ups.next().is_some() {
            now += INTERVAL;
            follow_ups.begin(now);
        }
        assert_eq!(now, Instant::from_millis(5_050));
    }
}
