//! The names of work requests at the provider: what a completion leads back to.

use ib_wire::Qpn;
use mlx4_defs::wqe::WqeOpcode;

/// One life of a queue pair, from its first transition to its reset. Not given twice, so that a late
/// completion finds nobody rather than a stranger with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Life(u32);

impl Life {
    /// The first one. Names that start with the one below are those of shared receives.
    pub(super) const FIRST: Self = Self(1);

    /// The one after.
    pub(super) const fn next(self) -> Self {
        match self.0.wrapping_add(1) {
            0 => Self::FIRST,
            next => Self(next),
        }
    }

    /// What the names of this life's requests start with.
    pub(super) const fn name(self) -> u64 {
        (self.0 as u64) << 32
    }
}

/// Whose request a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A queue pair's.
    Life(Life),
    /// That of whichever queue pair took it from a shared queue.
    Shared(Qpn),
}

impl Owner {
    /// The owner in a request's name, and otherwise by the number in its completion.
    pub(super) fn of(name: u64, qpn: Qpn) -> Self {
        match u32::try_from(name >> 32) {
            Ok(0) | Err(_) => Self::Shared(qpn),
            Ok(life) => Self::Life(Life(life)),
        }
    }
}

/// What the name of a send tells besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendName {
    /// Running count, modulo 2^16.
    pub(super) index: u16,
    /// What it does.
    pub(super) opcode: WqeOpcode,
    /// Whether its success is to be told.
    pub(super) signaled: bool,
    /// Whether its packet has a GRH.
    pub(super) grh: bool,
}

const SIGNALED: u32 = 1 << 31;
const GRH: u32 = 1 << 30;

impl SendName {
    /// The name of a send of `life`.
    pub(super) fn name(self, life: Life) -> u64 {
        let signaled = if self.signaled { SIGNALED } else { 0 };
        let grh = if self.grh { GRH } else { 0 };
        let low = signaled | grh | u32::from(self.opcode.get()) << 16 | u32::from(self.index);
        life.name() | u64::from(low)
    }

    /// What a name tells.
    pub(super) const fn of(name: u64) -> Self {
        let [_, _, _, _, flags, opcode, high, low] = name.to_be_bytes();
        Self {
            index: u16::from_be_bytes([high, low]),
            opcode: WqeOpcode::new(opcode),
            signaled: flags & 0x80 != 0,
            grh: flags & 0x40 != 0,
        }
    }
}

/// The slot or the running count in the name of a receive.
pub(super) const fn receive_index(name: u64) -> u16 {
    let [.., high, low] = name.to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_what_it_was_made_of() {
        for (life, signaled) in [(Life::FIRST, true), (Life(u32::MAX), false)] {
            let send = SendName {
                index: 0xfffe,
                opcode: WqeOpcode::LOCAL_INVAL,
                signaled,
                grh: !signaled,
            };
            let name = send.name(life);
            assert_eq!(SendName::of(name), send);
            assert_eq!(Owner::of(name, Qpn::GSI), Owner::Life(life));
            assert_eq!(receive_index(life.name() | 0x1234), 0x1234);
        }
        assert_eq!(Owner::of(7, Qpn::GSI), Owner::Shared(Qpn::GSI));
    }

    #[test]
    fn lives_go_on_after_the_last_number() {
        assert_eq!(Life(u32::MAX).next(), Life::FIRST);
        assert_ne!(Life::FIRST.next(), Life::FIRST);
    }
}
