//! Datagrams between the guests.

use hca_api::{AddressVector, UdAddress, UdDestination};
use ib_endpoint::group_destination;
use ib_endpoint::sa_client::Wish;
use ib_vtime::Duration;
use ib_wire::sa::{JoinState, McMemberRecord};
use ib_wire::{Gid, Lid, PKey, Sl};
use subnet_lite::sa::Sa;
use vhca_control::Facts;

use super::subnet;
use crate::demo::network::{NamedPort, QKEY};
use crate::demo::stage::{SOON, Stage, StepError, StepResult, ensure, gid};

/// The demo's group: transient, link-local scope.
const MGID: Gid = Gid([
    0xff, 0x12, 0x42, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a,
]);

/// How long to wait for copies that should not come.
const STRAGGLERS: Duration = Duration::from_millis(1);

/// Sends a datagram from a port to a port, along the path that the SA gave.
pub(super) fn send(
    stage: &mut Stage,
    from: NamedPort,
    to: NamedPort,
    message: &[u8],
) -> StepResult<()> {
    let (lid, qpn) = {
        let world = stage.world()?;
        let qpn = world.socket(to.socket).qp().numbers().external;
        (world.port(to.at).view().lid, qpn)
    };
    let destination = UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: from.at.port,
            dlid: lid,
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        }),
        qpn,
        qkey: QKEY,
        pkey_index: None,
    };
    stage.world()?.send(from.socket, &destination, message)?;
    Ok(())
}

/// Sends a datagram and waits until it arrives, unchanged and from where it was sent.
pub(super) fn exchange(
    stage: &mut Stage,
    from: NamedPort,
    to: NamedPort,
    message: &[u8],
) -> StepResult<()> {
    send(stage, from, to, message)?;
    let received = stage
        .receive_datagram(to, SOON)?
        .ok_or_else(|| StepError::failed(format!("no datagram arrived at {}", to.name)))?;
    let sender = stage.world()?.port(from.at).view().lid;
    ensure(
        received.bytes == message && received.source.slid == sender,
        || format!("{} received another datagram: {received:?}", to.name),
    )
}

pub(super) fn multicast(stage: &mut Stage) -> StepResult {
    let before = sa_requests(stage)?;
    for guest in stage.network.guests() {
        let joined = join(stage, guest)?;
        stage.group.get_or_insert(joined);
    }
    let asked = sa_requests(stage)? - before;
    let members = members_at_the_sa(stage)?;
    // Each port of a host asked once, for all of its guests.
    let hosts = stage.network.hosts.len();
    ensure(asked == hosts as u64 && members == hosts, || {
        format!("the SA was asked {asked} times, and has {members} members")
    })?;
    // The management host listens and is no member: only the subnet can keep the group from it.
    let mlid = stage.group()?.mlid;
    attach(stage, stage.network.manager, mlid)?;
    let reached = send_to_group(stage)?;
    Ok(Facts::new()
        .show("mgid", MGID)
        .show("mlid", mlid)
        .with("joined", stage.network.guests().len())
        .with("sets_at_the_sa", asked)
        .with("members_at_the_sa", members)
        .list("reached", reached)
        .list("not_reached", [stage.network.manager.name]))
}

/// Joins a guest to the group, and lets its socket listen.
pub(super) fn join(stage: &mut Stage, guest: NamedPort) -> StepResult<McMemberRecord> {
    let record = membership(gid(stage.world()?, guest));
    // The later members name the same as the one that makes the group.
    let mask = McMemberRecord::CREATE;
    let answer = stage.wish(guest, "join", Wish::Membership { record, mask })?;
    let granted: McMemberRecord = answer
        .record()
        .ok_or_else(|| StepError::failed("the SA's answer has no membership"))?;
    attach(stage, guest, granted.mlid)?;
    Ok(granted)
}

fn attach(stage: &mut Stage, port: NamedPort, mlid: Lid) -> StepResult<()> {
    let world = stage.world()?;
    let qp = world.socket(port.socket).qp().handle();
    Ok(world.with_hca(port.at.on(), |hca| hca.attach_multicast(qp, MGID, mlid))?)
}

/// Requests that the SA has received.
pub(super) fn sa_requests(stage: &mut Stage) -> StepResult<u64> {
    let manager = stage.network.manager.at.host;
    let running = stage.world()?.manager(manager);
    running
        .map(|manager| manager.sa().stats().requests)
        .ok_or_else(|| StepError::failed("the manager is gone"))
}

fn membership(port_gid: Gid) -> McMemberRecord {
    let mut record = McMemberRecord {
        mgid: MGID,
        port_gid,
        qkey: QKEY,
        pkey: PKey::DEFAULT_FULL,
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    record
}

/// Members of the demo's group, as the running SA has them.
pub(super) fn members_at_the_sa(stage: &mut Stage) -> StepResult<usize> {
    let manager = stage.network.manager.at.host;
    let running = stage.world()?.manager(manager);
    running
        .map(|manager| group_members(manager.sa()))
        .ok_or_else(|| StepError::failed("the manager is gone"))
}

/// Members of the demo's group, as an SA has them.
pub(super) fn group_members(sa: &Sa) -> usize {
    let group = sa.groups().find(|group| group.record.mgid == MGID);
    group.map_or(0, |group| group.members.len())
}

/// Sends a datagram from a guest to the group, and checks that exactly the guests get it, the sender
/// included. Gives their names.
pub(super) fn send_to_group(stage: &mut Stage) -> StepResult<Vec<&'static str>> {
    const MESSAGE: &[u8] = b"to the group";
    // A join is granted before the switches know of it.
    subnet::wait_until_settled(stage)?;
    let sender = stage.network.a(2);
    let destination = group_destination(sender.at.port, &stage.group()?);
    stage.world()?.send(sender.socket, &destination, MESSAGE)?;
    let mut reached = Vec::new();
    for port in stage.network.guests() {
        let received = stage
            .receive_datagram(port, SOON)?
            .ok_or_else(|| StepError::failed(format!("nothing arrived at {}", port.name)))?;
        ensure(received.bytes == MESSAGE && received.multicast, || {
            format!("{} received something else: {received:?}", port.name)
        })?;
        reached.push(port.name);
    }
    stage.pass(STRAGGLERS)?;
    let mut all = stage.network.guests();
    all.push(stage.network.manager);
    for port in all {
        let extra = stage.world()?.socket_mut(port.socket).receive();
        ensure(extra.is_none(), || {
            format!("{} got a copy that is not its own", port.name)
        })?;
    }
    Ok(reached)
}
