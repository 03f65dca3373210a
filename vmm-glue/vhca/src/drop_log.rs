//! Which drops are worth a line of the log.
//!
//! Guests and the fabric can make the PF drop as many frames as they like. Counters take note of each;
//! the log gets a few lines per VF and reason, and then one every so often that tells how many
//! there were in between.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use ib_vtime::{Instant, Rate};
use vf_tunnel::{DropReason, VfId};

use crate::log_limit::{LogLimit, Suppressed};

/// Lines of one VF and reason that may follow each other at once.
const BURST: u32 = 3;
/// Time per line in the long run.
const INTERVAL: Duration = Duration::from_secs(10);

/// A limit per VF and drop reason. Its size is bounded by the VFs times the reasons.
#[derive(Clone, Debug)]
pub struct DropLog {
    rate: Rate,
    sources: BTreeMap<(Option<VfId>, DropReason), LogLimit>,
}

impl DropLog {
    /// A log with the default rate: three lines at once, then one every ten seconds.
    #[must_use]
    pub fn new() -> Self {
        Self::with_rate(Rate::every(INTERVAL, BURST))
    }

    /// A log with a rate for each VF and reason.
    #[must_use]
    pub const fn with_rate(rate: Rate) -> Self {
        Self {
            rate,
            sources: BTreeMap::new(),
        }
    }

    /// Takes note of a drop: gives the line to log, if it may be logged now.
    pub fn note(&mut self, now: Instant, vf: Option<VfId>, reason: DropReason) -> Option<DropLine> {
        let source = self.sources.entry((vf, reason)).or_default();
        let Suppressed(suppressed) = source.note(now, &self.rate)?;
        Some(DropLine {
            vf,
            reason,
            suppressed,
        })
    }

    /// Takes note of a drop, and logs it as a warning if it may be logged now.
    pub fn log(&mut self, now: Instant, vf: Option<VfId>, reason: DropReason) {
        if let Some(line) = self.note(now, vf, reason) {
            log::warn!("{line}");
        }
    }

    /// Forgets a VF that is gone.
    pub fn forget(&mut self, vf: VfId) {
        self.sources.retain(|&(of, _), _| of != Some(vf));
    }
}

impl Default for DropLog {
    fn default() -> Self {
        Self::new()
    }
}

/// A line of the log. It holds nothing that a guest or a peer wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropLine {
    /// The frame's sender, or whom it was for, as far as that is known.
    pub vf: Option<VfId>,
    /// Why it was dropped.
    pub reason: DropReason,
    /// Drops of the same VF and reason since its last line.
    pub suppressed: u64,
}

impl fmt::Display for DropLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vf {
            Some(vf) => write!(f, "{vf}: dropped a frame: {}", self.reason)?,
            None => write!(f, "dropped a frame for no VF: {}", self.reason)?,
        }
        Suppressed(self.suppressed).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vf(number: u16) -> Option<VfId> {
        VfId::new(number)
    }

    /// Lines that so many drops at once make.
    fn lines(log: &mut DropLog, now: Instant, of: Option<VfId>, drops: usize) -> Vec<String> {
        (0..drops)
            .filter_map(|_| log.note(now, of, DropReason::BadLength))
            .map(|line| line.to_string())
            .collect()
    }

    #[test]
    fn c204_a_million_drops_make_a_few_lines_and_the_next_tells_how_many_there_were() {
        let mut log = DropLog::new();
        let first = lines(&mut log, Instant::ZERO, vf(1), 1_000_000);
        assert_eq!(first, ["vf:1: dropped a frame: bad_length"; 3]);
        assert!(lines(&mut log, Instant::from_millis(9_999), vf(1), 3).is_empty());
        let next = lines(&mut log, Instant::from_millis(10_000), vf(1), 5);
        assert_eq!(
            next,
            ["vf:1: dropped a frame: bad_length (1000000 more since the last line)"]
        );
    }

    #[test]
    fn c204_each_vf_and_each_reason_has_lines_of_its_own() {
        let mut log = DropLog::new();
        lines(&mut log, Instant::ZERO, vf(1), 100);
        let other = log.note(Instant::ZERO, vf(1), DropReason::BadQKey);
        assert!(other.is_some());
        let neighbours = lines(&mut log, Instant::ZERO, vf(2), 1);
        assert_eq!(neighbours, ["vf:2: dropped a frame: bad_length"]);
        let nobodys = lines(&mut log, Instant::ZERO, None, 1);
        assert_eq!(nobodys, ["dropped a frame for no VF: bad_length"]);
    }

    #[test]
    fn a_vf_that_is_forgotten_leaves_nothing() {
        let mut log = DropLog::new();
        lines(&mut log, Instant::ZERO, vf(1), 100);
        log.forget(vf(1).unwrap());
        assert!(log.sources.is_empty());
    }
}
