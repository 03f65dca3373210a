//! Whose a request is that came from the wire with a global route.

use std::collections::BTreeMap;

use ib_wire::{Gid, Guid, SubnetPrefix};
use vf_tunnel::{DropReason, VfId};

/// To whom something on this port belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The PF's own software.
    Pf,
    /// A VF.
    Vf(VfId),
}

/// The interface id by which the SA can be addressed on every subnet (IBA 4.1.1, well-known GID
/// suffix).
pub const SA_WELL_KNOWN: Guid = Guid::new(0x0200_0000_0000_0002);

/// The GUIDs of one port and their owners.
///
/// Holds only GUIDs that are in hardware: a VF without one is not in the table, so no interface id,
/// least of all zero, can find it.
#[derive(Clone, Debug)]
pub struct GidTable {
    prefix: SubnetPrefix,
    owners: BTreeMap<Guid, Owner>,
}

impl GidTable {
    /// The table of a port that has nothing but its own GUID.
    #[must_use]
    pub fn new(prefix: SubnetPrefix, port_guid: Guid) -> Self {
        let mut table = Self {
            prefix,
            owners: BTreeMap::new(),
        };
        if !port_guid.is_none() {
            table.owners.insert(port_guid, Owner::Pf);
        }
        table
    }

    /// The prefix that the SM gave the subnet.
    #[must_use]
    pub const fn prefix(&self) -> SubnetPrefix {
        self.prefix
    }

    /// Takes over a new prefix.
    pub const fn set_prefix(&mut self, prefix: SubnetPrefix) {
        self.prefix = prefix;
    }

    /// Gives a VF its GUID, or takes it away with `None`. The VF's former GUID is forgotten.
    ///
    /// Refuses, and gives `false` with nothing changed, a GUID that somebody else owns or that is
    /// zero or the SA's.
    #[must_use]
    pub fn assign(&mut self, vf: VfId, guid: Option<Guid>) -> bool {
        let owner = Owner::Vf(vf);
        if let Some(guid) = guid {
            let taken = self.owners.get(&guid).is_some_and(|&other| other != owner);
            if taken || guid.is_none() || guid == SA_WELL_KNOWN {
                return false;
            }
        }
        self.owners.retain(|_, other| *other != owner);
        if let Some(guid) = guid {
            self.owners.insert(guid, owner);
        }
        true
    }

    /// The GUIDs with their owners, in the order of the GUIDs.
    pub fn iter(&self) -> impl Iterator<Item = (Guid, Owner)> {
        self.owners.iter().map(|(&guid, &owner)| (guid, owner))
    }

    /// The owner of a destination GID.
    ///
    /// The subnet's prefix and the link-local one both name this subnet (IBA 4.1.1).
    ///
    /// # Errors
    /// [`DropReason::UnknownGid`], or [`DropReason::BadPrefix`] for a GUID of ours under a foreign
    /// prefix.
    pub fn owner(&self, gid: Gid) -> Result<Owner, DropReason> {
        let guid = gid.interface_id();
        let ours = gid.prefix() == self.prefix || gid.prefix() == SubnetPrefix::DEFAULT;
        let owner = match self.owners.get(&guid) {
            Some(&owner) => owner,
            None if guid == SA_WELL_KNOWN => Owner::Pf,
            None => return Err(DropReason::UnknownGid),
        };
        if ours {
            Ok(owner)
        } else {
            Err(DropReason::BadPrefix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: SubnetPrefix = SubnetPrefix::new(0xfec0_0000_0000_0001);
    const PORT_GUID: Guid = Guid::new(0x0002_c903_0000_0001);

    fn vf(n: u16) -> VfId {
        VfId::new(n).unwrap()
    }

    fn guid(n: u64) -> Guid {
        Guid::new(0x0014_0500_0000_0000 + n)
    }

    fn table() -> GidTable {
        let mut table = GidTable::new(PREFIX, PORT_GUID);
        assert!(table.assign(vf(1), Some(guid(1))));
        assert!(table.assign(vf(2), Some(guid(2))));
        table
    }

    #[test]
    fn c059_a_vf_owns_its_gid_under_the_subnets_prefix_and_link_local() {
        let table = table();
        assert_eq!(
            table.owner(Gid::from_parts(PREFIX, guid(2))),
            Ok(Owner::Vf(vf(2)))
        );
        assert_eq!(
            table.owner(Gid::from_parts(SubnetPrefix::DEFAULT, guid(1))),
            Ok(Owner::Vf(vf(1)))
        );
        assert_eq!(
            table.owner(Gid::from_parts(PREFIX, PORT_GUID)),
            Ok(Owner::Pf)
        );
    }

    #[test]
    fn c060_a_foreign_prefix_is_dropped() {
        let foreign = SubnetPrefix::new(0xfec0_0000_0000_0002);
        assert_eq!(
            table().owner(Gid::from_parts(foreign, guid(1))),
            Err(DropReason::BadPrefix)
        );
    }

    #[test]
    fn c061_the_sas_well_known_gid_is_the_pfs() {
        assert_eq!(
            table().owner(Gid::from_parts(PREFIX, SA_WELL_KNOWN)),
            Ok(Owner::Pf)
        );
    }

    #[test]
    fn c062_interface_id_zero_is_nobodys_even_with_vfs_without_guid() {
        let mut table = table();
        assert!(table.assign(vf(1), None));
        assert!(!table.assign(vf(3), Some(Guid::NONE)));
        assert_eq!(
            table.owner(Gid::from_parts(PREFIX, Guid::NONE)),
            Err(DropReason::UnknownGid)
        );
    }

    #[test]
    fn c063_an_unknown_gid_is_dropped() {
        assert_eq!(
            table().owner(Gid::from_parts(PREFIX, guid(9))),
            Err(DropReason::UnknownGid)
        );
    }

    #[test]
    fn c165_a_guid_that_another_vf_has_is_refused() {
        let mut table = table();
        assert!(!table.assign(vf(3), Some(guid(1))));
        assert!(!table.assign(vf(3), Some(PORT_GUID)));
        assert_eq!(
            table.owner(Gid::from_parts(PREFIX, guid(1))),
            Ok(Owner::Vf(vf(1)))
        );
    }

    #[test]
    fn a_new_guid_replaces_the_old_one() {
        let mut table = table();
        assert!(table.assign(vf(1), Some(guid(7))));
        assert_eq!(
            table.owner(Gid::from_parts(PREFIX, guid(1))),
            Err(DropReason::UnknownGid)
        );
        assert_eq!(
            table.owner(Gid::from_parts(PREFIX, guid(7))),
            Ok(Owner::Vf(vf(1)))
        );
    }

    #[test]
    fn a_new_prefix_takes_effect_at_once() {
        let mut table = table();
        let new = SubnetPrefix::new(0xfec0_0000_0000_0009);
        table.set_prefix(new);
        assert_eq!(
            table.owner(Gid::from_parts(new, guid(1))),
            Ok(Owner::Vf(vf(1)))
        );
        assert_eq!(
            table.owner(Gid::from_parts(PREFIX, guid(1))),
            Err(DropReason::BadPrefix)
        );
    }
}
