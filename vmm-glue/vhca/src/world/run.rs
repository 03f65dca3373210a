//! How a world runs: who is polled when, and how the clock moves.

use emulated_hca::Pace;
use ib_vtime::{Duration, Instant};
use vf_pci::PciDevice;

use super::{HostFunction, HostId, Outcome, World};
use crate::{Driven, Slice};

/// Rounds of work at one time after which a world counts as live-locked: its machines make each
/// other busy for ever.
const MAX_ROUNDS: u32 = 1_000_000;

/// Functions of one adapter that are polled in a round before the next adapter's turn.
const READY_BATCH: usize = 1024;

/// How long the fabric, and then the software on all functions, goes on before it is the other's turn, where slices end. What
/// crosses the fabric a few times then waits for a few shares, not for as many slices.
const SHARE: Duration = Duration::from_micros(50);

/// Packets of an adapter that the fabric moves at a time, where slices end: a run of the largest packets. Software that waits is
/// looked at after each.
const PACKETS: u32 = 16;

/// A physical function's time counts so many times less: it works for all VFs of its adapter, or for the subnet.
const SERVICE: u32 = 8;

/// How long the software on one function goes on before others have their turn, where slices end.
pub(super) const TURN: Duration = Duration::from_micros(50);

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

    /// Does what is due at `now`, until nothing is left to do before a later time, or the slice is over. What is left
    /// then goes on with the next call, in its order.
    ///
    /// A slice that ends by the clock began no earlier than `now` was read, and time goes on within it: timers that become due
    /// meanwhile do not wait for the next slice.
    pub fn poll_for(&mut self, now: Instant, slice: &mut Slice) {
        self.advance(now, slice);
        self.set_pace(slice);
        #[cfg(feature = "trunk")]
        self.serve_trunks();
        // Those that have events stand in the line with those that have more to do.
        if core::mem::take(&mut self.is_unfinished) {
            self.line_up_stirred(Vec::new());
        }
        for _ in 0..MAX_ROUNDS {
            if self.shares_time {
                self.advance(now, slice);
            }
            if !self.round(now, slice) {
                // The fabric serves the nodes that the hosts looked at, and is quiet.
                while self.adapters.fabric.poll(self.now) {}
                self.record_taps();
                #[cfg(feature = "trunk")]
                if self.flush_trunks() {
                    continue;
                }
                return;
            }
            if slice.is_over() {
                self.is_unfinished = true;
                return;
            }
        }
        self.live_locked = true;
    }

    /// Makes the fabric end its work by the clock, and charge it to functions, where slices end so.
    pub(super) fn set_pace(&mut self, slice: &Slice) {
        let clock = slice.clock().filter(|_| self.shares_time);
        let pace = clock.map(|clock| Pace::timed(PACKETS, clock));
        self.adapters.fabric.set_pace(pace.unwrap_or(Pace::VIRTUAL));
    }

    /// Sets the time to that of the slice which began at `begun`. It never goes back: the caller's clock may be behind.
    fn advance(&mut self, begun: Instant, slice: &Slice) {
        let spent = match slice.is_timed() {
            true => slice.spent(),
            false => Duration::ZERO,
        };
        self.now = self.now.max(begun + spent);
    }

    /// Serves the fabric, and then the software that has something to do: because it was lent out, because its time has come,
    /// or because its function has events. Where slices end, neither goes on for longer than [`SHARE`], which
    /// each has even if the other took all of the slice. Returns `true` if there was anything to do.
    fn round(&mut self, begun: Instant, slice: &Slice) -> bool {
        let mut busy = self.serve_outside();
        busy |= self.serve_fabric(begun, slice);
        self.record_taps();
        let mut share = slice.anew(SHARE);
        if !self.turns.is_empty() {
            self.poll_line(&mut share);
            return true;
        }
        let mut polled = Vec::new();
        busy |= self.poll_due(&mut polled, &mut share);
        busy |= self.poll_switches();
        if busy && share.is_over() {
            self.stirred.extend(polled);
            return true;
        }
        self.poll_stirred(polled, &mut share) || busy
    }

    /// Polls the adapters outside. Returns `true` if anything was due.
    fn serve_outside(&mut self) -> bool {
        let served = self.adapters.poll_outside(self.now);
        let hosts = served.iter().filter_map(|node| self.host_at.get(node));
        let hosts: Vec<_> = hosts.copied().collect();
        self.note_stirred(hosts);
        !served.is_empty()
    }

    /// Makes functions share adapters by time where slices end by the clock, in place of bytes, from now on. Small messages beside
    /// thousands of busy connections are prompt then; large messages of slow guests may take longer than their timeouts.
    pub const fn share_time(&mut self) {
        self.shares_time = true;
    }

    /// Serves the fabric for [`SHARE`] at most. Where slices end by the clock, the share ends early for software on a function that has
    /// had less time than one whose packets and timers the fabric serves. Returns `true` if the fabric has more to do.
    fn serve_fabric(&mut self, begun: Instant, slice: &Slice) -> bool {
        let mut share = slice.anew(SHARE);
        self.served_had = Duration::ZERO;
        while self.adapters.fabric.poll(self.now) {
            if share.is_over() {
                return true;
            }
            if slice.is_timed() && self.shares_time {
                self.advance(begun, slice);
                self.line_up_due();
                self.line_up_stirred(Vec::new());
                if self.turns.is_before(self.served_had) {
                    return true;
                }
            }
        }
        false
    }

    /// Puts the functions into the line that were lent out or whose time has come.
    fn line_up_due(&mut self) {
        for at in self.take_due() {
            self.turns.add(at);
        }
    }

    /// Polls the software that has something to do where not all can have a turn now: those first that have had the least time.
    fn poll_line(&mut self, share: &mut Slice) {
        self.line_up_due();
        self.poll_switches();
        self.line_up_stirred(Vec::new());
        while let Some(at) = self.turns.take() {
            self.poll_function(at, share);
            // Its neighbours may have events now.
            self.note_stirred(vec![at.host]);
            if share.is_over() {
                return;
            }
        }
    }

    /// Takes the functions that were lent out or whose time has come.
    fn take_due(&mut self) -> Vec<HostFunction> {
        let mut due = core::mem::take(&mut self.woken);
        due.extend(core::iter::from_fn(|| self.alarms.pop_due(self.now)));
        due
    }

    /// Polls the software that was lent out or whose time has come, and adds its hosts to `polled`. Returns
    /// `true` if any had.
    fn poll_due(&mut self, polled: &mut Vec<HostId>, share: &mut Slice) -> bool {
        let mut busy = false;
        let mut due = self.take_due().into_iter();
        for at in due.by_ref() {
            busy = true;
            polled.push(at.host);
            self.poll_function(at, share);
            if share.is_over() {
                break;
            }
        }
        due.for_each(|at| self.turns.add(at));
        busy
    }

    /// Polls the software on functions that have events. Returns `true` if any had.
    fn poll_stirred(&mut self, polled: Vec<HostId>, share: &mut Slice) -> bool {
        self.note_stirred(polled);
        let mut busy = false;
        for _ in 0..self.stirred.len() {
            let Some(host) = self.stirred.pop_front() else {
                break;
            };
            let node = self.hosts[host.0].node();
            for _ in 0..READY_BATCH {
                let Some(function) = self.adapters.poll_ready(node) else {
                    break;
                };
                self.poll_function(HostFunction { host, function }, share);
                busy = true;
                if share.is_over() {
                    self.stirred.push_back(host);
                    self.line_up_stirred(Vec::new());
                    return true;
                }
            }
        }
        busy
    }

    /// Puts all functions that have events into the line: those of `hosts`, and of all that the fabric served. Returns
    /// `true` if there are any.
    pub(super) fn line_up_stirred(&mut self, hosts: Vec<HostId>) -> bool {
        self.note_stirred(hosts);
        let mut any = false;
        while let Some(host) = self.stirred.pop_front() {
            let node = self.hosts[host.0].node();
            while let Some(function) = self.adapters.poll_ready(node) {
                self.turns.add(HostFunction { host, function });
                any = true;
            }
        }
        any
    }

    /// Notes the hosts whose functions may have events, in order: those that the fabric served, and those of
    /// functions that were just polled.
    fn note_stirred(&mut self, mut hosts: Vec<HostId>) {
        while let Some(node) = self.adapters.fabric.poll_served() {
            if let Some(host) = self.host_at.get(&node).copied() {
                hosts.push(host);
                self.charge_packets(host);
            }
        }
        hosts.sort_unstable();
        hosts.dedup();
        hosts.retain(|host| !self.stirred.contains(host));
        self.stirred.extend(hosts);
    }

    /// Charges functions for the time of their packets and timers, as for that of their software.
    fn charge_packets(&mut self, host: HostId) {
        let Some(adapter) = self
            .adapters
            .fabric
            .unserved_device_mut(self.hosts[host.0].node())
        else {
            return;
        };
        for (function, spent) in adapter.take_spent() {
            let at = HostFunction { host, function };
            let had = self.turns.charge_outside(at, weighted(at, spent));
            self.served_had = self.served_had.max(had);
        }
    }

    /// Lets the software on port 0 of those switches that have something to do do it. Whether any had.
    fn poll_switches(&mut self) -> bool {
        let mut due = core::mem::take(&mut self.woken_switches);
        due.extend(std::iter::from_fn(|| {
            self.adapters.fabric.poll_port0_ready()
        }));
        due.extend(std::iter::from_fn(|| self.switch_alarms.pop_due(self.now)));
        for node in &due {
            if let Some(software) = self.switches.get_mut(node) {
                software.poll(self.now, &mut self.adapters.fabric);
                self.switch_alarms.set(*node, software.poll_timeout());
            }
        }
        !due.is_empty()
    }

    /// Lets the software on a function do what is due, as long as it is its turn. What is left waits for the next.
    pub(super) fn poll_function(&mut self, at: HostFunction, slice: &Slice) {
        if self.held.contains(&at) {
            return;
        }
        self.polled.insert(at.host);
        let mut turn = slice.share(TURN);
        let (now, adapters) = (self.now, &mut self.adapters);
        let host = &mut self.hosts[at.host.0];
        let polled = host.poll(now, adapters, at.function, &mut || turn.is_over());
        self.turns.charge(at, weighted(at, turn.spent()));
        if let Some(reset) = polled.reset {
            // A VF that has a consumer is one that the PF knows, so only a fault of the adapter could refuse.
            if let Err(error) = reset {
                log::error!("cannot reset VF {}: {error}", at.function.0);
            }
            self.wake(at);
            self.wake(at.host.pf());
        }
        if self.device(at).is_some_and(PciDevice::is_interrupting) {
            self.interrupting.insert(at);
        }
        if self.device(at).is_some_and(PciDevice::has_changes) {
            self.changed.insert(at);
        }
        if polled.has_more {
            self.turns.add(at);
        }
        let timeout = self.hosts[at.host.0].poll_timeout(at.function);
        self.alarms.set(at, timeout);
    }
}

/// Returns the time that counts of the time that was spent for a function.
fn weighted(at: HostFunction, spent: Duration) -> Duration {
    if at == at.host.pf() {
        spent / SERVICE
    } else {
        spent
    }
}

impl Driven for World {
    fn poll(&mut self, now: Instant) {
        self.poll_for(now, &mut Slice::endless());
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.is_unfinished {
            return Some(self.now);
        }
        let woken = self.woken.iter();
        let woken = woken.filter_map(|at| {
            let host = &self.hosts[at.host.0];
            // What a device wants of its owner is learnt by polling only.
            let device = self.device(*at).map(|_| self.now);
            device.or_else(|| host.poll_timeout(at.function))
        });
        let alarm = self.alarms.next_deadline();
        let fabric = self.adapters.fabric.poll_timeout();
        let outside = self.adapters.outside_timeout();
        let woken_switches = self.woken_switches.iter();
        let woken_switches = woken_switches.filter_map(|at| self.switches.get(at)?.poll_timeout());
        #[cfg(feature = "trunk")]
        let trunks = self
            .trunks
            .as_ref()
            .and_then(vhca_trunk::Trunks::poll_timeout);
        #[cfg(not(feature = "trunk"))]
        let trunks = None;
        alarm
            .into_iter()
            .chain(trunks)
            .chain(self.switch_alarms.next_deadline())
            .chain(fabric)
            .chain(outside)
            .chain(woken)
            .chain(woken_switches)
            .min()
    }
}
