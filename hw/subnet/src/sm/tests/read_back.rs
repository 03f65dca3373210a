//! A sweep on demand mends tables that other senders of SMPs wrote.

use ib_wire::smp::{GuidInfo, LinearForwardingTable, MulticastForwardingTable, SmpAttribute};
use proptest::prelude::*;

use super::*;

const MLID: Lid = Lid::new(0xc003);
const ALIASES: [u64; 8] = [0x111, 0xa1, 0, 0xa3, 0, 0, 0, 0];

/// The small subnet with a group of the hosts 0 and 2, and with two aliases of host 1.
fn granted() -> World {
    let mut world = managed();
    let members = [(Guid::new(0x101), true), (Guid::new(0x121), true)];
    world.sm(0).set_group(MLID, members.into());
    let guids = ALIASES.map(Guid::new);
    world.sm(0).write_guids(Guid::new(0x111), 0, &guids);
    world.run(1);
    world
}

/// Tables as packets and ports notice them: entries that hold nothing are left out.
#[derive(Debug, PartialEq)]
struct Tables {
    routes: Vec<(usize, u32, usize, PortNum)>,
    groups: Vec<(usize, u8, u16, usize, u16)>,
    aliases: Vec<(usize, usize, Guid)>,
}

impl Tables {
    fn of(fabric: &Fabric) -> Self {
        let (mut routes, mut groups, mut aliases) = (Vec::new(), Vec::new(), Vec::new());
        for (at, node) in fabric.nodes.iter().enumerate() {
            for (block, table) in &node.lft {
                let ports = table.ports.iter().enumerate();
                let kept = ports.filter(|(_, port)| **port != LinearForwardingTable::DROP);
                routes.extend(kept.map(|(entry, port)| (at, *block, entry, *port)));
            }
            for ((position, block), table) in &node.mft {
                let masks = table.masks.iter().map(|mask| mask.get()).enumerate();
                let kept = masks.filter(|(_, mask)| *mask != 0);
                groups.extend(kept.map(|(entry, mask)| (at, *position, *block, entry, mask)));
            }
            for (port, block, table) in node.ports.iter().flat_map(|port| {
                let tables = port.guids.iter();
                tables.map(move |(block, table)| (port, *block as usize, table))
            }) {
                let first = block * GuidInfo::ENTRIES;
                let entries = (first..usize::from(port.info.guid_cap)).zip(table.guids);
                let kept = entries.filter(|(entry, guid)| *entry > 0 && !guid.is_none());
                aliases.extend(kept.map(|(entry, guid)| (at, entry, guid)));
            }
        }
        Self {
            routes,
            groups,
            aliases,
        }
    }
}

/// Sweeps on demand, and asserts that the tables are as before.
fn assert_mended(world: &mut World, before: &Tables) {
    world.sm(0).request_sweep();
    world.run(60_000);
    assert_eq!(&Tables::of(&world.fabric), before);
    world.assert_all_reachable();
}

fn lft_block(world: &mut World, switch: usize) -> &mut LinearForwardingTable {
    world.fabric.nodes[switch].lft.get_mut(&0).unwrap()
}

fn mft_block(world: &mut World, switch: usize, place: (u8, u16)) -> &mut MulticastForwardingTable {
    world.fabric.nodes[switch].mft.entry(place).or_default()
}

fn guids(world: &mut World, host: usize, block: u32) -> &mut [Guid; 8] {
    let port = world.fabric.port_mut((host, 1));
    &mut port.guids.entry(block).or_default().guids
}

#[test]
fn a_foreign_route_of_any_switch_is_rewritten() {
    let mut world = granted();
    let before = Tables::of(&world.fabric);
    for switch in [3, 4] {
        for (lid, port) in [(1, 5), (2, 255), (60, 3)] {
            lft_block(&mut world, switch).ports[lid] = PortNum(port);
        }
        assert_ne!(Tables::of(&world.fabric), before);
        assert_mended(&mut world, &before);
    }
}

#[test]
fn a_linear_table_of_another_switch_is_rewritten() {
    let mut world = granted();
    let before = Tables::of(&world.fabric);
    world.fabric.nodes[4].lft = world.fabric.nodes[3].lft.clone();
    assert_ne!(Tables::of(&world.fabric), before);
    assert_mended(&mut world, &before);
}

#[test]
fn an_emptied_multicast_table_is_filled_again() {
    let mut world = granted();
    let before = Tables::of(&world.fabric);
    for switch in [3, 4] {
        for table in world.fabric.nodes[switch].mft.values_mut() {
            *table = MulticastForwardingTable::default();
        }
    }
    assert_mended(&mut world, &before);
}

#[test]
fn a_foreign_entry_of_a_multicast_table_goes_from_blocks_with_groups_and_without() {
    let mut world = granted();
    let before = Tables::of(&world.fabric);
    for block in [0, 1, 31] {
        mft_block(&mut world, 3, (0, block)).masks[7].set(0b1110);
    }
    mft_block(&mut world, 4, (0, 0)).masks[3].set(0xffff);
    assert_mended(&mut world, &before);
}

#[test]
fn a_multicast_table_beyond_port_15_is_read_at_each_position() {
    let mut fabric = Fabric::default();
    fabric.host(0x100);
    fabric.host(0x110);
    fabric.switch(0x1000, 36);
    fabric.link((0, 1), (2, 1));
    fabric.link((1, 1), (2, 36));
    let mut world = World::new(fabric);
    world.manager(0, SubnetConfig::default());
    world.run(1);
    let members = [(Guid::new(0x101), true), (Guid::new(0x111), true)];
    world.sm(0).set_group(MLID, members.into());
    world.run(1);
    let before = Tables::of(&world.fabric);
    assert_eq!(before.groups.len(), 2);
    for (position, block) in [(0, 0), (1, 0), (2, 0), (1, 5), (2, 31)] {
        mft_block(&mut world, 2, (position, block)).masks[3].set(0b1_0001);
    }
    assert_mended(&mut world, &before);
}

#[test]
fn a_multicast_top_that_hides_groups_is_taken_away() {
    let mut world = granted();
    let info = |world: &mut World| {
        world.fabric.nodes[3]
            .switch
            .as_mut()
            .unwrap()
            .multicast_fdb_top
    };
    world.fabric.nodes[3]
        .switch
        .as_mut()
        .unwrap()
        .multicast_fdb_top = Lid::new(0xc000);
    world.sm(0).request_sweep();
    world.run(1);
    assert_eq!(info(&mut world), Lid::NONE);
}

#[test]
fn granted_aliases_are_written_again_where_they_were_overwritten_or_erased() {
    let mut world = granted();
    let before = Tables::of(&world.fabric);
    assert_eq!(before.aliases.len(), 2);
    guids(&mut world, 1, 0)[1] = Guid::new(0xbad);
    guids(&mut world, 1, 0)[3] = Guid::NONE;
    assert_mended(&mut world, &before);
}

#[test]
fn an_alias_that_was_not_granted_goes() {
    let mut world = granted();
    let before = Tables::of(&world.fabric);
    guids(&mut world, 0, 0)[2] = Guid::new(0xbad);
    guids(&mut world, 1, 3)[7] = Guid::new(0xbad);
    world
        .fabric
        .port_mut((4, 0))
        .guids
        .entry(1)
        .or_default()
        .guids[0] = Guid::new(0xbad);
    assert_mended(&mut world, &before);
}

#[test]
fn an_alias_that_was_withdrawn_does_not_come_back() {
    let mut world = granted();
    let mut left = ALIASES.map(Guid::new);
    left[1] = Guid::NONE;
    world.sm(0).write_guids(Guid::new(0x111), 0, &left);
    world.run(1);
    let before = Tables::of(&world.fabric);
    assert_eq!(before.aliases.len(), 1);
    assert_mended(&mut world, &before);
}

#[test]
fn the_aliases_of_a_port_that_left_are_not_written_to_it_when_it_returns() {
    let mut world = granted();
    world.fabric.unlink((1, 1));
    world.run(10_000);
    world.fabric.port_mut((1, 1)).guids.clear();
    world.fabric.link((1, 1), (3, 2));
    world.run(10_000);
    world.sm(0).request_sweep();
    world.run(1);
    assert_eq!(Tables::of(&world.fabric).aliases, []);
}

#[test]
fn a_sweep_that_finds_all_as_it_was_reads_tables_and_writes_nothing() {
    let mut world = granted();
    let sets = |world: &World| world.fabric.nodes.iter().map(|n| n.sets).sum::<usize>();
    let before = sets(&world);
    world.sm(0).request_sweep();
    world.run(1);
    assert_eq!(sets(&world), before);
    let asked = |world: &World, id: AttributeId| world.fabric.requests[&id.get()];
    // The Sets are among them: two of either switch's tables, one of the aliases.
    assert_eq!(asked(&world, LinearForwardingTable::ID), 2 + 2);
    assert_eq!(asked(&world, MulticastForwardingTable::ID), 2 + 2 * 32);
    assert_eq!(asked(&world, GuidInfo::ID), 1 + 5 * 4);
}

#[test]
fn a_sweep_that_a_trap_causes_reads_no_tables() {
    let mut world = granted();
    let before = world.fabric.requests.clone();
    world.trap(0, 4, TrapNumber::LINK_STATE_CHANGED);
    world.run(1);
    assert_eq!(world.sm(0).stats().heavy_sweeps, 2);
    for id in [
        LinearForwardingTable::ID,
        MulticastForwardingTable::ID,
        GuidInfo::ID,
    ] {
        assert_eq!(world.fabric.requests[&id.get()], before[&id.get()]);
    }
}

#[test]
fn a_switch_that_does_not_answer_delays_the_rest_and_is_read_by_a_later_sweep() {
    let mut world = granted();
    let before = Tables::of(&world.fabric);
    for switch in [3, 4] {
        lft_block(&mut world, switch).ports[3] = PortNum(5);
        mft_block(&mut world, switch, (0, 9)).masks[0].set(0b10);
    }
    guids(&mut world, 1, 0)[1] = Guid::NONE;
    for attribute in [LinearForwardingTable::ID, MulticastForwardingTable::ID] {
        world.fabric.losses.insert((3, attribute.get()), u32::MAX);
    }
    world.sm(0).request_sweep();
    world.run(2_000);
    let wrong = Tables::of(&world.fabric);
    assert_eq!(wrong.aliases, before.aliases);
    assert!(
        wrong
            .routes
            .iter()
            .all(|route| route.0 == 3 || before.routes.contains(route))
    );
    assert!(
        wrong
            .groups
            .iter()
            .all(|group| group.0 == 3 || before.groups.contains(group))
    );
    assert_ne!(
        (&wrong.routes, &wrong.groups),
        (&before.routes, &before.groups)
    );
    world.fabric.losses.clear();
    world.run(20_000);
    assert_eq!(Tables::of(&world.fabric), before);
}

#[test]
fn a_set_of_guids_that_got_lost_for_good_is_made_up_for() {
    let mut world = granted();
    world.fabric.losses.insert((0, GuidInfo::ID.get()), 4);
    let wanted = [0x101, 9, 0, 0, 0, 0, 0, 0].map(Guid::new);
    world.sm(0).write_guids(Guid::new(0x101), 0, &wanted);
    world.run(1_000);
    assert_eq!(world.fabric.port((0, 1)).guids.get(&0), None);
    world.run(20_000);
    assert_eq!(world.fabric.port((0, 1)).guids[&0].guids, wanted);
}

#[test]
fn a_set_of_guids_that_is_overtaken_by_its_successor_does_not_win() {
    let mut world = granted();
    world.fabric.losses.insert((0, GuidInfo::ID.get()), 1);
    for alias in [8, 9] {
        let wanted = [0x101, alias, 0, 0, 0, 0, 0, 0].map(Guid::new);
        world.sm(0).write_guids(Guid::new(0x101), 0, &wanted);
    }
    world.run(1_000);
    assert_eq!(world.fabric.port((0, 1)).guids[&0].guids[1], Guid::new(9));
}

#[test]
fn a_route_that_comes_after_its_successor_is_mended_without_being_asked() {
    let mut world = granted();
    let late = world.fabric.nodes[4].lft.clone();
    let host = world.fabric.host(0x150);
    world.fabric.link((host, 1), (4, 5));
    world
        .fabric
        .losses
        .insert((4, LinearForwardingTable::ID.get()), 4);
    // The first sweep has no answer to its write, and the second one writes the same.
    for _ in 0..2 {
        world.trap(0, 4, TrapNumber::LINK_STATE_CHANGED);
        world.run(2_000);
    }
    let after = Tables::of(&world.fabric);
    // An older write was slow, and arrives now.
    let routes = core::mem::replace(&mut world.fabric.nodes[4].lft, late);
    assert_ne!(world.fabric.nodes[4].lft, routes);
    world.run(1);
    assert_ne!(Tables::of(&world.fabric), after);
    world.run(15_000);
    assert_eq!(Tables::of(&world.fabric), after);
    world.assert_all_reachable();
}

/// A write of another sender of SMPs.
#[derive(Clone, Debug)]
enum Foreign {
    Route {
        switch: usize,
        lid: usize,
        port: u8,
    },
    Group {
        switch: usize,
        block: u16,
        entry: usize,
        ports: u16,
    },
    Alias {
        host: usize,
        entry: usize,
        guid: u64,
    },
}

fn foreign() -> impl Strategy<Value = Foreign> {
    prop_oneof![
        (3..5_usize, 0..64_usize, any::<u8>()).prop_map(|(switch, lid, port)| Foreign::Route {
            switch,
            lid,
            port
        }),
        (3..5_usize, 0..32_u16, 0..32_usize, any::<u16>()).prop_map(
            |(switch, block, entry, ports)| Foreign::Group {
                switch,
                block,
                entry,
                ports
            }
        ),
        (0..3_usize, 1..32_usize, 0..4_u64).prop_map(|(host, entry, guid)| Foreign::Alias {
            host,
            entry,
            guid
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_others_wrote_and_whatever_gets_lost_a_sweep_mends_the_tables(
        writes in prop::collection::vec(foreign(), 0..20),
        losses in prop::collection::btree_map((0..5_usize, prop::sample::select(vec![0x14_u16, 0x19, 0x1b])), 0..12_u32, 0..6),
    ) {
        let mut world = granted();
        let before = Tables::of(&world.fabric);
        for write in writes {
            match write {
                Foreign::Route { switch, lid, port } => {
                    lft_block(&mut world, switch).ports[lid] = PortNum(port);
                }
                Foreign::Group { switch, block, entry, ports } => {
                    let existing = (1 << 9) - 1;
                    mft_block(&mut world, switch, (0, block)).masks[entry].set(ports & existing);
                }
                Foreign::Alias { host, entry, guid } => {
                    let block = u32::try_from(entry / 8).unwrap();
                    guids(&mut world, host, block)[entry % 8] = Guid::new(guid);
                }
            }
        }
        world.fabric.losses = losses;
        assert_mended(&mut world, &before);
    }
}
