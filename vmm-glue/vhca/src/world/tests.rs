use core::cell::Cell;

use emulated_hca::{LinkConfig, Topology};
use hca_api::{AddressVector, Consumer, HcaEvent, QpKind, UdAddress, UdDestination};
use ib_capture::FrameRecord;
use ib_endpoint::DatagramQpSpec;
use ib_vtime::Duration;
use ib_wire::smp::PortState;
use ib_wire::{PKeyIndex, PortNum, QKey, Sl};
use subnet_lite::ManagerStats;

use super::*;
use crate::{Driven, RunEnd, Runner, Slice};

const LIMIT: Duration = Duration::from_secs(10);

/// Three switches and three hosts, the first of which runs the subnet manager, behind links that take time.
fn world(seed: u64) -> (World, [HostId; 3]) {
    let timed = LinkConfig {
        latency: Duration::from_nanos(100),
        timed: true,
        ..LinkConfig::default()
    };
    world_of(timed, seed)
}

fn world_of(link: LinkConfig, seed: u64) -> (World, [HostId; 3]) {
    let mut plan = Topology::three_switches();
    plan.link = link;
    let (fabric, built) = plan.build(seed);
    let mut world = World::new(fabric, seed);
    let hosts = [0, 1, 2].map(|i| world.add_host(built.hcas[i]).unwrap());
    world
        .start_manager(hosts[0].port(1), SubnetConfig::default())
        .unwrap();
    (world, hosts)
}

/// Every host's port is active, and the manager says so.
fn is_up(world: &mut World) -> bool {
    let serving = |host: &Host| host.manager().is_none_or(|m| m.sm().is_serving());
    let hosts = 0..world.hosts.len();
    let mut views = hosts.map(|host| world.port(HostId(host).port(1)).view());
    world.hosts.iter().all(serving)
        && views.all(|view| view.state == PortState::ACTIVE && view.lid.is_unicast())
}

/// Every packet of a subnet that comes up.
fn packets(seed: u64) -> Vec<FrameRecord> {
    let (mut world, _) = world(seed);
    world.capture();
    assert_eq!(world.run_until(LIMIT, is_up), Outcome::Reached);
    std::iter::from_fn(|| world.poll_frame()).collect()
}

#[test]
fn a_subnet_manager_brings_every_port_up() {
    let (mut world, [manager, ..]) = world(1);
    assert_eq!(world.run_until(LIMIT, is_up), Outcome::Reached);
    let stats = world.manager(manager).unwrap().stats();
    assert_eq!(stats, ManagerStats::default());
}

#[test]
fn the_same_seed_gives_the_same_packets_and_another_one_others() {
    let first = packets(1);
    assert!(!first.is_empty());
    assert_eq!(first, packets(1));
    assert_ne!(first, packets(2));
}

/// When all that is due was done and every port is active, if the world has so many steps at a time.
fn time_until_up(steps: u32) -> Instant {
    let (mut world, _) = world(1);
    loop {
        world.poll_for(world.now, &mut Slice::of_steps(steps));
        let next = world.poll_timeout().expect("the manager never rests");
        if next <= world.now {
            continue;
        }
        if is_up(&mut world) || world.now > Instant::ZERO + LIMIT {
            return world.now;
        }
        world.now = next;
    }
}

#[test]
fn nothing_waits_for_a_timer_because_a_slice_ended() {
    let at_once = time_until_up(u32::MAX) - Instant::ZERO;
    for steps in 1..100 {
        let taken = time_until_up(steps) - Instant::ZERO;
        assert!(taken < 2 * at_once, "{steps} steps: {taken:?}, {at_once:?}");
    }
}

/// What of these messages, sent at once from one host to another, is there before the world waits for a later time.
fn received_at_once(messages: u32, steps: u32) -> usize {
    let (mut world, [from, to, _]) = world_of(LinkConfig::default(), 1);
    assert_eq!(world.run_until(LIMIT, is_up), Outcome::Reached);
    let spec = DatagramQpSpec {
        kind: QpKind::Ud,
        port: PortNum(1),
        pkey_index: PKeyIndex(0),
        qkey: QKey::new(1),
        receives: messages,
        sends: messages,
        max_message: 64,
        block_multicast_loopback: false,
    };
    let [from, ear] = [from, to].map(|host| world.open_socket(host, spec).unwrap());
    let destination = UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: PortNum(1),
            dlid: world.port(to.port(1)).view().lid,
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        }),
        qpn: world.socket(ear).qp().numbers().external,
        qkey: QKey::new(1),
        pkey_index: None,
    };
    world.poll(world.now);
    for _ in 0..messages {
        world.send(from, &destination, &[0; 64]).unwrap();
    }
    world.poll_for(world.now, &mut Slice::of_steps(steps));
    while world.poll_timeout().is_some_and(|next| next <= world.now) {
        world.poll_for(world.now, &mut Slice::of_steps(steps));
    }
    std::iter::from_fn(|| world.socket_mut(ear).receive()).count()
}

#[test]
fn what_the_fabric_has_left_at_the_end_of_a_slice_reaches_who_waits_for_it() {
    for steps in [1, 2, 3, u32::MAX] {
        assert_eq!(received_at_once(300, steps), 300, "{steps} steps");
    }
}

#[test]
fn a_run_that_waits_in_vain_ends_at_its_limit() {
    let (mut world, _) = world(1);
    assert_eq!(world.run_until(LIMIT, |_| false), Outcome::TimedOut);
    assert_eq!(world.now(), Instant::ZERO + LIMIT);
}

#[test]
fn a_stopped_manager_leaves_its_port_to_the_next() {
    let (mut world, [manager, ..]) = world(1);
    world.run_until(LIMIT, is_up);
    world.stop_manager(manager).unwrap();
    assert!(world.manager(manager).is_none());
    world
        .start_manager(manager.port(1), SubnetConfig::default())
        .unwrap();
    let serving = |w: &mut World| w.manager(manager).is_some_and(|m| m.sm().is_serving());
    assert_eq!(world.run_until(LIMIT, serving), Outcome::Reached);
}

#[test]
fn a_condition_that_keeps_the_fabric_busy_is_a_live_lock() {
    let (mut world, [manager, ..]) = world(1);
    let outcome = world.run_until(LIMIT, |w| {
        w.with_hca(manager, |_| Ok(())).unwrap();
        false
    });
    assert_eq!(outcome, Outcome::LiveLock);
}

#[test]
fn the_wall_clock_brings_the_same_world_up() {
    let (world, _) = world(1);
    let mut runner = Runner::new(world).unwrap();
    assert_eq!(runner.run_until(LIMIT, is_up).unwrap(), RunEnd::Reached);
}

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// A clock that advances by a microsecond with each look at it.
fn clock() -> Duration {
    LOOKS.set(LOOKS.get() + 1);
    Duration::from_micros(LOOKS.get())
}

/// Software that has something to do at a time, or always.
#[derive(Debug)]
struct Program {
    due: Option<Instant>,
    polls: Vec<Instant>,
}

impl Consumer for Program {
    fn handle_hca_event(&mut self, _: Instant, _: &mut dyn Hca, _: &HcaEvent) {}

    fn poll(&mut self, now: Instant, _: &mut dyn Hca) -> bool {
        self.polls.push(now);
        let is_done = self.due.is_some_and(|due| due <= now);
        if is_done {
            self.due = Some(Instant::ZERO + LIMIT);
        }
        self.due.is_none()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due.or(Some(Instant::ZERO))
    }
}

#[test]
fn software_whose_time_comes_within_a_slice_has_its_turn_in_it_beside_software_that_never_ends() {
    const DUE: Duration = Duration::from_micros(300);
    let (fabric, built) = Topology::three_switches().build(1);
    let mut world = World::new(fabric, 1);
    world.share_time();
    let begun = Instant::ZERO + Duration::from_millis(1);
    let [sleeper, _] = [(0, Some(begun + DUE)), (1, None)].map(|(node, due)| {
        let polls = Vec::new();
        world.add_host_of(built.hcas[node], Box::new(Program { due, polls }))
    });
    let length = 2 * DUE;
    world.poll_for(begun, &mut Slice::by_clock(length, clock));
    let polls = &world.consumer::<Program>(sleeper).unwrap().polls;
    let late = polls.last().map(|at| *at - begun);
    // After a turn of the other's, and the fabric's look at its nodes.
    let latest = DUE + 2 * run::TURN;
    assert!(
        late.is_some_and(|late| (DUE..latest).contains(&late)),
        "{late:?}"
    );
    // The time of the last call may be behind the world's own.
    let reached = world.now();
    assert!(reached > begun + DUE, "{reached:?}");
    world.poll_for(begun, &mut Slice::by_clock(DUE, clock));
    assert!(world.now() >= reached);
}
