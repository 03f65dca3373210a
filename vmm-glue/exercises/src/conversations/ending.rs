//! How a side of a conversation ended, and whether two endings fit together.

use ib_wire::cm::{RejReason, SidrStatus};

/// How one side of a conversation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// Nothing ever arrived.
    Never,
    /// A REJ was sent or received before the connection was established.
    Refused,
    /// The side lost patience before the connection was established.
    Abandoned,
    /// The connection was established and disconnected.
    Closed,
    /// The connection was established, then a REJ for this reason arrived.
    Broken(RejReason),
    /// A message was never answered.
    TimedOut,
    /// The SIDR exchange gave this answer.
    Resolved(SidrStatus),
}

impl Ending {
    /// Whether two sides that ended so agree, or a timeout of one of them explains why not.
    #[must_use]
    pub fn fits(self, other: Self) -> bool {
        self.fits_one_way(other) || other.fits_one_way(self)
    }

    fn fits_one_way(self, other: Self) -> bool {
        match (self, other) {
            // The peer's silence is explained by its own timeout, or by lost messages.
            (Self::TimedOut, _) => true,
            (Self::Abandoned, Self::Never | Self::Refused) => true,
            (Self::Resolved(ours), Self::Resolved(theirs)) => ours == theirs,
            // Nobody listens: the refusal is the CM's, no user hears of it.
            (Self::Refused, Self::Never) => true,
            (Self::Broken(_), _) => false,
            (ours, theirs) => ours == theirs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_endings_and_explained_ones_fit() {
        for (a, b, fits) in [
            (Ending::Closed, Ending::Closed, true),
            (Ending::Refused, Ending::Refused, true),
            (Ending::Refused, Ending::Closed, false),
            (Ending::Closed, Ending::Never, false),
            (Ending::Abandoned, Ending::Closed, false),
            (Ending::Abandoned, Ending::Refused, true),
            (Ending::TimedOut, Ending::Closed, true),
            (Ending::Broken(RejReason::TIMEOUT), Ending::TimedOut, true),
            (Ending::Broken(RejReason::TIMEOUT), Ending::Closed, false),
            (
                Ending::Resolved(SidrStatus::OK),
                Ending::Resolved(SidrStatus::REJECTED),
                false,
            ),
        ] {
            assert_eq!(a.fits(b), fits, "{a:?} {b:?}");
            assert_eq!(b.fits(a), fits, "{b:?} {a:?}");
        }
    }
}
