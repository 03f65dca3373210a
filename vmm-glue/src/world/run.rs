//! How a world runs: who is polled when, and how the clock moves.

use ib_vtime::{Duration, Instant};
use vf_tunnel::VfId;

use super::devices::{DevicePoll, device_of};
use super::{HostFunction, HostId, Outcome, World};
use crate::Driven;

/// Rounds of work at one time after which a world counts as live-locked: its machines make each
/// other busy for ever.
const MAX_ROUNDS: u32 = 1_000_000;

/// Functions of one adapter that are polled in a round before the next adapter's turn.
const READY_BATCH: usize = 1024;

impl World {
    /// Runs in virtual time until the condition holds, for at most `limit`. The condition is looked at
    /// whenever everything that is due at a time was done.
    pub fn run_until(
        &mut self,
        limit: Duration,
        mut condition: impl FnMut(&mut Self) -> bool,
    ) -> Outcome {
        let end = self.now + limit;
        let mut standstill = 0;
        loop {
            self.poll(self.now);
            if self.live_locked || standstill == MAX_ROUNDS {
                return Outcome::LiveLock;
            }
            if condition(self) {
                return Outcome::Reached;
            }
            let next = self.poll_timeout().map_or(end, |next| next.max(self.now));
            if self.now >= end {
                return Outcome::TimedOut;
            }
            standstill = if next > self.now { 0 } else { standstill + 1 };
            self.now = next.min(end);
        }
    }

    /// Runs in virtual time for `duration`.
    pub fn run_for(&mut self, duration: Duration) -> Outcome {
        match self.run_until(duration, |_| false) {
            Outcome::LiveLock => Outcome::LiveLock,
            Outcome::Reached | Outcome::TimedOut => Outcome::Reached,
        }
    }

    /// Lets the fabric do what is due, and then the software that has something to do: because it
    /// was lent out, because its time has come, or because its function has events. Whether any had.
    fn round(&mut self) -> bool {
        while self.fabric.poll(self.now) {}
        self.record_taps();
        let mut due = core::mem::take(&mut self.woken);
        while let Some(at) = self.alarms.pop_due(self.now) {
            due.push(at);
        }
        for at in &due {
            self.poll_function(*at);
        }
        let mut busy = !due.is_empty() || self.poll_switches();
        for host in self.hosts_to_look_at(&due) {
            let node = self.hosts[host.0].node();
            for _ in 0..READY_BATCH {
                let Some(function) = self.fabric.poll_ready(node) else {
                    break;
                };
                self.poll_function(HostFunction { host, function });
                busy = true;
            }
        }
        busy
    }

    /// The hosts whose functions may have events, in order: those that the fabric served, and those of
    /// functions that were just polled.
    fn hosts_to_look_at(&mut self, polled: &[HostFunction]) -> Vec<HostId> {
        let served = core::iter::from_fn(|| self.fabric.poll_served());
        let mut hosts: Vec<HostId> = served
            .filter_map(|node| self.host_at.get(&node).copied())
            .chain(polled.iter().map(|at| at.host))
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Lets the software on port 0 of those switches that have something to do do it. Whether any had.
    fn poll_switches(&mut self) -> bool {
        let mut due = core::mem::take(&mut self.woken_switches);
        due.extend(std::iter::from_fn(|| self.fabric.poll_port0_ready()));
        due.extend(std::iter::from_fn(|| self.switch_alarms.pop_due(self.now)));
        for node in &due {
            if let Some(software) = self.switches.get_mut(node) {
                software.poll(self.now, &mut self.fabric);
                self.switch_alarms.set(*node, software.poll_timeout());
            }
        }
        !due.is_empty()
    }

    fn poll_function(&mut self, at: HostFunction) {
        self.polled.insert(at.host);
        let host = &mut self.hosts[at.host.0];
        let vf = VfId::new(at.function.0);
        match vf.and_then(|vf| host.poll_device(self.now, &mut self.fabric, vf)) {
            Some(polled) => self.take_device_poll(at, &polled),
            None => host.poll(self.now, &mut self.fabric, at.function),
        }
        let timeout = self.hosts[at.host.0].poll_timeout(at.function);
        self.alarms.set(at, timeout);
    }

    fn take_device_poll(&mut self, at: HostFunction, polled: &DevicePoll) {
        if polled.is_interrupting {
            self.interrupting.insert(at);
        }
        if polled.is_reset {
            self.wake(at);
            self.wake(at.host.pf());
        }
    }
}

impl Driven for World {
    fn poll(&mut self, now: Instant) {
        self.now = now;
        for _ in 0..MAX_ROUNDS {
            if !self.round() {
                // The fabric serves the nodes that the hosts looked at, and is quiet.
                while self.fabric.poll(now) {}
                self.record_taps();
                return;
            }
        }
        self.live_locked = true;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let woken = self.woken.iter();
        let woken = woken.filter_map(|at| {
            let host = &self.hosts[at.host.0];
            // What a device wants of its owner is learnt by polling only.
            let device = device_of(host, at.function).map(|_| self.now);
            device.or_else(|| host.poll_timeout(at.function))
        });
        let alarm = self.alarms.next_deadline();
        let fabric = self.fabric.poll_timeout();
        let woken_switches = self.woken_switches.iter();
        let woken_switches = woken_switches.filter_map(|at| self.switches.get(at)?.poll_timeout());
        alarm
            .into_iter()
            .chain(self.switch_alarms.next_deadline())
            .chain(fabric)
            .chain(woken)
            .chain(woken_switches)
            .min()
    }
}
