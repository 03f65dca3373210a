//! What guests send.

use ib_endpoint::{PortPath, group_destination};
use ib_vtime::Instant;
use ib_wire::{Gid, GidIndex, PortNum, Qpn};
use vhca_control::Facts;

use super::{Begun, Guests, PORT, QKEY, query};
use vhca::world::{HostFunction, World};

/// What to do with an answer of the SA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// Report it.
    Tell,
    /// Join the group, whose record was asked for.
    Join(Gid),
    /// Send a message along it.
    Send {
        /// The queue pair at its end.
        qpn: Qpn,
        /// The message.
        text: String,
    },
}

impl Guests {
    pub(super) fn send(
        &self,
        world: &mut World,
        now: Instant,
        on: HostFunction,
        to: Gid,
        text: &str,
    ) -> Begun {
        if to.0[0] == 0xff {
            return Begun::Done(self.send_to_group(world, on, to, text));
        }
        let peer = self.guests.iter().find(|(peer, _)| {
            let view = world.port(peer.port(PORT)).view();
            view.gid(GidIndex(0)) == Some(to)
        });
        let Some((_, peer)) = peer else {
            return Begun::failed("no guest of this service has that GID");
        };
        let qpn = world.socket(peer.socket).qp().numbers().external;
        let text = text.to_owned();
        query(world, now, on, to, Errand::Send { qpn, text })
    }

    fn send_to_group(
        &self,
        world: &mut World,
        on: HostFunction,
        mgid: Gid,
        text: &str,
    ) -> Result<Facts, String> {
        let guest = self.guests.get(&on).ok_or("the guest is gone")?;
        let group = guest.groups.get(&mgid);
        let (group, record) = group
            .and_then(|group| Some((group, group.record?)))
            .ok_or("the guest is not in the group; have it join first")?;
        let destination = group_destination(PortNum(PORT), &record);
        world
            .send(group.socket(guest.socket), &destination, text.as_bytes())
            .map_err(|error| format!("the adapter refused: {error}"))?;
        Ok(Facts::new().show("mlid", record.mlid))
    }

    /// Does what the path is for.
    pub(super) fn run_errand(
        &self,
        world: &mut World,
        on: HostFunction,
        path: &PortPath,
        facts: Facts,
        errand: Errand,
    ) -> Result<Facts, String> {
        let Errand::Send { qpn, text } = errand else {
            return Ok(facts);
        };
        let guest = self.guests.get(&on).ok_or("the guest is gone")?;
        let destination = path.destination(qpn, QKEY);
        world
            .send(guest.socket, &destination, text.as_bytes())
            .map_err(|error| format!("the adapter refused: {error}"))?;
        Ok(facts.with("qpn", qpn.get()))
    }
}
