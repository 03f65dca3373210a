//! Sets of virtual lanes.

use ib_wire::Vl;

/// A set of virtual lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes(u16);

impl Lanes {
    /// All lanes, VL15 included.
    pub const ALL: Self = Self(u16::MAX);

    /// Returns `true` if a lane is in the set.
    #[must_use]
    pub const fn contains(self, lane: Vl) -> bool {
        self.0 & Self::bit(lane) != 0
    }

    /// Puts a lane in, or takes it out.
    pub(crate) const fn set(&mut self, lane: Vl, is_in: bool) {
        if is_in {
            self.0 |= Self::bit(lane);
        } else {
            self.0 &= !Self::bit(lane);
        }
    }

    /// Returns the lanes that are in this set and not in the other.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the lanes that are not in the set.
    pub(crate) const fn others(self) -> Self {
        Self(!self.0)
    }

    const fn bit(lane: Vl) -> u16 {
        1 << lane.get()
    }
}

impl FromIterator<Vl> for Lanes {
    fn from_iter<I: IntoIterator<Item = Vl>>(lanes: I) -> Self {
        Self(
            lanes
                .into_iter()
                .map(Self::bit)
                .fold(0, |all, bit| all | bit),
        )
    }
}
