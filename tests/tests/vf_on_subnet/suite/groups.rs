//! Multicast groups of VFs that programs hold, on a subnet with a manager.

use std::time::Duration;

use emulated_hca::LinkState;
use hca_api::Hca;
use ib_vtime::Instant;
use ib_wire::sa::{JoinState, McMemberRecord};
use ib_wire::{Gid, Lid, PKey, QKey};
use vf_proxy::native::{
    GroupEvent, GroupId, GroupSpec, Partition, UdQpId, UdQpSpec, VfPortError, VfPortEvent,
    VirtualHca, VirtualHcaConfig, VirtualHcaEvent,
};
use vhca_tests::vf_subnet::{PORT, VfAt};

use super::{VfSubnet, start};

const QKEY: QKey = QKey::new(0x1234);

const A1: VfAt = VfAt { host: 0, vf: 1 };
const A2: VfAt = VfAt { host: 0, vf: 2 };
const B1: VfAt = VfAt { host: 1, vf: 1 };

/// A transient group of link-local scope.
const fn mgid(number: u8) -> Gid {
    let mut mgid = [0; 16];
    mgid[0] = 0xff;
    mgid[1] = 0x12;
    mgid[2] = 0x42;
    mgid[15] = number;
    Gid(mgid)
}

fn spec(number: u8, kind: JoinState) -> GroupSpec {
    GroupSpec::create(mgid(number), kind, PKey::DEFAULT_FULL, QKEY)
}

fn open_qp(subnet: &mut VfSubnet, at: VfAt) -> UdQpId {
    let spec = UdQpSpec {
        block_multicast_loopback: true,
        ..UdQpSpec::new(Partition::Key(PKey::DEFAULT_FULL), QKEY)
    };
    subnet
        .on_port(at, |_, port, hca| port.open_qp(hca, &spec))
        .expect("a queue pair")
}

fn wait_group(subnet: &mut VfSubnet, at: VfAt, of: GroupId) -> GroupEvent {
    subnet.wait(at, |event| match event {
        VfPortEvent::Group { group, event } if *group == of => Some(event.clone()),
        _ => None,
    })
}

fn wait_joined(subnet: &mut VfSubnet, at: VfAt, group: GroupId) -> McMemberRecord {
    match wait_group(subnet, at, group) {
        GroupEvent::Joined(record) => *record,
        event => panic!("{event:?}"),
    }
}

/// A VF with a queue pair that listens to a group.
#[derive(Clone, Copy)]
struct Member {
    at: VfAt,
    group: GroupId,
    qp: UdQpId,
    mlid: Lid,
}

fn join(subnet: &mut VfSubnet, at: VfAt, spec: GroupSpec) -> Member {
    let qp = open_qp(subnet, at);
    let group = subnet
        .on_port(at, |now, port, hca| {
            let group = port.join(now, spec)?;
            port.attach(hca, group, qp)?;
            Ok::<_, VfPortError>(group)
        })
        .expect("a group");
    let mlid = wait_joined(subnet, at, group).mlid;
    // A join is granted before the switches know of it.
    subnet.run_for(Duration::from_secs(2));
    Member {
        at,
        group,
        qp,
        mlid,
    }
}

fn leave(subnet: &mut VfSubnet, member: Member) {
    subnet
        .on_port(member.at, |now, port, hca| {
            port.leave(now, hca, member.group)
        })
        .expect("a group");
    let left = wait_group(subnet, member.at, member.group);
    assert_eq!(left, GroupEvent::Left(Ok(())));
    subnet.run_for(Duration::from_secs(2));
}

fn send(subnet: &mut VfSubnet, from: Member) {
    subnet
        .on_port(from.at, |_, port, hca| {
            port.send_to_group(hca, from.qp, from.group, b"to all")
        })
        .expect("it is sent");
    subnet.run_for(Duration::from_millis(1));
}

/// How many messages each of them got since they were asked last.
fn received<const N: usize>(subnet: &mut VfSubnet, members: [Member; N]) -> [usize; N] {
    members.map(|member| {
        subnet.on_port(member.at, |_, port, hca| {
            std::iter::from_fn(|| port.receive(hca, member.qp))
                .inspect(|got| assert!(got.multicast && got.bytes == b"to all"))
                .count()
        })
    })
}

#[test]
fn a_message_reaches_the_members_and_nobody_who_left() {
    let mut subnet = start(1, 2, 2);
    let full = spec(1, JoinState::FULL_MEMBER);
    let members = [A1, A2, B1].map(|at| join(&mut subnet, at, full));
    let [a1, a2, b1] = members;
    assert_eq!((a1.mlid, a1.mlid), (a2.mlid, b1.mlid));
    send(&mut subnet, a1);
    assert_eq!(received(&mut subnet, members), [0, 1, 1]);
    assert_eq!(subnet.owned(A2).attachments, 1);
    leave(&mut subnet, a2);
    assert_eq!(subnet.owned(A2).attachments, 0);
    send(&mut subnet, b1);
    assert_eq!(received(&mut subnet, members), [1, 0, 0]);
    let gone = subnet.on_port(A2, |_, port, hca| {
        port.send_to_group(hca, a2.qp, a2.group, b"x")
    });
    assert_eq!(gone, Err(VfPortError::NoGroup));
    // The way back is open.
    let a2 = join(&mut subnet, A2, full);
    send(&mut subnet, a1);
    assert_eq!(received(&mut subnet, [a1, a2, b1]), [0, 1, 1]);
}

#[test]
fn a_member_that_only_sends_hears_nothing() {
    let mut subnet = start(1, 2, 2);
    let [a1, b1] = [A1, B1].map(|at| join(&mut subnet, at, spec(1, JoinState::FULL_MEMBER)));
    let a2 = join(&mut subnet, A2, spec(1, JoinState::SEND_ONLY_NON_MEMBER));
    assert_eq!(subnet.owned(A2).attachments, 0);
    for from in [a1, a2] {
        send(&mut subnet, from);
    }
    assert_eq!(received(&mut subnet, [a1, a2, b1]), [1, 0, 2]);
}

#[test]
fn a_port_is_once_a_member_of_a_group() {
    let mut subnet = start(1, 1, 1);
    let full = spec(1, JoinState::FULL_MEMBER);
    let a1 = join(&mut subnet, A1, full);
    let again = |subnet: &mut VfSubnet| subnet.on_port(A1, |now, port, _| port.join(now, full));
    assert_eq!(again(&mut subnet), Err(VfPortError::AlreadyJoined));
    subnet
        .on_port(A1, |now, port, hca| port.leave(now, hca, a1.group))
        .expect("a group");
    assert_eq!(again(&mut subnet), Err(VfPortError::AlreadyJoined));
    wait_group(&mut subnet, A1, a1.group);
    assert!(again(&mut subnet).is_ok());
}

#[test]
fn a_group_without_a_gid_gets_one_of_the_sas_choice() {
    let mut subnet = start(1, 2, 1);
    let mut any = spec(0, JoinState::FULL_MEMBER);
    any.record.mgid = Gid::NONE;
    any.record.set_scope(2);
    let a1 = join(&mut subnet, A1, any);
    let made = subnet
        .on_port(A1, |_, port, _| port.membership(a1.group).copied())
        .expect("a membership");
    assert!(made.mgid.is_multicast());
    let by_name = GroupSpec::join(made.mgid, JoinState::FULL_MEMBER);
    let b1 = join(&mut subnet, B1, by_name);
    send(&mut subnet, b1);
    assert_eq!(received(&mut subnet, [a1, b1]), [1, 0]);
    leave(&mut subnet, a1);
    leave(&mut subnet, b1);
    let left = subnet
        .sm()
        .sa()
        .groups()
        .any(|group| group.record.mgid == made.mgid);
    assert!(!left, "nobody is in the group any more");
}

#[test]
fn a_join_that_the_sa_refuses_is_told_and_forgotten() {
    let mut subnet = start(1, 1, 1);
    let (group, refused) = {
        let nowhere = GroupSpec::join(mgid(9), JoinState::NON_MEMBER);
        let group = subnet
            .on_port(A1, |now, port, _| port.join(now, nowhere))
            .expect("a wish");
        (group, wait_group(&mut subnet, A1, group))
    };
    assert!(
        matches!(refused, GroupEvent::Refused { retry_at: None, .. }),
        "{refused:?}"
    );
    let left = subnet.on_port(A1, |now, port, hca| port.leave(now, hca, group));
    assert_eq!(left, Err(VfPortError::NoGroup));
}

#[test]
fn an_attachment_beyond_the_quota_is_told_and_the_others_stand() {
    let mut subnet = start(1, 1, 1);
    let full = spec(1, JoinState::FULL_MEMBER);
    let a1 = join(&mut subnet, A1, full);
    for _ in 1..8 {
        let qp = open_qp(&mut subnet, A1);
        subnet
            .on_port(A1, |_, port, hca| port.attach(hca, a1.group, qp))
            .expect("it is attached");
    }
    let ninth = open_qp(&mut subnet, A1);
    let refused = subnet.on_port(A1, |_, port, hca| port.attach(hca, a1.group, ninth));
    assert_eq!(
        refused,
        Err(hca_api::HcaError::InsufficientResources.into())
    );
    assert_eq!(subnet.owned(A1).attachments, 8);
    subnet
        .on_port(A1, |_, port, hca| port.detach(hca, a1.group, a1.qp))
        .expect("it listens");
    subnet
        .on_port(A1, |_, port, hca| port.attach(hca, a1.group, ninth))
        .expect("there is room");
    subnet.close(A1);
    assert_eq!(subnet.owned(A1).attachments, 0);
}

#[test]
fn a_new_sa_grants_memberships_again_without_the_queue_pairs_noticing() {
    let mut subnet = start(1, 2, 2);
    let [a1, b1] = [A1, B1].map(|at| join(&mut subnet, at, spec(2, JoinState::FULL_MEMBER)));
    subnet.restart_manager();
    for member in [a1, b1] {
        wait_joined(&mut subnet, member.at, member.group);
    }
    subnet.run_for(Duration::from_secs(2));
    send(&mut subnet, a1);
    assert_eq!(received(&mut subnet, [a1, b1]), [0, 1]);
    assert_eq!(subnet.owned(A1).attachments, 1);
}

#[test]
fn closing_a_vf_ends_its_memberships_at_the_sa() {
    let mut subnet = start(1, 2, 1);
    let [a1, _] = [A1, B1].map(|at| join(&mut subnet, at, spec(1, JoinState::FULL_MEMBER)));
    let members = |subnet: &VfSubnet| {
        let group = subnet
            .sm()
            .sa()
            .groups()
            .find(|group| group.record.mgid == mgid(1));
        group.map_or(0, |group| group.members.len())
    };
    assert_eq!(members(&subnet), 2);
    subnet.close(a1.at);
    subnet.run_for(Duration::from_secs(2));
    assert_eq!(members(&subnet), 1);
}

/// What the SA said of a membership before its program left the group, and took no event, holds nothing up.
#[test]
fn a_group_that_is_left_before_its_refusal_is_told_can_be_joined_again() {
    let mut subnet = start(1, 1, 1);
    subnet.close(A1);
    subnet.on_vf(A1, |now, hca, function| {
        let config = VirtualHcaConfig {
            // No event of the software below is taken.
            max_pending: 0,
            ..VirtualHcaConfig::new(7)
        };
        *hca = Some(VirtualHca::open(now, function, config).expect("a VF"));
    });
    // There is no such group, and this does not make one.
    let spec = GroupSpec::join(mgid(1), JoinState::FULL_MEMBER);
    let group = subnet.on_port(A1, |now, port, _| port.join(now, spec));
    let group = group.expect("a group");
    subnet.run_for(Duration::from_secs(2));
    let left = subnet.on_port(A1, |now, port, hca| port.leave(now, hca, group));
    assert_eq!(left, Ok(()));
    let told = wait_group(&mut subnet, A1, group);
    assert_eq!(told, GroupEvent::Left(Ok(())));
    let again = subnet.on_port(A1, |now, port, _| port.join(now, spec));
    assert!(again.is_ok(), "{again:?}");
}

/// A VF whose program takes one event at a time, and whose software has its turn only when the test gives it.
struct Slow(VirtualHca);

impl Slow {
    fn open(subnet: &mut VfSubnet, at: VfAt) -> Self {
        subnet.close(at);
        let opened = subnet.on_vf(at, |now, _, function| {
            let config = VirtualHcaConfig {
                max_pending: 1,
                ..VirtualHcaConfig::new(7)
            };
            VirtualHca::open(now, function, config)
        });
        Self(opened.expect("a VF"))
    }

    fn on<T>(
        &mut self,
        subnet: &mut VfSubnet,
        at: VfAt,
        call: impl FnOnce(Instant, &mut VirtualHca, &mut dyn Hca) -> T,
    ) -> T {
        subnet.on_vf(at, |now, _, function| call(now, &mut self.0, function))
    }

    /// Asks for two groups. What the SA says of the second waits until the program has taken what it says of the first.
    fn join_two(&mut self, subnet: &mut VfSubnet, at: VfAt) -> [GroupId; 2] {
        self.on(subnet, at, |now, own, hca| {
            let port = own.port_mut(PORT).expect("the port");
            let spec = |number| spec(number, JoinState::FULL_MEMBER);
            let groups = [1, 2].map(|number| port.join(now, spec(number)).expect("a group"));
            own.poll(now, hca);
            groups
        })
    }

    /// Leaves the second group before its program has taken any event, and gives all that is told then.
    fn leave(mut self, subnet: &mut VfSubnet, at: VfAt, group: GroupId) -> Vec<VfPortEvent> {
        self.on(subnet, at, |now, own, hca| {
            own.poll(now, hca);
            let port = own.port_mut(PORT).expect("the port");
            assert_eq!(port.end_port().sa().sizes().events, 1, "of the group");
            port.leave(now, hca, group).expect("a group");
        });
        subnet.on_vf(at, |_, slot, _| *slot = Some(self.0));
        subnet.run_for(Duration::from_secs(10));
        let events = std::iter::from_fn(|| subnet.poll_event(at));
        let of_port = |event| match event {
            VirtualHcaEvent::Port { event, .. } => Some(event),
            _ => None,
        };
        events.filter_map(of_port).collect()
    }
}

fn of_group(events: &[VfPortEvent], of: GroupId) -> Vec<&GroupEvent> {
    let events = events.iter().filter_map(|event| match event {
        VfPortEvent::Group { group, event } if *group == of => Some(event),
        _ => None,
    });
    events.collect()
}

fn is_of_a_group(event: &VfPortEvent) -> bool {
    matches!(event, VfPortEvent::Group { .. })
}

#[test]
fn what_was_granted_before_its_group_was_left_is_told_nobody() {
    let mut subnet = start(1, 1, 1);
    let mut slow = Slow::open(&mut subnet, A1);
    let [first, second] = slow.join_two(&mut subnet, A1);
    subnet.run_for(Duration::from_secs(2));
    let told = slow.leave(&mut subnet, A1, second);
    assert!(told.iter().all(is_of_a_group), "{told:?}");
    let [GroupEvent::Joined(_)] = of_group(&told, first)[..] else {
        panic!("{told:?}");
    };
    assert_eq!(of_group(&told, second), [&GroupEvent::Left(Ok(()))]);
    let granted: Vec<Gid> = subnet
        .sm()
        .sa()
        .groups()
        .map(|group| group.record.mgid)
        .collect();
    assert!(granted.contains(&mgid(1)) && !granted.contains(&mgid(2)));
}

#[test]
fn what_was_refused_before_its_group_was_left_is_told_nobody() {
    let mut subnet = start(1, 1, 1);
    let mut slow = Slow::open(&mut subnet, A1);
    // The SA cannot be reached for as long as it is asked.
    let cable = subnet.fabric_mut().links().next().expect("the manager's");
    subnet.fabric_mut().set_link(cable, LinkState::Down);
    let [first, second] = slow.join_two(&mut subnet, A1);
    let end = subnet.now() + Duration::from_secs(20);
    let is_refused = |slow: &Slow| {
        let port = slow.0.port(PORT).expect("the port");
        port.end_port().sa().sizes().queries == 0
    };
    while !is_refused(&slow) {
        assert!(subnet.now() < end);
        subnet.run_for(Duration::from_millis(100));
        slow.on(&mut subnet, A1, |now, own, hca| own.poll(now, hca));
    }
    subnet.fabric_mut().set_link(cable, LinkState::Up);
    let told = slow.leave(&mut subnet, A1, second);
    let [GroupEvent::Refused { retry_at, .. }, ..] = of_group(&told, first)[..] else {
        panic!("{told:?}");
    };
    assert!(retry_at.is_some());
    let of_second = of_group(&told, second);
    assert!(matches!(of_second[..], [GroupEvent::Left(_)]), "{told:?}");
    let of_the_sa = |event: &&VfPortEvent| matches!(event, VfPortEvent::Sa(_));
    assert_eq!(told.iter().find(of_the_sa), None);
}
