//! How often something is logged that others can cause: guests, the fabric, programs at a socket.

use core::fmt;

use ib_vtime::{Instant, Rate, TokenBucket};

/// Lines of one limit, unless it has a rate of its own.
const USUAL: Rate = Rate::per_second(1, 20);

/// Lines that may still be logged, and how many were left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogLimit {
    bucket: TokenBucket,
    suppressed: u64,
}

impl LogLimit {
    /// Takes note of a line: returns how many were left out since the last one, if it may be logged now.
    pub fn note(&mut self, now: Instant, rate: &Rate) -> Option<Suppressed> {
        if !self.bucket.take(now, rate) {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        Some(Suppressed(core::mem::take(&mut self.suppressed)))
    }

    /// Logs a warning, if it may be logged now.
    pub fn warn(&mut self, now: Instant, what: impl fmt::Display) {
        if let Some(suppressed) = self.note(now, &USUAL) {
            log::warn!("{what}{suppressed}");
        }
    }
}

/// How many lines were left out; says nothing if none was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed(pub(crate) u64);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            more => write!(f, " ({more} more since the last line)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted_until_the_next_line() {
        let mut limit = LogLimit::default();
        let rate = Rate::per_second(1, 2);
        let noted = |limit: &mut LogLimit, millis| {
            let line = limit.note(Instant::from_millis(millis), &rate);
            line.map(|suppressed| format!("line{suppressed}"))
        };
        assert_eq!(noted(&mut limit, 0).unwrap(), "line");
        assert_eq!(noted(&mut limit, 0).unwrap(), "line");
        assert_eq!(noted(&mut limit, 1), None);
        assert_eq!(noted(&mut limit, 2), None);
        let next = noted(&mut limit, 1_000).unwrap();
        assert_eq!(next, "line (2 more since the last line)");
        assert_eq!(noted(&mut limit, 2_000).unwrap(), "line");
    }
}
