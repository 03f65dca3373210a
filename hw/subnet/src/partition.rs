//! Which ports belong to which partitions, and the P_Key tables that follow.

use std::collections::BTreeMap;

use ib_wire::{Guid, PKey, QKey, Sl};

/// How a port belongs to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Membership {
    /// Talks to full members only.
    Limited,
    /// Talks to all members.
    Full,
}

/// Directions in which a switch port checks P_Keys; OpenSM's `part_enforce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionEnforcement {
    /// Packets that enter the switch.
    pub inbound: bool,
    /// Packets that leave the switch.
    pub outbound: bool,
}

impl PartitionEnforcement {
    /// No packets.
    pub const OFF: Self = Self {
        inbound: false,
        outbound: false,
    };
    /// Packets that enter the switch.
    pub const INBOUND: Self = Self {
        inbound: true,
        outbound: false,
    };
    /// Packets that leave the switch.
    pub const OUTBOUND: Self = Self {
        inbound: false,
        outbound: true,
    };
    /// All packets.
    pub const BOTH: Self = Self {
        inbound: true,
        outbound: true,
    };
}

/// The IPoIB broadcast group that the SA creates for a partition in advance (RFC 4391).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpoibBroadcast {
    /// The group's Q_Key; OpenSM's default is 0x0b1b.
    pub qkey: QKey,
    /// MTU code of the group.
    pub mtu: ib_wire::Mtu,
    /// Rate code of the group.
    pub rate: ib_wire::Rate,
}

impl Default for IpoibBroadcast {
    /// What OpenSM creates without further configuration: Q_Key 0x0b1b, 2048 bytes, 10 Gb/s.
    fn default() -> Self {
        Self {
            qkey: QKey::new(0x0b1b),
            mtu: ib_wire::Mtu::MTU_2048,
            rate: ib_wire::Rate::GBPS_10,
        }
    }
}

/// A partition and its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The partition: the membership bit is ignored.
    pub pkey: PKey,
    /// Service level of paths within the partition.
    pub sl: Sl,
    /// Membership of ports that are not listed; `None` leaves them out.
    pub others: Option<Membership>,
    /// Membership by port GUID.
    pub members: BTreeMap<Guid, Membership>,
    /// The IPoIB broadcast group to create, if any.
    pub ipoib: Option<IpoibBroadcast>,
}

impl Partition {
    /// The default partition, of which every port is a full member, with its IPoIB broadcast group.
    #[must_use]
    pub fn default_full() -> Self {
        Self {
            pkey: PKey::DEFAULT_FULL,
            sl: Sl::default(),
            others: Some(Membership::Full),
            members: BTreeMap::new(),
            ipoib: Some(IpoibBroadcast::default()),
        }
    }

    /// The key that the port's table must hold, if the port is a member.
    #[must_use]
    pub fn pkey_of(&self, port: Guid) -> Option<PKey> {
        let membership = self.members.get(&port).copied().or(self.others)?;
        Some(match membership {
            Membership::Full => PKey::new(self.pkey.base() | 0x8000),
            Membership::Limited => PKey::new(self.pkey.base()),
        })
    }
}

/// All partitions of the subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions(Vec<Partition>);

impl Default for Partitions {
    fn default() -> Self {
        Self(vec![Partition::default_full()])
    }
}

impl Partitions {
    /// The given partitions, in their order of precedence for table entries. Of partitions with the
    /// same key only the first counts; partition 0 is invalid and ignored.
    #[must_use]
    pub fn new(partitions: impl IntoIterator<Item = Partition>) -> Self {
        let mut all: Vec<Partition> = Vec::new();
        for partition in partitions {
            let base = partition.pkey.base();
            if partition.pkey.is_valid() && all.iter().all(|p| p.pkey.base() != base) {
                all.push(partition);
            }
        }
        Self(all)
    }

    /// The partition of a key, whatever its membership bit.
    #[must_use]
    pub fn get(&self, pkey: PKey) -> Option<&Partition> {
        self.0.iter().find(|p| p.pkey.base() == pkey.base())
    }

    /// All partitions.
    pub fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.0.iter()
    }

    /// The P_Key table that a port should hold, given what it holds now.
    ///
    /// As in OpenSM: the default partition stands at index 0, keys that stay keep their index (QPs
    /// refer to it), new ones fill the first free entries and the rest is cleared. Keys that find no
    /// room are left out.
    #[must_use]
    pub fn table(&self, port: Guid, current: &[PKey]) -> Vec<PKey> {
        let mut missing: Vec<PKey> = self.0.iter().filter_map(|p| p.pkey_of(port)).collect();
        let mut table = vec![PKey::INVALID; current.len()];
        if let Some(default) = missing
            .iter()
            .position(|k| k.base() == PKey::DEFAULT_FULL.base())
        {
            let default = missing.remove(default);
            if let Some(first) = table.first_mut() {
                *first = default;
            }
        }
        for (slot, held) in table.iter_mut().zip(current) {
            if let Some(at) = missing.iter().position(|k| k == held)
                && !slot.is_valid()
            {
                *slot = missing.remove(at);
            }
        }
        let free = table.iter_mut().filter(|slot| !slot.is_valid());
        for (slot, key) in free.zip(missing) {
            *slot = key;
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Guid = Guid::new(1);

    fn partition(pkey: u16, others: Option<Membership>) -> Partition {
        Partition {
            pkey: PKey::new(pkey),
            others,
            ipoib: None,
            ..Partition::default_full()
        }
    }

    fn keys(values: &[u16]) -> Vec<PKey> {
        values.iter().copied().map(PKey::new).collect()
    }

    #[test]
    fn an_empty_table_gets_the_default_key_first() {
        let partitions = Partitions::new([
            partition(0x10, Some(Membership::Limited)),
            partition(0x7fff, Some(Membership::Full)),
        ]);
        assert_eq!(
            partitions.table(PORT, &keys(&[0, 0, 0])),
            keys(&[0xffff, 0x0010, 0])
        );
    }

    #[test]
    fn keys_that_stay_keep_their_index_and_stale_ones_go() {
        let partitions = Partitions::new([
            partition(0x7fff, Some(Membership::Full)),
            partition(0x10, Some(Membership::Full)),
            partition(0x20, Some(Membership::Full)),
        ]);
        let current = keys(&[0x8020, 0x8030, 0x8010]);
        assert_eq!(
            partitions.table(PORT, &current),
            keys(&[0xffff, 0x8020, 0x8010])
        );
    }

    #[test]
    fn a_listed_membership_overrides_that_of_the_others() {
        let mut tenant = partition(0x7fff, Some(Membership::Limited));
        tenant.members.insert(PORT, Membership::Full);
        assert_eq!(tenant.pkey_of(PORT), Some(PKey::DEFAULT_FULL));
        assert_eq!(tenant.pkey_of(Guid::new(2)), Some(PKey::DEFAULT_LIMITED));
        assert_eq!(partition(0x10, None).pkey_of(PORT), None);
    }

    #[test]
    fn a_table_that_is_too_small_holds_what_fits() {
        let partitions = Partitions::new([
            partition(1, Some(Membership::Full)),
            partition(2, Some(Membership::Full)),
        ]);
        assert_eq!(partitions.table(PORT, &keys(&[0])), keys(&[0x8001]));
        assert!(partitions.table(PORT, &[]).is_empty());
    }

    #[test]
    fn doubled_and_invalid_partitions_are_ignored() {
        let partitions = Partitions::new([
            partition(0x8000, None),
            partition(5, None),
            partition(0x8005, None),
        ]);
        assert_eq!(partitions.iter().count(), 1);
        assert!(partitions.get(PKey::new(0x8005)).is_some());
    }
}
