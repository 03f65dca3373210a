//! Reliable connections by the connection manager.

use anyhow::{Context, bail, ensure};
use ib_endpoint::PortPath;
use ib_endpoint::cm::{CmEventKind, ConnId, Rendezvous};
use ib_wire::cm::CmRep;
use ib_wire::{Gid, Lid, Psn, Qpn, ServiceId};
use mlx4_defs::cq::ArmCommand;
use mlx4_driver::{Bus, Connection, ConnectionSpec, Operation, Peer, Remote, SendWork};

use super::say;
use super::session::{FOREVER, LIMIT, PORT, Session};
use crate::cli::{ConnectArgs, Destination};

/// Service ID and bytes of the tour.
const TOUR: (ServiceId, usize) = (ServiceId::new(0x4242), 1 << 20);

/// The memory of a side, in the first bytes of its private data: address, key, length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    remote: Remote,
    len: u32,
}

impl Memory {
    fn of(end: &Connection, len: usize) -> Self {
        Self {
            remote: end.remote(0),
            len: u32::try_from(len).unwrap_or(u32::MAX),
        }
    }

    fn write(self, data: &mut [u8]) {
        data[..8].copy_from_slice(&self.remote.addr.to_be_bytes());
        data[8..12].copy_from_slice(&self.remote.rkey.to_be_bytes());
        data[12..16].copy_from_slice(&self.len.to_be_bytes());
    }

    fn read(data: &[u8]) -> Option<Self> {
        let (addr, rest) = data.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let (len, _) = rest.split_first_chunk()?;
        let (addr, rkey) = (u64::from_be_bytes(*addr), u32::from_be_bytes(*rkey));
        Some(Self {
            remote: Remote { addr, rkey },
            len: u32::from_be_bytes(*len),
        })
    }
}

/// Connects the VF to itself.
pub(super) fn tour(session: &mut Session) -> anyhow::Result<()> {
    let (service, bytes) = TOUR;
    let path = session.path(Destination::Gid(session.port().gid()))?;
    let passive = open(session, bytes)?;
    let active = open(session, bytes)?;
    listen(session, service)?;
    let id = request(session, &path, service, &active, bytes)?;
    let (_, of_active) = accept(session, &passive, bytes)?;
    let memory = complete(session, id, &path, &active)?;
    session.message(LIMIT, established)?;
    say(&of_active)?;
    say(&transfer(session, &active, memory, bytes)?)?;
    disconnect(session, id)?;
    disconnected(session)?;
    session.message(LIMIT, over)?;
    for end in [active, passive] {
        end.close(&mut session.driver, &mut session.bus)?;
    }
    say("disconnected")
}

pub(super) fn connect(session: &mut Session, args: &ConnectArgs) -> anyhow::Result<()> {
    let end = open(session, args.bytes)?;
    match args.to {
        Some(to) => {
            let path = session.path(Destination::Gid(to))?;
            let id = request(session, &path, args.service, &end, args.bytes)?;
            let memory = complete(session, id, &path, &end)?;
            say(&format!("connected to {to}"))?;
            say(&transfer(session, &end, memory, args.bytes)?)?;
            disconnect(session, id)?;
            session.message(LIMIT, over)?;
        }
        None => {
            listen(session, args.service)?;
            say(&format!(
                "waiting for a connection to service {}",
                args.service
            ))?;
            let (_, of_peer) = accept(session, &end, args.bytes)?;
            session.message(LIMIT, established)?;
            say(&of_peer)?;
            disconnected(session)?;
        }
    }
    end.close(&mut session.driver, &mut session.bus)?;
    say("disconnected")
}

fn open(session: &mut Session, len: usize) -> anyhow::Result<Connection> {
    let spec = ConnectionSpec {
        len,
        ..ConnectionSpec::reliable()
    };
    let opened = Connection::open(&mut session.driver, &mut session.bus, &spec);
    opened.context("cannot make a queue pair")
}

fn listen(session: &mut Session, service: ServiceId) -> anyhow::Result<()> {
    let listening = session.driver.mads(PORT).cm.listen(service, u64::MAX);
    listening.map(|_| ()).context("cannot listen")
}

/// Sends a REQ.
fn request(
    session: &mut Session,
    path: &PortPath,
    service: ServiceId,
    end: &Connection,
    len: usize,
) -> anyhow::Result<ConnId> {
    let mut request = path.request(service, end.qpn);
    request.starting_psn = end.address(&session.driver).psn;
    Memory::of(end, len).write(&mut request.private_data);
    let (now, cm) = (session.bus.now(), &mut session.driver.mads(PORT).cm);
    let sent = cm.send_req(now, &path.gsi(), &request, Rendezvous::ClientServer);
    sent.context("cannot send a REQ")
}

/// Waits for a REQ, and answers it. Returns a line about the peer.
fn accept(session: &mut Session, end: &Connection, len: usize) -> anyhow::Result<(ConnId, String)> {
    let (id, req) = session.message(FOREVER, |kind| {
        Ok(match kind {
            CmEventKind::ReqReceived { req, .. } => Some(req),
            _ => None,
        })
    })?;
    let (lid, gid) = (req.primary.local_lid, req.primary.local_gid);
    ready(session, end, (lid, gid), req.local_qpn, req.starting_psn)?;
    let mut reply = CmRep {
        local_qpn: end.qpn,
        starting_psn: end.address(&session.driver).psn,
        ..CmRep::default()
    };
    Memory::of(end, len).write(&mut reply.private_data);
    let now = session.bus.now();
    session
        .driver
        .mads(PORT)
        .cm
        .send_rep(now, id, &reply)
        .context("cannot send a REP")?;
    Ok((id, format!("connected by LID {lid}, GID {gid}")))
}

/// Waits for the REP, and sends an RTU. Returns the peer's memory.
fn complete(
    session: &mut Session,
    id: ConnId,
    path: &PortPath,
    end: &Connection,
) -> anyhow::Result<Memory> {
    let (_, rep) = session.message(LIMIT, |kind| {
        Ok(match kind {
            CmEventKind::RepReceived(rep) => Some(rep),
            _ => None,
        })
    })?;
    let record = path.record();
    ready(
        session,
        end,
        (record.dlid, record.dgid),
        rep.local_qpn,
        rep.starting_psn,
    )?;
    let now = session.bus.now();
    session
        .driver
        .mads(PORT)
        .cm
        .send_rtu(now, id, b"")
        .context("cannot send an RTU")?;
    session.driver.serve(&mut session.bus)?;
    Memory::read(&rep.private_data).context("the peer names no memory")
}

fn ready(
    session: &mut Session,
    end: &Connection,
    (lid, gid): (Lid, Gid),
    qpn: Qpn,
    psn: Psn,
) -> anyhow::Result<()> {
    let peer = Peer {
        lid,
        gid: Some(gid),
        qpn,
        psn,
    };
    let connected = end.connect(&mut session.driver, &mut session.bus, &peer);
    connected.context("cannot connect the queue pair")
}

/// Writes to the peer's memory, and reads that back. Returns a line about it.
fn transfer(
    session: &mut Session,
    end: &Connection,
    memory: Memory,
    len: usize,
) -> anyhow::Result<String> {
    let room = memory.len as usize;
    ensure!(
        len <= room,
        "the peer has {room} bytes of memory: --bytes {room}, or more there"
    );
    let begun = session.bus.now();
    // No two pages of it are equal.
    let bytes: Vec<u8> = (0..len)
        .map(|at| (at ^ at >> 12).to_le_bytes()[0])
        .collect();
    end.region.write(0, &bytes);
    carry_out(session, end, len, Operation::Write(memory.remote))?;
    end.region.write(0, &vec![0; len]);
    carry_out(session, end, len, Operation::Read(memory.remote))?;
    ensure!(
        end.region.read(0, len) == bytes,
        "other bytes came back than were written"
    );
    let took = session
        .bus
        .now()
        .saturating_duration_since(begun)
        .as_secs_f64();
    Ok(format!(
        "{len} bytes written to the peer and read back in {took:.3} s"
    ))
}

fn carry_out(
    session: &mut Session,
    end: &Connection,
    len: usize,
    operation: Operation,
) -> anyhow::Result<()> {
    let work = SendWork::to_peer(1, end.part(0, len), operation);
    end.post(&mut session.driver, &mut session.bus, &[work])?;
    let done = session.until(LIMIT, |driver, bus| {
        driver.arm_cq(bus, end.cq, ArmCommand::NEXT)?;
        Ok(end.completions(driver)?.pop())
    })?;
    match done.context("a request does not complete")?.error {
        None => Ok(()),
        Some(syndrome) => bail!("a request failed: {syndrome:?}"),
    }
}

fn disconnect(session: &mut Session, id: ConnId) -> anyhow::Result<()> {
    let now = session.bus.now();
    let sent = session.driver.mads(PORT).cm.send_dreq(now, id, b"");
    sent.context("cannot send a DREQ")
}

/// Waits for the peer's DREQ, and answers it.
fn disconnected(session: &mut Session) -> anyhow::Result<()> {
    let (id, ()) = session.message(FOREVER, |kind| {
        Ok(matches!(kind, CmEventKind::DreqReceived(_)).then_some(()))
    })?;
    let now = session.bus.now();
    session
        .driver
        .mads(PORT)
        .cm
        .send_drep(now, id, b"")
        .context("cannot send a DREP")?;
    Ok(session.driver.serve(&mut session.bus)?)
}

fn established(kind: CmEventKind) -> Result<Option<()>, String> {
    Ok(matches!(kind, CmEventKind::RtuReceived(_)).then_some(()))
}

fn over(kind: CmEventKind) -> Result<Option<()>, String> {
    Ok(matches!(kind, CmEventKind::DrepReceived(_)).then_some(()))
}
