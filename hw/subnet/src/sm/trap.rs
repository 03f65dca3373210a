//! Which traps are worth a sweep.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant};
use ib_wire::Lid;
use ib_wire::notice::{Notice, TrapNumber};

/// Senders and traps that are counted at the same time.
const MAX_COUNTED: usize = 1024;

/// A trap that comes this often within the window is noise and no longer acted upon.
const NOISY: u32 = 10;

/// How long a trap is remembered.
const WINDOW: Duration = Duration::from_secs(60);

/// Counts traps, so that a port that sends them without end cannot keep the manager sweeping.
#[derive(Clone, Debug, Default)]
pub(super) struct TrapFilter {
    seen: BTreeMap<(Lid, u16), (Instant, u32)>,
}

impl TrapFilter {
    /// Counts a trap. Whether it is still worth acting upon.
    pub(super) fn admit(&mut self, now: Instant, from: Lid, trap: TrapNumber) -> bool {
        let key = (from, trap.get());
        if !self.seen.contains_key(&key) && self.seen.len() >= MAX_COUNTED {
            self.seen.retain(|_, (since, _)| now - *since < WINDOW);
            if self.seen.len() >= MAX_COUNTED {
                return false;
            }
        }
        let (since, count) = self.seen.entry(key).or_insert((now, 0));
        if now - *since >= WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= NOISY
    }
}

/// Whether the trap tells of a change that only a sweep reveals.
pub(super) fn calls_for_sweep(notice: &Notice) -> bool {
    let trap = notice.trap_number;
    notice.is_generic()
        && matches!(
            trap,
            TrapNumber::LINK_STATE_CHANGED | TrapNumber::CAPABILITY_MASK_CHANGED
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_that_comes_too_often_is_ignored_until_it_rests() {
        let mut filter = TrapFilter::default();
        let (from, trap) = (Lid::new(4), TrapNumber::LINK_STATE_CHANGED);
        let admitted = (0..20)
            .filter(|i| filter.admit(Instant::from_millis(*i), from, trap))
            .count();
        assert_eq!(admitted, 10);
        assert!(filter.admit(Instant::from_millis(5), Lid::new(5), trap));
        assert!(filter.admit(Instant::from_millis(70_000), from, trap));
    }

    #[test]
    fn a_flood_of_senders_is_bounded() {
        let mut filter = TrapFilter::default();
        for lid in 1..3000 {
            filter.admit(Instant::ZERO, Lid::new(lid), TrapNumber::LINK_STATE_CHANGED);
        }
        assert!(filter.seen.len() <= MAX_COUNTED);
    }
}
