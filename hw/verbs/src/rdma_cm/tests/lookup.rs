//! Addresses that the owner of the ids looks up.

use super::super::Network;
use super::*;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 9);

fn on_a_network() -> Opened {
    let mut opened = opened();
    opened.book = AddressBook {
        own: Ipv4Addr::new(10, 77, 1, 1),
        aliases: Vec::new(),
        gids: BTreeMap::new(),
        network: Some(Network {
            base: Ipv4Addr::new(10, 77, 0, 0),
            prefix: 16,
        }),
    };
    opened
}

impl Opened {
    fn found(&mut self, gid: Option<Gid>) {
        let mut host = CmHost {
            now: Instant::ZERO,
            port: &mut self.port,
            node_guid: Guid::new(7),
        };
        self.cm.address_found(&mut host, ADDRESS, gid);
    }

    /// Events of ids: the program's name of the id, the event and its status.
    fn events(&mut self) -> Vec<(u64, u32, i32)> {
        let next = || {
            let event = self.cm.poll_event()?;
            let record = CmEventRecord::read_from_bytes(&event.bytes).unwrap();
            let status = record.status.get().cast_signed();
            Some((record.uid.get(), record.event.get(), status))
        };
        core::iter::from_fn(next).collect()
    }
}

#[test]
fn ids_wait_for_the_gid_of_an_address_of_the_network() {
    let mut opened = on_a_network();
    let ids = [opened.create(10), opened.create(20)];
    for id in ids {
        opened.resolve(id, None, at("10.77.9.9", 1)).unwrap();
        assert_eq!(opened.cm.poll_lookup(), Some(ADDRESS));
        // One look-up at a time.
        let again = opened.resolve(id, None, at("10.77.9.8", 1));
        assert_eq!(again, Err(Errno::EINVAL));
    }
    assert_eq!((opened.events(), opened.cm.poll_lookup()), (vec![], None));
    let route = IdArgument {
        id: ids[0].into(),
        argument: 0.into(),
    };
    let too_early = opened.command(cm_command::RESOLVE_ROUTE, route.as_bytes(), 0);
    assert_eq!(too_early, Err(Errno::EINVAL));
    opened.found(Some(Gid([9; 16])));
    let resolved = |uid| (uid, cm_event::ADDR_RESOLVED, 0);
    assert_eq!(opened.events(), [resolved(10), resolved(20)]);
    // Another answer has no id that waits.
    opened.found(Some(Gid([8; 16])));
    assert_eq!(opened.events(), []);
    opened
        .command(cm_command::RESOLVE_ROUTE, route.as_bytes(), 0)
        .unwrap();
}

#[test]
fn an_address_that_no_node_answers_for_is_an_error_and_may_be_tried_again() {
    let mut opened = on_a_network();
    let id = opened.create(10);
    for _ in 0..2 {
        opened.resolve(id, None, at("10.77.9.9", 1)).unwrap();
        assert_eq!(opened.cm.poll_lookup(), Some(ADDRESS));
        opened.found(None);
        assert_eq!(opened.events(), [(10, cm_event::ADDR_ERROR, -110)]);
    }
    opened.resolve(id, None, at("10.77.255.255", 1)).unwrap();
    assert_eq!(opened.cm.poll_lookup(), None);
    assert_eq!(opened.events(), [(10, cm_event::ADDR_ERROR, -110)]);
}
