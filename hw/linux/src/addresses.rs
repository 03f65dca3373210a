//! Addresses of a RoCE port: entries of the kernel's GID table, which are addresses of a netdev.
//!
//! The function has a table of its own. Its entry 0 is the port's, the others are given out by the [local SA](crate::local_sa). All
//! have one prefix: that of IPv4 addresses (`::ffff:a.b.c.d`), or of a subnet of IPv6.

use std::collections::BTreeMap;

use hca_api::{AddressVector, GlobalRoute};
use ib_endpoint::MadAddress;
use ib_wire::{Gid, GidIndex, Guid, Lid, SubnetPrefix};
use linux_abi::sysfs::Port;

/// LID of this port. RoCE has none, and nothing on the wire carries these: by them the software above knows the SA and ports.
pub(crate) const OWN_LID: Lid = Lid::new(1);

/// LID of every other port.
pub(crate) const PEER_LID: Lid = Lid::new(2);

/// LID of the local SA.
pub(crate) const SA_LID: Lid = Lid::new(3);

/// Entries of the kernel's table that umad and address handles can name: they have eight bits for it.
pub(crate) const ENTRIES: usize = 256;

/// Entries of the function's table: PortInfo:GUIDCap has eight bits (IBA 14.2.5.6).
const OWN_ENTRIES: usize = u8::MAX as usize;

/// The addresses of a port.
#[derive(Debug)]
pub(crate) struct Addresses {
    prefix: SubnetPrefix,
    /// Entries of the kernel's table, by the interface identifiers of the prefix.
    found: BTreeMap<Guid, u16>,
    /// Interface identifiers by entries of the function's table, zero for none.
    given: Vec<Guid>,
}

impl Addresses {
    /// Chooses the prefix that most usable entries of a port have, and of equally many one that reaches further than the link.
    /// Returns `None` if there is no usable entry.
    pub(crate) fn new(port: &Port, is_usable: &dyn Fn(usize) -> bool) -> Option<Self> {
        let mut numbers: BTreeMap<SubnetPrefix, usize> = BTreeMap::new();
        for (_, gid) in usable(port, is_usable) {
            *numbers.entry(gid.prefix()).or_default() += 1;
        }
        let best = |(prefix, number): &(SubnetPrefix, usize)| {
            let is_far = *prefix != SubnetPrefix::DEFAULT;
            (*number, is_far)
        };
        let (prefix, _) = numbers.into_iter().max_by_key(best)?;
        let first = usable(port, is_usable).find(|(_, gid)| gid.prefix() == prefix)?;
        let mut given = vec![Guid::NONE; OWN_ENTRIES];
        given[0] = first.1.interface_id();
        Some(Self {
            prefix,
            found: BTreeMap::new(),
            given,
        })
    }

    /// Takes note of the entries that a port has now, and shows the function's table and LIDs in it instead.
    pub(crate) fn show(&mut self, port: &mut Port, is_usable: &dyn Fn(usize) -> bool) {
        self.found.clear();
        for (index, gid) in usable(port, is_usable) {
            if gid.prefix() == self.prefix {
                self.found.entry(gid.interface_id()).or_insert(index);
            }
        }
        (port.lid, port.sm_lid) = (OWN_LID, SA_LID);
        let shown = self.given.iter().map(|guid| self.shown(*guid));
        port.gids = shown.collect();
    }

    /// Returns the GID of an identifier as long as the netdev has the address.
    fn shown(&self, guid: Guid) -> Gid {
        match self.found.contains_key(&guid) {
            true => Gid::from_parts(self.prefix, guid),
            false => Gid::NONE,
        }
    }

    /// Assigns an address to an entry of the function's table, instead of the one that it has: the address of an identifier, or any
    /// that no entry has if the identifier is zero. Returns the identifier; `None` if there is no such address, or another entry has it.
    pub(crate) fn give(&mut self, entry: usize, wanted: Guid) -> Option<Guid> {
        if entry == 0 || entry >= self.given.len() {
            return None;
        }
        let is_free = |guid: &Guid| !self.given.contains(guid);
        let own = self.given[entry];
        let guid = match wanted {
            Guid::NONE if self.found.contains_key(&own) => own,
            // In the order of the kernel's table.
            Guid::NONE => {
                let free = self.found.iter().filter(|(guid, _)| is_free(guid));
                *free.min_by_key(|(_, index)| **index)?.0
            }
            wanted if wanted == own || is_free(&wanted) => wanted,
            _ => return None,
        };
        self.found.get(&guid)?;
        self.given[entry] = guid;
        Some(guid)
    }

    /// Takes the address of an entry of the function's table back.
    pub(crate) fn take_back(&mut self, entry: usize) {
        if let Some(given) = self.given.get_mut(entry).filter(|_| entry != 0) {
            *given = Guid::NONE;
        }
    }

    /// Returns the identifier of an entry of the function's table, zero for none.
    pub(crate) fn guid(&self, entry: usize) -> Guid {
        self.given.get(entry).copied().unwrap_or(Guid::NONE)
    }

    /// Returns `true` for the address of an entry of the function's table.
    pub(crate) fn is_own(&self, gid: Gid) -> bool {
        !gid.is_none() && gid == self.shown(gid.interface_id()) && self.entry_of(gid).is_some()
    }

    fn entry_of(&self, gid: Gid) -> Option<usize> {
        let guid = gid.interface_id();
        self.given.iter().position(|given| *given == guid)
    }

    /// Returns a route by the kernel's table instead of the function's. `None` if the entry has no address.
    pub(crate) fn host_route(&self, route: &GlobalRoute) -> Option<GlobalRoute> {
        let guid = self.given.get(usize::from(route.sgid_index.0))?;
        let sgid_index = GidIndex(*self.found.get(guid)?);
        Some(GlobalRoute {
            sgid_index,
            ..*route
        })
    }

    /// Returns a route by the function's table instead of the kernel's. `None` if no entry has the address.
    pub(crate) fn own_route(&self, route: &GlobalRoute) -> Option<GlobalRoute> {
        let mut found = self.found.iter();
        let (guid, _) = found.find(|(_, index)| **index == route.sgid_index.0)?;
        let entry = self.given.iter().position(|given| given == guid)?;
        Some(GlobalRoute {
            sgid_index: GidIndex(u16::try_from(entry).ok()?),
            ..*route
        })
    }

    /// Returns an address for the kernel. `None` without a route, which RoCE cannot do without.
    pub(crate) fn host_vector(&self, vector: &AddressVector) -> Option<AddressVector> {
        Some(AddressVector {
            grh: Some(self.host_route(vector.grh.as_ref()?)?),
            ..*vector
        })
    }

    /// Returns the sender of a MAD that the kernel gave, as the software above sees it. `None` for a MAD to an address that no entry has.
    pub(crate) fn sender(&self, from: &MadAddress) -> Option<MadAddress> {
        let route = self.own_route(from.grh.as_ref()?)?;
        Some(MadAddress {
            lid: self.lid_of(route.remote_gid),
            path_bits: 0,
            grh: Some(route),
            ..*from
        })
    }

    /// Returns the LID by which the software above knows the port of an address.
    pub(crate) fn lid_of(&self, gid: Gid) -> Lid {
        match self.is_own(gid) {
            true => OWN_LID,
            false => PEER_LID,
        }
    }
}

/// Returns the entries of a port's table that are addresses.
fn usable<'a>(
    port: &'a Port,
    is_usable: &'a dyn Fn(usize) -> bool,
) -> impl Iterator<Item = (u16, Gid)> {
    let entries = (0..).zip(port.gids.iter().copied()).take(ENTRIES);
    entries.filter(|(index, gid)| !gid.is_none() && is_usable(usize::from(*index)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// A port with the link's own address, and addresses of IPv4 of which 10.0.0.2 has an entry for each version of RoCE.
    fn port() -> Port {
        let mut port = testing::port();
        let link = Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(0x5054_00ff_fe00_0001));
        port.gids = vec![link, ipv4(1), Gid::NONE, ipv4(2), ipv4(2), ipv4(3)];
        port
    }

    fn ipv4(last: u64) -> Gid {
        Gid::from_parts(SubnetPrefix::new(0), guid(last))
    }

    fn guid(last: u64) -> Guid {
        Guid::new(0xffff_0a00_0000 | last)
    }

    /// Entry 3 is of the older version.
    fn is_usable(index: usize) -> bool {
        index != 3
    }

    fn addresses() -> (Addresses, Port) {
        let mut port = port();
        let mut addresses = Addresses::new(&port, &is_usable).unwrap();
        addresses.show(&mut port, &is_usable);
        (addresses, port)
    }

    #[test]
    fn the_prefix_is_that_of_most_addresses_and_of_equally_many_not_the_links() {
        let (_, shown) = addresses();
        assert_eq!(shown.gids[..2], [ipv4(1), Gid::NONE]);
        assert_eq!((shown.lid, shown.sm_lid), (OWN_LID, SA_LID));
        let mut port = port();
        port.gids.truncate(2);
        let equal = Addresses::new(&port, &|_| true).unwrap();
        assert_eq!(equal.guid(0), guid(1));
        port.gids.truncate(1);
        let link = Addresses::new(&port, &|_| true).unwrap();
        assert_eq!(link.prefix, SubnetPrefix::DEFAULT);
        assert!(Addresses::new(&port, &|_| false).is_none());
    }

    #[test]
    fn an_address_is_given_to_one_entry_and_shown_as_long_as_the_netdev_has_it() {
        let (mut addresses, _) = addresses();
        assert_eq!(addresses.give(1, Guid::NONE), Some(guid(2)));
        assert_eq!(addresses.give(1, Guid::NONE), Some(guid(2)), "kept");
        for refused in [guid(1), guid(2), guid(4)] {
            assert_eq!(addresses.give(2, refused), None);
        }
        assert_eq!(addresses.give(2, guid(3)), Some(guid(3)));
        assert_eq!(addresses.give(3, Guid::NONE), None, "all are given out");
        assert_eq!(addresses.give(0, Guid::NONE), None, "the port's own");
        assert_eq!(addresses.give(OWN_ENTRIES, Guid::NONE), None);
        let mut without = port();
        without.gids.truncate(5);
        addresses.show(&mut without, &is_usable);
        assert_eq!(without.gids[..3], [ipv4(1), ipv4(2), Gid::NONE]);
        addresses.take_back(1);
        assert_eq!(addresses.give(3, Guid::NONE), Some(guid(2)));
    }

    #[test]
    fn routes_change_between_the_tables_if_their_entries_have_addresses() {
        let (mut addresses, _) = addresses();
        addresses.give(1, guid(3));
        let route = |index| GlobalRoute {
            remote_gid: ipv4(9),
            sgid_index: GidIndex(index),
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
        };
        assert_eq!(addresses.host_route(&route(1)), Some(route(5)));
        assert_eq!(addresses.own_route(&route(5)), Some(route(1)));
        for empty in [2, 300] {
            assert_eq!(addresses.host_route(&route(empty)), None);
        }
        for empty in [0, 3, 4] {
            assert_eq!(addresses.own_route(&route(empty)), None);
        }
        let mut from = MadAddress::gsi(Lid::NONE);
        assert_eq!(addresses.sender(&from), None);
        from.grh = Some(route(5));
        assert_eq!(addresses.sender(&from).unwrap().lid, PEER_LID);
        from.grh.as_mut().unwrap().remote_gid = ipv4(1);
        assert_eq!(addresses.sender(&from).unwrap().lid, OWN_LID);
    }
}
