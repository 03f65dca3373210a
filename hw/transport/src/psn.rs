//! Order of 24-bit sequence numbers (IBA 9.7.2).

use ib_wire::Psn;

/// The most PSNs that a requester may have unacknowledged: with more, the sign of a difference would
/// no longer tell old from new (IBA 9.7.2).
pub const MAX_UNACKNOWLEDGED: u32 = (1 << 23) - 1;

/// Circular order of PSNs and message sequence numbers. The derived order of [`Psn`] is that of plain
/// numbers and wrong for sequences.
pub trait PsnOrder: Copy {
    /// Returns the signed distance from `other` to `self`, in -2^23 to 2^23 - 1.
    #[must_use]
    fn since(self, other: Self) -> i32;

    /// Returns `true` if `self` comes before `other`.
    #[must_use]
    fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// Returns the PSN `steps` before `self`.
    #[must_use]
    fn wrapping_sub(self, steps: u32) -> Self;
}

impl PsnOrder for Psn {
    fn since(self, other: Self) -> i32 {
        // The difference in the upper 24 bits, shifted down with its sign.
        (self.get().wrapping_sub(other.get()) << 8).cast_signed() >> 8
    }

    fn wrapping_sub(self, steps: u32) -> Self {
        self.wrapping_add(steps.wrapping_neg())
    }
}

/// Returns the number of PSNs from `from` to `to`, or 0 if `to` comes first.
pub(crate) fn count(from: Psn, to: Psn) -> u32 {
    to.since(from).max(0).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(value: u32) -> Psn {
        Psn::from_low_bits(value)
    }

    #[test]
    fn t001_psns_are_compared_by_the_sign_of_their_24_bit_difference() {
        assert_eq!(psn(1).since(psn(0xff_ffff)), 2);
        assert_eq!(psn(0xff_ffff).since(psn(1)), -2);
        assert_eq!(psn(0x7f_ffff).since(psn(0)), (1 << 23) - 1);
        assert_eq!(psn(0x80_0000).since(psn(0)), -(1 << 23));
        assert!(psn(0xff_fff0).is_before(psn(5)));
        assert!(!psn(5).is_before(psn(5)));
        assert_eq!(psn(1).wrapping_sub(3), psn(0xff_fffe));
        assert_eq!(count(psn(0xff_ffff), psn(1)), 2);
        assert_eq!(count(psn(1), psn(0xff_ffff)), 0);
    }
}
