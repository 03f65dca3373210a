//! Connections through a port's mux: opened by a VF or by its peer in turn, closed by whoever opened
//! them. Every message is a whole frame of a pool that no near cache holds.

use anyhow::{Context, ensure};
use ib_vtime::SplitMix64;
use ib_wire::cm::{self, CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{CommId, Gid, Lid, PKey};
use vf_tunnel::{ToPf, VfId};
use zerocopy::FromBytes;

use super::floors::below;
use super::rig::{
    Place, Rig, peer_gid, sent_mad, tunnel_frame, tunnel_mad, vf_gid, vf_of, wire_frame, wire_mad,
};

/// A connection, as both of its ends and the wire know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) vf: VfId,
    /// Where the peer is.
    pub(super) lid: Lid,
    /// The VF's id.
    pub(super) guest: u32,
    /// The peer's id.
    pub(super) remote: u32,
    /// The id by which the peer knows the VF.
    pub(super) wire: u32,
}

impl Connection {
    fn opened_by_vf(&self) -> bool {
        self.guest.is_multiple_of(2)
    }
}

/// The messages of a connection's life.
const MESSAGES: [AttributeId; 5] = [
    AttributeId::CM_REQ,
    AttributeId::CM_REP,
    AttributeId::CM_RTU,
    AttributeId::CM_DREQ,
    AttributeId::CM_DREP,
];

/// Frames of each message and direction.
const FRAMES: usize = 20_000;

/// Opens and closes connections.
#[derive(Debug)]
pub(super) struct Connections {
    vfs: u16,
    from_vf: [Vec<Place>; MESSAGES.len()],
    from_wire: [Vec<Place>; MESSAGES.len()],
    random: SplitMix64,
    opened: u32,
}

impl Connections {
    pub(super) fn new(vfs: u16) -> Self {
        let mad = |attribute| {
            let mut mad = Mad::new(cm::header(attribute));
            if attribute == AttributeId::CM_REQ {
                mad.view_mut::<CmReq>().pkey = PKey::DEFAULT_FULL;
            }
            mad
        };
        let frames = |frame| vec![frame; FRAMES];
        let gid = Some(Gid::NONE);
        Self {
            vfs,
            from_vf: MESSAGES.map(|message| frames(tunnel_frame(Lid::NONE, gid, &mad(message)))),
            from_wire: MESSAGES.map(|message| frames(wire_frame(Lid::NONE, gid, &mad(message)))),
            random: SplitMix64::new(7),
            opened: 0,
        }
    }

    /// Opens the next connection: REQ, REP, RTU.
    pub(super) fn open(&mut self, rig: &mut Rig) -> anyhow::Result<Connection> {
        let number = self.opened;
        self.opened += 1;
        let mut connection = Connection {
            vf: vf_of(number, self.vfs)?,
            lid: Lid::new(u16::try_from(0x100 + number % 1000)?),
            guest: number,
            remote: number ^ 0x5555_5555,
            wire: 0,
        };
        let [req, rep, rtu, ..] = [0, 1, 2];
        if connection.opened_by_vf() {
            let sent = self.send(rig, &connection, req)?;
            connection.wire = ids_of(sent_mad(sent)?).local_comm_id.get();
            self.receive(rig, &connection, rep)?;
            self.send(rig, &connection, rtu)?;
        } else {
            self.receive(rig, &connection, req)?;
            let sent = self.send(rig, &connection, rep)?;
            connection.wire = ids_of(sent_mad(sent)?).local_comm_id.get();
            self.receive(rig, &connection, rtu)?;
        }
        Ok(connection)
    }

    /// Closes a connection: DREQ, DREP.
    pub(super) fn close(&mut self, rig: &mut Rig, connection: &Connection) -> anyhow::Result<()> {
        let [dreq, drep] = [3, 4];
        if connection.opened_by_vf() {
            self.send(rig, connection, dreq)?;
            self.receive(rig, connection, drep)
        } else {
            self.receive(rig, connection, dreq)?;
            self.send(rig, connection, drep).map(drop)
        }
    }

    /// Sends a message from the VF; gives it as it left.
    fn send<'r>(
        &mut self,
        rig: &'r mut Rig,
        connection: &Connection,
        message: usize,
    ) -> anyhow::Result<&'r mut Place> {
        let frames = &mut self.from_vf[message];
        let at = below(&mut self.random, frames.len());
        let place = &mut frames[at];
        address(place, connection)?;
        let mad = tunnel_mad(place)?;
        name(mad, connection.guest, connection.remote);
        if message == 0 {
            let req: &mut CmReq = mad.view_mut();
            req.primary.local_gid = vf_gid(connection.vf);
            req.primary.remote_gid = peer_gid(connection.lid);
        }
        rig.send(connection.vf, place)
    }

    fn receive(
        &mut self,
        rig: &mut Rig,
        connection: &Connection,
        message: usize,
    ) -> anyhow::Result<()> {
        let frames = &mut self.from_wire[message];
        let at = below(&mut self.random, frames.len());
        let place = &mut frames[at];
        let (own, remote) = (vf_gid(connection.vf), peer_gid(connection.lid));
        let grh = ib_wire::packet::Grh::mut_from_prefix(place);
        let (grh, _) = grh.ok().context("a GRH fits")?;
        grh.dgid = own;
        grh.sgid = remote;
        let mad = wire_mad(place)?;
        name(mad, connection.remote, connection.wire);
        if message == 0 {
            let req: &mut CmReq = mad.view_mut();
            req.primary.local_gid = remote;
            req.primary.remote_gid = own;
        }
        let got = ids_of(sent_mad(rig.receive(connection.lid, place)?)?);
        ensure!(
            message == 0 || got.remote_comm_id.get() == connection.guest,
            "a message went astray"
        );
        Ok(())
    }
}

fn address(place: &mut Place, connection: &Connection) -> anyhow::Result<()> {
    let (frame, _) = ToPf::mut_from_prefix(place).ok().context("a frame fits")?;
    frame.header.av.dlid = connection.lid;
    frame.header.av.dgid = peer_gid(connection.lid);
    Ok(())
}

/// The message of an established connection that changes nothing: a VF's RTU once more.
pub(super) fn rtu_frame(connection: &Connection) -> Place {
    let mad = with_ids(AttributeId::CM_RTU, connection.guest, connection.remote);
    tunnel_frame(connection.lid, Some(peer_gid(connection.lid)), &mad)
}

/// The message of a peer that changes nothing: an APR.
pub(super) fn apr_frame(connection: &Connection) -> Place {
    let mad = with_ids(AttributeId::CM_APR, connection.remote, connection.wire);
    wire_frame(connection.lid, Some(vf_gid(connection.vf)), &mad)
}

fn with_ids(attribute: AttributeId, local: u32, remote: u32) -> Mad {
    let mut mad = Mad::new(cm::header(attribute));
    name(&mut mad, local, remote);
    mad
}

fn name(mad: &mut Mad, local: u32, remote: u32) {
    let ids: &mut CmRtu = mad.view_mut();
    ids.local_comm_id = CommId::new(local);
    ids.remote_comm_id = CommId::new(remote);
}

/// All messages that follow a REQ have their ids where an RTU has them, and a REQ its own.
pub(super) fn ids_of(mad: &Mad) -> &CmRtu {
    mad.view()
}
