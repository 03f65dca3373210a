//! What became of all MADs together, and how full the tables are.

use std::collections::BTreeMap;
use std::fmt;

use ib_vtime::Instant;
use pf_context::inspect::{Counted, Inspect};
use serde::Serialize;

/// Verdicts and table sizes, summed over ports and PFs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// MADs by what became of them. One from a VF to its sibling counts as `loopback` and, if it got
    /// there, as `delivered`.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// Frames that went nowhere, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Live objects by table.
    pub sizes: BTreeMap<&'static str, usize>,
}

impl Totals {
    /// Those of one PF.
    #[must_use]
    pub fn of(from: &dyn Inspect, now: Instant) -> Self {
        let mut totals = Self::default();
        totals.add(from, now);
        totals
    }

    /// Adds those of another PF.
    pub fn add(&mut self, from: &dyn Inspect, now: Instant) {
        for verdict in [
            "to_wire",
            "loopback",
            "answered",
            "absorbed",
            "delivered",
            "dropped",
        ] {
            self.verdicts.entry(verdict).or_default();
        }
        for row in from.counters(now) {
            let verdict = match row.counted {
                Counted::Mads(_, verdict) => verdict,
                Counted::Dropped(reason) => {
                    *self.drops.entry(reason.as_str()).or_default() += row.value;
                    "dropped"
                }
            };
            *self.verdicts.entry(verdict).or_default() += row.value;
        }
        for row in from.ports() {
            let sizes = row.sizes;
            for (table, size) in [
                ("tids", sizes.tids),
                ("cm_ids", sizes.cm_ids),
                ("mcast_groups", sizes.mcast_groups),
                ("mcast_members", sizes.mcast_members),
                ("subscriptions", sizes.subscriptions),
                ("path_cache", sizes.path_cache),
                ("queued", sizes.queued),
            ] {
                *self.sizes.entry(table).or_default() += size;
            }
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<24} {:>10}", "VERDICT", "MADS")?;
        for (verdict, count) in &self.verdicts {
            write!(f, "\n{verdict:<24} {count:>10}")?;
        }
        for (reason, count) in &self.drops {
            write!(f, "\n  {reason:<22} {count:>10}")?;
        }
        write!(f, "\n{:<24} {:>10}", "TABLE", "LIVE")?;
        for (table, live) in &self.sizes {
            write!(f, "\n{table:<24} {live:>10}")?;
        }
        Ok(())
    }
}
