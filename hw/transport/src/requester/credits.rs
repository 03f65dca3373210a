//! End-to-end credits (IBA 9.7.7.2).

use ib_wire::Psn;

use crate::psn::PsnOrder;

/// The credit code that counts nothing.
pub(crate) const NO_CREDITS: u8 = 31;

/// Sends that the responder has receives for, in numbers of requests.
///
/// Every request takes a send sequence number (SSN), 1 first. Sends and writes with immediate data start up to
/// one SSN beyond the limit: that "limited" one finds out whether the responder has a receive by now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    /// SSN of the newest request that was started.
    ssn: Psn,
    /// Highest SSN that is covered; `None` once the responder said that it does not count.
    limit: Option<Psn>,
}

impl Credits {
    pub(super) fn new() -> Self {
        Self {
            ssn: Psn::default(),
            limit: Some(Psn::default()),
        }
    }

    /// Returns `true` if the next request may start.
    pub(super) fn allow(&self, takes_receive: bool) -> bool {
        let next = self.ssn.wrapping_add(1);
        !takes_receive || self.limit.is_none_or(|limit| next.since(limit) <= 1)
    }

    /// Counts a request that starts. One that needs no receive moves the limit on.
    pub(super) fn start(&mut self, takes_receive: bool) {
        self.ssn = self.ssn.wrapping_add(1);
        if let Some(limit) = self.limit.as_mut().filter(|_| !takes_receive) {
            *limit = limit.wrapping_add(1);
        }
    }

    /// Takes the credits of an acknowledgement. The limit never moves back.
    pub(super) fn take(&mut self, code: u8, msn: Psn) {
        if code >= NO_CREDITS {
            self.limit = None;
        }
        let given = msn.wrapping_add(Self::count(code));
        if let Some(limit) = self.limit.as_mut().filter(|limit| limit.is_before(given)) {
            *limit = given;
        }
    }

    /// Returns the requests that a code below 31 stands for: 0, 1, 2, 3, 4, 6, 8, 12, …, 32768.
    const fn count(code: u8) -> u32 {
        match code {
            0 | 1 => code as u32,
            _ => (2 + (code as u32 & 1)) << (code / 2 - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t042_credit_codes_grow_by_halves_of_powers_of_two() {
        let counts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 29, 30].map(Credits::count);
        assert_eq!(counts, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24576, 32768]);
    }

    #[test]
    fn t042_one_send_beyond_the_limit_may_start() {
        let mut credits = Credits::new();
        assert!(credits.allow(true));
        credits.start(true);
        assert!(!credits.allow(true) && credits.allow(false));
        credits.start(false);
        assert!(!credits.allow(true));
        credits.take(1, Psn::from_low_bits(2));
        credits.take(0, Psn::from_low_bits(1));
        assert!(
            credits.allow(true),
            "an old acknowledgement takes nothing away"
        );
        credits.start(true);
        assert!(credits.allow(true));
        credits.take(31, Psn::from_low_bits(0));
        for _ in 0..100 {
            credits.start(true);
        }
        assert!(credits.allow(true));
    }
}
