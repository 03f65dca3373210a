//! LMCs of a subnet's ports, which say what LIDs are one port's.

use alloc::collections::BTreeMap;

use ib_wire::{Lid, Lmc};

/// LMCs of the ports of a subnet, as far as the PF knows them: of its own port, and of others what the SA said. Bounded by
/// the ports of the subnet.
#[derive(Clone, Debug, Default)]
pub struct SubnetLmcs {
    /// LMC of the PF's own port, taken for that of ports of which nothing was said.
    own: Lmc,
    /// By base LID. No two ranges overlap.
    said: BTreeMap<Lid, Lmc>,
}

impl SubnetLmcs {
    /// Sets the LMC of the PF's own port.
    pub const fn set_own(&mut self, lmc: Lmc) {
        self.own = lmc;
    }

    /// Takes note of what the SA said of a port. An LMC that does not fit the base LID is ignored (IBA 4.1.3: its low LMC
    /// bits are 0).
    pub fn learn(&mut self, base: Lid, lmc: Lmc) {
        if !base.is_unicast() || base != lmc.base(base) {
            return;
        }
        let last = Lid::new(base.get() | lmc.mask());
        // An older entry whose LIDs overlap is out of date.
        let first = self.port_with(base).map_or(base, |(base, _)| base);
        let stale: alloc::vec::Vec<Lid> =
            self.said.range(first..=last).map(|(lid, _)| *lid).collect();
        for lid in stale {
            self.said.remove(&lid);
        }
        self.said.insert(base, lmc);
    }

    /// Forgets the LMCs of other ports, because LIDs may have changed.
    pub fn forget(&mut self) {
        self.said.clear();
    }

    /// Returns the LMC of the port that has a LID.
    #[must_use]
    pub fn of(&self, lid: Lid) -> Lmc {
        self.port_with(lid).map_or(self.own, |(_, lmc)| lmc)
    }

    /// Returns `true` if an answer to a request to `asked` may come from `from`: that LID, or the base LID of its port,
    /// from which adapters shared among VFs answer all requests, since their VFs do not learn
    /// (`mlx4_ib_send_to_slave`).
    #[must_use]
    pub fn may_answer(&self, asked: Lid, from: Lid) -> bool {
        from == asked || from == self.of(asked).base(asked)
    }

    /// Returns `true` if two LIDs are one port's.
    #[must_use]
    pub fn are_one_ports(&self, one: Lid, other: Lid) -> bool {
        one == other || self.of(one).is_same_port(one, other)
    }

    /// Returns the base LID and LMC of the port of which the SA said that it has a LID.
    fn port_with(&self, lid: Lid) -> Option<(Lid, Lmc)> {
        let (&base, &lmc) = self.said.range(..=lid).next_back()?;
        lmc.is_same_port(base, lid).then_some((base, lmc))
    }
}

#[cfg(test)]
mod tests;
