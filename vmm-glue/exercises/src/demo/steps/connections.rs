//! Connections between guests of one host and of two, from REQ to DREP, and what can come between.

use ib_endpoint::cm::{CmEventKind, ConnId, Rendezvous, State};
use ib_endpoint::{PortPath, SaRequest};
use ib_vtime::Duration;
use ib_wire::cm::{ApStatus, CmApr, CmLap, CmPath, CmRep, CmReq, CmSidrRep, RejReason, SidrStatus};
use ib_wire::sa::PathRecord;
use ib_wire::{Gid, Lid, Psn, Qpn, ServiceId};
use vhca_control::Facts;

use super::datagrams;
use crate::demo::network::{NamedPort, QKEY};
use crate::demo::stage::{Stage, StepError, StepResult, ensure};

/// The service that the listening guest offers.
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
pub(super) struct Connection {
    pair: Pair,
    path: PortPath,
    pub(super) active: ConnId,
    pub(super) passive: ConnId,
    active_qpn: Qpn,
    passive_qpn: Qpn,
}

/// Two guests: the one that asks, and the one that listens.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) a: NamedPort,
    pub(super) b: NamedPort,
}

impl Pair {
    /// Two guests of one host.
    fn siblings(stage: &Stage) -> Self {
        Self {
            a: stage.network.a(1),
            b: stage.network.a(2),
        }
    }

    /// Guests of two hosts.
    pub(super) fn strangers(stage: &Stage) -> Self {
        Self {
            a: stage.network.a(1),
            b: stage.network.b(1),
        }
    }
}

pub(super) fn connect_siblings(stage: &mut Stage) -> StepResult {
    let pair = Pair::siblings(stage);
    connect(stage, pair)
}

pub(super) fn connect_strangers(stage: &mut Stage) -> StepResult {
    let pair = Pair::strangers(stage);
    connect(stage, pair)
}

fn connect(stage: &mut Stage, pair: Pair) -> StepResult {
    let began = stage.now()?;
    let listener = listen(stage, pair)?;
    let connection = establish(stage, pair)?;
    let established = stage.now()?;
    let facts = Facts::new()
        .list("guests", [pair.a.name, pair.b.name])
        .show("service", SERVICE)
        .show("active_qpn", connection.active_qpn)
        .show("passive_qpn", connection.passive_qpn)
        .show("active_comm_id", comm_id(stage, pair.a, connection.active)?)
        .show(
            "passive_comm_id",
            comm_id(stage, pair.b, connection.passive)?,
        )
        .millis("established_after_ms", established - began);
    disconnect(stage, &connection)?;
    stop_listening(stage, pair, listener)?;
    Ok(facts.with("state_left", nothing_left(stage, pair)?))
}

pub(super) fn reject(stage: &mut Stage) -> StepResult {
    let pair = Pair::strangers(stage);
    let Pair { a, b } = pair;
    let listener = listen(stage, pair)?;
    let (_, active, _) = send_req(stage, pair)?;
    let passive = wait_for_req(stage, pair)?;
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
    stop_listening(stage, pair, listener)?;
    Ok(Facts::new()
        .show("reason", reason)
        .with("state_left", nothing_left(stage, pair)?))
}

pub(super) fn abandon(stage: &mut Stage) -> StepResult {
    let pair = Pair::strangers(stage);
    let Pair { a, b } = pair;
    let listener = listen(stage, pair)?;
    let began = stage.now()?;
    let (_, active, _) = send_req(stage, pair)?;
    let passive = wait_for_req(stage, pair)?;
    // The listener's consumer never answers: the other's CM repeats the REQ, gives up, and says so.
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
    stop_listening(stage, pair, listener)?;
    Ok(Facts::new()
        .with("req_transmissions", 1 + MAX_CM_RETRIES)
        .millis("gave_up_after_ms", gave_up)
        .show("reason", reason)
        .with("state_left", nothing_left(stage, pair)?))
}

pub(super) fn migrate(stage: &mut Stage) -> StepResult {
    let pair = Pair::strangers(stage);
    let Pair { a, b } = pair;
    let listener = listen(stage, pair)?;
    let connection = establish(stage, pair)?;
    let alternate = alternate_path(stage, pair, connection.path.record())?;

    let mut lap = CmLap::default();
    lap.set_remote_cm_response_timeout(RESPONSE_TIMEOUT);
    lap.set_path(&alternate.cm_path());
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
    let to_b = alternate.gsi();
    let to_a = way_back(stage, b, &offered)?.gsi();
    let world = stage.world()?;
    let cm = world.port_mut(a.at).cm();
    cm.set_address(connection.active, &to_b)?;
    let cm = world.port_mut(b.at).cm();
    cm.set_address(connection.passive, &to_a)?;
    disconnect(stage, &connection)?;
    stop_listening(stage, pair, listener)?;
    Ok(Facts::new()
        .show("primary", lid_pair(connection.path.record()))
        .show("alternate", lid_pair(alternate.record()))
        .show("status", status)
        .with("disconnected_over_alternate", true)
        .with("state_left", nothing_left(stage, pair)?))
}

pub(super) fn resolve_service(stage: &mut Stage) -> StepResult {
    let siblings = Pair::siblings(stage);
    let strangers = Pair::strangers(stage);
    let near = resolve(stage, siblings)?;
    let far = resolve(stage, strangers)?;
    Ok(Facts::new()
        .list("services_of", [siblings.b.name, strangers.b.name])
        .list("qpns", [near, far])
        .show("qkey", QKEY)
        .with("datagrams_delivered", 2)
        .with("state_left", nothing_left(stage, strangers)?))
}

/// Resolves a service to a datagram queue pair, and sends to it.
fn resolve(stage: &mut Stage, pair: Pair) -> StepResult<Qpn> {
    let Pair { a, b } = pair;
    let listener = listen(stage, pair)?;
    let path = stage.path(a, b)?;
    let request = path.sidr_request(SERVICE);
    let now = stage.now()?;
    let asked = stage.world()?.port_mut(a.at).cm().send_sidr_req(
        now,
        &path.gsi(),
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
    stop_listening(stage, pair, listener)?;
    Ok(qpn)
}

pub(super) fn listen(stage: &mut Stage, pair: Pair) -> StepResult<ConnId> {
    let b = pair.b;
    let cm = stage.world()?.port_mut(b.at).cm();
    Ok(cm.listen(SERVICE, EXACT)?)
}

pub(super) fn stop_listening(stage: &mut Stage, pair: Pair, listener: ConnId) -> StepResult<()> {
    let b = pair.b;
    let now = stage.now()?;
    let cm = stage.world()?.port_mut(b.at).cm();
    Ok(cm.destroy(now, listener)?)
}

/// Sets a QP number aside on a port's adapter, for a QP that exchanges no packets.
fn reserve_qpn(stage: &mut Stage, port: NamedPort) -> StepResult<Qpn> {
    let world = stage.world()?;
    Ok(world.with_hca(port.at.on(), |hca| hca.reserve_qpns(1, 1))?)
}

/// Sends a REQ along the path that the SA gives.
fn send_req(stage: &mut Stage, pair: Pair) -> StepResult<(PortPath, ConnId, Qpn)> {
    let Pair { a, b } = pair;
    let path = stage.path(a, b)?;
    let qpn = reserve_qpn(stage, a)?;
    let mut req = CmReq {
        responder_resources: 4,
        initiator_depth: 4,
        starting_psn: Psn::from_low_bits(1),
        ..path.request(SERVICE, qpn)
    };
    req.set_remote_cm_response_timeout(RESPONSE_TIMEOUT);
    req.set_local_cm_response_timeout(RESPONSE_TIMEOUT);
    req.set_max_cm_retries(MAX_CM_RETRIES);
    req.private_data[..GREETING.len()].copy_from_slice(GREETING);
    let now = stage.now()?;
    let active = stage.world()?.port_mut(a.at).cm().send_req(
        now,
        &path.gsi(),
        &req,
        Rendezvous::ClientServer,
    )?;
    Ok((path, active, qpn))
}

/// Waits until the REQ is there, with its private data.
fn wait_for_req(stage: &mut Stage, pair: Pair) -> StepResult<ConnId> {
    let b = pair.b;
    let (passive, said) = stage.wait_cm(b, "REQ", |event| match &event.kind {
        CmEventKind::ReqReceived { req, .. } => Some((event.conn, req.private_data)),
        _ => None,
    })?;
    ensure(said.starts_with(GREETING), || {
        "the REQ's private data is not what was sent".to_owned()
    })?;
    Ok(passive)
}

/// Connects two guests: REQ, REP, RTU.
pub(super) fn establish(stage: &mut Stage, pair: Pair) -> StepResult<Connection> {
    let Pair { a, b } = pair;
    let (path, active, active_qpn) = send_req(stage, pair)?;
    let passive = wait_for_req(stage, pair)?;
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
        pair,
        path,
        active,
        passive,
        active_qpn,
        passive_qpn,
    })
}

/// Disconnects from the active side: DREQ, DREP, and time-wait on both sides.
pub(super) fn disconnect(stage: &mut Stage, connection: &Connection) -> StepResult<()> {
    let Pair { a, b } = connection.pair;
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

pub(super) fn wait_for_time_wait(
    stage: &mut Stage,
    port: NamedPort,
    conn: ConnId,
) -> StepResult<()> {
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
pub(super) fn nothing_left(stage: &mut Stage, pair: Pair) -> StepResult<usize> {
    let ports = [pair.a, pair.b];
    stage.wait_for("no connection, timer or buffer left", |world| {
        let left = ports.map(|port| {
            let sizes = world.port_mut(port.at).cm().table_sizes();
            sizes.connections + sizes.local_ids + sizes.timers + sizes.buffers + sizes.listeners
        });
        let left: usize = left.iter().sum();
        (left == 0).then_some(left)
    })
}

/// The path between the same guests by the second LIDs of their ports, as the SA confirms it.
fn alternate_path(stage: &mut Stage, pair: Pair, primary: &PathRecord) -> StepResult<PortPath> {
    let second = |lid: Lid| Lid::new(lid.get() | 1);
    let lids = (second(primary.slid), second(primary.dlid));
    let path = path_by_lids(stage, pair.a, (primary.sgid, primary.dgid), lids)?;
    ensure(path.record().dlid != primary.dlid, || {
        "the alternate path is the primary one".to_owned()
    })?;
    Ok(path)
}

/// The path back along one that was offered.
fn way_back(stage: &mut Stage, from: NamedPort, offered: &CmPath) -> StepResult<PortPath> {
    let gids = (offered.remote_gid, offered.local_gid);
    let lids = (offered.remote_lid, offered.local_lid);
    path_by_lids(stage, from, gids, lids)
}

/// The path between two GIDs by LIDs of the caller's choice.
fn path_by_lids(
    stage: &mut Stage,
    from: NamedPort,
    (sgid, dgid): (Gid, Gid),
    (slid, dlid): (Lid, Lid),
) -> StepResult<PortPath> {
    let mut wanted = PathRecord {
        sgid,
        dgid,
        slid,
        dlid,
        ..PathRecord::default()
    };
    wanted.set_reversible(true);
    wanted.set_numb_path(1);
    let mask = PathRecord::SGID
        | PathRecord::DGID
        | PathRecord::SLID
        | PathRecord::DLID
        | PathRecord::REVERSIBLE
        | PathRecord::NUMB_PATH;
    stage.query_path(from, "path query by LIDs", SaRequest::get(&wanted, mask))
}

fn lid_pair(path: &PathRecord) -> String {
    format!("{}->{}", path.slid, path.dlid)
}
