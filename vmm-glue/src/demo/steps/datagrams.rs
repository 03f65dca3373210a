//! Datagrams between the hosts.

use hca_api::{AddressVector, GlobalRoute, UdAddress, UdDestination};
use ib_endpoint::sa_client::Wish;
use ib_vtime::Duration;
use ib_wire::sa::{JoinState, McMemberRecord};
use ib_wire::{Gid, GidIndex, Lid, PKey, Qpn, Sl};
use subnet_lite::sa::Sa;

use super::subnet;
use crate::demo::Facts;
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
    let mut mlid = Lid::NONE;
    for port in members(stage) {
        let record = membership(gid(stage.world()?, port));
        // What a group needs to be made (IBA 15.2.5.17); the later members name the same.
        let mask = McMemberRecord::QKEY
            | McMemberRecord::TRAFFIC_CLASS
            | McMemberRecord::PKEY
            | McMemberRecord::SL
            | McMemberRecord::FLOW_LABEL;
        let answer = stage.wish(port, "join", Wish::Membership { record, mask })?;
        let granted: McMemberRecord = answer
            .record()
            .ok_or_else(|| StepError::failed("the SA's answer has no membership"))?;
        mlid = granted.mlid;
    }
    // Every port listens, members or not: only the subnet can keep the group from the others.
    for port in stage.network.ports() {
        let world = stage.world()?;
        let qp = world.socket(port.socket).qp().handle();
        world.with_hca(port.at.host, |hca| hca.attach_multicast(qp, MGID, mlid))?;
    }
    stage.group = Some(mlid);
    let reached = send_to_group(stage)?;
    Ok(Facts::new()
        .show("mgid", MGID)
        .show("mlid", mlid)
        .list("reached", reached)
        .list("not_reached", others(stage).iter().map(|port| port.name)))
}

/// The ports that are in the group.
const fn members(stage: &Stage) -> [NamedPort; 3] {
    let network = &stage.network;
    [network.a1, network.b1, network.b2]
}

/// The ports that are not.
const fn others(stage: &Stage) -> [NamedPort; 2] {
    let network = &stage.network;
    [network.manager, network.a2]
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

/// Members of the demo's group, as the SA has them.
pub(super) fn group_members(sa: &Sa) -> usize {
    let group = sa.groups().find(|group| group.record.mgid == MGID);
    group.map_or(0, |group| group.members.len())
}

/// Sends a datagram from a member to the group, and checks that exactly the members get it, the
/// sender included. Gives their names.
pub(super) fn send_to_group(stage: &mut Stage) -> StepResult<Vec<&'static str>> {
    const MESSAGE: &[u8] = b"to the group";
    // A join is granted before the switches know of it.
    subnet::wait_until_settled(stage)?;
    let mlid = stage
        .group
        .ok_or_else(|| StepError::failed("no group was made"))?;
    let sender = stage.network.a1;
    let destination = UdDestination {
        address: UdAddress::Vector(AddressVector {
            port: sender.at.port,
            dlid: mlid,
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: Some(GlobalRoute {
                remote_gid: MGID,
                sgid_index: GidIndex(0),
                flow_label: 0,
                hop_limit: 0,
                traffic_class: 0,
            }),
        }),
        qpn: Qpn::MULTICAST,
        qkey: QKEY,
        pkey_index: None,
    };
    stage.world()?.send(sender.socket, &destination, MESSAGE)?;
    let mut reached = Vec::new();
    for port in members(stage) {
        let received = stage
            .receive_datagram(port, SOON)?
            .ok_or_else(|| StepError::failed(format!("nothing arrived at {}", port.name)))?;
        ensure(received.bytes == MESSAGE && received.multicast, || {
            format!("{} received something else: {received:?}", port.name)
        })?;
        reached.push(port.name);
    }
    stage.pass(STRAGGLERS)?;
    for port in stage.network.ports() {
        let extra = stage.world()?.socket_mut(port.socket).receive();
        ensure(extra.is_none(), || {
            format!("{} got a copy that is not its own", port.name)
        })?;
    }
    Ok(reached)
}
