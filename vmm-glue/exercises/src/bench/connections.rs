//! Connections through a port's mux: opened by a VF or by its peer in turn, closed by whoever opened
//! them. Every message is a whole frame of a pool that no near cache holds.

use anyhow::ensure;
use ib_vtime::SplitMix64;
use ib_wire::cm::{self, CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{CommId, Gid, Lid, PKey};
use vf_tunnel::VfId;

use super::pool::{Place, below};
use super::rig::{
    BATCH, From, Rig, batch_mad, peer_gid, tunnel_frame, tunnel_header, vf_gid, vf_of, wire_frame,
    wire_header,
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

    /// Whether a step's message comes from the VF. Who opened a connection closes it.
    fn vf_sends(&self, step: Step) -> bool {
        let by_opener = matches!(step, Step::Req | Step::Rtu | Step::Dreq);
        by_opener == self.opened_by_vf()
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

/// A step of a connection's life, by its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Req,
    Rep,
    Rtu,
    Dreq,
    Drep,
}

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

    /// Opens the next connections, at most [`BATCH`]: REQ, REP, RTU.
    pub(super) fn open(&mut self, rig: &mut Rig, count: usize) -> anyhow::Result<Vec<Connection>> {
        let mut opened = (0..count)
            .map(|_| self.next())
            .collect::<anyhow::Result<Vec<_>>>()?;
        for step in [Step::Req, Step::Rep, Step::Rtu] {
            self.pass(rig, &mut opened, step)?;
        }
        Ok(opened)
    }

    /// Opens so many connections.
    pub(super) fn open_many(
        &mut self,
        rig: &mut Rig,
        count: u32,
    ) -> anyhow::Result<Vec<Connection>> {
        let mut all = Vec::new();
        let mut missing = usize::try_from(count)?;
        while missing > 0 {
            let batch = missing.min(BATCH);
            all.extend(self.open(rig, batch)?);
            missing -= batch;
        }
        Ok(all)
    }

    /// Closes connections, at most [`BATCH`]: DREQ, DREP.
    pub(super) fn close(
        &mut self,
        rig: &mut Rig,
        connections: &mut [Connection],
    ) -> anyhow::Result<()> {
        for step in [Step::Dreq, Step::Drep] {
            self.pass(rig, connections, step)?;
        }
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<Connection> {
        let number = self.opened;
        self.opened += 1;
        Ok(Connection {
            vf: vf_of(number, self.vfs)?,
            lid: Lid::new(u16::try_from(0x100 + number % 1000)?),
            guest: number,
            remote: number ^ 0x5555_5555,
            wire: 0,
        })
    }

    /// Passes one message of each connection.
    fn pass(
        &mut self,
        rig: &mut Rig,
        connections: &mut [Connection],
        step: Step,
    ) -> anyhow::Result<()> {
        for connection in &*connections {
            let number = below(&mut self.random, FRAMES);
            if connection.vf_sends(step) {
                let frame = &self.from_vf[step as usize][number];
                rig.load(From::Vf(connection.vf), frame);
            } else {
                let frame = &self.from_wire[step as usize][number];
                rig.load(From::Wire(connection.lid), frame);
            }
        }
        for (at, connection) in connections.iter().enumerate() {
            connection.write(rig.loaded(at)?, step)?;
        }
        rig.flush()?;
        for (at, connection) in connections.iter_mut().enumerate() {
            let sent = ids_of(rig.sent(at)?);
            if connection.vf_sends(step) {
                // REQ and REP are the first to show it.
                connection.wire = sent.local_comm_id.get();
            } else {
                let known = step == Step::Req || sent.remote_comm_id.get() == connection.guest;
                ensure!(known, "a message went astray");
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Makes a frame in a batch this connection's message.
    fn write(&self, slot: &mut Place, step: Step) -> anyhow::Result<()> {
        let (own, peer) = (vf_gid(self.vf), peer_gid(self.lid));
        let (local, remote) = if self.vf_sends(step) {
            self.write_from_vf(slot)?;
            (own, peer)
        } else {
            self.write_from_wire(slot)?;
            (peer, own)
        };
        if step == Step::Req {
            let req: &mut CmReq = batch_mad(slot)?.view_mut();
            req.primary.local_gid = local;
            req.primary.remote_gid = remote;
        }
        Ok(())
    }

    /// Makes a frame in a batch one of this connection's VF.
    pub(super) fn write_from_vf(&self, slot: &mut Place) -> anyhow::Result<()> {
        let av = &mut tunnel_header(slot)?.av;
        av.dlid = self.lid;
        av.dgid = peer_gid(self.lid);
        name(batch_mad(slot)?, self.guest, self.remote);
        Ok(())
    }

    /// Makes a packet in a batch one of this connection's peer.
    pub(super) fn write_from_wire(&self, slot: &mut Place) -> anyhow::Result<()> {
        let grh = wire_header(slot)?;
        grh.dgid = vf_gid(self.vf);
        grh.sgid = peer_gid(self.lid);
        name(batch_mad(slot)?, self.remote, self.wire);
        Ok(())
    }
}

/// The message of an established connection that changes nothing: a VF's RTU once more.
pub(super) fn rtu_frame() -> Place {
    let mad = Mad::new(cm::header(AttributeId::CM_RTU));
    tunnel_frame(Lid::NONE, Some(Gid::NONE), &mad)
}

/// The message of a peer that changes nothing: an APR.
pub(super) fn apr_frame() -> Place {
    let mad = Mad::new(cm::header(AttributeId::CM_APR));
    wire_frame(Lid::NONE, Some(Gid::NONE), &mad)
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
