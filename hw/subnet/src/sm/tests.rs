//! Managers on a fabric whose agents answer at once.

use ib_endpoint::MadAddress;
use ib_vtime::Duration;
use ib_wire::mad::{AttributeId, AttributeModifier, MadHeader, Method, MgmtClass};
use ib_wire::notice::{LinkStateDetails, Notice, NoticeType, ProducerType, TrapNumber};
use ib_wire::smp::{LidRoutedSmp, PortState};
use ib_wire::{Lmc, PKey, Tid};

use super::*;
use crate::partition::{Membership, Partition, PartitionEnforcement, Partitions};
use crate::testing::{Fabric, Outcome, small};

mod control;
mod marks;
mod read_back;

/// Managers, the hosts they sit on, and the fabric.
struct World {
    fabric: Fabric,
    managers: Vec<(usize, Sm)>,
    now: Instant,
    answered: Vec<Mad>,
}

impl World {
    fn new(fabric: Fabric) -> Self {
        Self {
            fabric,
            managers: Vec::new(),
            now: Instant::ZERO,
            answered: Vec::new(),
        }
    }

    fn manager(&mut self, host: usize, config: SubnetConfig) -> usize {
        let capability = &mut self.fabric.port_mut((host, 1)).info.capability_mask;
        *capability = *capability | ib_wire::smp::CapabilityMask::IS_SM;
        let guid = self.fabric.nodes[host].info.port_guid;
        let seed = 1000 * (self.managers.len() as u64 + 1);
        self.managers
            .push((host, Sm::new(config, PortNum(1), guid, seed)));
        self.managers.len() - 1
    }

    fn sm(&mut self, index: usize) -> &mut Sm {
        &mut self.managers[index].1
    }

    /// Carries SMPs until nobody has anything to send.
    fn exchange(&mut self) {
        let mut busy = true;
        while busy {
            busy = false;
            for index in 0..self.managers.len() {
                while let Some(sent) = self.managers[index].1.poll_transmit(self.now) {
                    busy = true;
                    self.carry(index, sent);
                }
            }
        }
    }

    fn carry(&mut self, index: usize, sent: Transmit) {
        let (host, now) = (self.managers[index].0, self.now);
        if sent.to.lid != Lid::PERMISSIVE {
            let from = MadAddress::smi(self.fabric.lid(host));
            for other in 0..self.managers.len() {
                if self.fabric.lid(self.managers[other].0) == sent.to.lid {
                    self.sm(other).handle_smp(now, &from, &sent.mad);
                }
            }
            self.answered.push(sent.mad);
            return;
        }
        let directed = MadAddress::directed();
        if sent.mad.view::<DirectedRouteSmp>().is_returning() {
            // Transaction ids tell whose it is.
            for other in (0..self.managers.len()).filter(|other| *other != index) {
                self.sm(other).handle_smp(now, &directed, &sent.mad);
            }
            return;
        }
        match self.fabric.carry(host, &sent.mad) {
            Outcome::Answer(answer) => self.sm(index).handle_smp(now, &directed, &answer),
            Outcome::ToManager(node, mad) => {
                for other in 0..self.managers.len() {
                    if self.managers[other].0 == node {
                        self.sm(other).handle_smp(now, &directed, &mad);
                    }
                }
            }
            Outcome::Lost => {}
        }
    }

    /// Runs for so many milliseconds.
    fn run(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        self.exchange();
        loop {
            let next = self
                .managers
                .iter()
                .filter_map(|(_, sm)| sm.poll_timeout())
                .min();
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            for (_, sm) in &mut self.managers {
                sm.handle_timeout(self.now);
            }
            self.exchange();
        }
        self.now = end;
    }

    fn trap(&mut self, manager: usize, from: usize, number: TrapNumber) {
        let lid = self.fabric.lid(from);
        let id = AttributeId::NOTICE;
        let mut mad = Mad::new(MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::TRAP, id));
        mad.header.tid = Tid::new(77);
        let details = LinkStateDetails {
            lid,
            ..LinkStateDetails::default()
        };
        let urgent = NoticeType::URGENT;
        let notice = Notice::generic(urgent, ProducerType::SWITCH, number, lid, &details);
        *mad.view_mut::<LidRoutedSmp>().attribute_mut() = notice;
        let now = self.now;
        self.sm(manager)
            .handle_smp(now, &MadAddress::smi(lid), &mad);
    }

    fn events(&mut self, manager: usize) -> Vec<SmEvent> {
        core::iter::from_fn(|| self.sm(manager).poll_event()).collect()
    }

    fn assert_all_reachable(&self) {
        let hosts = 0..self.fabric.nodes.len();
        let linked: Vec<usize> = hosts
            .filter(|n| {
                self.fabric.nodes[*n].switch.is_none() && self.fabric.port((*n, 1)).link.is_some()
            })
            .collect();
        for from in &linked {
            assert_eq!(
                self.fabric.port((*from, 1)).info.port_state(),
                PortState::ACTIVE
            );
            for to in linked.iter().filter(|to| *to != from) {
                assert_eq!(self.fabric.route(*from, self.fabric.lid(*to)), Some(*to));
            }
        }
    }
}

fn managed() -> World {
    let mut world = World::new(small());
    world.manager(0, SubnetConfig::default());
    world.run(1);
    world
}

#[test]
fn a_fresh_subnet_comes_up_in_one_sweep() {
    let mut world = managed();
    world.assert_all_reachable();
    assert!(world.sm(0).is_serving() && world.sm(0).is_settled());
    assert_eq!(world.sm(0).lid(), Lid::new(1));
    let lids: BTreeSet<u16> = (0..5).map(|n| world.fabric.lid(n).get()).collect();
    assert_eq!(lids, BTreeSet::from([1, 2, 3, 4, 5]));
    let port = &world.fabric.port((1, 1)).info;
    assert_eq!(port.master_sm_lid, Lid::new(1));
    assert_eq!(port.neighbor_mtu().bytes(), Some(4096));
    assert_eq!(port.operational_vls(), 4);
    assert!(world.fabric.nodes[..3].iter().all(|n| n.reregistered == 1));
    assert!(!world.fabric.nodes[3].switch.unwrap().port_state_change());
    let events = world.events(0);
    assert_eq!(events.last(), Some(&SmEvent::SubnetUp));
    let appeared = events
        .iter()
        .filter(|e| matches!(e, SmEvent::PortAppeared(_)))
        .count();
    assert_eq!(appeared, 5);
}

#[test]
fn a_sweep_of_a_configured_subnet_writes_nothing() {
    let mut world = managed();
    let before: usize = world.fabric.nodes.iter().map(|n| n.sets).sum();
    world.sm(0).request_sweep();
    world.run(1);
    assert_eq!(world.sm(0).stats().heavy_sweeps, 2);
    assert_eq!(
        world.fabric.nodes.iter().map(|n| n.sets).sum::<usize>(),
        before
    );
}

#[test]
fn a_restarted_manager_keeps_lids_and_states_and_makes_clients_register_again() {
    let mut world = managed();
    let lids: Vec<Lid> = (0..5).map(|n| world.fabric.lid(n)).collect();
    world.managers.clear();
    world.manager(0, SubnetConfig::default());
    world.run(1);
    assert_eq!(
        (0..5).map(|n| world.fabric.lid(n)).collect::<Vec<_>>(),
        lids
    );
    assert!(world.fabric.nodes[..3].iter().all(|n| n.reregistered == 2));
    world.assert_all_reachable();
}

#[test]
fn a_light_sweep_finds_a_pulled_cable_and_a_returned_one() {
    let mut world = managed();
    world.events(0);
    let (lid, guid) = (world.fabric.lid(2), world.fabric.nodes[2].info.port_guid);
    world.fabric.unlink((2, 1));
    world.run(10_000);
    assert!(world.events(0).contains(&SmEvent::PortVanished(guid)));
    assert_eq!(world.sm(0).topology().node_count(), 4);
    world.assert_all_reachable();
    world.fabric.link((2, 1), (4, 3));
    world.run(10_000);
    assert!(world.events(0).contains(&SmEvent::PortAppeared(guid)));
    assert_eq!(
        world.fabric.lid(2),
        lid,
        "a port that returns keeps its LID"
    );
    world.assert_all_reachable();
}

#[test]
fn traffic_moves_to_the_other_link_when_one_fails() {
    let mut world = managed();
    for port in [7, 8] {
        world.fabric.unlink((3, port));
        world.trap(0, 3, TrapNumber::LINK_STATE_CHANGED);
        world.run(1);
        world.assert_all_reachable();
        world.fabric.link((3, port), (4, port));
        world.trap(0, 3, TrapNumber::LINK_STATE_CHANGED);
        world.run(1);
    }
    assert_eq!(world.sm(0).stats().heavy_sweeps, 5);
}

#[test]
fn a_trap_is_repressed_reported_and_swept() {
    let mut world = managed();
    world.events(0);
    world.trap(0, 4, TrapNumber::LINK_STATE_CHANGED);
    world.run(1);
    let repress = world.answered.pop().unwrap();
    assert_eq!(
        (repress.header.method, repress.header.tid),
        (Method::TRAP_REPRESS, Tid::new(77))
    );
    let SmEvent::Trap(report) = world.events(0)[0] else {
        panic!("no trap event")
    };
    assert_eq!(report.issuer_gid.interface_id(), Guid::new(0x2000));
    assert_eq!(world.sm(0).stats().heavy_sweeps, 2);
}

/// The agent of a port with an M_Key heeds no TrapRepress without it (`osm_trap_rcv.c` puts the key in likewise).
#[test]
fn a_trap_is_repressed_with_the_m_key() {
    let mut world = World::new(small());
    let mkey = ib_wire::MKey::new(0x1234);
    let config = SubnetConfig {
        mkey,
        ..SubnetConfig::default()
    };
    world.manager(0, config);
    world.run(1);
    world.trap(0, 4, TrapNumber::LINK_STATE_CHANGED);
    world.run(1);
    let repress = world.answered.pop().unwrap();
    assert_eq!(repress.header.method, Method::TRAP_REPRESS);
    assert_eq!(repress.view::<LidRoutedSmp>().mkey, mkey);
}

#[test]
fn a_flood_of_traps_does_not_keep_the_manager_sweeping() {
    let mut world = managed();
    for _ in 0..100 {
        world.trap(0, 4, TrapNumber::LINK_STATE_CHANGED);
        world.run(1);
    }
    assert_eq!(world.sm(0).stats().noisy_traps, 90);
    assert_eq!(world.sm(0).stats().heavy_sweeps, 11);
}

#[test]
fn a_mute_node_is_left_out_and_taken_in_when_it_answers() {
    let mut fabric = small();
    fabric.nodes[1].mute = true;
    let mut world = World::new(fabric);
    world.manager(0, SubnetConfig::default());
    world.run(2_000);
    assert!(world.sm(0).is_serving());
    assert_eq!(world.sm(0).topology().node_count(), 4);
    assert_eq!(world.sm(0).unanswered().len(), 1);
    world.fabric.nodes[1].mute = false;
    world.run(12_000);
    assert_eq!(world.sm(0).topology().node_count(), 5);
    world.assert_all_reachable();
}

#[test]
fn a_switch_that_goes_mute_mid_sweep_delays_but_does_not_stop_it() {
    let mut world = managed();
    world.fabric.nodes[4].mute = true;
    world.sm(0).request_sweep();
    world.run(5_000);
    assert!(world.sm(0).is_settled());
    assert_eq!(world.sm(0).topology().node_count(), 3);
}

#[test]
fn two_nodes_with_one_guid_are_told_and_one_of_them_works() {
    let mut fabric = small();
    let twin = fabric.host(0x110);
    fabric.link((twin, 1), (4, 5));
    let mut world = World::new(fabric);
    world.manager(0, SubnetConfig::default());
    world.run(1);
    assert!(world.sm(0).is_serving());
    assert_eq!(world.sm(0).duplicate_guids(), [Guid::new(0x110)]);
    assert_eq!(world.sm(0).topology().node_count(), 5);
}

#[test]
fn loops_of_cable_do_not_confuse_discovery() {
    let mut fabric = small();
    fabric.link((3, 5), (3, 6));
    let mut world = World::new(fabric);
    world.manager(0, SubnetConfig::default());
    world.run(1);
    assert!(world.sm(0).is_settled());
    world.assert_all_reachable();
    assert!(world.sm(0).duplicate_guids().is_empty());
}

#[test]
fn an_lmc_gives_hosts_aligned_ranges_that_all_work() {
    let mut world = World::new(small());
    let lmc = Lmc::new(2).unwrap();
    world.manager(
        0,
        SubnetConfig {
            lmc,
            ..SubnetConfig::default()
        },
    );
    world.run(1);
    for host in 0..3 {
        let base = world.fabric.lid(host).get();
        assert_eq!(base % 4, 0);
        for lid in base..base + 4 {
            for from in (0..3).filter(|from| *from != host) {
                assert_eq!(world.fabric.route(from, Lid::new(lid)), Some(host));
            }
        }
    }
}

#[test]
fn a_running_link_whose_parameters_change_starts_again() {
    let mut world = managed();
    world.fabric.port_mut((1, 1)).info.set_operational_vls(1);
    world.sm(0).request_sweep();
    world.run(1);
    assert_eq!(world.fabric.port((1, 1)).info.operational_vls(), 4);
    world.assert_all_reachable();
}

#[test]
fn partitions_reach_the_tables_of_their_members() {
    let member = Guid::new(0x111);
    let tenant = Partition {
        pkey: PKey::new(0x8012),
        others: None,
        members: [(member, Membership::Full)].into(),
        ipoib: None,
        ..Partition::default_full()
    };
    let partitions = Partitions::new([Partition::default_full(), tenant]);
    let mut world = World::new(small());
    world.manager(
        0,
        SubnetConfig {
            partitions,
            ..SubnetConfig::default()
        },
    );
    world.run(1);
    let pkeys = |host| world.fabric.port((host, 1)).pkeys[..3].to_vec();
    assert_eq!(pkeys(1), [0xffff, 0x8012, 0].map(PKey::new));
    assert_eq!(pkeys(2), [0xffff, 0, 0].map(PKey::new));
    assert_eq!(world.fabric.port((3, 0)).pkeys[0], PKey::DEFAULT_FULL);
}

#[test]
fn with_enforcement_the_switch_checks_by_the_table_of_the_host_behind_it() {
    let tenant = Partition {
        pkey: PKey::new(0x8012),
        others: None,
        members: [(Guid::new(0x111), Membership::Limited)].into(),
        ipoib: None,
        ..Partition::default_full()
    };
    let partitions = Partitions::new([Partition::default_full(), tenant]);
    for (enforcement, front_key) in [
        (PartitionEnforcement::BOTH, 0x0012),
        (PartitionEnforcement::INBOUND, 0x0012),
        (PartitionEnforcement::OUTBOUND, 0x0012),
        (PartitionEnforcement::OFF, 0),
    ] {
        let mut fabric = small();
        for switch in [3, 4] {
            let info = fabric.nodes[switch].switch.as_mut().unwrap();
            info.partition_enforcement_cap = 32.into();
        }
        let mut world = World::new(fabric);
        let config = SubnetConfig {
            partitions: partitions.clone(),
            partition_enforcement: enforcement,
            ..SubnetConfig::default()
        };
        world.manager(0, config);
        world.run(1);
        let directions = |port| {
            let info = &world.fabric.port(port).info;
            PartitionEnforcement {
                inbound: info.partition_enforcement_inbound(),
                outbound: info.partition_enforcement_outbound(),
            }
        };
        assert_eq!(directions((3, 2)), enforcement);
        assert_eq!(world.fabric.port((3, 2)).pkeys[1], PKey::new(front_key));
        assert_eq!(directions((3, 7)), PartitionEnforcement::OFF);
        assert_eq!(world.fabric.port((3, 7)).pkeys[0], PKey::INVALID);
    }
}

#[test]
fn a_group_is_routed_when_it_is_set_and_unrouted_when_it_ends() {
    let mut world = managed();
    let mlid = Lid::new(0xc003);
    let members = [(Guid::new(0x101), true), (Guid::new(0x121), true)];
    world.sm(0).set_group(mlid, members.into());
    world.run(1);
    let mask =
        |world: &World, switch: usize| world.fabric.nodes[switch].mft[&(0, 0)].masks[3].get();
    let (a, b) = (mask(&world, 3), mask(&world, 4));
    assert_eq!((a & 0b110, b & 0b110), (0b010, 0b010));
    assert_eq!((a & 0x180).count_ones(), 1);
    assert_eq!(a & 0x180, b & 0x180);
    world.sm(0).set_group(mlid, BTreeMap::new());
    world.run(1);
    assert_eq!((mask(&world, 3), mask(&world, 4)), (0, 0));
}

#[test]
fn a_port_that_was_reset_between_two_sweeps_is_a_new_one() {
    let mut world = managed();
    world.events(0);
    let guid = Guid::new(0x111);
    let info = &mut world.fabric.port_mut((1, 1)).info;
    info.lid = Lid::NONE;
    info.set_port_state(PortState::INIT);
    world.trap(0, 3, TrapNumber::LINK_STATE_CHANGED);
    world.run(1);
    let events = world.events(0);
    let told = [SmEvent::PortVanished(guid), SmEvent::PortAppeared(guid)];
    let told = told.map(|event| events.iter().position(|seen| *seen == event));
    assert!(told[0].is_some() && told[0] < told[1], "{events:?}");
    world.assert_all_reachable();
}

#[test]
fn alias_guids_are_written_to_the_port() {
    let mut world = managed();
    let guids = [0x101, 5, 0, 0, 0, 0, 0, 0].map(Guid::new);
    world.sm(0).write_guids(Guid::new(0x111), 0, &guids);
    world.run(1);
    assert_eq!(world.fabric.port((1, 1)).guids[&0].guids, guids);
}

#[test]
fn the_better_of_two_managers_becomes_master_and_the_other_takes_over_when_it_dies() {
    let mut world = World::new(small());
    let config = |priority| SubnetConfig {
        priority,
        ..SubnetConfig::default()
    };
    world.manager(0, config(1));
    world.manager(2, config(3));
    world.run(30_000);
    assert_eq!(world.sm(0).state(), SmState::STANDBY);
    assert_eq!(world.sm(1).state(), SmState::MASTER);
    assert_eq!(
        world.fabric.port((1, 1)).info.master_sm_lid,
        world.fabric.lid(2)
    );
    let lids: Vec<Lid> = (0..5).map(|n| world.fabric.lid(n)).collect();
    world.managers.remove(1);
    world.fabric.nodes[2].mute = true;
    world.run(60_000);
    assert_eq!(world.sm(0).state(), SmState::MASTER);
    assert_eq!(
        world.fabric.port((1, 1)).info.master_sm_lid,
        world.fabric.lid(0)
    );
    assert_eq!(
        (0..2).map(|n| world.fabric.lid(n)).collect::<Vec<_>>(),
        lids[..2]
    );
}

#[test]
fn a_master_hands_over_to_a_better_manager_that_joins() {
    let mut world = managed();
    world.manager(
        2,
        SubnetConfig {
            priority: 9,
            ..SubnetConfig::default()
        },
    );
    world.run(30_000);
    assert_eq!(world.sm(0).state(), SmState::STANDBY);
    assert_eq!(world.sm(1).state(), SmState::MASTER);
    assert!(world.sm(1).is_serving() && !world.sm(0).is_serving());
    assert_eq!(
        world.fabric.port((1, 1)).info.master_sm_lid,
        world.fabric.lid(2)
    );
    world.assert_all_reachable();
}

#[test]
fn a_lesser_manager_stands_by_behind_the_master() {
    let mut world = managed();
    world.manager(2, SubnetConfig::default());
    world.trap(0, 2, TrapNumber::CAPABILITY_MASK_CHANGED);
    world.run(60_000);
    assert_eq!(world.sm(0).state(), SmState::MASTER);
    assert_eq!(world.sm(1).state(), SmState::STANDBY);
    assert_eq!(world.sm(0).other_managers().count(), 1);
}

#[test]
fn malformed_and_unexpected_smps_change_nothing() {
    let mut world = managed();
    let now = world.now;
    for byte in 0..=255_u8 {
        let mut mad = Mad::from_bytes(&[byte; 256]).unwrap();
        world.sm(0).handle_smp(now, &MadAddress::directed(), &mad);
        mad.header = MadHeader::new(
            MgmtClass::SUBN_DIRECTED_ROUTE,
            Method::new(byte),
            AttributeId::new(0x20),
        );
        world
            .sm(0)
            .handle_smp(now, &MadAddress::smi(Lid::new(byte.into())), &mad);
        mad.header.mgmt_class = MgmtClass::SUBN_LID_ROUTED;
        mad.header.attribute_modifier = AttributeModifier::new(9);
        world
            .sm(0)
            .handle_smp(now, &MadAddress::smi(Lid::new(byte.into())), &mad);
    }
    assert_eq!(world.sm(0).state(), SmState::MASTER);
    world.run(1);
    world.assert_all_reachable();
}

#[test]
fn a_host_without_switch_is_managed_too() {
    let mut fabric = Fabric::default();
    fabric.host(0x100);
    fabric.host(0x200);
    fabric.link((0, 1), (1, 1));
    let mut world = World::new(fabric);
    world.manager(0, SubnetConfig::default());
    world.run(1);
    assert_eq!(
        world.fabric.port((1, 1)).info.port_state(),
        PortState::ACTIVE
    );
    assert_ne!(world.fabric.lid(0), world.fabric.lid(1));
    world.fabric.unlink((0, 1));
    world.run(10_000);
    assert_eq!(world.sm(0).topology().node_count(), 1);
    world.fabric.link((0, 1), (1, 1));
    world.run(10_000);
    assert_eq!(world.sm(0).topology().node_count(), 2);
}
