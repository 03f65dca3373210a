//! Connections between the hosts, from REQ to DREP, and what can come between.

use ib_endpoint::MadAddress;
use ib_endpoint::cm::{CmEventKind, ConnId, Rendezvous, State};
use ib_vtime::Duration;
use ib_wire::cm::{
    ApStatus, CmApr, CmLap, CmPath, CmRep, CmReq, CmSidrRep, CmSidrReq, RejReason, SidrStatus,
};
use ib_wire::sa::PathRecord;
use ib_wire::{Lid, PKey, Psn, Qpn, ServiceId};

use super::datagrams;
use crate::demo::Facts;
use crate::demo::network::{NamedPort, QKEY};
use crate::demo::stage::{Stage, StepError, StepResult, ensure};

/// The service that host-b listens for.
const SERVICE: ServiceId = ServiceId::new(0x0100_0000_0000_4242);

/// All bits of the service id count.
const EXACT: u64 = u64::MAX;

/// CM response timeouts in the REQ: 4.096 µs × 2^14 = 67 ms.
const RESPONSE_TIMEOUT: u8 = 14;

/// How often a CM message without an answer is sent again.
const MAX_CM_RETRIES: u8 = 3;

/// What the consumer says in the REQ and the REP.
const GREETING: &[u8] = b"hello";

/// The two ends of a connection.
struct Connection {
    path: PathRecord,
    active: ConnId,
    passive: ConnId,
    active_qpn: Qpn,
    passive_qpn: Qpn,
}

pub(super) fn connect(stage: &mut Stage) -> StepResult {
    let began = stage.now()?;
    let listener = listen(stage)?;
    let connection = establish(stage)?;
    let established = stage.now()?;
    let (a, b) = (stage.network.a1, stage.network.b1);
    let facts = Facts::new()
        .show("service", SERVICE)
        .show("active_qpn", connection.active_qpn)
        .show("passive_qpn", connection.passive_qpn)
        .show("active_comm_id", comm_id(stage, a, connection.active)?)
        .show("passive_comm_id", comm_id(stage, b, connection.passive)?)
        .millis("established_after_ms", established - began);
    disconnect(stage, &connection)?;
    stop_listening(stage, listener)?;
    Ok(facts.with("state_left", nothing_left(stage)?))
}

pub(super) fn reject(stage: &mut Stage) -> StepResult {
    let (a, b) = (stage.network.a1, stage.network.b1);
    let listener = listen(stage)?;
    let (_, active, _) = send_req(stage)?;
    let passive = wait_for_req(stage)?;
    let now = stage.now()?;
    stage
        .world()?
        .port_mut(b.at)
        .cm()
        .send_rej(now, passive, RejReason::CONSUMER, b"", b"no")?;
    let reason = stage.wait_cm(a, "REJ", |event| match &event.kind {
        CmEventKind::RejReceived(rej) if event.conn == active => Some(rej.reason),
        _ => None,
    })?;
    ensure(reason == RejReason::CONSUMER, || {
        format!("refused for {reason}, not by the consumer")
    })?;
    wait_for_time_wait(stage, b, passive)?;
    stop_listening(stage, listener)?;
    Ok(Facts::new()
        .show("reason", reason)
        .with("state_left", nothing_left(stage)?))
}

pub(super) fn abandon(stage: &mut Stage) -> StepResult {
    let (a, b) = (stage.network.a1, stage.network.b1);
    let listener = listen(stage)?;
    let began = stage.now()?;
    let (_, active, _) = send_req(stage)?;
    let passive = wait_for_req(stage)?;
    // host-b's consumer never answers: host-a's CM repeats the REQ, gives up, and says so.
    stage.wait_cm(a, "the end of the retries", |event| {
        (event.conn == active && matches!(event.kind, CmEventKind::ReqError)).then_some(())
    })?;
    let gave_up = stage.now()? - began;
    let reason = stage.wait_cm(b, "REJ", |event| match &event.kind {
        CmEventKind::RejReceived(rej) if event.conn == passive => Some(rej.reason),
        _ => None,
    })?;
    ensure(reason == RejReason::TIMEOUT, || {
        format!("abandoned for {reason}, not for the timeout")
    })?;
    wait_for_time_wait(stage, a, active)?;
    stop_listening(stage, listener)?;
    Ok(Facts::new()
        .with("req_transmissions", 1 + MAX_CM_RETRIES)
        .millis("gave_up_after_ms", gave_up)
        .show("reason", reason)
        .with("state_left", nothing_left(stage)?))
}

pub(super) fn migrate(stage: &mut Stage) -> StepResult {
    let (a, b) = (stage.network.a1, stage.network.b1);
    let listener = listen(stage)?;
    let connection = establish(stage)?;
    let alternate = alternate_path(stage, &connection.path)?;

    let mut lap = CmLap::default();
    lap.set_remote_cm_response_timeout(RESPONSE_TIMEOUT);
    lap.set_path(&cm_path(&alternate));
    let now = stage.now()?;
    let port = stage.world()?.port_mut(a.at);
    port.cm().send_lap(now, connection.active, &lap)?;
    let offered = stage.wait_cm(b, "LAP", |event| match &event.kind {
        CmEventKind::LapReceived { lap, .. } if event.conn == connection.passive => {
            Some(lap.path())
        }
        _ => None,
    })?;
    let now = stage.now()?;
    let port = stage.world()?.port_mut(b.at);
    port.cm()
        .send_apr(now, connection.passive, &CmApr::default())?;
    let status = stage.wait_cm(a, "APR", |event| match &event.kind {
        CmEventKind::AprReceived(apr) if event.conn == connection.active => Some(apr.ap_status),
        _ => None,
    })?;
    ensure(status == ApStatus::OK, || {
        format!("the alternate path was not loaded: {status}")
    })?;

    // Both sides move, and disconnect over the alternate path.
    let to_b = path_address(&alternate);
    let to_a = MadAddress {
        path_bits: path_bits(offered.remote_lid),
        ..MadAddress::gsi(offered.local_lid)
    };
    let world = stage.world()?;
    let cm = world.port_mut(a.at).cm();
    cm.set_address(connection.active, &to_b)?;
    let cm = world.port_mut(b.at).cm();
    cm.set_address(connection.passive, &to_a)?;
    disconnect(stage, &connection)?;
    stop_listening(stage, listener)?;
    Ok(Facts::new()
        .show("primary", lid_pair(&connection.path))
        .show("alternate", lid_pair(&alternate))
        .show("status", status)
        .with("disconnected_over_alternate", true)
        .with("state_left", nothing_left(stage)?))
}

pub(super) fn resolve_service(stage: &mut Stage) -> StepResult {
    let (a, b) = (stage.network.a1, stage.network.b1);
    let listener = listen(stage)?;
    let path = stage.path(a, b)?;
    let request = CmSidrReq {
        pkey: PKey::DEFAULT_FULL,
        service_id: SERVICE,
        ..CmSidrReq::default()
    };
    let now = stage.now()?;
    let asked = stage.world()?.port_mut(a.at).cm().send_sidr_req(
        now,
        &path_address(&path),
        &request,
        Duration::from_millis(100),
        MAX_CM_RETRIES,
    )?;
    let exchange = stage.wait_cm(b, "SIDR_REQ", |event| {
        matches!(event.kind, CmEventKind::SidrReqReceived { .. }).then_some(event.conn)
    })?;
    let now = stage.now()?;
    let world = stage.world()?;
    let answer = CmSidrRep {
        status: SidrStatus::OK,
        qpn: world.socket(b.socket).qp().numbers().external,
        qkey: QKEY,
        ..CmSidrRep::default()
    };
    let cm = world.port_mut(b.at).cm();
    cm.send_sidr_rep(now, exchange, &answer)?;
    let (qpn, qkey) = stage.wait_cm(a, "SIDR_REP", |event| match &event.kind {
        CmEventKind::SidrRepReceived { rep, .. } if event.conn == asked => {
            Some((rep.qpn, rep.qkey))
        }
        _ => None,
    })?;
    ensure((qpn, qkey) == (answer.qpn, answer.qkey), || {
        format!("SIDR gave QP {qpn} and Q_Key {qkey}")
    })?;
    datagrams::exchange(stage, a, b, GREETING)?;
    stop_listening(stage, listener)?;
    Ok(Facts::new()
        .show("qpn", qpn)
        .show("qkey", qkey)
        .with("datagram_delivered", true)
        .with("state_left", nothing_left(stage)?))
}

fn listen(stage: &mut Stage) -> StepResult<ConnId> {
    let b = stage.network.b1;
    let cm = stage.world()?.port_mut(b.at).cm();
    Ok(cm.listen(SERVICE, EXACT)?)
}

fn stop_listening(stage: &mut Stage, listener: ConnId) -> StepResult<()> {
    let b = stage.network.b1;
    let now = stage.now()?;
    let cm = stage.world()?.port_mut(b.at).cm();
    Ok(cm.destroy(now, listener)?)
}

/// Sets a QP number aside on a port's adapter, for a QP that exchanges no packets.
fn reserve_qpn(stage: &mut Stage, port: NamedPort) -> StepResult<Qpn> {
    let world = stage.world()?;
    Ok(world.with_hca(port.at.host, |hca| hca.reserve_qpns(1, 1))?)
}

/// Sends a REQ from host-a to host-b along the path that the SA gives.
fn send_req(stage: &mut Stage) -> StepResult<(PathRecord, ConnId, Qpn)> {
    let (a, b) = (stage.network.a1, stage.network.b1);
    let path = stage.path(a, b)?;
    let qpn = reserve_qpn(stage, a)?;
    let mut req = CmReq {
        service_id: SERVICE,
        local_qpn: qpn,
        responder_resources: 4,
        initiator_depth: 4,
        starting_psn: Psn::from_low_bits(1),
        pkey: path.pkey,
        primary: cm_path(&path),
        ..CmReq::default()
    };
    req.set_remote_cm_response_timeout(RESPONSE_TIMEOUT);
    req.set_local_cm_response_timeout(RESPONSE_TIMEOUT);
    req.set_max_cm_retries(MAX_CM_RETRIES);
    req.set_retry_count(7);
    req.set_rnr_retry_count(7);
    req.set_mtu(path.mtu_value());
    req.private_data[..GREETING.len()].copy_from_slice(GREETING);
    let now = stage.now()?;
    let active = stage.world()?.port_mut(a.at).cm().send_req(
        now,
        &path_address(&path),
        &req,
        Rendezvous::ClientServer,
    )?;
    Ok((path, active, qpn))
}

/// Waits until the REQ is at host-b, with its private data.
fn wait_for_req(stage: &mut Stage) -> StepResult<ConnId> {
    let b = stage.network.b1;
    let (passive, said) = stage.wait_cm(b, "REQ", |event| match &event.kind {
        CmEventKind::ReqReceived { req, .. } => Some((event.conn, req.private_data)),
        _ => None,
    })?;
    ensure(said.starts_with(GREETING), || {
        "the REQ's private data is not what was sent".to_owned()
    })?;
    Ok(passive)
}

/// Connects host-a to host-b: REQ, REP, RTU.
fn establish(stage: &mut Stage) -> StepResult<Connection> {
    let (a, b) = (stage.network.a1, stage.network.b1);
    let (path, active, active_qpn) = send_req(stage)?;
    let passive = wait_for_req(stage)?;
    let passive_qpn = reserve_qpn(stage, b)?;
    let rep = CmRep {
        local_qpn: passive_qpn,
        starting_psn: Psn::from_low_bits(2),
        responder_resources: 4,
        initiator_depth: 4,
        ..CmRep::default()
    };
    let now = stage.now()?;
    let cm = stage.world()?.port_mut(b.at).cm();
    cm.send_rep(now, passive, &rep)?;
    let peer = stage.wait_cm(a, "REP", |event| match &event.kind {
        CmEventKind::RepReceived(rep) if event.conn == active => Some(rep.local_qpn),
        _ => None,
    })?;
    ensure(peer == passive_qpn, || format!("the REP names QP {peer}"))?;
    let now = stage.now()?;
    let cm = stage.world()?.port_mut(a.at).cm();
    cm.send_rtu(now, active, b"")?;
    stage.wait_cm(b, "RTU", |event| {
        (event.conn == passive && matches!(event.kind, CmEventKind::RtuReceived(_))).then_some(())
    })?;
    for (port, conn) in [(a, active), (b, passive)] {
        let info = stage.world()?.port_mut(port.at).cm().info(conn);
        ensure(info.is_some_and(|i| i.state == State::Established), || {
            format!("not established at {}: {info:?}", port.name)
        })?;
    }
    Ok(Connection {
        path,
        active,
        passive,
        active_qpn,
        passive_qpn,
    })
}

/// Disconnects from host-a: DREQ, DREP, and time-wait on both sides.
fn disconnect(stage: &mut Stage, connection: &Connection) -> StepResult<()> {
    let (a, b) = (stage.network.a1, stage.network.b1);
    let now = stage.now()?;
    let cm = stage.world()?.port_mut(a.at).cm();
    cm.send_dreq(now, connection.active, b"")?;
    stage.wait_cm(b, "DREQ", |event| {
        let is_dreq = matches!(event.kind, CmEventKind::DreqReceived(_));
        (event.conn == connection.passive && is_dreq).then_some(())
    })?;
    let now = stage.now()?;
    let cm = stage.world()?.port_mut(b.at).cm();
    cm.send_drep(now, connection.passive, b"")?;
    stage.wait_cm(a, "DREP", |event| {
        let is_drep = matches!(event.kind, CmEventKind::DrepReceived(_));
        (event.conn == connection.active && is_drep).then_some(())
    })?;
    wait_for_time_wait(stage, a, connection.active)?;
    wait_for_time_wait(stage, b, connection.passive)
}

fn wait_for_time_wait(stage: &mut Stage, port: NamedPort, conn: ConnId) -> StepResult<()> {
    stage.wait_cm(port, "the end of time-wait", |event| {
        (event.conn == conn && matches!(event.kind, CmEventKind::TimeWaitExit)).then_some(())
    })
}

fn comm_id(stage: &mut Stage, port: NamedPort, conn: ConnId) -> StepResult<ib_wire::CommId> {
    let info = stage.world()?.port_mut(port.at).cm().info(conn);
    info.map(|info| info.local_id)
        .ok_or_else(|| StepError::failed("the connection is gone"))
}

/// Waits until neither side holds anything of a connection any more. Gives what is left: 0.
fn nothing_left(stage: &mut Stage) -> StepResult<usize> {
    let ports = [stage.network.a1, stage.network.b1];
    stage.wait_for("no connection, timer or buffer left", |world| {
        let left = ports.map(|port| {
            let sizes = world.port_mut(port.at).cm().table_sizes();
            sizes.connections + sizes.local_ids + sizes.timers + sizes.buffers + sizes.listeners
        });
        let left: usize = left.iter().sum();
        (left == 0).then_some(left)
    })
}

/// The path of a REQ or a LAP from the SA's record.
fn cm_path(record: &PathRecord) -> CmPath {
    let mut path = CmPath {
        local_lid: record.slid,
        remote_lid: record.dlid,
        local_gid: record.sgid,
        remote_gid: record.dgid,
        traffic_class: record.traffic_class,
        hop_limit: record.hop_limit(),
        ..CmPath::default()
    };
    path.set_flow_label(record.flow_label());
    path.set_rate(record.rate_value());
    path.set_sl(record.sl());
    path.set_subnet_local(true);
    // Twice the packet life time: one more in the exponent (IBA 12.7.34).
    path.set_local_ack_timeout(record.packet_life_time_value() + 1);
    path
}

/// The address of the QP1 at the end of a path.
fn path_address(path: &PathRecord) -> MadAddress {
    MadAddress {
        sl: path.sl(),
        path_bits: path_bits(path.slid),
        ..MadAddress::gsi(path.dlid)
    }
}

/// The lowest bit of a LID: which of a port's two LIDs it is.
fn path_bits(lid: Lid) -> u8 {
    u8::from(lid.get() & 1 == 1)
}

/// The path between the same ports by their second LIDs, as the SA confirms it.
fn alternate_path(stage: &mut Stage, primary: &PathRecord) -> StepResult<PathRecord> {
    let second = |lid: Lid| Lid::new(lid.get() | 1);
    let request =
        ib_endpoint::SaRequest::path_by_lids(second(primary.slid), second(primary.dlid), None);
    let a = stage.network.a1;
    let answer = stage.query(a, "alternate path query", request)?;
    let path: PathRecord = answer
        .record()
        .ok_or_else(|| StepError::failed("the SA's answer has no path record"))?;
    ensure(path.dlid != primary.dlid, || {
        "the alternate path is the primary one".to_owned()
    })?;
    Ok(path)
}

fn lid_pair(path: &PathRecord) -> String {
    format!("{}->{}", path.slid, path.dlid)
}
