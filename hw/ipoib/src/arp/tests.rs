use std::vec::Vec;

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

fn hardware(node: u8) -> HardwareAddress {
    HardwareAddress {
        flags: 0,
        qpn: Qpn::from_low_bits(0x100 + u32::from(node)),
        gid: Gid([node; 16]),
    }
}

fn sender(node: u8) -> Sender {
    Sender {
        gid: Some(hardware(node).gid),
        qpn: hardware(node).qpn,
    }
}

const fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 1, last)
}

fn packet(operation: u16, node: u8, from: Ipv4Addr, to: Ipv4Addr) -> ArpPacket {
    let mut packet = ArpPacket::for_ipv4();
    packet.arp.operation = operation.into();
    packet.arp.sender = hardware(node);
    packet.arp.sender_ip = from.octets();
    packet.arp.target_ip = to.octets();
    packet
}

/// Node 9 with address 9, after it has claimed the address.
fn holder() -> (Arp, Instant) {
    let mut arp = Arp::new(ip(9));
    let mut now = Instant::ZERO;
    arp.start(now, hardware(9));
    while let Some(next) = arp.poll_timeout() {
        now = next;
        arp.handle_timeout(now);
    }
    while arp.poll_transmit().is_some() {}
    (arp, now)
}

fn give(arp: &mut Arp, now: Instant, node: u8, packet: &ArpPacket) -> Option<ArpPacket> {
    arp.handle_packet(now, sender(node), packet.as_bytes())
}

#[test]
fn an_address_is_probed_three_times_and_announced_before_it_is_answered_for() {
    let mut arp = Arp::new(ip(9));
    arp.start(Instant::ZERO, hardware(9));
    let asked = packet(ARP_REQUEST, 1, ip(1), ip(9));
    let mut sent = Vec::new();
    loop {
        while let Some(packet) = arp.poll_transmit() {
            sent.push((packet.arp.sender_ip, packet.arp.target_ip));
        }
        let Some(next) = arp.poll_timeout() else {
            break;
        };
        assert_eq!(give(&mut arp, next, 1, &asked), None);
        arp.handle_timeout(next);
    }
    let (probe, own) = ([0; 4], ip(9).octets());
    let expected = [(probe, own), (probe, own), (probe, own), (own, own)];
    assert_eq!(sent, expected);
    let reply = give(&mut arp, Instant::ZERO, 1, &asked).unwrap();
    let mut expected = packet(ARP_REPLY, 9, ip(9), ip(1));
    expected.arp.target = hardware(1);
    assert_eq!(reply, expected);
    assert!(
        give(
            &mut arp,
            Instant::ZERO,
            1,
            &packet(ARP_REQUEST, 1, ip(1), ip(8))
        )
        .is_none()
    );
}

#[test]
fn an_address_that_no_node_has_is_asked_for_three_times_in_three_seconds() {
    let (mut arp, start) = holder();
    arp.resolve(start, ip(1));
    arp.resolve(start, ip(1));
    let mut times = Vec::new();
    while let Some(next) = arp.poll_timeout() {
        while let Some(packet) = arp.poll_transmit() {
            assert_eq!(packet, self::packet(ARP_REQUEST, 9, ip(9), ip(1)));
            times.push((next - start).as_secs());
        }
        assert_eq!(arp.poll_event(), None);
        arp.handle_timeout(next);
    }
    assert_eq!(times, [1, 2, 3]);
    assert_eq!(arp.poll_event(), Some(ArpEvent::Unresolved { ip: ip(1) }));
    assert_eq!(arp.poll_event(), None);
}

#[test]
fn a_look_up_waits_for_the_own_address_and_is_no_probe_of_the_other_one() {
    let mut arp = Arp::new(ip(1));
    let mut now = Instant::ZERO;
    arp.start(now, hardware(1));
    arp.resolve(now, ip(2));
    let mut sent = Vec::new();
    while !arp.holds_address() {
        now = arp.poll_timeout().unwrap();
        arp.handle_timeout(now);
    }
    while let Some(packet) = arp.poll_transmit() {
        sent.push((packet.arp.sender_ip, packet.arp.target_ip));
    }
    let none = Ipv4Addr::UNSPECIFIED;
    let probes = [(none, ip(1)); 3];
    let asked = [(ip(1), ip(1)), (ip(1), ip(2))];
    let expected = [&probes[..], &asked].concat();
    let expected = expected
        .into_iter()
        .map(|(from, to)| (from.octets(), to.octets()));
    assert_eq!(sent, expected.collect::<Vec<_>>());
}

#[test]
fn a_fresh_neighbour_keeps_its_address_and_a_stale_one_loses_it() {
    let (mut arp, mut now) = holder();
    arp.resolve(now, ip(1));
    assert!(give(&mut arp, now, 1, &packet(ARP_REPLY, 1, ip(1), ip(9))).is_none());
    let found = |node| {
        Some(ArpEvent::Resolved {
            ip: ip(1),
            gid: hardware(node).gid,
        })
    };
    assert_eq!(arp.poll_event(), found(1));
    let second = packet(ARP_REPLY, 2, ip(1), ip(9));
    give(&mut arp, now, 2, &second);
    assert_eq!(arp.counters().contested, 1);
    arp.resolve(now, ip(1));
    assert_eq!(arp.poll_event(), found(1));
    now += REACHABLE;
    arp.resolve(now, ip(1));
    assert_eq!(arp.poll_event(), None);
    give(&mut arp, now, 2, &second);
    assert_eq!(arp.poll_event(), found(2));
}

#[test]
fn the_first_node_keeps_an_address_and_the_second_has_it_once_it_is_free() {
    let (mut first, now) = holder();
    let mut second = Arp::new(ip(9));
    second.start(now, hardware(10));
    let probe = second.poll_transmit().unwrap();
    let defence = give(&mut first, now, 10, &probe).unwrap();
    assert!(give(&mut second, now, 9, &defence).is_none());
    let conflict = ArpEvent::Conflict {
        ip: ip(9),
        gid: hardware(9).gid,
        yields: true,
    };
    assert_eq!(second.poll_event(), Some(conflict));
    assert!(!second.holds_address() && first.holds_address());
    // From here on no node answers.
    while let Some(next) = second.poll_timeout() {
        second.handle_timeout(next);
    }
    assert!(second.holds_address());
    assert_eq!(second.poll_event(), None);
}

#[test]
fn another_claimant_of_a_held_address_is_reported_once() {
    let (mut arp, now) = holder();
    for node in [1, 1, 2] {
        give(
            &mut arp,
            now,
            node,
            &packet(ARP_REQUEST, node, ip(9), ip(3)),
        );
    }
    let conflict = ArpEvent::Conflict {
        ip: ip(9),
        gid: hardware(1).gid,
        yields: false,
    };
    assert_eq!(arp.poll_event(), Some(conflict));
    assert_eq!(arp.poll_event(), None);
    assert!(give(&mut arp, now, 3, &packet(ARP_REQUEST, 3, ip(3), ip(9))).is_some());
}

#[test]
fn forged_and_malformed_packets_are_counted_and_leave_nothing() {
    let (mut arp, now) = holder();
    arp.resolve(now, ip(1));
    let good = packet(ARP_REPLY, 1, ip(1), ip(9));
    let short = &good.as_bytes()[..59];
    assert!(arp.handle_packet(now, sender(1), short).is_none());
    let mut other = good;
    other.arp.operation = 3.into();
    give(&mut arp, now, 1, &other);
    assert_eq!(arp.counters().malformed, 2);
    // Of another node, of a group, from loopback.
    give(&mut arp, now, 2, &good);
    let mut group = good;
    group.arp.sender.gid = Gid([0xff; 16]);
    let to_group = Sender {
        gid: None,
        ..sender(1)
    };
    arp.handle_packet(now, to_group, group.as_bytes());
    let loopback = packet(ARP_REPLY, 1, Ipv4Addr::LOCALHOST, ip(9));
    give(&mut arp, now, 1, &loopback);
    assert_eq!(arp.counters().forged, 3);
    arp.handle_packet(now, sender(1), &[0x08, 0, 0, 0, 1]);
    assert_eq!(arp.counters().not_arp, 1);
    assert_eq!((arp.poll_event(), arp.neighbours()), (None, 0));
    // Without a GRH the queue pair decides.
    arp.handle_packet(now, to_group, good.as_bytes());
    assert!(arp.poll_event().is_some());
}

#[test]
fn neighbours_and_lookups_are_bounded() {
    let (mut arp, mut now) = holder();
    let address = |n: u32| Ipv4Addr::from_bits(0x0a4e_0000 + n);
    for n in 0..2000 {
        now += Duration::from_millis(1);
        give(&mut arp, now, 1, &packet(ARP_REQUEST, 1, address(n), ip(9)));
    }
    assert_eq!(arp.neighbours(), MAX_NEIGHBOURS);
    arp.resolve(now, address(1999));
    assert!(matches!(arp.poll_event(), Some(ArpEvent::Resolved { .. })));
    for n in 5000..7000 {
        arp.resolve(now, address(n));
    }
    let failed = core::iter::from_fn(|| arp.poll_event()).count();
    assert_eq!(failed, 2000 - MAX_LOOKUPS);
}

/// A step of a run of several nodes on one group.
#[derive(Clone, Debug)]
enum Step {
    /// A node starts with an address, and has three seconds.
    Start(u8, u8),
    /// A node goes.
    Stop(u8),
    /// A node looks an address up.
    Resolve(u8, u8),
    /// A node takes any bytes.
    Noise(u8, Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..80),
        (any::<[u8; 60]>(), 0..=60_usize).prop_map(|(noise, from)| {
            let mut bytes = packet(ARP_REPLY, 1, ip(1), ip(2)).as_bytes().to_vec();
            bytes[from..].copy_from_slice(&noise[from..]);
            bytes
        }),
    ];
    prop_oneof![
        (0..5_u8, 0..4_u8).prop_map(|(node, address)| Step::Start(node, address)),
        (0..5_u8).prop_map(Step::Stop),
        (0..5_u8, 0..4_u8).prop_map(|(node, address)| Step::Resolve(node, address)),
        (0..5_u8, bytes).prop_map(|(node, bytes)| Step::Noise(node, bytes)),
    ]
}

/// Nodes on one group that loses nothing.
#[derive(Default)]
struct Group {
    nodes: BTreeMap<u8, Arp>,
    now: Instant,
}

impl Group {
    /// Delivers all that is to be sent.
    fn settle(&mut self) {
        loop {
            let mut nodes = self.nodes.iter_mut();
            let sent = nodes.find_map(|(node, arp)| Some((*node, arp.poll_transmit()?)));
            let Some((from, packet)) = sent else { return };
            let others: Vec<u8> = self.nodes.keys().copied().filter(|n| *n != from).collect();
            for to in others {
                let arp = self.nodes.get_mut(&to).unwrap();
                if let Some(reply) = give(arp, self.now, from, &packet) {
                    let asker = self.nodes.get_mut(&from).unwrap();
                    assert!(give(asker, self.now, to, &reply).is_none());
                }
            }
        }
    }

    /// Advances the clock by a time, and runs the timers of all nodes on the way.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while let Some(next) = self.nodes.values().filter_map(Arp::poll_timeout).min()
            && next <= end
        {
            self.now = next;
            for arp in self.nodes.values_mut() {
                arp.handle_timeout(next);
            }
            self.settle();
        }
        self.now = end;
    }
}

proptest! {
    /// The model: the node that has an address keeps it until it goes, and then one of the others that wait for it has it.
    #[test]
    fn each_address_is_found_at_the_first_node_that_took_it(
        steps in proptest::collection::vec(step(), 1..40)
    ) {
        let mut group = Group::default();
        let mut takers: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        let mut holders: BTreeMap<u8, u8> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Start(node, address) if !group.nodes.contains_key(&(node + 1)) => {
                    let mut arp = Arp::new(ip(address));
                    arp.start(group.now, hardware(node + 1));
                    group.nodes.insert(node + 1, arp);
                    takers.entry(address).or_default().push(node + 1);
                }
                Step::Start(..) => {}
                Step::Stop(node) => {
                    group.nodes.remove(&(node + 1));
                    for own in takers.values_mut() {
                        own.retain(|other| *other != node + 1);
                    }
                }
                Step::Resolve(node, address) => {
                    let asks_itself = takers.get(&address).is_some_and(|own| own.contains(&(node + 1)));
                    let now = group.now;
                    let Some(arp) = group.nodes.get_mut(&(node + 1)) else { continue };
                    while arp.poll_event().is_some() {}
                    if asks_itself {
                        continue;
                    }
                    arp.resolve(now, ip(address));
                    group.pass(REQUEST_INTERVAL * 4);
                    let found = group.nodes.get_mut(&(node + 1)).unwrap().poll_event();
                    let holder = group.nodes.iter().find(|(_, arp)| arp.ip == ip(address) && arp.holds_address());
                    let unknown = ArpEvent::Unresolved { ip: ip(address) };
                    let at = |holder| ArpEvent::Resolved { ip: ip(address), gid: hardware(holder).gid };
                    let asks = group.nodes[&(node + 1)].holds_address();
                    let expected = holder.filter(|_| asks).map_or(unknown, |(holder, _)| at(*holder));
                    prop_assert_eq!(found, Some(expected));
                }
                Step::Noise(node, bytes) => {
                    let now = group.now;
                    if let Some(arp) = group.nodes.get_mut(&(node + 1)) {
                        let noise = Sender { gid: Some(Gid([0xee; 16])), qpn: Qpn::from_low_bits(7) };
                        arp.handle_packet(now, noise, &bytes);
                    }
                }
            }
            // Long enough for a node that yielded to probe once more, and for all neighbours to age.
            group.pass(YIELD_TIME * 2);
            for (address, own) in &takers {
                let holding = own.iter().copied();
                let holding = holding.filter(|node| group.nodes.get(node).is_some_and(Arp::holds_address));
                let holding: Vec<u8> = holding.collect();
                let kept = holders.remove(address).filter(|holder| own.contains(holder));
                let expected = kept.or_else(|| holding.first().copied());
                prop_assert_eq!(holding, Vec::from_iter(expected), "{}", address);
                prop_assert_eq!(expected.is_some(), !own.is_empty());
                holders.extend(expected.map(|holder| (*address, holder)));
            }
        }
    }
}
