//! Managers with their SA on emulated fabrics, asked by the SA clients of the hosts.

use std::collections::VecDeque;

use emulated_hca::{Adapters, Built, Fabric, LinkState, NodeId, PlannedPort, Topology};
use hca_api::{FunctionId, Hca, HcaEvent};
use ib_endpoint::sa_client::Wish;
use ib_endpoint::{EndPort, EndPortConfig, EndPortEvent, SaAnswer, SaError, SaEvent, SaRequest};
use ib_vtime::{Duration, Instant};
use ib_wire::notice::{InformInfo, NoticeReport, ProducerType, TrapNumber};
use ib_wire::sa::{
    ComponentMask, GuidInfoRecord, JoinState, LinkRecord, McMemberRecord, MultiPathRecord,
    NodeRecord, PathRecord, SwitchInfoRecord,
};
use ib_wire::smp::{PortState, SmState};
use ib_wire::{Gid, GidIndex, Guid, Lid, PKey, PortNum, QKey, SubnetPrefix};
use pf_context::guids::{GuidConfig, GuidManager, GuidOutput, GuidState, GuidWish};
use subnet_lite::{SubnetConfig, SubnetManager};
use vf_tunnel::VfId;

const PORT: PortNum = PortNum(1);
/// Rounds of work at one time after which something must be wrong.
const MAX_ROUNDS: usize = 100_000;
/// The group of an IPv4 broadcast domain (RFC 4391 4).
const BROADCAST: Gid = Gid([
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
]);
const SECOND: Duration = Duration::from_secs(1);

/// A host on one port of an adapter.
struct Station {
    node: NodeId,
    end_port: EndPort,
    manager: Option<SubnetManager>,
    events: VecDeque<EndPortEvent>,
}

struct World {
    now: Instant,
    fabric: Fabric,
    built: Built,
    stations: Vec<Station>,
}

impl World {
    /// A host on port 1 of every adapter of a plan.
    fn new(plan: &Topology) -> Self {
        let (mut fabric, built) = plan.build(11);
        let mut stations = Vec::new();
        for (node, seed) in built.hcas.iter().zip(1..) {
            let mut hca = fabric.hca(*node, FunctionId::PF).expect("an adapter");
            let config = EndPortConfig::host(PORT, seed);
            let end_port = EndPort::open(Instant::ZERO, &mut hca, config).expect("a free port");
            stations.push(Station {
                node: *node,
                end_port,
                manager: None,
                events: VecDeque::new(),
            });
        }
        Self {
            now: Instant::ZERO,
            fabric,
            built,
            stations,
        }
    }

    fn start(&mut self, host: usize, config: SubnetConfig) {
        let station = &mut self.stations[host];
        let mut hca = self
            .fabric
            .hca(station.node, FunctionId::PF)
            .expect("an adapter");
        let gsi = station.end_port.gsi();
        let seed = 100 + host as u64;
        let manager = SubnetManager::open(&mut hca, gsi, PORT, config, seed);
        station.manager = Some(manager.expect("a free QP0"));
    }

    fn stop(&mut self, host: usize) {
        let station = &mut self.stations[host];
        let mut hca = self
            .fabric
            .hca(station.node, FunctionId::PF)
            .expect("an adapter");
        let manager = station.manager.take().expect("a manager");
        manager
            .close(&mut hca, station.end_port.gsi())
            .expect("a port");
    }

    fn manager(&self, host: usize) -> &SubnetManager {
        self.stations[host].manager.as_ref().expect("a manager")
    }

    /// Lets everybody work until nothing is to be done now. What a station sent shows as completions
    /// in the round after.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..MAX_ROUNDS {
            while self.fabric.poll(self.now) {}
            if quiet == 2 {
                return;
            }
            let mut busy = false;
            for index in 0..self.stations.len() {
                busy |= self.serve(index);
            }
            quiet = if busy { 0 } else { quiet + 1 };
        }
        panic!("the stations keep each other busy");
    }

    /// Lets a station work. Whether it did anything.
    fn serve(&mut self, index: usize) -> bool {
        let now = self.now;
        let station = &mut self.stations[index];
        let mut hca = self
            .fabric
            .hca(station.node, FunctionId::PF)
            .expect("an adapter");
        let mut busy = false;
        while let Some(event) = hca.poll_event() {
            busy |= matches!(event, HcaEvent::Completion(_));
            station
                .end_port
                .handle_hca_event(now, &mut hca, &event)
                .expect("a readable port");
            if let Some(manager) = &mut station.manager {
                manager.handle_hca_event(now, &event);
            }
        }
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        busy |= is_due(station.end_port.poll_timeout());
        busy |= station
            .manager
            .as_ref()
            .is_some_and(|m| is_due(m.poll_timeout()));
        busy |= station.end_port.poll(now, &mut hca);
        while let Some(event) = station.end_port.poll_event() {
            busy = true;
            let event = match (event, &mut station.manager) {
                (EndPortEvent::Gsi(event), Some(manager)) => {
                    match manager.handle_event(now, station.end_port.gsi(), event) {
                        Some(event) => EndPortEvent::Gsi(event),
                        None => continue,
                    }
                }
                (event, _) => event,
            };
            station.events.push_back(event);
        }
        if let Some(manager) = &mut station.manager {
            busy |= manager.poll(now, &mut hca, station.end_port.gsi());
        }
        busy
    }

    fn next(&self) -> Option<Instant> {
        let of = |station: &Station| {
            let manager = station
                .manager
                .as_ref()
                .and_then(SubnetManager::poll_timeout);
            [station.end_port.poll_timeout(), manager]
                .into_iter()
                .flatten()
                .min()
        };
        let stations = self.stations.iter().filter_map(of);
        stations.chain(self.fabric.poll_timeout()).min()
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            match self.next() {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = end;
        self.settle();
    }

    /// Runs until a condition holds, at most so long.
    fn run_until(&mut self, most: Duration, holds: impl Fn(&Self) -> bool) {
        let end = self.now + most;
        self.settle();
        while !holds(self) {
            let next = self
                .next()
                .filter(|next| *next <= end)
                .expect("it happens in time");
            self.now = self.now.max(next);
            self.settle();
        }
    }

    fn ask(&mut self, host: usize, request: SaRequest) -> Result<SaAnswer, SaError> {
        let now = self.now;
        let wanted = self.stations[host].end_port.query(now, request);
        self.run(SECOND);
        let events = &mut self.stations[host].events;
        let found = events.iter().position(
            |event| matches!(event, EndPortEvent::Sa(SaEvent::Answered { query, .. }) if *query == wanted),
        );
        match found.and_then(|at| events.remove(at)) {
            Some(EndPortEvent::Sa(SaEvent::Answered { result, .. })) => result,
            other => panic!("no answer: {other:?}"),
        }
    }

    fn gid(&self, host: usize) -> Gid {
        self.stations[host]
            .end_port
            .view()
            .gid(GidIndex(0))
            .expect("a port GUID")
    }

    fn is_up(&self) -> bool {
        self.stations
            .iter()
            .all(|s| s.end_port.view().state == PortState::ACTIVE)
    }

    fn lid(&self, host: usize) -> Lid {
        self.stations[host].end_port.view().lid
    }

    fn reports(&mut self, host: usize) -> Vec<NoticeReport> {
        let events = core::mem::take(&mut self.stations[host].events);
        let report = |event| match event {
            EndPortEvent::Sa(SaEvent::Notice(report)) => Some(report),
            _ => None,
        };
        events.into_iter().filter_map(report).collect()
    }
}

/// Two switches with three hosts each, managed from host 0.
fn managed() -> World {
    let mut world = World::new(&Topology::two_switches(3));
    world.start(0, SubnetConfig::default());
    world.run(3 * SECOND);
    world
}

#[test]
fn a_fabric_comes_up_and_its_sa_answers_every_host() {
    let mut world = managed();
    assert!(world.is_up());
    for host in 1..6 {
        let (from, to) = (world.gid(host), world.gid(0));
        let answer = world
            .ask(host, SaRequest::path_by_gids(from, to, None))
            .expect("a path");
        let path: PathRecord = answer.record().expect("a record");
        assert_eq!((path.slid, path.dlid), (world.lid(host), world.lid(0)));
        assert_eq!(path.pkey, PKey::DEFAULT_FULL);
    }
    let all = SaRequest::get_table(&NodeRecord::default(), ComponentMask::NONE);
    assert_eq!(
        world
            .ask(0, all)
            .expect("a table")
            .records::<NodeRecord>()
            .count(),
        8
    );
    let all = SaRequest::get_table(&LinkRecord::default(), ComponentMask::NONE);
    assert_eq!(
        world
            .ask(3, all)
            .expect("a table")
            .records::<LinkRecord>()
            .count(),
        16
    );
    let info = world
        .ask(4, SaRequest::class_port_info())
        .expect("an answer");
    assert_eq!(
        info.class_port_info()
            .expect("ClassPortInfo")
            .capability_mask
            .get(),
        0x2602
    );
}

#[test]
fn a_table_of_many_segments_reaches_its_client() {
    let mut world = managed();
    let all = SaRequest::get_table(&PathRecord::default(), ComponentMask::NONE);
    let paths = world.ask(5, all).expect("a table");
    // From each of eight end ports to each; every one needs a third of a segment.
    assert_eq!(paths.records::<PathRecord>().count(), 64);
}

#[test]
fn dual_sided_requests_for_many_paths_are_answered() {
    let mut world = managed();
    let (from, to) = ([world.gid(1), world.gid(2)], [world.gid(3), world.gid(4)]);
    let counts = MultiPathRecord::SGID_COUNT | MultiPathRecord::DGID_COUNT;
    let request = SaRequest::multi_path(&MultiPathRecord::default(), counts, &from, &to);
    let request = request.expect("four GIDs fit");
    let paths = world.ask(1, request).expect("paths");
    assert_eq!(paths.records::<PathRecord>().count(), 4);
}

#[test]
fn a_joined_group_is_in_the_switches_and_leaves_them() {
    let mut world = managed();
    let mut records = Vec::new();
    for host in [1, 2, 4] {
        let mut record = McMemberRecord {
            mgid: BROADCAST,
            port_gid: world.gid(host),
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        let answer = world.ask(host, SaRequest::join(&record, ComponentMask::NONE));
        let joined: McMemberRecord = answer.expect("a member").record().expect("a record");
        assert_eq!(
            (joined.mlid, joined.qkey),
            (Lid::new(0xc000), QKey::new(0x0b1b))
        );
        records.push((host, record));
    }
    let trees = |world: &World| {
        let topology = world.manager(0).sm().topology();
        let switch = |id: &_| topology.node(*id).switch.as_ref().map(|s| s.mft.len());
        topology.switches().iter().filter_map(switch).sum::<usize>()
    };
    assert_eq!(trees(&world), 2);
    for (host, record) in records {
        world.ask(host, SaRequest::leave(&record)).expect("a leave");
    }
    assert_eq!(trees(&world), 0);
    assert!(world.manager(0).sm().is_settled());
}

#[test]
fn alias_guids_reach_the_port_and_have_paths() {
    let mut world = managed();
    let alias = Guid::new(0x0002_c903_0abc_0001);
    let mut guids = [None; 8];
    guids[1] = Some(alias);
    let lid = world.lid(2);
    world
        .ask(2, SaRequest::set_guids(lid, 0, &guids))
        .expect("an alias");
    let view = world.stations[2].end_port.view();
    assert_eq!(view.guids.get(1), Some(&alias));
    let to = Gid::from_parts(SubnetPrefix::DEFAULT, alias);
    let from = world.gid(5);
    let path = world
        .ask(5, SaRequest::path_by_gids(from, to, None))
        .expect("a path");
    assert_eq!(path.record::<PathRecord>().expect("a record").dlid, lid);
    let held = world.ask(5, SaRequest::get_guids(lid, 0)).expect("a block");
    assert_eq!(
        held.record::<GuidInfoRecord>().expect("a record").guids[1],
        alias
    );
}

/// A port's manager of alias GUIDs, whose requests its host carries.
struct Aliases {
    host: usize,
    manager: GuidManager,
    groups: Vec<McMemberRecord>,
}

impl Aliases {
    fn new(world: &World, host: usize) -> Self {
        let view = world.stations[host].end_port.view();
        let mut manager = GuidManager::new(GuidConfig {
            table_len: u16::try_from(view.guids.len()).expect("a table"),
            ..GuidConfig::default()
        });
        manager.set_lid(world.now, view.lid);
        manager.port_active(world.now, true);
        Self {
            host,
            manager,
            groups: Vec::new(),
        }
    }

    fn want(&mut self, world: &World, vf: u16, wish: GuidWish) {
        let wanted = self
            .manager
            .want(world.now, VfId::new(vf).expect("a VF"), wish);
        wanted.expect("nobody else's GUID");
    }

    fn state(&self, vf: u16) -> GuidState {
        self.manager.state(VfId::new(vf).expect("a VF"))
    }

    fn drive(&mut self, world: &mut World) {
        loop {
            for (index, guid) in (0..).zip(&world.stations[self.host].end_port.view().guids) {
                self.manager.hardware(world.now, index, *guid);
            }
            match self.manager.poll_output() {
                Some(GuidOutput::Request { token, request }) => {
                    let result = world.ask(self.host, *request);
                    self.manager.answered(world.now, token, &result);
                }
                Some(GuidOutput::LeaveGroups { vf, .. }) => {
                    for group in self.groups.drain(..) {
                        world
                            .ask(self.host, SaRequest::leave(&group))
                            .expect("a leave");
                    }
                    self.manager.groups_left(world.now, vf);
                }
                Some(_) => {}
                None => return,
            }
        }
    }
}

#[test]
fn c154_c155_c160_the_sa_understands_a_manager_of_guids_and_moves_a_guid_between_hosts() {
    let mut world = managed();
    let guid = |n: u64| Guid::new(0x0002_c903_0abc_0000 + n);
    let (mut here, mut there) = (Aliases::new(&world, 2), Aliases::new(&world, 4));
    here.want(&world, 1, GuidWish::Admin(guid(1)));
    here.want(&world, 2, GuidWish::SmAssigned);
    here.want(&world, 10, GuidWish::Admin(guid(10)));
    here.drive(&mut world);
    assert_eq!(here.state(1), GuidState::InHardware(guid(1)));
    assert!(matches!(here.state(2), GuidState::InHardware(_)));
    assert_eq!(here.state(10), GuidState::InHardware(guid(10)));

    there.want(&world, 3, GuidWish::Admin(guid(1)));
    there.drive(&mut world);
    assert!(matches!(there.state(3), GuidState::Declined { .. }));

    let mut group = McMemberRecord {
        mgid: BROADCAST,
        port_gid: Gid::from_parts(SubnetPrefix::DEFAULT, guid(1)),
        ..McMemberRecord::default()
    };
    group.set_join_state(JoinState::FULL_MEMBER);
    let joined = world.ask(2, SaRequest::join(&group, ComponentMask::NONE));
    joined.expect("a member");
    here.groups.push(group);
    here.want(&world, 1, GuidWish::None);
    here.drive(&mut world);
    assert!(
        here.groups.is_empty(),
        "the SA refuses until the groups are left"
    );
    assert_eq!(here.state(1), GuidState::NotRequested);

    world.run(SECOND);
    there.manager.handle_timeout(world.now);
    there.drive(&mut world);
    assert_eq!(there.state(3), GuidState::InHardware(guid(1)));
    here.manager.withdraw_all(world.now);
    here.drive(&mut world);
    let table = &world.stations[2].end_port.view().guids;
    assert!(table.iter().skip(1).all(|guid| guid.is_none()), "{table:?}");
}

#[test]
fn subscribers_hear_of_ports_that_go_and_come() {
    let mut world = managed();
    let inform = InformInfo {
        lid_range_begin: Lid::new(0xffff),
        lid_range_end: Lid::new(0xffff),
        is_generic: 1,
        notice_type: InformInfo::ALL_TYPES.into(),
        trap_number: TrapNumber::ALL,
        producer: ProducerType::ALL.0,
        ..InformInfo::default()
    };
    let now = world.now;
    world.stations[1]
        .end_port
        .wish(now, Wish::Subscription(inform));
    world.run(SECOND);
    world.reports(1);
    let victim = world.gid(5);
    let link = *world.built.links.last().expect("the last host's link");
    world.fabric.set_link(link, LinkState::Down);
    world.run(3 * SECOND);
    let numbers = |reports: &[NoticeReport]| {
        reports
            .iter()
            .map(|r| r.notice.trap_number)
            .collect::<Vec<_>>()
    };
    let reports = world.reports(1);
    assert!(numbers(&reports).contains(&TrapNumber::LINK_STATE_CHANGED));
    assert!(numbers(&reports).contains(&TrapNumber::GID_OUT_OF_SERVICE));
    let (lid, from) = (world.lid(5), world.gid(1));
    assert!(
        world
            .ask(1, SaRequest::path_by_gids(from, victim, None))
            .is_err()
    );
    world.fabric.set_link(link, LinkState::Up);
    world.run(3 * SECOND);
    assert!(numbers(&world.reports(1)).contains(&TrapNumber::GID_IN_SERVICE));
    assert_eq!(world.lid(5), lid);
    assert!(world.is_up());
}

#[test]
fn a_failed_link_between_switches_is_routed_around() {
    let mut world = managed();
    let (from, to) = (world.gid(1), world.gid(4));
    for at in [0, 1] {
        let link = world.built.links[at];
        world.fabric.set_link(link, LinkState::Down);
        world.run(3 * SECOND);
        world
            .ask(1, SaRequest::path_by_gids(from, to, None))
            .expect("a path");
        world
            .ask(4, SaRequest::path_by_gids(to, from, None))
            .expect("the way back");
        world.fabric.set_link(link, LinkState::Up);
        world.run(3 * SECOND);
    }
    assert!(world.is_up());
}

#[test]
fn a_restarted_manager_finds_the_subnet_as_it_was() {
    let mut world = managed();
    let lids: Vec<Lid> = (0..6).map(|host| world.lid(host)).collect();
    world.stop(0);
    world.run(SECOND);
    assert!(world.is_up(), "nothing changes while there is no manager");
    world.start(0, SubnetConfig::default());
    world.run(3 * SECOND);
    assert_eq!((0..6).map(|host| world.lid(host)).collect::<Vec<_>>(), lids);
    let (from, to) = (world.gid(2), world.gid(3));
    world
        .ask(2, SaRequest::path_by_gids(from, to, None))
        .expect("a path");
}

#[test]
fn of_two_managers_the_better_serves_and_the_other_takes_over() {
    let mut world = World::new(&Topology::two_switches(3));
    let config = |priority| SubnetConfig {
        priority,
        master_poll_interval: SECOND,
        sweep_interval: SECOND,
        ..SubnetConfig::default()
    };
    world.start(0, config(1));
    world.run(3 * SECOND);
    world.start(4, config(5));
    world.run(10 * SECOND);
    assert_eq!(world.manager(4).sm().state(), SmState::MASTER);
    assert_eq!(world.manager(0).sm().state(), SmState::STANDBY);
    assert_eq!(world.stations[2].end_port.view().sm_lid, world.lid(4));
    world.stop(4);
    world.run(20 * SECOND);
    assert_eq!(world.manager(0).sm().state(), SmState::MASTER);
    assert_eq!(world.stations[2].end_port.view().sm_lid, world.lid(0));
    let (from, to) = (world.gid(2), world.gid(3));
    world
        .ask(2, SaRequest::path_by_gids(from, to, None))
        .expect("a path");
}

#[test]
fn the_same_seeds_give_the_same_sweep() {
    let sweep = || {
        let world = managed();
        let counters = world.manager(0).sm().mad_counters().clone();
        (counters, world.manager(0).sm().stats())
    };
    assert_eq!(sweep(), sweep());
}

#[test]
fn a_fat_tree_comes_up() {
    let mut world = World::new(&Topology::fat_tree(4, 16));
    world.start(0, SubnetConfig::default());
    world.run_until(10 * SECOND, |world| {
        world.manager(0).sm().is_serving() && world.is_up()
    });
    let all = SaRequest::get_table(&SwitchInfoRecord::default(), ComponentMask::NONE);
    assert_eq!(
        world
            .ask(9, all)
            .expect("a table")
            .records::<SwitchInfoRecord>()
            .count(),
        20
    );
    for host in 1..16 {
        let (from, to) = (world.gid(host), world.gid(0));
        world
            .ask(host, SaRequest::path_by_gids(from, to, None))
            .expect("a path");
    }
}

#[test]
fn every_port_of_a_switch_of_254_ports_is_used() {
    let mut plan = Topology::default();
    let switch = plan.add_switch("wide", 254);
    for port in 1..=254 {
        let host = plan.add_hca(&format!("host-{port}"), 1);
        plan.connect(PlannedPort::Hca(host, 1), PlannedPort::Switch(switch, port));
    }
    let mut world = World::new(&plan);
    world.start(0, SubnetConfig::default());
    world.run_until(10 * SECOND, |world| {
        world.manager(0).sm().is_serving() && world.is_up()
    });
    for host in [127, 253] {
        let (from, to) = (world.gid(host), world.gid(0));
        world
            .ask(host, SaRequest::path_by_gids(from, to, None))
            .expect("a path, both ways");
    }
}
