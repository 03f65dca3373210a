//! What `vhca show cm` prints.

use ib_vtime::{Duration, Instant};
use ib_wire::{Gid, Guid, Lid, PKey, PortNum, Qpn};
use vf_tunnel::{RemoteCommId, VfCommId, VfId, WireCommId};

use crate::machine::CmParavirt;
use crate::state::State;
use crate::store::{Flags, Hot};

/// A communication id or SIDR request id and what is known of its exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The VF.
    pub vf: VfId,
    /// The VF's own id; `None` if the VF has not answered a peer's request.
    pub vf_id: Option<VfCommId>,
    /// The id on the wire. One that no message has shown yet is reserved.
    pub wire_id: WireCommId,
    /// The peer's id, if it is known.
    pub remote_id: Option<RemoteCommId>,
    /// Whether this is a SIDR request.
    pub sidr: bool,
    /// The VF uses its id for a newer exchange.
    pub superseded: bool,
    /// The state.
    pub state: State,
    /// The port.
    pub port: PortNum,
    /// The peer's LID.
    pub lid: Lid,
    /// The LID of the peer's alternate path, if there is one.
    pub alternate_lid: Option<Lid>,
    /// The peer's GID; [`Gid::NONE`] if not known.
    pub gid: Gid,
    /// The peer's CA; [`Guid::NONE`] if not known.
    pub ca_guid: Guid,
    /// The peer's QP; zero if not known.
    pub qpn: Qpn,
    /// The partition; [`PKey::INVALID`] if not known.
    pub pkey: PKey,
    /// When the id ends unless another message comes; `None` for a connection that is surely up.
    pub remaining: Option<Duration>,
    /// Time since the exchange moved: since the last message of a handshake or SIDR request, since
    /// the DREQ or REJ that ended it. `None` for a connection that is up, as far as can be told.
    /// In steps of 67 ms; an MRA's service time counts from its end.
    pub idle: Option<Duration>,
}

impl CmParavirt {
    /// All ids, in a stable order.
    pub fn connections(&self, now: Instant) -> impl Iterator<Item = Connection> {
        let slots = self.table.store.iter();
        slots.map(move |slot| self.connection(now, slot))
    }

    /// A VF's ids, the newest first.
    pub fn connections_of(&self, now: Instant, vf: VfId) -> impl Iterator<Item = Connection> {
        let slots = self.table.of_vf(vf);
        slots.map(move |slot| self.connection(now, slot))
    }

    fn connection(&self, now: Instant, slot: u32) -> Connection {
        let hot: &Hot = self.table.store.hot(slot);
        let cold = self.table.store.cold(slot);
        Connection {
            vf: hot.vf,
            vf_id: hot.has(Flags::BOUND).then_some(hot.guest),
            wire_id: hot.wire,
            remote_id: hot.has(Flags::REMOTE).then_some(hot.remote),
            sidr: hot.has(Flags::SIDR),
            superseded: hot.has(Flags::SUPERSEDED),
            state: hot.state,
            port: hot.port,
            lid: hot.lid,
            alternate_lid: Some(hot.alternate_lid).filter(|lid| *lid != Lid::NONE),
            gid: cold.gid,
            ca_guid: cold.ca_guid,
            qpn: cold.qpn,
            pkey: hot.pkey,
            remaining: self.table.remaining(now, slot),
            idle: self.table.idle(now, slot),
        }
    }
}
