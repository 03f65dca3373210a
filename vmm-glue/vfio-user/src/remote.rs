//! Memory that only its VMM reaches: by messages to it, and a wait for its answers.
//!
//! The one place where a VMM is waited for, since whoever reads memory needs it now. What all VMMs together can take
//! of the service's time is bounded ([`Patience`]); beyond, accesses fail as if there were no memory.
//!
//! QEMU answers only while none of its vCPUs waits for this server. A guest that polls a register while its device
//! reads memory makes both wait for each other until the patience ends, so a guest in QEMU needs shared memory; what
//! does not wait with a lock held gets by without.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::memory::RemoteMemory;
use vhca_vfio_user_codec::{dma_read, dma_write, parse_dma_reply};

/// A wait that counts as work: what a VMM needs that answers at once.
const PROMPT: Duration = Duration::from_micros(250);

/// Prompt waits of one round, all together. An access is one message, and a step of a device makes a few dozen at most:
/// enough for a VMM that answers in 30 us, and little beside the delay that a neighbour may have (5 ms).
const ROUND: Duration = Duration::from_millis(2);

/// The longest of the short waits, which a VMM needs on a busy host.
const SHORT: Duration = Duration::from_millis(4);

/// How much longer may be waited: a part of the time that passes, up to a limit.
#[derive(Debug)]
struct Allowance {
    left: Duration,
    /// Most time that is saved up.
    most: Duration,
    /// The part of the time that can be waited in the long run: one in so many.
    share: u32,
}

impl Allowance {
    const fn new(most: Duration, share: u32) -> Self {
        Self {
            left: most,
            most,
            share,
        }
    }

    fn grow(&mut self, passed: Duration) {
        self.left = (self.left + passed / self.share).min(self.most);
    }

    const fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
    }
}

/// How much longer VMMs may be waited for.
///
/// A VMM that does not answer keeps everybody waiting, so most waits end after a few milliseconds. A host that stands
/// still for longer is rare, and so are long waits; each takes a part of what is left only, so that no VMM has them all.
/// Prompt answers are waited for as long as the round lasts: between two looks at the sockets, prompt waits of all
/// VMMs together take 2 ms at most, and what is beyond counts as a short one.
#[derive(Debug)]
pub struct Patience {
    /// Time left in this round for prompt answers.
    round: Duration,
    short: Allowance,
    long: Allowance,
    at: Instant,
    was_spent: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(Instant::now(), Self::LONGEST)
    }
}

impl Patience {
    /// Most time that is saved up for longer waits.
    const LONGEST: Duration = Duration::from_millis(100);

    /// Patience with VMMs that take up to a quarter of `longest` for an answer, now and then. By default it is 100 ms.
    #[must_use]
    pub const fn new(now: Instant, longest: Duration) -> Self {
        Self {
            round: ROUND,
            short: Allowance::new(Self::LONGEST, 4),
            long: Allowance::new(longest, 200),
            at: now,
            was_spent: false,
        }
    }

    /// Begins a round. Returns `true` if a VMM was waited for in the one before; then messages may wait that no socket
    /// tells of.
    pub const fn begin_round(&mut self) -> bool {
        self.round = ROUND;
        core::mem::replace(&mut self.was_spent, false)
    }

    /// Returns the time left for a prompt answer.
    fn prompt(&self) -> Duration {
        self.round.min(PROMPT)
    }

    /// Until when an answer may be waited for, from now on.
    fn deadline(&mut self, now: Instant) -> Instant {
        let passed = now.duration_since(self.at);
        self.at = now;
        self.short.grow(passed);
        self.long.grow(passed);
        now + self.prompt() + self.short.left.min(SHORT) + self.long.left / 4
    }

    /// Notes that there was a wait since [`Self::deadline`].
    fn spend(&mut self, now: Instant) {
        let waited = now.duration_since(self.at);
        let prompt = waited.min(self.prompt());
        self.round -= prompt;
        let waited = waited - prompt;
        let short = waited.min(self.short.left.min(SHORT));
        self.short.spend(short);
        self.long.spend(waited - short);
        self.was_spent = true;
    }
}

/// The memory behind a connection.
#[derive(Debug)]
pub struct Remote {
    connection: Arc<Mutex<Connection>>,
    patience: Arc<Mutex<Patience>>,
    /// The most bytes that the VMM takes in one message.
    most: usize,
    id: u16,
}

impl Remote {
    /// The memory behind a connection, whose VMM takes so many bytes in one message. `patience` is that of all VMMs
    /// together.
    #[must_use]
    pub fn new(
        connection: Arc<Mutex<Connection>>,
        patience: Arc<Mutex<Patience>>,
        most: usize,
    ) -> Self {
        Self {
            connection,
            patience,
            most: most.max(1),
            id: 0,
        }
    }

    fn ask(&mut self, request: &[u8], take: impl FnOnce(&[u8]) -> bool) -> bool {
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = patience.deadline(Instant::now());
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let reply = connection.ask(request, self.id, deadline);
        patience.spend(Instant::now());
        reply.as_ref().and_then(parse_dma_reply).is_some_and(take)
    }
}

impl RemoteMemory for Remote {
    fn read(&mut self, mut address: u64, buf: &mut [u8]) -> bool {
        for part in buf.chunks_mut(self.most) {
            self.id = self.id.wrapping_add(1);
            let request = dma_read(self.id, address, part.len() as u64);
            let is_read = self.ask(&request, |data| {
                let fits = data.len() == part.len();
                if fits {
                    part.copy_from_slice(data);
                }
                fits
            });
            if !is_read {
                return false;
            }
            address = address.wrapping_add(part.len() as u64);
        }
        true
    }

    fn write(&mut self, mut address: u64, bytes: &[u8]) -> bool {
        for part in bytes.chunks(self.most) {
            self.id = self.id.wrapping_add(1);
            let request = dma_write(self.id, address, part);
            if !self.ask(&request, |_| true) {
                return false;
            }
            address = address.wrapping_add(part.len() as u64);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long each of so many waits in a row lasts if nobody answers.
    fn waits(patience: &mut Patience, now: &mut Instant, times: usize) -> Vec<Duration> {
        let wait = |_| {
            let end = patience.deadline(*now);
            let waited = end - *now;
            *now = end;
            patience.spend(end);
            waited
        };
        (0..times).map(wait).collect()
    }

    #[test]
    fn who_answers_promptly_is_waited_for_without_end() {
        let mut now = Instant::now();
        let mut patience = Patience::new(now, Patience::LONGEST);
        let first = patience.deadline(now) - now;
        for _ in 0..100_000 {
            patience.begin_round();
            now += PROMPT;
            patience.spend(now);
            patience.begin_round();
            assert_eq!(patience.deadline(now) - now, first);
        }
    }

    #[test]
    fn prompt_answers_take_no_more_of_a_round_than_its_share() {
        let mut now = Instant::now();
        let mut patience = Patience::new(now, Patience::LONGEST);
        let begun = now;
        // Nothing is left but what is for prompt answers.
        waits(&mut patience, &mut now, 1000);
        for _ in 0..100 {
            patience.begin_round();
            let begun = now;
            waits(&mut patience, &mut now, 1000);
            // One part in four of the time is for short waits, and one in 200 for long ones.
            assert!(now - begun < 2 * ROUND, "{:?}", now - begun);
        }
        assert!(now - begun < Duration::from_millis(800));
    }

    #[test]
    fn who_never_answers_is_waited_for_ever_shorter() {
        let mut now = Instant::now();
        let mut patience = Patience::new(now, Patience::LONGEST);
        let all = waits(&mut patience, &mut now, 1000);
        assert!(all[0] < Duration::from_millis(30), "{:?}", all[0]);
        assert!(all.is_sorted_by(|earlier, later| earlier >= later));
        assert!(all[999] < PROMPT, "{:?}", all[999]);
    }

    #[test]
    fn a_host_that_stands_still_has_its_time_again_later() {
        let mut now = Instant::now();
        let mut patience = Patience::new(now, Patience::LONGEST);
        let first = waits(&mut patience, &mut now, 1000)[0];
        now += 200 * Patience::LONGEST;
        patience.begin_round();
        assert_eq!(waits(&mut patience, &mut now, 1), [first]);
    }
}
