//! A queue of those that have something to do, ordered by the time that each has had.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The most that one turn counts. Of a longer one most was likely the host's, which had the thread wait for a processor; a
/// step that takes longer by itself comes back to the queue soon.
const LONGEST: Duration = Duration::from_micros(100);

/// The most that work outside of its turns puts a member behind the one that had least: without a bound, a member whose work outside
/// takes more time than the others' turns would never have one.
const DEBT: Duration = Duration::from_millis(2);

/// A queue in which everybody stands once: whoever has had the least time is served first, and of equals the first to come.
///
/// Somebody that was idle starts level with the one that has had least, so time that was not wanted cannot be saved up.
/// A member that needs a moment now and then is served before all that never end, however many those are.
#[derive(Clone, Debug)]
pub struct FairQueue<P> {
    line: BTreeSet<(Duration, u64, P)>,
    waiting: BTreeMap<P, Place>,
    /// Time that each has had. Entries of less than `least` count as `least`.
    had: BTreeMap<P, Duration>,
    /// Time that the one served last had had before.
    least: Duration,
    arrivals: u64,
}

/// The place of a member in the line.
#[derive(Clone, Copy, Debug)]
struct Place {
    had: Duration,
    arrival: u64,
    /// Work outside of its turns moves it no further back than to here.
    last: Duration,
}

impl<P> Default for FairQueue<P> {
    fn default() -> Self {
        Self {
            line: BTreeSet::new(),
            waiting: BTreeMap::new(),
            had: BTreeMap::new(),
            least: Duration::ZERO,
            arrivals: 0,
        }
    }
}

impl<P: Copy + Ord> FairQueue<P> {
    /// Adds somebody that has something to do, unless it stands in the queue.
    pub fn add(&mut self, who: P) {
        let (had, arrival) = (self.had(who), self.arrivals);
        if let Entry::Vacant(place) = self.waiting.entry(who) {
            let last = had + DEBT;
            place.insert(Place { had, arrival, last });
            self.line.insert((had, arrival, who));
            self.arrivals += 1;
        }
    }

    /// Removes and returns whoever is to be served next.
    pub fn take(&mut self) -> Option<P> {
        let (_, _, who) = self.line.pop_first()?;
        self.waiting.remove(&who);
        Some(who)
    }

    /// Charges somebody for the time that it was served, of which 100 µs count at most. Its place in the queue stays as it is,
    /// if it has one.
    pub fn charge(&mut self, who: P, length: Duration) {
        let before = self.had(who);
        self.least = before;
        self.had.insert(who, before + length.min(LONGEST));
    }

    /// Charges a member for work that was done for the member outside of its turns, up to 2 ms more than the one served last has had.
    /// If it stands in the queue, members that have had less are served first from then on. Returns the time that the member has had.
    pub fn charge_outside(&mut self, who: P, length: Duration) -> Duration {
        let before = self.had(who);
        let had = (before + length).min(before.max(self.least + DEBT));
        self.had.insert(who, had);
        if let Some(place) = self.waiting.get_mut(&who) {
            self.line.remove(&(place.had, place.arrival, who));
            place.had = had.min(place.last);
            self.line.insert((place.had, place.arrival, who));
        }
        had
    }

    /// Returns `true` if the first member of the queue has had less than `had`.
    pub fn is_before(&self, had: Duration) -> bool {
        self.line.first().is_some_and(|(first, ..)| *first < had)
    }

    /// Returns `true` if somebody that does not stand in the queue would be served before all that do.
    pub fn is_before_all(&self, who: P) -> bool {
        let first = self.line.first();
        !self.waiting.contains_key(&who) && first.is_none_or(|(had, ..)| self.had(who) < *had)
    }

    /// Returns how many stand in the queue.
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Returns `true` if nobody stands in the queue.
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    fn had(&self, who: P) -> Duration {
        let had = self.had.get(&who).copied();
        had.unwrap_or_default().max(self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(2);

    /// Serves the line so often, each of `busy` stands in it again at once. Requeue who was served.
    fn serve(queue: &mut FairQueue<u32>, busy: core::ops::Range<u32>, count: usize) -> Vec<u32> {
        let serve = |_| {
            let who = queue.take()?;
            let length = if busy.contains(&who) {
                // No two take equally long.
                LONG + Duration::from_nanos(who.into())
            } else {
                SHORT
            };
            queue.charge(who, length);
            if busy.contains(&who) {
                queue.add(who);
            }
            Some(who)
        };
        (0..count).filter_map(serve).collect()
    }

    #[test]
    fn those_that_need_a_moment_stand_before_all_that_never_end() {
        let mut queue = FairQueue::default();
        (0..16).for_each(|who| queue.add(who));
        serve(&mut queue, 0..16, 200);
        for who in [100, 101, 102] {
            queue.add(who);
            queue.add(who);
        }
        let served = serve(&mut queue, 0..16, 4);
        // One may be level with them.
        let first = served.iter().filter(|who| **who >= 100).count();
        assert!(first >= 3, "{served:?}");
    }

    #[test]
    fn those_that_come_keep_nobody_waiting() {
        let mut queue = FairQueue::default();
        queue.add(0);
        serve(&mut queue, 0..1, 50);
        // Sixteen of them have had as much as the one that waits after so many short turns.
        for nth in 0..16 * 26 {
            queue.add(1 + nth % 16);
            if serve(&mut queue, 0..1, 1) == [0] {
                return;
            }
        }
        panic!("it has no turn");
    }

    #[test]
    fn a_member_whose_work_outside_never_ends_has_turns() {
        let mut queue = FairQueue::default();
        (0..3).for_each(|who| queue.add(who));
        let mut turns = 0;
        for _ in 0..4000 {
            // It takes far more time than all turns of the others.
            queue.charge_outside(0, 10 * LONG);
            turns += serve(&mut queue, 0..3, 1)
                .iter()
                .filter(|who| **who == 0)
                .count();
        }
        // Two others have 2 ms in turns of 50 us before each of its own.
        assert!((40..60).contains(&turns), "{turns}");
    }

    #[test]
    fn nobody_saves_time_up() {
        let mut queue = FairQueue::default();
        queue.add(0);
        serve(&mut queue, 0..1, 1000);
        queue.add(1);
        let served = serve(&mut queue, 0..2, 100);
        let shares = [0, 1].map(|who| served.iter().filter(|at| **at == who).count());
        assert!(shares[0].abs_diff(shares[1]) <= 1, "{shares:?}");
    }

    #[test]
    fn a_turn_in_which_the_host_stood_still_costs_no_more_than_a_long_one() {
        let mut queue = FairQueue::default();
        (0..2).for_each(|who| queue.add(who));
        serve(&mut queue, 0..2, 10);
        queue.charge(100, Duration::from_millis(20));
        queue.add(100);
        assert!(serve(&mut queue, 0..2, 12).contains(&100));
    }

    #[test]
    fn work_outside_of_turns_counts_and_raises_no_level() {
        let mut queue = FairQueue::default();
        (0..2).for_each(|who| queue.add(who));
        serve(&mut queue, 0..2, 10);
        let had = queue.charge_outside(0, 20 * LONG);
        // The other one waits before it, and stands before nobody that has had as little.
        assert!(queue.is_before(had));
        assert!(!queue.is_before(had - 20 * LONG - LONG));
        let served = serve(&mut queue, 0..2, 21);
        let first = served.iter().filter(|who| **who == 0).count();
        assert!(first <= 2, "{served:?}");
        // One that comes is level with those in their turns, and not with the one that was charged.
        queue.charge_outside(0, 1000 * LONG);
        queue.add(2);
        let served = serve(&mut queue, 1..3, 10);
        assert!(
            served.iter().filter(|who| **who == 2).count() >= 4,
            "{served:?}"
        );
    }

    #[test]
    fn without_time_the_first_to_come_is_the_first_served() {
        let mut queue = FairQueue::default();
        for who in [3, 1, 2, 1] {
            queue.add(who);
            queue.charge(9, Duration::ZERO);
        }
        let taken: Vec<u32> = core::iter::from_fn(|| queue.take()).collect();
        assert_eq!(taken, [3, 1, 2]);
    }
}
